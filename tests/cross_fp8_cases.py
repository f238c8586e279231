"""The check that every backend of cross_attention_fp8 must pass."""

import torch
from attention_cases import Draw, poisoned
from fp8_cases import mend_interpreter

from grace.kernels.cross_attention import cross_attention, cross_attention_fp8, value_scales

SHAPES = [
    (1, 1, (1, 1), 1, 16),
    (2, 5, (4, 2), 9, 32),
    (3, 33, (3, 3), 20, 48),
    (2, 7, (2, 1), 70, 64),
]


def check_cross_attention_fp8(draw, backend, batch, beams, heads, positions, head_dim, ragged):
    """Half a step of E4M3 from float64, within scales that only know the values."""
    query = draw.normal(batch, beams, heads[0], head_dim)
    key, value = draw.normal(2, batch, positions, heads[1], head_dim).transpose(2, 3)
    lengths = draw.integers(1, positions + 1, batch).int() if ragged else None
    exact = cross_attention(*(x.double() for x in (query, key, value)), lengths, "reference")
    scales = value_scales(value)
    torch.testing.assert_close(scales * 448, value.float().abs().amax((1, 2, 3)))
    with poisoned(), draw.pinned():
        rows = cross_attention_fp8(query, key, value, scales, lengths, backend)
    assert torch.equal(rows.scales, scales.repeat_interleave(beams))
    exact, step = exact.flatten(0, 1).flatten(1), rows.scales[:, None].double()
    allowed = exact.abs() / 16 + step * 2**-10 + exact.abs() * 2**-6 + step * 448 * 2**-8
    assert bool(((rows.float().double() - exact).abs() <= allowed).all())
    if batch > 1:
        query[0], key[0], value[0] = torch.nan, torch.nan, torch.nan
        bad = value_scales(value)
        assert bad[0].isnan()
        with draw.pinned():
            again = cross_attention_fp8(query, key, value, bad, lengths, backend)
        assert again.float()[:beams].isnan().all()
        assert torch.equal(again.values[beams:].float(), rows.values[beams:].float())


def check_all(backend, device="cpu", dtype=torch.bfloat16, interpreted=False):
    """All shapes, with and without lengths."""
    if interpreted:
        mend_interpreter()
    for seed, shape in enumerate(SHAPES):
        for ragged in (False, True):
            check_cross_attention_fp8(Draw(seed, device, dtype), backend, *shape, ragged)
