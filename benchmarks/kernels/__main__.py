"""Every kernel benchmark, one after the other: `python -m benchmarks.kernels --write`."""

from __future__ import annotations

import argparse

from benchmarks.kernels import (
    bench_ancestor_attention,
    bench_cross_attention,
    bench_elementwise,
    bench_fp8_rows,
    bench_gather_rows,
    bench_linear,
    bench_reorder,
    bench_self_attention,
)

BENCHMARKS = {
    "ancestor_attention": bench_ancestor_attention,
    "cross_attention": bench_cross_attention,
    "self_attention": bench_self_attention,
    "reorder": bench_reorder,
    "elementwise": bench_elementwise,
    "fp8_rows": bench_fp8_rows,
    "gather_rows": bench_gather_rows,
    "linear": bench_linear,
}
SMALL = ["--batch=2", "--heads=2", "--kv-heads=2", "--head-dim=32", "--beams=8", "--replays=3"]


def main() -> None:
    """Run all benchmarks, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the scripts")
    parser.add_argument("--write", action="store_true", help="save the result files")
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"NAME must be one of {', '.join(BENCHMARKS)}, got {', '.join(unknown)}")
    for name, module in BENCHMARKS.items():
        if not options.names or name in options.names:
            module.main([*(SMALL if options.small else []), *(["--write"] * options.write)])


if __name__ == "__main__":
    main()
