"""An error ends its batch alone; closing loses no batch."""

import threading

import pytest
import torch
from runtime_cases import WAIT_S, Ends, chain, nothing, run_all, spec

from grace.runtime import Closed, Executor, Graph, Node


class Broken(Exception):
    pass


def fails_on(*payloads, error=Broken):
    def stage(frame):
        if frame.payload in payloads:
            raise error(frame.payload)

    return stage


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_an_error_ends_its_batch_alone(stage):
    after = []
    stages = [nothing, nothing, lambda frame: after.append(frame.payload)]
    stages.insert(stage, fails_on(1, 3))
    executor, ends = Executor(chain(*stages), contexts=2), Ends()
    run_all(executor, list(range(6)), ends)
    errors = dict(ends.all)
    assert {i: type(e) for i, e in errors.items() if e} == {1: Broken, 3: Broken}
    assert sorted(errors) == list(range(6))
    assert after == [0, 2, 4, 5]  # what comes behind a failed node is left out
    assert executor.free == 2


def test_even_an_exit_in_a_node_ends_its_batch_alone():
    ends = Ends()
    run_all(Executor(chain(fails_on(0, error=SystemExit)), contexts=1), [0, 1], ends)
    assert [type(error) for _, error in ends.all] == [SystemExit, type(None)]


def test_a_failed_batch_ends_once_its_running_nodes_have():
    """Of two nodes side by side one fails; `done` waits for the other, which uses the memory."""
    both, failed, over = threading.Barrier(2), threading.Event(), threading.Event()

    def fail(frame):
        both.wait(WAIT_S)
        failed.set()
        raise Broken

    def slow(frame):
        both.wait(WAIT_S)
        assert failed.wait(WAIT_S)
        assert not ends.all
        over.set()

    graph = Graph([spec("x")], [Node("fail", fail, ("x",)), Node("slow", slow, ("x",))])
    executor, ends = Executor(graph, contexts=1), Ends()
    executor.submit("p", 1, {"x": torch.zeros(1)}, lambda p, e: ends(over.is_set(), e))
    [(was_over, error)] = ends.wait(1)
    assert was_over
    assert isinstance(error, Broken)
    executor.close()


def test_a_failed_batch_does_not_queue_behind_others():
    """Batch 0 holds the second node; batch 1 fails in the first, and is over then."""
    go = threading.Event()

    def second(frame):
        assert go.wait(WAIT_S)

    executor, ends = Executor(chain(fails_on(1), second), contexts=2), Ends()
    executor.submit(0, 1, None, ends)
    executor.submit(1, 1, None, ends)
    assert [payload for payload, _ in ends.wait(1)] == [1]
    go.set()
    assert executor.close(timeout=WAIT_S)
    assert ends.payloads == [1, 0]


def test_two_errors_in_a_batch_are_one_end():
    both = threading.Barrier(2)

    def fail(frame):
        both.wait(WAIT_S)
        raise Broken

    graph = Graph([spec("x")], [Node("a", fail, ("x",)), Node("b", fail, ("x",))])
    executor, ends = Executor(graph, contexts=2), Ends()
    for i in range(20):
        executor.submit(i, 1, {"x": torch.zeros(1)}, ends)
    assert executor.close(timeout=WAIT_S)
    assert sorted(ends.payloads) == list(range(20))
    assert all(isinstance(error, Broken) for _, error in ends.all)


@pytest.mark.parametrize(
    ("write", "read", "message"),
    [
        (lambda f: f.out("z"), nothing, "node 'w' writes 'z', which is not in its outputs"),
        (
            lambda f: f.out("y", 5, 3),
            nothing,
            r"node 'w': output 'y': .*most \[4, 3\], got \[5, 3\]",
        ),
        (lambda f: f.out("y", 4), nothing, r"output 'y': expected a shape of at most \[4, 3\]"),
        (lambda f: f.out("y", -1, 3), nothing, r"output 'y': expected a shape"),
        (lambda f: f["y"], nothing, "node 'w' reads 'y', which is not in its inputs"),
        (nothing, lambda f: f["y"], "node 'w' did not write 'y' for this batch"),
    ],
)
def test_a_node_that_breaks_its_word_ends_its_batch(write, read, message):
    graph = Graph([], [Node("w", write, (), (spec("y", 4, 3),)), Node("r", read, ("y",))])
    ends = Ends()
    run_all(Executor(graph), ["p"], ends)
    [(_, error)] = ends.all
    assert isinstance(error, (KeyError, ValueError))
    with pytest.raises(type(error), match=message):
        raise error


def test_what_an_earlier_batch_wrote_is_not_there_any_more():
    def write(frame):
        if frame.payload == "first":
            frame.out("y")

    graph = Graph([], [Node("w", write, (), (spec("y"),)), Node("r", lambda f: f["y"], ("y",))])
    ends = Ends()
    run_all(Executor(graph, contexts=1), ["first", "second"], ends)
    assert [type(error) for _, error in ends.all] == [type(None), KeyError]


def test_a_callback_that_fails_costs_no_context(caplog):
    def done(payload, error):
        raise Broken(payload)

    executor = Executor(chain(nothing), contexts=1, freed=lambda: 1 / 0)
    for i in range(3):
        assert executor.submit(i, 1, None, done, timeout=WAIT_S)
    assert executor.close(timeout=WAIT_S)
    assert "the callback of batch 2 failed" in caplog.text
    assert "the callback for a free context failed" in caplog.text


@pytest.mark.parametrize("drain", [True, False])
def test_close_with_work_in_flight(drain):
    """Batch 0 is inside the first node, 1 waits for it, and a caller waits for a context."""
    inside, go = threading.Event(), threading.Event()
    ran = []

    def first(frame):
        inside.set()
        assert go.wait(WAIT_S)

    executor, ends = Executor(chain(first, lambda f: ran.append(f.payload)), contexts=2), Ends()
    executor.submit(0, 1, None, ends)
    executor.submit(1, 1, None, ends)
    assert inside.wait(WAIT_S)
    refused = []

    def wait_for_context():
        try:
            executor.submit(2, 1, None, ends)
        except Closed as error:
            refused.append(error)

    caller = threading.Thread(target=wait_for_context)
    caller.start()
    assert not executor.close(drain=drain, timeout=0)
    caller.join(WAIT_S)
    assert len(refused) == 1
    go.set()
    assert executor.close(drain=drain, timeout=WAIT_S)
    assert sorted(ends.payloads) == [0, 1]
    assert ran == ([0, 1] if drain else [])
    kind = type(None) if drain else Closed
    assert [type(error) for _, error in ends.all] == [kind, kind]


def test_threads_end_with_the_executor():
    before = set(threading.enumerate())
    executor = Executor(chain(nothing, nothing, instances=3))
    assert len(set(threading.enumerate()) - before) == 6
    executor.close()
    assert set(threading.enumerate()) <= before


def test_many_callers_share_an_executor():
    executor, ends = Executor(chain(nothing, nothing, instances=2), contexts=3), Ends()

    def call(caller):
        for i in range(25):
            assert executor.submit((caller, i), 1, None, ends)

    callers = [threading.Thread(target=call, args=(c,)) for c in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(WAIT_S)
    assert executor.close(timeout=WAIT_S)
    assert sorted(ends.payloads) == [(c, i) for c in range(8) for i in range(25)]
    assert all(error is None for _, error in ends.all)
