"""What does self-attention over a prefix of a few tokens cost (GRACE, Table 5)?

B * M rows, each with a prefix of its own, at positions t = 0..L-1:

- `sdpa flash`: torch's FlashAttention on `[rows, H, 1, D]`, what is usually called.
- `block-diagonal`: the paper's coalesced tile on the matrix units.
- `coalesced`: `self_attention`, plain dot products over the same dense cache.
- `fused`: `self_attention_fused`, which also takes the projection's output apart and writes k, v.
- `paged`: `self_attention_paged` on blocks that no two rows share, the most that can be read.
- `paged, shared`: the same on a tree of beams, whose early blocks are the ancestors'.

The first three find position t written. The floor counts every byte of queries, outputs and
prefixes once, for `fused` and `paged` also what they read of the projection and write; at `paged,
shared` it counts each distinct block once. All must agree with the float32 reference before
anything is timed.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import record
from benchmarks.kernels import timing
from grace.kernels.self_attention import (
    self_attention,
    self_attention_fused,
    self_attention_paged,
)
from grace.kernels.self_attention.reference import attend_reference

SOURCE = "GRACE, 6.3: from 0.269 ms fused to 0.238 paged at t=3"
PAPER = {(3, "fused"): 0.269, (3, "paged"): 0.238}
TOLERANCE = 2e-2  # of bfloat16
SETS = 2


@dataclass(frozen=True)
class Inputs:
    """One set of random inputs, bfloat16.

    Attributes:
        qkv: `[rows, (H + 2 Hkv) * D]`.
        query: `[rows, H, D]`, the queries of `qkv`, contiguous.
        cache: `[rows, L, 2, Hkv, D]`, position t written.
        table: int32 `[rows, L]`, a block of its own for each position and row.
        tree: int32 `[rows, L]`, blocks of the ancestors of a random tree of beams.
    """

    qkv: Tensor
    query: Tensor
    cache: Tensor
    table: Tensor
    tree: Tensor

    @property
    def pool(self) -> Tensor:
        """The cache's memory as blocks `[rows * L, 2, Hkv, D]`."""
        return self.cache.flatten(0, 1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Check that all agree, time them, show the rows."""
    parser = timing.parser(__doc__)
    parser.add_argument("--beams", type=int, default=1024)
    parser.add_argument("--length", type=int, default=4, help="L")
    options = parser.parse_args(arguments)
    rows = [row for t in range(options.length) for row in measure_step(t, options)]
    timing.finish("self_attention", rows, options)


def measure_step(t: int, options: argparse.Namespace) -> Iterator[dict]:
    """Rows of one position."""
    case, device = f"t={t}", options.device
    sets = [random_inputs(t, options, seed) for seed in range(SETS)]
    for variant, (run, num_bytes) in variants(t, sets[0], options).items():
        check(run, sets[0], t, variant)
        calls = [functools.partial(run, s) for s in sets]
        slow = variant == "sdpa flash"
        stats = timing.measure(calls, options.replays // (5 if slow else 1), device)
        reference = None
        if is_papers_shape(options) and (t, variant) in PAPER:
            reference = {"value": PAPER[t, variant], "source": SOURCE}
        counts = {"rows": options.batch * options.beams}
        yield record.row(
            case, variant, "latency", "ms", **stats, counts=counts, reference=reference
        )
        yield from timing.bandwidth_rows(case, variant, stats["value"], num_bytes, device)


def variants(
    t: int, inputs: Inputs, options: argparse.Namespace
) -> dict[str, tuple[Callable[[Inputs], Tensor], int]]:
    """What is timed at a position, and the bytes that each must move."""
    heads = inputs.query.numel() * inputs.query.element_size()
    position = inputs.cache[:, 0].numel() * inputs.cache.element_size()
    block = position // len(inputs.query)
    ancestors = len(torch.unique(inputs.tree[:, :t])) if t else 0
    dense = 2 * heads + (t + 1) * position
    table = 4 * (t + 1) * len(inputs.query)
    chosen = {
        "coalesced": (lambda s: self_attention(s.query, s.cache, t), dense),
        "fused": (
            lambda s: self_attention_fused(s.qkv, s.cache, t),
            2 * heads + (t + 2) * position,
        ),
        "paged": (
            lambda s: self_attention_paged(s.qkv, s.pool, s.table, t),
            2 * heads + (t + 2) * position + table,
        ),
        "paged, shared": (
            lambda s: self_attention_paged(s.qkv, s.pool, s.tree, t),
            2 * heads + 2 * position + ancestors * block + table,
        ),
    }
    if options.device == "cuda":
        chosen["sdpa flash"] = (lambda s: sdpa(s.query, s.cache, t), dense)
    if options.device == "cuda" and options.heads == options.kv_heads:
        from benchmarks.kernels.block_diagonal import block_diagonal_attention

        chosen["block-diagonal"] = (
            lambda s: block_diagonal_attention(s.query, s.cache, t),
            dense,
        )
    return chosen


def sdpa(query: Tensor, cache: Tensor, t: int) -> Tensor:
    """Attend through torch's FlashAttention, a row a batch element."""
    keys, values = cache[:, : t + 1].unbind(2)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(
            query[:, :, None],
            keys.transpose(1, 2),
            values.transpose(1, 2),
            enable_gqa=keys.shape[2] != query.shape[1],
        )[:, :, 0]


def check(run: Callable[[Inputs], Tensor], inputs: Inputs, t: int, variant: str) -> None:
    """Assert that a variant agrees with the float32 reference."""
    shared = variant == "paged, shared"
    blocks = inputs.cache[:, : t + 1]
    if shared:
        blocks = torch.cat([inputs.pool[inputs.tree[:, :t].long()], blocks[:, t:]], 1)
    exact = attend_reference(inputs.query.float(), blocks)
    before = inputs.cache.clone()
    torch.testing.assert_close(
        run(inputs).float(), exact, rtol=TOLERANCE, atol=TOLERANCE,
        msg=lambda found: f"{variant} at t={t}: {found}",
    )  # fmt: skip
    if not shared:
        assert torch.equal(before, inputs.cache)
    inputs.cache.copy_(before)


def random_inputs(t: int, options: argparse.Namespace, seed: int) -> Inputs:
    """Inputs whose position t is written and equals the keys and values of `qkv`."""
    draw = torch.Generator(options.device).manual_seed(seed)
    like = {"generator": draw, "device": options.device}
    num_rows, length = options.batch * options.beams, options.length
    heads, kv_heads, head_dim = options.heads, options.kv_heads, options.head_dim
    width = (heads + 2 * kv_heads) * head_dim
    qkv = torch.randn((num_rows, width), **like, dtype=torch.bfloat16)
    cache = torch.randn((num_rows, length, 2, kv_heads, head_dim), **like, dtype=torch.bfloat16)
    cache[:, t] = qkv[:, heads * head_dim :].view(num_rows, 2, kv_heads, head_dim)
    table = torch.arange(num_rows * length, dtype=torch.int32, device=options.device)
    table = table.view(num_rows, length)
    tree = table.clone()
    # Position j of a beam is a block of one of the rows that were beams of its request then.
    row = torch.arange(num_rows, device=options.device) // options.beams * options.beams
    for j in range(t):
        width = 1 if j == 0 else options.beams // 2 if j == 1 else options.beams
        ancestor = torch.randint(0, max(width, 1), (num_rows,), **like)
        tree[:, j] = table[row + ancestor, j]
    query = qkv[:, : heads * head_dim].unflatten(1, (heads, head_dim)).contiguous()
    return Inputs(qkv, query, cache, table, tree)


def is_papers_shape(options: argparse.Namespace) -> bool:
    """Whether the sizes are those of the paper's table."""
    return (options.batch * options.beams, options.heads, options.head_dim) == (16384, 16, 128)


if __name__ == "__main__":
    main()
