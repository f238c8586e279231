"""What does it cost to re-order beams: keys and values, or block ids (GRACE, 2.4)?

At step t each beam continues a parent of the step before. `dense` copies the keys and values of the
t positions of all decoder layers into the other of two buffers by `torch.gather`, as
`grace.model.beam_cache` does, and `dense, index` by `index_select`; `block ids` is `block_reorder`,
one table for all layers. All lead to the same prefixes, which is checked. `bytes` counts what a
dense copy reads and writes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from benchmarks import record
from benchmarks.kernels import timing
from grace.kernels.block_reorder import block_reorder

PAPER = {"value": 1.79, "source": "GRACE, 2.4: about 1.6 GB and 1.79 ms a step"}
PAPER_BYTES = 1.6e9


def main(arguments: Sequence[str] | None = None) -> None:
    """Check that both agree, time them, show the rows."""
    parser = timing.parser(__doc__)
    parser.add_argument("--beams", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--length", type=int, default=4, help="L")
    options = parser.parse_args(arguments)
    rows = [row for t in range(1, options.length) for row in measure_step(t, options)]
    timing.finish("reorder", rows, options)


def measure_step(t: int, options: argparse.Namespace) -> Iterator[dict]:
    """Rows of one step."""
    draw = torch.Generator(options.device).manual_seed(t)
    like = {"generator": draw, "device": options.device}
    shape = (options.layers, options.batch, options.beams, options.length)
    block = (2, options.kv_heads, options.head_dim)
    cache = torch.randn((*shape, *block), **like, dtype=torch.bfloat16)
    other = torch.empty_like(cache)
    parents = torch.randint(0, options.beams, (options.batch, options.beams), **like)
    num_rows = options.batch * options.beams
    table = torch.arange(num_rows * options.length, dtype=torch.int32, device=options.device)
    table = table.view(num_rows, options.length)
    first_block = num_rows * options.length
    request = torch.arange(options.batch, device=options.device)[:, None]
    source = (request * options.beams + parents).flatten()

    def gather() -> None:
        rows = cache.flatten(1, 2)[:, :, :t]
        index = source[None, :, None, None, None, None].expand_as(rows)
        torch.gather(rows, 1, index, out=other.flatten(1, 2)[:, :, :t])

    def index() -> None:
        other.flatten(1, 2)[:, :, :t] = cache.flatten(1, 2)[:, :, :t].index_select(1, source)

    def block_ids() -> Tensor:
        return block_reorder(table, parents, t, first_block)

    case, moved = f"t={t}", 2 * cache[:, :, :, :t].numel() * cache.element_size()
    gather()
    reordered = block_ids()[:, :t].long()
    for layer in range(options.layers):
        wanted = cache[layer].flatten(0, 2)[reordered]
        assert torch.equal(other[layer].flatten(0, 1)[:, :t], wanted)
    counts = {"rows": num_rows, "layers": options.layers, "bytes": moved}
    for variant, call in (("dense", gather), ("dense, index", index), ("block ids", block_ids)):
        stats = timing.measure([call], options.replays, options.device)
        papers = variant == "dense" and abs(moved / PAPER_BYTES - 1) < 0.05
        yield record.row(
            case, variant, "latency", "ms", **stats, counts=counts,
            reference=PAPER if papers else None,
        )  # fmt: skip


if __name__ == "__main__":
    main()
