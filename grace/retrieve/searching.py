"""A batch on its way to its beams, and what goes that way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from grace import _native
from grace.decode import Beams
from grace.index.rules import CompiledTargeting
from grace.index.verdict import Verdict


class StageTimes(dict[str, float]):
    """Milliseconds spent in each stage of a batch, by name."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time that the block takes."""
        start = time.perf_counter()
        yield
        self[name] = self.get(name, 0.0) + (time.perf_counter() - start) * 1e3


@dataclass(frozen=True)
class Inputs:
    """What the encoder reads of a batch.

    Attributes:
        tensors: by name, first dimension B; on the CPU when they are made. Empty where the model
            reads features itself.
        unknown_items: int64 `[B]`, behaviour on items that the index does not know.
    """

    tensors: dict[str, Tensor]
    unknown_items: np.ndarray

    def take(self, rows: Sequence[int]) -> Inputs:
        """Return those of some requests."""
        tensors = {name: tensor[list(rows)] for name, tensor in self.tensors.items()}
        return Inputs(tensors, self.unknown_items[list(rows)])


@dataclass(frozen=True)
class Searching:
    """A batch whose search has been launched.

    Attributes:
        wait: returns the SIDs, on the CPU, when they are there; to be called once.
        done: event on the search's device, None where it is over already.
        verdict: of the matcher; None where nothing is asked of requests.
        unknown_items: as in `Inputs`.
        stages: what has been spent on it.
    """

    wait: Callable[[], Beams]
    done: torch.cuda.Event | None
    verdict: Verdict | None
    unknown_items: np.ndarray
    stages: StageTimes


class Path(Protocol):
    """One way to search; any thread may call it.

    Attributes:
        inputs_device: where `launch` wants the tensors of `inputs`: the CPU, or a GPU, where it
            waits for nothing.
    """

    inputs_device: str

    def read_plain(self, features: Sequence[object]) -> list[Any | None]:
        """Return what `read` returns for each; None where only `read` can tell what it is."""

    def read_texts(self, texts: _native.RequestTexts) -> list[Any | None]:
        """Do what `read_plain` does for requests as texts."""

    def read(self, features: dict) -> Any:
        """Return one request's features as `inputs` and `launch` take them.

        Raises:
            RequestError: if they cannot be read.
        """

    def inputs(self, features: Sequence[Any]) -> Inputs:
        """Turn the features of B requests into tensors."""

    def launch(
        self,
        features: Sequence[Any],
        inputs: Inputs,
        targetings: Sequence[CompiledTargeting],
        trace: bool,
    ) -> Searching:
        """Search for a batch of requests; batches are searched in the order of these calls.

        Args:
            features: of `read`.
            inputs: of `inputs`; not to be changed before the search is over.
            targetings: what each request says of itself.
            trace: whether beams tell what entered each step.
        """

    def warm(self) -> None:
        """Do once, before the first batch, what only the first batch would have to wait for."""
