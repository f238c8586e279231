"""What does eligibility inside decoding change, on real people under real advertisers' rules?

Runs `grace demo`, shows its report and keeps its numbers; docs/demo.md says what they mean.

- case `equal beams`: a value is the mean over seeds, `low` and `high` are its 95 % interval; what
  each seed gave is in `counts`. A seed deals the rules and trains a model anew.
- case `funnel`: mean counts per request, under the first seed.
- case `one at a time`: median and 99th percentile of a request's latency by stage, in one thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from benchmarks import record
from grace.datasets.movielens import load_movielens
from grace.demo.measure import unit_of
from grace.demo.pipeline import DemoReport, run_demo
from grace.demo.settings import DemoSettings
from grace.demo.show import show


def main() -> None:
    """Run the demo and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="directory of MovieLens-100K")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    options = parser.parse_args()
    report = run_demo(load_movielens(options.data), options.out, DemoSettings())
    console = Console()
    if not console.is_terminal:
        console.width = 140
    show(report, options.out, console)
    print(record.write("demo", list(rows(report)), machine="cpu"))


def rows(report: DemoReport) -> Iterator[dict]:
    """The report in the record format."""
    for mode, metrics in report.modes.items():
        for metric, mean in metrics.items():
            if mean.value is None:
                continue
            by_seed = {
                f"seed {run.seed}": value
                for run, value in zip(report.seeds, mean.by_seed, strict=True)
            }
            row = record.row(
                "equal beams", mode, metric, unit_of(metric), mean.value, n=len(by_seed),
                counts=by_seed,
            )  # fmt: skip
            yield row | {"low": mean.low, "high": mean.high}
    for mode, counts in report.funnel.items():
        for stage, count in counts.items():
            yield record.row(
                "funnel", mode, stage.replace("_", " "), "count", count, n=report.single_requests
            )
    for mode, stages in report.latency_ms.items():
        for stage, spent in stages.items():
            yield record.row(
                "one at a time", mode, stage, "ms", spent["p50"], p99=spent["p99"],
                n=report.single_requests,
            )  # fmt: skip


if __name__ == "__main__":
    main()
