"""cross_attention_fp8: on the CPU, interpreted, on a GPU; bad arguments; whole graphs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cross_fp8_cases import check_all

from grace.kernels.cross_attention import cross_attention_fp8, value_scales


def test_the_reference_agrees_with_float64():
    check_all("reference")
    check_all("auto", dtype=torch.float32)


def test_interpreted_on_the_cpu():
    pytest.importorskip("triton", reason="Triton is not installed")
    tests = Path(__file__).parent.parent
    path = os.pathsep.join([str(tests.parent), str(tests)])
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path}
    code = (
        "import torch; from cross_fp8_cases import check_all;"
        "check_all('triton', dtype=torch.float16, interpreted=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_on_a_gpu(dtype):
    check_all("triton", "cuda", dtype)


def test_values_of_nothing_or_of_infinity():
    value = torch.zeros(3, 2, 4, 8)
    value[1, 0, 0, 0], value[2, 1, 3, 7] = 3.5, torch.inf
    scales = value_scales(value)
    assert scales[:2].tolist() == [1.0, 3.5 / 448]
    assert scales[2].isnan()


def test_scales_that_do_not_fit_are_refused():
    query, kv = torch.zeros(2, 3, 4, 8), torch.zeros(2, 4, 5, 8)
    with pytest.raises(ValueError, match=r"scales must be float32 \[2\] on cpu, got float32 \[3\]"):
        cross_attention_fp8(query, kv, kv, torch.ones(3))


def test_a_compiled_graph_stays_whole():
    query, kv = torch.randn(2, 3, 4, 8), torch.randn(2, 4, 5, 8)
    arguments = (query, kv, kv, value_scales(kv))
    torch.library.opcheck(torch.ops.grace.cross_attention_fp8, (*arguments, None, "reference"))
    compiled = torch.compile(
        lambda *a: cross_attention_fp8(*a).values, backend="aot_eager", fullgraph=True
    )
    expected = cross_attention_fp8(*arguments).values
    assert torch.equal(compiled(*arguments).float(), expected.float())
