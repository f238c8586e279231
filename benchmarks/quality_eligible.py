"""What does eligibility cost a generator's quality, by matching mode?

Items get a rule: each may be seen by a random share of 100 segments. A user's segment is drawn from
those that may see what the user took, so every user could find it. Where a run leaves out what the
history has, that is a rule, too. All modes search with the same model and the same beams: `valid`
drops what the user may not see from what it found, `exact` never looks at it, GRACE's three lie
between them. Recall and NDCG are those of `grace evaluate --index`: places among eligible items.

    python -m benchmarks.quality_eligible --run runs/quality/runs/beauty-best-0 \
        --data runs/quality/data/beauty --split test --users 2000 --write
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import grace
from benchmarks import record
from benchmarks.quality_requests import (
    build_index,
    draw_users,
    held_out,
    make_requests,
    open_generator,
)
from grace.datasets import load
from grace.errors import GraceError
from grace.evaluate.run import Evaluation, evaluate
from grace.index import MATCHERS
from grace.model.folder import open_model

SEGMENTS = 100
MODES = tuple(mode for mode in MATCHERS if mode != "off")


def main() -> None:
    """Measure every share of segments, show rows, and keep them if asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", type=Path, required=True, help="run folder of a generator")
    parser.add_argument("--data", type=Path, required=True, help="prepared data set")
    parser.add_argument("--split", choices=("valid", "test"), default="valid")
    parser.add_argument("--shares", nargs="+", type=float, default=[0.5, 0.1, 0.02])
    parser.add_argument("--users", type=int, default=2000, help="drawn once, 0 for all")
    parser.add_argument("--beams", type=int, default=50)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--write", action="store_true", help="write the result file")
    options = parser.parse_args()
    data = load(options.data)
    try:
        generator = open_generator(options.run, data)
    except GraceError as error:
        parser.error(str(error))
    users = held_out(generator, data, options.split, "quality_eligible")
    chosen = draw_users(len(users), options.users)
    model = open_model(options.run / "best")
    widths = (1, *[options.beams] * (generator.sids.shape[1] - 1))
    plan = grace.BeamPlan(widths, min(options.beams, len(data.item_ids)))
    rows = []
    for share in options.shares:
        allowed = draw_rules(data.num_items, share)
        index = build_index(generator, data, allowed)
        requests = make_requests(generator, users, chosen, allowed)
        found = evaluate(index, model, requests, MODES, plan, ks=(10,), device=options.device)
        if found.errors:
            raise SystemExit(f"a request failed: {found.errors[0]}")
        case = f"{options.data.resolve().name}, {generator.kind}, {share:.0%} eligible"
        rows += rows_of(case, found, options)
    record.show("quality_eligible", rows)
    if options.write:
        machine = record.machine_name() if options.device != "cpu" else "cpu"
        print(record.write_cases("quality_eligible", rows, machine, record.RESULTS))


def draw_rules(num_items: int, share: float) -> np.ndarray:
    """Which segments may see which item: bool `[N, SEGMENTS]`, one or more each."""
    generator = np.random.default_rng(1)
    allowed = generator.random((num_items, SEGMENTS)) < share
    allowed[np.arange(num_items), generator.integers(SEGMENTS, size=num_items)] = True
    return allowed


def rows_of(case: str, found: Evaluation, options: argparse.Namespace) -> list[dict]:
    """Recall, NDCG and how many items a user got, by mode."""
    rows = []
    for mode, measured in found.modes.items():
        for metric in ("recall@10", "ndcg@10"):
            estimate = measured.ranking[metric]
            counts = {"low": estimate.low, "high": estimate.high, "users": estimate.n}
            counts |= {"beams": options.beams}
            rows.append(record.row(case, mode, metric, "rate", estimate.value, counts=counts))
        returned = measured.decoding.returned_ads.value
        rows.append(record.row(case, mode, "eligible items found", "count", returned))
    return rows


if __name__ == "__main__":
    main()
