"""leaf_words in Triton: a thread per SID, long SIDs' rests in chunks."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.segment_or.kernel import LIMIT, Chunks, word_or


def leaf_words_triton(
    signature_words: Tensor,
    ad_signatures: Tensor,
    ad_state: Tensor | None,
    sid_ad_offsets: Tensor,
    out: Tensor,
    chunks: Chunks | None = None,
    block: int = 512,
) -> Tensor:
    """Fill and return `out`; the contract is `leaf_words`'.

    Args:
        ad_state: None where `ad_signatures` is -1 for each ad that is not live.
        chunks: of `sid_ad_offsets`, made once; they keep long SIDs from holding up short ones.
        block: SIDs of one program.
    """
    if len(out) == 0:
        return out
    ads = (signature_words, ad_signatures, ad_signatures if ad_state is None else ad_state)
    has_state = ad_state is not None
    leaf_words_short[(triton.cdiv(len(out), block),)](
        *ads, sid_ad_offsets, out, len(out), HAS_STATE=has_state, HAS_CHUNKS=chunks is not None,
        LIMIT=LIMIT if chunks is None else chunks.limit, BLOCK=block, num_warps=4,
    )  # fmt: skip
    if chunks is not None and len(chunks.segments):
        leaf_words_rests[(triton.cdiv(len(chunks.segments), 16),)](
            *ads, chunks.segments, chunks.starts, chunks.counts, out, len(chunks.segments),
            HAS_STATE=has_state, ROWS=16, COLS=32, num_warps=4,
        )  # fmt: skip
    return out


@triton.jit
def live_words(signature_words, ad_signatures, ad_state, ad, asked, HAS_STATE: tl.constexpr):
    signature = tl.load(ad_signatures + ad, mask=asked, other=-1)
    if HAS_STATE:
        asked = asked & (tl.load(ad_state + ad, mask=asked, other=1) == 0)
    return tl.load(signature_words + signature, mask=asked & (signature >= 0), other=0)


@triton.jit
def leaf_words_short(
    signature_words, ad_signatures, ad_state, sid_ad_offsets, out, num_sids,
    HAS_STATE: tl.constexpr, HAS_CHUNKS: tl.constexpr, LIMIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < num_sids
    ad = tl.load(sid_ad_offsets + row, mask=inside, other=0)
    end = tl.load(sid_ad_offsets + row + 1, mask=inside, other=0)
    word = tl.zeros((BLOCK,), tl.int32)
    for step in tl.static_range(LIMIT):
        asked = inside & (ad + step < end)
        word |= live_words(signature_words, ad_signatures, ad_state, ad + step, asked, HAS_STATE)
    if not HAS_CHUNKS:
        longest = tl.max(tl.where(inside, end - ad, 0), 0)
        step = LIMIT
        while step < longest:
            asked = inside & (ad + step < end)
            word |= live_words(
                signature_words, ad_signatures, ad_state, ad + step, asked, HAS_STATE
            )
            step += 1
    tl.store(out + row, word, mask=inside)


@triton.jit
def leaf_words_rests(
    signature_words, ad_signatures, ad_state, sids, starts, counts, out, num_chunks,
    HAS_STATE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < num_chunks
    start = tl.load(starts + row, mask=inside, other=0)
    count = tl.load(counts + row, mask=inside, other=0)
    column = tl.arange(0, COLS)
    asked = column[None, :] < count[:, None]
    ad = start[:, None] + column[None, :]
    word = live_words(signature_words, ad_signatures, ad_state, ad, asked, HAS_STATE)
    word = tl.reduce(word, 1, word_or)
    sid = tl.load(sids + row, mask=inside, other=0)
    tl.atomic_or(out + sid, word, mask=inside & (word != 0), sem="relaxed")
