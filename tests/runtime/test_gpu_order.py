"""Who waits for a GPU and who does not, with a GPU made of threads that can be held."""

import threading

import pytest
from pretended_gpu import pretend_gpu
from runtime_cases import WAIT_S, Ends, spec
from test_timeline import spans

from grace.runtime import Executor, Graph, Node, Timeline


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    pretend_gpu(monkeypatch)


class Kernel:
    """A GPU node: `target = source + 1`, once `go` is set; tells when it was launched and ran."""

    def __init__(self, source: str, target: str, held: bool = False):
        self.source, self.target = source, target
        self.launched, self.go = threading.Semaphore(0), threading.Event()
        self.ran: list[int] = []  # numbers of batches
        if not held:
            self.go.set()

    def __call__(self, frame):
        source = frame[self.source]
        target = frame.out(self.target, *source.shape)
        number = frame.number

        def work():
            assert self.go.wait(WAIT_S)
            self.ran.append(number)
            target.copy_(source + 1)

        frame.stream.enqueue(work)
        self.launched.release()

    def node(self, name: str, **options) -> Node:
        output = spec(self.target, device="cuda")
        return Node(name, self, (self.source,), (output,), device="cuda", **options)


def write(frame):
    frame.out("x", frame.batch).fill_(frame.payload["value"])


def read(name):
    def run(frame):
        frame.payload["result"] = frame[name].tolist()

    return Node("read", run, (name,))


SOURCE = Node("write", write, (), (spec("x"),))


def submit(executor, ends, value, rows=2):
    executor.submit({"value": value}, rows, None, ends)


def results(ends):
    return [payload.get("result") for payload, _ in ends.all]


def test_values_cross_devices_both_ways():
    graph = Graph([], [SOURCE, Kernel("x", "y").node("a"), Kernel("y", "z").node("b"), read("z")])
    executor, ends = Executor(graph, contexts=3), Ends()
    for i in range(20):
        submit(executor, ends, i, rows=1 + i % 4)
    assert executor.close(timeout=WAIT_S)
    assert results(ends) == [[i + 2.0] * (1 + i % 4) for i in range(20)]


def test_gpu_nodes_launch_while_the_gpu_is_busy_and_only_the_reader_waits():
    """The GPU is held in its first kernel; all that can be launched is, of three batches."""
    first, second = Kernel("x", "y", held=True), Kernel("y", "z")
    graph = Graph([], [SOURCE, first.node("a"), second.node("b"), read("z")])
    executor, ends = Executor(graph, contexts=3), Ends()
    for i in range(3):
        submit(executor, ends, i)
    for _ in range(3):
        assert second.launched.acquire(timeout=WAIT_S)
    assert not first.ran
    assert not ends.all
    first.go.set()
    assert executor.close(timeout=WAIT_S)
    assert results(ends) == [[2.0] * 2, [3.0] * 2, [4.0] * 2]


def test_one_instance_works_on_one_batch_at_a_time_though_streams_differ():
    """The node has memory of its own, as a captured graph has; streams alone do not guard it."""
    own = [None]
    begun = [threading.Event() for _ in range(9)]

    def keep(frame):
        x, y, number = frame["x"], frame.out("y", frame.batch), frame.number

        def take():
            begun[number].set()
            own[0] = x.clone()

        def give():
            assert not begun[number + 1].wait(0.02)  # though it may have been launched
            y.copy_(own[0] * 10)

        frame.stream.enqueue(take)
        frame.stream.enqueue(give)

    node = Node("keep", keep, ("x",), (spec("y", device="cuda"),), device="cuda")
    executor, ends = Executor(Graph([], [SOURCE, node, read("y")]), contexts=4), Ends()
    for i in range(8):
        submit(executor, ends, i)
    assert executor.close(timeout=WAIT_S)
    assert results(ends) == [[i * 10.0] * 2 for i in range(8)]


def test_two_instances_work_side_by_side():
    both = threading.Barrier(2)

    def run(frame):
        frame.stream.enqueue(lambda: both.wait(WAIT_S))
        frame.out("y", 1)

    node = Node("n", run, (), (spec("y", device="cuda"),), device="cuda", instances=2)
    executor, ends = Executor(Graph([], [node]), contexts=2), Ends()
    for i in range(2):
        submit(executor, ends, i)
    assert executor.close(timeout=WAIT_S)
    assert [error for _, error in ends.all] == [None, None]


