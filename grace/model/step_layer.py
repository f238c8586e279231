"""A decoder's weights laid out for steps, and which decoders they stand for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from grace.kernels.linear import equalise_gates, interleave_gate_up
from grace.model.decoder import Decoder, DecoderLayer
from grace.model.layers import Attention, SwiGLU
from grace.model.projection import Projection

KNOWN_MODULES = frozenset({
    Decoder, DecoderLayer, Attention, SwiGLU, nn.ModuleList, nn.Linear, nn.Embedding, nn.RMSNorm,
    nn.Dropout,
})  # fmt: skip


def can_be_packed(decoder: nn.Module) -> bool:
    """Whether steps over a decoder's weights compute what the module computes.

    They do not where something in it was replaced, such as by an adapter, or has hooks.
    """
    return all(
        type(module) in KNOWN_MODULES and not (module._forward_hooks or module._forward_pre_hooks)
        for module in decoder.modules()
    )


class StepLayer:
    """The weights of one decoder layer, laid out for steps.

    Args:
        layer: in float32, on the device of the steps.
        dtype: of what is not in E4M3.
        fp8: whether products may be; that of the context, once a request, never is.

    Attributes:
        gate_bound: of `gate_up` in E4M3 (`grace.kernels.linear.gate_bound`); None without E4M3.
    """

    def __init__(self, layer: DecoderLayer, dtype: torch.dtype, fp8: bool):
        attention, cross = layer.self_attention, layer.cross_attention
        qkv = torch.cat([attention.query.weight, attention.key_value.weight])
        self.self_norm = norm_weight(layer.self_norm, dtype)
        self.qkv = Projection(qkv, dtype, fp8)
        self.self_output = Projection(attention.output.weight, dtype, fp8)
        self.cross_norm = norm_weight(layer.cross_norm, dtype)
        self.cross_query = Projection(cross.query.weight, dtype, fp8)
        self.cross_output = Projection(cross.output.weight, dtype, fp8)
        self.context = Projection(cross.key_value.weight, dtype, False)
        self.ffn_norm = norm_weight(layer.feed_forward_norm, dtype)
        down = layer.feed_forward.down.weight.detach()
        gate_up = interleave_gate_up(layer.feed_forward.gate_up.weight.detach())
        if fp8:
            gate_up, down = equalise_gates(gate_up, down)
        self.gate_up = Projection(gate_up, dtype, fp8)
        self.gate_bound = self.gate_up.gate_bound()
        self.down = Projection(down, dtype, fp8)


def norm_weight(norm: nn.RMSNorm, dtype: torch.dtype) -> Tensor:
    """Return a norm's weight, `[model_dim]`, in a dtype."""
    return norm.weight.detach().to(dtype)
