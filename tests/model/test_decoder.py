import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model_cases import SPEC, random_features, small_index, small_model

from grace.model.layers import beam_as_query_attention

INDEX = small_index()
MODEL = small_model()


def encode(rng: np.random.Generator, batch_size: int) -> dict[str, torch.Tensor]:
    return SPEC.encode([random_features(rng) for _ in range(batch_size)], INDEX)[0]


@pytest.mark.parametrize("num_queries", [1, 3])
@pytest.mark.parametrize("num_beams", [1, 4, 33])
def test_beam_as_query_equals_keys_and_values_materialised_per_beam(num_beams, num_queries):
    """GRACE, appendix B: flat row b * M + m, query tau is row m * T_q + tau of request b."""
    batch, heads, context, dim = 3, 2, 7, 5
    torch.manual_seed(0)
    flat_query = torch.randn(batch * num_beams, heads, num_queries, dim, dtype=torch.float64)
    key, value = torch.randn(2, batch, heads, context, dim, dtype=torch.float64)

    expected = torch.empty_like(flat_query)
    for row in range(batch * num_beams):  # equation 10: a copy of keys and values for every beam
        beam_key, beam_value = key[row // num_beams], value[row // num_beams]
        weights = torch.softmax(flat_query[row] @ beam_key.mT / dim**0.5, dim=-1)
        expected[row] = weights @ beam_value

    query = flat_query.unflatten(0, (batch, num_beams))
    attended = beam_as_query_attention(query, key, value).flatten(0, 1)
    torch.testing.assert_close(attended, expected)


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 3]), st.sampled_from([0, 1, 40]))
def test_steps_with_any_parents_equal_teacher_forcing(seed, batch_size, max_beams):
    """Beam m of the last step has written the tokens found by walking its parents back."""
    rng = np.random.default_rng(seed)
    inputs = encode(rng, batch_size)
    widths = [1, *rng.integers(1, 20, 2).tolist()]  # growing and shrinking
    buffers = MODEL.prefill(inputs, max_beams=max(1, max_beams))
    columns, logsumexp = MODEL.decode(buffers, None, None, 0)
    prefixes = torch.zeros(batch_size, 1, 0, dtype=torch.int64)
    for t in range(3):
        if t:
            parents = torch.from_numpy(rng.integers(0, widths[t - 1], (batch_size, widths[t])))
            tokens = torch.from_numpy(rng.integers(0, 5, (batch_size, widths[t])))
            columns, logsumexp = MODEL.decode(buffers, parents, tokens, t)
            prefixes = prefixes.gather(1, parents[..., None].expand(-1, -1, t - 1))
            prefixes = torch.cat([prefixes, tokens[..., None]], dim=2)
        sids = torch.cat(
            [prefixes, torch.zeros(batch_size, widths[t], 3 - t, dtype=torch.int64)], dim=2
        )
        with torch.no_grad():
            expected = MODEL(inputs, sids)[:, :, t]
        torch.testing.assert_close(columns, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(logsumexp, torch.logsumexp(columns.double(), -1))


def test_dtypes_and_shapes_of_a_step():
    columns, logsumexp = MODEL.decode(
        MODEL.prefill(encode(np.random.default_rng(0), 2)), None, None, 0
    )
    assert (columns.shape, columns.dtype) == ((2, 1, 5), torch.float32)
    assert (logsumexp.shape, logsumexp.dtype) == ((2, 1), torch.float64)


def test_one_target_and_several_are_scored_alike():
    rng = np.random.default_rng(1)
    inputs, sids = encode(rng, 3), torch.from_numpy(rng.integers(0, 5, (3, 4, 3)))
    with torch.no_grad():
        together = MODEL(inputs, sids)
        assert together.shape == (3, 4, 3, 5)
        for k in range(4):
            torch.testing.assert_close(MODEL(inputs, sids[:, k]), together[:, k])


def test_a_logit_sees_the_tokens_before_it_and_no_other():
    inputs = encode(np.random.default_rng(2), 1)
    with torch.no_grad():
        base = MODEL(inputs, torch.tensor([[1, 2, 3]]))
        for changed, sid in enumerate(([0, 2, 3], [1, 0, 3], [1, 2, 0])):
            logits = MODEL(inputs, torch.tensor([sid]))
            same = [torch.equal(logits[:, t], base[:, t]) for t in range(3)]
            assert same == [t <= changed for t in range(3)]


def test_neighbours_in_a_batch_of_the_same_size_change_no_bit():
    rng = np.random.default_rng(3)
    row, others = random_features(rng), [[random_features(rng) for _ in range(3)] for _ in "ab"]
    first, second = (
        MODEL.decode(MODEL.prefill(SPEC.encode([row, *o], INDEX)[0]), None, None, 0)[0][0]
        for o in others
    )
    assert torch.equal(first, second)


def test_a_sid_may_have_one_token():
    model = small_model(num_levels=1)
    inputs = SPEC.encode([{}], small_index(num_levels=1))[0]
    columns, _ = model.decode(model.prefill(inputs), None, None, 0)
    with torch.no_grad():
        torch.testing.assert_close(columns, model(inputs, torch.tensor([[3]])))
