"""Rows of bits packed in 64-bit words."""

from __future__ import annotations

import numpy as np

from grace.kernels.words import MAX_REQUESTS as MAX_REQUESTS
from grace.kernels.words import pack_requests as pack_requests


def pack_bits(flags: np.ndarray) -> np.ndarray:
    """Return int64 [n, W] of bool [n, num_bits]: bit i of a row is bit i % 64 of word i // 64."""
    rows, num_bits = flags.shape
    words = -(-num_bits // 64)
    packed = np.zeros((rows, words * 8), np.uint8)
    packed[:, : -(-num_bits // 8)] = np.packbits(flags, axis=1, bitorder="little")
    return packed.view("<i8").astype(np.int64)


def count_bits(rows: np.ndarray) -> np.ndarray:
    """Return int64 [n], the number of set bits of each row of int64 [n, W]."""
    return np.bitwise_count(rows.view(np.uint64)).sum(1, dtype=np.int64)


def or_up_the_trie(
    leaf_rows: np.ndarray, level_offsets: np.ndarray, child_offsets: np.ndarray
) -> np.ndarray:
    """Return int64 [S, W]: each node's row is the OR of the leaf rows [N, W] below it."""
    rows = np.empty((level_offsets[-1], leaf_rows.shape[1]), np.int64)
    rows[level_offsets[-2] :] = leaf_rows
    for level in range(len(level_offsets) - 3, -1, -1):
        first, last = level_offsets[level], level_offsets[level + 1]
        # Entry e leads to node e + 1; every inner node has a child, so no segment is empty.
        starts = child_offsets[first:last] + 1 - last
        children = rows[last : level_offsets[level + 2]]
        np.bitwise_or.reduceat(children, starts, axis=0, out=rows[first:last])
    return rows


def distinct_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows [R, W] of int64 [n, W], and int32 [n], which one each row was."""
    if rows.shape[1] == 0:
        return np.zeros((1, 0), np.int64), np.zeros(len(rows), np.int32)
    table, index = np.unique(rows, axis=0, return_inverse=True)
    return table, index.reshape(-1).astype(np.int32)
