"""What a soak must be answered: four catalogues, a pool of requests, brute force over both."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cache

import numpy as np

from tests import oracle
from tests.table_generator import TableGenerator

SCHEMA = (
    {"name": "country", "kind": "categorical"},
    {"name": "age", "kind": "range"},
    {"name": "places", "kind": "set"},
)
VOCAB, WIDTHS, NUM_SIDS = 7, (1, 6, 12), 16  # narrower than the tries: what is pruned counts
NUM_CATALOGS, NUM_ADS, NUM_REQUESTS = 4, 120, 40
COUNTRIES, PLACES = ("US", "CA", "日本"), tuple(f"place {number}" for number in range(12))
# Flags of ads that a soak switches; all four catalogues have the ads.
SWITCHES = (("paused", 3), ("paused", 4), ("paused", 5), ("bid_off", 5), ("bid_off", 6))
State = frozenset[tuple[str, int]]  # the switches that are off


def catalog(number: int) -> list[dict]:
    """Return a catalogue; two differ in nearly every SID and rule, and in their number of ads."""
    draw = random.Random(f"catalogue {number}")
    rows = []
    for ad_id in range(NUM_ADS + 10 * number):
        rules = {}
        if draw.random() < 0.5:
            part = draw.choice(("include", "exclude"))
            rules["country"] = {part: draw.sample(COUNTRIES, draw.randint(1, 2))}
        if draw.random() < 0.5:
            rules["age"] = {"min": draw.randint(10, 40)}
        if draw.random() < 0.5:
            rules["places"] = {"include": draw.sample(PLACES, 4)}
        if ("paused", ad_id) in SWITCHES or ("bid_off", ad_id) in SWITCHES:
            rules = {}
        row = {"ad_id": ad_id, "sid": [draw.randrange(VOCAB) for _ in range(3)], "rules": rules}
        if draw.random() < 0.2:
            row["end"] = f"2026-03-{draw.randint(1, 28):02}T00:00:00Z"
        rows.append(row)
    return rows


def pool(seed: int) -> list[dict]:
    """Return the requests of a soak, without ids; the logits of a few are NaN."""
    draw = random.Random(f"requests {seed}")
    requests = []
    for number in range(NUM_REQUESTS):
        attributes = {
            "country": draw.choice((*COUNTRIES, "never named", None)),
            "age": draw.choice((8, 20, 30.5, 60, None)),
            "places": draw.sample(PLACES, draw.randint(0, 4)),
        }
        features = {"seed": number, "style": draw.choice(("smooth", "coarse", "holes"))}
        if number % 10 == 9:
            features |= {"bad": draw.choice(("nan", "inf")), "bad_step": draw.randrange(3)}
        request = {"attributes": attributes, "features": features, "at": "2026-03-14T12:00:00Z"}
        if draw.random() < 0.5:
            request["top_k"] = draw.choice((0, 3, 10))
        requests.append(request)
    return requests


class Truth:
    """The answers to a pool of requests, from every version and state of the ads.

    Args:
        versions: the number of the catalogue by the id of the version made of it.
        requests: the pool.
    """

    def __init__(self, versions: dict[str, int], requests: list[dict]):
        self._versions, self._requests = versions, requests
        self._catalogs = {number: catalog(number) for number in versions.values()}
        self._generator = TableGenerator(VOCAB)
        self._expected = cache(self._retrieve)

    def fault(self, request: int, answer: dict, states: Iterable[State]) -> str | None:
        """Say what is wrong with an answer, or None.

        A batch reads the states before its search and again in its last filter. So one that ran
        while they changed may show an earlier one in the first and a later one in the second.

        Args:
            request: its number in the pool.
            answer: JSON of status 200, or `{"error": {"field"}}` of status 400.
            states: those that held at some time while the request was under way, in their order.
        """
        states = list(states)
        version = answer.get("version")
        if "error" in answer:  # which names no version
            due = any(
                self._expected(catalog, request, state, state) is None
                for catalog in self._versions.values()
                for state in states
            )
            right = due and answer["error"]["field"] == "logits"
            return None if right else f"refused: {answer['error']}"
        if version not in self._versions:
            return f"names version {version!r}, which there never was"
        catalog = self._versions[version]
        got = _seen(answer)
        for first, searched in enumerate(states):
            for filtered in states[first:]:
                if got == self._expected(catalog, request, searched, filtered):
                    return None
        want = self._expected(catalog, request, states[0], states[0])
        return f"of catalogue {catalog}, states {[sorted(s) for s in states]}: {got}, not {want}"

    def _retrieve(self, catalog: int, request: int, searched: State, filtered: State):
        """Return what `_seen` makes of the right answer, or None where the request must fail."""
        raw = self._requests[request]
        before, after = (_rows(self._catalogs[catalog], state) for state in (searched, filtered))
        allowed = oracle.eligible_prefixes(before, raw, SCHEMA)
        try:
            want = oracle.retrieve(
                after, raw, SCHEMA, lambda prefix: self._generator.logits(raw["features"], prefix),
                WIDTHS, NUM_SIDS, "as searched", _Searched(allowed),
            )  # fmt: skip
        except oracle.BadLogits:
            return None
        ads = tuple((ad_id, sid, np.float32(score)) for ad_id, sid, score in want.ads)
        return ads, _counts(want.funnel)


class _Searched:
    """A matcher that has already said which prefixes pass."""

    def __init__(self, allowed: set):
        self._allowed = allowed

    def prefixes(self, request: dict) -> set:
        return self._allowed


def _rows(rows: list[dict], state: State) -> list[dict]:
    flags = {ad_id: {} for _, ad_id in SWITCHES}
    for flag, ad_id in SWITCHES:
        flags[ad_id][flag] = (flag, ad_id) in state
    return [row | flags.get(row["ad_id"], {}) for row in rows]


def _seen(answer: dict) -> tuple:
    ads = tuple((ad["ad_id"], tuple(ad["sid"]), np.float32(ad["score"])) for ad in answer["ads"])
    return ads, _counts(answer["funnel"])


def _counts(funnel: dict) -> tuple:
    dropped = {reason: count for reason, count in funnel["dropped"].items() if count}
    names = ("generated_sids", "catalog_sids", "eligible_sids", "expanded_ads", "eligible_ads",
             "returned_ads")  # fmt: skip
    return tuple(funnel[name] for name in names), tuple(sorted(dropped.items()))
