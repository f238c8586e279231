"""What does it cost beams to attend to their ancestors' keys and values where they lie?

The last of four positions of a batch's beams, T5's heads, made-up ancestors. `torch` gathers the
ancestors' rows and attends in torch's operations, `sdpa` gathers them for torch's own attention,
`ours` reads them where they lie (on a CPU; elsewhere it is `torch`).
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import record
from benchmarks.kernels import timing
from grace.kernels.ancestor_attention import ancestor_attention

POSITIONS = 4
SETS = 3


def main(arguments: Sequence[str] | None = None) -> None:
    """Check that all agree, time them, show the rows."""
    parser = timing.parser(__doc__)
    parser.set_defaults(batch=1, heads=6, head_dim=64)
    parser.add_argument("--beams", type=int, nargs="+", default=[64, 256])
    options = parser.parse_args(arguments)
    rows = [row for beams in options.beams for row in measure_step(beams, options)]
    timing.finish("ancestor_attention", rows, options)


def measure_step(beams: int, options: argparse.Namespace) -> Iterator[dict]:
    """Rows of one number of beams."""
    draw = torch.Generator(options.device).manual_seed(beams)
    like = {"generator": draw, "device": options.device}
    count, width = options.batch * beams, 3 * options.heads * options.head_dim
    bias = torch.randn(options.heads, POSITIONS, **like)
    sets = []
    for _ in range(SETS):
        own, *past = (torch.randn(count, width, **like) for _ in range(POSITIONS))
        ancestors = [torch.randint(count, (count,), **like) for _ in past]
        sets.append((own, past, ancestors, bias))
    plain = functools.partial(ancestor_attention, backend="reference")
    wanted = plain(*sets[0])
    for variant, run in {"torch": plain, "sdpa": gathered, "ours": ancestor_attention}.items():
        torch.testing.assert_close(run(*sets[0]), wanted, rtol=1e-4, atol=1e-4)
        calls = [functools.partial(run, *one) for one in sets]
        stats = timing.measure(calls, options.replays, options.device)
        yield record.row(f"{count} rows", variant, "latency", "ms", **stats)


def gathered(own: Tensor, past: list[Tensor], ancestors: list[Tensor], bias: Tensor) -> Tensor:
    """The same through `scaled_dot_product_attention`."""
    rows = [p.index_select(0, a) for p, a in zip(past, ancestors, strict=True)]
    heads = torch.stack([*rows, own], 1).unflatten(2, (3, len(bias), -1))
    query, key, value = heads.permute(2, 0, 3, 1, 4)
    mask = bias[None, :, None]
    out = F.scaled_dot_product_attention(query[:, :, -1:], key, value, attn_mask=mask, scale=1.0)
    return out.flatten(1)


if __name__ == "__main__":
    main()
