"""What do the benchmark catalogues hold, and how many of their ads may a request see?

Both settings of `benchmarks/catalog.py`, made in memory. Counts are of all ads. The share of
eligible ads is measured by the exact filter on the last ads of the catalogue, for people and, in a
sweep, for the visitor of each tier; a sweep's share is of the ads that run.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import time

import numpy as np

import grace
from benchmarks import record
from benchmarks.catalog import SWEEP, Spec, catalog_table, make_requests, schema
from benchmarks.generator.counts import Tally
from benchmarks.generator.spec import SETTINGS
from benchmarks.generator.table import catalog_chunks
from grace.catalog.schema import Schema

# Bits of a failed check that are the ad's own state: paused, outside its window.
NOT_RUNNING = 0b11


def main() -> None:
    """Count both settings, write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ads", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--sample", type=int, default=100_000, help="ads that requests are held to")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    rows = []
    for ads, places in itertools.product(options.ads, SETTINGS):
        spec = Spec(ads=ads, places=places)
        case = f"{spec.ads:,} ads"
        rows += count_rows(spec, case, options.workers)
        sample = min(options.sample, spec.ads)
        shares, _ = eligible_shares(spec, options.requests, sample)
        rows.append(
            record.row(
                case,
                places,
                "eligible ads, a person",
                "rate",
                **record.quantiles(shares),
                counts={"mean": float(np.mean(shares)), "ads": sample},
            )
        )
        sweep = dataclasses.replace(spec, selectivity=tuple(map(float, SWEEP.split(","))))
        _, shares = eligible_shares(sweep, len(sweep.tiers), sample)
        for wanted, share in zip(sweep.selectivity, shares, strict=True):
            metric = f"sweep, {wanted:.2%} wanted"
            rows.append(record.row(case, places, metric, "rate", share, counts={"ads": sample}))
    record.show("catalog_facts", rows)
    print(record.write("catalog_facts", rows, machine="cpu"))


def count_rows(spec: Spec, case: str, workers: int) -> list[dict]:
    """Counts of the whole catalogue, and how fast it was made."""
    tally = Tally(spec.ads)
    start = time.perf_counter()
    for chunk in catalog_chunks(spec, workers=workers):
        tally.add(chunk)
    seconds = time.perf_counter() - start
    rows = [
        record.row(case, spec.places, name, "rate" if name.startswith("share") else "count", value)
        for name, value in tally.finish().items()
    ]
    made = record.row(case, spec.places, "made, without files", "1/s", spec.ads / seconds)
    return [*rows, made]


def eligible_shares(spec: Spec, num_requests: int, sample: int) -> tuple[list[float], list[float]]:
    """Per request the share of the last ads that accept it: of all, and of those that run."""
    ads = catalog_table(spec, spec.ads - sample)
    index = grace.build_index(ads, Schema.from_dict(schema(spec)))
    positions = np.arange(index.num_ads)
    of_all, of_running = [], []
    for request in make_requests(spec, num_requests):
        faults = index.explain(positions, index.compile(request["attributes"], request["at"]))
        accepted = np.count_nonzero(faults == 0)
        of_all.append(accepted / sample)
        of_running.append(accepted / np.count_nonzero(faults & NOT_RUNNING == 0))
    return of_all, of_running


if __name__ == "__main__":
    main()
