"""A graph is checked before anything runs; each fault names the node and the tensor."""

import pytest
import torch
from runtime_cases import nothing, spec

from grace.errors import ConfigError
from grace.runtime import Graph, Node, TensorSpec

X = spec("x")


def node(name="a", reads=("x",), writes=(), **options) -> Node:
    return Node(name, nothing, tuple(reads), tuple(writes), **options)


CASES = {
    "no nodes": (lambda: Graph([], []), "at least one node"),
    "node without a name": (lambda: Graph([X], [node("")]), "node '': a name must be a string"),
    "run": (lambda: Graph([X], [Node("a", None, ("x",))]), "node 'a': run must be callable"),
    "inputs as text": (lambda: Graph([X], [Node("a", nothing, "x")]), "a': inputs must be a tuple"),
    "instances": (lambda: Graph([X], [node(instances=0)]), "'a': instances must be at least 1"),
    "node device": (lambda: Graph([X], [node(device="gpu")]), "'a': device must be .*'gpu'"),
    "no device number": (lambda: Graph([X], [node(device="cuda:")]), "node 'a': device must be"),
    "two nodes": (lambda: Graph([X], [node(), node()]), "two nodes are named 'a'"),
    "two inputs": (lambda: Graph([X, X], [node()]), "two graph inputs are named 'x'"),
    "input twice": (lambda: Graph([X], [node(reads="xx")]), "node 'a' lists an input twice: 'x'"),
    "unread input": (lambda: Graph([X, spec("y")], [node()]), "graph input 'y': no node reads it"),
    "no producer": (
        lambda: Graph([X], [node(reads=("x", "z"))]), "node 'a': nothing writes its input 'z'.*: x",
    ),
    "two producers": (
        lambda: Graph([X], [node("a", writes=[spec("y")]), node("b", writes=[spec("y")])]),
        "node 'b': output 'y' is already written by node 'a'",
    ),
    "writes an input": (
        lambda: Graph([X], [node(writes=[X])]), "node 'a': output 'x' is already a graph input",
    ),
    "reads itself": (
        lambda: Graph([], [node("a", "y", [spec("y")])]),
        "wait for each other: 'a' reads 'y' of 'a'",
    ),
    "circle": (
        lambda: Graph([X], [
            node("before", "x", [spec("s")]),
            node("after", "c"),
            node("a", "sc", [spec("b")]),
            node("b", "b", [spec("c")]),
        ]),
        "wait for each other: '[ab]' reads '[bc]' of '[ab]', '[ab]' reads '[bc]' of '[ab]'$",
    ),
    "dtype": (
        lambda: Graph([], [node(reads="", writes=[TensorSpec("y", "float32", (1,))])]),
        "node 'a': output 'y': dtype must be a torch.dtype, got 'float32'",
    ),
    "input dtype": (
        lambda: Graph([TensorSpec("x", float, (1,))], [node()]), "graph input 'x': dtype must be",
    ),
    "no shape": (lambda: Graph([TensorSpec("x", torch.int64, ())], [node()]), "'x': shape must be"),
    "empty": (lambda: Graph([spec("x", 4, 0)], [node()]), "'x': shape must be .* at least 1, got"),
    "shape as list": (
        lambda: Graph([TensorSpec("x", torch.int64, [4])], [node()]), "'x': shape must be a tuple",
    ),
    "tensor device": (lambda: Graph([spec("x", device="tpu")], [node()]), "'x': device must be"),
    "output elsewhere": (
        lambda: Graph([X], [node(device="cuda", writes=[spec("y")])]),
        "node 'a': output 'y' is on 'cpu', but the node on 'cuda'",
    ),
    "two GPUs": (
        lambda: Graph([X], [node("a", device="cuda:0"), node("b", device="cuda:1")]),
        "one GPU.*node 'a' on 'cuda:0', node 'b' on 'cuda:1'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_graph_is_refused_by_name(case):
    make, message = CASES[case]
    with pytest.raises(ConfigError, match=message):
        make()


def test_nodes_are_sorted_and_readers_known():
    graph = Graph(
        [X],
        [node("last", "yz"), node("mid", "y", [spec("z")]), node("first", "x", [spec("y")])],
    )
    assert [n.name for n in graph.nodes] == ["first", "mid", "last"]
    assert graph.readers == {"x": (0,), "y": (1, 2), "z": (2,)}
    assert graph.producers == {"y": "first", "z": "mid"}
    assert graph.gpu is None


def test_a_graph_with_a_gpu_can_be_checked_where_there_is_none():
    graph = Graph([X], [node(device="cuda:3", writes=[spec("y", device="cuda:3")])])
    assert graph.gpu == "cuda:3"
    assert graph.is_on_gpu("y")
    assert not graph.is_on_gpu("x")
