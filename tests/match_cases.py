"""Random steps for the tests of match_children, and its definition one bit at a time."""

import numpy as np
import torch

from grace.index.trie import build_trie
from grace.kernels.match_children import RequestMasks, UnionRows

BATCHES = [1, 2, 15, 16, 17, 31, 32]


def case(seed, batch=2, beams=3, vocab=40, levels=3, bitmask_words=2, slots=1, filter_words=4,
         jagged=False, num_places=3, narrow=False, max_sids=600):  # fmt: skip
    """Rows of random density, requests that ask for few of their bits, beams at one level."""
    rng = np.random.default_rng(seed)
    sids = np.unique(rng.integers(0, vocab, (rng.integers(1, max_sids), levels)), axis=0)
    trie, _ = build_trie(sids.astype(np.int32))
    level = rng.integers(0, levels)
    first, last = trie.level_offsets[level : level + 2].tolist()
    nodes = rng.integers(first, last, (batch, beams))
    nodes[rng.random(nodes.shape) < 0.2] = -1
    counts = rng.integers(0, 5, trie.num_nodes) if jagged else np.ones(trie.num_nodes, int)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    kind = torch.int32 if narrow else torch.int64
    bitmask_rows, bloom_rows = (
        _bits(rng, (rng.integers(1, 50), words), 0.9)
        for words in (bitmask_words, slots * filter_words)
    )
    rows = UnionRows(
        torch.from_numpy(offsets).to(kind) if jagged else None,
        *(
            torch.from_numpy(rng.integers(0, len(table), offsets[-1]).astype(np.int32))
            for table in (bitmask_rows, bloom_rows)
        ),
        bitmask_rows,
        bloom_rows,
        torch.from_numpy(rng.integers(0, max(1, bitmask_words * 64), slots)),
    )
    masks = RequestMasks(
        _bits(rng, (batch, bitmask_words), 0.02),
        _bits(rng, (batch, slots, num_places, filter_words), 0.03),
        torch.from_numpy(rng.integers(-1, num_places + 1, (batch, slots)).astype(np.int32)),
    )
    return {
        "nodes": torch.from_numpy(nodes),
        "child_offsets": trie.child_offsets.to(kind),
        "rows": rows,
        "masks": masks,
    }


def on(device, step):
    return {name: part.to(device) for name, part in step.items()}


def _bits(rng, shape, share):
    flags = rng.random((*shape, 64)) < share
    packed = np.packbits(flags, axis=-1, bitorder="little")
    return torch.from_numpy(packed.view("<i8").reshape(shape).copy())


def brute_force(nodes, child_offsets, rows, masks):
    """Sets of (request, beam, child) that pass."""
    passed = set()
    num_slots, filter_words = len(rows.other_bits), masks.places.shape[3]
    for b, beams in enumerate(nodes.tolist()):
        for m, node in enumerate(beams):
            if node < 0:
                continue
            first, last = child_offsets[node : node + 2].tolist()
            for entry in range(first, last):
                child = entry + 1
                partitions = range(child, child + 1)
                if rows.partition_offsets is not None:
                    partitions = range(*rows.partition_offsets[child : child + 2].tolist())
                for partition in partitions:
                    held = _set(rows.bitmask_rows[rows.bitmask_index[partition]])
                    filters = rows.bloom_rows[rows.bloom_index[partition]]
                    filters = filters.reshape(num_slots, filter_words)
                    fits = _set(masks.want[b]) <= held
                    for slot in range(num_slots):
                        count = int(masks.num_places[b, slot])
                        places = masks.places[b, slot][: max(count, 0)]
                        fits &= (
                            count < 0
                            or int(rows.other_bits[slot]) in held
                            or any(_set(place) <= _set(filters[slot]) for place in places)
                        )
                    if fits:
                        passed.add((b, m, entry - first))
    return passed


def _set(words):
    return {64 * t + i for t, w in enumerate(words.tolist()) for i in range(64) if w >> i & 1}


def children_of(allowed):
    """The same sets, of what match_children returns."""
    found = set()
    for b, m, word in torch.nonzero(allowed).tolist():
        bits = int(allowed[b, m, word])
        found |= {(b, m, 32 * word + j) for j in range(32) if bits >> j & 1}
    return found
