"""What does it cost to look a step's first layer up in the prefix tables?

Rows of two tables, the residual stream and the query that follows, for the beams of each step in a
random order. `torch` are two gathers, `torch.compile` both compiled, `ours` is one kernel for both.
All must return the same bits.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Sequence

import torch

from benchmarks import record
from benchmarks.kernels import timing
from grace.kernels.gather_rows import gather_rows

SETS = 3


def main(arguments: Sequence[str] | None = None) -> None:
    """Check that all agree, time them, show the rows."""
    parser = timing.parser(__doc__)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 512, 1024])
    parser.add_argument("--model-dim", type=int, default=1024)
    parser.add_argument("--nodes", type=int, default=2**18, help="of the trie level")
    options = parser.parse_args(arguments)
    rows = [row for beams in options.beams for row in measure_step(beams, options)]
    timing.finish("gather_rows", rows, options)


def measure_step(beams: int, options: argparse.Namespace) -> Iterator[dict]:
    """Rows of one step."""
    nodes = options.nodes if options.device == "cuda" else min(options.nodes, 1000)
    draw = torch.Generator(options.device).manual_seed(beams)
    like = {"generator": draw, "device": options.device}
    widths = (options.model_dim, options.heads * options.head_dim)
    tables = [torch.randn(nodes, width, **like, dtype=torch.bfloat16) for width in widths]
    count = options.batch * beams
    sets = [torch.randint(nodes, (count,), **like) for _ in range(SETS)]
    plain = functools.partial(gather_rows, *tables, backend="reference")
    variants = {"torch": plain, "ours": functools.partial(gather_rows, *tables)}
    if options.device == "cuda":
        variants["torch.compile"] = torch.compile(plain)
    case, wanted = f"{count} rows", plain(sets[0])
    moved = sets[0].nbytes + 2 * sum(rows.nbytes for rows in wanted)
    for variant, run in variants.items():
        assert all(map(torch.equal, run(sets[0]), wanted)), variant
        calls = [functools.partial(run, rows) for rows in sets]
        stats = timing.measure(calls, options.replays, options.device)
        yield record.row(case, variant, "latency", "ms", **stats)
        yield from timing.bandwidth_rows(case, variant, stats["value"], moved, options.device)


if __name__ == "__main__":
    main()
