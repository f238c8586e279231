"""A block of T5 as rows run through it: weights `[inputs, outputs]`, side by side."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grace.kernels.rms_norm import rms_norm
from grace.model.t5.config import T5Config
from grace.model.t5.module import Block

CONTIGUOUS = torch.contiguous_format


class PackedBlock(nn.Module):
    """A copy of a block's weights, in float32, but for products of the context.

    Args:
        block: of the encoder or the decoder.
        config: the sizes.

    Attributes:
        own_norm: `[d]`, of the norm before self-attention; `cross_norm` and `feed_norm` likewise.
        own_in: `[d, 3 * H * D]`, queries, keys and values of self-attention.
        own_out: `[H * D, d]`.
        feed_in: `[d, F]`, or `[d, 2 * F]` with gates first.
        feed_out: `[F, d]`.
    """

    def __init__(self, block: Block, config: T5Config):
        super().__init__()
        self.sizes = config
        own, *cross, feed = block.layer
        attention = own.SelfAttention
        keep(self, "own_norm", own.layer_norm.weight)
        keep(self, "own_in", packed(attention.q, attention.k, attention.v))
        keep(self, "own_out", packed(attention.o))
        for layer in cross:
            keep(self, "cross_norm", layer.layer_norm.weight)
        dense = feed.DenseReluDense
        keep(self, "feed_norm", feed.layer_norm.weight)
        keep(self, "feed_in", packed(*((dense.wi_0, dense.wi_1) if dense.gated else (dense.wi,))))
        keep(self, "feed_out", packed(dense.wo))

    def project(self, x: Tensor) -> Tensor:
        """Return queries, keys and values of self-attention, `[rows, 3 * H * D]`."""
        return normed(x, self.own_norm, self.sizes) @ self.own_in

    def finish(self, x: Tensor, heads: Tensor) -> Tensor:
        """Return the stream `[rows, d]` after self-attention whose heads are `[rows, H * D]`."""
        return x.addmm(heads, self.own_out)

    def read(self, x: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """Return the stream after cross-attention, all beams of a request against its context.

        Args:
            x: `[B * M, d]`.
            keys: of `FoldedContext`, this layer's.
            values: likewise.
            bias: `[B, 1, 1, S]`, added to scores; None where nothing is padding.
        """
        batch = len(keys)
        scores = normed(x, self.cross_norm, self.sizes).unflatten(0, (batch, -1)) @ keys
        scores = scores.unflatten(2, (self.sizes.num_heads, -1))
        weights = (scores if bias is None else scores + bias).softmax(-1).flatten(2)
        return x.unflatten(0, (batch, -1)).baddbmm(weights, values).flatten(0, 1)

    def feed(self, x: Tensor) -> Tensor:
        """Return the stream `[rows, d]` after the feed-forward layer."""
        inner = normed(x, self.feed_norm, self.sizes) @ self.feed_in
        if self.sizes.feed_forward_proj == "relu":
            inner = inner.relu_()
        else:
            gate, up = inner.chunk(2, 1)
            inner = F.gelu(gate, approximate="tanh") * up
        return x.addmm(inner, self.feed_out)


class FoldedContext(nn.Module):
    """Cross-attention's weights of all layers, and contexts folded into them.

    Scores of a normed stream n over the context c are n W_q (c W_k)^T, so W_q (c W_k)^T is computed
    once a request; likewise (c W_v) W_o.

    Args:
        blocks: of the decoder.
        config: the sizes.
    """

    def __init__(self, blocks: Sequence[Block], config: T5Config):
        super().__init__()
        self.heads = (config.num_heads, config.d_kv)
        attentions = [block.layer[1].EncDecAttention for block in blocks]
        projections = [layer for attention in attentions for layer in (attention.k, attention.v)]
        keep(self, "context", packed(*projections))
        query = [packed(attention.q).unflatten(1, self.heads) for attention in attentions]
        keep(self, "query", torch.stack(query).transpose(1, 2))  # [layers, H, d, D]
        output = [packed(attention.o).unflatten(0, self.heads) for attention in attentions]
        keep(self, "output", torch.stack(output))  # [layers, H, D, d]

    def forward(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys `[layers, B, d, H * S]` and values `[layers, B, H * S, d]`.

        Args:
            context: `[B, S, d]`.
        """
        pairs = (context @ self.context).unflatten(2, (len(self.query), 2, *self.heads))
        key, value = pairs.permute(3, 0, 2, 4, 1, 5).unbind()  # [B, layers, H, S, D]
        keys = self.query @ key.transpose(3, 4)  # [B, layers, H, d, S]
        values = value @ self.output  # [B, layers, H, S, d]
        return keys.permute(1, 0, 3, 2, 4).flatten(3), values.transpose(0, 1).flatten(2, 3)


def keep(module: nn.Module, name: str, weight: Tensor) -> None:
    """Give a module a copy of a weight, in float32, contiguous."""
    module.register_buffer(name, weight.detach().float().clone(memory_format=CONTIGUOUS))


def packed(*layers: nn.Linear) -> Tensor:
    """Return `[inputs, outputs]`, layers side by side."""
    return torch.cat([layer.weight.T for layer in layers], 1)


def normed(x: Tensor, weight: Tensor, config: T5Config) -> Tensor:
    """Return rows of mean square 1, weighed.

    For some ten beams this costs in torch's operations what the products do.
    """
    backend = "native" if x.device.type == "cpu" else "auto"
    return rms_norm(x, weight, config.layer_norm_epsilon, backend)
