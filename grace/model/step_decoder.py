"""The decoder as kernels over memory that stays in place: what one CUDA graph can hold.

It computes what `grace.model.decoder.Decoder.step` computes. Rows are `b * M + m`, request-major.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from grace.errors import ConfigError
from grace.kernels.block_reorder import block_reorder, start_blocks
from grace.kernels.cross_attention import cross_attention, cross_attention_fp8, value_scales
from grace.kernels.fp8_rows import Fp8Rows, add_rms_norm_fp8, rms_norm_fp8
from grace.kernels.rms_norm import add_rms_norm, rms_norm
from grace.kernels.self_attention import (
    self_attention_from_table,
    self_attention_from_table_fp8,
    self_attention_paged,
    self_attention_paged_fp8,
)
from grace.model.config import ModelConfig
from grace.model.decoder import Decoder
from grace.model.prefix_tables import PrefixTables
from grace.model.projection import Projection
from grace.model.step_layer import StepLayer, norm_weight
from grace.model.step_memory import StepMemory, StepState

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float8": torch.bfloat16}
"""The dtype in which each precision keeps what is not quantised."""


class StepDecoder:
    """Scores the tokens of one level for every beam, step by step.

    Args:
        decoder: the trained module; its weights are copied.
        config: its sizes.
        device: where steps run: a CUDA device through the fast kernels, a CPU through their
            references.
        precision: one of `PRECISIONS`. `float8` is bfloat16 with E4M3 products where they pay. In
            all of them softmax, norms and sums are float32, and a result is rounded to the dtype,
            logits too.

    Attributes:
        config, precision, device: as given.
        dtype: of the stream, of keys and values, and of logits.
        layers: a `StepLayer` each.
        inputs: per position the embeddings of its tokens, `[1, model_dim]` and then
            `[V, model_dim]`, the position's own added.

    Raises:
        ConfigError: if there is no such precision.
    """

    def __init__(
        self, decoder: Decoder, config: ModelConfig, device: str | torch.device, precision: str
    ):
        if precision not in PRECISIONS:
            raise ConfigError(
                f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}"
            )
        self.config, self.precision, self.device = config, precision, torch.device(device)
        self.dtype, fp8 = PRECISIONS[precision], precision == "float8"
        # Whole, so that no later change of the module reaches some of the weights.
        decoder = copy.deepcopy(decoder).to(self.device, torch.float32)
        self.eps = decoder.output_norm.eps or torch.finfo(torch.float32).eps
        self.layers = [StepLayer(layer, self.dtype, fp8) for layer in decoder.layers]
        self.output_norm = norm_weight(decoder.output_norm, self.dtype)
        self.heads = [Projection(h.weight, self.dtype, False, h.bias) for h in decoder.heads]
        embeddings = [decoder.start[None], *(table.weight for table in decoder.tokens)]
        positions = decoder.positions.detach()
        self.inputs = [
            (table.detach() + positions[t]).to(self.dtype) for t, table in enumerate(embeddings)
        ]

    def memory(
        self, batch: int, widths: Sequence[int], num_context: int, ragged: bool = False
    ) -> StepMemory:
        """Allocate the memory of searches of up to `batch` requests.

        Args:
            batch: B at most.
            widths: beams a request entering each step.
            num_context: T.
            ragged: whether requests have context tokens of their own number.
        """
        config = self.config
        heads = (2, config.num_heads, config.head_dim)
        like = {"dtype": self.dtype, "device": self.device}
        context = [torch.zeros(batch, num_context, *heads, **like) for _ in self.layers]
        blocks = max(batch * sum(widths[:-1]), 1)  # nothing follows the last position
        pools = [torch.empty(blocks, *heads, **like) for _ in self.layers]
        lengths = None
        if ragged:
            lengths = torch.full((batch,), num_context, dtype=torch.int32, device=self.device)
        first_blocks = start_blocks(batch, config.num_levels, self.device)
        scales = []
        if self.precision == "float8":
            scales = [torch.ones(batch, device=self.device) for _ in self.layers]
        return StepMemory(context, lengths, pools, first_blocks, scales)

    def load(self, memory: StepMemory, context: Tensor, lengths: Tensor | None = None) -> None:
        """Project the context of B requests into the front of `memory`.

        Args:
            memory: of `memory`; for at least B requests.
            context: `[B, T, model_dim]` of the encoder; what is past a length must be finite.
            lengths: int32 `[B]`, from 1 to T; only for ragged memory, and then all T where None.
        """
        batch, num_context, _ = context.shape
        rows = context.to(self.dtype).flatten(0, 1)
        for layer, target in zip(self.layers, memory.context, strict=True):
            target[:batch].view(batch * num_context, -1).copy_(layer.context(rows))
        if memory.lengths is not None:
            memory.lengths[:batch] = num_context if lengths is None else lengths
        for source, scales in zip(memory.context, memory.value_scales, strict=False):
            value = source[:batch, :, 1].transpose(1, 2)
            scales[:batch] = value_scales(value, lengths)

    def start(self, memory: StepMemory, tables: PrefixTables | None = None) -> StepState:
        """Begin a search over loaded memory whose batch is exactly that of the search."""
        return StepState(memory, memory.first_blocks, tables)

    def step(
        self,
        state: StepState,
        parents: Tensor | None,
        tokens: Tensor | None,
        t: int,
        nodes: Tensor | None = None,
        prefixes: Tensor | None = None,
    ) -> Tensor:
        """Score the tokens of level t.

        Args:
            state: of `start`; changed, so steps come in order.
            parents: int64 `[B, M]`, rows of the step before; None at t = 0, where M is 1.
            tokens: int64 `[B, M]`, tokens of level t - 1; None at t = 0.
            t: the level.
            nodes: int64 `[B, M]`, the beams' trie nodes, -1 for a dead one; for tables, from t = 1.
            prefixes: int32 `[B * M, L + 1]`, 0 and then `1 + j * V + token` of each level j before
                t; for tables.

        Returns:
            Logits `[B, M, V]` of `dtype`.
        """
        batch = len(state.memory.first_blocks)
        if parents is not None:
            self.reorder(state, parents, t)
        delta = None
        for i, layer in enumerate(self.layers):
            if i == 0 and state.tables is not None:
                x, query = self._look_up(state, tokens, t, nodes, prefixes)
            else:
                x = self._embed(batch, tokens, t) if i == 0 else x
                x, query = self._attend(i, layer, x, delta, state, t)
            x, delta = self._after_query(i, layer, x, query, state)
        x, _ = self._norm(x, delta, self.output_norm, None)
        return self.heads[t](x).unflatten(0, (batch, -1))

    def reorder(self, state: StepState, parents: Tensor, t: int) -> None:
        """Make the state's beams those that continue `parents`, int64 `[B, M]`, at step t."""
        state.first_block += len(state.blocks)
        state.blocks = block_reorder(state.blocks, parents, t, state.first_block)

    def _embed(self, batch: int, tokens: Tensor | None, t: int) -> Tensor:
        if tokens is None:
            return self.inputs[0].repeat(batch, 1)
        return self.inputs[t].index_select(0, tokens.flatten())

    def _look_up(
        self,
        state: StepState,
        tokens: Tensor | None,
        t: int,
        nodes: Tensor,
        prefixes: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return what `_attend` of the first layer returns, from tables."""
        tables, batch = state.tables, len(state.memory.first_blocks)
        if t >= len(tables.levels):
            return self.attend_tables(self._embed(batch, tokens, t), tables, prefixes, t)
        if t == 0:
            nodes = torch.zeros(batch, 1, dtype=torch.int64, device=self.device)
        return tables.levels[t].of(nodes.flatten())

    def attend_tables(
        self, x: Tensor, tables: PrefixTables, prefixes: Tensor, t: int
    ) -> tuple[Tensor, Tensor]:
        """Return what `_attend` of the first layer returns, from tables of queries, keys, values.

        Args:
            x: `[rows, model_dim]`, the inputs.
            tables: queries, keys and values of all tokens.
            prefixes: int32 `[rows, > t]`, which of them each row's tokens have.
            t: the level.
        """
        layer = self.layers[0]
        fp8 = layer.self_output.takes_fp8(len(x))
        attention = self_attention_from_table_fp8 if fp8 else self_attention_from_table
        return self._finish_prefix(layer, x, attention(tables.queries, tables.pool, prefixes, t))

    def _attend(
        self, i: int, layer: StepLayer, x: Tensor, delta: Tensor | None, state: StepState, t: int
    ) -> tuple[Tensor, Tensor]:
        """Return the stream after layer i's self-attention block, and the next query."""
        normed, x = self._norm(x, delta, layer.self_norm, layer.qkv)
        return self._finish_prefix(layer, x, self.attend_prefix(i, layer.qkv(normed), state, t))

    def _finish_prefix(
        self, layer: StepLayer, x: Tensor, heads: Tensor | Fp8Rows
    ) -> tuple[Tensor, Tensor]:
        heads = heads if isinstance(heads, Fp8Rows) else heads.flatten(1)
        x, delta = layer.self_output.add_to(x, heads)
        normed, x = self._norm(x, delta, layer.cross_norm, layer.cross_query)
        return x, layer.cross_query(normed)

    def _after_query(
        self, i: int, layer: StepLayer, x: Tensor, query: Tensor, state: StepState
    ) -> tuple[Tensor, Tensor | None]:
        heads = self.attend_context(i, query, state)
        x, delta = layer.cross_output.add_to(x, heads)
        bound = layer.gate_bound if layer.down.takes_fp8(len(x)) else None
        normed, x = self._norm(x, delta, layer.ffn_norm, layer.gate_up, bound)
        return layer.down.add_to(x, layer.gate_up.swiglu(normed))

    def attend_prefix(self, i: int, qkv: Tensor, state: StepState, t: int) -> Tensor | Fp8Rows:
        """Self-attention of layer i of `[rows, 3 H D]`: `[rows, H, D]`, or FP8 `[rows, H D]`."""
        fp8 = self.layers[i].self_output.takes_fp8(len(qkv))
        attention = self_attention_paged_fp8 if fp8 else self_attention_paged
        follows = t + 1 < self.config.num_levels
        return attention(qkv, state.memory.pools[i], state.blocks, t, keep=follows)

    def attend_context(self, i: int, query: Tensor, state: StepState) -> Tensor | Fp8Rows:
        """Cross-attention of layer i: `[rows, H D]` of `[rows, H D]`."""
        memory, rows = state.memory, len(query)
        key, value = memory.context[i].transpose(1, 3).unbind(2)
        batch, num_heads, _, head_dim = key.shape
        query = query.view(batch, -1, num_heads, head_dim)
        if self.layers[i].cross_output.takes_fp8(rows):
            return cross_attention_fp8(query, key, value, memory.value_scales[i], memory.lengths)
        return cross_attention(query, key, value, memory.lengths).flatten(0, 1).flatten(1)

    def norm(self, x: Tensor, weight: Tensor, reader: Projection | None) -> Tensor | Fp8Rows:
        """Return the norm of `[rows, model_dim]`, in the form that its reader takes."""
        return self._norm(x, None, weight, reader)[0]

    def _norm(
        self,
        x: Tensor,
        delta: Tensor | None,
        weight: Tensor,
        reader: Projection | None,
        gate_bound: float | None = None,
    ) -> tuple[Tensor | Fp8Rows, Tensor]:
        """Return the norm of the stream and the stream, what was left to add included.

        With a `gate_bound` a reader that takes FP8 may give it, too, by `swiglu`.
        """
        if reader is not None and reader.takes_fp8(len(x)):
            if delta is None:
                return rms_norm_fp8(x, weight, self.eps, gate_bound=gate_bound), x
            return add_rms_norm_fp8(delta, x, weight, self.eps, gate_bound=gate_bound)
        if delta is None:
            return rms_norm(x, weight, self.eps), x
        return add_rms_norm(delta, x, weight, self.eps)
