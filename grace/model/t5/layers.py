"""The blocks of T5. Attributes are named as transformers names them: weights move as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grace.kernels.row_attention import Rows, row_attention
from grace.kernels.unit_norm import unit_norm
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
        """Return `[T, d_model]`."""
        return unit_norm(x, self.epsilon)


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

    def among(self, x: Tensor, gain: Tensor, pieces: Sequence[Rows], bias: Tensor) -> Tensor:
        """Attend within each row of a stream `[T, d_model]`, weighed by `[d_model]`."""
        weight = torch.cat([self.q.weight, self.k.weight, self.v.weight])
        return self._attend(F.linear(x, weight * gain), None, bias, pieces)

    def across(
        self, x: Tensor, gain: Tensor, pieces: Sequence[Rows], context: Tensor, weight: Tensor
    ) -> Tensor:
        """Attend from such a stream to each row's part of another, `weight` that one's gain."""
        memory = F.linear(context, torch.cat([self.k.weight, self.v.weight]) * weight)
        return self._attend(F.linear(x, self.q.weight * gain), memory, None, pieces)

    def _attend(
        self, x: Tensor, memory: Tensor | None, bias: Tensor | None, pieces: Sequence[Rows]
    ) -> Tensor:
        rate = self.dropout_rate if self.training else 0.0
        return self.o(row_attention(x, memory, bias, pieces, self.num_heads, rate))


class SelfAttentionLayer(nn.Module):
    """Norm, self-attention, residual."""

    def __init__(self, config: T5Config, bias: RelativeBias | None):
        super().__init__()
        self.SelfAttention = Attention(config, bias)
        self.layer_norm = RmsNorm(config)
        self.dropout = nn.Dropout(config.dropout_rate)

    def forward(self, x: Tensor, pieces: Sequence[Rows], bias: Tensor) -> Tensor:
        """Return `[T, d_model]`."""
        norm = self.layer_norm
        return x + self.dropout(self.SelfAttention.among(norm(x), norm.weight, pieces, bias))


class CrossAttentionLayer(nn.Module):
    """Norm, attention to the encoder's output, residual."""

    def __init__(self, config: T5Config):
        super().__init__()
        self.EncDecAttention = Attention(config)
        self.layer_norm = RmsNorm(config)
        self.dropout = nn.Dropout(config.dropout_rate)

    def forward(self, x: Tensor, pieces: Sequence[Rows], context: Tensor, weight: Tensor) -> Tensor:
        """Return `[T, d_model]`; `context` `[S, d_model]` is weighed by `[d_model]`."""
        norm, attention = self.layer_norm, self.EncDecAttention
        return x + self.dropout(attention.across(norm(x), norm.weight, pieces, context, weight))


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
