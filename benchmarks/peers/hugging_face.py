"""Hugging Face `generate` over Grace's decoder weights, with a callback or a vectorised mask.

`generate` sees an encoder-decoder of one vocabulary: tokens of all levels are 0..V-1, and the
length of its cache tells the model which level's embeddings and head to use. The encoder's outputs
are given. Both models keep their cache in transformers' own classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    EncoderDecoderCache,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from benchmarks.peers.found import Found
from benchmarks.peers.layers import (
    layer_step,
    materialised_cross_attend,
    shared_cross_attend,
    short_attention,
)
from grace.index.trie import Trie
from grace.model import ModelConfig
from grace.model.decoder import Decoder, KeyValue


class StockModel(PreTrainedModel, GenerationMixin):
    """Laid out as transformers' T5 and BART: each beam has its own copy of the context's keys.

    Attention is torch's `scaled_dot_product_attention`.
    """

    config_class = PreTrainedConfig
    main_input_name = "input_ids"

    self_attend = staticmethod(F.scaled_dot_product_attention)
    cross_attend = staticmethod(materialised_cross_attend)

    def __init__(self, decoder: Decoder, config: ModelConfig):
        super().__init__(
            PreTrainedConfig(
                is_encoder_decoder=True,
                vocab_size=config.vocab_size,
                num_hidden_layers=config.decoder_layers,
                num_levels=config.num_levels,
            )
        )
        self.sid_decoder = decoder

    def get_encoder(self) -> StockModel:
        return self  # asked for, but not called: `encoder_outputs` are given

    def forward(
        self,
        input_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        cache: EncoderDecoderCache | None = None,
        **_: object,
    ) -> Seq2SeqLMOutput:
        """Logits [B * M, 1, V] of the next token; the cache's name depends on the release."""
        state = past_key_values if cache is None else cache
        decoder, t = self.sid_decoder, state.get_seq_length()
        if t == 0:
            x = decoder.start.expand(len(decoder_input_ids), 1, -1)
        else:
            x = decoder.tokens[t - 1](decoder_input_ids[:, -1:])
        x = x + decoder.positions[t]
        for i, layer in enumerate(decoder.layers):
            context = self._context(state, i, encoder_outputs[0])
            x = layer_step(
                layer,
                x,
                lambda key, value, i=i: state.self_attention_cache.update(key, value, i),
                self.self_attend,
                lambda query, context=context: self.cross_attend(query, context),
            )
        return Seq2SeqLMOutput(logits=decoder.heads[t](decoder.output_norm(x)))

    def _context(self, state: EncoderDecoderCache, i: int, hidden: Tensor) -> KeyValue:
        """The layer's cross-attention keys and values, computed at the first step."""
        if not state.is_updated.get(i):
            state.is_updated[i] = True
            layer = self.sid_decoder.layers[i]
            pair = layer.cross_attention.project_key_value(hidden)
            return state.cross_attention_cache.update(*pair, i)
        layer = state.cross_attention_cache.layers[i]
        return layer.keys, layer.values


class TunedModel(StockModel):
    """What can be had by overriding: one context for all beams of a request, short self-attention.

    So nothing of the context is repeated, projected or re-ordered per beam.
    """

    self_attend = staticmethod(short_attention)
    cross_attend = staticmethod(shared_cross_attend)

    def _expand_inputs_for_generation(
        self,
        expand_size: int = 1,
        is_encoder_decoder: bool = True,
        input_ids: Tensor | None = None,
        **kwargs: object,
    ) -> tuple[Tensor, dict]:
        return input_ids.repeat_interleave(expand_size, 0), kwargs

    def _reorder_cache(self, cache: EncoderDecoderCache, beams: Tensor) -> EncoderDecoderCache:
        cache.self_attention_cache.reorder_cache(beams)
        return cache


class TrieMask(LogitsProcessor):
    """The trie as a mask, all rows at once: prefixes are walked on the device at every step."""

    def __init__(self, trie: Trie, most_children: Sequence[int], vocab_size: int, device: str):
        counts = trie.child_offsets.diff().long()
        parents = torch.repeat_interleave(torch.arange(len(counts)), counts)
        self._keys = (parents * vocab_size + trie.child_tokens).to(device)  # ascending
        self._offsets = trie.child_offsets.long().to(device)
        self._tokens = trie.child_tokens.long().to(device)
        self._most = tuple(most_children)
        self._vocab_size = vocab_size

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Set what the trie does not have to -inf; all prefixes must be in it."""
        node = torch.zeros_like(input_ids[:, 0])
        for t in range(1, input_ids.shape[1]):
            node = torch.searchsorted(self._keys, node * self._vocab_size + input_ids[:, t]) + 1
        first, last = self._offsets[node], self._offsets[node + 1]
        place = torch.arange(self._most[input_ids.shape[1] - 1], device=node.device)
        entry = first[:, None] + place
        token = self._tokens[entry.clamp_max(len(self._tokens) - 1)]
        # Places past the last child go to an extra column, which is cut off again.
        target = token.where(entry < last[:, None], self._vocab_size)
        masked = scores.new_full((len(scores), self._vocab_size + 1), -torch.inf)
        return masked.scatter_(1, target, scores.gather(1, token))[:, :-1]


def prefix_callback(trie: Trie, device: str) -> Callable[[int, Tensor], Tensor]:
    """A `prefix_allowed_tokens_fn` over a dict from prefix to its place in an array on the device.

    It returns a slice of that array, which `generate` takes like a list but need not upload.
    """
    offsets, sids = trie.child_offsets.tolist(), trie.sids
    bounds: dict[tuple[int, ...], tuple[int, int]] = {}
    for level, first_node in enumerate(trie.level_offsets[:-2].tolist()):
        new = (sids[1:, :level] != sids[:-1, :level]).any(1)
        prefixes = [sids[0, :level].tolist(), *sids[1:, :level][new].tolist()]
        for node, prefix in enumerate(prefixes, first_node):
            bounds[tuple(prefix)] = offsets[node], offsets[node + 1]
    tokens = trie.child_tokens.long().to(device)

    def allowed(_: int, ids: Tensor) -> Tensor:
        first, last = bounds[tuple(ids.tolist()[1:])]  # the start token is no part of the prefix
        return tokens[first:last]

    return allowed


def generate(model: StockModel, context: Tensor, beams: int, num_sids: int, **constraint) -> Found:
    """Search by `generate`: scores are sums of log-softmax over all V tokens.

    Args:
        model: of this module.
        context: [B, T, model_dim].
        beams: M, at every step.
        num_sids: K, at most M.
        constraint: `prefix_allowed_tokens_fn` or `logits_processor`.
    """
    settings = GenerationConfig(
        num_beams=beams,
        num_return_sequences=num_sids,
        max_new_tokens=model.config.num_levels,
        do_sample=False,
        length_penalty=0.0,
        early_stopping=False,
        decoder_start_token_id=0,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,  # without it the sequences' scores are not returned
    )
    out = model.generate(
        encoder_outputs=BaseModelOutput(last_hidden_state=context),
        generation_config=settings,
        **constraint,
    )
    sids = out.sequences[:, 1:].unflatten(0, (len(context), num_sids))
    return Found(sids, out.sequences_scores.unflatten(0, (len(context), num_sids)))
