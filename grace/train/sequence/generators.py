"""Models that write SIDs, over the SIDs of a data set: TIGER's T5 and GRACE's encoder-decoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from grace.model import EncoderDecoder
from grace.model.fields import MISSING, PADDING
from grace.model.t5 import T5, assembled, shifted
from grace.model.t5.generator import T5Generator
from grace.train.sequence.loss import code_loss
from grace.train.sequence.search import rank_items
from grace.train.sequence.sids import SidTable
from grace.train.sequence.windows import Batch, Ranker


class Tiger(nn.Module):
    """A T5 that reads the SIDs of a history and writes the next one (Rajput et al., 2023).

    Args:
        model: knows its tokens.
        table: SIDs of the data's items, on the device where the model will be.
    """

    casts_weights = True

    def __init__(self, model: T5, table: SidTable):
        super().__init__()
        self.model, self.table = model, table
        tokens = model.tokens
        self.register_buffer("item_tokens", tokens.tokens(table.sids), persistent=False)
        self.blocks = [
            slice(start, start + size)
            for start, size in zip(tokens.starts, tokens.sizes, strict=True)
        ]

    def inputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the encoder's `input_ids` and `mask` of a batch."""
        items = batch.items[:, :-1]
        tokens = self.model.tokens
        users = tokens.user_tokens(batch.users) if tokens.num_users else None
        return assembled(self.item_tokens[items.clamp_min(0)], batch.lengths, items.shape[1], users)

    def forward(
        self, batch: Batch, pieces: Sequence[tuple[int, int]], smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy of the next items' tokens, summed, and how many tokens.

        Args:
            batch: the rows of all pieces.
            pieces: of each, in their order, rows and the most items that one of them has.
            smoothing: share of each target that is spread over its level.
        """
        tokens = self.model.tokens
        ids, mask = self.inputs(batch)
        inputs, start = [], 0
        for rows, room in pieces:
            width = bool(tokens.num_users) + room * tokens.num_levels + 1
            cut = slice(start, start + rows), slice(width)
            inputs.append((ids[cut], mask[cut]))
            start += rows
        target = self.item_tokens[batch.targets]
        logits = self.model.score_pieces(inputs, shifted(target))
        return code_loss(logits, target, batch.lengths > 0, self.blocks, smoothing)

    loss = forward

    def ranker(self, beam_width: int) -> Ranker:
        """Return `(batch, k) -> [R, k]` item numbers by beam search; the weights are copied."""
        generator = T5Generator(self.model)

        @torch.inference_mode()
        def rank(batch: Batch, k: int) -> Tensor:
            ids, mask = self.inputs(batch)
            buffers = generator.prefill({"input_ids": ids, "mask": mask})
            return rank_items(generator, buffers, self.table, len(ids), beam_width, k)

        return rank


class GraceModel(nn.Module):
    """GRACE's encoder-decoder over histories alone.

    Args:
        model: its one feature is the sequence `history`.
        table: SIDs of the data's items, on the device where the model will be.
    """

    def __init__(self, model: EncoderDecoder, table: SidTable):
        super().__init__()
        self.model, self.table = model, table
        self.register_buffer("item_sids", table.sids, persistent=False)
        self.history = model.features.fields[0].max_length
        self.blocks = [slice(0, size) for size in table.sizes]

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Return the encoder's inputs of a batch: padding first, always as wide as a history."""
        place = torch.arange(self.history, device=batch.items.device) - self.history
        place = place + batch.lengths[:, None]
        valid = place >= 0
        items = batch.items.gather(1, place.clamp_min(0)).clamp_min(0)
        special = torch.where(valid, MISSING, PADDING)
        return {
            "history.tokens": torch.where(valid[..., None], self.item_sids[items], 0),
            "history.actions": special,
            "history.gaps": special,
            "history.valid": valid,
        }

    def loss(
        self, batch: Batch, pieces: Sequence[tuple[int, int]], smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy of the next items' codes, summed, and how many codes.

        Args:
            batch: the rows.
            pieces: not asked: all histories are padded alike.
            smoothing: share of each target that is spread over its level.
        """
        target = self.item_sids[batch.targets]
        logits = self.model(self.inputs(batch), target)
        return code_loss(logits, target, batch.lengths > 0, self.blocks, smoothing)

    def ranker(self, beam_width: int) -> Ranker:
        """Return `(batch, k) -> [R, k]` item numbers by beam search."""

        @torch.inference_mode()
        def rank(batch: Batch, k: int) -> Tensor:
            buffers = self.model.prefill(self.inputs(batch), beam_width)
            return rank_items(self.model, buffers, self.table, len(batch.lengths), beam_width, k)

        return rank
