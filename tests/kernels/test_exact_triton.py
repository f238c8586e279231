"""The exact matcher in Triton equals the reference: interpreted on the CPU, and on a GPU."""

import pytest
import torch
from exact_cases import check_all, check_chunks, check_masks, check_matcher
from interpreted import run_interpreted

pytest.importorskip("triton", reason="Triton is not installed")

# The interpreter is chosen when Triton is imported, so it needs a process of its own.
CHECKS = {
    "kernels": "check_all('triton', 'cpu', (33,), (1, 32))",
    "chunks": "check_chunks('cpu')",
    "masks": "check_masks('cpu')",
    "matcher": "check_matcher('cpu', (0, 1), (17, 32))",
}


@pytest.mark.parametrize("check", CHECKS)
def test_interpreted_on_the_cpu(check):
    run_interpreted(f"from exact_cases import *; {CHECKS[check]}")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_on_a_gpu():
    check_all("triton", "cuda", (1, 300, 40_000), (1, 2, 15, 16, 17, 31, 32))
    check_chunks("cuda")
    check_masks("cuda")
    check_matcher("cuda")
