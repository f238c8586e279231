"""The first layer's self-attention block as tables: it depends on the SID prefix, not on requests.

Its input at position t is an embedding of one token, so its queries, keys and values are one row
per (position, token): small, and enough to attend from. What the block adds to the stream, and the
query of the cross-attention after it, depend on the whole prefix: one row per trie node, for as
many levels as a budget holds. Both are the numbers that the steps would compute, up to the last
bit in which products of other shapes may round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grace.kernels.gather_rows import gather_rows

if TYPE_CHECKING:
    from grace.index.trie import Trie
    from grace.model.step_decoder import StepDecoder

CHUNK = 16_384  # nodes computed at once


@dataclass(frozen=True)
class NodeRows:
    """One trie level, a row a node.

    Attributes:
        first: the level's first node.
        stream: `[nodes, model_dim]`, the residual stream after the block.
        query: `[nodes, H D]`, the cross-attention query that follows.
    """

    first: int
    stream: Tensor
    query: Tensor

    def of(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return stream and query of int64 `[rows]` nodes of this level; of any for a dead beam."""
        return gather_rows(self.stream, self.query, nodes, self.first)


@dataclass(frozen=True)
class PrefixTables:
    """Tables of one decoder for one trie.

    Attributes:
        queries: `[blocks, H, D]`, a block per position and token: 0 is position 0's, then come V
            blocks a position.
        pool: `[blocks, 2, H, D]`, their keys and values.
        levels: of the first levels, as many as the budget held.
        vocab_size: V.
    """

    queries: Tensor
    pool: Tensor
    levels: list[NodeRows]
    vocab_size: int

    @property
    def num_bytes(self) -> int:
        """Memory of all tables."""
        tensors = [self.queries, self.pool]
        tensors += [rows for level in self.levels for rows in (level.stream, level.query)]
        return sum(tensor.nbytes for tensor in tensors)


@torch.inference_mode()
def build_prefix_tables(decoder: StepDecoder, trie: Trie, budget: int) -> PrefixTables | None:
    """Compute the tables that fit a budget; None where not even those of tokens do.

    Args:
        decoder: whose first layer they are of.
        trie: on the decoder's device.
        budget: bytes, the most that tables may hold.
    """
    config, layer = decoder.config, decoder.layers[0]
    width = config.num_heads * config.head_dim
    left = budget - sum(len(rows) for rows in decoder.inputs) * 3 * width * decoder.dtype.itemsize
    if left < 0:
        return None
    inputs = torch.cat(decoder.inputs)
    projected = layer.qkv(decoder.norm(inputs, layer.self_norm, layer.qkv))
    heads = projected.unflatten(1, (3, config.num_heads, config.head_dim))
    tables = PrefixTables(
        heads[:, 0].contiguous(), heads[:, 1:].contiguous(), [], config.vocab_size
    )
    blocks, row_bytes = None, (config.model_dim + width) * decoder.dtype.itemsize
    for t, size in enumerate(trie.level_sizes[:-1]):
        left -= size * row_bytes
        if left < 0:
            break
        blocks = _prefix_blocks(tables, trie, t, blocks)
        tables.levels.append(_node_rows(decoder, inputs, tables, blocks, trie, t))
    return tables


def _prefix_blocks(tables: PrefixTables, trie: Trie, t: int, above: Tensor | None) -> Tensor:
    """int32 `[nodes, t + 1]`, the blocks of every node of level t."""
    if above is None:
        return torch.zeros(1, 1, dtype=torch.int32, device=tables.pool.device)
    first, last, end = trie.level_offsets[t - 1 : t + 2].tolist()
    counts = trie.child_offsets[first : last + 1].diff()
    parents = torch.repeat_interleave(counts, output_size=end - last)
    own = trie.child_tokens[last - 1 : end - 1] + (1 + (t - 1) * tables.vocab_size)
    return torch.cat([above[parents], own[:, None]], 1)


def _node_rows(
    decoder: StepDecoder,
    inputs: Tensor,
    tables: PrefixTables,
    blocks: Tensor,
    trie: Trie,
    t: int,
) -> NodeRows:
    config = decoder.config
    width = config.num_heads * config.head_dim
    rows = NodeRows(
        int(trie.level_offsets[t]),
        tables.pool.new_empty(len(blocks), config.model_dim),
        tables.pool.new_empty(len(blocks), width),
    )
    for start in range(0, len(blocks), CHUNK):
        some = slice(start, start + CHUNK)
        chunk = blocks[some].contiguous()
        stream, query = decoder.attend_tables(inputs.index_select(0, chunk[:, t]), tables, chunk, t)
        rows.stream[some], rows.query[some] = stream, query
    return rows
