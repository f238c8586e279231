"""A search as it went: the beams of every level, and the score of every token after each beam."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grace.decode import Beams, Generator
from grace.decode.generator import Prefill
from grace.index.trie import Trie
from grace.index.verdict import Verdict


class Recorder:
    """A generator for one request that remembers its steps.

    Attributes:
        tokens: per step after the first (parents, tokens), int64 `[M_t]`, of the beams entering it.
        scores: per step float32 `[M_t, V]`, log-probability of each token after each beam.
    """

    def __init__(self, generator: Generator):
        self._generator = generator
        self.tokens: list[tuple[np.ndarray, np.ndarray]] = []
        self.scores: list[np.ndarray] = []

    def check(self, features: dict) -> None:
        """See `Generator`."""
        self._generator.check(features)

    def start(self, features: Sequence[dict]) -> Prefill:
        """See `Generator`."""
        return self._generator.start(features)

    def step(
        self, state: object, parents: Tensor | None, tokens: Tensor | None, t: int
    ) -> tuple[Tensor, Tensor]:
        """See `Generator`."""
        columns, logsumexp = self._generator.step(state, parents, tokens, t)
        if parents is not None:
            self.tokens.append((parents[0].cpu().numpy().copy(), tokens[0].cpu().numpy().copy()))
        normaliser = logsumexp[0].double().cpu()[:, None]
        # As constrained_select and free_select add it up: rounded to float32 once.
        step = (columns[0].cpu().double() - normaliser).float()
        self.scores.append(step.masked_fill(~torch.isfinite(normaliser), -torch.inf).numpy())
        return columns, logsumexp


@dataclass(frozen=True)
class Level:
    """The beams that enter one step, or the SIDs at the end.

    Attributes:
        prefixes: int64 `[M, t]`.
        nodes: int64 `[M]`, -1 outside the trie.
        scores: float32 `[M]`, -inf for a dead beam.
    """

    prefixes: np.ndarray
    nodes: np.ndarray
    scores: np.ndarray

    def prefix(self, row: int, *more: int) -> tuple[int, ...]:
        """Return the tokens of one beam, and `more` after them."""
        return (*self.prefixes[row].tolist(), *more)

    def alive(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield the rows of live beams and their prefixes."""
        for row in np.flatnonzero(self.scores > -np.inf).tolist():
            yield row, self.prefix(row)

    def mask(self, entering: Level, shape: tuple[int, int]) -> np.ndarray:
        """Return bool `[M, V]` over the tokens after `entering`: which of them are these beams."""
        rows = {prefix: row for row, prefix in entering.alive()}
        kept = np.zeros(shape, bool)
        for _, prefix in self.alive():
            kept[rows[prefix[:-1]], prefix[-1]] = True
        return kept


def levels_of(beams: Beams, tokens: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Level]:
    """Return the L + 1 levels of the one request of a search.

    Args:
        tokens: what its `Recorder` saw.
    """
    prefixes = np.empty((1, 0), np.int64)
    levels = []
    for t, (nodes, scores) in enumerate(zip(beams.entered, beams.entered_scores, strict=True)):
        if t > 0:
            parents, own = tokens[t - 1]
            prefixes = np.concatenate([prefixes[parents], own[:, None]], axis=1)
        levels.append(Level(prefixes, nodes[0].numpy(), scores[0].numpy()))
    last = beams.tokens[0].numpy(), beams.nodes[0].numpy(), beams.scores[0].numpy()
    return [*levels, Level(*last)]


@dataclass(frozen=True)
class Tokens:
    """Every token after every beam of one step.

    Attributes:
        scores: float32 `[M, V]`, of the prefix with the token; -inf for none, or a dead beam.
        children: int64 `[M, V]`, its trie node, -1 outside the catalogue.
        allowed: bool `[M, V]`, whether the search may take it: inside the trie it has a node that
            the matcher allows.
    """

    scores: np.ndarray
    children: np.ndarray
    allowed: np.ndarray

    @staticmethod
    def of(
        trie: Trie, entering: Level, steps: np.ndarray, verdict: Verdict | None, inside: bool
    ) -> Tokens:
        """Look up what may follow.

        Args:
            entering: the beams, M of them.
            steps: float32 `[M, V]`, as `Recorder.scores`.
            verdict: of a matcher on this request alone; None allows every node.
            inside: whether the search stays in the trie.
        """
        children = np.full(steps.shape, -1, np.int64)
        allowed = np.full(steps.shape, not inside)
        nodes = torch.from_numpy(entering.nodes)[None]
        words, masks = (None, None) if verdict is None else verdict.masks(nodes)
        offsets, tokens = trie.child_offsets.numpy(), trie.child_tokens.numpy()
        words = None if words is None else words.numpy()
        live = (entering.scores > -np.inf) & (entering.nodes >= 0)
        for row in np.flatnonzero(live).tolist():
            first, last = offsets[entering.nodes[row]], offsets[entering.nodes[row] + 1]
            own, entries = tokens[first:last], np.arange(first, last, dtype=np.int64)
            children[row, own] = entries + 1
            if words is not None:
                may = words[entries + 1] & 1
            elif masks is not None:
                place = np.arange(len(own))
                may = masks[0, row].numpy()[place // 32] >> (place % 32) & 1
            else:
                may = np.ones(len(own))
            allowed[row, own] = may != 0
        return Tokens(entering.scores[:, None] + steps, children, allowed)

    def best(self, mask: np.ndarray, most: int) -> list[tuple[int, int]]:
        """Return the (beam, token) of the best branches in a mask, at most `most`."""
        rows, tokens = np.nonzero(mask)
        order = np.argsort(-self.scores[rows, tokens], kind="stable")[:most]
        return list(zip(rows[order].tolist(), tokens[order].tolist(), strict=True))
