"""What a search has to compute and to move, counted from its sizes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

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


def flops_in_tables(config: ModelConfig, widths: Sequence[int], levels: int) -> int:
    """Return how many of `flops_per_request` prefix tables stand for.

    Args:
        config, widths: as there.
        levels: of the trie that have a row a node; the others have their projections by token.
    """
    products, width = products_per_row(config), config.num_heads * config.head_dim
    total = 0
    for t, beams in enumerate(widths):
        names = ("qkv", "self output", "cross query") if t < levels else ("qkv",)
        attention = 2 * 2 * (t + 1) * width if t < levels else 0
        total += beams * (sum(2 * products[n][0] * products[n][1] for n in names) + attention)
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


@dataclass(frozen=True)
class Peaks:
    """What the machine reaches, measured.

    Attributes:
        bytes_per_ms: read plus written by a plain kernel.
        flops_per_ms: of a large product in bfloat16.
        fp8_flops_per_ms: of one in E4M3, its scales by rows.
    """

    bytes_per_ms: float
    flops_per_ms: float
    fp8_flops_per_ms: float

    def floor(self, flops: float, num_bytes: float, fp8: bool = False) -> float:
        """Return the milliseconds that this work takes at least."""
        peak = self.fp8_flops_per_ms if fp8 else self.flops_per_ms
        return max(flops / peak, num_bytes / self.bytes_per_ms)


def floors(
    config: ModelConfig, widths: Sequence[int], batch: int, fp8: bool, peaks: Peaks
) -> dict[str, float]:
    """Return, by part of the loop, the milliseconds that the peaks allow; bfloat16 but for `fp8`.

    Every operand is read and every result written once a call, weights too. Of self-attention's
    prefix each block counts once, as if every beam of a step before had a descendant or every beam
    an ancestor of its own, whichever are fewer. Selection counts the logits.
    """
    found: dict[str, float] = defaultdict(float)
    heads = config.num_heads * config.head_dim
    for t, beams in enumerate(widths):
        rows = batch * beams
        for _ in range(config.decoder_layers):
            for name, (outputs, inputs) in products_per_row(config).items():
                element = 1 if fp8 else 2
                written = outputs // 2 if name == "gate up" else outputs
                adds = name in ("self output", "cross output", "down") and not fp8
                moved = element * inputs * (rows + outputs) + 2 * rows * written * (1 + adds)
                found[name] += peaks.floor(2 * rows * outputs * inputs, moved, fp8)
            ancestors = batch * sum(min(beams, before) for before in widths[:t])
            moved = 2 * heads * (rows * 6 + 2 * ancestors)
            found["self-attention"] += peaks.floor(4 * rows * (t + 1) * heads, moved)
            moved = 2 * heads * 2 * (rows + batch * config.num_context_tokens)
            found["cross-attention"] += peaks.floor(
                4 * rows * config.num_context_tokens * heads, moved
            )
            found["norms"] += 3 * peaks.floor(0, rows * config.model_dim * (3 if fp8 else 4))
        found["norms"] += peaks.floor(0, rows * config.model_dim * 4)
        logits = 2 * rows * config.vocab_size
        moved = 2 * config.model_dim * (rows + config.vocab_size) + logits
        found["head"] += peaks.floor(2 * rows * config.vocab_size * config.model_dim, moved)
        found["select"] += peaks.floor(0, logits)
    return dict(found)
