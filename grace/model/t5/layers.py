"""The blocks of T5. Attributes are named as transformers names them: weights move as they are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from grace.model.t5.config import T5Config


class RelativeBias(nn.Embedding):
    """A bias per head and bucket of distances, added to attention scores (Raffel et al., 2020).

    Args:
        config: the sizes.
        causal: whether no query looks ahead, which leaves all buckets to what lies behind.
    """

    def __init__(self, config: T5Config, causal: bool):
        super().__init__(config.relative_attention_num_buckets, config.num_heads)
        buckets = relative_buckets(config, causal)
        self.register_buffer("buckets", buckets, persistent=False)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return `[H, n, m]`, the bias of n query positions and m key positions, int64."""
        farthest = len(self.buckets) // 2
        distance = (keys[None, :] - queries[:, None]).clamp(-farthest, farthest)
        buckets = self.buckets[distance + farthest][..., None]
        chosen = buckets == torch.arange(self.num_embeddings, device=buckets.device)
        # A product, exact as a lookup: the gradient of a lookup sorts all pairs of positions.
        # Contiguous, as what is made of it takes after its layout, and fused attention wants keys last.
        return (chosen.to(self.weight.dtype) @ self.weight).permute(2, 0, 1).contiguous()


def relative_buckets(config: T5Config, causal: bool) -> Tensor:
    """Return int64 `[2 * max_distance + 1]`, buckets of the distances -max_distance..max_distance.

    A distance is key - query. Half of the buckets hold one distance each, the others grow with the
    logarithm. In float32 as transformers does it: where a boundary falls on a whole distance, the
    rounding decides.
    """
    farthest, count = config.relative_attention_max_distance, config.relative_attention_num_buckets
    distance = torch.arange(-farthest, farthest + 1)
    first = torch.zeros_like(distance)
    if causal:
        distance = -distance.clamp_max(0)
    else:
        count //= 2
        first = (distance > 0) * count
        distance = distance.abs()
    exact = count // 2
    growth = torch.log(distance.float() / exact) / math.log(farthest / exact)
    grown = exact + (growth.clamp_min(0) * (count - exact)).long()
    return first + torch.where(distance < exact, distance, grown.clamp_max(count - 1))


