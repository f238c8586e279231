"""A few people of the demo in words: what they are shown, and what a rule keeps from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grace.demo.eligibility import refusal_reason
from grace.demo.words import person, refusal
from grace.evaluate.observe import generated_positions
from grace.index import Index
from grace.retrieve import Result

SHOWN = 5
LAST = 3


@dataclass(frozen=True)
class Person:
    """One request in words.

    Attributes:
        who: "34, female, Minneapolis".
        rated: titles of the last films rated, newest first.
        shown: titles of the first eligible films that the person has not rated.
        refused: the best film not rated that a rule refuses, and the rule.
        refused_place: its place among the films not rated, as generated without rules, from 1.
    """

    who: str
    rated: list[str]
    shown: list[str]
    refused: str
    refused_place: int


def describe_people(
    index: Index,
    rows: Sequence[Mapping],
    requests: Sequence[dict],
    without_rules: Sequence[Result],
    exact: Sequence[Result],
    count: int = 3,
) -> list[Person]:
    """Return the first people whose best refused films are refused for different reasons.

    Args:
        index: built from `rows`.
        rows: the demo's catalogue.
        requests: demo requests.
        without_rules: their answers under `valid`, whose SIDs know no rules.
        exact: their answers under `exact`.
        count: how many people.
    """
    by_id = {row["ad_id"]: row for row in rows}
    titles = {row["ad_id"]: row["title"] for row in rows}
    people: dict[str, Person] = {}
    for request, wanted, answer in zip(requests, without_rules, exact, strict=True):
        history = [event["ad_id"] for event in request["features"]["history"]]
        generated = map(index.ad_id, generated_positions(index, wanted).tolist())
        unseen = [ad_id for ad_id in generated if ad_id not in history]
        shown = [titles[ad.ad_id] for ad in answer.ads if ad.ad_id not in history]
        reasons = (refusal_reason(by_id[ad_id], request) for ad_id in unseen)
        place, reason = next(((n, why) for n, why in enumerate(reasons, 1) if why), (0, None))
        if reason is None or reason in people or not shown:
            continue
        people[reason] = Person(
            who=person(request),
            rated=[titles[ad_id] for ad_id in history[: -LAST - 1 : -1]],
            shown=shown[:SHOWN],
            refused=refusal(by_id[unseen[place - 1]], request, titles),
            refused_place=place,
        )
        if len(people) == count:
            break
    return list(people.values())
