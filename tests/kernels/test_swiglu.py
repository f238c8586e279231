"""SwiGLU's gate equals its formula; what does not fit is refused."""

import pytest
import torch
from attention_cases import Draw

from grace.kernels.swiglu import swiglu


@pytest.mark.parametrize("shape", [(1, 2), (3, 126), (2, 5, 64)])
def test_it_is_gate_times_sigmoid_times_up(shape):
    gate_up = Draw(0, "cpu", torch.float64).normal(*shape)
    size = shape[-1] // 2
    gate, up = gate_up[..., :size], gate_up[..., size:]
    torch.testing.assert_close(swiglu(gate_up), gate * torch.sigmoid(gate) * up)


@pytest.mark.parametrize(
    ("gate_up", "backend", "message"),
    [
        (torch.zeros(2, 3), "auto", r"gate_up must be \[\.\.\., 2 F\]"),
        (torch.zeros(2, 4).long(), "auto", "gate_up must be floating point"),
        (torch.zeros(2, 4), "cuda", "backend must be"),
        (torch.zeros(2, 4).double(), "triton", "backend triton takes no float64"),
    ],
)
def test_what_does_not_fit_is_refused(gate_up, backend, message):
    with pytest.raises(ValueError, match=message):
        swiglu(gate_up, backend)
