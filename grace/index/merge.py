"""Changes merged into an index: what a build from the changed catalogue would give."""

from __future__ import annotations

import itertools
from datetime import timedelta

import numpy as np

from grace.catalog import Catalog, Changes, RangeRule, SetRule, read_catalog
from grace.catalog.reader import ALWAYS
from grace.catalog.values import EPOCH
from grace.errors import CatalogError
from grace.index.build import IndexData, build_data
from grace.index.rules import RangeRules


def merge_data(base: IndexData, changes: Changes) -> IndexData:
    """Return the index of the base's catalogue after the changes.

    Removing an ad that the base lacks changes nothing.

    Raises:
        CatalogError: if SIDs are of another length, ids of another type, or no ad is left.
    """
    ads = _base_rows(base)
    changed = _catalog_rows(changes.ads)
    kinds = {type(ad_id) for ad_id in (*ads, *changed, *changes.removed.to_pylist())}
    if len(kinds) > 1:
        raise CatalogError("expected ids of the index's type", field="ad_id")
    levels = {len(row["sid"]) for row in changed.values()}
    if levels - {base.trie.num_levels}:
        raise CatalogError(
            f"expected {base.trie.num_levels} tokens as in the index, got {max(levels)}",
            field="sid",
        )
    ads |= changed
    for ad_id in changes.removed.to_pylist():
        ads.pop(ad_id, None)
    if not ads:
        raise CatalogError("removes the last ad; an index needs at least one")
    return build_data(read_catalog(ads.values(), base.schema), base.matcher.shape)


def _base_rows(base: IndexData) -> dict:
    rules = [_rules(table) for table in base.tables.rules]
    return _rows(
        base.ad_ids.take(np.arange(len(base.ad_signatures))),
        np.repeat(base.trie.sids, np.diff(base.sid_ad_offsets.numpy()), axis=0),
        base.schema.names,
        rules,
        base.tables.windows.tolist(),
        base.tables.signatures.numpy()[base.ad_signatures.numpy()],
        base.ad_paused.numpy(),
    )


def _catalog_rows(catalog: Catalog) -> dict:
    rules = [[_spelled(rule) for rule in table] for table in catalog.rules]
    return _rows(
        catalog.ad_ids.to_pylist(), catalog.sids, catalog.schema.names, rules, catalog.windows,
        catalog.signatures[catalog.ad_signatures], catalog.paused,
    )  # fmt: skip


def _rows(ids, sids, names, rules, windows, signatures, paused) -> dict:
    rows = {}
    for ad_id, sid, signature, stopped in zip(ids, sids, signatures, paused, strict=True):
        row = {"ad_id": ad_id, "sid": sid.tolist(), "paused": bool(stopped)}
        row["rules"] = {n: table[s] for n, table, s in zip(names, rules, signature, strict=False)}
        for field, end, always in zip(
            ("start", "end"), windows[signature[-1]], ALWAYS, strict=True
        ):
            if end != always:
                row[field] = EPOCH + timedelta(microseconds=end)
        rows[ad_id] = row
    return rows


def _rules(table: object) -> list[dict]:
    if isinstance(table, RangeRules):
        ends = zip(table.min.tolist(), table.max.tolist(), strict=True)
        return [_spelled(RangeRule(*pair)) for pair in ends]
    sides = []
    for offsets, values in (
        (table.include_offsets, table.include_values),
        (table.exclude_offsets, table.exclude_values),
    ):
        texts, bounds = table.values.take(values.numpy()), offsets.tolist()
        sides.append([tuple(texts[a:b]) for a, b in itertools.pairwise(bounds)])
    return [_spelled(SetRule(*pair)) for pair in zip(*sides, strict=True)]


def _spelled(rule: object) -> dict:
    if rule is None:
        return {}
    return {
        name: value
        for name, value in vars(rule).items()
        if value != () and value not in (float("inf"), float("-inf"))
    }
