"""`grace data prepare` and what `grace.datasets.load` makes of it."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataset_files import histories, tiny, write_raw
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from grace.cli import app
from grace.datasets import DATASETS, Sequences, Split, load, prepare
from grace.datasets.manifest import FILES, sha256
from grace.errors import DataError


@pytest.fixture
def raw(tmp_path):
    return write_raw(tmp_path / "raw", histories())


@pytest.fixture
def prepared(raw, tmp_path):
    prepare(tiny(histories()), raw, tmp_path / "out")
    return tmp_path / "out"


def as_lists(held: Sequences | Split, item_ids: np.ndarray) -> dict[int, list[int]]:
    bounds = zip(held.users.tolist(), held.offsets, held.offsets[1:], strict=False)
    return {user: item_ids[held.items[start:stop]].tolist() for user, start, stop in bounds}


@given(st.integers(0, 2**32 - 1))
def test_leave_one_out_by_hand(tmp_path_factory, seed):
    users = histories(seed=seed)
    folder = tmp_path_factory.mktemp("data")
    prepare(tiny(users), write_raw(folder / "raw", users), folder / "out")
    data = load(folder / "out")
    valid, test = data.valid(), data.test()
    ids = data.item_ids
    assert as_lists(data, ids) == {user: items[:-2] for user, items in users.items()}
    assert as_lists(valid, ids) == {user: items[:-2] for user, items in users.items()}
    assert as_lists(test, ids) == {user: items[:-1] for user, items in users.items()}
    assert ids[valid.targets].tolist() == [items[-2] for items in users.values()]
    assert ids[test.targets].tolist() == [items[-1] for items in users.values()]
    assert data.num_items == 40
    assert data.items.dtype == valid.targets.dtype == np.int64


def test_what_selection_may_read_holds_no_test_item(raw, tmp_path):
    """A marker planted as one user's last item is in no file but test.parquet, and no other."""
    users = histories()
    users[3][-1] = 40
    for user, items in users.items():
        if user != 3 and 40 in items:
            items.remove(40)
            items.append(next(i for i in range(1, 40) if i not in items))
    write_raw(raw, users)
    prepare(tiny(users), raw, tmp_path / "out")
    for name in ("train.parquet", "valid.parquet"):
        columns = pq.read_table(tmp_path / "out" / name).to_pydict()
        lists = columns.get("items", columns.get("history"))
        assert 40 not in {item for items in lists for item in items}
        assert 40 not in columns.get("target", [])
    assert 40 in pq.read_table(tmp_path / "out" / "test.parquet")["target"].to_pylist()


def test_load_and_valid_do_not_open_the_test_file(prepared):
    (prepared / "test.parquet").unlink()
    data = load(prepared)
    assert len(data.valid().targets) == 30
    with pytest.raises(DataError, match=r"test\.parquet: No such file"):
        data.test()


def test_items_keep_missing_titles_texts_and_attributes(prepared):
    rows = pq.read_table(prepared / "items.parquet").to_pylist()
    assert [row["ad_id"] for row in rows] == list(range(1, 41))
    assert rows[0] == {
        "ad_id": 1,
        "title": "Thing, number\u20281",
        "text": "Thing, number\u20281",
        "attributes": ["attribute1", "attribute7"],
    }
    assert (rows[4]["title"], rows[4]["text"]) == (None, "thing 5")
    assert (rows[9]["title"], rows[9]["text"]) == (None, "")
    assert rows[3]["attributes"] == []


def test_an_item_that_two_users_take_in_the_same_order_stays_twice(tmp_path):
    """Equal histories are two users, not one."""
    users = histories()
    users[2] = list(users[1])
    raw = write_raw(tmp_path / "raw", users)
    prepare(tiny(users), raw, tmp_path / "out")
    lists = pq.read_table(tmp_path / "out" / "train.parquet")["items"].to_pylist()
    assert lists[0] == lists[1]


def test_users_with_few_events_are_left_out_and_counted(tmp_path):
    users = histories()
    users[7] = users[7][:4]
    manifest = prepare(tiny(users), write_raw(tmp_path / "raw", users), tmp_path / "out")
    assert manifest["counts"]["users"] == 29
    assert manifest["counts"]["users_left_out"] == 1
    assert 7 not in load(tmp_path / "out").users


def test_the_manifest_says_what_was_read_and_written(raw, prepared):
    manifest = json.loads((prepared / "manifest.json").read_text())
    assert manifest["format_version"] == 1
    assert manifest["files"] == {name: sha256(prepared / name) for name in FILES}
    assert manifest["raw_files"]["Tiny.txt.gz"] == sha256(raw / "Tiny.txt.gz")
    assert manifest["published"]["matches"] is True
    assert manifest["counts"]["items_without_title"] == 8
    assert manifest["counts"]["items_without_text"] == 1


