"""From counts to figures: percentiles over failures, shares of processes, limits, capacity."""

from __future__ import annotations

import math

import pytest

from grace.errors import ConfigError
from grace.load import Level, Limits, Measured, capacity
from grace.load.report import conclusions, table, to_dict
from grace.load.tally import Tally


def measured(size: float, rate: float, answers_ms: list[float], closed: bool = True, **failures):
    """A level of one second, with answers at these latencies and failures after 1 ms."""
    tally = Tally(begun=len(answers_ms) + sum(failures.values()), window_s=1.0)
    tally.answers_per_s = rate
    for latency in answers_ms:
        tally.add("200", latency / 1e3)
    for outcome, count in failures.items():
        for _ in range(count):
            tally.add(outcome.lstrip("_"), 0.001)
    return Measured(Level(closed=closed, size=size), tally)


def test_capacity_is_the_most_throughput_among_levels_that_keep_both_limits():
    levels = [
        measured(1, 90, [8] * 100),
        measured(2, 170, [9] * 100),
        measured(4, 200, [9] * 98 + [150] * 2),  # P99 too high
        measured(8, 210, [25] * 100),  # mean too high
    ]
    limits = Limits(mean_ms=20, p99_ms=100)
    assert capacity(levels, limits) is levels[1]
    assert capacity(levels, Limits(mean_ms=20, p99_ms=200)) is levels[2]
    assert capacity(levels, Limits(mean_ms=30, p99_ms=100)) is levels[3]
    assert capacity(levels, Limits(mean_ms=5, p99_ms=100)) is None
    assert "170.0 requests/s at 2 in flight" in conclusions(levels, limits)[0]
    assert "no level kept the limits" in conclusions(levels, Limits(mean_ms=5, p99_ms=10))[0]


def test_capacity_speaks_of_the_closed_loop_and_of_whole_levels():
    opened = measured(500, 500, [5] * 10, closed=False)
    stopped = Measured(Level(closed=True, size=4), measured(4, 900, [5]).tally, partial=True)
    closed = measured(2, 100, [5] * 10)
    assert capacity([opened, stopped, closed], Limits()) is closed
    assert capacity([opened, stopped, closed], Limits(), closed=False) is opened
    lines = conclusions([opened, closed], Limits())
    assert [line.split(" (")[0] for line in lines if "(" in line] == ["capacity", "open loop"]
    assert sum("may carry more" in line for line in lines) == 2


def test_refusals_break_the_limits_they_do_not_help_them():
    answered = measured(1, 100, [5] * 1000)
    refused = measured(1, 100, [5] * 980, _429=20)
    few = measured(1, 100, [5] * 995, _429=5)
    limits = Limits()
    assert limits.keeps(answered)
    assert limits.keeps(few)  # 0.5 % without an answer: P99 is one
    assert not limits.keeps(refused)
    assert refused.percentile_ms(98) == pytest.approx(5, rel=2e-3)
    assert refused.percentile_ms(99) == math.inf
    entry = to_dict([refused], limits)["levels"][0]
    assert entry["p99_ms"] is None
    assert entry["failures"]["429"] == {"count": 20, "p50_ms": 1.0, "p99_ms": 1.0}


def test_goodput_counts_answers_within_the_limit():
    assert measured(1, 10, [5] * 7 + [99.99] + [101] * 2).goodput_per_s(100) == 8


def test_nothing_answered():
    nothing = measured(1, 0, [], connection=3)
    assert not Limits().keeps(nothing)
    assert math.isnan(nothing.mean_ms)
    assert nothing.goodput_per_s(100) == 0
    assert to_dict([nothing], Limits())["capacity"] is None
    assert table([nothing], Limits()).row_count == 1


def test_processes_add_up_to_one():
    parts = [Level(closed=True, size=10).share(part, 4).size for part in range(4)]
    assert parts == [3, 3, 2, 2]
    assert Level(closed=False, size=10).share(1, 4).size == 2.5
    whole, half = Tally(), Tally()
    for tally, latencies in ((whole, (1, 2, 3, 4)), (half, (1, 4))):
        for latency in latencies:
            tally.add("200", latency / 1e3)
        tally.add("429", 0.001)
        tally.begun = len(latencies) + 1
        tally.answers_per_s, tally.window_s, tally.cpu = 10.0, 2.0, 0.3
    whole.merge(Tally.from_message(half.to_message()))
    assert whole.begun == 8
    assert whole.answers_per_s == 20
    assert whole.window_s == 2
    together = Measured(Level(closed=True, size=2), whole)
    assert together.answered == 6
    assert together.mean_ms == pytest.approx(2.5, rel=2e-3)
    assert together.failures == {"429": 2}


def test_a_busy_generator_is_doubted():
    level = measured(1, 100, [5])
    level.tally.cpu = 0.97
    assert "97% of a core" in conclusions([level], Limits())[-1]
    late = measured(100, 100, [5], closed=False)
    late.tally.late.record_value(5000)
    assert "5.0 ms late" in conclusions([late], Limits())[-1]


@pytest.mark.parametrize("limits", [{"mean_ms": 0.0}, {"p99_ms": -1.0}, {"p99_ms": math.nan}])
def test_limits_are_above_zero(limits):
    with pytest.raises(ConfigError, match="must be above 0 ms"):
        Limits(**limits)
