"""A static graph of nodes on CPU and GPU, run for batch after batch; batching and admission."""

from grace.runtime.batcher import Batcher, Cancelled, Closed, Expired, Full
from grace.runtime.executor import Executor
from grace.runtime.frame import Frame
from grace.runtime.graph import Graph, Node, TensorSpec
from grace.runtime.timeline import Timeline

__all__ = [
    "Batcher", "Cancelled", "Closed", "Executor", "Expired", "Frame", "Full", "Graph", "Node",
    "TensorSpec", "Timeline",
]  # fmt: skip
