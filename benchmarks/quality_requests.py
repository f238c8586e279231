"""A run of `grace train --data` as retrieval sees it: an index of its items, users as requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import grace
from grace.datasets import Sequences, Split
from grace.errors import DataError
from grace.evaluate.ranking import testlog
from grace.model.t5 import T5
from grace.train.sequence.models import GENERATORS, load_kept

TAKEN = "taken"
"""Attribute that keeps the items of a history from its user, where the run leaves them out."""


@dataclasses.dataclass(frozen=True)
class Generator:
    """What retrieval must know of a run.

    Attributes:
        run: its folder; `run / "best"` is the model.
        kind: kind of the model, one of those that write SIDs.
        sids: int32 `[N, L]`, of the items of the data set.
        takes_users: whether its features may name the user.
        unseen: whether it leaves out what the history has (`exclude_history`).
    """

    run: Path
    kind: str
    sids: np.ndarray
    takes_users: bool
    unseen: bool


def open_generator(run: Path, data: Sequences) -> Generator:
    """Read a run.

    Raises:
        ModelError: if it holds no model.
        DataError: if its model writes no SIDs, or is one of other items.
    """
    kept = load_kept(run / testlog.BEST)
    if kept.kind not in GENERATORS:
        raise DataError(f"{run}: its model has no SIDs: it is of kind {kept.kind}")
    if not np.array_equal(kept.item_ids, data.item_ids):
        raise DataError(f"{run}: its model ranks other items than those of {data.folder}")
    return Generator(
        run=run,
        kind=kept.kind,
        sids=kept.model.table.sids.numpy(),
        takes_users=isinstance(kept.model.model, T5),
        unseen=kept.exclude_history,
    )


def held_out(generator: Generator, data: Sequences, split: str, by: str) -> Split:
    """Read a split; the test split goes into the run's log first.

    Args:
        generator: that is measured.
        data: its data set.
        split: `valid` or `test`.
        by: what measures.
    """
    if split == "valid":
        return data.valid()
    digest = testlog.checkpoint_digest(generator.run)
    testlog.append(generator.run, {"event": "opened", "best": digest, "by": by})
    return data.test()


def draw_users(num_users: int, wanted: int) -> np.ndarray:
    """Rows of the users that are asked, ascending; the same ones each time; 0 wants all."""
    order = np.random.default_rng(0).permutation(num_users)
    return np.sort(order[: wanted or num_users])


def build_index(
    generator: Generator,
    data: Sequences,
    attributes: Sequence[dict] = (),
    rows: Sequence[dict] | None = None,
) -> grace.Index:
    """Build an index of all items, in memory.

    Args:
        generator: whose SIDs they have; where it leaves a history out, so does a rule of each item.
        data: the items.
        attributes: of the schema.
        rows: of the catalogue, one an item, in their order, without `ad_id` and `sid`; None where
            everybody may see everything.
    """
    taken = [{"name": TAKEN, "kind": "set"}] if generator.unseen else []
    ads = []
    for place, (item, sid) in enumerate(
        zip(data.item_ids.tolist(), generator.sids.tolist(), strict=True)
    ):
        row = rows[place] if rows is not None else {}
        rules = dict(row.get("rules") or {})
        if generator.unseen:
            rules[TAKEN] = {"exclude": [str(item)]}
        ads.append(row | {"ad_id": item, "sid": sid, "rules": rules})
    return grace.build_index(ads, {"attributes": [*attributes, *taken]})


def make_requests(
    generator: Generator, users: Split, chosen: np.ndarray, people: Sequence[dict] | None = None
) -> list[dict]:
    """Return a request with its `target` for each chosen user.

    Args:
        generator: that is asked.
        users: a split.
        chosen: rows of it.
        people: what their requests have besides, one a chosen user: `attributes`, `at`.
    """
    requests = []
    for number, row in enumerate(chosen):
        history = users.item_ids[users.items[users.offsets[row] : users.offsets[row + 1]]].tolist()
        person = people[number] if people is not None else {}
        attributes = dict(person.get("attributes", {}))
        if generator.unseen:
            attributes[TAKEN] = [str(item) for item in history]
        request = {
            "id": int(row),
            "features": features_of(generator, history, int(users.users[row])),
            "attributes": attributes,
            "target": int(users.item_ids[users.targets[row]]),
        }
        requests.append(person | request)
    return requests


def features_of(generator: Generator, history: list[int], user: int) -> dict:
    """Return a history, oldest first, in the words that the kind of model reads."""
    if generator.kind == "grace":
        return {"history": [{"ad_id": item} for item in history]}
    return {"history": history, "user": user} if generator.takes_users else {"history": history}
