"""Batches flow through a graph: values, shapes, order, overlap, limits. Nothing here is timed."""

import threading
import weakref

import pytest
import torch
from runtime_cases import WAIT_S, Ends, chain, meet, nothing, run_all, spec

from grace.errors import ConfigError
from grace.runtime import Closed, Executor, Graph, Node


def arithmetic() -> Graph:
    """z = (x + 1) * 2 + x by way of two nodes that read x."""

    def add(frame):
        x = frame["x"]
        torch.add(x, 1, out=frame.out("y", *x.shape))

    def combine(frame):
        frame.payload["z"] = (frame["y"] * 2 + frame["x"]).tolist()

    return Graph(
        [spec("x", 4, 3)],
        [Node("combine", combine, ("y", "x")), Node("add", add, ("x",), (spec("y", 4, 3),))],
    )


@pytest.mark.parametrize("shape", [(4, 3), (1, 3), (3, 2), (0, 3), (4, 0)])
def test_tensors_have_the_shape_of_their_batch(shape):
    executor, ends, payload = Executor(arithmetic(), contexts=1), Ends(), {}
    x = torch.arange(shape[0] * shape[1], dtype=torch.float32).view(shape)
    executor.submit(payload, max(shape[0], 1), {"x": x}, ends)
    assert executor.close(timeout=WAIT_S)
    assert ends.all == [(payload, None)]
    assert payload["z"] == ((x + 1) * 2 + x).tolist()


def test_batches_of_different_sizes_do_not_see_each_other():
    executor, ends = Executor(arithmetic(), contexts=2), Ends()
    wanted = []
    for i in range(40):
        x = torch.full((1 + i % 4, 3), float(i))
        executor.submit({"i": i}, len(x), {"x": x}, ends)
        x.fill_(-1)  # the caller's tensor was copied
        wanted.append([[3.0 * i + 2] * 3] * (1 + i % 4))
    assert executor.close(timeout=WAIT_S)
    assert [p["z"] for p in ends.payloads] == wanted
    assert [p["i"] for p in ends.payloads] == list(range(40))


def test_an_output_has_its_rows_and_is_one_piece_of_memory():
    seen = {}

    def write(frame):
        seen["default"] = frame.out("y").shape
        smaller = frame.out("y", 2, 3)
        seen["contiguous"] = smaller.is_contiguous()
        smaller.fill_(7)

    def read(frame):
        seen["read"] = frame["y"].tolist()
        seen["stream"] = frame.stream
        seen["frame"] = frame.batch, frame.number, frame.instance, frame.payload

    graph = Graph([], [Node("w", write, (), (spec("y", 8, 5),)), Node("r", read, ("y",))])
    run_all(Executor(graph), ["payload"], Ends())
    assert seen["default"] == (1, 5)
    assert seen["contiguous"]
    assert seen["read"] == [[7.0] * 3] * 2
    assert seen["frame"] == (1, 0, 0, "payload")
    assert seen["stream"] is None


def test_memory_is_set_aside_once():
    seen = set()

    def write(frame):
        seen.add(frame.out("y").data_ptr())

    graph = Graph([], [Node("w", write, (), (spec("y", 8),))])
    run_all(Executor(graph, contexts=2), list(range(20)), Ends())
    assert 1 <= len(seen) <= 2


def test_stages_of_four_batches_overlap():
    """All four stages meet, each with another batch; without overlap they would wait for ever."""
    together = threading.Barrier(4)
    inside = []

    def stage(i):
        def run(frame):
            if frame.number + i == 3:  # batch 0 in stage 3, batch 1 in stage 2 and so on
                inside.append((i, frame.number))
                together.wait(WAIT_S)

        return run

    ends = Ends()
    run_all(Executor(chain(*map(stage, range(4))), contexts=4), list("abcd"), ends)
    assert sorted(inside) == [(0, 3), (1, 2), (2, 1), (3, 0)]
    assert ends.all == [(p, None) for p in "abcd"]


def test_nodes_of_one_batch_that_do_not_need_each_other_run_together():
    both = meet(2)
    graph = Graph([spec("x")], [Node("a", both, ("x",)), Node("b", both, ("x",))])
    executor, ends = Executor(graph, contexts=1), Ends()
    executor.submit("p", 1, {"x": torch.zeros(1)}, ends)
    assert executor.close(timeout=WAIT_S)
    assert ends.all == [("p", None)]


def test_instances_run_together_and_one_instance_runs_alone():
    ends = Ends()
    run_all(Executor(chain(meet(3), instances=3), contexts=3), list("abc"), ends)
    assert [error for _, error in ends.all] == [None] * 3

    alone, instances = threading.Lock(), set()

    def stage(frame):
        assert alone.acquire(blocking=False)
        instances.add(frame.instance)
        alone.release()

    ends = Ends()
    run_all(Executor(chain(stage), contexts=4), list(range(50)), ends)
    assert ends.all == [(i, None) for i in range(50)]
    assert instances == {0}


