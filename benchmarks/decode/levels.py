"""The decoder as GRACE's Table 6 builds it up, from what a library gives to paged blocks.

Each level is a `StepDecoder` with some of its parts replaced; the products, norms and heads are the
same in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from grace.kernels.self_attention import self_attention, self_attention_fused
from grace.model.prefix_tables import PrefixTables
from grace.model.step_decoder import StepDecoder
from grace.model.step_memory import StepMemory, StepState


@dataclass(frozen=True)
class DenseMemory(StepMemory):
    """Memory of a level with a dense cache.

    Attributes:
        caches: two of `[layers, B * M, L, 2, H, D]`; re-ordering reads one and writes the other.
        copies: by width M, per layer `[B * M, T, 2, H, D]`, the context once a beam; empty but for
            L0.
    """

    caches: tuple[Tensor, Tensor]
    copies: dict[int, tuple[Tensor, ...]]

    def front(self, batch: int) -> DenseMemory:
        """Views for a smaller batch."""
        rows = self.caches[0].shape[1] // len(self.first_blocks) * batch
        return DenseMemory(
            **vars(super().front(batch)),
            caches=tuple(cache[:, :rows] for cache in self.caches),
            copies={
                width: tuple(layer[: batch * width] for layer in layers)
                for width, layers in self.copies.items()
            },
        )


@dataclass
class DenseState(StepState):
    """A search under way; `rows` are the beams of the last step."""

    cache: Tensor | None = None
    spare: Tensor | None = None
    rows: int = 0


class Dense(StepDecoder):
    """What L0 to L3 share: beams' keys and values move when beams are re-ordered."""

    def memory(
        self, batch: int, widths: Sequence[int], num_context: int, ragged: bool = False
    ) -> DenseMemory:
        """Allocate the cache in place of pools."""
        paged = super().memory(batch, [0], num_context, ragged)
        config = self.config
        sizes = (
            len(self.layers), batch * max(widths), config.num_levels, 2, config.num_heads,
            config.head_dim,
        )  # fmt: skip
        caches = tuple(torch.zeros(sizes, dtype=self.dtype, device=self.device) for _ in range(2))
        return DenseMemory(**vars(paged), caches=caches, copies={})

    def start(self, memory: DenseMemory, tables: PrefixTables | None = None) -> DenseState:
        """Begin in the first of the two caches; a level has no tables."""
        assert tables is None
        cache, spare = memory.caches
        return DenseState(memory, memory.first_blocks, cache=cache, spare=spare)

    def reorder(self, state: DenseState, parents: Tensor, t: int) -> None:
        """Copy the keys and values of each beam's prefix from its parent's row."""
        batch, beams = parents.shape
        before = state.rows // batch
        first = torch.arange(batch, device=parents.device)[:, None] * before
        rows = state.cache[:, : state.rows, :t]
        source = (first + parents).flatten()[None, :, None, None, None, None]
        source = source.expand(len(rows), -1, *rows.shape[2:])
        torch.gather(rows, 1, source, out=state.spare[:, : batch * beams, :t])
        state.cache, state.spare = state.spare, state.cache

    def attend_prefix(self, i: int, qkv: Tensor, state: DenseState, t: int) -> Tensor:
        """Note how many rows there are, and attend."""
        state.rows = len(qkv)
        return self.attend_cache(qkv, state.cache[i, : state.rows], t)

    def attend_cache(self, qkv: Tensor, cache: Tensor, t: int) -> Tensor:
        """Self-attention: `[rows, H, D]` of `[rows, 3 H D]` and `[rows, L, 2, H, D]`."""
        raise NotImplementedError

    def _write(self, qkv: Tensor, cache: Tensor, t: int) -> Tensor:
        """Write position t of the cache; return queries `[rows, H, D]`."""
        query, new = qkv.split([qkv.shape[1] // 3, 2 * qkv.shape[1] // 3], 1)
        cache[:, t] = new.view(cache[:, t].shape)
        return query.unflatten(1, (self.config.num_heads, -1))


class BeamAsQuery(Dense):
    """L1: cross-attention with beams as queries, self-attention through a library."""

    def attend_cache(self, qkv: Tensor, cache: Tensor, t: int) -> Tensor:
        """Attend through FlashAttention, a row a batch element."""
        query = self._write(qkv, cache, t)
        key, value = cache[:, : t + 1].transpose(1, 3).unbind(2)
        return library_attention(query[:, :, None], key, value)[:, :, 0]


class Naive(BeamAsQuery):
    """L0: the context once a beam, too; it is copied when it is loaded, not in the loop."""

    def memory(
        self, batch: int, widths: Sequence[int], num_context: int, ragged: bool = False
    ) -> DenseMemory:
        """Allocate the copies as well."""
        dense = super().memory(batch, widths, num_context, ragged)
        copies = {
            width: tuple(
                layer.new_empty(batch * width, *layer.shape[1:]) for layer in dense.context
            )
            for width in {*widths} - {1}
        }
        return DenseMemory(**{**vars(dense), "copies": copies})

    def load(self, memory: DenseMemory, context: Tensor, lengths: Tensor | None = None) -> None:
        """Project the context, and copy it for every beam."""
        super().load(memory, context, lengths)
        for copies in memory.copies.values():
            for layer, copied in zip(memory.context, copies, strict=True):
                copied.unflatten(0, (len(layer), -1)).copy_(layer[:, None])

    def attend_context(self, i: int, query: Tensor, state: StepState) -> Tensor:
        """Attend through FlashAttention, a row a batch element."""
        memory = state.memory
        width = len(query) // len(memory.context[i])
        source = memory.context[i] if width == 1 else memory.copies[width][i]
        key, value = source.transpose(1, 3).unbind(2)
        query = query.unflatten(1, (self.config.num_heads, 1, -1))
        return library_attention(query, key, value).flatten(1)


class Coalesced(Dense):
    """L2: self-attention by our kernel over the dense cache."""

    def attend_cache(self, qkv: Tensor, cache: Tensor, t: int) -> Tensor:
        """Write, then attend."""
        return self_attention(self._write(qkv, cache, t), cache, t)


class Fused(Dense):
    """L3: the same kernel also takes the projection apart and writes the cache."""

    def attend_cache(self, qkv: Tensor, cache: Tensor, t: int) -> Tensor:
        """All in one kernel."""
        return self_attention_fused(qkv, cache, t)


def library_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """FlashAttention of `[rows, H, 1, D]` on CUDA; what torch chooses on a CPU."""
    flash = sdpa_kernel(SDPBackend.FLASH_ATTENTION) if query.is_cuda else nullcontext()
    with flash:
        return F.scaled_dot_product_attention(query, key, value)


LEVELS: dict[str, type[StepDecoder]] = {
    "L0 naive": Naive,
    "L1 beams as queries": BeamAsQuery,
    "L2 coalesced": Coalesced,
    "L3 fused": Fused,
    "L4 paged": StepDecoder,
}
"""With fixed beams, in the order of Table 6; each has what the ones before it have."""


def bytes_of_copies(decoder: type[StepDecoder], rows: int, config: object, element: int) -> int:
    """Return what a level needs for copies of the context, all layers."""
    if decoder is not Naive:
        return 0
    block = 2 * config.num_heads * config.head_dim * element
    return config.decoder_layers * rows * config.num_context_tokens * block
