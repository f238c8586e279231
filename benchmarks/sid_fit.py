"""How well are codes used, how many items collide, and do SIDs know what users do next?

Catalogues: MovieLens-100K (titles and genres) and Amazon Beauty 2014 (titles), both with users'
histories less their last two events. Variants: what the SIDs are made from, and levels x codes.
Beauty's row `LETTER, published` holds the SIDs that LETTER's authors released for these items
(github.com/HonghuiBao2000/LETTER), measured the same way.

Each user's last two events, which no fit has seen, are a pair of neighbours: `next item shares the
first code` says how often both have one first code, `..., times chance` divides that by how often
two items drawn independently from the same two positions would. Median, p20 and p80 are over seeds.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import record
from grace.datasets.movielens import load_movielens
from grace.sid import SidReport, fit_catalog

SOURCES = {
    "text": ("text",),
    "behaviour": ("behaviour",),
    "text+behaviour": ("text", "behaviour"),
}


@dataclass(frozen=True)
class Case:
    """A catalogue and its users; ids are 0..N-1 in the order of the rows."""

    name: str
    rows: list[dict]
    text: tuple[str, ...]
    histories: list[list[int]]
    shapes: tuple[tuple[int, int], ...]  # (levels, codes)

    @property
    def training(self) -> list[dict]:
        return [{"items": history[:-2]} for history in self.histories]


def main() -> None:
    """Fit every variant with every seed, measure, write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--data",
        type=Path,
        default=record.ROOT.parent / "shared" / "data",
        help="holds amazon-2014-5core/; without it, only MovieLens is measured",
    )
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    amazon = options.data / "amazon-2014-5core"
    cases = [movielens(options.data / "movielens-100k")]
    cases += [beauty(amazon)] if amazon.is_dir() else []
    rows = []
    for case in cases:
        for name, sources in SOURCES.items():
            for levels, codes in case.shapes:
                rows += measure_fits(case, name, sources, levels, codes, options.seeds)
    if amazon.is_dir():
        rows += measure_letter(cases[-1], amazon / "Beauty_sid_letter.json.gz")
    record.show("sid_fit", rows)
    print(record.write("sid_fit", rows, machine="cpu"))


def movielens(directory: Path) -> Case:
    """MovieLens-100K, from the folder where it exists, else as the demo gets it."""
    data = load_movielens(directory if directory.is_dir() else None)
    position = {movie.movie_id: i for i, movie in enumerate(data.movies)}
    return Case(
        name="movielens-100k",
        rows=[
            {"ad_id": i, "title": movie.title, "genres": list(movie.genres)}
            for i, movie in enumerate(data.movies)
        ],
        text=("title", "genres"),
        histories=[[position[r.movie_id] for r in ratings] for ratings in data.ratings.values()],
        shapes=((3, 32), (3, 64)),
    )


def beauty(directory: Path) -> Case:
    """Amazon Beauty 2014, 5-core, in S3-Rec's numbering (from 1)."""
    with gzip.open(directory / "Beauty_items.csv.gz", "rt") as file:
        titles = [row["title"] for row in csv.DictReader(file)]
    with gzip.open(directory / "Beauty.txt.gz", "rt") as file:
        histories = [[int(item) - 1 for item in line.split()[1:]] for line in file]
    return Case(
        name="beauty",
        rows=[{"ad_id": i, "title": title} for i, title in enumerate(titles)],
        text=("title",),
        histories=histories,
        shapes=((3, 64), (4, 256)),
    )


def measure_fits(
    case: Case, name: str, sources: tuple[str, ...], levels: int, codes: int, seeds: int
) -> list[dict]:
    """Fit once per seed and turn each metric into one row."""
    samples: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            start = time.perf_counter()
            fit = fit_catalog(
                case.rows,
                Path(folder) / "out.jsonl",
                text=case.text if "text" in sources else (),
                behaviour=case.training if "behaviour" in sources else None,
                levels=levels,
                codes=codes,
                seed=seed,
            )
            elapsed_ms = (time.perf_counter() - start) * 1e3
            measured = {("fit", "ms"): elapsed_ms}
            measured |= of_report(fit.report) | of_sids(fit.sids, case.histories)
            for key, value in measured.items():
                samples.setdefault(key, []).append(value)
    rows = []
    for (metric, unit), values in samples.items():
        figures = record.quantiles(values)
        del figures["p99"]  # of a handful of seeds it says nothing
        variant = f"{name} {levels}x{codes}"
        counts = {"items": len(case.rows), "users": len(case.histories)}
        rows.append(record.row(case.name, variant, metric, unit, **figures, counts=counts))
    return rows


def measure_letter(case: Case, path: Path) -> list[dict]:
    """Measure LETTER's published SIDs: key = item number from 0, value = tokens `<a_17>`."""
    with gzip.open(path, "rt") as file:
        tokens = json.load(file)
    sids = np.array([[int(token[3:-1]) for token in tokens[str(i)]] for i in range(len(case.rows))])
    return [
        record.row(case.name, "LETTER, published 4x256", metric, unit, value)
        for (metric, unit), value in of_sids(sids, case.histories).items()
    ]


def of_report(report: SidReport) -> dict[tuple[str, str], float]:
    """Metrics that need the vectors."""
    metrics = {("resolved", "rate"): report.resolved}
    for level in report.levels:
        metrics[f"relative error after level {level.level}", "rate"] = level.relative_error
    return metrics


def of_sids(sids: np.ndarray, histories: list[list[int]]) -> dict[tuple[str, str], float]:
    """Metrics of SIDs `[N, L]` alone."""
    _, ads = np.unique(sids, axis=0, return_counts=True)
    metrics = {
        ("distinct SIDs", "count"): len(ads),
        ("collision rate", "rate"): 1 - len(ads) / len(sids),
        ("ads per SID, p99", "count"): np.percentile(ads, 99),
        ("ads per SID, max", "count"): ads.max(),
    }
    for level, codes in enumerate(sids.T, start=1):
        share = np.unique(codes, return_counts=True)[1] / len(codes)
        metrics[f"codes used at level {level}", "count"] = len(share)
        metrics[f"perplexity of level {level}", "count"] = np.exp(-(share * np.log(share)).sum())
    before, after = (
        np.array([sids[history[place], 0] for history in histories]) for place in (-2, -1)
    )
    same = (before == after).mean()
    size = sids[:, 0].max() + 1
    chance = np.bincount(before, minlength=size) @ np.bincount(after, minlength=size)
    metrics["next item shares the first code", "rate"] = same
    metrics["next item shares the first code, times chance", "ratio"] = (
        same / chance * len(histories) ** 2
    )
    return metrics


if __name__ == "__main__":
    main()
