"""Layers of causal models over items."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each added and then normed."""

    def __init__(self, width: int, num_heads: int, ffn_dim: int, dropout: float):
        super().__init__()
        self.num_heads, self.dropout_rate = num_heads, dropout
        self.attend = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, ffn_dim)
        self.down = nn.Linear(ffn_dim, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Transform `[R, n, width]`; no position sees a later one, so padding comes last."""
        parts = self.attend(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        dropout = self.dropout_rate if self.training else 0.0
        heads = F.scaled_dot_product_attention(*parts.unbind(), dropout_p=dropout, is_causal=True)
        attended = self.attended(heads.transpose(1, 2).flatten(2))
        x = self.attention_norm(x + self.dropout(attended))
        return self.feed_forward_norm(x + self.dropout(self.down(F.gelu(self.up(x)))))


class FeedForwardBlock(nn.Module):
    """A feed-forward layer, normed before and added."""

    def __init__(self, width: int, ffn_dim: int, dropout: float):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, ffn_dim)
        self.down = nn.Linear(ffn_dim, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Transform `[..., width]`."""
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


def initialise(model: nn.Module) -> None:
    """Draw small weights of linear layers and embeddings; biases are zero."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
