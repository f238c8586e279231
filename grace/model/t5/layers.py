"""The blocks of T5. Attributes are named as transformers names them: weights move as they are."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
        return super().forward(self.buckets[distance + farthest]).permute(2, 0, 1)


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
    """Scale to a mean square of 1, in float32, and weigh each entry."""

    def __init__(self, config: T5Config):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.d_model))
        self.epsilon = config.layer_norm_epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Return `[..., d_model]`."""
        square = x.float().pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(square + self.epsilon))


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

    def forward(self, x: Tensor, source: Tensor, bias: Tensor) -> Tensor:
        """Attend from `x` `[B, n, d_model]` to `source` `[B, m, d_model]`.

        Args:
            x: where the queries come from.
            source: where keys and values come from.
            bias: broadcast over `[B, H, n, m]`; the lowest finite number where a key is hidden.
        """
        query, key, value = (
            self.heads(of(y)) for of, y in ((self.q, x), (self.k, source), (self.v, source))
        )
        scores = query @ key.transpose(-1, -2) + bias
        weights = scores.float().softmax(-1).to(value.dtype)
        weights = F.dropout(weights, self.dropout_rate, self.training)
        return self.o((weights @ value).transpose(1, 2).flatten(2))

    def heads(self, x: Tensor) -> Tensor:
        """Return `[B, H, n, D]` of `[B, n, H * D]`."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class SelfAttentionLayer(nn.Module):
    """Norm, self-attention, residual."""

    def __init__(self, config: T5Config, bias: RelativeBias | None):
        super().__init__()
        self.SelfAttention = Attention(config, bias)
        self.layer_norm = RmsNorm(config)
        self.dropout = nn.Dropout(config.dropout_rate)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Return `[B, n, d_model]`."""
        normed = self.layer_norm(x)
        return x + self.dropout(self.SelfAttention(normed, normed, bias))


class CrossAttentionLayer(nn.Module):
    """Norm, attention to the encoder's output, residual."""

    def __init__(self, config: T5Config):
        super().__init__()
        self.EncDecAttention = Attention(config)
        self.layer_norm = RmsNorm(config)
        self.dropout = nn.Dropout(config.dropout_rate)

    def forward(self, x: Tensor, context: Tensor, bias: Tensor) -> Tensor:
        """Return `[B, n, d_model]`."""
        return x + self.dropout(self.EncDecAttention(self.layer_norm(x), context, bias))


class FeedForward(nn.Module):
    """Two linear layers around ReLU (T5), or three around a GELU gate (T5 1.1)."""

    def __init__(self, config: T5Config):
        super().__init__()
        self.gated = config.feed_forward_proj == "gated-gelu"
        for name in ("wi_0", "wi_1") if self.gated else ("wi",):
            setattr(self, name, nn.Linear(config.d_model, config.d_ff, bias=False))
        self.wo = nn.Linear(config.d_ff, config.d_model, bias=False)
        self.dropout = nn.Dropout(config.dropout_rate)

    def forward(self, x: Tensor) -> Tensor:
        """Return `[..., d_model]`."""
        if self.gated:
            hidden = F.gelu(self.wi_0(x), approximate="tanh") * self.wi_1(x)
        else:
            hidden = F.relu(self.wi(x))
        return self.wo(self.dropout(hidden))


class FeedForwardLayer(nn.Module):
    """Norm, feed-forward, residual."""

    def __init__(self, config: T5Config):
        super().__init__()
        self.DenseReluDense = FeedForward(config)
        self.layer_norm = RmsNorm(config)
        self.dropout = nn.Dropout(config.dropout_rate)

    def forward(self, x: Tensor) -> Tensor:
        """Return `[B, n, d_model]`."""
        return x + self.dropout(self.DenseReluDense(self.layer_norm(x)))
