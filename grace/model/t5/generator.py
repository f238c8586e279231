"""T5 as retrieval runs it: packed weights, one context a request, beams as its queries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grace.errors import ModelError
from grace.kernels.ancestor_attention import ancestor_attention
from grace.kernels.logsumexp import logsumexp
from grace.model.t5 import layers
from grace.model.t5.features import HistoryFeatures
from grace.model.t5.module import T5, Block, Stack, hidden
from grace.model.t5.packed import FoldedContext, PackedBlock, keep, normed, packed

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
        keys: `[layers, B, d, H * S]`, of `FoldedContext`.
        values: `[layers, B, H * S, d]`.
        bias: `[B, 1, 1, S]`, 0, or the lowest finite number on padding; None where there is none.
        past: per position that has been, per layer, `[B * M_t, 3 * H * D]`: what the beams of that
            step projected. They stay where they are, as long as a later step may read them.
        ancestors: per position before the step, int64 `[B * M]`: the row of `past` that each beam
            continues. Re-ordering beams moves these alone.
    """

    keys: Tensor
    values: Tensor
    bias: Tensor | None
    past: list[list[Tensor]] = field(default_factory=list)
    ancestors: list[Tensor] = field(default_factory=list)

    @property
    def batch(self) -> int:
        """B."""
        return self.keys.shape[1]

    def reorder(self, parents: Tensor) -> None:
        """Make the beams those that continue `parents`, int64 `[B, M]`, rows of the step before."""
        before = len(self.past[-1][0]) // self.batch
        first = torch.arange(0, self.batch * before, before, device=parents.device)
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
        check_unchanged(model)
        self.tokens, self.sizes = model.tokens, model.config
        self.config = SidSizes(self.tokens.num_levels, self.tokens.num_codes)
        self.features = HistoryFeatures(self.tokens, model.max_items)
        sizes = model.config
        scale = sizes.d_model**-0.5 if sizes.scale_decoder_outputs else 1.0
        encoder, decoder = model.encoder, model.decoder
        with torch.no_grad():
            self.encoder = nn.ModuleList(PackedBlock(block, sizes) for block in encoder.block)
            self.decoder = nn.ModuleList(PackedBlock(block, sizes) for block in decoder.block)
            self.fold = FoldedContext(decoder.block, sizes)
            for name, tensor in (
                ("embeddings", model.shared.weight),
                ("encoder_bias", encoder.position_bias(self.features.width)),
                ("encoder_norm", encoder.final_layer_norm.weight),
                ("decoder_bias", decoder.position_bias(self.config.num_levels)),
                ("head_norm", decoder.final_layer_norm.weight * scale),
                ("head", packed(model.lm_head)),
            ):
                keep(self, name, tensor)

    @torch.inference_mode()
    def prefill(self, inputs: dict[str, Tensor]) -> T5Buffers:
        """Encode B requests and fold their contexts into the decoder's cross-attention.

        Args:
            inputs: of `HistoryFeatures.encode`, on the model's device.
        """
        ids, mask = inputs["input_ids"], inputs["mask"]
        padding = None
        if len(ids) == 1 and ids.device.type == "cpu":
            # Alone, a request needs no padding: positions count by their distances only.
            ids = ids[mask][None]
        else:
            padding = hidden(self.encoder_bias.new_zeros(1), ~mask[:, None, None, :])
        context = self._encode(ids, padding)
        return T5Buffers(*self.fold(context), padding)

    def _encode(self, ids: Tensor, padding: Tensor | None) -> Tensor:
        batch, length = ids.shape
        bias = self.encoder_bias[None, :, :length, :length]
        bias = bias if padding is None else bias + padding
        shape = (batch, length, 3, self.sizes.num_heads, self.sizes.d_kv)
        x = self.embeddings[ids.flatten()]
        for block in self.encoder:
            parts = block.project(x).view(shape).permute(2, 0, 3, 1, 4).unbind()
            heads = F.scaled_dot_product_attention(*parts, attn_mask=bias, scale=1.0)
            x = block.feed(block.finish(x, heads.transpose(1, 2).reshape(len(x), -1)))
        return normed(x, self.encoder_norm, self.sizes).view(batch, length, -1)

    @torch.inference_mode()
    def decode(
        self, buffers: T5Buffers, parents: Tensor | None, tokens: Tensor | None, t: int
    ) -> tuple[Tensor, Tensor]:
        """Score the codes of level t for every beam; arguments as of `EncoderDecoder.decode`.

        Returns:
            Logits `[B, M, V]` float32 of the level's codes, -inf past its last, and the
            log-sum-exp `[B, M]` float64 of the logits of all tokens of the model.
        """
        if parents is None:
            x = self.embeddings[self.sizes.decoder_start_token_id].repeat(buffers.batch, 1)
        else:
            buffers.reorder(parents)
            x = self.embeddings[(tokens + self.tokens.starts[t - 1]).flatten()]
        bias = self.decoder_bias[:, t, : t + 1]
        projected = []
        for i, block in enumerate(self.decoder):
            own = block.project(x)
            projected.append(own)
            past = [position[i] for position in buffers.past]
            heads = ancestor_attention(own, past, buffers.ancestors, bias)
            x = block.finish(x, heads)
            x = block.read(x, buffers.keys[i], buffers.values[i], buffers.bias)
            x = block.feed(x)
        buffers.past.append(projected)
        logits = (normed(x, self.head_norm, self.sizes) @ self.head).unflatten(
            0, (buffers.batch, -1)
        )
        start, size = self.tokens.starts[t], self.tokens.sizes[t]
        columns = logits[..., start : start + size]
        if size < self.config.vocab_size:
            columns = F.pad(columns, (0, self.config.vocab_size - size), value=-torch.inf)
        return columns, logsumexp(logits)


def check_unchanged(model: T5) -> None:
    """Raise ModelError if a model is not as Grace made it."""
    for name, module in model.named_modules():
        hooked = module._forward_hooks or module._forward_pre_hooks
        if type(module) not in KNOWN_MODULES or hooked:
            raise ModelError(
                f"the T5's {name or 'module'} was changed: merge what was added into the "
                "weights, or give a model with start and step"
            )