class RmsNorm(nn.Module):
    """Scale to a mean square of 1, computed in float32.

    The weights of the entries stand in the product that reads them: a matrix is smaller than a
    stream, and so is their gradient.
    """

    def __init__(self, config: T5Config):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.d_model))
        self.epsilon = config.layer_norm_epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Return `[..., d_model]`."""
        return F.rms_norm(x, self.weight.shape, eps=self.epsilon)


class Piece(NamedTuple):
    """Rows of one length within a stream, which holds the tokens of all rows of all pieces.

    Attributes:
        rows: R; attention may take several rows as one.
        length: n, tokens of a row, padding included.
        bias: `[R or 1, H, n, n]`, added to attention scores; hides keys.
    """

    rows: int
    length: int
    bias: Tensor


class Memory(NamedTuple):
    """What the rows of one piece look at in one layer of the decoder.

    Attributes:
        key: `[R, H, m, D]`.
        value: `[R, H, m, D]`.
        bias: `[R, 1, n, m]` of the row's n queries; hides keys.
    """

    key: Tensor
    value: Tensor
    bias: Tensor


class Attention(nn.Module):
    """Multi-head attention whose scores are not scaled; the bias of positions comes from outside.

    Args:
        config: the sizes.
        bias: the relative bias that this layer holds for its whole stack, if it does.
    """

    def __init__(self, config: T5Config, bias: RelativeBias | None = None):
        super().__init__()
        width = config.num_heads * config.d_kv
        self.num_heads, self.dropout_rate = config.num_heads, config.dropout_rate
        self.q, self.k, self.v = (
            nn.Linear(config.d_model, width, bias=False) for _ in range(3)
        )  # fmt: skip
        self.o = nn.Linear(width, config.d_model, bias=False)
        if bias is not None:
            self.relative_attention_bias = bias

    def among(self, x: Tensor, gain: Tensor, pieces: Sequence[Piece]) -> Tensor:
        """Attend within each row of a stream `[T, d_model]`, weighed by `[d_model]`."""
        weight = torch.cat([self.q.weight, self.k.weight, self.v.weight])
        projected = F.linear(x, weight * gain)
        parts = heads(projected, [piece[:2] for piece in pieces], 3, self.num_heads)
        return self._output(
            self._attend(*part, piece.bias) for part, piece in zip(parts, pieces, strict=True)
        )

    def across(self, x: Tensor, gain: Tensor, memories: Sequence[Memory]) -> Tensor:
        """Attend from such a stream, equally many tokens a row, to each row's memory."""
        shapes = [(len(memory.key), memory.bias.shape[2]) for memory in memories]
        parts = heads(F.linear(x, self.q.weight * gain), shapes, 1, self.num_heads)
        return self._output(
            self._attend(*part, *memory) for part, memory in zip(parts, memories, strict=True)
        )

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        """Return `[R * n, H * D]`."""
        # The other kernels know no gradient of the bias.
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            mixed = F.scaled_dot_product_attention(
                query, key, value, attn_mask=bias, scale=1.0,
                dropout_p=self.dropout_rate if self.training else 0.0,
            )  # fmt: skip
        return mixed.transpose(1, 2).flatten(2).flatten(0, 1)

    def _output(self, mixed: Iterable[Tensor]) -> Tensor:
        parts = list(mixed)
        return self.o(torch.cat(parts) if len(parts) > 1 else parts[0])


def heads(
    x: Tensor, shapes: Sequence[tuple[int, int]], count: int, num_heads: int
) -> list[tuple[Tensor, ...]]:
    """Return per piece `count` tensors `[R, H, n, D]` of a stream `[T, count * H * D]`.

    Args:
        x: what several projections, side by side, made of a stream.
        shapes: R and n of every piece.
        count: of projections.
        num_heads: H.
    """
    parts = _Heads.apply(x, shapes, count, num_heads)
    return [parts[i : i + count] for i in range(0, len(parts), count)]


class _Heads(torch.autograd.Function):
    """Views of a stream, whose gradients are written where they belong, by one copy a piece."""

    @staticmethod
    def forward(ctx, x, shapes, count, num_heads):
        ctx.layout = shapes, count, num_heads
        return tuple(
            part.transpose(1, 2)
            for piece in _pieces(x, *ctx.layout)
            for part in piece.unbind(2)
        )  # fmt: skip

    @staticmethod
    def backward(ctx, *gradients):
        shapes, count, num_heads = ctx.layout
        sizes = [rows * length for rows, length in shapes]
        width = count * num_heads * gradients[0].shape[-1]
        whole = gradients[0].new_empty(sum(sizes), width)
        for i, piece in enumerate(_pieces(whole, *ctx.layout)):
            mine = gradients[i * count : (i + 1) * count]
            torch.stack([gradient.transpose(1, 2) for gradient in mine], 2, out=piece)
        return whole, None, None, None


def _pieces(
    x: Tensor, shapes: Sequence[tuple[int, int]], count: int, num_heads: int
) -> list[Tensor]:
    """Return views `[R, n, count, H, D]` of a stream."""
    parts = x.split([rows * length for rows, length in shapes])
    return [
        part.view(*shape, count, num_heads, -1) for part, shape in zip(parts, shapes, strict=True)
    ]


class SelfAttentionLayer(nn.Module):
    """Norm, self-attention, residual."""

    def __init__(self, config: T5Config, bias: RelativeBias | None):
        super().__init__()
        self.SelfAttention = Attention(config, bias)
        self.layer_norm = RmsNorm(config)
        self.dropout = nn.Dropout(config.dropout_rate)

    def forward(self, x: Tensor, pieces: Sequence[Piece]) -> Tensor:
        """Return `[T, d_model]`."""
        norm = self.layer_norm
        return x + self.dropout(self.SelfAttention.among(norm(x), norm.weight, pieces))


