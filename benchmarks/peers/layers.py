"""One decoder layer at one position, for caches that are not Grace's."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from grace.model.decoder import DecoderLayer, KeyValue
from grace.model.layers import beam_as_query_attention


def layer_step(
    layer: DecoderLayer,
    x: Tensor,
    extend: Callable[[Tensor, Tensor], KeyValue],
    self_attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    cross_attend: Callable[[Tensor], Tensor],
) -> Tensor:
    """What `DecoderLayer.step` does, with the cache and both attentions given.

    Args:
        layer: the weights.
        x: [R, 1, model_dim].
        extend: adds this position's keys and values, [R, H, 1, D], and returns all, [R, H, t, D].
        self_attend: query [R, H, 1, D], keys, values → [R, H, 1, D].
        cross_attend: query [R, H, 1, D] → [R, H, 1, D].
    """
    normed = layer.self_norm(x)
    query = layer.self_attention.project_query(normed)
    key, value = extend(*layer.self_attention.project_key_value(normed))
    x = x + layer.self_attention.project_output(self_attend(query, key, value))
    query = layer.cross_attention.project_query(layer.cross_norm(x))
    x = x + layer.cross_attention.project_output(cross_attend(query))
    return x + layer.feed_forward(layer.feed_forward_norm(x))


def short_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention of one query to a handful of keys, as sums of products.

    Rows are many and keys are four: kernels made for long sequences fill a tile with each row and
    leave it all but empty, which takes longer than to read the cache several times over.
    """
    weights = (query * key).sum(-1, dtype=torch.float32) * query.shape[-1] ** -0.5
    weights = weights.softmax(-1).to(value.dtype)
    return (weights[..., None] * value).sum(-2, keepdim=True)


def shared_cross_attend(query: Tensor, context: KeyValue) -> Tensor:
    """All beams of a request read its one copy of keys and values.

    Args:
        query: [B * M, H, 1, D].
        context: keys and values, each [B, H, T, D].
    """
    heads = beam_as_query_attention(query.unflatten(0, (len(context[0]), -1)), *context)
    return heads.flatten(0, 1)


def materialised_cross_attend(query: Tensor, context: KeyValue) -> Tensor:
    """Every beam reads its own copy: query [R, H, 1, D], keys and values [R, H, T, D]."""
    return F.scaled_dot_product_attention(query, *context)