def test_a_batch_that_ends_on_the_gpu_is_done_when_the_gpu_is():
    last = Kernel("x", "y", held=True)
    executor, ends = Executor(Graph([], [SOURCE, last.node("last")]), contexts=1), Ends()
    submit(executor, ends, 1)
    assert last.launched.acquire(timeout=WAIT_S)
    assert not executor.submit({}, 1, timeout=0.03)
    assert not ends.all
    last.go.set()
    ends.wait(1)
    assert last.ran == [0]
    assert executor.close(timeout=WAIT_S)


def test_memory_is_not_given_on_while_a_side_branch_still_reads_it():
    side = Kernel("x", "s", held=True)
    main = Kernel("x", "y")
    done_reading = threading.Event()

    def reads(frame):
        frame.payload["result"] = frame["x"].tolist()
        done_reading.set()

    # `reads` needs nothing of the GPU; `side` is held on it when all nodes are over
    graph = Graph([], [SOURCE, main.node("main"), side.node("side"), Node("reads", reads, ("x",))])
    executor, ends = Executor(graph, contexts=1), Ends()
    submit(executor, ends, 5)
    assert done_reading.wait(WAIT_S)
    assert side.launched.acquire(timeout=WAIT_S)
    assert not executor.submit({}, 1, timeout=0.03)
    assert not ends.all
    side.go.set()
    assert executor.close(timeout=WAIT_S)
    assert results(ends) == [[5.0, 5.0]]


def test_a_node_that_fails_after_launching_costs_its_batch_only():
    kernel = Kernel("x", "y")

    def run(frame):
        kernel(frame)
        if frame.payload["value"] == 1:
            raise KeyError("broken")

    node = Node("n", run, ("x",), (spec("y", device="cuda"),), device="cuda")
    executor, ends = Executor(Graph([], [SOURCE, node, read("y")]), contexts=1), Ends()
    for i in range(3):
        submit(executor, ends, i)
    assert executor.close(timeout=WAIT_S)
    assert [type(error) for _, error in ends.all] == [type(None), KeyError, type(None)]
    assert kernel.ran == [0, 1, 2]
    assert results(ends) == [[1.0] * 2, None, [3.0] * 2]


@pytest.mark.parametrize("reader", [True, False])
def test_a_fault_of_the_gpu_reaches_done(reader):
    def run(frame):
        frame.out("y", 1)
        frame.stream.enqueue(lambda: 1 / 0)

    nodes = [Node("n", run, (), (spec("y", device="cuda"),), device="cuda")]
    nodes += [read("y")] * reader
    executor, ends = Executor(Graph([], nodes), contexts=1), Ends()
    submit(executor, ends, 0)
    [(payload, error)] = ends.wait(1)
    assert "CUDA error: division by zero" in str(error)
    assert "result" not in payload
    assert executor.close(timeout=WAIT_S)


def test_spans_and_shares_of_the_gpu():
    timeline = Timeline()
    kernel = Kernel("x", "y")
    graph = Graph([], [SOURCE, kernel.node("n"), read("y")])
    executor, ends = Executor(graph, contexts=2, timeline=timeline), Ends()
    for i in range(5):
        submit(executor, ends, i)
    assert executor.close(timeout=WAIT_S)
    on_gpu = [e for e in spans(timeline) if e["pid"] == 2]
    assert [(e["name"], e["args"]["batch"]) for e in on_gpu] == [("n", i) for i in range(5)]
    ends_at = [e["ts"] + e["dur"] for e in on_gpu]
    assert all(e["ts"] >= end - 1 for e, end in zip(on_gpu[1:], ends_at, strict=False))
    waits = [e for e in spans(timeline) if e["name"] == "read waits for the GPU"]
    assert len(waits) == 5
    [seconds] = executor.busy_seconds()["n"]
    assert seconds * 1e6 == pytest.approx(sum(e["dur"] for e in on_gpu), abs=1)
    assert 0 < executor.busy()["n"][0] <= 1


def test_streams_are_not_those_that_graphs_are_captured_on():
    executor = Executor(Graph([], [Kernel("x", "y").node("n"), SOURCE]), contexts=2)
    contexts = executor._free
    assert len({id(context.stream) for context in contexts}) == 2
    assert all(context.stream.priority == -1 for context in contexts)
    executor.close()
