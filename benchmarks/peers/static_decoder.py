"""A whole search on torch alone, constrained as STATIC (Su et al., 2026) describes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from benchmarks.kernels.select_variants import Static
from benchmarks.peers.found import Found
from benchmarks.peers.layers import layer_step, shared_cross_attend, short_attention
from benchmarks.static_trie import build_static_trie
from grace.model.decoder import Decoder, KeyValue

Search = Callable[[Tensor], Found]


def static_tables(
    sids: np.ndarray, most_children: Sequence[int], vocab_size: int, device: str
) -> Static:
    """STATIC's arrays of sorted SIDs on the device."""
    arrays = vars(build_static_trie(sids, vocab_size))
    arrays = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    return Static(arrays, vocab_size, tuple(most_children))


class StaticDecoder:
    """Beam search with a dense cache that every step re-orders by a gather; shapes are static.

    It has what an afternoon buys: one context for all beams of a request, one beam at the first
    step, self-attention written for few keys.

    Args:
        decoder: the weights, on the device.
        tables: the trie.
        widths: beams entering each step, and the SIDs kept.
    """

    def __init__(self, decoder: Decoder, tables: Static, widths: Sequence[int]):
        self._decoder, self._tables, self._widths = decoder, tables, tuple(widths)

    def __call__(self, context: Tensor) -> Found:
        """Search for the contexts [B, T, model_dim]."""
        batch, device = len(context), context.device
        context_keys = self._decoder.project_context(context)
        cache: list[KeyValue | None] = [None] * len(self._decoder.layers)
        tokens = None
        history = torch.empty(batch, 1, 0, dtype=torch.int64, device=device)
        state = torch.zeros(batch, 1, dtype=torch.int64, device=device)
        scores = torch.zeros(batch, 1, device=device)
        for t, width in enumerate(self._widths[1:]):
            logits = self._step(context_keys, cache, tokens, t).unflatten(0, (batch, -1))
            log_probs = torch.log_softmax(logits.float(), -1)
            allowed, token, following = self._tables.extend(t, log_probs, state)
            total = (scores[..., None] + allowed).flatten(1)
            scores, chosen = torch.topk(total, width)
            parents = chosen // allowed.shape[-1]
            tokens = token.flatten(1).gather(1, chosen).long()
            state = following.flatten(1).gather(1, chosen).long()
            first_row = torch.arange(batch, device=device)[:, None] * self._widths[t]
            rows = (first_row + parents).flatten()
            if t + 2 < len(self._widths):
                cache = [tuple(x.index_select(0, rows) for x in pair) for pair in cache]
            history = history.gather(1, parents[..., None].expand(-1, -1, t))
            history = torch.cat([history, tokens[..., None]], 2)
        return Found(history, scores)

    def _step(
        self,
        context: list[KeyValue],
        cache: list[KeyValue | None],
        tokens: Tensor | None,
        t: int,
    ) -> Tensor:
        """Logits [B * M, V]; extends the cache, whose keys are [B * M, H, t, D] a layer."""
        decoder = self._decoder
        if tokens is None:
            x = decoder.start.expand(len(context[0][0]), 1, -1)
        else:
            x = decoder.tokens[t - 1](tokens.flatten())[:, None]
        x = x + decoder.positions[t]
        for i, layer in enumerate(decoder.layers):

            def extend(key: Tensor, value: Tensor, i: int = i) -> KeyValue:
                if cache[i] is not None:
                    key = torch.cat([cache[i][0], key], 2)
                    value = torch.cat([cache[i][1], value], 2)
                cache[i] = key, value
                return key, value

            def cross_attend(query: Tensor, i: int = i) -> Tensor:
                return shared_cross_attend(query, context[i])

            x = layer_step(layer, x, extend, short_attention, cross_attend)
        return decoder.heads[t](decoder.output_norm(x[:, 0]))


class Replayed:
    """A search captured in a CUDA graph; a call copies its context in and replays it."""

    def __init__(self, search: Search, context: Tensor):
        self._context = context.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # libraries allocate on their first call
                search(self._context)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._found = search(self._context)

    def __call__(self, context: Tensor) -> Found:
        """Search; the result is overwritten by the next call."""
        self._context.copy_(context)
        self._graph.replay()
        return self._found


def compiled(search: Search) -> Search:
    """The search as one graph of `torch.compile`, its operations fused, in a CUDA graph."""
    torch.compiler.reset()  # those compiled before count towards its limit of variants

    def tensors(context: Tensor) -> tuple[Tensor, Tensor]:
        found = search(context)
        return found.sids, found.scores

    run = torch.compile(tensors, mode="reduce-overhead", dynamic=False, fullgraph=True)

    def call(context: Tensor) -> Found:
        torch.compiler.cudagraph_mark_step_begin()
        return Found(*run(context))

    return call
