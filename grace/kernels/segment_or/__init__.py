"""OR over the words of each segment: a trie node's word from its children's."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.segment_or.reference import segment_or_reference
from grace.kernels.words import check_dtypes, choose_backend, output


def segment_or(
    words: Tensor,
    offsets: Tensor,
    shift: int = 0,
    out: Tensor | None = None,
    backend: str = "auto",
    workers: int | None = None,
) -> Tensor:
    """OR the words of each segment `words[offsets[i] + shift : offsets[i + 1] + shift]`.

    Args:
        words: int32 [n].
        offsets: int32 or int64 [s + 1], ascending.
        shift: added to every offset; all bounds must lie in 0..n then.
        out: int32 [s] to write to; it may be a part of `words` that no segment reads.
        backend: `auto`, `native`, `triton` or `reference`.
        workers: threads of the native backend; by default as many as torch uses.

    Returns:
        int32 [s]; 0 for an empty segment.

    Raises:
        ValueError: if dtypes, bounds or the backend do not fit.
    """
    check_dtypes((torch.int32,), words=words)
    check_dtypes((torch.int32, torch.int64), offsets=offsets)
    out = output(out, len(offsets) - 1, words.device)
    chosen = choose_backend(backend, words.device)
    if chosen == "triton":
        from grace.kernels.segment_or.kernel import segment_or_triton

        return segment_or_triton(words, offsets, shift, out)
    if words.device.type == "cpu":
        first, last = int(offsets[0]) + shift, int(offsets[-1]) + shift
        if first < 0 or last > len(words):
            raise ValueError(f"segments must lie in 0..{len(words)}, got {first}..{last}")
    if chosen == "reference":
        return out.copy_(segment_or_reference(words, offsets.long() + shift))
    from grace import _native

    _native.segment_or(
        words.numpy(), offsets.numpy(), shift, out.numpy(), workers or torch.get_num_threads()
    )
    return out
