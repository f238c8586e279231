"""Catalogue -> index arrays. The result does not depend on the order of the catalogue's rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from grace.catalog import Catalog, Schema
from grace.index.bitmask import bit_layout
from grace.index.bloom import BloomShape
from grace.index.lookup import IntegerTable, TextTable
from grace.index.rules import RangeRules, RuleTables, ValueRules, sorted_rules, sorted_windows
from grace.index.trie import Trie, build_trie


@dataclass(frozen=True)
class IndexData:
    """All arrays of an index; what a version on disk holds.

    Ads are numbered by (SID, ad id), string ids by their UTF-8 bytes.

    Attributes:
        trie: prefixes of the distinct SIDs.
        sid_ad_offsets: int64 [N + 1], the ads of each SID.
        ad_ids: the ads' ids by number, and back.
        ad_signatures: int32 [num_ads], rows of `tables.signatures`.
        ad_paused: uint8 [num_ads], as the catalogue says.
        tables: distinct rules, windows and signatures.
        bloom: the size of the filters in the matchers that are made of these arrays.
    """

    trie: Trie
    sid_ad_offsets: Tensor
    ad_ids: TextTable | IntegerTable
    ad_signatures: Tensor
    ad_paused: Tensor
    tables: RuleTables
    bloom: BloomShape

    @property
    def schema(self) -> Schema:
        """The attributes that rules and requests speak of."""
        return self.tables.schema


def build_data(catalog: Catalog, bloom: BloomShape) -> IndexData:
    """Build every array of an index from a checked catalogue."""
    id_rank = np.empty(len(catalog.ad_ids), np.int64)
    id_rank[pc.sort_indices(catalog.ad_ids).to_numpy()] = np.arange(len(id_rank))
    order = np.lexsort((id_rank, *catalog.sids.T[::-1]))
    sids = catalog.sids[order]
    is_first = np.ones(len(sids), bool)
    is_first[1:] = (sids[1:] != sids[:-1]).any(1)
    sid_ad_offsets = np.append(np.flatnonzero(is_first), len(sids))
    trie = build_trie(sids[is_first])
    tables, signature_ids = _rule_tables(catalog)
    bit_layout(tables)  # refuses what a bitmask cannot hold now, not when one is first asked for
    ad_signatures = signature_ids[catalog.ad_signatures[order]]
    return IndexData(
        trie=trie,
        sid_ad_offsets=torch.from_numpy(sid_ad_offsets),
        ad_ids=_id_table(catalog.ad_ids.take(pa.array(order))),
        ad_signatures=torch.from_numpy(ad_signatures),
        ad_paused=torch.from_numpy(catalog.paused[order].astype(np.uint8)),
        tables=tables,
        bloom=bloom,
    )


def _rule_tables(catalog: Catalog) -> tuple[RuleTables, np.ndarray]:
    """Return the tables in an order of their own, and the new id of each catalogue signature."""
    signatures = np.empty_like(catalog.signatures)
    rules = []
    for attribute, distinct in enumerate(catalog.rules):
        ordered, new_ids = sorted_rules(distinct)
        ranged = catalog.schema.attributes[attribute].kind == "range"
        rules.append((RangeRules if ranged else ValueRules).build(ordered))
        signatures[:, attribute] = new_ids[catalog.signatures[:, attribute]]
    windows, new_ids = sorted_windows(catalog.windows)
    signatures[:, -1] = new_ids[catalog.signatures[:, -1]]
    order = np.lexsort(signatures.T[::-1])
    signature_ids = np.empty(len(order), np.int32)
    signature_ids[order] = np.arange(len(order), dtype=np.int32)
    tables = RuleTables(
        schema=catalog.schema,
        rules=tuple(rules),
        windows=torch.from_numpy(windows),
        signatures=torch.from_numpy(signatures[order]),
    )
    return tables, signature_ids


def _id_table(ad_ids: pa.Array) -> TextTable | IntegerTable:
    if pa.types.is_integer(ad_ids.type):
        return IntegerTable.build(ad_ids.to_numpy())
    return TextTable.build(ad_ids.to_pylist())
