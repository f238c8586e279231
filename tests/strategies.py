"""Random catalogues, requests and plans: hypothesis draws some numbers, seeded generators the rest.

A whole catalogue of 5,000 ads is a function of the numbers in its `Case`, so a failing example
prints as one line that builds it again, and shrinking the numbers shrinks the catalogue.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from functools import cached_property

from hypothesis import strategies as st
from table_generator import STYLES, TableGenerator

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
COUNTRIES = ["US", "CA", "UK", "DE", "日本", "é", 5, "5", True]  # 5 is "5", True is "true"
GENDERS = ["female", "male"]
WIDTHS = (1, 2, 3, 31, 32, 33, 127, 128, 129, 511, 512, 513, 1023, 1024, 1025)
SCHEMA = (
    {"name": "country", "kind": "categorical"},
    {"name": "gender", "kind": "categorical", "values": GENDERS},
    {"name": "age", "kind": "range"},
    {"name": "places", "kind": "set"},
    {"name": "interests", "kind": "set"},
)
MODES = ("off", "valid", "bitmask+bloom", "static-kway", "dynamic-kway", "exact")


@dataclass(frozen=True)
class Case:
    """A catalogue, its requests and a plan.

    Attributes:
        vocab: tokens of the SIDs are below it; the generator's V is `vocab + spare_vocab`.
        shape: how SIDs are drawn: uniform, few (20 at most), shared (one first token), dense
            (tokens below 3), one.
        rule_rate: chance of a rule, per ad and attribute.
        top_k: whether some requests cut their ads.
        rows: the catalogue itself, instead of a random one.
        attributes: a prefix length of `SCHEMA`, rotated by the seed.
    """

    seed: int = 0
    num_levels: int = 3
    vocab: int = 8
    num_ads: int = 20
    shape: str = "uniform"
    ids: str = "int"
    rule_rate: float = 0.5
    attributes: int = 5
    num_places: int = 60
    num_requests: int = 2
    top_k: bool = True
    style: str = "smooth"
    spare_vocab: int = 0
    width: int = 8
    rows: list[dict] | None = None

    @cached_property
    def schema(self) -> list[dict]:
        turn = self.seed % len(SCHEMA)
        return [*SCHEMA[turn:], *SCHEMA[:turn]][: self.attributes]

    @cached_property
    def ads(self) -> list[dict]:
        if self.rows is not None:
            return self.rows
        rng = random.Random(f"ads {self.seed}")
        sids = _sids(rng, self)
        ids = _ids(rng, self.ids, self.num_ads)
        rules = [random_rules(rng, self) for _ in range(self.num_ads)]
        return [
            {"ad_id": ad_id, "sid": sid, "rules": rule} | random_life(rng)
            for ad_id, sid, rule in zip(ids, sids, rules, strict=True)
        ]

    @cached_property
    def requests(self) -> list[dict]:
        rng = random.Random(f"requests {self.seed}")
        return [random_request(rng, self, number) for number in range(self.num_requests)]

    @cached_property
    def generator(self) -> TableGenerator:
        return TableGenerator(self.vocab + self.spare_vocab)

    @property
    def plan(self) -> tuple[tuple[int, ...], int]:
        """Widths grow with the step up to `width`, at random below it; num_sids is `width`."""
        rng = random.Random(f"plan {self.seed}")
        inner = sorted(
            rng.choice((self.width, self.width, max(1, self.width // 2))) for _ in range(9)
        )
        return (1, *inner[10 - self.num_levels :]), self.width

    @property
    def full_plan(self) -> tuple[tuple[int, ...], int]:
        """Wide enough for every prefix over the generator's vocabulary: nothing is ever cut."""
        sizes = [self.generator.vocab**level for level in range(self.num_levels + 1)]
        return tuple(sizes[:-1]), sizes[-1]

    @property
    def trie_plan(self) -> tuple[tuple[int, ...], int]:
        """Wide enough for every prefix of the catalogue."""
        return (1, *[self.num_ads] * (self.num_levels - 1)), self.num_ads

    def where(self, **changes) -> Case:
        return replace(self, **changes)


def _sids(rng: random.Random, case: Case) -> list[list[int]]:
    def one(bound: int) -> list[int]:
        return [rng.randrange(bound) for _ in range(case.num_levels)]

    if case.shape in ("few", "one"):
        pool = [one(case.vocab) for _ in range(20 if case.shape == "few" else 1)]
        return [list(rng.choice(pool)) for _ in range(case.num_ads)]
    sids = [
        one(min(3, case.vocab) if case.shape == "dense" else case.vocab)
        for _ in range(case.num_ads)
    ]
    if case.shape == "shared":
        sids = [[sids[0][0], *sid[1:]] for sid in sids]
    return sids


