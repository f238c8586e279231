"""What does eligibility cost a generator's quality, by matching mode?

Items get rules on two attributes of 100 values, so that a random share of people may see each. A
user's values are drawn from those that may see what the user took, so every user could find it. On
MovieLens, `--demo` adds the demo's people and real rules; who may not see what he took does not
count there. Where a run leaves out what the history has, that is a rule, too. All modes search with
the same model and the same beams: `valid` drops what the user may not see from what it found,
`exact` never looks at it, GRACE's three lie between them. Places are those among eligible items.

    python -m benchmarks.quality_eligible --run runs/quality/runs/beauty-best-0 \
        --data runs/quality/data/beauty --split test --users 2000 --write
    python -m benchmarks.quality_eligible --run runs/quality/runs/movielens-best-0 \
        --data runs/quality/data/movielens --demo ../shared/data/movielens-100k
"""

from __future__ import annotations

import argparse
import dataclasses
from importlib.resources import files
from pathlib import Path

import numpy as np
import yaml

import grace
from benchmarks import record
from benchmarks.quality_requests import (
    build_index,
    draw_users,
    held_out,
    make_requests,
    open_generator,
)
from grace.datasets import Split, load
from grace.errors import DataError, GraceError
from grace.evaluate.run import Evaluation, evaluate
from grace.index import MATCHERS
from grace.model.folder import open_model

ATTRIBUTES = ("segment", "region")
"""Two, since a union over one attribute is exact: it forgets which item named which pair."""
VALUES = 100
MODES = tuple(mode for mode in MATCHERS if mode != "off")


def main() -> None:
    """Measure every share of segments, show rows, and keep them if asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", type=Path, required=True, help="run folder of a generator")
    parser.add_argument("--data", type=Path, required=True, help="prepared data set")
    parser.add_argument("--split", choices=("valid", "test"), default="valid")
    parser.add_argument("--shares", nargs="+", type=float, default=[0.5, 0.1, 0.02])
    parser.add_argument("--demo", type=Path, help="MovieLens-100K: its people and the demo's rules")
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
    worlds = [random_world(share, data.num_items, users, chosen) for share in options.shares]
    if options.demo:
        worlds.append(demo_world(options.demo, users, chosen))
    rows = []
    for world in worlds:
        index = build_index(generator, data, world.attributes, world.rows)
        requests = make_requests(generator, users, chosen, world.people)
        found = evaluate(index, model, requests, MODES, plan, ks=(10,), device=options.device)
        if found.errors:
            raise SystemExit(f"a request failed: {found.errors[0]}")
        case = f"{options.data.resolve().name}, {generator.kind}, {world.name}"
        rows += rows_of(case, found, options)
    record.show("quality_eligible", rows)
    if options.write:
        machine = record.machine_name() if options.device != "cpu" else "cpu"
        print(record.write_cases("quality_eligible", rows, machine, record.RESULTS))


@dataclasses.dataclass(frozen=True)
class World:
    """Who may see what.

    Attributes:
        name: in results.
        attributes: of the schema.
        rows: of the catalogue, one an item, without `ad_id` and `sid`.
        people: what requests have besides features, one a chosen user.
    """

    name: str
    attributes: list[dict]
    rows: list[dict]
    people: list[dict]


def random_world(share: float, num_items: int, users: Split, chosen: np.ndarray) -> World:
    """Each item may be seen by about a share of people, each user's target by that user."""
    allowed = draw_rules(num_items, share)
    draw = np.random.default_rng(2)

    def person(target: int) -> dict[str, str]:
        return {
            name: str(draw.choice(np.flatnonzero(seen[target]))) for name, seen in allowed.items()
        }

    def rules(item: int) -> dict[str, dict]:
        return {
            name: {"include": [str(value) for value in np.flatnonzero(seen[item])]}
            for name, seen in allowed.items()
        }

    return World(
        name=f"{share:.0%} eligible",
        attributes=[{"name": name, "kind": "categorical"} for name in ATTRIBUTES],
        rows=[{"rules": rules(item)} for item in range(num_items)],
        people=[{"attributes": person(target)} for target in users.targets[chosen]],
    )


def draw_rules(num_items: int, share: float) -> dict[str, np.ndarray]:
    """Which values of each attribute may see which item: bool `[N, VALUES]`, one or more each."""
    draw = np.random.default_rng(1)
    rules = {}
    for name in ATTRIBUTES:
        allowed = draw.random((num_items, VALUES)) < share ** (1 / len(ATTRIBUTES))
        allowed[np.arange(num_items), draw.integers(VALUES, size=num_items)] = True
        rules[name] = allowed
    return rules


def demo_world(movielens: Path, users: Split, chosen: np.ndarray) -> World:
    """The demo's people and rules, as its first seed deals them.

    Raises:
        DataError: if the items, or what was held out, are others than the demo's.
    """
    from grace.demo.data import load_demo

    schema = yaml.safe_load(files("grace.demo").joinpath("schema.yaml").read_text())
    demo = load_demo(movielens)
    rows = sorted(demo.catalog, key=lambda row: row["ad_id"])
    asked = demo.requests.test if users.name == "test" else demo.requests.valid
    by_user = {int(request["id"]): request for request in asked}
    people = [by_user.get(user) for user in users.users[chosen].tolist()]
    targets = users.item_ids[users.targets[chosen]].tolist()
    same = [person and person["target"] for person in people] == targets
    if not same or [row["ad_id"] for row in rows] != users.item_ids.tolist():
        raise DataError(f"{movielens}: --data is not made of it")
    return World(
        name="the demo's rules",
        attributes=schema["attributes"],
        rows=rows,
        people=[{"attributes": person["attributes"], "at": person["at"]} for person in people],
    )


def rows_of(case: str, found: Evaluation, options: argparse.Namespace) -> list[dict]:
    """Recall and NDCG of those who may see their target, and how many items a user got, by mode."""
    rows = []
    for mode, measured in found.modes.items():
        for metric in ("recall@10", "ndcg@10"):
            estimate = measured.ranking[f"eligible_{metric}"]
            counts = {"low": estimate.low, "high": estimate.high, "users": estimate.n}
            counts |= {"beams": options.beams}
            rows.append(record.row(case, mode, metric, "rate", estimate.value, counts=counts))
        returned = measured.decoding.returned_ads.value
        rows.append(record.row(case, mode, "eligible items found", "count", returned))
    return rows


if __name__ == "__main__":
    main()
