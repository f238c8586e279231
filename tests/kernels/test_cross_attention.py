"""Beams as queries: the layout proof of GRACE's Appendix B, lengths, and what is refused."""

import math

import pytest
import torch
from attention_cases import Draw
from hypothesis import given
from hypothesis import strategies as st

from grace.kernels.cross_attention import (
    BACKENDS,
    cross_attention,
    cross_attention_fp8,
    value_scales,
)

sizes = st.integers(1, 5)


def materialised(query, key, value):
    """Equation 10: every beam with keys and values of its own, a request of one beam each."""
    beams = query.shape[1]
    rows = query.flatten(0, 1)[:, None]
    key, value = (heads.repeat_interleave(beams, 0) for heads in (key, value))
    return cross_attention(rows, key, value).reshape(query.shape)


@given(seed=st.integers(0, 2**32), batch=sizes, beams=sizes, groups=sizes, kv_heads=sizes)
def test_it_is_a_change_of_layout_only(seed, batch, beams, groups, kv_heads):
    """Exactly: with whole numbers and one-hot values no sum can round, whatever its order."""
    draw = Draw(seed, "cpu", torch.float64)
    positions = head_dim = 8
    query = draw.integers(-4, 5, batch, beams, groups * kv_heads, head_dim).double()
    key = draw.integers(-4, 5, batch, kv_heads, positions, head_dim).double()
    value = torch.eye(positions).double().expand(batch, kv_heads, -1, -1)
    order = torch.argsort(draw.normal(batch, kv_heads, positions), -1)
    value = torch.take_along_dim(value, order[..., None], 2)
    assert torch.equal(cross_attention(query, key, value), materialised(query, key, value))


