"""Both loops on a clock that jumps: every figure is known beforehand."""

from __future__ import annotations

import asyncio
import math
from itertools import islice, repeat

import numpy as np
import pytest

from grace.load.client import Client
from grace.load.drive import closed_loop, open_loop, poisson_moments
from grace.load.level import Level
from grace.load.measured import Measured
from grace.load.tally import Window
from tests.load_cases import FakeServer, FakeWire, measure_closed, measure_open, run_virtual

RESOLUTION = 2e-3  # of a histogram with three digits
PERCENTS = (1, 25, 50, 75, 90, 99, 99.9, 100)


def percentile(latencies_s: np.ndarray, percent: float) -> float:
    """The latency in ms that at least this share does not pass."""
    rank = max(math.ceil(percent / 100 * len(latencies_s) - 1e-9), 1)
    return float(np.sort(latencies_s)[rank - 1] * 1e3)


def even(rate: float, seconds: float) -> list[float]:
    return [i / rate for i in range(1, int(rate * seconds) + 2)]


@pytest.mark.parametrize("in_flight", [1, 4, 33])
def test_closed_loop_keeps_its_number_in_flight(in_flight):
    server = FakeServer(lambda moment: 0.010)
    measured = measure_closed(server.exchange, in_flight, seconds=1.0, warmup=0.5)
    assert measured.throughput_per_s == pytest.approx(in_flight / 0.010, rel=0.011)
    assert measured.answered == measured.tally.begun == 100 * in_flight
    assert measured.mean_ms == pytest.approx(10, rel=RESOLUTION)
    assert measured.percentile_ms(99) == pytest.approx(10, rel=RESOLUTION)


def test_closed_loop_obeys_littles_law_where_the_server_queues():
    server = FakeServer(lambda moment: 0.010, lanes=2)
    measured = measure_closed(server.exchange, in_flight=10, seconds=2.0, warmup=0.5)
    assert measured.throughput_per_s == pytest.approx(200, rel=0.02)
    assert measured.mean_ms * measured.throughput_per_s / 1e3 == pytest.approx(10, rel=0.02)


def test_percentiles_are_those_of_the_delays():
    moments = list(islice(poisson_moments(500, 0.0, "seed"), 6000))
    draw = np.random.default_rng(1)
    delays = dict(zip(moments, draw.lognormal(math.log(0.012), 0.8, len(moments)), strict=True))
    near = {round(moment, 9): delay for moment, delay in delays.items()}
    server = FakeServer(lambda moment: near[round(moment, 9)])
    measured = measure_open(server.exchange, moments, seconds=10.0)
    counted = np.array([delay for moment, delay in delays.items() if moment < 10])
    assert measured.answered == len(counted)
    for percent in PERCENTS:
        known = percentile(counted, percent)
        assert measured.percentile_ms(percent) == pytest.approx(known, rel=RESOLUTION)
    assert measured.mean_ms == pytest.approx(counted.mean() * 1e3, rel=RESOLUTION)


def test_a_stall_is_in_the_latency_of_everyone_who_would_have_come():
    server = FakeServer(lambda moment: 0.001, stalls=((4.0, 6.0),))
    moments = even(rate=100, seconds=10)
    measured = measure_open(server.exchange, moments, seconds=10.0)
    known = np.array([(6 - m if 4 <= m < 6 else 0) + 0.001 for m in moments if m < 10])
    for percent in PERCENTS:
        assert measured.percentile_ms(percent) == pytest.approx(
            percentile(known, percent), rel=RESOLUTION
        )
    assert measured.percentile_ms(90) == pytest.approx(1001, rel=0.02)  # a fifth met it

    closed = measure_closed(server.exchange, 1, seconds=10.0)  # the same stall, met by one
    assert closed.percentile_ms(90) == pytest.approx(1, rel=RESOLUTION)
    assert closed.max_ms == pytest.approx(2001, rel=RESOLUTION)


def test_waiting_for_a_connection_is_waiting():
    async def drive() -> Window:
        server = FakeServer(lambda moment: 0.0, stalls=((1.0, 2.0),))

        async def connect() -> FakeWire:
            return FakeWire(server)

        client, window = Client(connect, limit=1), Window(0.0, 4.0)
        moments = iter(even(rate=10, seconds=4))
        await open_loop(client.exchange, repeat(b""), moments, window, timeout_s=60)
        assert sum(1.0 <= arrived < 2.0 for arrived in server.arrivals) == 1
        return window

    measured = Measured(Level(closed=False, size=10), run_virtual(drive()).finish())
    known = np.array([2 - m if 1 <= m < 2 else 1e-6 for m in even(10, 4) if m < 4])
    for percent in (50, 75, 90, 99):
        assert measured.percentile_ms(percent) == pytest.approx(
            percentile(known, percent), rel=RESOLUTION
        )


