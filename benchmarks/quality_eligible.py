"""What does eligibility cost a generator's quality: exact matching against valid-then-filter?

Items get a rule: each may be seen by a random share of 100 segments. A user's segment is drawn from
those that may see what the user took, so every user could find it. Both modes search with the same
model and the same beams: `valid` drops what the user may not see from what it found, `exact` never
looks at it. Recall and NDCG are those of `grace evaluate --index`: places among eligible items.

    python -m benchmarks.quality_eligible --run runs/quality/runs/beauty-tiger-0 \
        --data runs/quality/data/beauty --split test --users 2000 --write
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import grace
from benchmarks import record
from grace.datasets import Sequences, Split, load
from grace.evaluate.ranking import testlog
from grace.evaluate.run import Evaluation, evaluate
from grace.model.folder import open_model
from grace.train.sequence import run_sids

SEGMENTS = 100
MODES = ("exact", "valid")


def main() -> None:
    """Measure every share of segments, show rows, and keep them if asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", type=Path, required=True, help="run folder of a tiger model")
    parser.add_argument("--data", type=Path, required=True, help="prepared data set")
    parser.add_argument("--split", choices=("valid", "test"), default="valid")
    parser.add_argument("--shares", nargs="+", type=float, default=[0.5, 0.1, 0.02])
    parser.add_argument("--users", type=int, default=2000, help="drawn once, 0 for all")
    parser.add_argument("--beams", type=int, default=50)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--write", action="store_true", help="write the result file")
    options = parser.parse_args()
    data = load(options.data)
    sids = run_sids(options.run)
    if sids is None:
        parser.error(f"{options.run}: its model has no SIDs")
    if options.split == "test":
        digest = testlog.checkpoint_digest(options.run)
        entry = {"event": "opened", "best": digest, "by": "quality_eligible"}
        testlog.append(options.run, entry)
    users = data.test() if options.split == "test" else data.valid()
    chosen = draw_users(len(users), options.users)
    model = open_model(options.run / "best")
    plan = grace.BeamPlan(
        (1, *[options.beams] * (sids.shape[1] - 1)), min(options.beams, len(data.item_ids))
    )
    rows = []
    for share in options.shares:
        allowed = draw_rules(data.num_items, share)
        index = build(data, sids, allowed)
        requests = make_requests(users, chosen, allowed)
        found = evaluate(index, model, requests, MODES, plan, ks=(10,), device=options.device)
        rows += rows_of(f"{options.data.resolve().name}, {share:.0%} eligible", found, options)
    record.show("quality_eligible", rows)
    if options.write:
        machine = record.machine_name() if options.device != "cpu" else "cpu"
        path = record.RESULTS / machine / "quality_eligible.json"
        cases = {row["case"] for row in rows}
        before = json.loads(path.read_text())["rows"] if path.exists() else []
        kept = [row for row in before if row["case"] not in cases]
        every = kept + rows
        print(record.write("quality_eligible", every, machine, record.RESULTS, added=bool(kept)))


def draw_users(num_users: int, wanted: int) -> np.ndarray:
    """Rows of the users that are asked, ascending; the same ones each time."""
    order = np.random.default_rng(0).permutation(num_users)
    return np.sort(order[: wanted or num_users])


def draw_rules(num_items: int, share: float) -> np.ndarray:
    """Which segments may see which item: bool `[N, SEGMENTS]`, one or more each."""
    generator = np.random.default_rng(1)
    allowed = generator.random((num_items, SEGMENTS)) < share
    allowed[np.arange(num_items), generator.integers(SEGMENTS, size=num_items)] = True
    return allowed


def build(data: Sequences, sids: np.ndarray, allowed: np.ndarray) -> grace.Index:
    """An index of all items with their rules, in memory."""
    schema = {"attributes": [{"name": "segment", "kind": "categorical"}]}
    ads = [
        {
            "ad_id": item,
            "sid": sid,
            "rules": {"segment": {"include": [str(segment) for segment in np.flatnonzero(seen)]}},
        }
        for item, sid, seen in zip(data.item_ids.tolist(), sids.tolist(), allowed, strict=True)
    ]
    return grace.build_index(ads, schema)


def make_requests(users: Split, chosen: np.ndarray, allowed: np.ndarray) -> list[dict]:
    """A request for each chosen user, in a segment that may see the target."""
    generator = np.random.default_rng(2)
    requests = []
    for row in chosen:
        history = users.items[users.offsets[row] : users.offsets[row + 1]]
        segment = generator.choice(np.flatnonzero(allowed[users.targets[row]]))
        features = {"history": users.item_ids[history].tolist(), "user": int(users.users[row])}
        requests.append(
            {
                "id": int(row),
                "features": features,
                "attributes": {"segment": str(segment)},
                "target": int(users.item_ids[users.targets[row]]),
            }
        )
    return requests


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