def test_preparing_again_gives_the_same_bytes(raw, prepared, tmp_path):
    prepare(tiny(histories()), raw, tmp_path / "again")
    for name in (*FILES, "manifest.json"):
        assert (tmp_path / "again" / name).read_bytes() == (prepared / name).read_bytes()


@pytest.mark.parametrize("count", ["users", "items", "interactions"])
def test_a_count_that_was_not_published_is_refused(raw, tmp_path, count):
    with pytest.raises(DataError, match=rf"tiny: the tests state 999 {count}, found "):
        prepare(tiny(histories(), **{count: 999}), raw, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("8 1 x", "line 8: expected `user item item ...`, whole numbers"),
        ("1 2 3 4 5 6", "line 8: user 1 has a line already"),
        ("8 1 2 3 4 99", "line 8: item 99 is not among the items' texts"),
        ("", "line 8: expected `user item item ...`"),
    ],
)
def test_wrong_sequences_name_the_line(raw, tmp_path, line, message):
    lines = [f"{user} {' '.join(map(str, items))}" for user, items in histories().items()]
    lines[7] = line
    (raw / "Tiny.txt.gz").unlink()
    (raw / "Tiny.txt").write_text("\n".join(lines))
    with pytest.raises(DataError, match=message):
        prepare(tiny(histories()), raw, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("Tiny_items.csv", "a,b\n1,2\n", "expected columns item_id and short_text"),
        ("Tiny_items.csv", "item_id,short_text\n1,a\n1,b\n", "line 3: expected a new item's"),
        ("Tiny_item2attributes.json", "[1]", "expected item -> attribute numbers"),
        ("Tiny_item2attributes.json", "{", "expected item -> attribute numbers"),
    ],
)
def test_wrong_files_about_items(raw, tmp_path, name, content, message):
    (raw / name).write_text(content)
    with pytest.raises(DataError, match=message):
        prepare(tiny(histories()), raw, tmp_path / "out")


def test_a_missing_raw_file(raw, tmp_path):
    (raw / "Tiny_items.csv").unlink()
    with pytest.raises(DataError, match=r"expected Tiny_items\.csv\.gz here or in amazon"):
        prepare(tiny(histories()), raw, tmp_path / "out")


def test_a_changed_file_is_refused(prepared):
    path = prepared / "train.parquet"
    path.write_bytes((prepared / "valid.parquet").read_bytes())
    with pytest.raises(DataError, match="is not the file that manifest"):
        load(prepared)


def test_a_half_written_or_foreign_folder_is_refused(prepared):
    manifest = json.loads((prepared / "manifest.json").read_text())
    (prepared / "manifest.json").write_text(json.dumps({**manifest, "format_version": 2}))
    with pytest.raises(DataError, match="expected format version 1"):
        load(prepared)
    (prepared / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match="not a manifest"):
        load(prepared)


def test_a_run_that_died_leaves_nothing_that_loads(raw, prepared, monkeypatch):
    monkeypatch.setattr("grace.datasets.preparation._held_out_table", None)
    with pytest.raises(TypeError):
        prepare(tiny(histories()), raw, prepared)
    with pytest.raises(DataError, match="half written"):
        load(prepared)


def test_a_folder_of_ones_own_needs_no_manifest(prepared):
    before = load(prepared).items
    (prepared / "manifest.json").unlink()
    np.testing.assert_array_equal(load(prepared).items, before)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([[1, 99]] * 30), "item 99 is not in items.parquet"),
        (pa.array([[1, None]] * 30), "expected lists of integers without nulls"),
        (pa.array([["a"]] * 30), "expected lists of integers"),
        (pa.array([1] * 30), "expected a column of lists"),
    ],
)
def test_wrong_histories_are_refused(prepared, column, message):
    (prepared / "manifest.json").unlink()
    users = pq.read_table(prepared / "train.parquet")["user"]
    pq.write_table(pa.table({"user": users, "items": column}), prepared / "train.parquet")
    with pytest.raises(DataError, match=message):
        load(prepared)


def test_command_line(tmp_path):
    def run(*arguments):
        return CliRunner().invoke(app, ["data", "prepare", *arguments])

    result = run("books", "--raw", ".", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "expected beauty | sports | toys | movielens, got 'books'" in result.stderr
    result = run("toys", "--raw", str(tmp_path / "no"), "--out", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert "expected the folder of the raw files of toys" in result.stderr


@pytest.mark.parametrize("name", ["toys", "movielens"])
def test_the_published_files_are_as_published(shared_data, tmp_path, name):
    manifest = prepare(DATASETS[name], shared_data, tmp_path / name)
    data = load(tmp_path / name)
    assert data.num_items == manifest["counts"]["items"]
    assert len(data.items) == manifest["counts"]["train_interactions"]
    for user in range(0, data.num_users, 97):
        history = data.items[data.offsets[user] : data.offsets[user + 1]]
        assert len(set(history)) == len(history)
