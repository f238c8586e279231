"""What the page is told: answers, trees and pickers as JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from grace.errors import RequestError
from grace.index import Index
from grace.index.rules import ValueRules
from grace.serve.playground.explain import Branch, Tree
from grace.serve.playground.people import People
from grace.serve.playground.refusals import ads_below, spread
from grace.serve.playground.rule_words import rule_words
from grace.serve.playground.searches import Searches
from grace.serve.playground.titles import FOUND, Titles

FEW_VALUES = 64
"""Values of an attribute that a picker lists; more are searched."""
EXAMPLES = 3


def compare(
    searches: Searches, index: Index, raw: dict, modes: Sequence[str], titles: Titles
) -> dict:
    """Return `{"version", "columns": [...]}`, a column a mode, all of one version of the index.

    Args:
        searches: at a turn.
        index: of the engine.
        raw: the request, with its id.
        modes: the matching modes, in the order of columns.

    Raises:
        RequestError: if the request is wrong, whatever the mode.
        Overloaded, Draining, Expired: as the engine raises them.
    """
    columns: dict[str, dict] = {}
    if searches.served in modes:  # first: its version is the others'
        answer = searches.answer(raw)
        index = answer.index
        # The engine's own stages overlap; the search's are those that other modes have, too.
        stages_ms = {"queue": answer.stages_ms["queue"]} | answer.trace.stages_ms
        columns[searches.served] = {"served": True} | _column(
            index, answer.positions, answer.scores, answer.funnel, stages_ms, answer.trace, titles
        )
    for mode in modes:
        if mode in columns:
            continue
        result = searches.retrieve(index, raw, mode)
        if result.error is not None:
            error = RequestError(**result.error)
            if error.field != "logits":
                raise error
            columns[mode] = {"error": result.error}  # a mode's own: others take other beams
            continue
        positions = index.find_ads([ad.ad_id for ad in result.ads])
        scores = [ad.score for ad in result.ads]
        columns[mode] = _column(
            index, positions, scores, result.funnel, result.trace.stages_ms, result.trace, titles
        )
    return {
        "version": str(index.version or "in memory"),
        "columns": [{"matching": mode} | columns[mode] for mode in modes],
    }


def tree_view(tree: Tree, index: Index, titles: Titles) -> dict:
    """Return a tree; a branch's `examples` are what some ads below it are called."""
    return {
        "version": str(index.version or "in memory"),
        "how": tree.how,
        "root": _branch(tree.root, index, titles),
        "steps": [
            asdict(step) | {"branches": [_branch(b, index, titles) for b in step.branches]}
            for step in tree.steps
        ],
    }


def schema_view(
    searches: Searches, index: Index, model: Any, titles: Titles, people: People
) -> dict:
    """Return what a request may hold, for pickers, and what the engine does with it."""
    features = getattr(model, "features", None)
    return {
        "version": str(index.version or "in memory"),
        "ads": index.num_ads,
        "sids": index.num_sids,
        "level_sizes": index.level_sizes,
        "served": searches.served,
        "modes": searches.modes,
        "people": len(people),
        "titles": len(titles),
        "attributes": [_attribute(index, a, titles) for a in range(len(index.schema.attributes))],
        "features": None if features is None else features.to_dict()["fields"],
    }


def find_values(index: Index, name: str, text: str, titles: Titles) -> list[dict]:
    """Return values of an attribute that hold a text in any case: `[{"value", "title"?}]`.

    Raises:
        KeyError: if there is no such attribute, or its values are numbers.
    """
    rules = dict(zip(index.schema.names, index.data.tables.rules, strict=True)).get(name)
    if not isinstance(rules, ValueRules):
        raise KeyError(name)
    if _are_ads(rules, titles):
        return [{"value": str(ad_id), "title": titles.get(ad_id)} for ad_id in titles.find(text)]
    import pyarrow.compute as pc

    values = rules.values.to_arrow()
    found = values.filter(pc.match_substring(values, text, ignore_case=True))
    found = sorted(found[: 50 * FOUND].to_pylist(), key=lambda value: (len(value), value))
    return [{"value": value} for value in found[:FOUND]]


def _column(index, positions, scores, funnel, stages_ms, trace, titles: Titles) -> dict:
    positions = np.asarray(positions, np.int64)
    sids = index.sids[index.ad_sid[positions]].tolist()
    ads = [
        {
            "ad_id": ad_id,
            "title": titles.get(ad_id),
            "sid": sid,
            "score": float(score),
            "rules": rule_words(index, position, titles),
        }
        for ad_id, position, sid, score in zip(
            index.take_ad_ids(positions), positions.tolist(), sids, scores, strict=True
        )
    ]
    return {
        "how": trace.matching,
        "ads": ads,
        "funnel": funnel,
        "stages_ms": stages_ms,
        "steps": [{"live": step.live, "wasted": step.wasted} for step in trace.steps],
    }


def _branch(branch: Branch, index: Index, titles: Titles) -> dict:
    view = {
        "prefix": branch.prefix,
        "score": branch.score,
        "kept": branch.kept,
        "why": branch.why,
        "refusals": None if branch.refusals is None else asdict(branch.refusals),
        "ads": 0,
        "examples": [],
    }
    node = find_node(index, branch.prefix)
    if node < 0:
        return view
    first, last = ads_below(index, node)
    examples = titles.examples(index, spread(first, last, EXAMPLES))
    return view | {"ads": last - first, "examples": examples}


def find_node(index: Index, prefix: Sequence[int]) -> int:
    """Return the trie node of a prefix, or -1."""
    node, trie = 0, index.trie
    for token in prefix:
        first, last = trie.child_offsets[node : node + 2].tolist()
        own = trie.child_tokens[first:last].numpy()
        place = int(np.searchsorted(own, token))
        if place == len(own) or own[place] != token:
            return -1
        node = first + place + 1
    return node


def _attribute(index: Index, position: int, titles: Titles) -> dict:
    attribute, rules = index.schema.attributes[position], index.data.tables.rules[position]
    view = {"name": attribute.name, "kind": attribute.kind}
    if not isinstance(rules, ValueRules):
        return view
    values = attribute.values or ()
    if not values and len(rules.values) <= FEW_VALUES:
        values = rules.values.take(np.arange(len(rules.values)))
    return view | {
        "values": values,
        "num_values": len(rules.values),
        "are_ads": _are_ads(rules, titles),
    }


def _are_ads(rules: ValueRules, titles: Titles) -> bool:
    """Whether the values are ids of ads with titles, as far as the first ones tell."""
    return titles.cover(rules.values.take(np.arange(min(len(rules.values), FEW_VALUES))))