def test_of_batches_that_wait_for_a_node_the_oldest_goes_first():
    """Batch 1 overtakes 0 in `early`; both wait for `late`, which batch 2 holds until they do."""
    held, go = threading.Event(), threading.Event()
    queued = [threading.Event() for _ in range(3)]
    order = []

    def early(frame):
        if frame.number < 2:
            assert held.wait(WAIT_S)
        if frame.number == 0:
            assert queued[1].wait(WAIT_S)
        frame.out("e", 1)

    def late(frame):
        order.append(frame.number)
        if frame.number == 2:
            held.set()
            assert go.wait(WAIT_S)

    graph = Graph([], [
        Node("early", early, (), (spec("e"),), instances=3),
        Node("late", late, ("e",)),
        # queued after `late`, as the second reader
        Node("note", lambda frame: queued[frame.number].set(), ("e",)),
    ])  # fmt: skip
    executor = Executor(graph, contexts=3)
    for i in range(3):
        executor.submit(i, 1)
    assert queued[0].wait(WAIT_S)
    go.set()
    assert executor.close(timeout=WAIT_S)
    assert order == [2, 0, 1]


def test_contexts_bound_the_batches_in_flight():
    go, running = threading.Event(), threading.Semaphore(0)

    def stage(frame):
        running.release()
        assert go.wait(WAIT_S)

    freed = threading.Semaphore(0)
    executor = Executor(chain(stage, instances=2), contexts=2, freed=freed.release)
    ends = Ends()
    assert executor.free == 2
    assert executor.submit("a", 1, None, ends, timeout=0)
    assert executor.submit("b", 1, None, ends, timeout=0)
    assert executor.free == 0
    assert not executor.submit("c", 1, None, ends, timeout=0)
    assert not executor.submit("c", 1, None, ends, timeout=0.01)
    assert running.acquire(timeout=WAIT_S)
    assert running.acquire(timeout=WAIT_S)
    waits = threading.Thread(target=executor.submit, args=("d", 1, None, ends))
    waits.start()
    go.set()
    waits.join(WAIT_S)
    assert not waits.is_alive()
    assert executor.close(timeout=WAIT_S)
    assert sorted(ends.payloads) == ["a", "b", "d"]
    assert all(freed.acquire(timeout=WAIT_S) for _ in range(3))
    assert executor.free == 2


def test_a_context_stays_until_done_returns():
    seen = []
    executor = Executor(chain(nothing), contexts=1)
    executor.submit("a", 1, None, lambda payload, error: seen.append(executor.free))
    assert executor.close(timeout=WAIT_S)
    assert seen == [0]


def test_an_idle_executor_holds_no_batch():
    class Payload:
        pass

    executor, payload, ended = Executor(chain(nothing, nothing)), Payload(), threading.Event()
    gone = threading.Event()
    weakref.finalize(payload, gone.set)
    executor.submit(payload, 1, None, lambda p, error: ended.set())
    del payload
    assert ended.wait(WAIT_S)
    assert gone.wait(WAIT_S)
    executor.close()


def test_busy_is_the_share_of_each_instance():
    executor, ends = Executor(chain(nothing, nothing, instances=2)), Ends()
    for i in range(4):
        executor.submit(i, 1, None, ends)
    ends.wait(4)
    executor.close()
    seconds, busy = executor.busy_seconds(), executor.busy()
    assert set(busy) == set(seconds) == {"s0", "s1"}
    assert all(len(shares) == 2 for shares in busy.values())
    assert all(0 <= share <= 1 for shares in busy.values() for share in shares)
    assert sum(seconds["s0"]) > 0


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (None, "inputs: expected x, got none"),
        ({"y": torch.zeros(1, 3)}, "inputs: expected x, got y"),
        (
            {"x": torch.zeros(1, 3).double()},
            "input 'x': expected torch.float32 on cpu, got torch.f",
        ),
        ({"x": torch.zeros(1, 3, device="meta")}, "'x': expected torch.float32 on cpu.*on meta"),
        (
            {"x": torch.zeros(5, 3)},
            r"input 'x': expected a shape of at most \[4, 3\], got \[5, 3\]",
        ),
        ({"x": torch.zeros(3)}, r"input 'x': expected a shape of at most \[4, 3\], got \[3\]"),
    ],
)
def test_wrong_inputs_are_refused_before_a_context_is_taken(inputs, message):
    executor = Executor(arithmetic(), contexts=1)
    with pytest.raises(ValueError, match=message):
        executor.submit({}, 1, inputs)
    with pytest.raises(ValueError, match="rows must be at least 1, got 0"):
        executor.submit({}, 0, inputs)
    assert executor.free == 1
    executor.close()


def test_wrong_options_are_refused():
    with pytest.raises(ConfigError, match="contexts must be at least 1, got 0"):
        Executor(arithmetic(), contexts=0)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="cannot use 'cuda'"):
            Executor(Graph([], [Node("a", nothing, device="cuda")]))


def test_a_closed_executor_takes_nothing():
    executor = Executor(chain(nothing))
    assert executor.close()
    assert executor.close()
    with pytest.raises(Closed, match="the executor is closed"):
        executor.submit("a", 1)
