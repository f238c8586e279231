"""The blocks that encoder and decoder share: attention layouts and the SwiGLU feed-forward."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from grace.model.config import ModelConfig


class SwiGLU(nn.Module):
    """Gated feed-forward, `down(silu(gate(x)) * up(x))` (Shazeer, 2020)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate_up = nn.Linear(config.model_dim, 2 * config.ffn_dim, bias=False)
        self.down = nn.Linear(config.ffn_dim, config.model_dim, bias=False)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        """Transform `[..., model_dim]`; `scale` multiplies the `ffn_dim` hidden units, if given."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        hidden = F.silu(gate) * up
        return self.down(hidden if scale is None else hidden * scale)


class Attention(nn.Module):
    """Projections of multi-head attention; the caller decides what is cached in between."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.num_heads = config.num_heads
        width = config.num_heads * config.head_dim
        self.query = nn.Linear(config.model_dim, width, bias=False)
        self.key_value = nn.Linear(config.model_dim, 2 * width, bias=False)
        self.output = nn.Linear(width, config.model_dim, bias=False)

    def project_query(self, x: Tensor) -> Tensor:
        """Return queries `[..., H, T, D]` of `x` `[..., T, model_dim]`."""
        return self._split_heads(self.query(x))

    def project_key_value(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values, each `[..., H, T, D]`, of `x` `[..., T, model_dim]`."""
        key, value = self.key_value(x).chunk(2, dim=-1)
        return self._split_heads(key), self._split_heads(value)

    def project_output(self, heads: Tensor) -> Tensor:
        """Return `[..., T, model_dim]` of attended heads `[..., H, T, D]`."""
        return self.output(heads.transpose(-2, -3).flatten(-2))

    def forward(self, x: Tensor, source: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend from `x` `[B, T, model_dim]` to `source` `[B, T_source, model_dim]`.

        Args:
            x: where the queries come from.
            source: where keys and values come from.
            mask: `[B, T_source]` bool, False where the source is padding; None where it never is.
                Each row needs a True.
        """
        key, value = self.project_key_value(source)
        heads = F.scaled_dot_product_attention(
            self.project_query(x), key, value, None if mask is None else mask[:, None, None, :]
        )
        return self.project_output(heads)

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)


def beam_as_query_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Let all beams of a request attend to the one copy of that request's keys and values.

    The beams become the query sequence (GRACE, section 4.1, equations 11-12): nothing of the
    context is copied per beam, and one load of a key tile serves every beam. It is a change of
    layout only (equations 13-14): no two requests mix and beams keep their order.

    Args:
        query: `[B, M, H, T_q, D]`, T_q queries for each of M beams.
        key: `[B, H, T, D]`, of the request.
        value: `[B, H, T, D]`, of the request.

    Returns:
        `[B, M, H, T_q, D]`.
    """
    _, num_beams, _, num_queries, _ = query.shape
    query = query.transpose(1, 2).flatten(2, 3)
    attended = F.scaled_dot_product_attention(query, key, value)
    return attended.unflatten(2, (num_beams, num_queries)).transpose(1, 2)
