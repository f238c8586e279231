"""What do the self-attention kernels do at t = 3, by the chip's own counters (GRACE, Table 5)?

Runs itself under Nsight Compute (`ncu` must be on the PATH), clocks left as they are: one launch of
each variant of `bench_self_attention` at the paper's shape. Instructions are of warps; the share of
bandwidth and the occupancy are of what the chip allows.

    python -m benchmarks.kernels.counters --write
"""

from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import sys
from collections.abc import Sequence

import torch

from benchmarks import record
from benchmarks.kernels import timing
from benchmarks.kernels.bench_self_attention import random_inputs, variants

T = 3
METRICS = {
    "smsp__inst_executed.sum": ("instructions", "count", 1.0),
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": ("HBM share of peak", "rate", 0.01),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("occupancy", "rate", 0.01),
    "dram__bytes.sum": ("HBM traffic", "bytes", 1.0),
}
PAPER = {
    ("sdpa flash", "instructions"): 2.48e9,
    ("sdpa flash", "HBM share of peak"): 0.0238,
    ("coalesced", "instructions"): 57.7e6,
    ("coalesced", "HBM share of peak"): 0.2936,
    ("coalesced", "occupancy"): 0.9124,
    ("fused", "instructions"): 35.8e6,
    ("fused", "HBM share of peak"): 0.7552,
    ("fused", "occupancy"): 0.3667,
    ("paged", "instructions"): 43.8e6,
    ("paged", "HBM share of peak"): 0.8446,
}
NAMES = ("sdpa flash", "coalesced", "fused", "paged", "paged, shared")


def main(arguments: Sequence[str] | None = None) -> None:
    """Count, or with `--child` only launch what is counted."""
    parser = timing.parser(__doc__)
    parser.add_argument("--beams", type=int, default=1024)
    parser.add_argument("--length", type=int, default=4, help="L")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        launch(options)
        return
    if shutil.which("ncu") is None:
        parser.error("ncu is not on the PATH: install Nsight Compute")
    rows = [
        record.row(
            f"t={T}", name, metric, unit, value * factor,
            reference={"value": PAPER[name, metric], "source": "GRACE, 6.3"}
            if (name, metric) in PAPER else None,
        )
        for name, counted in zip(NAMES, count(), strict=True)
        for (metric, unit, factor), value in counted
    ]  # fmt: skip
    timing.finish("counters", rows, options)


def launch(options: argparse.Namespace) -> None:
    """Launch each variant once where the profiler listens."""
    inputs = random_inputs(T, options, 0)
    runs = variants(T, inputs, options)
    for name in NAMES:
        run = runs[name][0]
        run(inputs)  # compiles and tunes
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        run(inputs)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


def count() -> list[list[tuple[tuple[str, str, float], float]]]:
    """Return for each launch its (metric, unit, factor) and values."""
    command = [
        "ncu", "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw",
        "--print-units", "base", "--metrics", ",".join(METRICS),
        sys.executable, "-m", "benchmarks.kernels.counters", "--child",
    ]  # fmt: skip
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line for line in output.splitlines() if line.startswith('"')]
    launches = [row for row in csv.DictReader(lines) if row["ID"]]  # the second line has units
    return [
        [(kind, float(row[metric].replace(",", ""))) for metric, kind in METRICS.items()]
        for row in launches
    ]


if __name__ == "__main__":
    main()
