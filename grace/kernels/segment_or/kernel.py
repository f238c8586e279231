"""segment_or in Triton: short segments a thread each, wide ones a tile, long rests in chunks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

LIMIT = 4  # words that one thread reads of a short segment
CHUNK = 32  # words of a long segment's rest that are read together


@dataclass(frozen=True)
class Chunks:
    """What short segments' threads leave of long segments, in pieces of at most `CHUNK` words.

    Attributes:
        segments: int32 [n], which segment each piece belongs to.
        starts: int32 or int64 [n], its first word.
        counts: int32 [n], how many words.
        limit: words at the start of each segment that are in no piece.
    """

    segments: Tensor
    starts: Tensor
    counts: Tensor
    limit: int

    @staticmethod
    def of(offsets: Tensor, limit: int = LIMIT, device: str | torch.device = "cpu") -> Chunks:
        """Cut segments, given by int32 or int64 offsets on the CPU; the pieces go to a device."""
        bounds = offsets.numpy()
        rest = np.diff(bounds) - limit
        long = np.flatnonzero(rest > 0)
        pieces = -(-rest[long] // CHUNK)
        segments = np.repeat(long, pieces)
        rank = np.arange(len(segments)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        starts = bounds[segments] + limit + rank * CHUNK
        counts = np.minimum(bounds[segments + 1] - starts, CHUNK)
        typed = (segments.astype(np.int32), starts.astype(bounds.dtype), counts.astype(np.int32))
        return Chunks(*(torch.from_numpy(array).to(device) for array in typed), limit)


def segment_or_triton(
    words: Tensor, offsets: Tensor, shift: int, out: Tensor, chunks: Chunks | None = None
) -> Tensor:
    """Fill and return `out`; the contract is `segment_or`'s.

    `chunks` of the same offsets, made once, keep long segments from holding up short ones.
    """
    segments = len(out)
    if segments == 0:
        return out
    if chunks is None:
        columns = min(max(triton.next_power_of_2(len(words) // segments), 8), 128)
        rows = 512 // columns
        segment_or_tiles[(triton.cdiv(segments, rows),)](
            words, offsets, out, segments, shift, ROWS=rows, COLS=columns, num_warps=4
        )
        return out
    segment_or_short[(triton.cdiv(segments, 512),)](
        words, offsets, out, segments, shift, LIMIT=chunks.limit, BLOCK=512, num_warps=4
    )
    if len(chunks.segments):
        segment_or_rests[(triton.cdiv(len(chunks.segments), 16),)](
            words, chunks.segments, chunks.starts, chunks.counts, out, len(chunks.segments), shift,
            ROWS=16, COLS=CHUNK, num_warps=4,
        )  # fmt: skip
    return out


@triton.jit
def word_or(left, right):
    return left | right


@triton.jit
def segment_or_tiles(
    words, offsets, out, num_segments, shift, ROWS: tl.constexpr, COLS: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < num_segments
    begin = tl.load(offsets + row, mask=inside, other=0) + shift
    end = tl.load(offsets + row + 1, mask=inside, other=0) + shift
    end = tl.where(inside, end, begin)
    column = tl.arange(0, COLS)
    word = tl.zeros((ROWS, COLS), tl.int32)
    longest = tl.max(end - begin, 0)
    step = 0
    while step < longest:
        position = begin[:, None] + (step + column)[None, :]
        word |= tl.load(words + position, mask=position < end[:, None], other=0)
        step += COLS
    tl.store(out + row, tl.reduce(word, 1, word_or), mask=inside)


@triton.jit
def segment_or_short(
    words, offsets, out, num_segments, shift, LIMIT: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < num_segments
    begin = tl.load(offsets + row, mask=inside, other=0) + shift
    end = tl.load(offsets + row + 1, mask=inside, other=0) + shift
    word = tl.zeros((BLOCK,), tl.int32)
    for step in tl.static_range(LIMIT):
        word |= tl.load(words + begin + step, mask=inside & (begin + step < end), other=0)
    tl.store(out + row, word, mask=inside)


@triton.jit
def segment_or_rests(
    words, segments, starts, counts, out, num_chunks, shift,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < num_chunks
    start = tl.load(starts + row, mask=inside, other=0) + shift
    count = tl.load(counts + row, mask=inside, other=0)
    column = tl.arange(0, COLS)
    filled = column[None, :] < count[:, None]
    word = tl.load(words + start[:, None] + column[None, :], mask=filled, other=0)
    word = tl.reduce(word, 1, word_or)
    segment = tl.load(segments + row, mask=inside, other=0)
    tl.atomic_or(out + segment, word, mask=inside & (word != 0), sem="relaxed")
