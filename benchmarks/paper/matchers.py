"""The matchers of a run, on the CPU or on a GPU, and what a batch of matching work is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from grace.index import Index
from grace.index.batch import Batch
from grace.index.exact import ExactMatcher
from grace.index.rules import CompiledTargeting
from grace.index.unions import UNIONS
from grace.index.verdict import Verdict

Requests = Sequence[CompiledTargeting]


class Matching:
    """One mode on one device.

    Args:
        index: the catalogue.
        name: the mode, not `off`.
        device: where its verdicts are.
    """

    def __init__(self, index: Index, name: str, device: str):
        self.name, self.device = name, torch.device(device)
        self.on_gpu = self.device.type == "cuda"
        data = index.data
        self._signatures, self._states = data.ad_signatures, index.ad_state
        self._matcher = None
        if name == "exact":
            made_of = (data.tables, data.trie, data.sid_ad_offsets, self._signatures, self._states)
            if self.on_gpu:
                from grace.index.exact_device import ExactOnDevice

                self._matcher = ExactOnDevice(*made_of, self.device)
            else:
                self._matcher = ExactMatcher(*made_of)
        elif name in UNIONS:
            matcher = index.unions(name)
            self._matcher = matcher.to(self.device) if self.on_gpu else matcher

    def start(self, requests: Requests) -> Verdict | None:
        """Return the verdict, its tensors on the device; its words hold until the next call."""
        if self._matcher is None:
            return None
        verdict = self._matcher.start(requests)
        if self.name == "exact" and self.on_gpu:
            torch.cuda.current_stream().wait_event(self._matcher.ready)
        return verdict

    def ad_words(self, requests: Requests, positions: Tensor) -> Tensor:
        """Return int32 [n], of `exact`: bit b set where request b may see the ad at a position."""
        assert self.name == "exact"
        if self.on_gpu:
            self.start(requests)
            words = self._matcher.signature_words.cpu()
        else:
            batch = Batch.of(requests, len(self._matcher.tables.rules))
            words = self._matcher.signature_words(batch)
        words = words[self._signatures[positions].long()]
        return torch.where(self._states[positions] == 0, words, 0)

    def work(self, requests: Requests, entered: Sequence[Tensor]) -> Callable[[], object]:
        """Return a call that does the matching of one batch once and nothing else.

        For `exact` that is every node's word, on a GPU the matcher's own graph. For the others it
        is the test of the children of the nodes that the steps entered, int64 [B, M_t]: on a GPU
        the kernels alone, with the requests' masks and the beams there before; on the CPU all that
        decoding calls.
        """
        if self._matcher is None or not self.on_gpu:
            return lambda: self._on_cpu(requests, entered)
        if self.name == "exact":
            self.start(requests)  # stages the batch
            torch.cuda.synchronize()
            return self._matcher._graph.replay
        return self._kernel_calls(requests, entered)

    def _on_cpu(self, requests: Requests, entered: Sequence[Tensor]) -> None:
        verdict = self.start(requests)
        if verdict is not None and verdict.children is not None:
            for nodes in entered:
                verdict.children(nodes)

    def _kernel_calls(self, requests: Requests, entered: Sequence[Tensor]) -> Callable[[], object]:
        from grace.kernels.match_children.kernel import match_triton

        matcher = self._matcher
        masks = matcher.masks(requests).to(self.device)
        offsets = matcher.child_offsets
        calls = []
        for nodes in (nodes.to(self.device) for nodes in entered):
            start = nodes.clamp_min(0)
            most = torch.where(nodes < 0, 0, offsets[start + 1] - offsets[start]).max()
            calls.append((nodes, offsets, matcher.rows, masks, -(-int(most) // 32)))
        return lambda: [match_triton(*call) for call in calls]


def on_host(verdict: Verdict | None) -> Verdict | None:
    """The verdict as a search on the CPU reads it."""
    if verdict is None or verdict.root.device.type == "cpu":
        return verdict
    device, children = verdict.root.device, verdict.children
    return Verdict(
        root=verdict.root.cpu(),
        words=None if verdict.words is None else verdict.words.cpu(),
        children=None if children is None else lambda nodes: children(nodes.to(device)).cpu(),
        how=verdict.how,
    )
