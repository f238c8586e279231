"""The playground's endpoints: what they say is what retrievers say; what they refuse; swaps."""

import threading
import time

import pytest
import torch
from playground_cases import (
    AT,
    NUM_ADS,
    PLAN,
    SCHEMA,
    call,
    config_for,
    film,
    model,
    person,
    serving,
    write_world,
)

import grace
from grace.errors import ConfigError
from grace.index import MATCHERS
from grace.serve import Engine
from grace.serve.playground import routes
from grace.serve.playground import searches as searches_module
from grace.serve.playground.rule_words import rule_words
from grace.serve.playground.searches import Busy, Searches
from grace.serve.playground.titles import Titles

API = "/playground/api"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def served(world):
    with serving(world / "index", model()) as (url, engine):
        yield url, engine


@pytest.fixture(scope="module")
def url(served):
    return served[0]


def ask(number=0, **changes):
    request = person(number) | changes
    del request["id"]
    return request


def test_people_and_schema_say_what_a_request_may_hold(url):
    status, _, people = call(f"{url}{API}/people")
    assert (status, len(people["people"])) == (200, 6)
    assert people["people"][1] == "1: 21, female, Ada"
    assert call(f"{url}{API}/people/1")[2] == ask(1)
    assert call(f"{url}{API}/people/6")[0] == 404
    schema = call(f"{url}{API}/schema")[2]
    assert (schema["ads"], schema["served"], schema["modes"]) == (NUM_ADS, "exact", [*MATCHERS])
    kinds = {
        a["name"]: (a["kind"], a.get("values"), a.get("are_ads")) for a in schema["attributes"]
    }
    assert kinds == {
        "age": ("range", None, None),
        "gender": ("categorical", ["male", "female"], False),
        "place": ("set", ["US/CA", "US/MN", "US/TX"], False),
        "watched": ("set", kinds["watched"][1], True),
    }
    assert [field["name"] for field in schema["features"]] == ["age", "gender", "history"]


def test_pickers_find_values_and_titles(url):
    assert call(f"{url}{API}/values?attribute=place&text=mn")[2] == {"values": [{"value": "US/MN"}]}
    found = call(f"{url}{API}/values?attribute=watched&text=film%2011")[2]["values"]
    assert {"value": "11", "title": "Film 11"} in found
    assert all(value["title"].startswith("Film 11") for value in found)
    items = call(f"{url}{API}/items?text=FILM%207")[2]["items"]
    assert items[0] == {"ad_id": 7, "title": "Film 7"}
    assert len(call(f"{url}{API}/items?text=film")[2]["items"]) == 20
    titles = call(f"{url}{API}/titles", {"ad_ids": [3, "4", 10**6]})[2]
    assert titles == {"titles": ["Film 3", "Film 4", None]}
    for attribute in ("age", "nothing"):
        assert call(f"{url}{API}/values?attribute={attribute}&text=1")[0] == 404


@pytest.mark.parametrize("number", [0, 2, 5])
def test_columns_are_what_each_mode_retrieves(served, number):
    url, engine = served
    status, _, compared = call(f"{url}{API}/compare", {"request": ask(number), "modes": MATCHERS})
    assert status == 200
    assert compared["version"] == engine.index.version
    assert [column["matching"] for column in compared["columns"]] == list(MATCHERS)
    for column in compared["columns"]:
        retriever = grace.Retriever(engine.index, engine.model, PLAN, column["matching"])
        want = retriever.retrieve([person(number) | {"top_k": 20}], trace=True)[0]
        got = [(ad["ad_id"], tuple(ad["sid"])) for ad in column["ads"]]
        assert got == [(ad.ad_id, ad.sid) for ad in want.ads]
        scores = [ad["score"] for ad in column["ads"]]
        assert scores == pytest.approx([ad.score for ad in want.ads], abs=1e-5)
        assert column["funnel"] == want.funnel
        assert column["steps"] == [step._asdict() for step in want.trace.steps]
        assert {"match", "prefill", "decode", "filter"} <= set(column["stages_ms"])
        assert column.get("served", False) == (column["matching"] == "exact")
        assert all(ad["title"] == f"Film {ad['ad_id']}" for ad in column["ads"])
    columns = {column["matching"]: column for column in compared["columns"]}
    assert all(step["wasted"] == 0 for step in columns["exact"]["steps"])


@pytest.mark.parametrize("mode", MATCHERS)
def test_a_tree_keeps_as_many_beams_as_the_mode_does(served, mode):
    url, engine = served
    tree = call(f"{url}{API}/tree", {"request": ask(), "mode": mode})[2]
    retriever = grace.Retriever(engine.index, engine.model, PLAN, mode)
    want = retriever.retrieve([person(0)], trace=True)[0]
    assert [step["entered"] for step in tree["steps"]] == [s.live for s in want.trace.steps]
    in_vain = [sum(step["in_vain"].values()) for step in tree["steps"]]
    assert in_vain[:-1] == [step.wasted for step in want.trace.steps[1:]]
    assert tree["steps"][-1]["kept"] == len(want.sids)
    best = tree["steps"][-1]["branches"][0]
    assert tuple(best["prefix"]) == want.sids[0][0] or not best["kept"]
    for step in tree["steps"]:
        for branch in step["branches"]:
            assert branch["ads"] >= len(branch["examples"])
            assert (branch["ads"] == 0) == (
                branch["why"] == "catalogue" or branch["examples"] == []
            )


