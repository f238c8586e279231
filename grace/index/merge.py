"""A base index and a delta -> the index that a full rebuild would give, without sorting the base.

Removed and replaced ads leave the base's columns, new ones are put in at their places, and the
dictionaries are renumbered in one pass, exactly as a full build numbers them: so the result is the
same to the byte, and decoding always sees one trie.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa
import torch

from grace import _native
from grace.catalog import Catalog, Changes
from grace.errors import CatalogError
from grace.index.bitmask import bit_layout
from grace.index.build import IndexData, ad_order
from grace.index.joined_tables import joined_tables
from grace.index.lookup import IntegerTable, TextTable, text_buffers
from grace.index.numbering import number_tables
from grace.index.offsets import fitted
from grace.index.rules import RuleTables
from grace.index.trie import Trie, build_trie


def merge_data(base: IndexData, changes: Changes, workers: int = 1) -> IndexData:
    """Apply a delta.

    Args:
        base: any version.
        changes: ads that are new or replace those of the same id, and ids to remove; removing an ad
            that the base lacks changes nothing.
        workers: threads; the result does not depend on them.

    Raises:
        CatalogError: if the delta's ids or SIDs are of another kind than the base's, no ad would be
            left, or a categorical attribute gets too many values.
    """
    changes = _checked(base, changes)
    order = ad_order(changes.ads, workers)
    ads = _in_order(changes.ads, order)
    gone = base.ad_ids.find(pa.concat_arrays([ads.ad_ids, changes.removed]).to_pylist())
    kept = np.ones(len(base.ad_signatures), bool)
    kept[gone[gone >= 0]] = False
    places = _places(base, ads)
    splice = _Splice(kept, places)
    if not kept.any() and not len(places):
        raise CatalogError("the changes would leave no ad; an index needs at least one")

    # Three parts that need nothing of each other; most of their time is native or numpy's.
    with ThreadPoolExecutor(max(1, workers)) as pool:
        trie = pool.submit(_merged_trie, base, ads, splice, workers)
        ad_ids = pool.submit(_merged_ids, base.ad_ids, ads.ad_ids, splice)
        tables, ad_signatures = _merged_tables(base, ads, splice, workers)
        paused = splice.take(base.ad_paused.numpy(), ads.paused.astype(np.uint8))
        trie, sid_ad_offsets = trie.result()
        ad_ids = ad_ids.result()
    return replace(
        base,
        trie=trie,
        sid_ad_offsets=torch.from_numpy(sid_ad_offsets),
        ad_ids=ad_ids,
        ad_signatures=torch.from_numpy(ad_signatures),
        ad_paused=torch.from_numpy(paused),
        tables=tables,
    )


class _Splice:
    """A sorted base, some rows of which leave, and where new rows go in.

    Args:
        kept: bool [A], which of the base's rows stay.
        places: int64 [D], ascending: the i-th new row stands before the base's row `places[i]`.
    """

    def __init__(self, kept: np.ndarray, places: np.ndarray):
        self._kept = kept
        self._places = places
        self.base_positions, self.new_positions = _native.spliced_positions(kept, places)

    def take(self, base: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return the result's rows, from [A, ...] of the base and [D, ...] new ones."""
        rows = [
            np.ascontiguousarray(part, base.dtype).view(np.uint8).reshape(len(part), -1)
            if len(part)
            else np.empty((0, base.itemsize * base[:1].size), np.uint8)
            for part in (base, new)
        ]
        joined = _native.splice(*rows, self._kept, self._places)
        return joined.reshape(-1).view(base.dtype).reshape(-1, *base.shape[1:])


def _checked(base: IndexData, changes: Changes) -> Changes:
    """Refuse ids or SIDs of another kind; give empty columns the base's kind."""
    integers = isinstance(base.ad_ids, IntegerTable)
    kind = pa.int64() if integers else pa.large_string()
    for ids in (changes.ads.ad_ids, changes.removed):
        if len(ids) and ids.type != kind:
            raise CatalogError(
                f"expected {'integers' if integers else 'strings'} as in the index", field="ad_id"
            )
    sids, num_levels = changes.ads.sids, base.trie.num_levels
    if len(sids) and sids.shape[1] != num_levels:
        raise CatalogError(
            f"expected {num_levels} tokens as in the index, got {sids.shape[1]}", field="sid"
        )
    ads = replace(
        changes.ads,
        ad_ids=changes.ads.ad_ids.cast(kind),
        sids=sids.reshape(len(sids), num_levels),
    )
    return Changes(ads, changes.removed.cast(kind))


def _in_order(ads: Catalog, order: np.ndarray) -> Catalog:
    return replace(
        ads,
        ad_ids=ads.ad_ids.take(pa.array(order)),
        sids=ads.sids[order],
        ad_signatures=ads.ad_signatures[order],
        paused=ads.paused[order],
    )


