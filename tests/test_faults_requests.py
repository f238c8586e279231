"""`grace retrieve`: a bad line fails alone, a bad call is a clear line, nothing is half-written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import build, cli, eligible_ids, expected
from strategies import MODES, Case

import grace

CASE = Case(seed=10, num_ads=120, vocab=6, rule_rate=0.2, num_requests=6, width=33)
PLAN = ",".join(map(str, CASE.plan[0]))


@pytest.fixture(scope="module")
def index_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("retrieve") / "index"
    build(CASE, out=folder)
    return folder


@pytest.fixture
def ask(index_dir: Path, tmp_path: Path, monkeypatch):
    """Run `grace retrieve` over lines, with the table for a model: its outcome and result lines."""

    def table_retriever(index, _model, *options, **named):
        return grace.Retriever(index, CASE.generator, *options, **named)

    monkeypatch.setattr("grace.cli.retrieve.Retriever", table_retriever)

    def run(lines: list[str | bytes], *options: str):
        data = b"".join((x if isinstance(x, bytes) else x.encode()) + b"\n" for x in lines)
        (tmp_path / "requests.jsonl").write_bytes(data)
        paths = ("--requests", tmp_path / "requests.jsonl", "--out", tmp_path / "results.jsonl")
        outcome = cli(
            *("retrieve", "--index", index_dir, "--model", "table", "--plan", PLAN),
            *("--sids", str(CASE.plan[1]), *paths, *options),
        )
        if not (tmp_path / "results.jsonl").exists():
            return outcome, None
        text = (tmp_path / "results.jsonl").read_text(encoding="utf-8")
        return outcome, [json.loads(line) for line in text.splitlines()]

    return run


def check_line(line: dict, request: dict, matching: str = "exact") -> None:
    want = expected(CASE, request, matching)
    ads = [(ad["ad_id"], tuple(ad["sid"]), ad["score"]) for ad in line["ads"]]
    assert line["id"] == request["id"]
    assert ads == [(ad_id, sid, float(score)) for ad_id, sid, score in want.ads]


def dumps(requests: list[dict]) -> list[str]:
    return [json.dumps(request) for request in requests]


@pytest.mark.parametrize("matching", MODES)
def test_one_line_a_request_in_order(ask, matching: str):
    outcome, lines = ask(dumps(CASE.requests), "--matching", matching)
    assert outcome.code == 0, outcome.err
    for line, request in zip(lines, CASE.requests, strict=True):
        check_line(line, request, matching)
    assert any(line["ads"] for line in lines)


BAD_LINES = [
    "{",
    '{"id": 1,}',
    "nonsense",
    "NaN",
    "[]",
    "5",
    "null",
    '"text"',
    '{"id": 1} {"id": 2}',
    b"\xff\xfe",
    b'{"id": "\xff"}',
    "[" * 100_000,
    '{"id": "a", "at": "yesterday"}',
    '{"id": "a", "attributes": {"age": NaN}}',
    '{"id": "a", "attributes": {"age": 1e999}}',
    '{"id": "a", "attributes": {"age": "old"}}',
    '{"id": "a", "top_k": -1}',
    '{"id": [1]}',
]


@pytest.mark.parametrize("bad", BAD_LINES, ids=lambda line: str(line)[:40])
def test_a_bad_line_fails_alone(ask, bad: str | bytes):
    good = dumps(CASE.requests)
    outcome, lines = ask([*good[:2], bad, *good[2:]])
    assert outcome.code == 0, outcome.err
    broken = lines.pop(2)
    assert set(broken) == {"id", "error"}
    assert set(broken["error"]) == {"field", "message"}
    assert all(broken["error"].values())
    for line, request in zip(lines, CASE.requests, strict=True):
        check_line(line, request)


def test_every_line_bad(ask):
    outcome, lines = ask(BAD_LINES)
    assert outcome.code == 0, outcome.err
    assert len(lines) == len(BAD_LINES)
    assert all(set(line) == {"id", "error"} for line in lines)


def test_no_requests(ask):
    outcome, lines = ask([])
    assert (outcome.code, lines) == (0, [])


def test_blank_lines_and_carriage_returns(ask):
    lines = [line + "\r" for line in dumps(CASE.requests)]
    outcome, answered = ask([lines[0], "", "  ", *lines[1:], ""])
    assert outcome.code == 0, outcome.err
    for line, request in zip(answered, CASE.requests, strict=True):
        check_line(line, request)


def test_standard_input_and_output(ask, index_dir: Path):
    """`-` twice: the output is result lines and nothing else."""
    outcome = cli(
        *("retrieve", "--index", index_dir, "--model", "table", "--plan", PLAN),
        *("--sids", str(CASE.plan[1]), "--requests", "-", "--out", "-"),
        stdin="\n".join(dumps(CASE.requests)),
    )
    assert outcome.code == 0, outcome.err
    lines = [json.loads(line) for line in outcome.out.splitlines()]
    for line, request in zip(lines, CASE.requests, strict=True):
        check_line(line, request)


def test_top_k_of_the_call_yields_to_the_request(ask):
    outcome, lines = ask(dumps(CASE.requests), "--top-k", "2")
    assert outcome.code == 0, outcome.err
    for line, request in zip(lines, CASE.requests, strict=True):
        check_line(line, {"top_k": 2} | request)
    _, lines = ask(dumps(CASE.requests), "--top-k", "0")
    for line, request in zip(lines, CASE.requests, strict=True):
        check_line(line, {"top_k": 0} | request)


def test_wide_plan_returns_every_eligible_ad(ask):
    requests = [{key: v for key, v in r.items() if key != "top_k"} for r in CASE.requests]
    _, lines = ask(dumps(requests), "--plan", "1,999,999", "--sids", "999")
    for line, request in zip(lines, requests, strict=True):
        assert {ad["ad_id"] for ad in line["ads"]} == set(eligible_ids(CASE, request))


@pytest.mark.parametrize(
    "options",
    [
        ("--matching", "fuzzy"),
        ("--plan", "1,2"),
        ("--plan", "2,2,2"),
        ("--plan", "1,x,2"),
        ("--plan", "1,0,2"),
        ("--plan", "1,2.5,2"),
        ("--plan", ""),
        ("--sids", "0"),
        ("--sids", "-1"),
        ("--top-k", "-1"),
        ("--top-k", "x"),
        ("--device", "abacus"),
        ("--index", "absent"),
        ("--requests", "absent.jsonl"),
        ("--requests", "."),
        ("--out", "absent/folder/results.jsonl"),
    ],
    ids=" ".join,
)
def test_a_bad_call_answers_nothing(ask, options: tuple[str, str], tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome, lines = ask(dumps(CASE.requests), *options)
    outcome.check_refused()
    assert lines is None
    assert [path.name for path in tmp_path.iterdir()] == ["requests.jsonl"]


def test_an_absent_or_foreign_model_is_refused(index_dir: Path, tmp_path: Path):
    (tmp_path / "requests.jsonl").write_text("\n".join(dumps(CASE.requests)))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text("{}")
    for model in ("absent", "foreign"):
        outcome = cli(
            *("retrieve", "--index", index_dir, "--model", tmp_path / model),
            *("--requests", tmp_path / "requests.jsonl", "--out", tmp_path / "results.jsonl"),
        )
        outcome.check_refused(model)
        assert not (tmp_path / "results.jsonl").exists()
