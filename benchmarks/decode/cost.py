"""What a search has to compute and to move, counted from its sizes."""

from __future__ import annotations

from collections.abc import Sequence

from grace.model.config import ModelConfig

PEAK_FLOPS_PER_S = 989e12
"""Of bfloat16 on a Hopper chip, the peak of the paper's MFU (equation 15)."""


def flops_per_request(config: ModelConfig, widths: Sequence[int]) -> int:
    """Return the floating-point operations of one request's decoding, two a multiply-add.

    Products of matrices alone, as is usual: projections, attention, output heads. The projection of
    the context to keys and values is not in it; it is made once, before the loop.

    Args:
        config: the model's sizes.
        widths: beams that enter each step.
    """
    products = products_per_row(config)
    total = 0
    for t, beams in enumerate(widths):
        attended = t + 1 + config.num_context_tokens
        attention = 2 * 2 * attended * config.num_heads * config.head_dim
        layer = sum(2 * outputs * inputs for outputs, inputs in products.values()) + attention
        head = 2 * config.vocab_size * config.model_dim
        total += beams * (config.decoder_layers * layer + head)
    return total


def products_per_row(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return (outputs, inputs) of each projection of one layer, in their order."""
    width, dim = config.num_heads * config.head_dim, config.model_dim
    return {
        "qkv": (3 * width, dim),
        "self output": (dim, width),
        "cross query": (width, dim),
        "cross output": (dim, width),
        "gate up": (2 * config.ffn_dim, dim),
        "down": (dim, config.ffn_dim),
    }


def mfu(config: ModelConfig, widths: Sequence[int], batch: int, mean_ms: float) -> float:
    """Return model FLOPs utilisation, equation 15: of bfloat16's peak, whatever the precision.

    The FLOPs are the model's, even where a table saves some of them.
    """
    flops = flops_per_request(config, widths) * batch
    return flops / (mean_ms / 1e3 * PEAK_FLOPS_PER_S)
