"""value_words and interval_words in Triton.

Value rules have three forms. `value_rules` reads every rule's values: the work does not depend on
the requests. `fill_rules` and `scatter_postings` read, for each value that some request carries,
the rules that name it: far less where requests carry few of the values. `mask_rules` takes rules
over at most 64 values, a bit each: then a popular value costs no more than another.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.segment_or.kernel import word_or

LONG = 64  # values of one side from which a rule gets a program of its own


def value_words_triton(
    include_offsets: Tensor,
    include_values: Tensor,
    exclude_offsets: Tensor,
    exclude_values: Tensor,
    carried: Tensor,
    known: int | Tensor,
    everyone: int | Tensor,
    out: Tensor,
    long_rules: Tensor | None = None,
    rows: int = 64,
) -> Tensor:
    """Fill and return `out`; the contract is `value_words`'.

    Args:
        known, everyone: numbers, or int32 [1] on the device.
        long_rules: int32, rules with more than `LONG` values of a side, found once; they get a
            program each, so that they do not hold up the others.
        rows: rules of one program.
    """
    if len(out) == 0:
        return out
    lists = (include_offsets, include_values, exclude_offsets, exclude_values, carried)
    words = [_on_device(word, out) for word in (known, everyone)]
    limit = 0 if long_rules is None else LONG
    value_rules[(triton.cdiv(len(out), rows),)](
        *lists, *words, out, out, len(out), LISTED=False, LIMIT=limit, ROWS=rows, COLS=8,
        num_warps=4,
    )  # fmt: skip
    if long_rules is not None and len(long_rules):
        value_rules[(len(long_rules),)](
            *lists, *words, long_rules, out, len(long_rules), LISTED=True, LIMIT=0, ROWS=1,
            COLS=1024, num_warps=4,
        )  # fmt: skip
    return out


def interval_words_triton(
    low: Tensor,
    high: Tensor,
    points: Tensor,
    closed: bool,
    everyone: int | Tensor,
    out: Tensor,
    num_requests: Tensor | None = None,
    block: int = 512,
) -> Tensor:
    """Fill and return `out`; the contract is `interval_words`'.

    Args:
        everyone: a number, or int32 [1] on the device.
        num_requests: int32 [1] on the device, how many of `points` count; None for all.
        block: rules of one program.
    """
    if len(out) == 0:
        return out
    if num_requests is None:
        num_requests = _on_device(len(points), out)
    interval_rules[(triton.cdiv(len(out), block),)](
        low, high, points, num_requests, _on_device(everyone, out), out, len(out), CLOSED=closed,
        BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out


def _on_device(word: int | Tensor, like: Tensor) -> Tensor:
    if isinstance(word, Tensor):
        return word
    return torch.tensor([word], dtype=torch.int32, device=like.device)


@triton.jit
def carried_by(
    offsets, values, carried, rule, inside, LIMIT: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr,
):  # fmt: skip
    begin = tl.load(offsets + rule, mask=inside, other=0)
    end = tl.load(offsets + rule + 1, mask=inside, other=0)
    length = end - begin
    if LIMIT:
        length = tl.minimum(length, LIMIT)
    column = tl.arange(0, COLS)
    word = tl.zeros((ROWS, COLS), tl.int32)
    longest = tl.max(length, 0)
    step = 0
    while step < longest:
        asked = (step + column)[None, :] < length[:, None]
        position = begin[:, None] + (step + column)[None, :]
        value = tl.load(values + position, mask=asked, other=0)
        word |= tl.load(carried + value, mask=asked, other=0)
        step += COLS
    return tl.reduce(word, 1, word_or), length > 0


@triton.jit
def value_rules(
    include_offsets, include_values, exclude_offsets, exclude_values, carried, known, everyone,
    rules, out, num_rules,
    LISTED: tl.constexpr, LIMIT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < num_rules
    rule = tl.load(rules + row, mask=inside, other=0) if LISTED else row
    included, asks = carried_by(
        include_offsets, include_values, carried, rule, inside, LIMIT, ROWS, COLS
    )
    excluded, _ = carried_by(
        exclude_offsets, exclude_values, carried, rule, inside, LIMIT, ROWS, COLS
    )
    word = tl.where(asks, included, -1) & ~excluded & tl.load(known)
    tl.store(out + rule, tl.where(rule == 0, tl.load(everyone), word), mask=inside)


@triton.jit
def interval_rules(
    low, high, points, num_requests, everyone, out, num_rules,
    CLOSED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < num_rules
    first = tl.load(low + row, mask=inside, other=0)
    last = tl.load(high + row, mask=inside, other=0)
    word = tl.zeros((BLOCK,), tl.int32)
    count = tl.load(num_requests)
    b = 0
    while b < count:
        point = tl.load(points + b)
        below = point <= last if CLOSED else point < last
        word |= ((first <= point) & below).to(tl.int32) << b
        b += 1
    tl.store(out + row, tl.where(row == 0, tl.load(everyone), word), mask=inside)


@triton.jit
def scatter_carried(values, words, num_values, carried, CAPACITY: tl.constexpr):
    """Write the words of the values that some request carries into the table of all values."""
    i = tl.arange(0, CAPACITY)
    inside = i < tl.load(num_values)
    value = tl.load(values + i, mask=inside, other=0)
    tl.store(carried + value, tl.load(words + i, mask=inside, other=0), mask=inside)


@triton.jit
def fill_rules(asks, known, everyone, out, num_rules, BLOCK: tl.constexpr):
    """Each rule's word before any value: nobody where it asks for one, otherwise all known."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < num_rules
    asking = tl.load(asks + row, mask=inside, other=0)
    word = tl.where(asking != 0, 0, tl.load(known))
    tl.store(out + row, tl.where(row == 0, tl.load(everyone), word), mask=inside)