def _places(base: IndexData, ads: Catalog) -> np.ndarray:
    """Return int64 [D], before which of the base's ads each ordered new ad belongs."""
    first, last = _sid_ranges(base.trie, base.sid_ad_offsets.numpy(), ads.sids)
    ids = ads.ad_ids.to_pylist()
    for row in np.flatnonzero(last > first).tolist():
        low, high, wanted = int(first[row]), int(last[row]), _comparable(ids[row])
        while low < high:
            middle = (low + high) // 2
            if _comparable(base.ad_ids[middle]) < wanted:
                low = middle + 1
            else:
                high = middle
        first[row] = low
    return first


def _comparable(ad_id: str | int) -> bytes | int:
    return ad_id.encode() if isinstance(ad_id, str) else ad_id


def _sid_ranges(
    trie: Trie, sid_ad_offsets: np.ndarray, sids: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return each SID's first ad and the one past its last; a SID's place, twice, where it is new.

    The place is where the search leaves the trie: before the first child with a larger token.
    """
    offsets, tokens = trie.child_offsets.numpy(), trie.child_tokens.numpy()
    node = np.zeros(len(sids), np.int64)
    inside = np.ones(len(sids), bool)  # the path so far is in the trie
    for level in range(trie.num_levels):
        # Outside, `node` is the first one past the SID, and so is its own first child.
        low = offsets[node].astype(np.int64)
        high = np.where(inside, offsets[np.minimum(node + 1, len(offsets) - 1)], low)
        last = high.copy()
        for _ in range(int((high - low).max(initial=0)).bit_length()):
            middle = (low + high) // 2
            less = (low < high) & (tokens[np.minimum(middle, len(tokens) - 1)] < sids[:, level])
            low, high = np.where(less, middle + 1, low), np.where(less, high, middle)
        inside &= (low < last) & (tokens[np.minimum(low, len(tokens) - 1)] == sids[:, level])
        node = low + 1
    leaf = node - trie.first_leaf
    first = sid_ad_offsets[leaf].astype(np.int64)
    return first, np.where(inside, sid_ad_offsets[np.minimum(leaf + 1, len(sid_ad_offsets) - 1)],
                           first).astype(np.int64)  # fmt: skip


def _merged_trie(
    base: IndexData, ads: Catalog, splice: _Splice, workers: int
) -> tuple[Trie, np.ndarray]:
    base_sids = base.trie.expand(base.sid_ad_offsets.numpy(), workers)
    return build_trie(splice.take(base_sids, ads.sids), None, workers)


def _merged_tables(
    base: IndexData, ads: Catalog, splice: _Splice, workers: int
) -> tuple[RuleTables, np.ndarray]:
    rules, windows, signatures, new_signatures = joined_tables(base.tables, ads, workers)
    tables, ad_signatures = number_tables(
        base.schema, rules, windows, signatures,
        splice.take(base.ad_signatures.numpy(), new_signatures), None, workers,
    )  # fmt: skip
    bit_layout(tables)  # refuses what a bitmask cannot hold
    return tables, ad_signatures


def _merged_ids(
    base: IntegerTable | TextTable, new: pa.Array, splice: _Splice
) -> IntegerTable | TextTable:
    moved = splice.base_positions[base.numbers.numpy()]
    stays = moved >= 0
    if isinstance(base, IntegerTable):
        values = new.to_numpy()
        by_value = np.argsort(values)
        merged = _Splice(stays, base.rank(values[by_value]))
        numbers = merged.take(moved, splice.new_positions[by_value])
        return IntegerTable(
            torch.from_numpy(splice.take(base.values.numpy(), values)),
            torch.from_numpy(fitted(numbers, len(numbers))),
        )
    hashes = _native.hash_texts(*text_buffers(new), 1)
    by_hash = np.argsort(hashes, kind="stable")
    hashes = hashes[by_hash]
    merged = _Splice(stays, np.searchsorted(base.hashes.numpy(), hashes))
    numbers = merged.take(moved, splice.new_positions[by_hash])
    hashes = merged.take(base.hashes.numpy(), hashes)
    _order_equal_hashes(hashes, numbers)
    rows = splice.take(np.arange(len(base)), len(base) + np.arange(len(new)))
    texts = pa.concat_arrays([base.to_arrow(), new]).take(pa.array(rows))
    text, offsets = text_buffers(texts)
    arrays = (text, offsets, hashes, fitted(numbers, len(numbers)))
    return TextTable(*map(torch.from_numpy, arrays))


def _order_equal_hashes(hashes: np.ndarray, numbers: np.ndarray) -> None:
    """Put the numbers of texts that share a hash in order, in place; there are hardly any."""
    repeats = hashes[1:] == hashes[:-1]
    shared = np.flatnonzero(np.append(repeats, False) | np.insert(repeats, 0, False))
    numbers[shared] = numbers[shared][np.lexsort((numbers[shared], hashes[shared]))]