class CrossAttentionLayer(nn.Module):
    """Norm, attention to the encoder's output, residual."""

    def __init__(self, config: T5Config):
        super().__init__()
        self.EncDecAttention = Attention(config)
        self.layer_norm = RmsNorm(config)
        self.dropout = nn.Dropout(config.dropout_rate)

    def forward(self, x: Tensor, memories: Sequence[Memory]) -> Tensor:
        """Return `[T, d_model]`."""
        norm = self.layer_norm
        return x + self.dropout(self.EncDecAttention.across(norm(x), norm.weight, memories))


class FeedForward(nn.Module):
    """Two linear layers around ReLU (T5), or three around a GELU gate (T5 1.1)."""

    def __init__(self, config: T5Config):
        super().__init__()
        self.gated = config.feed_forward_proj == "gated-gelu"
        for name in ("wi_0", "wi_1") if self.gated else ("wi",):
            setattr(self, name, nn.Linear(config.d_model, config.d_ff, bias=False))
        self.wo = nn.Linear(config.d_ff, config.d_model, bias=False)
        self.dropout = nn.Dropout(config.dropout_rate)

    def forward(self, x: Tensor, gain: Tensor) -> Tensor:
        """Transform a stream `[T, d_model]`, weighed by `[d_model]`; return as much."""
        if self.gated:
            outer, inner = self.wi_0.weight * gain, self.wi_1.weight * gain
            hidden = F.gelu(F.linear(x, outer), approximate="tanh") * F.linear(x, inner)
            return self.wo(self.dropout(hidden))
        rate = self.dropout.p if self.training else 0.0
        return relu_layers(x, self.wi.weight * gain, self.wo.weight, rate)


def relu_layers(x: Tensor, inner: Tensor, outer: Tensor, rate: float) -> Tensor:
    """Return `[T, d]`: ReLU after one layer, dropout, another layer.

    Args:
        x: `[T, d]`.
        inner: `[d_ff, d]`.
        outer: `[d, d_ff]`.
        rate: of dropout, below 1.
    """
    return _ReluLayers.apply(x, inner, outer, rate)


class _ReluLayers(torch.autograd.Function):
    """Linear, ReLU, dropout, linear: what is 0 after dropout says all that its gradient needs."""

    @staticmethod
    def forward(ctx, x, inner, outer, rate):
        # The sum of nothing makes ReLU a part of the product on a GPU.
        hidden = torch._addmm_activation(inner.new_zeros(len(inner)), x, inner.t())
        if rate:
            hidden = torch.native_dropout(hidden, rate, True)[0]
        ctx.save_for_backward(x, inner, outer, hidden)
        ctx.scale = 1 / (1 - rate)
        return hidden @ outer.t()

    @staticmethod
    def backward(ctx, gradient):
        x, inner, outer, hidden = ctx.saved_tensors
        grown = torch.addmm(outer.new_empty(1), gradient, outer, beta=0, alpha=ctx.scale)
        grown = torch.ops.aten.threshold_backward(grown, hidden, 0)
        return grown @ inner, grown.t() @ x, gradient.t() @ hidden, None


class FeedForwardLayer(nn.Module):
    """Norm, feed-forward, residual."""

    def __init__(self, config: T5Config):
        super().__init__()
        self.DenseReluDense = FeedForward(config)
        self.layer_norm = RmsNorm(config)
        self.dropout = nn.Dropout(config.dropout_rate)

    def forward(self, x: Tensor) -> Tensor:
        """Return `[T, d_model]`."""
        norm = self.layer_norm
        return x + self.dropout(self.DenseReluDense(norm(x), norm.weight))
