"""The benchmark of serving: a tiny run over real HTTP, and its pieces on known input."""

from __future__ import annotations

import sys
import threading

import pytest

from benchmarks import serve
from benchmarks.serving.busy import covered
from benchmarks.serving.rows import load_rows
from benchmarks.serving.shares import GPU, NATIVE, PYTHON, Sampler, called, kind_of


def test_a_small_run_measures_all_that_a_cpu_shows():
    rows = serve.main(["--case", "paper", "--small", "--variants", "exact,valid", "--events", "5"])
    found = {(row["variant"], row["metric"]): row for row in rows}
    metrics = {metric for variant, metric in found if variant == "exact"}
    assert metrics >= {
        "throughput", "latency", "throughput, 3 in flight", "latency, open loop 40/s",
        "pipeline latency", "stage input", "stage compute", "stage post", "server overhead",
        "wall time in Python", "full latency", "full latency, P99",
    }  # fmt: skip
    throughput = found["exact", "throughput"]
    assert throughput["counts"]["failures"] == 0
    assert throughput["counts"]["in_flight"] in (1, 3)
    pipeline = found["exact", "pipeline latency"]
    assert pipeline["value"] <= pipeline["p99"]
    assert pipeline["counts"]["expanded_ads_per_request"] > 0
    assert {metric for variant, metric in found if variant == "valid"} == {
        "full latency", "full latency, P99", "full latency, input", "full latency, compute",
        "full latency, post",
    }  # fmt: skip


def test_unknown_variants_are_refused(capsys):
    with pytest.raises(SystemExit):
        serve.main(["--variants", "exact,fast"])
    assert "--variants must be some of exact, exact+fp8" in capsys.readouterr().err


def level(loop: str, size: float, rate: float, p99: float | None) -> dict:
    return {
        "loop": loop, "size": size, "requests": 100, "answered": 90, "throughput_per_s": rate,
        "mean_ms": 5.0, "p50_ms": 4.0, "p99_ms": p99, "generator_cpu": 0.12345,
        "failures": {"429": {"count": 10}},
    }  # fmt: skip


def test_rows_of_levels():
    loaded = {
        "limits": {"mean_ms": 20, "p99_ms": 100},
        "levels": [level("closed", 8, 90.0, 9.0), level("open", 1200.0, 80.0, None)],
        "capacity": {"in_flight": 8, "throughput_per_s": 90.0},
    }
    rows = {row["metric"]: row for row in load_rows("paper", "exact", loaded, {"ads": 7})}
    assert rows["throughput"]["value"] == 90
    assert rows["throughput"]["counts"] == {
        "ads": 7, "limit_mean_ms": 20, "limit_p99_ms": 100, "in_flight": 8, "requests": 100,
        "failures": 10, "status 429": 10, "generator_cpu": 0.123,
    }  # fmt: skip
    assert rows["latency"]["p99"] == 9
    assert "p99" not in rows["latency, open loop 1,200/s"]  # 1 % and more had no answer
    none = {**loaded, "capacity": None}
    assert "throughput" not in {row["metric"] for row in load_rows("paper", "exact", none, {})}


def test_covered_time():
    assert covered([]) == 0
    assert covered([(3.0, 4.0)]) == 1
    assert covered([(0.0, 2.0), (1.0, 1.5), (8.0, 10.0)]) == pytest.approx(0.4)
    assert covered([(5.0, 6.0), (0.0, 5.0)]) == 1


def frame_at(function: object, *arguments: object) -> tuple:
    """Code and instruction of the innermost frame while a function waits for an event."""
    entered, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=function, args=(entered, leave, *arguments))
    thread.start()
    entered.wait(5)
    frame = sys._current_frames()[thread.ident]
    while frame.f_code is not function.__code__:
        frame = frame.f_back
    found = frame.f_code, frame.f_lasti
    leave.set()
    thread.join()
    return found


class Stand:
    """Something with methods named as those that tell what a thread is doing."""

    def __init__(self, leave: threading.Event):
        self._native = self
        self.expand = self.synchronize = self.compute = leave.wait


def in_native(entered: threading.Event, leave: threading.Event) -> None:
    stand = Stand(leave)
    entered.set()
    stand._native.expand()


def in_gpu(entered: threading.Event, leave: threading.Event) -> None:
    stand = Stand(leave)
    entered.set()
    stand.synchronize()


def in_python(entered: threading.Event, leave: threading.Event) -> None:
    stand = Stand(leave)
    entered.set()
    stand.compute()


def asleep(entered: threading.Event, leave: threading.Event) -> None:
    entered.set()
    leave.wait()


def in_kind(function: object, gpu: bool) -> str | None:
    code, instruction = frame_at(function)
    while called(code, instruction) == "entered.set":  # not yet at the next line
        code, instruction = frame_at(function)
    return kind_of(code, instruction, gpu)


def test_what_a_thread_is_doing():
    assert in_kind(in_native, True) == NATIVE
    assert in_kind(in_gpu, True) == GPU
    assert in_kind(in_gpu, False) == PYTHON
    assert in_kind(in_python, True) == PYTHON
    assert in_kind(asleep, True) is None


def test_a_sampler_counts_and_ends():
    with Sampler(gpu=False) as sampler:
        pass
    assert set(sampler.shares()) == {PYTHON, NATIVE, GPU}
    assert all(0 <= share <= 1 for share in sampler.shares().values())
