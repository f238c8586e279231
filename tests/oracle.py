"""Brute force for Grace, written from the rules alone: it imports nothing from `grace`.

Every function says what must come out by looking at every ad and every prefix, in plain Python with
numpy for float32 arithmetic. Slow and short on purpose; the property tests compare Grace with it.

An ad is a catalogue row (`ad_id`, `sid`, `rules`, `start`, `end`, `paused`), a request is the
dictionary that `Retriever.retrieve` takes, a schema is a list of `{"name", "kind"}`.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np

Prefix = tuple[int, ...]
Scored = tuple[Prefix, np.float32]
Logits = Callable[[Prefix], np.ndarray]  # prefix -> float32 [V]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class BadLogits(Exception):
    """A live row of logits holds NaN or +inf: the request fails."""


# ---- targeting -------------------------------------------------------------------------------


def spell(value: str | int | bool) -> str:
    """A string is itself; an int or a bool stands for its JSON spelling."""
    return value if isinstance(value, str) else json.dumps(value)


def microseconds(time: str | datetime) -> int:
    """Microseconds since 1970 in UTC of an ISO time with zone."""
    moment = datetime.fromisoformat(time) if isinstance(time, str) else time
    return (moment - EPOCH) // timedelta(microseconds=1)


def has_rule(rule: dict | None) -> bool:
    """Absent, null, `{}` and a struct of nulls all mean: any."""
    return any(part is not None for part in (rule or {}).values())


def rule_accepts(rule: dict | None, kind: str, value) -> bool:
    """Does one attribute's rule accept the request's value on that attribute?"""
    if not has_rule(rule):
        return True
    if value is None or value == []:
        return False  # unknown: only an ad with no rule accepts
    if kind == "range":
        low, high = rule.get("min"), rule.get("max")
        return (low is None or low <= value) and (high is None or value <= high)
    carried = {spell(v) for v in (value if kind == "set" else [value])}
    include, exclude = rule.get("include"), rule.get("exclude")
    if include is not None and not carried & {spell(v) for v in include}:
        return False
    return exclude is None or not carried & {spell(v) for v in exclude}


def refusal(ad: dict, request: dict, schema: Sequence[dict]) -> str | None:
    """The first reason to refuse: paused, bid off, window, then the attributes in order."""
    if ad.get("paused"):
        return "paused"
    if ad.get("bid_off"):  # no catalogue column: tests say so of an ad that they switched off
        return "bid_off"
    at = microseconds(request["at"])
    if ad.get("start") is not None and at < microseconds(ad["start"]):
        return "window"
    if ad.get("end") is not None and at >= microseconds(ad["end"]):
        return "window"
    rules, attributes = ad.get("rules") or {}, request.get("attributes") or {}
    for attribute in schema:
        name, kind = attribute["name"], attribute["kind"]
        if not rule_accepts(rules.get(name), kind, attributes.get(name)):
            return name
    return None


def accepts(ad: dict, request: dict, schema: Sequence[dict]) -> bool:
    """May this request see this ad?"""
    return refusal(ad, request, schema) is None


# ---- prefixes and matchers -------------------------------------------------------------------


def prefixes(sid: Sequence[int]) -> list[Prefix]:
    """All prefixes of an SID, the empty one and the SID itself included."""
    return [tuple(sid[:length]) for length in range(len(sid) + 1)]


def valid_prefixes(ads: Iterable[dict]) -> set[Prefix]:
    """The trie: every prefix of every SID in the catalogue, paused ads included."""
    return {prefix for sid in {tuple(ad["sid"]) for ad in ads} for prefix in prefixes(sid)}


def eligible_prefixes(ads: Iterable[dict], request: dict, schema: Sequence[dict]) -> set[Prefix]:
    """Prefixes with at least one ad below that accepts this request."""
    return valid_prefixes(ad for ad in ads if accepts(ad, request, schema))


class UnionMatcher:
    """The paper's conservative matchers: per prefix the union of its ads' bitmasks and Blooms.

    Bitmask: per categorical attribute a bit for each value a rule names, `other` and `unknown`; per
    range attribute a bit for each end point, for each gap between end points, and `unknown`. An ad
    sets the bits that its rule accepts. Set attributes: the Bloom of included values (exclusions
    cannot prune), with one flag for "holds an ad without an include" and one for "holds an ad
    without any rule". Windows and pauses are not in it.

    Args:
        ads: catalogue rows.
        schema: attributes in order.
        bloom_bits: value -> positions of its bits in the Bloom filter. Without it each value has a
            bit of its own, a Bloom filter that never collides.
    """

    def __init__(
        self,
        ads: Sequence[dict],
        schema: Sequence[dict],
        bloom_bits: Callable[[str], Iterable[int]] | None = None,
    ):
        own_bits: dict[str, int] = {}
        self._bloom_bits = bloom_bits or (lambda value: [own_bits.setdefault(value, len(own_bits))])
        self._encoders = [self._encoder(a["name"], a["kind"], ads) for a in schema]
        self._rows: dict[Prefix, list[int]] = {}  # one Python int of bits per attribute
        for ad in ads:
            masks = [
                encoder.mask((ad.get("rules") or {}).get(encoder.name))
                for encoder in self._encoders
            ]
            for prefix in prefixes(ad["sid"]):
                row = self._rows.setdefault(prefix, [0] * len(masks))
                for column, mask in enumerate(masks):
                    row[column] |= mask

    def _encoder(self, name: str, kind: str, ads: Sequence[dict]):
        rules = [rule for ad in ads if (rule := (ad.get("rules") or {}).get(name)) is not None]
        if kind == "categorical":
            return _Categorical(name, rules)
        return _Range(name, rules) if kind == "range" else _Bloom(name, self._bloom_bits)

    def allows(self, prefix: Prefix, request: dict) -> bool:
        """Is this prefix in the catalogue and not refused by the union of its ads' rules?"""
        row, attributes = self._rows.get(prefix), request.get("attributes") or {}
        if row is None:
            return False
        return all(
            encoder.matches(bits, attributes.get(encoder.name))
            for encoder, bits in zip(self._encoders, row, strict=True)
        )

    def prefixes(self, request: dict) -> set[Prefix]:
        """All prefixes that pass. A prefix may pass although none of its children does."""
        return {prefix for prefix in self._rows if self.allows(prefix, request)}


