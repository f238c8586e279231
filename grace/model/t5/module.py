"""T5 over SID tokens, as TIGER has it (Rajput et al., 2023): the module that learns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grace.errors import ConfigError
from grace.kernels.row_attention import HIDDEN, Rows
from grace.model.t5.config import T5Config
from grace.model.t5.layers import (
    Attention,
    CrossAttentionLayer,
    FeedForward,
    FeedForwardLayer,
    RelativeBias,
    RmsNorm,
    SelfAttentionLayer,
)
from grace.model.t5.token_map import TokenMap

MAX_ITEMS = 20


class Block(nn.Module):
    """One layer of a stack: self-attention, in a decoder cross-attention, feed-forward."""

    def __init__(self, config: T5Config, bias: RelativeBias | None, decoder: bool):
        super().__init__()
        cross = [CrossAttentionLayer(config)] if decoder else []
        self.layer = nn.ModuleList(
            [SelfAttentionLayer(config, bias), *cross, FeedForwardLayer(config)]
        )


class Stack(nn.Module):
    """The encoder, or the decoder over whole SIDs.

    The first block holds the relative bias; all blocks use it.
    """

    def __init__(self, config: T5Config, num_layers: int, decoder: bool):
        super().__init__()
        self.decoder = decoder
        self.block = nn.ModuleList(
            Block(config, RelativeBias(config, decoder) if i == 0 else None, decoder)
            for i in range(num_layers)
        )
        self.final_layer_norm = RmsNorm(config)
        self.dropout = nn.Dropout(config.dropout_rate)

    def position_bias(self, length: int) -> Tensor:
        """Return `[H, length, length]`, what lies ahead hidden in a decoder."""
        relative = self.block[0].layer[0].SelfAttention.relative_attention_bias
        places = torch.arange(length, device=relative.weight.device)
        bias = relative(places, places)
        return hidden(bias, places[None, :] > places[:, None]) if self.decoder else bias

    def forward(
        self, x: Tensor, pieces: Sequence[Rows], across: Sequence[Rows] = (), *memory: Tensor
    ) -> Tensor:
        """Transform the embeddings of a stream.

        Args:
            x: `[T, d_model]`, the rows of all pieces one after the other.
            pieces: the rows, and which of their own tokens they see.
            across: for a decoder, the rows, and which tokens of the memory they see.
            memory: for a decoder, `[S, d_model]` and what that is to be weighed by, `[d_model]`.

        Returns:
            `[T, d_model]`, normed; what reads it weighs it by `final_layer_norm.weight`.
        """
        x = self.dropout(x)
        bias = self.position_bias(max(piece.queries for piece in pieces))
        for block in self.block:
            x = block.layer[0](x, pieces, bias)
            if self.decoder:
                x = block.layer[1](x, across, *memory)
            x = block.layer[-1](x)
        return self.dropout(self.final_layer_norm(x))


class T5(nn.Module):
    """An encoder-decoder from tokens to logits, with the weights' names of transformers.

    New weights are drawn as transformers draws them, from torch's default generator.

    Args:
        config: the sizes.
        tokens: which token is which code; None for a model that is only looked at as a T5.
        max_items: of a history, that an input has room for; the newest are kept.

    Raises:
        ConfigError: if the vocabulary is smaller than `tokens` needs.
    """

    def __init__(
        self, config: T5Config, tokens: TokenMap | None = None, max_items: int = MAX_ITEMS
    ):
        super().__init__()
        if tokens is not None and config.vocab_size < tokens.vocab_size:
            raise ConfigError(
                f"vocab_size must be at least {tokens.vocab_size} for these tokens, got "
                f"{config.vocab_size}"
            )
        if type(max_items) is not int or max_items < 1:
            raise ConfigError(f"max_items must be an integer of at least 1, got {max_items!r}")
        self.config, self.tokens, self.max_items = config, tokens, max_items
        self.shared = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder = Stack(config, config.num_layers, decoder=False)
        self.decoder = Stack(config, config.num_decoder_layers, decoder=True)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.shared.weight
        self._initialise()

    def forward(self, input_ids: Tensor, mask: Tensor, decoder_input: Tensor) -> Tensor:
        """Score whole SIDs by teacher forcing.

        Args:
            input_ids: int64 `[B, S]`, tokens of the encoder.
            mask: `[B, S]`, bool or 0 and 1, which of them count; at least one in each row.
            decoder_input: int64 `[B, L]`, the start token and all tokens of a SID but the last.

        Returns:
            Logits `[B, L, vocab_size]`.
        """
        return self.score_pieces([(input_ids, mask)], decoder_input)

    def score_pieces(
        self, inputs: Sequence[tuple[Tensor, Tensor]], decoder_input: Tensor
    ) -> Tensor:
        """Score whole SIDs for rows of several lengths.

        Everything but attention to the rows' own tokens runs once for all of them.

        Args:
            inputs: per length, `input_ids` and `mask` as of `forward`.
            decoder_input: int64 `[B, L]`, of all rows in their order.

        Returns:
            Logits `[B, L, vocab_size]`.
        """
        masks = [mask.bool().contiguous() for _, mask in inputs]
        tokens = torch.cat([ids.flatten() for ids, _ in inputs] + [decoder_input.flatten()])
        sources, targets = self.shared(tokens).split(
            [len(tokens) - decoder_input.numel(), decoder_input.numel()]
        )
        context = self.encoder(sources, [Rows(mask.shape[1], mask) for mask in masks])
        rows, length = decoder_input.shape
        x = self.decoder(
            targets, [Rows(length, decoder_input.new_ones(rows, length, dtype=torch.bool))],
            [Rows(length, mask) for mask in masks], context, self.encoder.final_layer_norm.weight,
        )  # fmt: skip
        gain = self.decoder.final_layer_norm.weight
        if self.config.scale_decoder_outputs:
            gain = gain * self.config.d_model**-0.5
        return F.linear(x, self.lm_head.weight * gain).view(rows, length, -1)

    @torch.no_grad()
    def _initialise(self) -> None:
        config = self.config
        narrow, wide = config.d_model**-0.5, (config.num_heads * config.d_kv) ** -0.5
        nn.init.normal_(self.shared.weight)
        if not config.tie_word_embeddings:
            nn.init.normal_(self.lm_head.weight, std=1 if config.scale_decoder_outputs else narrow)
        for module in self.modules():
            if isinstance(module, Attention):
                nn.init.normal_(module.q.weight, std=narrow * config.d_kv**-0.5)
                nn.init.normal_(module.k.weight, std=narrow)
                nn.init.normal_(module.v.weight, std=narrow)
                nn.init.normal_(module.o.weight, std=wide)
            elif isinstance(module, FeedForward):
                for name, layer in module.named_children():
                    if name != "dropout":
                        std = config.d_ff**-0.5 if name == "wo" else narrow
                        nn.init.normal_(layer.weight, std=std)
            elif isinstance(module, RelativeBias):
                nn.init.normal_(module.weight, std=narrow)


def hidden(bias: Tensor, where: Tensor) -> Tensor:
    """Return the bias with `HIDDEN` where a key is hidden."""
    return bias.masked_fill(where, HIDDEN)
