"""The backends of cross_attention, and which of them a shape gets."""

from __future__ import annotations

from torch import Tensor
from torch.nn.attention import SDPBackend

from grace.kernels.backends import HAS_TRITON
from grace.kernels.cross_attention.reference import cross_attention_reference
from grace.kernels.cross_attention.sdpa import cross_attention_sdpa
from grace.kernels.tuning import choose

SDPA = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
BACKENDS = ("auto", *SDPA, "triton", "reference")


def run_backend(
    backend: str, query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None
) -> Tensor:
    """Run one backend, not `auto`; the contract is `cross_attention`'s."""
    if backend == "reference":
        return cross_attention_reference(query, key, value, lengths)
    if backend == "triton":
        from grace.kernels.cross_attention.kernel import cross_attention_triton

        return cross_attention_triton(query, key, value, lengths)
    return cross_attention_sdpa(query, key, value, lengths, SDPA[backend])


def choose_backend(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None) -> str:
    """Return the fastest backend for this shape, or the reference where no other runs."""
    if query.device.type != "cuda" or not HAS_TRITON or query.element_size() == 8:
        return "reference"
    # The first is what an unmeasured shape gets, so it must run every shape: Triton's kernel does,
    # but in float32, without matrix units, others are faster where they run.
    candidates = ["triton", "cudnn", "efficient"] + ["flash"] * (lengths is None)
    if query.element_size() == 4:
        candidates = ["efficient", "triton"] if query.shape[3] % 4 == 0 else ["triton"]
    batch, beams, num_heads, head_dim = query.shape
    shape = (
        batch, 1 << (beams - 1).bit_length(), num_heads, key.shape[1], key.shape[2], head_dim,
        str(query.dtype), lengths is not None,
    )  # fmt: skip
    return choose(
        "cross_attention",
        shape,
        candidates,
        lambda backend: run_backend(backend, query, key, value, lengths),
        query.device,
    )
