"""The runtime on a CUDA device: copies, stream order, whose memory is whose, times."""

import itertools
import threading

import pytest
import torch
from runtime_cases import WAIT_S, Ends, spec
from test_timeline import spans

from grace.kernels.capture import Holder, capturing, own_stream
from grace.runtime import Executor, Graph, Node, Timeline

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

ROWS, COLUMNS = 64, 1 << 15  # 8 MB of float32: copies take long enough to be overtaken
A_WHILE = 20_000_000  # cycles, about 10 ms


def source(name="x", dtype=torch.float32, columns=COLUMNS):
    def write(frame):
        frame.out(name, frame.batch, columns).fill_(frame.payload["value"])

    return Node("write", write, (), (spec(name, ROWS, columns, dtype=dtype),))


def gpu_node(name, run, reads, writes, **options):
    outputs = tuple(spec(w, ROWS, COLUMNS, device="cuda") for w in writes)
    return Node(name, run, tuple(reads), outputs, device="cuda", **options)


def add_one(reads, writes, cycles=0):
    def run(frame):
        if cycles:
            torch.cuda._sleep(cycles)
        x = frame[reads]
        torch.add(x, 1, out=frame.out(writes, *x.shape))

    return run


def check(reads):
    def run(frame):
        assert frame[reads].device.type == "cpu"
        frame.payload["result"] = (tuple(frame[reads].shape), frame[reads].unique().tolist())

    return Node("check", run, (reads,))


def submit_all(executor, count, rows=lambda i: 1 + i % ROWS):
    ends = Ends()
    for i in range(count):
        assert executor.submit({"value": i}, rows(i), None, ends)
    assert executor.close(timeout=WAIT_S)
    assert [error for _, error in ends.all] == [None] * count
    return [payload["result"] for payload, _ in ends.all]


@pytest.mark.parametrize("contexts", [1, 3])
def test_values_cross_both_ways_in_every_batch(contexts):
    graph = Graph([], [
        source(),
        gpu_node("a", add_one("x", "y", cycles=100_000), "x", "y"),
        gpu_node("b", add_one("y", "z"), "y", "z"),
        check("z"),
    ])  # fmt: skip
    results = submit_all(Executor(graph, contexts), 60)
    assert results == [((1 + i % ROWS, COLUMNS), [i + 2.0]) for i in range(60)]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bfloat16, torch.bool])
def test_every_dtype_crosses(dtype):
    def run(frame):
        frame.out("y", *frame["x"].shape).copy_(frame["x"])

    out = (spec("y", ROWS, 7, dtype=dtype, device="cuda"),)
    graph = Graph(
        [], [source(dtype=dtype, columns=7), Node("n", run, ("x",), out, device="cuda"), check("y")]
    )
    values = [torch.tensor(i).to(dtype).item() for i in range(9)]
    assert submit_all(Executor(graph), 9) == [((1 + i, 7), [values[i]]) for i in range(9)]


def test_gpu_nodes_launch_while_the_gpu_is_busy():
    """The batch's stream is still busy with the first node when the second one launches."""
    busy = []

    def second(frame):
        busy.append(not frame.stream.query())
        add_one("y", "z")(frame)

    def graph(cycles):
        first = gpu_node("a", add_one("x", "y", cycles), "x", "y")
        return Graph([], [source(), first, gpu_node("b", second, "y", "z"), check("z")])

    submit_all(
        Executor(graph(1), contexts=1), 1
    )  # a kernel's first launch waits until it is loaded
    busy.clear()
    submit_all(Executor(graph(20 * A_WHILE), contexts=3), 3)
    assert busy == [True] * 3


def test_an_instance_may_own_memory_though_each_batch_has_its_stream():
    own = torch.empty(ROWS, COLUMNS, device="cuda")

    def run(frame):
        rows = frame.batch
        own[:rows].copy_(frame["x"])
        torch.cuda._sleep(1_000_000)
        torch.mul(own[:rows], 2, out=frame.out("y", rows, COLUMNS))

    graph = Graph([], [source(), gpu_node("n", run, "x", "y"), check("y")])
    results = submit_all(Executor(graph, contexts=4), 60, rows=lambda i: ROWS)
    assert results == [((ROWS, COLUMNS), [2.0 * i]) for i in range(60)]


def test_a_batch_that_ends_on_the_gpu_is_done_when_the_gpu_is():
    after, seen = {}, []

    def run(frame):
        torch.cuda._sleep(5 * A_WHILE)
        after[frame.number] = torch.cuda.Event()
        after[frame.number].record(frame.stream)

    executor = Executor(Graph([], [source(), gpu_node("n", run, "x", "y")]), contexts=2)
    for i in range(4):
        executor.submit({"value": i}, 1, None, lambda p, e: seen.append(after[p["value"]].query()))
    assert executor.close(timeout=WAIT_S)
    assert seen == [True] * 4


