"""Native attention to ancestors equals plain torch; wrong arguments are refused."""

import pytest
import torch

from grace.kernels.ancestor_attention import ancestor_attention


def made_up(rows, heads, dim, positions, seed=0):
    draw = torch.Generator().manual_seed(seed)
    counts = [max(1, rows // (j + 2)) for j in range(positions - 1)]
    own, *past = (torch.randn(count, 3 * heads * dim, generator=draw) for count in (rows, *counts))
    ancestors = [torch.randint(count, (rows,), generator=draw) for count in counts]
    return own, past, ancestors, torch.randn(heads, positions, generator=draw)


@pytest.mark.parametrize("rows", [0, 1, 5, 64])
@pytest.mark.parametrize(("heads", "dim"), [(1, 1), (3, 7), (2, 16), (6, 64), (1, 67)])
@pytest.mark.parametrize("positions", [1, 2, 4, 9])
def test_native_equals_the_reference(rows, heads, dim, positions):
    arguments = made_up(rows, heads, dim, positions)
    wanted = ancestor_attention(*arguments, backend="reference")
    torch.testing.assert_close(ancestor_attention(*arguments), wanted, rtol=1e-5, atol=1e-5)


def test_it_is_attention():
    """Against torch's own, each row with its own keys and values."""
    own, past, ancestors, bias = made_up(7, 2, 5, 3)
    positions = [p[a] for p, a in zip(past, ancestors, strict=True)] + [own]
    query, key, value = torch.stack(positions, 1).unflatten(2, (3, 2, 5)).permute(2, 0, 3, 1, 4)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        query[:, :, -1:], key, value, attn_mask=bias[None, :, None], scale=1.0
    )
    for backend in ("native", "reference"):
        found = ancestor_attention(own, past, ancestors, bias, backend)
        torch.testing.assert_close(found, wanted.flatten(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_no_row_reaches_another(backend):
    """Not even where it is NaN; a row's bits do not depend on how many there are."""
    own, past, ancestors, bias = made_up(9, 2, 20, 3)
    wanted = ancestor_attention(own, past, ancestors, bias, backend)
    alone = ancestor_attention(own[4:5], past, [a[4:5] for a in ancestors], bias, backend)
    assert torch.equal(alone[0], wanted[4])
    own[2], past[1][ancestors[1][3]] = torch.nan, torch.nan
    found = ancestor_attention(own, past, ancestors, bias, backend)
    touched = (ancestors[1] == ancestors[1][3]) | (torch.arange(9) == 2)
    assert torch.equal(found.isnan().any(1), touched)
    assert torch.equal(found[~touched], wanted[~touched])


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_extreme_scores(backend):
    own, past, ancestors, bias = made_up(4, 2, 3, 2)
    bias[0, 0], bias[1, 0] = -1e30, 1e30
    found = ancestor_attention(own, past, ancestors, bias, backend).unflatten(1, (2, 3))
    assert torch.equal(found[:, 0], own.unflatten(1, (3, 2, 3))[:, 2, 0])
    assert torch.equal(found[:, 1], past[0][ancestors[0]].unflatten(1, (3, 2, 3))[:, 2, 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a | {"backend": "triton"}, "backend must be one of auto, native, reference"),
        (lambda a: a | {"own": a["own"].double()}, "own must be float32"),
        (lambda a: a | {"own": a["own"][0]}, "own must be float32"),
        (lambda a: a | {"own": a["own"][:, 1:]}, r"own must hold 3 \* 2 heads a row"),
        (lambda a: a | {"bias": a["bias"][:, 1:]}, "bias must have a column for each"),
        (lambda a: a | {"ancestors": a["ancestors"][1:]}, "ancestors 2 entries"),
        (lambda a: a | {"past": [a["past"][0], a["own"].double()]}, "past must be like own"),
        (lambda a: a | {"ancestors": [a["ancestors"][0].int()] * 2}, "ancestors must be int64"),
        (lambda a: a | {"ancestors": [a["ancestors"][0] + 99] * 2}, "must be rows of past"),
        (lambda a: a | {"ancestors": [a["ancestors"][0] - 99] * 2}, "must be rows of past"),
    ],
)
def test_wrong_arguments(change, message):
    names = ("own", "past", "ancestors", "bias")
    arguments = dict(zip(names, made_up(4, 2, 3, 3), strict=True))
    with pytest.raises(ValueError, match=message):
        ancestor_attention(**change(arguments))
