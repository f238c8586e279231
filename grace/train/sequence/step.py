"""One optimiser step: static shapes and no wait for the device, so that a graph can hold it."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from torch.func import functional_call

from grace.errors import ConfigError
from grace.train.sequence.config import SequenceConfig
from grace.train.sequence.processes import Processes
from grace.train.sequence.weights import Weights
from grace.train.sequence.windows import Batch, DeviceWindows, thinned

WARMUP_STEPS = 3
"""Before a capture, so that libraries have made their plans and workspaces."""


class Step:
    """Runs steps of one run.

    Args:
        model: has `loss(batch, pieces, smoothing) -> (sum, count)`, run in bfloat16 under autocast.
            One that says `casts_weights` is called as `model(batch, pieces, smoothing)` instead,
            its weights in the precision of the run.
        weights: of the model.
        windows: the training examples.
        rooms: the padded length of each piece of a step.
        config: the settings.
        processes: share each step.
    """

    def __init__(
        self,
        model: nn.Module,
        weights: Weights,
        windows: DeviceWindows,
        rooms: list[int],
        config: SequenceConfig,
        processes: Processes,
    ):
        self._weights, self._windows, self._rooms = weights, windows, rooms
        self._config, self._processes = config, processes
        self._graph: torch.cuda.CUDAGraph | None = None
        self._rows: list[Tensor] = []
        self._shares = self._stats = torch.empty(0)
        on_gpu = weights.values.is_cuda
        can_capture = on_gpu and processes.count == 1
        self._captures = "graph" in config.mode or (config.mode == "auto" and can_capture)
        if self._captures and not can_capture:
            raise ConfigError(f"mode {config.mode!r} is for one process on a GPU; take 'eager'")
        half = config.precision == "bfloat16" or (config.precision == "auto" and on_gpu)
        self._dtype = torch.bfloat16 if half else torch.float32
        self._autocast = torch.autocast(weights.values.device.type, torch.bfloat16, enabled=half)
        self._casts = getattr(model, "casts_weights", False)
        self._call = functools.partial(functional_call, model) if self._casts else model.loss
        if "compile" in config.mode:
            # Shapes never change; compiled once a run.
            self._call = torch.compile(self._call, dynamic=False)

    def __call__(self, rows: list[Tensor], shares: Tensor) -> Tensor:
        """Run a step.

        Args:
            rows: per piece `[R]` int64, example numbers, -1 for none; the same shapes every time.
            shares: float32 `[2]`: of the peak learning rate, and of the average.

        Returns:
            float32 `[2]`, loss and gradient norm; overwritten by the next step.
        """
        if not self._captures:
            return self._run(rows, shares)
        if self._graph is None:
            self._capture(rows, shares)
        for mine, given in zip(self._rows, rows, strict=True):
            mine.copy_(given)
        self._shares.copy_(shares)
        self._graph.replay()
        return self._stats

    def _run(self, rows: list[Tensor], shares: Tensor) -> Tensor:
        weights = self._weights
        weights.gradients.zero_()
        total = torch.zeros(2, dtype=torch.float64, device=shares.device)
        whole = self._windows.batch(torch.cat(rows), max(self._rooms))
        if self._config.drop_history:
            whole = thinned(whole, self._config.drop_history)
        first = 0
        for pieces in self._passes([len(piece) for piece in rows]):
            last = first + sum(rows for rows, _ in pieces)
            batch = whole.part(slice(first, last), max(room for _, room in pieces))
            loss, count = self._loss(batch, pieces)
            loss.backward()
            total += torch.stack([loss.detach().double(), count.double()])
            first = last
        self._processes.sum_(weights.gradients, total)
        weights.gradients.div_(total[1])
        norm = weights.step(shares[0], shares[1])
        return torch.stack([(total[0] / total[1]).float(), norm])

    def _passes(self, sizes: list[int]) -> list[list[tuple[int, int]]]:
        """Return the (rows, room) of the pieces of each forward pass."""
        passes: list[list[tuple[int, int]]] = []
        for piece in zip(sizes, self._rooms, strict=True):
            rows = piece[0] + sum(rows for rows, _ in passes[-1]) if passes else 0
            if passes and rows <= self._config.micro_batch_size:
                passes[-1].append(piece)
            else:
                passes.append([piece])
        return passes

    def _loss(self, batch: Batch, pieces: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        arguments = (batch, pieces, self._config.label_smoothing)
        if self._casts:
            return self._call(self._weights.cast(self._dtype), arguments)
        with self._autocast:
            return self._call(*arguments)

    def _capture(self, rows: list[Tensor], shares: Tensor) -> None:
        """Capture a step; what the steps before it changed is put back."""
        self._rows = [piece.clone() for piece in rows]
        self._shares = shares.clone()
        tensors = self._weights.tensors()
        before = [tensor.clone() for tensor in tensors]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUP_STEPS):
                self._run(self._rows, self._shares)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._stats = self._run(self._rows, self._shares)
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)