class _Categorical:
    def __init__(self, name: str, rules: list[dict]):
        self.name = name
        named = {
            spell(v) for r in rules for part in ("include", "exclude") for v in r.get(part) or ()
        }
        self._bit = {value: bit for bit, value in enumerate(sorted(named))}
        self._other, self._unknown = len(named), len(named) + 1

    def mask(self, rule: dict | None) -> int:
        never_named = object()  # fails includes and passes excludes
        symbols = [(bit, value) for value, bit in self._bit.items()] + [(self._other, never_named)]
        mask = int(not has_rule(rule)) << self._unknown
        include, exclude = (rule or {}).get("include"), (rule or {}).get("exclude")
        include = None if include is None else {spell(v) for v in include}
        exclude = {spell(v) for v in exclude or ()}
        for bit, value in symbols:
            if (include is None or value in include) and value not in exclude:
                mask |= 1 << bit
        return mask

    def matches(self, bits: int, value) -> bool:
        if value is None or value == []:
            return bool(bits >> self._unknown & 1)
        return bool(bits >> self._bit.get(spell(value), self._other) & 1)


class _Range:
    def __init__(self, name: str, rules: list[dict]):
        self.name = name
        self._cuts = sorted(
            {r[end] for r in rules for end in ("min", "max") if r.get(end) is not None}
        )
        self._unknown = 2 * len(self._cuts) + 1

    def _symbol(self, value: float) -> int:
        """2 i + 1 for the i-th end point itself, 2 i for the open gap below it."""
        at = bisect_left(self._cuts, value)
        return 2 * at + (at < len(self._cuts) and self._cuts[at] == value)

    def mask(self, rule: dict | None) -> int:
        low, high = (rule or {}).get("min"), (rule or {}).get("max")
        first = 0 if low is None else self._symbol(low)
        last = self._unknown - 1 if high is None else self._symbol(high)
        return (1 << last + 1) - (1 << first) | int(not has_rule(rule)) << self._unknown

    def matches(self, bits: int, value) -> bool:
        unknown = value is None or value == []
        return bool(bits >> (self._unknown if unknown else self._symbol(value)) & 1)


class _Bloom:
    NO_RULE, NO_INCLUDE, FILTER = 0, 1, 2  # two flags, then the filter's bits

    def __init__(self, name: str, bloom_bits: Callable[[str], Iterable[int]]):
        self.name = name
        self._bits = bloom_bits

    def _filter(self, value) -> int:
        return sum({1 << self.FILTER + bit for bit in self._bits(spell(value))})

    def mask(self, rule: dict | None) -> int:
        include = (rule or {}).get("include")
        mask = int(not has_rule(rule)) << self.NO_RULE | int(include is None) << self.NO_INCLUDE
        for value in include or ():
            mask |= self._filter(value)
        return mask

    def matches(self, bits: int, values) -> bool:
        if not values:
            return bool(bits >> self.NO_RULE & 1)
        filters = [self._filter(value) for value in values]
        return bool(bits >> self.NO_INCLUDE & 1) or any(f & bits == f for f in filters)


# ---- beam search -----------------------------------------------------------------------------


