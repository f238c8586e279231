"""Self-attention keys and values of the beams' SID prefixes."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.model.config import ModelConfig


class BeamCache:
    """Keys and values of every decoder layer, beam and SID position, in buffers that stay in place.

    Two buffers take turns: re-ordering reads one and writes the other, so that a parent may have
    many children without any of them overwriting it.

    Args:
        config: the decoder's sizes.
        max_beams: rows a request that the buffers have room for; a wider step replaces them.
        context_key: `[B, H, T, D]`; the buffers take over its batch size, dtype and device.
    """

    def __init__(self, config: ModelConfig, max_beams: int, context_key: Tensor):
        self.batch_size = context_key.shape[0]
        self._config = config
        self._num_beams = 1
        self._front = self._allocate(max_beams, context_key)
        self._back = self._allocate(max_beams, context_key)

    def reorder(self, parents: Tensor, length: int) -> None:
        """Make row m of each request continue row `parents[b, m]` of the step before.

        Args:
            parents: `[B, M]` int64, rows of the step before.
            length: how many positions the prefixes have.
        """
        self._num_beams = parents.shape[1]
        if self._num_beams > self._back.shape[3]:
            self._back = self._allocate(self._num_beams, like=self._front)
        source = self._front[..., :length, :]
        rows = parents[None, None, :, :, None, None, None]
        rows = rows.expand(*source.shape[:2], -1, -1, *source.shape[4:])
        torch.gather(source, 3, rows, out=self._back[:, :, :, : self._num_beams, :, :length])
        self._front, self._back = self._back, self._front

    def append(self, layer: int, t: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store position t of a layer and return all its positions up to t.

        Args:
            layer: which decoder layer.
            t: the position.
            key: `[B, M, H, 1, D]`.
            value: `[B, M, H, 1, D]`.

        Returns:
            Keys and values `[B, M, H, t + 1, D]`, views of the cache.
        """
        keys, values = self._front[:, layer, :, : self._num_beams]
        keys[..., t : t + 1, :] = key
        values[..., t : t + 1, :] = value
        return keys[..., : t + 1, :], values[..., : t + 1, :]

    def _allocate(self, max_beams: int, like: Tensor) -> Tensor:
        config = self._config
        beam = (config.num_heads, config.num_levels, config.head_dim)
        return like.new_empty((2, config.decoder_layers, self.batch_size, max_beams, *beam))
