"""Grace's own search from contexts: the one place that says what `grace` stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.peers.found import EMPTY, Found
from grace.decode import BeamPlan, Beams, StepSearch, beam_search
from grace.decode.generator import Prefill
from grace.index.trie import Trie
from grace.model import DecodeBuffers, EncoderDecoder
from grace.model.beam_cache import BeamCache
from grace.model.step_decoder import StepDecoder
from grace.retrieve.paths import TABLE_BYTES


class ContextGenerator:
    """Drives a model's decoder from contexts, without its encoder; see `grace.decode.Generator`."""

    def __init__(self, model: EncoderDecoder):
        self._model = model

    def prefill(self, context: Tensor, max_beams: int) -> Prefill:
        context_keys = self._model.decoder.project_context(context)
        cache = BeamCache(self._model.config, max_beams, context_keys[0][0])
        return Prefill(DecodeBuffers(context_keys, cache), [0] * len(context))

    def step(
        self, state: DecodeBuffers, parents: Tensor | None, tokens: Tensor | None, t: int
    ) -> tuple[Tensor, Tensor]:
        device = state.context[0][0].device
        rows = (None if x is None else x.to(device) for x in (parents, tokens))
        return self._model.decode(state, *rows, t)


def grace_beams(
    model: EncoderDecoder, trie: Trie, context: Tensor, widths: Sequence[int], num_sids: int
) -> Beams:
    """Grace's search with the beams of every step."""
    generator = ContextGenerator(model)
    prefill = generator.prefill(context, max(widths))
    plan = BeamPlan(tuple(widths), num_sids)
    return beam_search(generator, prefill, trie, None, plan, len(context))


def captured(
    model: EncoderDecoder, trie: Trie, widths: Sequence[int], num_sids: int, batch: int
) -> Callable[[Tensor], Found]:
    """Grace's search of up to `batch` requests: one CUDA graph, or the same steps on a CPU.

    Args:
        model: the weights; their dtype is the precision.
        trie: the catalogue.
        widths: beams entering each step.
        num_sids: SIDs kept at the end. Slots past the last one are EMPTY.

    Returns:
        What takes contexts `[B, T, model_dim]` on the model's device, and waits for the result.
    """
    weight = model.decoder.start
    precision = str(weight.dtype).removeprefix("torch.")
    decoder = StepDecoder(model.decoder, model.config, weight.device, precision)
    plan = BeamPlan(tuple(widths), num_sids)
    num_context = model.config.num_context_tokens
    table_bytes = TABLE_BYTES if weight.is_cuda else 0  # as a retriever has them
    search = StepSearch(
        decoder, trie.to(weight.device), None, plan, batch, num_context,
        table_bytes=table_bytes, buckets=(batch,),
    )  # fmt: skip

    def run(context: Tensor) -> Found:
        beams = search.run(context)
        dead = beams.scores == -torch.inf
        return Found(beams.tokens.masked_fill(dead[..., None], EMPTY), beams.scores)

    return run
