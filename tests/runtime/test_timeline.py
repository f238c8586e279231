"""A timeline is valid trace JSON, bounded, and shows what overlapped."""

import json
import threading

import pytest
from runtime_cases import WAIT_S, Ends, chain, meet, nothing, run_all

from grace.runtime import Executor, Timeline


def spans(timeline: Timeline) -> list[dict]:
    return [e for e in json.loads(timeline.to_json())["traceEvents"] if e["ph"] == "X"]


def test_spans_have_tracks_batches_and_times(tmp_path):
    timeline = Timeline()
    executor = Executor(chain(nothing, nothing, instances=2), timeline=timeline)
    run_all(executor, list("abc"), Ends())
    timeline.write(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    names = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in trace["traceEvents"] if e["name"] == "thread_name"
    }  # fmt: skip
    assert set(names.values()) <= {"s0 0", "s0 1", "s1 0", "s1 1"}
    found = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert sorted((e["name"], e["args"]["batch"]) for e in found) == [
        (node, batch) for node in ("s0", "s1") for batch in range(3)
    ]
    for event in found:
        assert names[event["pid"], event["tid"]].startswith(event["name"])
        assert event["args"]["rows"] == 1
        assert event["ts"] > 0
        assert event["dur"] >= 0
    assert trace["otherData"]["forgotten_spans"] == 0


def test_overlap_can_be_seen():
    timeline = Timeline()
    run_all(Executor(chain(meet(2), instances=2), timeline=timeline), list("ab"), Ends())
    one, other = spans(timeline)
    assert one["tid"] != other["tid"]
    assert max(one["ts"], other["ts"]) <= min(one["ts"] + one["dur"], other["ts"] + other["dur"])


def test_a_failed_node_has_its_span():
    timeline = Timeline()
    run_all(Executor(chain(lambda frame: 1 / 0), timeline=timeline), ["a"], Ends())
    assert [e["name"] for e in spans(timeline)] == ["s0"]


def test_memory_is_bounded_and_the_newest_stay():
    timeline = Timeline(capacity=10)
    for i in range(25):
        timeline.add("n", 0, i, i + 0.5, batch=i, rows=1)
    assert len(timeline) == 10
    assert [e["args"]["batch"] for e in spans(timeline)] == list(range(15, 25))
    assert json.loads(timeline.to_json())["otherData"]["forgotten_spans"] == 15
    with pytest.raises(ValueError, match="capacity must be at least 1, got 0"):
        Timeline(0)


def test_gpu_spans_have_tracks_of_their_own():
    timeline = Timeline()
    timeline.add("n", 0, 1.0, 2.0, batch=0, rows=4)
    timeline.add("n", 0, 1.5, 3.0, batch=0, rows=4, gpu=True)
    host, gpu = spans(timeline)
    assert (host["pid"], host["ts"], host["dur"]) == (1, 1e6, 1e6)
    assert (gpu["pid"], gpu["ts"], gpu["dur"]) == (2, 1.5e6, 1.5e6)


def test_it_can_be_written_while_it_grows(tmp_path):
    timeline, stop = Timeline(capacity=50), threading.Event()

    def grow():
        while not stop.wait(0.0001):
            timeline.add("näme \"'", 0, 1.0, 2.0, batch=0, rows=1)

    thread = threading.Thread(target=grow)
    thread.start()
    for _ in range(20):
        timeline.write(tmp_path / "trace.json")
        json.loads((tmp_path / "trace.json").read_text())
    stop.set()
    thread.join(WAIT_S)
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        Timeline().write(tmp_path / "nowhere" / "trace.json")
