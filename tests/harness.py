"""The one place where the property tests touch Grace's public API."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import oracle
from hypothesis import settings
from oracle_kway import KwayMatcher
from strategies import Case

import grace
from grace.catalog import Schema
from grace.index.bloom import bloom_bits

UNION_MODES = ("bitmask+bloom", "static-kway", "dynamic-kway")


def examples(share: float) -> settings:
    """A share of the profile's examples: below 1 for slow properties, above for quick ones."""
    return settings(max_examples=max(1, round(settings.default.max_examples * share)))


def build(case: Case, out: Path | None = None, **options) -> grace.Index:
    return build_rows(case.ads, case.schema, out, **options)


def build_rows(
    ads: list[dict], schema: list[dict], out: Path | None = None, **options
) -> grace.Index:
    return grace.build_index(
        ads, Schema.from_dict({"attributes": list(schema)}), out=out, **options
    )


def union_matcher(
    case: Case, num_bits: int = 256, num_hashes: int = 4, matching: str = "bitmask+bloom"
) -> oracle.UnionMatcher | KwayMatcher:
    """The oracle's conservative matcher, over the bit positions that Grace hashes values to."""

    def bits(value: str) -> list[int]:
        return bloom_bits(value, num_bits, num_hashes)

    if matching == "bitmask+bloom":
        return oracle.UnionMatcher(case.ads, case.schema, bits)
    return KwayMatcher(case.ads, case.schema, bits, num_bits, matching)


def retrieve(
    index: grace.Index,
    generator,
    requests: list[dict],
    matching: str,
    plan: tuple[tuple[int, ...], int],
    trace: bool = False,
    **options,
) -> list:
    retriever = grace.Retriever(
        index, generator, plan=grace.BeamPlan(*plan), matching=matching, **options
    )
    results = retriever.retrieve(requests, trace=trace)
    assert [result.id for result in results] == [request.get("id") for request in requests]
    return results


def run(case: Case, matching: str, plan=None, trace: bool = False) -> list:
    """Build the case's catalogue in memory and retrieve all its requests in one batch."""
    results = retrieve(
        build(case), case.generator, case.requests, matching, plan or case.plan, trace
    )
    assert not case.generator.violations
    return results


def expected(
    case: Case,
    request: dict,
    matching: str,
    plan=None,
    union: oracle.UnionMatcher | KwayMatcher | None = None,
) -> oracle.Expected | None:
    """The oracle's answer; None when the request must fail."""
    widths, num_sids = plan or case.plan
    if matching not in UNION_MODES:
        union = None
    elif union is None:
        union = union_matcher(case, matching=matching)

    def logits(prefix):
        return case.generator.logits(request["features"], prefix)

    try:
        return oracle.retrieve(
            case.ads, request, case.schema, logits, widths, num_sids, matching, union
        )
    except oracle.BadLogits:
        return None


def found(result) -> list[tuple]:
    return [(ad.ad_id, tuple(ad.sid), ad.score) for ad in result.ads]


def check(result, want: oracle.Expected | None) -> None:
    """Ads, SIDs, scores (bit for bit), order and funnel; or an error where one is due."""
    if want is None:
        check_failed(result)
        return
    assert result.error is None
    assert result.sids == [(sid, float(score)) for sid, score in want.sids]
    assert found(result) == [(ad_id, sid, float(score)) for ad_id, sid, score in want.ads]
    check_funnel(result.funnel, want.funnel)


def check_case(
    case: Case, index: grace.Index, matching: str, plan=None, requests=None, **options
) -> None:
    """Retrieve the case's requests in one batch and compare each with the oracle."""
    requests = case.requests if requests is None else requests
    union = union_matcher(case, matching=matching) if matching in UNION_MODES else None
    results = retrieve(index, case.generator, requests, matching, plan or case.plan, **options)
    assert not case.generator.violations
    for request, result in zip(requests, results, strict=True):
        check(result, expected(case, request, matching, plan, union))


def check_funnel(funnel: dict, want: dict) -> None:
    dropped = {reason: count for reason, count in funnel["dropped"].items() if count}
    assert dropped == want["dropped"]
    counts = {key: funnel[key] for key in want if key != "dropped"}
    assert counts == {key: count for key, count in want.items() if key != "dropped"}


def check_failed(result, field: str | None = None) -> None:
    """The request failed alone: a named field, a message, no ads."""
    assert result.error is not None
    assert result.error["field"]
    assert result.error["message"]
    assert result.ads == []
    assert set(result.to_dict()) == {"id", "error"}
    if field is not None:
        assert result.error["field"].startswith(field)


def eligible_ids(case: Case, request: dict) -> list:
    return [ad["ad_id"] for ad in case.ads if oracle.accepts(ad, request, case.schema)]


@dataclass
class Outcome:
    """What a command line call left behind."""

    code: int
    out: str
    err: str

    def check_refused(self, *words: str) -> None:
        """Exit code 2, one clear line that holds `words`, no traceback."""
        said = self.err.strip() or self.out.strip()
        assert self.code == 2, said
        assert "Traceback" not in self.out + self.err
        assert said
        for word in words:
            assert word in said.replace("\n", " ")


def cli(*arguments: str | Path, stdin: str = "") -> Outcome:
    """Run `grace ...` in this process, through its entry point."""
    from grace.cli import main

    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        patch.object(sys, "argv", ["grace", *map(str, arguments)]),
        patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8")),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            code = main() or 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return Outcome(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))
