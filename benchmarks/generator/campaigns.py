"""Advertisers' campaigns: which ads share their rules, and what those say of people and time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.generator.draw import Stream, cumulate, elements
from benchmarks.generator.lists import Lists
from benchmarks.generator.spec import AT, Spec

TARGETING = Path(__file__).parent.parent / "data" / "targeting.json"
GENDERS = ("female", "male")

# Choices, not measurements; docs/benchmark.md says what each is for.
LOCAL_ADS = 0.5  # share of ads that name cities or regions
LOCAL_POOL, BROAD_POOL = 0.9, 0.35  # campaigns per ad^(15/16)
OWN_PLACES = 0.95  # local campaigns whose list of places is no older campaign's
INTEREST_LOCAL, INTEREST_BROAD = 0.9, 0.3  # share with a rule on the interest
CODES_PER_INTEREST = 3  # broad categories that one named interest falls in
WINDOWS = 0.1
EXCLUSIONS = 0.105  # a few come to nothing, because all they name is included
PAUSED = 0.03
RUNNING, ENDED = 0.8, 0.1  # of the windows; the rest is to come
DAY = 86_400
LONGEST_WAIT = 30 * DAY


@cache
def targeting() -> dict:
    """Counts of real ads by what they were aimed at."""
    return json.loads(TARGETING.read_text(encoding="utf-8"))


@cache
def age_genders() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Both sources' combinations: weights (cumulated), minimum and maximum age, gender; -1: none.

    Facebook's oldest bracket is open, and its youngest people are 13.
    """
    rows = targeting()["ira"]["age_gender"] + targeting()["kag"]["age_gender"]
    low = [-1 if row[0] is None else row[0] for row in rows]
    high = [-1 if row[1] is None else row[1] for row in rows]
    gender = [-1 if row[2] is None else GENDERS.index(row[2]) for row in rows]
    return cumulate([row[3] for row in rows]), np.array(low), np.array(high), np.array(gender)


@cache
def interests() -> tuple[tuple[str, ...], np.ndarray]:
    """The interest codes, as strings, and their cumulated shares."""
    rows = targeting()["kag"]["interest"]
    return tuple(str(code) for code, _ in rows), cumulate([count for _, count in rows])


@dataclass(frozen=True)
class Audience:
    """What campaigns ask of age, gender, interest and time, an entry a campaign.

    Attributes:
        age_min, age_max: int64, -1 where open.
        gender: included positions of `GENDERS`.
        interest: included codes.
        not_interest: excluded codes.
        start, end: seconds since 1970, -1 where open.
    """

    age_min: np.ndarray
    age_max: np.ndarray
    gender: Lists
    interest: Lists
    not_interest: Lists
    start: np.ndarray
    end: np.ndarray


def ad_campaigns(spec: Spec, ads: np.ndarray) -> np.ndarray:
    """int64, the campaign of each ad, numbered from 0; odd ones are local.

    The pool of campaigns grows like ads^(15/16) and older ones are larger, as (k/n)^(-1/2). The
    power is made of square roots, which are the same on every machine.
    """
    local = Stream(spec.seed, "local").uniform(ads) < LOCAL_ADS
    numbers = ads + 1.0
    pool = numbers / np.sqrt(np.sqrt(np.sqrt(np.sqrt(numbers))))
    pool = np.maximum(pool * np.where(local, LOCAL_POOL, BROAD_POOL), 1.0)
    u = Stream(spec.seed, "campaign").uniform(ads)
    return (pool * (u * u)).astype(np.int64) * 2 + local


def is_local(campaigns: np.ndarray) -> np.ndarray:
    """bool, whether each campaign names cities or regions."""
    return campaigns % 2 == 1


def excludes(spec: Spec, campaigns: np.ndarray) -> np.ndarray:
    """What each campaign keeps away: 0 nothing, 1 an interest, 2 places, 3 countries."""
    kinds = np.where(is_local(campaigns)[:, None], [[0.4, 1.0]], [[0.25, 0.75]])
    u = Stream(spec.seed, "kind of exclusion").uniform(campaigns)
    kind = 1 + (u >= kinds[:, 0]) + (u >= kinds[:, 1])
    return np.where(Stream(spec.seed, "exclusion").uniform(campaigns) < EXCLUSIONS, kind, 0)


def draw_audiences(spec: Spec, campaigns: np.ndarray) -> Audience:
    """Draw what campaigns (int64 [n], distinct) ask of age, gender, interest and time."""
    weights, low, high, gender = age_genders()
    combination = Stream(spec.seed, "age and gender").choose(weights, campaigns)
    interest = _interests(spec, campaigns)
    gender = gender[combination]
    named = np.flatnonzero(gender >= 0)
    start, end = _windows(spec, campaigns)
    return Audience(
        age_min=low[combination],
        age_max=high[combination],
        gender=Lists.collect(len(campaigns), named, gender[named]),
        interest=interest,
        not_interest=_excluded_interests(spec, campaigns).without(interest),
        start=start,
        end=end,
    )


def _interests(spec: Spec, campaigns: np.ndarray) -> Lists:
    sizes = [row for row in targeting()["ira"]["interests named"] if row[0] > 0]
    drawn = Stream(spec.seed, "interests named").choose(cumulate([n for _, n in sizes]), campaigns)
    counts = np.array([size for size, _ in sizes])[drawn] * CODES_PER_INTEREST
    share = np.where(is_local(campaigns), INTEREST_LOCAL, INTEREST_BROAD)
    counts[Stream(spec.seed, "has interests").uniform(campaigns) >= share] = 0
    return _draw_lists(campaigns, counts, Stream(spec.seed, "interests"))


def _excluded_interests(spec: Spec, campaigns: np.ndarray) -> Lists:
    counts = 1 + Stream(spec.seed, "interests excluded").below(3, campaigns)
    counts[excludes(spec, campaigns) != 1] = 0
    return _draw_lists(campaigns, counts, Stream(spec.seed, "excluded interests"))


def _draw_lists(campaigns: np.ndarray, counts: np.ndarray, stream: Stream) -> Lists:
    """Lists of interest codes drawn with replacement, repeats dropped."""
    owners, positions = elements(counts)
    values = stream.choose(interests()[1], campaigns[owners] * 1024 + positions)
    return Lists.collect(len(campaigns), owners, values)


def _windows(spec: Spec, campaigns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Start and end in seconds, whole minutes; -1 where open. Durations are the real ads'."""
    rows = targeting()["ira"]["days"]
    drawn = Stream(spec.seed, "days").choose(cumulate([count for _, count in rows]), campaigns)
    seconds = np.array([0 if days is None else days * DAY for days, _ in rows])[drawn]
    u = Stream(spec.seed, "phase").uniform(campaigns)
    offset = Stream(spec.seed, "offset").uniform(campaigns)
    # An ad without an end has been running for up to a month, or is still to start.
    length = np.where(seconds > 0, seconds, LONGEST_WAIT)
    start = np.select(
        [u < RUNNING, u < RUNNING + ENDED],
        [AT - offset * length, AT - length - offset * LONGEST_WAIT],
        AT + offset * LONGEST_WAIT,
    )
    start = (start // 60).astype(np.int64) * 60
    has_window = Stream(spec.seed, "window").uniform(campaigns) < WINDOWS
    end = np.where(has_window & (seconds > 0), start + seconds, -1)
    return np.where(has_window, start, -1), end
