"""Decode the same requests under one mode, and keep what the tables need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.paper.matchers import Matching, on_host
from benchmarks.paper.seeded import SeededModel, entries_of
from grace.decode import BeamPlan, beam_search
from grace.index import Index
from grace.index.rules import CompiledTargeting
from grace.index.verdict import Verdict


@dataclass(frozen=True)
class Workload:
    """What all modes share.

    Attributes:
        index: the catalogue.
        requests: as retrieval takes them.
        compiled: the same, looked up in the index.
        batch: B, requests decoded together; the last batch may be smaller.
        plan: widths of the search.
        device: where logits and verdicts are made.
    """

    index: Index
    requests: Sequence[dict]
    compiled: Sequence[CompiledTargeting]
    batch: int
    plan: BeamPlan
    device: str

    @property
    def batches(self) -> list[slice]:
        """Which requests each batch holds."""
        starts = range(0, len(self.requests), self.batch)
        return [slice(first, min(first + self.batch, len(self.requests))) for first in starts]


@dataclass(frozen=True)
class Searched:
    """One mode's searches, a row per request.

    Attributes:
        leaves: int64 [R, K], SIDs by falling score; -1 where there are fewer.
        live: int64 [R, L], beams that enter each step.
        wasted: int64 [R, L], those of them with no eligible ad below.
        entered: per batch and step int32 [B, M_t], the nodes entered; -1 for dead beams.
    """

    leaves: np.ndarray
    live: np.ndarray
    wasted: np.ndarray
    entered: list[list[Tensor]]


def search(workload: Workload, model: SeededModel, mode: Matching, exact: Matching) -> Searched:
    """Search for every request; on the first batch, check that the mode refuses no eligible child.

    Args:
        workload: requests and plan.
        model: the logits.
        mode: what is measured.
        exact: says which nodes have an eligible ad below; may be `mode` itself.
    """
    trie = workload.index.trie
    leaves, live, wasted, entered = [], [], [], []
    for number, part in enumerate(workload.batches):
        compiled, requests = workload.compiled[part], workload.requests[part]
        words = exact.start(compiled).words
        verdict = mode.start(compiled)
        beams = beam_search(
            model, model.start(requests), trie, on_host(verdict), workload.plan, len(requests)
        )
        leaves.append(torch.where(beams.nodes < 0, -1, beams.nodes - trie.first_leaf).numpy())
        live.append(_per_request(beams.entered, lambda nodes: nodes >= 0))
        wasted.append(
            _per_request(beams.entered, lambda nodes, w=words: (nodes >= 0) & ~_bits(w, nodes))
        )
        entered.append([nodes.int() for nodes in beams.entered])
        if number == 0 and verdict is not None and verdict.children is not None:
            for nodes in beams.entered:
                check_no_false_no(workload, verdict, words, nodes)
    stacked = (np.concatenate(parts) for parts in (leaves, live, wasted))
    return Searched(*stacked, entered)


def _per_request(entered: Sequence[Tensor], test: object) -> np.ndarray:
    """int64 [B, L], by step the beams that pass a test."""
    return np.stack([test(nodes).sum(1).numpy() for nodes in entered], 1)


def _bits(words: Tensor, nodes: Tensor) -> Tensor:
    """bool [B, M] on the CPU: bit b of the word of request b's nodes."""
    request = torch.arange(len(nodes))[:, None]
    return words[nodes.clamp_min(0).to(words.device)].cpu() >> request & 1 != 0


def check_no_false_no(workload: Workload, verdict: Verdict, words: Tensor, nodes: Tensor) -> None:
    """Assert that every child with an eligible ad below may be entered.

    Args:
        workload: whose trie.
        verdict: of a conservative matcher.
        words: int32 [S], the exact verdict for the same requests.
        nodes: int64 [B, M], on the CPU.
    """
    allowed = verdict.children(nodes.to(words.device)).cpu()
    rows, entries = entries_of(workload.index.trie.child_offsets, nodes.reshape(-1))
    first = workload.index.trie.child_offsets[nodes.clamp_min(0).reshape(-1)].long()[rows]
    child = entries - first
    allowed = allowed.reshape(nodes.numel(), -1)
    entered = allowed[rows, child // 32] >> child % 32 & 1 != 0
    request = rows // nodes.shape[1]
    eligible = words[(entries + 1).to(words.device)].cpu() >> request & 1 != 0
    refused = int((eligible & ~entered).sum())
    assert refused == 0, f"{verdict.how} refuses {refused:,} children with an eligible ad below"
