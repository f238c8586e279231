"""Catalogue -> index arrays. The result does not depend on the order of the catalogue's rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from grace import _native
from grace.catalog import Catalog, Schema
from grace.index.bitmask import bit_layout
from grace.index.bloom import BloomShape
from grace.index.lookup import IntegerTable, TextTable, text_buffers
from grace.index.numbering import number_tables
from grace.index.rules import RuleTables
from grace.index.trie import Trie, build_trie
from grace.progress import progress


@dataclass(frozen=True)
class IndexData:
    """All arrays of an index; what a version on disk holds.

    Ads are numbered by (SID, ad id), string ids by their UTF-8 bytes; grace.index.numbering tells
    how signatures, rules and values are.

    Attributes:
        trie: prefixes of the distinct SIDs.
        sid_ad_offsets: int32 or int64 [N + 1], the ads of each SID.
        ad_ids: the ads' ids by number, and back.
        ad_signatures: int32 [A], rows of `tables.signatures`.
        ad_paused: uint8 [A], as the catalogue says.
        tables: distinct rules, windows and signatures.
        bloom: the size of the conservative matchers' Bloom filters.
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


def build_data(catalog: Catalog, bloom: BloomShape, workers: int = 1) -> IndexData:
    """Build every array of an index from a checked catalogue.

    Args:
        catalog: ads in any order.
        bloom: the size of the conservative matchers' Bloom filters.
        workers: threads; the result does not depend on them.

    Raises:
        CatalogError: if a categorical attribute has too many values.
    """
    with progress("building the index", total=4) as advance:
        order = ad_order(catalog, workers)
        advance(1)
        trie, sid_ad_offsets = build_trie(catalog.sids, order, workers)
        advance(1)
        tables, ad_signatures = number_tables(
            catalog.schema, catalog.rules, catalog.windows, catalog.signatures,
            catalog.ad_signatures, order, workers,
        )  # fmt: skip
        bit_layout(tables)  # refuses what a bitmask cannot hold now, not when first asked for
        advance(1)
        ad_ids = _id_table(catalog.ad_ids, order, workers)
        advance(1)
    return IndexData(
        trie=trie,
        sid_ad_offsets=torch.from_numpy(sid_ad_offsets),
        ad_ids=ad_ids,
        ad_signatures=torch.from_numpy(ad_signatures),
        ad_paused=torch.from_numpy(catalog.paused[order].astype(np.uint8)),
        tables=tables,
        bloom=bloom,
    )


def ad_order(catalog: Catalog, workers: int) -> np.ndarray:
    """Return uint32 [A], the catalogue's rows by (SID, ad id)."""
    if pa.types.is_integer(catalog.ad_ids.type):
        return _native.sort_by_integer_id(catalog.sids, catalog.ad_ids.to_numpy(), workers)
    return _native.sort_by_text_id(catalog.sids, *text_buffers(catalog.ad_ids), workers)


def _id_table(ad_ids: pa.Array, order: np.ndarray, workers: int) -> TextTable | IntegerTable:
    if pa.types.is_integer(ad_ids.type):
        return IntegerTable.build(ad_ids.to_numpy()[order], workers)
    return TextTable.build(ad_ids.take(pa.array(order)), workers)
