"""What the search asks of a model, and the adapters that answer it.

A `Generator` is what `beam_search` drives. `CoreGenerator` wraps a tensor-only core (`prefill`,
`decode`); `ProtocolGenerator` wraps a user's own object with `start` and `step`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from grace.errors import ModelError
from grace.kernels.logsumexp import logsumexp


@dataclass(frozen=True)
class Prefill:
    """What a generator keeps of a batch of requests.

    Attributes:
        state: the generator's own; it may be changed by later steps.
        unknown_items: per request, behaviour on items that the index does not know.
    """

    state: Any
    unknown_items: list[int]


class Generator(Protocol):
    """A model over SIDs: one prefill a batch, then one step per token."""

    def check(self, features: dict) -> None:
        """Raise RequestError if one request's features cannot be read."""

    def start(self, features: Sequence[dict]) -> Prefill:
        """Read the features of B requests."""

    def step(
        self, state: Any, parents: Tensor | None, tokens: Tensor | None, t: int
    ) -> tuple[Tensor, Tensor]:
        """Score the next tokens.

        Args:
            state: from `start`.
            parents: int64 [B, M], rows of the previous step; None at step 0, where M is 1.
            tokens: int64 [B, M], the tokens that led here; None at step 0. A dead row carries
                parent 0 and a valid token, and what it gets is ignored.
            t: the step, 0..L-1.

        Returns:
            float32 [B, M, V], logits, and float64 [B, M], their normaliser over the whole
            vocabulary: a token's log-probability is `logit - normaliser`.
        """


class CoreGenerator:
    """Drives a tensor-only core: `prefill(inputs)`, `decode(buffers, parents, tokens, t)`."""

    def __init__(self, model: Any, index: Any, device: str = "cpu"):
        check_sids(model.config, index)
        self._model = model.eval().to(device)
        self._index = index
        self._device = device

    def check(self, features: dict) -> None:
        self._model.features.check(features)

    def start(self, features: Sequence[dict]) -> Prefill:
        inputs, unknown_items = self._model.features.encode(list(features), self._index)
        inputs = {name: tensor.to(self._device) for name, tensor in inputs.items()}
        return Prefill(self._model.prefill(inputs), unknown_items)

    def step(
        self, state: Any, parents: Tensor | None, tokens: Tensor | None, t: int
    ) -> tuple[Tensor, Tensor]:
        parents, tokens = moved(parents, self._device), moved(tokens, self._device)
        return self._model.decode(state, parents, tokens, t)


class ProtocolGenerator:
    """Drives a user's model: `start(features)`, then `step(state, parents, tokens) -> logits`."""

    def __init__(self, model: Any, least_vocab_size: int, device: str = "cpu"):
        self._model = model
        self._least_vocab_size = least_vocab_size
        self._device = device

    def check(self, features: dict) -> None:
        """Features are the model's own business."""

    def start(self, features: Sequence[dict]) -> Prefill:
        return Prefill((len(features), self._model.start(list(features))), [0] * len(features))

    def step(
        self, state: Any, parents: Tensor | None, tokens: Tensor | None, t: int
    ) -> tuple[Tensor, Tensor]:
        batch, own_state = state
        parents, tokens = moved(parents, self._device), moved(tokens, self._device)
        logits = self._model.step(own_state, parents, tokens)
        beams = 1 if parents is None else parents.shape[1]
        if not isinstance(logits, Tensor) or not logits.is_floating_point():
            kind = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
            raise ModelError(f"step must return a tensor of floating point logits, got {kind}")
        if logits.layout != torch.strided or logits.is_meta:
            raise ModelError("step must return a dense tensor that holds its values")
        if logits.ndim != 3 or logits.shape[:2] != (batch, beams):
            raise ModelError(
                f"step {t} must return logits of shape [{batch}, {beams}, V], got "
                f"{list(logits.shape)}"
            )
        check_vocabulary(logits.shape[2], self._least_vocab_size)
        logits = logits.float()
        return logits, logsumexp(logits)


def moved(rows: Tensor | None, device: str | torch.device) -> Tensor | None:
    """Return parents or tokens on a device; None, as they are at step 0, stays None."""
    return None if rows is None else rows.to(device)


def check_sids(config: Any, index: Any) -> None:
    """Raise ModelError if a model does not write the SIDs of an index."""
    if config.num_levels != index.num_levels:
        raise ModelError(
            f"the model writes SIDs of {config.num_levels} tokens, the index holds SIDs "
            f"of {index.num_levels}; train on this index"
        )
    check_vocabulary(config.vocab_size, index.vocab_size)


def check_vocabulary(vocab_size: int, least: int) -> None:
    """Raise ModelError if a model's vocabulary lacks tokens of the catalogue."""
    if vocab_size < least:
        raise ModelError(
            f"the model's vocabulary must have at least {least} tokens (the catalogue's largest "
            f"token is {least - 1}), got {vocab_size}"
        )
