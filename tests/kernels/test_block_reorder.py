"""Re-ordering of block tables: every beam keeps its ancestors' blocks and gets one of its own."""

import pytest
import torch
from attention_cases import Draw, check_block_reorder
from hypothesis import given
from hypothesis import strategies as st

from grace.kernels.block_reorder import block_reorder, start_blocks


@given(
    seed=st.integers(0, 2**32), batch=st.integers(1, 4),
    widths=st.lists(st.integers(1, 9), min_size=1, max_size=8),
)  # fmt: skip
def test_beams_keep_the_blocks_of_their_ancestors(seed, batch, widths):
    check_block_reorder(Draw(seed, "cpu", None), "reference", batch, widths, 8)


def test_the_table_of_the_step_before_stays():
    table = start_blocks(4, 3, "cpu")
    before = table.clone()
    block_reorder(table, torch.tensor([[1, 1], [0, 1]]), 1, 4)
    assert torch.equal(table, before)


TABLE, PARENTS = start_blocks(4, 3, "cpu"), torch.zeros(2, 5, dtype=torch.int64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"table": TABLE.long()}, "table must be contiguous int32"),
        ({"table": TABLE[:, ::2]}, "table must be contiguous int32"),
        ({"table": TABLE[:3]}, "multiple of the 2 requests as rows"),
        ({"parents": PARENTS.int()}, r"parents must be int64 \[B, M\]"),
        ({"parents": PARENTS[0]}, r"parents must be int64 \[B, M\]"),
        ({"t": 0}, "t must be from 1 to 2, got 0"),
        ({"t": 3}, "t must be from 1 to 2, got 3"),
        ({"first_block": -1}, "got first_block -1"),
        ({"first_block": 2**31 - 10}, "blocks must be from 0"),
        ({"backend": "cuda"}, "backend must be"),
        ({"own": PARENTS.int()}, r"own must be int64 \[2, 5\], got int32"),
        ({"own": PARENTS[:, 1:]}, r"own must be int64 \[2, 5\], got int64 \[2, 4\]"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    arguments = {"table": TABLE, "parents": PARENTS, "t": 1, "first_block": 4} | change
    with pytest.raises(ValueError, match=message):
        block_reorder(**arguments)
