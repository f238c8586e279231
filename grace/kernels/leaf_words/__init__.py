"""Ads' signatures to SIDs' words, without a word per ad in between."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.leaf_words.reference import leaf_words_reference
from grace.kernels.words import check_dtypes, choose_backend, output


def leaf_words(
    signature_words: Tensor,
    ad_signatures: Tensor,
    ad_state: Tensor,
    sid_ad_offsets: Tensor,
    out: Tensor | None = None,
    backend: str = "auto",
    workers: int | None = None,
) -> Tensor:
    """OR the words of the live ads of each SID.

    Args:
        signature_words: int32 [G].
        ad_signatures: int32 [A], each ad's signature.
        ad_state: uint8 [A], 0 where an ad is live. Each byte is read once.
        sid_ad_offsets: int32 or int64 [N + 1], bounds of each SID's ads.
        out: int32 [N] to write to.
        backend: `auto`, `native`, `triton` or `reference`.
        workers: threads of the native backend; by default as many as torch uses.

    Returns:
        int32 [N], the requests that some live ad of each SID accepts; 0 for a SID without ads.

    Raises:
        ValueError: if dtypes or the backend do not fit.
    """
    check_dtypes((torch.int32,), signature_words=signature_words, ad_signatures=ad_signatures)
    check_dtypes((torch.uint8,), ad_state=ad_state)
    check_dtypes((torch.int32, torch.int64), sid_ad_offsets=sid_ad_offsets)
    out = output(out, len(sid_ad_offsets) - 1, signature_words.device)
    arguments = (signature_words, ad_signatures, ad_state, sid_ad_offsets)
    chosen = choose_backend(backend, signature_words.device)
    if chosen == "triton":
        from grace.kernels.leaf_words.kernel import leaf_words_triton

        return leaf_words_triton(*arguments, out)
    if chosen == "reference":
        return out.copy_(leaf_words_reference(*arguments))
    from grace import _native

    arrays = [tensor.numpy() for tensor in arguments]
    _native.leaf_words(*arrays, out.numpy(), workers or torch.get_num_threads())
    return out
