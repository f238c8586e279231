"""T5 over SID tokens, as TIGER has it (Rajput et al., 2023): the module that learns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grace.errors import ConfigError
from grace.model.t5.config import T5Config
from grace.model.t5.layers import (
    Attention,
    CrossAttentionLayer,
    FeedForward,
    FeedForwardLayer,
    Memory,
    Piece,
    RelativeBias,
    RmsNorm,
    SelfAttentionLayer,
    heads,
)
from grace.model.t5.token_map import TokenMap

MAX_ITEMS = 20
TILE = 64
"""Queries, and keys, that a GPU's attention works on at once."""
ALIGNMENT = 8
"""Entries; rows of a bias begin at multiples of it, or the GPU's attention copies them first."""
HIDDEN = -1e30
"""The bias of a hidden key: no score outweighs it, and it stays finite times anything small."""


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
        self, x: Tensor, pieces: Sequence[Piece], memories: Sequence[Sequence[Memory]] = ()
    ) -> Tensor:
        """Transform the embeddings of a stream.

        Args:
            x: `[T, d_model]`, the rows of all pieces one after the other.
            pieces: their shapes, and the bias of self-attention.
            memories: for a decoder, per layer what its rows look at.

        Returns:
            `[T, d_model]`, normed; what reads it weighs it by `final_layer_norm.weight`.
        """
        x = self.dropout(x)
        for i, block in enumerate(self.block):
            x = block.layer[0](x, pieces)
            if self.decoder:
                x = block.layer[1](x, memories[i])
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
        masks = [mask.bool() for _, mask in inputs]
        tokens = torch.cat([ids.flatten() for ids, _ in inputs] + [decoder_input.flatten()])
        sources, targets = self.shared(tokens).split(
            [len(tokens) - decoder_input.numel(), decoder_input.numel()]
        )
        own = [own_keys(mask) for mask in masks]
        context = self.encoder(sources, self._encoder_pieces(own))
        rows, length = decoder_input.shape
        group = group_size(rows, length)
        bias = grouped_bias(self.decoder.position_bias(length), same_row(group, tokens.device))
        piece = Piece(rows // group, group * length, bias)
        x = self.decoder(targets, [piece], self._memories(context, own, length))
        gain = self.decoder.final_layer_norm.weight
        if self.config.scale_decoder_outputs:
            gain = gain * self.config.d_model**-0.5
        return F.linear(x, self.lm_head.weight * gain).view(rows, length, -1)

    def _encoder_pieces(self, own: Sequence[Tensor]) -> list[Piece]:
        """Return the shapes and biases of the encoder's rows; `own` is of `own_keys`, a piece."""
        whole = self.encoder.position_bias(max(keys.shape[-1] for keys in own))
        pieces = []
        for keys in own:
            *_, group, length = keys.shape
            bias = grouped_bias(whole[:, :length, :length], keys)
            pieces.append(Piece(len(keys), group * length, bias))
        return pieces

    def _memories(self, context: Tensor, own: Sequence[Tensor], length: int) -> list[list[Memory]]:
        """Return, per layer of the decoder and piece, what rows of `length` queries look at."""
        attentions = [block.layer[1].EncDecAttention for block in self.decoder.block]
        weights = [layer.weight for one in attentions for layer in (one.k, one.v)]
        gain = self.encoder.final_layer_norm.weight
        projected = F.linear(context, torch.cat(weights) * gain)
        shapes = [(len(keys), keys.shape[-2] * keys.shape[-1]) for keys in own]
        parts = heads(projected, shapes, len(weights), self.config.num_heads)
        biases = [grouped_bias(context.new_zeros(1, length, 1), keys) for keys in own]
        return [
            [
                Memory(part[2 * layer], part[2 * layer + 1], bias)
                for part, bias in zip(parts, biases, strict=True)
            ]
            for layer in range(len(attentions))
        ]

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


def group_size(rows: int, length: int) -> int:
    """Return how many rows attention takes as one: short ones would each fill a tile alone."""
    group = 1
    while rows % (2 * group) == 0 and 2 * group * length <= TILE:
        group *= 2
    return group


def same_row(group: int, device: torch.device) -> Tensor:
    """Return bool `[1, 1, G, 1, G, 1]`, whether query and key are of the same row of a group."""
    return torch.eye(group, dtype=torch.bool, device=device)[None, None, :, None, :, None]


def own_keys(mask: Tensor) -> Tensor:
    """Return bool `[R / G, 1, G, 1, G, n]`, which keys each row of a group may see.

    Args:
        mask: bool `[R, n]`, False on padding.
    """
    group = group_size(*mask.shape)
    return same_row(group, mask.device) & mask.view(-1, 1, 1, 1, group, mask.shape[1])


def grouped_bias(bias: Tensor, keys: Tensor) -> Tensor:
    """Return the bias of rows that attention takes as one, `[R / G, H, G * n, G * m]`.

    Args:
        bias: `[H, n, m]` of one row.
        keys: of `own_keys` or `same_row`.
    """
    whole = torch.where(keys, bias[None, :, None, :, None, :], HIDDEN).flatten(4).flatten(2, 3)
    missing = -whole.shape[-1] % ALIGNMENT
    return F.pad(whole, (0, missing))[..., : whole.shape[-1]] if missing else whole