def test_a_user_who_may_see_nothing_has_a_root_and_the_rules_that_refuse(tmp_path):
    rows = [film(n) | {"rules": {"age": {"min": 18}}} for n in range(20)]
    index = grace.build_index(rows, SCHEMA)
    with serving(index, model(), config=config_for("")) as (url, _):
        assert call(f"{url}{API}/people")[2] == {"people": []}
        request = {"attributes": {"age": 9}, "at": AT}
        compared = call(f"{url}{API}/compare", {"request": request, "modes": ["exact"]})[2]
        assert compared["columns"][0]["ads"] == []
        assert compared["version"] == "in memory"
        tree = call(f"{url}{API}/tree", {"request": request, "mode": "exact"})[2]
        assert (tree["steps"], tree["root"]["why"]) == ([], "rules")
        assert tree["root"]["refusals"]["by"]["age"] == 20


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("compare", {"request": ask(attributes={"age": "old"}), "modes": ["exact"]}, "age"),
        ("compare", {"request": ask(attributes={"agee": 3}), "modes": ["off"]}, "agee"),
        ("compare", {"request": ask(features={"age": "old"}), "modes": ["exact"]}, "features.age"),
        ("compare", {"request": ask(), "modes": ["exactly"]}, "matching must be one of"),
        ("compare", {"request": ask(), "modes": [["exact"]]}, "matching must be one of"),
        ("compare", {"request": ask(), "modes": []}, "modes"),
        ("compare", {"request": ask(), "modes": ["off", "off"]}, "modes"),
        ("compare", {"request": ask(top_k=10**6), "modes": ["off"]}, "top_k"),
        ("compare", {"request": [], "modes": ["off"]}, "request"),
        ("compare", {"request": ask(), "mode": "off"}, "mode"),
        ("compare", [], "object"),
        ("tree", {"request": ask(at="noon"), "mode": "exact"}, "at"),
        ("tree", {"request": ask(), "mode": None}, "matching"),
        ("titles", {"ad_ids": [1.5]}, "ad_ids"),
    ],
)
def test_a_wrong_call_is_refused_in_words(url, path, body, words):
    status, _, told = call(f"{url}{API}/{path}", body)
    assert status == 400
    error = told["error"]
    assert words in error["message"] + error.get("field", "")


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b'{"request": {"attributes": {"age": NaN}}, "modes": ["off"]}', 400),
        (b"[" * 100_000, 400),
        (b" " * (2 << 20), 413),
    ],
    ids=["cut", "no UTF-8", "NaN", "deep", "large"],
)
def test_a_body_that_is_no_json_or_too_large_is_refused(url, raw, status):
    got, _, told = call(f"{url}{API}/compare", raw=raw)
    assert got == status
    assert told["error"]["message"]


def test_the_page_comes_whole_from_here_and_runs_nothing_inline(url):
    status, headers, page = call(f"{url}/")
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert "http" not in page["text"]
    assert "style=" not in page["text"]
    assert page["text"].count("<script") == 1
    for name in ("main.js", "page.css", "icon.svg"):
        assert call(f"{url}/playground/{name}")[0] == 200
    for name in ("index.html", "../api.py", "%2e%2e/api.py", "static/main.js"):
        assert call(f"{url}/playground/{name}")[0] == 404


class Gated:
    """A model that waits at its first step until it is let through."""

    def __init__(self):
        self.entered, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def start(self, features):
        self.entered.set()
        assert self.gate.wait(20)
        return len(features)

    def step(self, state, parents, tokens):
        return torch.zeros(state, 1 if parents is None else parents.shape[1], 6)


def test_one_comparison_at_a_time_and_serving_goes_on(world):
    gated = Gated()
    with serving(world / "index", gated) as (url, engine):
        gated.gate.clear()
        body = {"request": ask(), "modes": ["off"]}
        first = threading.Thread(target=call, args=(f"{url}{API}/compare", body))
        first.start()
        assert gated.entered.wait(10)
        status, headers, told = call(f"{url}{API}/compare", body)
        assert (status, headers["retry-after"]) == (429, "1")
        assert "one comparison runs at a time" in told["error"]["message"]
        assert call(f"{url}{API}/tree", {"request": ask(), "mode": "off"})[0] == 429
        assert call(f"{url}{API}/schema")[0] == 200
        ticket = engine.submit(person(0))
        gated.gate.set()
        assert ticket.future.result(10).error is None
        first.join(10)
        status, _, compared = call(f"{url}{API}/compare", body)
        assert (status, compared["columns"][0]["matching"]) == (200, "off")


