"""Beam search among all tokens, by `torch.topk`: the loop of the levels that know no trie."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.decode.shape import Shape
from benchmarks.kernels import timing
from benchmarks.peers.found import Found
from grace.model.step_decoder import StepDecoder

Step = Callable[[Tensor | None, Tensor | None, int], Tensor]


def free_steps(step: Step, shape: Shape, device: torch.device) -> tuple[Tensor, Tensor]:
    """Run all steps; nothing waits for the device.

    Args:
        step: logits `[B, M, V]` of (parents, tokens, t).
        shape: its plan is kept to, with dead beams where there are fewer candidates.
        device: of the logits.

    Returns:
        SIDs int64 `[B, K, L]` and scores float32 `[B, K]`, best first.
    """
    vocab, sids, parents, tokens = shape.config.vocab_size, None, None, None
    scores = torch.zeros(shape.batch, 1, device=device)
    for t, width in enumerate(shape.widths[1:]):
        log_probs = step(parents, tokens, t).float().log_softmax(-1)
        candidates = (log_probs + scores[..., None]).flatten(1)
        found = min(width, candidates.shape[1])
        scores, chosen = candidates.topk(found)
        scores = F.pad(scores, (0, width - found), value=-torch.inf)
        chosen = F.pad(chosen, (0, width - found))
        parents, tokens = chosen // vocab, chosen % vocab
        if sids is None:
            sids = tokens[..., None]
        else:
            before = sids.gather(1, parents[..., None].expand(-1, -1, t))
            sids = torch.cat([before, tokens[..., None]], 2)
    return sids, scores


class FreeSearch:
    """A level's search for one batch: one CUDA graph; on a CPU it just runs.

    Args:
        decoder: the level.
        shape: plan and batch.
        context: `[B, T, model_dim]`, loaded here.
    """

    def __init__(self, decoder: StepDecoder, shape: Shape, context: Tensor):
        self._decoder, self._shape = decoder, shape
        self._memory = decoder.memory(shape.batch, shape.plan.widths, context.shape[1])
        decoder.load(self._memory, context)
        self._graph = None
        if context.is_cuda:
            self.stream = torch.cuda.Stream()
            self._graph = timing.capture(self._enqueue, self.stream)

    def run(self) -> None:
        """Enqueue the search on the current stream."""
        if self._graph is None:
            self._enqueue()
        else:
            self._graph.replay()

    def find(self) -> Found:
        """Search, and wait for what is found."""
        self.run()
        return Found(*(tensor.cpu() for tensor in self._found))

    def logits(self, steps: list[tuple[Tensor | None, Tensor | None]]) -> list[Tensor]:
        """The logits after given (parents, tokens) of each step."""
        state = self._decoder.start(self._memory)
        return [self._decoder.step(state, *rows, t) for t, rows in enumerate(steps)]

    def _enqueue(self) -> None:
        state = self._decoder.start(self._memory)

        def step(parents: Tensor | None, tokens: Tensor | None, t: int) -> Tensor:
            return self._decoder.step(state, parents, tokens, t)

        self._found = free_steps(step, self._shape, self._decoder.device)
