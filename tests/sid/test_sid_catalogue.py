"""`fit_catalog`: the same catalogue comes out, with SIDs; wrong input is named, nothing written."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sid_rows import gaussian, item_rows, write_jsonl

from grace.catalog import iter_rows
from grace.errors import CatalogError, ConfigError, DataError, SidError
from grace.sid import (
    Source,
    assign_sids,
    combine,
    fit_catalog,
    fit_sids,
    load_codebooks,
    save_codebooks,
)


def sids_by_id(path) -> dict:
    return {row["ad_id"]: tuple(row["sid"]) for _, row in iter_rows(path)}


def with_vectors(rows: list[dict]) -> list[dict]:
    vectors = gaussian(len(rows), 5)
    return [{**row, "vector": vector.tolist()} for row, vector in zip(rows, vectors, strict=True)]


def histories(rows: list[dict], users: int = 60) -> list[dict]:
    rng = random.Random(0)
    ids = [row["ad_id"] for row in rows]
    return [{"items": rng.sample(ids, 8)} for _ in range(users)]


def test_rows_come_out_as_they_were_with_sids(tmp_path):
    rows = item_rows(300)
    fit = fit_catalog(write_jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", codes=16)
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row.pop("sid") for row in written] == fit.sids.tolist()
    assert written == rows
    assert fit.sids.shape == (300, 3)
    assert [source.name for source in fit.report.sources] == ["text"]


def test_parquet_keeps_every_column_and_type(tmp_path):
    count = 40_000  # several batches
    table = pa.table(
        {
            "ad_id": pa.array(np.arange(count)[::-1]),
            "late": pa.array([None] * (count - 1) + ["only here"]),
            "start": pa.array(
                [datetime(2026, 1, 1, tzinfo=UTC)] * count, pa.timestamp("ns", "UTC")
            ),
            "small": pa.array(np.arange(count) % 100, pa.int8()),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(gaussian(count, 4).ravel()), 4),
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    fit = fit_catalog(
        tmp_path / "in.parquet", tmp_path / "out.parquet", embedding_column="vector", codes=32
    )
    written = pq.read_table(tmp_path / "out.parquet")
    assert written.schema.field("sid").type == pa.list_(pa.int32())
    np.testing.assert_array_equal(written["sid"].to_pylist(), fit.sids)
    assert written.drop_columns("sid").equals(table)


def test_formats_and_tables_in_memory_give_the_same_sids(tmp_path):
    rows = item_rows(200)
    sources = {
        "jsonl": write_jsonl(tmp_path / "in.jsonl", rows),
        "rows": rows,
        "table": pa.Table.from_pylist(rows),
    }
    pq.write_table(sources["table"], tmp_path / "in.parquet")
    sources["parquet"] = tmp_path / "in.parquet"
    results = []
    for name, source in sources.items():
        for suffix in ("jsonl", "parquet"):
            out = tmp_path / f"{name}-out.{suffix}"
            fit_catalog(source, out, codes=16)
            results.append(sids_by_id(out))
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("collisions", ["cluster", "resolve"])
def test_the_order_of_rows_and_users_does_not_matter(tmp_path, collisions):
    rows = with_vectors(item_rows(150))
    rows[3]["title"] = rows[9]["title"] = rows[4]["title"]
    users = histories(rows)
    results = []
    for seed in range(2):
        rng = random.Random(seed)
        rng.shuffle(rows)
        rng.shuffle(users)
        out = tmp_path / f"{seed}.jsonl"
        fit_catalog(
            rows,
            out,
            text=("title", "description"),
            embedding_column="vector",
            behaviour=users,
            codes=16,
            collisions=collisions,
        )
        results.append(sids_by_id(out))
    assert results[0] == results[1]


def test_items_without_a_source_are_counted_and_get_sids(tmp_path):
    rows = with_vectors(item_rows(120))
    users = histories(rows[:-6])
    seen = {item for user in users for item in user["items"]}
    users[0]["items"] += ["unknown", "ad-1"]
    rows[0]["title"] = rows[1]["title"] = None
    del rows[2]["title"]
    rows[5]["vector"] = None
    report = fit_catalog(
        rows,
        tmp_path / "out.jsonl",
        text=["title"],
        embedding_column="vector",
        behaviour=users,
        behaviour_weight=2.0,
        codes=16,
        dimensions=8,
    ).report
    assert {source.name: source.items_without for source in report.sources} == {
        "text": 3,
        "embedding": 1,
        "behaviour": len({row["ad_id"] for row in rows} - seen),
    }
    assert [source.dimensions for source in report.sources] == [8, 5, 8]
    assert [source.weight for source in report.sources] == [1, 1, 2]
    assert report.unknown_behaviour_items == 2


def test_by_default_a_row_may_lack_title_or_description(tmp_path):
    rows = item_rows(60)
    del rows[0]["title"], rows[0]["description"]
    for row in rows[1:]:
        del row["description"]
    (source,) = fit_catalog(rows, tmp_path / "out.jsonl", codes=8).report.sources
    assert (source.name, source.items_without) == ("text", 1)


def test_lists_and_numbers_are_text(tmp_path):
    rows = [{"ad_id": n, "tags": ["a b", f"t{n % 9}"], "year": 1990 + n % 5} for n in range(60)]
    fit = fit_catalog(rows, tmp_path / "out.jsonl", text=["tags", "year"], codes=8)
    assert fit.report.distinct_vectors == 45


def test_saved_codebooks_assign_new_items(tmp_path):
    rows = with_vectors(item_rows(200))
    path = tmp_path / "books.safetensors"
    fit = fit_catalog(
        rows, tmp_path / "out.jsonl", embedding_column="vector", codes=16, codebooks=path
    )
    loaded = load_codebooks(path)
    assert len(loaded) == 3
    vectors = np.array([row["vector"] for row in rows], np.float32)
    unit = combine([Source(name="embedding", vectors=vectors)])
    np.testing.assert_array_equal(assign_sids(unit, loaded), fit.sids)


@pytest.mark.parametrize("damage", ["missing", "truncated", "foreign"])
def test_codebooks_that_are_none_are_refused(tmp_path, damage):
    path = tmp_path / "books.safetensors"
    if damage != "missing":
        save_codebooks(path, fit_sids(gaussian(50), 2, 4).codebooks)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-5])
    if damage == "foreign":
        from safetensors.numpy import save_file

        save_file({"weight": np.zeros(3)}, path)
    with pytest.raises(SidError, match=r"books\.safetensors: "):
        load_codebooks(path)


def test_a_sid_column_is_kept_unless_the_flag_says_otherwise(tmp_path):
    rows = item_rows(60)
    rows[7]["sid"] = [1, 2, 3]
    with pytest.raises(CatalogError, match=r"row 8, sid: is there already; pass --replace-sid"):
        fit_catalog(rows, tmp_path / "out.jsonl", codes=8)
    assert not list(tmp_path.iterdir())
    path = write_jsonl(tmp_path / "catalog.jsonl", rows)
    fit = fit_catalog(path, path, codes=8, replace_sid=True)  # in place
    assert list(sids_by_id(path).values()) == list(map(tuple, fit.sids.tolist()))


BAD_ROWS = {
    "no id": ({"ad_id": None}, CatalogError, "row 5, ad_id: expected a string or an integer"),
    "boolean id": ({"ad_id": True}, CatalogError, "row 5, ad_id: expected a string or an integer"),
    "other kind": ({"ad_id": 5}, CatalogError, "row 5, ad_id: expected a string as in the rows"),
    "empty id": ({"ad_id": ""}, CatalogError, "row 5, ad_id: expected an id, got an empty"),
    "duplicate": ({"ad_id": "same"}, CatalogError, "row 5, ad_id: 'same' is in row 2 already"),
    "title": ({"title": {"en": "x"}}, CatalogError, "row 5, title: expected text or a list"),
    "nan": ({"vector": [1, np.nan, 0, 0, 0]}, CatalogError, r"row 5, vector\[1\]: .* got nan"),
    "too large": ({"vector": [1e39, 0, 0, 0, 0]}, CatalogError, r"row 5, vector\[0\]: .* 1e\+39"),
    "surrogate": ({"title": "\ud800"}, CatalogError, "row 5, title: expected text that UTF-8"),
    "free surrogate": ({"note": "\ud800"}, CatalogError, "row 5, note: expected text that UTF-8"),
    "huge": ({"vector": [0, 10**400, 0, 0, 0]}, CatalogError, r"row 5, vector\[1\]: .* 1000"),
    "digits": ({"vector": ["1"] * 5}, CatalogError, "row 5, vector: expected a list of numbers"),
    "truth": ({"vector": [True] + [1] * 4}, CatalogError, "row 5, vector: expected a list of num"),
    "truths": ({"vector": np.ones(5, bool)}, CatalogError, "row 5, vector: expected a list of nu"),
    "short": ({"vector": [1, 2]}, CatalogError, "row 5, vector: expected 5 numbers .* got 2"),
    "words": ({"vector": ["a"]}, CatalogError, "row 5, vector: expected a list of numbers"),
    "nested": ({"vector": [[1, 2]]}, CatalogError, "row 5, vector: expected a list of numbers"),
    "empty": ({"vector": []}, CatalogError, "row 5, vector: expected a list of numbers"),
    "scalar": ({"vector": 3.0}, CatalogError, "row 5, vector: expected a list of numbers"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_is_named_and_nothing_is_written(tmp_path, name):
    change, error, message = BAD_ROWS[name]
    rows = with_vectors(item_rows(40))
    rows[1]["ad_id"] = "same"
    rows[4] |= change
    with pytest.raises(error, match=message):
        fit_catalog(rows, tmp_path / "o.jsonl", text=["title"], embedding_column="vector", codes=4)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"text": ["titel"]}, CatalogError, "titel: no row has this column"),
        ({"embedding_column": "emb"}, CatalogError, "emb: no row has"),
        ({"text": ["blank"]}, SidError, "none of the 40 items has any text"),
        ({"behaviour": [{"items": ["x", "y"]}]}, DataError, "no entry is an ad id .*'x'"),
        ({"behaviour": []}, DataError, "no entry is an ad id .*there are none"),
        ({"behaviour": [{"items": []}, {}]}, DataError, "behaviour row 2, items: expected a list"),
        ({"behaviour": [{"items": [1.5]}]}, DataError, "behaviour row 1, items: expected ad ids"),
        ({"text_encoder": "bert"}, ConfigError, "text_encoder: expected tfidf, minilm or sent"),
        ({"text_weight": 0.0}, ConfigError, "text_weight: expected a number above 0, got 0"),
        ({"behaviour_weight": np.nan}, ConfigError, "behaviour_weight: expected a number above"),
        ({"window": 2**31 + 1}, ConfigError, "window: expected at most 2\\^31, got 2147483649"),
        ({"window": 0}, ConfigError, "window: expected a number above 0"),
        ({"codebooks": "no/such/folder/x"}, ConfigError, "there is no folder no/such/folder"),
    ],
)
def test_options_that_do_not_fit(tmp_path, options, error, message):
    rows = [{**row, "blank": " "} for row in item_rows(40)]
    with pytest.raises(error, match=message):
        fit_catalog(rows, tmp_path / "out.jsonl", codes=4, **options)
    assert not list(tmp_path.iterdir())


def test_catalogues_that_hold_nothing_to_use(tmp_path):
    out = tmp_path / "out.jsonl"
    with pytest.raises(CatalogError, match="no rows"):
        fit_catalog([], out)
    with pytest.raises(CatalogError, match="no row has a column title or description"):
        fit_catalog([{"ad_id": 1, "name": "x"}], out)
    with pytest.raises(ConfigError, match=r"expected a name ending in \.parquet or \.jsonl"):
        fit_catalog([{"ad_id": 1, "title": "x"}], tmp_path / "out.csv")
    with pytest.raises(TypeError, match="read twice"):
        fit_catalog(iter(item_rows(20)), out)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ad_id", [2**63, -(2**63) - 1])
def test_an_id_that_no_index_takes(tmp_path, ad_id):
    rows = [{"ad_id": 1, "title": "x"}, {"ad_id": ad_id, "title": "y"}]
    with pytest.raises(CatalogError, match="row 2, ad_id: expected a 64-bit integer"):
        fit_catalog(rows, tmp_path / "out.jsonl")


def test_rules_survive_from_json_lines_to_parquet(tmp_path):
    rows = item_rows(60)
    for row in rows[:-1]:
        row["rules"] = {}
    rows[-1]["rules"] = {"country": {"include": ["NO"]}}
    path = tmp_path / "out.parquet"
    fit_catalog(write_jsonl(tmp_path / "in.jsonl", rows), path, codes=8)
    assert [row["rules"] for _, row in iter_rows(path)][-1] == rows[-1]["rules"]


def test_one_item(tmp_path):
    fit = fit_catalog([{"ad_id": 7, "title": "only one"}], tmp_path / "out.parquet")
    assert fit.sids.tolist() == [[0, 0, 0]]
    assert sids_by_id(tmp_path / "out.parquet") == {7: (0, 0, 0)}


def test_a_catalogue_that_changes_between_the_passes(tmp_path):
    class Changing(list):
        passes = 0

        def __iter__(self):
            self.passes += 1
            return iter(self[: 40 if self.passes < 2 else 39])

    with pytest.raises(CatalogError, match=r"lost rows .* 39 of 40"):
        fit_catalog(Changing(item_rows(40)), tmp_path / "out.jsonl", codes=4)
    assert not list(tmp_path.iterdir())
