"""The memory that a search's steps write, and where a search stands in it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from grace.model.prefix_tables import PrefixTables


@dataclass(frozen=True)
class StepMemory:
    """Memory of one search at a time, for up to B requests; a smaller batch uses the front of it.

    Attributes:
        context: per layer `[B, T, 2, H, D]`, cross-attention keys and values of each request.
        lengths: int32 `[B]`, how many of the T context tokens a request has; None where all T.
        pools: per layer `[blocks, 2, H, D]`, a block a beam and step, but for the last step, after
            which nobody attends.
        first_blocks: int32 `[B, L]`, the block table of step 0.
        value_scales: per layer float32 `[B]`, scales of cross-attention's rows in E4M3; none where
            they never are.
    """

    context: list[Tensor]
    lengths: Tensor | None
    pools: list[Tensor]
    first_blocks: Tensor
    value_scales: list[Tensor]

    @property
    def num_bytes(self) -> int:
        """Bytes of all of it."""
        tensors = [*self.context, *self.pools, self.first_blocks, *self.value_scales]
        tensors += [] if self.lengths is None else [self.lengths]
        return sum(tensor.nbytes for tensor in tensors)

    def front(self, batch: int) -> StepMemory:
        """Views for a smaller batch."""
        lengths = None if self.lengths is None else self.lengths[:batch]
        context = [layer[:batch] for layer in self.context]
        scales = [layer[:batch] for layer in self.value_scales]
        return StepMemory(context, lengths, self.pools, self.first_blocks[:batch], scales)


@dataclass
class StepState:
    """A search under way.

    Attributes:
        memory: where keys and values are.
        blocks: int32 `[B * M, L]`, the block table of the step's beams.
        tables: stand for the first layer's self-attention block; None where it is computed.
        first_block: of the step's beams, which have one block each, in order.
    """

    memory: StepMemory
    blocks: Tensor
    tables: PrefixTables | None = None
    first_block: int = 0
