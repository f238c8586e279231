"""T5 as retrieval runs it: packed weights, one context a request, beams as its queries."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grace.errors import ModelError
from grace.kernels.logsumexp import logsumexp
from grace.model.t5 import layers
from grace.model.t5.features import HistoryFeatures
from grace.model.t5.module import T5, Block, Stack, hidden

KNOWN_MODULES = {
    T5, Stack, Block, nn.ModuleList, nn.Embedding, nn.Linear, nn.Dropout, layers.Attention,
    layers.CrossAttentionLayer, layers.FeedForward, layers.FeedForwardLayer, layers.RelativeBias,
    layers.RmsNorm, layers.SelfAttentionLayer,
}  # fmt: skip


class SidSizes(NamedTuple):
    """What a search must know of the SIDs that a model writes.

    Attributes:
        num_levels: L.
        vocab_size: V, the most codes of a level.
    """

    num_levels: int
    vocab_size: int


@dataclass
class T5Buffers:
    """What the decode steps of one batch share.

    Attributes:
        keys: per layer `[B, d, H * S]`: queries and keys in one, from a normed stream to scores.
        values: per layer `[B, H * S, d]`: values and the output projection in one.
        bias: `[B, 1, 1, S]`, 0, or the lowest finite number on padding.
        past: per position that has been, per layer, `[B * M_t, 2 * H * D]`: keys and values of the
            beams of that step. They stay where they are, as long as a later step may read them.
        ancestors: per position before the step, int64 `[B * M]`: the row of `past` that each beam
            continues. Re-ordering beams moves these alone.
    """

    keys: list[Tensor]
    values: list[Tensor]
    bias: Tensor
    past: list[list[Tensor]] = field(default_factory=list)
    ancestors: list[Tensor] = field(default_factory=list)

    def reorder(self, parents: Tensor) -> None:
        """Make the beams those that continue `parents`, int64 `[B, M]`, rows of the step before."""
        batch = len(self.bias)
        before = len(self.past[-1][0]) // batch
        first = torch.arange(0, batch * before, before, device=parents.device)
        rows = (parents + first[:, None]).flatten()
        self.ancestors = [*(place[rows] for place in self.ancestors), rows]


class T5Generator(nn.Module):
    """A tensor-only core over a copy of a T5's weights, in float32 (docs/t5.md).

    Args:
        model: stays as and where it is.

    Raises:
        ModelError: if the model does not say which token is which code, or if something in it was
            replaced or has hooks, which packed weights would leave out.

    Attributes:
        config: the sizes of its SIDs.
        tokens: which token is which code.
        features: what it reads of requests.
    """

    def __init__(self, model: T5):
        super().__init__()
        if model.tokens is None:
            raise ModelError(
                "the T5 does not say which token is which code of a SID: load its folder with "
                "grace.model.t5.load_hf(folder, tokens=TokenMap(...)) and give the model, or save "
                "it again with save_hf"
            )
        for name, module in model.named_modules():
            if (
                type(module) not in KNOWN_MODULES
                or module._forward_hooks
                or module._forward_pre_hooks
            ):
                raise ModelError(
                    f"the T5's {name or 'module'} was changed: merge what was added into the "
                    "weights, or give a model with start and step"
                )
        self.tokens, self.sizes = model.tokens, model.config
        self.config = SidSizes(self.tokens.num_levels, self.tokens.num_codes)
        self.features = HistoryFeatures(self.tokens, model.max_items)
        self.encoder = copy.deepcopy(model.encoder).eval().float()
        with torch.no_grad():
            self._pack(model)

    def _pack(self, model: T5) -> None:
        """Keep the decoder as products of rows and `[inputs, outputs]`, norms' weights in them."""
        sizes = self.sizes

        def keep(name: str, *parts: Tensor, norm: Tensor | None = None) -> None:
            weight = torch.cat([part.detach().float().T for part in parts], 1)
            weight = weight if norm is None else norm.detach().float()[:, None] * weight
            self.register_buffer(name, weight.clone(memory_format=torch.contiguous_format))

        self.register_buffer("embeddings", model.shared.weight.detach().float().clone())
        for i, block in enumerate(model.decoder.block):
            own, cross, feed = block.layer
            attention, norm = own.SelfAttention, own.layer_norm.weight
            keep(f"own_in_{i}", attention.q.weight, attention.k.weight, attention.v.weight,
                 norm=norm)  # fmt: skip
            keep(f"own_out_{i}", attention.o.weight)
            attention = cross.EncDecAttention
            keep(f"query_{i}", attention.q.weight, norm=cross.layer_norm.weight)
            keep(f"context_{i}", attention.k.weight, attention.v.weight)
            keep(f"cross_out_{i}", attention.o.weight)
            dense, norm = feed.DenseReluDense, feed.layer_norm.weight
            parts = (dense.wi_0.weight, dense.wi_1.weight) if dense.gated else (dense.wi.weight,)
            keep(f"feed_in_{i}", *parts, norm=norm)
            keep(f"feed_out_{i}", dense.wo.weight)
        scale = sizes.d_model**-0.5 if sizes.scale_decoder_outputs else 1.0
        keep("head", model.lm_head.weight, norm=model.decoder.final_layer_norm.weight * scale)
        bias = model.decoder.block[0].layer[0].SelfAttention.relative_attention_bias
        places = torch.arange(self.config.num_levels, device=bias.weight.device)
        self.register_buffer("own_bias", bias(places, places).detach().float().clone())

    @torch.inference_mode()
    def prefill(self, inputs: dict[str, Tensor]) -> T5Buffers:
        """Encode B requests and fold their contexts into the decoder's cross-attention.

        Scores of a beam with normed stream n over the context c are n W_q (c W_k)^T, so
        W_q (c W_k)^T is computed once a request, `d` by `H * S`; likewise (c W_v) W_o.

        Args:
            inputs: of `HistoryFeatures.encode`, on the model's device.
        """
        ids, mask = inputs["input_ids"], inputs["mask"]
        if len(ids) == 1 and ids.device.type == "cpu":
            # Alone, a request needs no padding: positions count by their distances only.
            ids, mask = ids[mask][None], mask[mask][None]
        context = self.encoder(self.embeddings[ids], mask)
        keys, values = [], []
        shape = (self.sizes.num_heads, self.sizes.d_kv)
        for i in range(self.sizes.num_decoder_layers):
            pair = (context @ self._of("context", i)).unflatten(2, (2, *shape))
            key, value = pair.permute(2, 0, 3, 1, 4).unbind()  # [B, H, S, D]
            query = self._of("query", i).unflatten(1, shape).transpose(0, 1)  # [H, d, D]
            output = self._of("cross_out", i).unflatten(0, shape)  # [H, D, d]
            folded = query @ key.transpose(2, 3)  # [B, H, d, S]
            keys.append(folded.transpose(1, 2).flatten(2))
            values.append((value @ output).flatten(1, 2))
        bias = hidden(context.new_zeros(1), ~mask[:, None, None, :])
        return T5Buffers(keys, values, bias)

    @torch.inference_mode()
    def decode(
        self, buffers: T5Buffers, parents: Tensor | None, tokens: Tensor | None, t: int
    ) -> tuple[Tensor, Tensor]:
        """Score the codes of level t for every beam.

        Args:
            buffers: of `prefill`; changed in place, so steps come in order, t = 0 first.
            parents: int64 `[B, M]`, the row of the step before that each beam continues; None at
                t = 0, where M is 1.
            tokens: int64 `[B, M]`, the code of level t - 1 of each beam; None at t = 0.
            t: the level, below L.

        Returns:
            Logits `[B, M, V]` float32 of the level's codes, -inf past its last, and the
            log-sum-exp `[B, M]` float64 of the logits of all tokens of the model.
        """
        batch = len(buffers.bias)
        if parents is None:
            x = self.embeddings[self.sizes.decoder_start_token_id].repeat(batch, 1)
        else:
            buffers.reorder(parents)
            x = self.embeddings[(tokens + self.tokens.starts[t - 1]).flatten()]
        buffers.past.append([])
        for i in range(self.sizes.num_decoder_layers):
            x = self._layer(i, x, buffers, t)
        logits = (self._normed(x) @ self.head).unflatten(0, (batch, -1))
        start, size = self.tokens.starts[t], self.tokens.sizes[t]
        columns = logits[..., start : start + size]
        if size < self.config.vocab_size:
            columns = F.pad(columns, (0, self.config.vocab_size - size), value=-torch.inf)
        return columns, logsumexp(logits)

    def _layer(self, i: int, x: Tensor, buffers: T5Buffers, t: int) -> Tensor:
        own = self._normed(x) @ self._of("own_in", i)
        x = x.addmm(self._attend_prefix(i, own, buffers, t), self._of("own_out", i))
        batch = len(buffers.bias)
        scores = self._normed(x).unflatten(0, (batch, -1)) @ buffers.keys[i]
        by_head = scores.unflatten(2, (self.sizes.num_heads, -1)) + buffers.bias
        weights = by_head.softmax(-1).flatten(2)
        x = x.unflatten(0, (batch, -1)).baddbmm(weights, buffers.values[i]).flatten(0, 1)
        inner = self._normed(x) @ self._of("feed_in", i)
        if self.sizes.feed_forward_proj == "relu":
            inner = inner.relu_()
        else:
            gate, up = inner.chunk(2, 1)
            inner = F.gelu(gate, approximate="tanh") * up
        return x.addmm(inner, self._of("feed_out", i))

    def _attend_prefix(self, i: int, own: Tensor, buffers: T5Buffers, t: int) -> Tensor:
        """Attend from the newest position to all of a beam's own, `[B * M, H * D]`.

        Args:
            i: the layer.
            own: `[B * M, 3 * H * D]`, queries, keys and values of the newest.
            buffers: get the newest.
            t: the newest position.
        """
        query, newest = own.tensor_split((own.shape[1] // 3,), 1)
        buffers.past[t].append(newest)
        shape = (self.sizes.num_heads, self.sizes.d_kv)
        pairs = [
            past[i].index_select(0, rows)
            for past, rows in zip(buffers.past[:t], buffers.ancestors, strict=True)
        ]
        pairs = [pair.unflatten(1, (2, *shape)) for pair in (*pairs, newest)]
        query = query.unflatten(1, shape)
        scores = torch.stack([(query * pair[:, 0]).sum(2) for pair in pairs], 2)
        weights = (scores + self.own_bias[:, t, : t + 1]).softmax(2)
        return sum(weights[..., j, None] * pair[:, 1] for j, pair in enumerate(pairs)).flatten(1)

    def _normed(self, x: Tensor) -> Tensor:
        """Return rows of mean square 1; the norm's weights are in what reads them."""
        return F.rms_norm(x, x.shape[-1:], eps=self.sizes.layer_norm_epsilon)

    def _of(self, name: str, i: int) -> Tensor:
        return getattr(self, f"{name}_{i}")
