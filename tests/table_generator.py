"""A generator whose logits are a hash of (features, prefix), for Grace and the oracle alike.

A request's features: `{"seed": int, "style": str, "bad": "nan" | "inf" | None, "bad_step": int}`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

STYLES = ("smooth", "coarse", "constant", "holes")
_MIX = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(keys: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser, on uint64 arrays."""
    keys = (keys ^ (keys >> np.uint64(30))) * _MIX[0]
    keys = (keys ^ (keys >> np.uint64(27))) * _MIX[1]
    return keys ^ (keys >> np.uint64(31))


def _unit(keys: np.ndarray) -> np.ndarray:
    """Top 24 bits as float32 in [0, 1), exactly."""
    return (keys >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)


@dataclass
class _State:
    features: list[dict]
    keys: np.ndarray  # uint64 [B, M]: one hash per prefix
    step: int = 0


class TableGenerator:
    """The two-method protocol over a table that is never stored.

    Styles: `smooth` random reals, `coarse` three values (many ties), `constant` (all ties), `holes`
    -inf for a third of the tokens and for whole rows now and then, `dead` -inf at the first step.
    `bad` puts a NaN or +inf into about every other row of step `bad_step`.

    Attributes:
        calls: what `step` was given, one (batch size, beams) pair a call.
        violations: breaches of the protocol by the caller, in words.
    """

    def __init__(self, vocab: int):
        self.vocab = vocab
        self.calls: list[tuple[int, int]] = []
        self.violations: list[str] = []
        self._tokens = (np.arange(vocab, dtype=np.uint64) + np.uint64(1)) * _GOLDEN

    def start(self, features: list[dict]) -> _State:
        return _State(features, np.stack([self._root(f) for f in features]))

    def step(self, state: _State, parents, tokens) -> torch.Tensor:
        if (parents is None) != (state.step == 0) or (tokens is None) != (state.step == 0):
            self.violations.append(f"step {state.step}: parents {parents}, tokens {tokens}")
        if parents is not None:
            state.keys = self._advance(state.keys, parents, tokens, state.step)
        self.calls.append(state.keys.shape)
        rows = [
            self._rows(f, keys, state.step)
            for f, keys in zip(state.features, state.keys, strict=True)
        ]
        state.step += 1
        return torch.from_numpy(np.stack(rows))

    def logits(self, features: dict, prefix: tuple[int, ...]) -> np.ndarray:
        """The row `[V]` for one prefix, for the oracle."""
        keys = self._root(features)
        for token in prefix:
            keys = self._next(keys, np.array([token], dtype=np.uint64))
        return self._rows(features, keys, len(prefix))[0]

    def _advance(self, keys, parents, tokens, step: int) -> np.ndarray:
        for name, given, bound in (
            ("parents", parents, keys.shape[1]),
            ("tokens", tokens, self.vocab),
        ):
            if given.dtype != torch.int64 or given.shape != tokens.shape or given.dim() != 2:
                self.violations.append(f"step {step}: {name} {given.dtype} {tuple(given.shape)}")
            if given.shape[0] != len(keys) or given.min() < 0 or given.max() >= bound:
                self.violations.append(f"step {step}: {name} out of bounds {bound}")
        parents, tokens = parents.numpy(), tokens.numpy()
        return self._next(np.take_along_axis(keys, parents, axis=1), tokens.astype(np.uint64))

    @staticmethod
    def _root(features: dict) -> np.ndarray:
        return _mix(np.array([features.get("seed", 0)], dtype=np.uint64) + _GOLDEN)

    @staticmethod
    def _next(keys: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return _mix(keys * np.uint64(3) + tokens + np.uint64(1))

    def _rows(self, features: dict, keys: np.ndarray, step: int) -> np.ndarray:
        """Logits float32 [M, V] of the prefixes with these keys [M]."""
        unit = _unit(_mix(keys[:, None] + self._tokens))
        style = features.get("style", "smooth")
        if style == "coarse":
            logits = np.floor(unit * np.float32(3))
        elif style == "constant":
            logits = np.full_like(unit, 1.5)
        else:
            logits = (unit - np.float32(0.5)) * np.float32(8)
        if style == "holes":
            logits[_unit(_mix(keys[:, None] ^ self._tokens)) < 1 / 3] = -np.inf
            logits[_unit(_mix(keys + np.uint64(7))) < 1 / 8] = -np.inf
        if style == "dead" and step == 0:
            logits[:] = -np.inf
        if features.get("bad") and features.get("bad_step", 0) == step:
            rows = np.flatnonzero(_mix(keys + np.uint64(11)) % np.uint64(2) == 0)
            columns = (_mix(keys + np.uint64(13)) % np.uint64(self.vocab)).astype(np.int64)
            logits[rows, columns[rows]] = np.nan if features["bad"] == "nan" else np.inf
        return logits.astype(np.float32)