@given(
    seed=st.integers(0, 2**32), batch=sizes, beams=sizes, groups=sizes, kv_heads=sizes,
    positions=st.integers(1, 20), head_dim=st.sampled_from([1, 3, 8, 32]),
)  # fmt: skip
def test_random_numbers_agree_to_rounding(
    seed, batch, beams, groups, kv_heads, positions, head_dim
):
    draw = Draw(seed, "cpu", torch.float64)
    query = draw.normal(batch, beams, groups * kv_heads, head_dim)
    key, value = draw.normal(2, batch, kv_heads, positions, head_dim)
    got = cross_attention(query, key, value)
    torch.testing.assert_close(got, materialised(query, key, value), rtol=1e-13, atol=1e-13)
    b, m, h = (int(draw.integers(0, size, 1)) for size in got.shape[:3])
    keys, values = key[b, h // groups], value[b, h // groups]
    scores = [float(query[b, m, h] @ keys[t]) / math.sqrt(head_dim) for t in range(positions)]
    shares = [math.exp(score - max(scores)) for score in scores]
    wanted = sum(
        share / sum(shares) * position for share, position in zip(shares, values, strict=True)
    )
    torch.testing.assert_close(got[b, m, h], wanted, rtol=1e-12, atol=1e-12)


@given(seed=st.integers(0, 2**32), batch=sizes, positions=st.integers(1, 9))
def test_what_stands_past_a_length_is_not_seen(seed, batch, positions):
    draw = Draw(seed, "cpu", torch.float64)
    query, lengths = draw.normal(batch, 3, 2, 4), draw.integers(1, positions + 1, batch).int()
    key, value = draw.normal(2, batch, 2, positions, 4)
    for b, length in enumerate(lengths.tolist()):
        key[b, :, length:], value[b, :, length:] = torch.nan, torch.inf
    got = cross_attention(query, key, value, lengths)
    for b, length in enumerate(lengths.tolist()):
        alone = cross_attention(
            query[b : b + 1], key[b : b + 1, :, :length], value[b : b + 1, :, :length]
        )
        torch.testing.assert_close(got[b], alone[0], rtol=1e-13, atol=1e-13)


def test_value_scales_are_of_what_a_request_can_see():
    value = torch.zeros(5, 2, 4, 3)
    value[0, 1, 3, 2], value[1, 0, 0, 0], value[2, 1, 0, 1] = -448.0, 1e-42, torch.nan
    value[3, 0, 0, 0], value[3, 1, 2, 0] = 4.48, torch.inf
    seen = value_scales(value)
    assert seen[[0, 1, 4]].tolist() == [1, 2.0**-126, 1]
    assert seen[2:4].isnan().all()
    value[0, 0, 1, 0] = 44.8
    cut = value_scales(value, torch.tensor([2, 4, 1, 2, 3], dtype=torch.int32))
    torch.testing.assert_close(cut[[0, 1, 3, 4]], torch.tensor([0.1, 2.0**-126, 0.01, 1]))
    assert cut[2].isnan()


def test_a_share_of_one_is_the_largest_number_of_e4m3():
    """Where a beam sees nothing but the largest value, its row is that value."""
    value = torch.full((1, 1, 1, 16), -7.0)
    rows = cross_attention_fp8(torch.zeros(1, 2, 1, 16), value, value, value_scales(value))
    assert (rows.values.float() == -448).all()
    assert torch.equal(rows.float(), torch.full((2, 16), -7.0))


def test_every_shape_has_a_candidate_that_fits():
    pytest.importorskip("triton", reason="Triton is not installed")
    from grace.kernels.cross_attention.kernel import SHARED_BYTES, fitting_candidates

    for beams in (1, 2, 100, 1024):
        for positions in (1, 5, 128, 1024):
            for head_dim in (16, 32, 128, 256):
                for element_bytes in (2, 4):
                    candidates = fitting_candidates(beams, positions, head_dim, element_bytes)
                    assert candidates
                    assert len({tuple(c) for c in candidates}) == len(candidates)
                    for block_m, block_t, *_ in candidates:
                        assert (block_m + 2 * block_t) * head_dim * element_bytes <= SHARED_BYTES


QUERY, CONTEXT = torch.zeros(2, 3, 4, 8), torch.zeros(2, 2, 5, 8)
LENGTHS = torch.ones(2, dtype=torch.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": QUERY[0]}, r"query must be \[B, M, H, D\]"),
        ({"query": QUERY.int()}, "query must be floating point, got int32"),
        ({"query": QUERY[:, :0]}, "none of them 0"),
        ({"query": QUERY[:, :, :3]}, "3 query heads are no multiple of 2 key heads"),
        ({"key": CONTEXT.half()}, r"key must be float32 \[2, 2, 5, 8\]"),
        ({"value": CONTEXT[:, :, :4]}, r"value must be float32 \[2, 2, 5, 8\]"),
        ({"lengths": LENGTHS.long()}, r"lengths must be int32 \[2\]"),
        ({"lengths": LENGTHS[:1]}, r"lengths must be int32 \[2\]"),
        ({"backend": "fa3"}, f"backend must be one of {', '.join(BACKENDS)}"),
        ({"backend": "flash", "lengths": LENGTHS}, "flash takes no lengths"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    arguments = {"query": QUERY, "key": CONTEXT, "value": CONTEXT} | change
    with pytest.raises(ValueError, match=message):
        cross_attention(**arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": QUERY[0]}, r"query must be \[B, M, H, D\]"),
        ({"lengths": LENGTHS[:1]}, r"lengths must be int32 \[2\]"),
        ({"scales": torch.ones(3)}, r"scales must be float32 \[2\]"),
        ({"scales": torch.ones(2).half()}, r"scales must be float32 \[2\]"),
        ({"backend": "cudnn"}, "backend must be auto, triton or reference"),
    ],
)
def test_what_does_not_fit_is_refused_in_fp8(change, message):
    arguments = {"query": QUERY, "key": CONTEXT, "value": CONTEXT, "scales": torch.ones(2)}
    with pytest.raises(ValueError, match=message):
        cross_attention_fp8(**arguments | change)
