"""Ad states: two flags apart, one log for all processes, damage refused, threads agree with it."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

import grace
from grace.errors import CatalogError, IndexFormatError
from grace.index import state_log

ADS = [{"ad_id": name, "sid": [i]} for i, name in enumerate(["a", "b", "ab"])]
NOBODY = {"attributes": []}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    grace.build_index(ADS, NOBODY, tmp_path)
    return tmp_path


def states(folder: Path) -> list[int]:
    return grace.Index.open(folder).ad_state.tolist()


@pytest.mark.parametrize(
    "line",
    [
        '{"paused": "false", "ad_ids": ["a"]}', '{"paused": true, "ad_ids": "a"}', "[]", "{}", "x",
        '{"paused": true, "ad_ids": [["a"]]}', "[" * 5000, '{"ad_ids": ["a"]}',
        '{"paused": true, "bid_off": true, "ad_ids": ["a"]}', '{"other": true, "ad_ids": ["a"]}',
    ],
)  # fmt: skip
def test_a_damaged_line_is_refused_by_number(folder, line):
    log = '{"paused": true, "ad_ids": ["a"]}\n' + line + "\n"
    (folder / "pauses.log").write_text(log)
    with pytest.raises(IndexFormatError, match=r"pauses\.log: line 2 is damaged"):
        grace.Index.open(folder)


def test_a_line_damaged_later_is_refused_by_its_number_in_the_file(folder):
    index = grace.Index.open(folder)
    index.pause(["a"])
    with open(folder / "pauses.log", "a") as file:
        file.write("nonsense\n")
    with pytest.raises(IndexFormatError, match="line 2 is damaged"):
        index.catch_up()


def test_a_text_is_no_list_of_ids(folder):
    with pytest.raises(TypeError, match="must be a list of ids, got the text 'ab'"):
        grace.Index.open(folder).pause("ab")


def test_an_id_that_utf8_cannot_hold_is_unknown(folder):
    index = grace.Index.open(folder)
    assert index.find_ads(["\ud800", "a"]).tolist() == [-1, 0]
    with pytest.raises(CatalogError, match="no ad"):
        index.pause(["\ud800"])


@pytest.mark.parametrize("on_disk", [False, True])
def test_the_flags_are_apart(folder, on_disk: bool):
    index = grace.Index.open(folder) if on_disk else grace.build_index(ADS, NOBODY)
    numbers = index.find_ads(["a", "b", "ab"])
    for change, ids, want in (
        (index.pause, ["a", "b"], [1, 1, 0]),
        (index.bid_off, ["b", "ab", "ab"], [1, 3, 2]),
        (index.resume, ["b"], [1, 2, 2]),
        (index.bid_on, ["ab", "a"], [1, 2, 0]),
        (index.bid_off, [], [1, 2, 0]),
    ):
        change(ids)
        assert index.ad_state[numbers].tolist() == want
        if on_disk:
            assert states(folder) == index.ad_state.tolist()


def test_reasons_come_in_order_and_the_tree_above_knows():
    """Paused before bid off before the window; with `exact` no prefix leads to a dead ad."""
    late = {"start": "2099-01-01T00:00:00Z"}
    index = grace.build_index([row | late for row in ADS], NOBODY)
    live = grace.build_index(ADS, NOBODY)
    request = index.compile({}, "2026-01-01T00:00:00Z")
    assert index.refusal_reasons == ("paused", "bid_off", "window")
    index.pause(["a", "b"])
    index.bid_off(["b", "ab"])
    numbers = index.find_ads(["a", "b", "ab"])
    assert index.explain(numbers, request).tolist() == [0b101, 0b111, 0b110]
    dropped = index.expand(numbers, request).dropped
    assert dropped == {"paused": 2, "bid_off": 1, "window": 0}
    live.bid_off(["a", "b", "ab"])
    assert not live.match("exact", [request]).words.any()
    live.bid_on(["b"])
    assert live.match("exact", [request]).words.tolist() == [1, 0, 1, 0]


def test_a_log_from_before_there_were_bids_still_opens(folder):
    """Also one with ads that no version has any more."""
    lines = [{"paused": True, "ad_ids": ["a", "gone"]}, {"paused": False, "ad_ids": ["a"]},
             {"paused": True, "ad_ids": ["b"]}]  # fmt: skip
    (folder / "pauses.log").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert states(folder) == [0, 1, 0]


def test_the_log_has_the_last_word_over_later_builds(folder):
    index = grace.Index.open(folder)
    index.pause(["a"])
    index.resume(["b"])
    grace.build_index([row | {"paused": row["ad_id"] != "a"} for row in ADS], NOBODY, folder)
    assert states(folder) == [1, 0, 1]
    grace.build_index(ADS[1:], NOBODY, folder)
    grace.build_index(ADS, NOBODY, folder)
    assert states(folder) == [1, 0, 0]


def test_a_handle_catches_up_with_another(folder):
    first, second = (grace.Index.open(folder) for _ in range(2))
    first.pause(["a"])
    assert second.ad_state.tolist() == [0, 0, 0]
    second.catch_up()
    assert second.ad_state.tolist() == [1, 0, 0]
    first.resume(["a"])
    second.bid_off(["b"])  # brings the other's lines along, in the log's order
    assert second.ad_state.tolist() == [0, 2, 0]


def test_a_handle_catches_up_over_compactions(folder):
    """Each replaces the file; what the new one says is all there is to know."""
    first, second = (grace.Index.open(folder) for _ in range(2))
    for _ in range(5):
        for change in (first.pause, first.bid_off, first.resume):
            change(["a", "ab"])
        first.bid_off(["b"])
        first.bid_on(["ab"])
        state_log.compact(folder)
        second.catch_up()
        assert second.ad_state.tolist() == [2, 2, 0]
        first.bid_on(["a", "b"])
        second.catch_up()
        assert second.ad_state.tolist() == first.ad_state.tolist() == states(folder) == [0, 0, 0]


def test_a_build_compacts_the_log(folder):
    index = grace.Index.open(folder)
    for _ in range(50):
        index.pause(["a", "b"])
        index.resume(["b"])
    index.bid_off(["ab"])
    grace.build_index(ADS, NOBODY, folder)
    lines = (folder / "pauses.log").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"paused": True, "ad_ids": ["a"]},
        {"paused": False, "ad_ids": ["b"]},
        {"bid_off": True, "ad_ids": ["ab"]},
    ]
    index.catch_up()
    assert index.ad_state.tolist() == states(folder) == [1, 0, 2]


def test_no_line_is_lost_to_a_compaction_beside_it(folder):
    """Writers wait for the lock on a file that is no longer the log when they get it."""
    ads = [{"ad_id": n, "sid": [n]} for n in range(40)]
    folder = folder / "many"
    grace.build_index(ads, NOBODY, folder)
    stop = threading.Event()

    def compact() -> None:
        while not stop.is_set():
            state_log.compact(folder)

    def pause(part: int) -> None:
        index = grace.Index.open(folder)
        for ad_id in range(part, 40, 4):
            index.pause([ad_id])
            index.bid_off([ad_id])
            index.resume([ad_id])
            index.pause([ad_id])

    compactor = threading.Thread(target=compact)
    writers = [threading.Thread(target=pause, args=(part,)) for part in range(4)]
    for thread in (compactor, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    compactor.join()
    assert states(folder) == [3] * 40


def test_subscribers_hear_what_changed_and_only_that(folder):
    index, heard = grace.Index.open(folder), []
    copy = index.ad_state.clone()

    def update(positions) -> None:
        assert positions.dtype == "int64"
        heard.append(positions.tolist())
        copy[positions] = index.ad_state[positions]

    index.subscribe(update)
    index.pause(["ab", "a"])
    index.pause(["a"])  # nothing new
    index.bid_off(["a", "b"])
    other = grace.Index.open(folder)
    other.resume(["ab"])
    index.catch_up()
    first, second, third = index.find_ads(["a", "b", "ab"]).tolist()
    assert heard == [sorted([first, third]), sorted([first, second]), [third]]
    assert copy.tolist() == index.ad_state.tolist()


def test_threads_leave_the_state_that_the_log_tells(folder):
    index = grace.Index.open(folder)
    for _ in range(20):
        threads = [threading.Thread(target=f, args=(["a"],)) for f in (index.pause, index.resume)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert states(folder) == index.ad_state.tolist()


@pytest.mark.parametrize("ids", ["[1.0]", "[true]", '["\\ud800"]', "[null]"])
def test_a_line_with_what_is_no_id_is_damaged(tmp_path, ids):
    """1.0 and true equal 1 as keys, and would hide what a later line says of ad 1."""
    grace.build_index([{"ad_id": 1, "sid": [0]}], NOBODY, tmp_path)
    (tmp_path / "pauses.log").write_text(f'{{"paused": false, "ad_ids": {ids}}}\n')
    with pytest.raises(IndexFormatError, match="line 1 is damaged"):
        grace.Index.open(tmp_path)