@triton.jit
def scatter_postings(
    values, words, ends, num_values, posting_offsets, postings, out,
    EXCLUDE: tl.constexpr, LOG_CAPACITY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """OR each carried value's word into the rules that include it, or clear it where they exclude.

    ends: int32 [capacity], for each carried value the number of postings up to and with its own.
    """
    count = tl.load(num_values)
    total = tl.load(ends + count - 1, mask=count > 0, other=0)
    begin = tl.program_id(0) * BLOCK
    while begin < total:
        flat = begin + tl.arange(0, BLOCK)
        inside = flat < total
        low = tl.zeros((BLOCK,), tl.int32)  # the first carried value that ends past `flat`
        high = tl.zeros((BLOCK,), tl.int32) + count
        for _ in tl.static_range(LOG_CAPACITY):
            middle = (low + high) // 2
            searching = inside & (low < high)
            past = tl.load(ends + middle, mask=searching, other=0) > flat
            high = tl.where(searching & past, middle, high)
            low = tl.where(searching & (past == 0), middle + 1, low)
        value = tl.load(values + low, mask=inside, other=0)
        word = tl.load(words + low, mask=inside, other=0)
        end = tl.load(posting_offsets + value + 1, mask=inside, other=0)
        position = end - (tl.load(ends + low, mask=inside, other=0) - flat)
        rule = tl.load(postings + position, mask=inside, other=0)
        if EXCLUDE:
            tl.atomic_and(out + rule, ~word, mask=inside, sem="relaxed")
        else:
            tl.atomic_or(out + rule, word, mask=inside, sem="relaxed")
        begin += tl.num_programs(0) * BLOCK


@triton.jit
def mask_rules(
    include, exclude, carried, num_requests, known, everyone, out, num_rules, BLOCK: tl.constexpr
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < num_rules
    included = tl.load(include + row, mask=inside, other=0)
    excluded = tl.load(exclude + row, mask=inside, other=0)
    word = tl.zeros((BLOCK,), tl.int32)
    count = tl.load(num_requests)
    request = 0
    while request < count:
        values = tl.load(carried + request)
        passed = ((included == 0) | ((included & values) != 0)) & ((excluded & values) == 0)
        word |= passed.to(tl.int32) << request
        request += 1
    word &= tl.load(known)
    tl.store(out + row, tl.where(row == 0, tl.load(everyone), word), mask=inside)