def _ids(rng: random.Random, kind: str, count: int) -> list:
    if kind == "int":
        ids = {rng.choice((-(1 << 63), (1 << 63) - 1))}  # the ends of int64 are ids like others
        while len(ids) < count:
            ids.add(rng.getrandbits(64) - (1 << 63))
        return rng.sample(sorted(ids), count)
    letters = ["a", "B", "z", "é", "日", "\U0001f600", "\uffee", "-", "10", "9"]
    return [f"{''.join(rng.choices(letters, k=3))}{number}" for number in range(count)]


def random_rules(rng: random.Random, case: Case) -> dict | None:
    rules = {
        a["name"]: _random_rule(rng, a["name"], case)
        for a in case.schema
        if rng.random() < case.rule_rate
    }
    return rules or rng.choice(({}, None))


def _random_rule(rng: random.Random, name: str, case: Case) -> dict | None:
    if rng.random() < 0.05:
        return rng.choice(({}, None))
    if name == "age":
        low, high = sorted(
            rng.choice((rng.randrange(100), rng.randrange(400) / 4)) for _ in range(2)
        )
        return rng.choice(
            ({"min": low, "max": high}, {"min": low}, {"max": high}, {"min": low, "max": low})
        )
    pool = values_of(name, case.num_places)
    most = min(len(pool), 2 if len(pool) < 20 else 8)
    include, exclude = (rng.sample(pool, rng.randint(1, most)) for _ in range(2))
    return rng.choice(
        ({"include": include}, {"exclude": exclude}, {"include": include, "exclude": exclude})
    )


def values_of(name: str, num_places: int) -> list:
    if name in ("country", "gender"):
        return COUNTRIES if name == "country" else GENDERS
    return [f"{name} {number}" for number in range(num_places)]


def random_life(rng: random.Random) -> dict:
    """Window and pause: mostly none; ends near noon, to the second or the microsecond."""
    life = {}
    if rng.random() < 0.3:
        start, end = sorted(random_time(rng) for _ in range(2))
        if start < end:
            life = rng.choice(({"start": start, "end": end}, {"start": start}, {"end": end}))
    if rng.random() < 0.5:
        life["paused"] = rng.random() < 0.1
    return {key: v.isoformat() if isinstance(v, datetime) else v for key, v in life.items()}


def random_time(rng: random.Random) -> datetime:
    return NOON + timedelta(seconds=rng.randint(-2, 2), microseconds=rng.choice((0, 0, 0, 1, -1)))


def random_request(rng: random.Random, case: Case, number: int) -> dict:
    at = random_time(rng).astimezone(timezone(timedelta(hours=rng.choice((0, 0, 2, -7)))))
    attributes = {
        a["name"]: random_value(rng, a["name"], case) for a in case.schema if rng.random() < 0.9
    }
    request = {
        "id": f"request {number}",
        "attributes": attributes,
        "features": {"seed": rng.randrange(1 << 30), "style": case.style},
        "at": at.isoformat(),
    }
    if case.top_k and rng.random() < 0.3:
        request["top_k"] = rng.choice((0, 1, 3, 10**6))
    return request


def random_value(rng: random.Random, name: str, case: Case):
    """A known, never-seen or unknown (null) value."""
    if rng.random() < 0.1:
        return None
    if name == "age":
        return rng.choice(
            (rng.randrange(100), rng.randrange(400) / 4, rng.uniform(0, 100), -1, 1e9)
        )
    pool = values_of(name, case.num_places)
    if name in ("country", "gender"):
        return rng.choice([*pool, "never seen"]) if name == "country" else rng.choice(pool)
    values = rng.choices([*pool, "never seen"], k=rng.choice((0, 1, 2, 5, 64)))
    return values


def cases(
    max_ads: int = 300, max_vocab: int = 64, widths=WIDTHS, **fixed
) -> st.SearchStrategy[Case]:
    """Random cases; `fixed` pins fields of `Case`."""
    drawn = {
        "seed": st.integers(0, 1 << 20),
        "num_levels": st.integers(1, 6),
        "vocab": st.integers(1, 8) | st.integers(1, max_vocab),
        "num_ads": st.integers(1, 12) | st.integers(1, max_ads),
        "shape": st.sampled_from(("uniform", "few", "shared", "dense", "one")),
        "ids": st.sampled_from(("int", "str")),
        "rule_rate": st.sampled_from((0.0, 0.2, 0.5, 0.9)),
        "attributes": st.integers(1, 5),
        "num_places": st.sampled_from((4, 60, 2000)),
        "num_requests": st.integers(1, 4),
        "style": st.sampled_from(STYLES),
        "spare_vocab": st.sampled_from((0, 0, 1, 7)),
        "width": st.sampled_from(widths),
    }
    drawn |= {name: st.just(value) for name, value in fixed.items()}
    return st.builds(Case, **drawn)