def step_scores(logits: np.ndarray) -> np.ndarray:
    """Log softmax over the full vocabulary: float64 inside, rounded to float32 once.

    Raises:
        BadLogits: a logit is NaN or +inf.
    """
    if np.isnan(logits).any() or np.isposinf(logits).any():
        raise BadLogits
    wide = logits.astype(np.float64)
    top = wide.max()
    if np.isneginf(top):
        return logits  # all -inf: a dead beam
    normaliser = top + np.log(np.exp(wide - top).sum())
    return (wide - normaliser).astype(np.float32)


def beam_search(
    logits: Logits,
    widths: Sequence[int],
    num_sids: int,
    allowed: set[Prefix] | None = None,
) -> list[list[Scored]]:
    """Beam search over explicit prefixes.

    Args:
        logits: prefix -> the model's float32 logits `[V]` for the next token.
        widths: beams entering each step; `widths[0]` is 1.
        num_sids: SIDs kept at the end.
        allowed: prefixes that may be entered; None allows every token (mode `off`).

    Returns:
        Per step the beams it kept, best first: score descending, then prefix ascending.

    Raises:
        BadLogits: a live row holds NaN or +inf.
    """
    beams: list[Scored] = [((), np.float32(0))]
    steps = []
    for keep in [*widths[1:], num_sids]:
        candidates = []
        for prefix, score in beams:
            step = step_scores(logits(prefix))
            for token in np.flatnonzero(np.isfinite(step)).tolist():
                longer = (*prefix, token)
                if allowed is None or longer in allowed:
                    candidates.append((longer, score + step[token]))
        candidates.sort(key=lambda candidate: (-candidate[1], candidate[0]))
        beams = candidates[:keep]
        steps.append(beams)
    return steps


# ---- whole retrieval -------------------------------------------------------------------------


@dataclass
class Expected:
    """What `Retriever.retrieve` must answer for one request."""

    sids: list[Scored]  # generated, in the catalogue or not, best first
    ads: list[tuple[object, Prefix, np.float32]]  # (ad_id, sid, score)
    funnel: dict
    live: list[int] = field(default_factory=list)  # beams entering each step
    wasted: list[int] = field(default_factory=list)  # of these, without an eligible ad below


def id_order(ad_id: str | int):
    """Strings by their UTF-8 bytes, integers by value."""
    return ad_id.encode() if isinstance(ad_id, str) else ad_id


def allowed_prefixes(
    ads: Sequence[dict],
    request: dict,
    schema: Sequence[dict],
    matching: str,
    union: UnionMatcher | None = None,
) -> set[Prefix] | None:
    """The predicate of a matching mode, as the set of prefixes that beams may enter."""
    if matching == "off":
        return None
    if matching == "valid":
        return valid_prefixes(ads)
    if matching == "exact":
        return eligible_prefixes(ads, request, schema)
    if union is not None:
        return union.prefixes(request)
    if matching == "bitmask+bloom":
        return UnionMatcher(ads, schema).prefixes(request)
    raise ValueError(matching)


def retrieve(
    ads: Sequence[dict],
    request: dict,
    schema: Sequence[dict],
    logits: Logits,
    widths: Sequence[int],
    num_sids: int,
    matching: str,
    union: UnionMatcher | None = None,
) -> Expected:
    """One request, alone: beam search, then every eligible ad of the SIDs, then `top_k`.

    Raises:
        BadLogits: the request must fail.
    """
    allowed = allowed_prefixes(ads, request, schema, matching, union)
    steps = beam_search(logits, widths, num_sids, allowed)
    scores = dict(steps[-1])
    expanded = [ad for ad in ads if tuple(ad["sid"]) in scores]
    reasons = [refusal(ad, request, schema) for ad in expanded]
    kept = [
        (ad["ad_id"], tuple(ad["sid"]), scores[tuple(ad["sid"])])
        for ad, reason in zip(expanded, reasons, strict=True)
        if reason is None
    ]
    kept.sort(key=lambda ad: (-ad[2], ad[1], id_order(ad[0])))
    top_k = request.get("top_k")
    returned = kept if top_k is None else kept[:top_k]
    eligible = eligible_prefixes(ads, request, schema)
    root = [((), np.float32(0))] if allowed is None or () in allowed else []
    entering = [root, *steps[:-1]]
    funnel = {
        "generated_sids": len(scores),
        "catalog_sids": len({tuple(ad["sid"]) for ad in expanded}),
        "eligible_sids": len({sid for _, sid, _ in kept}),
        "expanded_ads": len(expanded),
        "dropped": {reason: reasons.count(reason) for reason in set(reasons) - {None}},
        "eligible_ads": len(kept),
        "returned_ads": len(returned),
    }
    return Expected(
        sids=steps[-1],
        ads=returned,
        funnel=funnel,
        live=[len(beams) for beams in entering],
        wasted=[sum(prefix not in eligible for prefix, _ in beams) for beams in entering],
    )