def test_requests_past_their_deadline_are_not_left_out():
    server = FakeServer(lambda moment: 0.001, stalls=((4.0, 6.0),))
    measured = measure_open(server.exchange, even(100, 10), seconds=10.0, timeout=0.5)
    late = sum(4 <= m < 6 and 6 - m + 0.001 > 0.5 for m in even(100, 10))
    assert measured.failures == {"timeout": late}
    assert measured.answered + late == measured.tally.begun == measured.ended
    assert measured.percentile_ms(84) < 500
    assert measured.percentile_ms(86) == math.inf  # 15 % were never answered
    timeouts = measured.tally.latencies["timeout"]
    assert timeouts.get_min_value() == pytest.approx(500_000, rel=RESOLUTION)
    assert timeouts.get_max_value() == pytest.approx(500_000, rel=RESOLUTION)


def test_a_request_that_found_no_connection_in_time_was_never_sent():
    async def drive() -> tuple[Window, int]:
        server = FakeServer(lambda moment: 10.0)

        async def connect() -> FakeWire:
            return FakeWire(server)

        client, window = Client(connect, limit=1), Window(0.0, 1.0)
        moments = iter([0.5] * 5 + [2.0])
        await open_loop(client.exchange, repeat(b""), moments, window, timeout_s=0.25)
        return window, len(server.arrivals)

    window, sent = run_virtual(drive())
    assert sent == 1
    assert window.tally.latencies.keys() == {"timeout"}
    assert window.tally.latencies["timeout"].get_total_count() == 5


def test_refusals_are_quick_and_make_nothing_faster():
    server = FakeServer(
        lambda moment: 0.020 if int(moment * 100) % 2 else 0.0005,
        status=lambda moment: 200 if int(moment * 100) % 2 else 429,
    )
    moments = [moment + 0.001 for moment in even(100, 10)]
    measured = measure_open(server.exchange, moments, seconds=10.0)
    assert measured.failures == {"429": pytest.approx(measured.tally.begun / 2, abs=2)}
    assert measured.mean_ms == pytest.approx(20, rel=RESOLUTION)
    assert measured.percentile_ms(49) == pytest.approx(20, rel=RESOLUTION)
    assert measured.percentile_ms(99) == math.inf
    assert measured.throughput_per_s == pytest.approx(50, rel=0.02)


def test_overload_shows_what_the_server_answers_not_what_it_is_asked():
    server = FakeServer(lambda moment: 0.010, lanes=1)  # 100 a second
    measured = measure_open(server.exchange, even(200, 10), seconds=10.0)
    assert measured.throughput_per_s == pytest.approx(100, rel=0.01)
    assert measured.answered == measured.tally.begun == 1999  # those after the window, too
    assert measured.percentile_ms(100) == pytest.approx(10_000, rel=0.01)
    assert measured.goodput_per_s(1000) == pytest.approx(20, rel=0.02)  # the first two seconds'


def test_warm_up_counts_nothing():
    server = FakeServer(lambda moment: 0.5 if moment < 1 else 0.01)
    measured = measure_open(server.exchange, even(100, 3), seconds=2.0, warmup=1.0)
    assert measured.tally.begun == pytest.approx(200, abs=1)
    assert measured.max_ms == pytest.approx(10, rel=RESOLUTION)
    closed = measure_closed(server.exchange, 4, seconds=2.0, warmup=1.5)
    assert closed.max_ms == pytest.approx(10, rel=RESOLUTION)


@pytest.mark.parametrize("warmup", [0.0, 0.73])
def test_a_count_is_the_number_of_requests(warmup):
    async def closed() -> Window:
        window = Window(warmup, count=101)
        await closed_loop(FakeServer(lambda m: 0.01).exchange, repeat(b""), 5, window, 60)
        return window

    async def opened() -> Window:
        window = Window(warmup, count=101)
        moments = poisson_moments(500, 0.0, "seed")
        await open_loop(FakeServer(lambda m: 0.01).exchange, repeat(b""), moments, window, 60)
        return window

    for drive in (closed, opened):
        measured = Measured(Level(closed=True, size=5), run_virtual(drive()).finish())
        assert measured.tally.begun == measured.answered == 101
        assert measured.throughput_per_s == pytest.approx(500, rel=0.25)


def test_stopped_early_everything_known_is_told():
    async def drive() -> Window:
        window = Window(0.0, 10.0)
        server = FakeServer(lambda moment: 0.1 if moment < 1 else 5.0)
        task = asyncio.create_task(closed_loop(server.exchange, repeat(b""), 3, window, 60))
        await asyncio.sleep(2.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        window.close(asyncio.get_running_loop().time())
        return window

    tally = run_virtual(drive()).finish()
    measured = Measured(Level(closed=True, size=3), tally, partial=True)
    assert tally.window_s == pytest.approx(2.0)
    assert measured.answered == pytest.approx(30, abs=3)
    assert measured.failures == {"stopped": 3}


def test_poisson_arrivals_are_a_seeds_and_as_dense_as_asked():
    first = list(islice(poisson_moments(200, 5.0, "a"), 20_000))
    assert first == list(islice(poisson_moments(200, 5.0, "a"), 20_000))
    assert first != list(islice(poisson_moments(200, 5.0, "b"), 20_000))
    gaps = np.diff([5.0, *first])
    assert gaps.mean() == pytest.approx(1 / 200, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 200, rel=0.03)  # as a Poisson process's are
    assert (gaps > 0).all()
