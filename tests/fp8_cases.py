"""Random inputs for the FP8 row kernels, and the checks that every backend must pass.

The oracle is the same mathematics in float64: a value may be off by half a step of E4M3.
"""

import torch
from attention_cases import Draw, poisoned

from grace.kernels.fp8_rows import add_rms_norm_fp8, quantize_rows, rms_norm_fp8

EPS = 1e-5
LEAST = 2.0**-9  # of E4M3
BOUND = 5.0  # of some weight
KERNELS = ("quantize_rows", "rms_norm_fp8", "add_rms_norm_fp8")


def mend_interpreter():
    """Let Triton's interpreter round as a GPU does: its cast to E4M3 loses carries."""
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    targets = {
        "fp8e4nv": (torch.float8_e4m3fn, torch.uint8),
        "bf16": (torch.bfloat16, torch.uint16),
    }

    def cast(data, source, target, rounding):
        if str(source) != "fp32" or str(target) not in targets:
            return convert(data, source, target, rounding)
        dtype, raw = targets[str(target)]
        return torch.from_numpy(data).to(dtype).view(raw).numpy()

    interpreter._convert_float = cast


def inputs(name, draw, rows, dim):
    """What a kernel that gives `[rows, dim]` takes, without eps and backend."""
    tensors = (draw.normal(rows, dim), draw.normal(rows, dim), draw.normal(dim))
    return {"quantize_rows": tensors[:1], "rms_norm_fp8": tensors[::2]}.get(name, tensors)


def run(name, tensors, backend="auto", bound=None):
    """Return the rows, and the sum or None; a norm gives gated scales where there is a bound."""
    if name == "quantize_rows":
        return quantize_rows(*tensors, backend), None
    if name == "rms_norm_fp8":
        return rms_norm_fp8(*tensors, EPS, backend, bound), None
    return add_rms_norm_fp8(*tensors, EPS, backend, bound)


def exact(name, tensors):
    """The result in float64, before it is quantised."""
    x, *others = tensors
    if name == "add_rms_norm_fp8":
        x = x + others[0]
    x = x.double()
    if name == "quantize_rows":
        return x
    return x / (x.square().mean(1, keepdim=True) + EPS).sqrt() * others[-1].double()


def check(name, draw, backend, rows, dim):
    tensors = inputs(name, draw, rows, dim)
    if rows > 2:
        tensors[0][1] = 0
    with poisoned(), draw.pinned():
        got, total = run(name, tensors, backend, BOUND)
    assert (got.values.dtype, got.scales.dtype) == (torch.float8_e4m3fn, torch.float32)
    assert got.values.shape == (rows, dim)
    assert got.values.is_contiguous()
    if total is not None:
        assert torch.equal(total, tensors[0] + tensors[1])
    wanted = exact(name, tensors)
    largest = wanted.abs().amax(1)
    scales = torch.where(largest == 0, 1, largest / 448)
    torch.testing.assert_close(got.scales.double(), scales, rtol=1e-5, atol=0)
    if name == "quantize_rows":
        assert torch.equal(got.scales, quantize_rows(tensors[0], "reference").scales)
        assert torch.equal(bits(got), bits(quantize_rows(tensors[0], "reference")))
    allowed = wanted.abs() * (1 / 16 + 1e-5) + LEAST / 2 * scales[:, None]
    assert ((got.float().double() - wanted).abs() <= allowed).all()

    if "norm" in name:
        check_gated_scales(got)
        with draw.pinned():
            assert run(name, tensors, backend)[0].gated_scales is None

    # Rows of NaN and of infinities stay alone.
    if rows > 2:
        tensors[0][0, -1], tensors[0][2, 0] = torch.nan, -torch.inf
        with draw.pinned():
            spoilt, _ = run(name, tensors, backend, BOUND)
        assert spoilt.float()[[0, 2]].isnan().all()
        kept = [row for row in range(rows) if row not in (0, 2)]
        assert ((spoilt.float().double() - wanted).abs() <= allowed)[kept].all()
        if "norm" in name:
            check_gated_scales(spoilt)


def check_gated_scales(rows):
    """They are what the rows are as they are stored."""
    squares = rows.float().double().square().sum(1)
    wanted = torch.where(squares == 0, 1, squares * BOUND / 448)
    assert rows.gated_scales.dtype == torch.float32
    torch.testing.assert_close(
        rows.gated_scales.double(), wanted, rtol=1e-5, atol=0, equal_nan=True
    )


def bits(rows):
    return rows.values.view(torch.uint8)


def check_small(backend, dtype=torch.float32):
    """Every kernel at sizes that the interpreter can bear."""
    for seed, (rows, dim) in enumerate([(1, 1), (5, 48), (3, 33), (4, 300)]):
        for name in KERNELS:
            check(name, Draw(seed, "cpu", dtype), backend, rows, dim)


def check_many(device, dtype, seed):
    """Every kernel at random sizes on a GPU."""
    draw = Draw(seed, device, dtype)
    for name in KERNELS:
        rows = draw.choice((1, 2, 16, 63, 1000, 2049))
        dim = draw.choice((1, 7, 64, 1000, 1024, 2048, 4864, 5001, 16384))
        check(name, draw, "triton", rows, dim)