def test_a_refusal_of_the_engine_is_passed_on(world):
    gated = Gated()
    with serving(world / "index", gated, max_admitted=1) as (url, engine):
        gated.gate.clear()
        waiting = engine.submit(person(0))
        body = {"request": ask(), "modes": ["exact"]}
        status, headers, told = call(f"{url}{API}/compare", body)
        assert (status, headers["retry-after"]) == (429, "1")
        assert told["error"]["message"]
        gated.gate.set()
        assert waiting.future.result(10).error is None
        engine.drain(5)
        assert call(f"{url}{API}/compare", body)[0] == 503


def test_columns_and_trees_follow_the_index(tmp_path):
    write_world(tmp_path, 60)
    with serving(tmp_path / "index", model()) as (url, engine):
        body = {"request": ask(), "modes": ["exact", "valid"]}
        first = call(f"{url}{API}/compare", body)[2]["version"]
        write_world(tmp_path)
        engine.reader.refresh()
        compared = call(f"{url}{API}/compare", body)[2]
        assert compared["version"] == engine.index.version != first
        tree = call(f"{url}{API}/tree", {"request": ask(), "mode": "valid"})[2]
        assert tree["version"] == compared["version"]
        assert tree["root"]["ads"] == NUM_ADS
        best = compared["columns"][0]["ads"][0]["ad_id"]
        engine.index.pause([best])
        for column in call(f"{url}{API}/compare", body)[2]["columns"]:
            assert best not in [ad["ad_id"] for ad in column["ads"]]


def test_what_nobody_asks_for_is_given_back(world):
    engine = Engine(world / "index", model(), PLAN)
    searches = Searches(engine, config_for("").model, idle_s=0.02)
    with searches.turn():
        searches.retrieve(engine.index, person(0), "valid")
        assert searches._retrievers
        with pytest.raises(Busy), searches.turn():
            pass
    deadline = time.monotonic() + 10
    while searches._retrievers and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not searches._retrievers
    assert searches._index is None
    with searches.turn():
        assert searches.retrieve(engine.index, person(0), "valid").error is None
    engine.drain(5)


def test_a_large_index_offers_unions_only_where_it_serves_them(world, monkeypatch):
    monkeypatch.setattr(searches_module, "MOST_UNION_ADS", 10)
    for matching, offered in (
        ("exact", ("off", "valid", "exact")),
        ("static-kway", ("off", "valid", "static-kway", "exact")),
    ):
        engine = Engine(world / "index", model(), PLAN, matching=matching)
        assert Searches(engine, config_for("").model).modes == offered
        engine.drain(5)


def test_files_of_the_config_are_read_at_once_or_named(world, tmp_path):
    engine = Engine(world / "index", model(), PLAN)
    bad = tmp_path / "people.jsonl"
    bad.write_text('{"id": 1}\n{"attributes": 3}\n')
    for options, words in (
        ({"people": str(bad)}, r"playground\.people: .*people\.jsonl, line 2"),
        ({"people": str(tmp_path / "none.jsonl")}, r"playground\.people: .* cannot be read"),
        ({"catalog": str(tmp_path / "none.jsonl")}, r"playground\.catalog: "),
    ):
        with pytest.raises(ConfigError, match=words):
            routes(engine, config_for(world / "index", **options))
    assert routes(engine, config_for(world / "index", enabled=False)) == []
    engine.drain(5)


def test_rules_in_words(tmp_path):
    catalog = [
        {"ad_id": 0, "title": "Alpha", "sid": [0], "rules": {"age": {"min": 18}}},
        {"ad_id": 1, "sid": [1], "rules": {"age": {"max": 30}, "watched": {"exclude": ["0"]}},
         "start": "2026-01-01T00:00:00Z", "end": "2026-02-03T04:05:00Z"},
        {"ad_id": 2, "sid": [2], "end": "2026-02-03T04:05:00Z", "rules": {
            "age": {"min": 5, "max": 5}, "place": {"include": [*"abcd"], "exclude": ["e"]}}},
        {"ad_id": 3, "sid": [3], "start": "2025-12-31T00:00:00Z", "end": "2026-01-01T00:00:00Z"},
    ]  # fmt: skip
    index = grace.build_index(catalog, SCHEMA)
    titles = Titles(None)
    titles._titles, titles._ids = {0: "Alpha"}, {"0": 0}
    said = [[tuple(r.values()) for r in rule_words(index, p, titles)] for p in range(4)]
    assert said == [
        [("age", "18 or more")],
        [("age", "up to 30"), ("watched", "not Alpha"),
         ("window", "2026-01-01 00:00 to 02-03 04:05")],
        [("age", "5"), ("place", "a, b, 2 more, not e"), ("window", "until 2026-02-03 04:05")],
        [("window", "2025-12-31 00:00 to 2026-01-01 00:00")],
    ]  # fmt: skip