def test_memory_for_copies_is_page_locked_and_streams_are_apart():
    graph = Graph([], [source(), gpu_node("n", add_one("x", "y"), "x", "y"), check("y")])
    executor = Executor(graph, contexts=3)
    contexts = executor._free
    assert len({context.stream.cuda_stream for context in contexts}) == 3
    for context in contexts:
        for name in "xy":
            context.set_shape(name, (1, 1))
            assert context.view(name, on_gpu=False).is_pinned()
            assert context.view(name, on_gpu=True).is_cuda
    executor.close()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_inputs_come_from_either_device(device):
    """A GPU tensor is still being written when it is submitted; its memory is soon another's."""
    graph = Graph(
        [spec("x", ROWS, COLUMNS, device=device)],
        [gpu_node("n", add_one("x", "y"), "x", "y"), check("y"),
         Node("also", lambda f: f.payload.update(also=f["x"].unique().tolist()), ("x",))],
    )  # fmt: skip
    executor, ends = Executor(graph, contexts=3), Ends()
    for i in range(30):
        if device == "cuda":
            torch.cuda._sleep(1_000_000)
        executor.submit({}, ROWS, {"x": torch.full((ROWS, COLUMNS), float(i), device=device)}, ends)
    assert executor.close(timeout=WAIT_S)
    assert [error for _, error in ends.all] == [None] * 30
    assert sorted(p["result"][1][0] for p in ends.payloads) == [i + 1.0 for i in range(30)]
    assert sorted(p["also"][0] for p in ends.payloads) == [float(i) for i in range(30)]


def test_a_node_that_fails_after_launching_costs_its_batch_only():
    def run(frame):
        add_one("x", "y", cycles=A_WHILE)(frame)
        if frame.payload["value"] == 1:
            raise KeyError("broken")

    executor, ends = (
        Executor(Graph([], [source(), gpu_node("n", run, "x", "y"), check("y")])),
        Ends(),
    )
    for i in range(4):
        executor.submit({"value": i}, 2, None, ends)
    assert executor.close(timeout=WAIT_S)
    errors = {p["value"]: type(error) for p, error in ends.all}
    assert errors == {0: type(None), 1: KeyError, 2: type(None), 3: type(None)}
    assert all(p["result"][1] == [p["value"] + 1.0] for p in ends.payloads if p["value"] != 1)


def test_a_graph_may_be_captured_beside_batches():
    """As a new index version is: its capture takes in no batch's work and breaks none."""
    graph = Graph([], [source(), gpu_node("n", add_one("x", "y"), "x", "y"), check("y")])
    executor, ends = Executor(graph, contexts=4), Ends()
    stop, holder = threading.Event(), Holder()

    def serve():
        i = 0
        while not stop.is_set():
            executor.submit({"value": i}, 1 + i % ROWS, None, ends)
            i += 1

    thread = threading.Thread(target=serve)
    thread.start()
    stream = own_stream(holder, torch.device("cuda"))
    x = torch.zeros(1000, device="cuda")
    stream.wait_stream(torch.cuda.current_stream())
    for i in range(20):
        captured = torch.cuda.CUDAGraph()
        with capturing(captured, stream):
            x.add_(1)
        with torch.cuda.stream(stream):
            captured.replay()
        stream.synchronize()
        assert x.unique().tolist() == [i + 1.0]
    stop.set()
    thread.join(WAIT_S)
    assert executor.close(timeout=WAIT_S)
    assert ends.all
    assert all(error is None for _, error in ends.all)
    assert all(p["result"][1] == [p["value"] + 1.0] for p in ends.payloads)


def test_spans_and_shares_of_the_gpu():
    timeline = Timeline()
    graph = Graph([], [
        source(), gpu_node("n", add_one("x", "y", cycles=A_WHILE), "x", "y"), check("y"),
    ])  # fmt: skip
    executor = Executor(graph, contexts=3, timeline=timeline)
    submit_all(executor, 10)
    found = [e for e in spans(timeline) if e["pid"] == 2]
    assert [e["args"]["batch"] for e in found] == list(range(10))
    assert all(e["dur"] > 100 for e in found)  # microseconds, of some 10,000 that the node sleeps
    for before, after in itertools.pairwise(found):
        assert after["ts"] >= before["ts"] + before["dur"] - 50  # one instance, one at a time
    launches = {e["args"]["batch"]: e["ts"] for e in spans(timeline) if e["name"] == "check"}
    assert all(e["ts"] < launches[e["args"]["batch"]] for e in found)  # the clocks agree
    assert 0 < executor.busy()["n"][0] <= 1
