"""The log of pauses: damage is refused, threads agree with it."""

import threading

import pytest

import grace
from grace.errors import CatalogError, IndexFormatError

ADS = [{"ad_id": name, "sid": [i]} for i, name in enumerate(["a", "b", "ab"])]


@pytest.fixture
def folder(tmp_path):
    grace.build_index(ADS, {"attributes": []}, tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        '{"paused": "false", "ad_ids": ["a"]}', '{"paused": true, "ad_ids": "a"}', "[]", "{}", "x",
        '{"paused": true, "ad_ids": [["a"]]}', "[" * 5000,
    ],
)  # fmt: skip
def test_a_damaged_line_is_refused_by_number(folder, line):
    log = '{"paused": true, "ad_ids": ["a"]}\n' + line + "\n"
    (folder / "pauses.log").write_text(log)
    with pytest.raises(IndexFormatError, match=r"pauses\.log: line 2 is damaged"):
        grace.Index.open(folder)


def test_a_text_is_no_list_of_ids(folder):
    with pytest.raises(TypeError, match="must be a list of ids, got the text 'ab'"):
        grace.Index.open(folder).pause("ab")


def test_an_id_that_utf8_cannot_hold_is_unknown(folder):
    index = grace.Index.open(folder)
    assert index.find_ads(["\ud800", "a"]).tolist() == [-1, 0]
    with pytest.raises(CatalogError, match="no ad"):
        index.pause(["\ud800"])


def test_threads_leave_the_state_that_the_log_tells(folder):
    index = grace.Index.open(folder)
    for _ in range(20):
        threads = [threading.Thread(target=f, args=(["a"],)) for f in (index.pause, index.resume)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert grace.Index.open(folder).ad_state.tolist() == index.ad_state.tolist()
