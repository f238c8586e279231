"""Catalogues read by column are what they are row by row; errors name the first wrong row."""

from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st
from tables import SCHEMA, RandomTable, ads_of, rules_of

from grace.catalog import Schema, iter_rows, read_catalog, read_changes
from grace.catalog.row_checks import RowChecker
from grace.errors import CatalogError

WHOLE = [{"ad_id": n, "sid": [n % 3, 1]} for n in range(1, 51)]
BARE = Schema(())


def outcome(read, source, **options):
    """What is read, in words, or the error's."""
    try:
        found = read(source, SCHEMA, **options)
    except CatalogError as error:
        return str(error)
    if read is read_catalog:
        check_tables(found)
        return ads_of(found)
    check_tables(found.ads)
    return ads_of(found.ads), found.removed.to_pylist(), found.removed.type


def check_tables(catalog) -> None:
    """Every distinct part once, and nothing that no ad has."""
    num_ads = len(catalog.ad_ids)
    assert catalog.sids.dtype == np.int32
    assert catalog.sids.flags.c_contiguous
    assert (catalog.ad_signatures.shape, catalog.ad_signatures.dtype) == ((num_ads,), np.int32)
    assert (catalog.paused.shape, catalog.paused.dtype) == ((num_ads,), np.bool_)
    signatures = catalog.signatures
    assert signatures.shape[1] == len(catalog.schema.attributes) + 1
    assert len(np.unique(signatures, axis=0)) == len(signatures)
    assert set(catalog.ad_signatures.tolist()) == set(range(len(signatures)))
    for column, table in zip(signatures.T, catalog.rules, strict=False):
        assert set(column.tolist()) | {0} == set(range(len(table)))
        rules = rules_of(table)
        assert len(set(rules)) == len(rules)
        assert rules[0] in ((frozenset(), frozenset()), (-np.inf, np.inf))
        if hasattr(table, "values"):
            values = table.values.to_pylist()
            assert sorted(set(values)) == sorted(values)
            named = {*table.include_values.tolist(), *table.exclude_values.tolist()}
            assert named == set(range(len(values)))
    assert set(signatures[:, -1].tolist()) | {0} == set(range(len(catalog.windows)))
    assert len(np.unique(catalog.windows, axis=0)) == len(catalog.windows)


@given(
    seed=st.integers(0, 1 << 30),
    faults=st.sampled_from((0.0, 0.0, 0.01, 0.1)),
    odd=st.sampled_from((0.0, 0.0, 0.2)),
    workers=st.sampled_from((1, 2, 3)),
    read=st.sampled_from((read_catalog, read_changes)),
)
def test_columns_say_what_rows_say(tmp_path_factory, seed, faults, odd, workers, read):
    """Whatever the types, faults, row groups and threads: the same ads, or the same error."""
    table = RandomTable(seed, faults, odd, removals=read is read_changes).table()
    want = outcome(read, [row for _, row in iter_rows(table)])
    assert outcome(read, table, workers=workers) == want
    path = tmp_path_factory.mktemp("rows") / "catalog.parquet"
    try:
        pq.write_table(table, path, row_group_size=7)
    except pa.ArrowNotImplementedError:
        return  # some types Parquet does not know
    want = outcome(read, [row for _, row in iter_rows(path)])
    with patch("grace.catalog.batches.BATCH_ROWS", 5):
        assert outcome(read, path, workers=workers) == want


@given(seed=st.integers(0, 1 << 30))
def test_plain_columns_need_no_look_at_rows(seed):
    table = RandomTable(seed, faults=0.0, odd=0.0).table()
    with patch.object(RowChecker, "add", side_effect=AssertionError("looked at a row")):
        try:
            outcome(read_catalog, table)
        except AssertionError:
            # The one plain table left to rows: null lists that cover values.
            assert covers_values(table)


def covers_values(table: pa.Table) -> bool:
    for batch in table.to_batches():
        rules = batch.column("rules")
        for name in ("gender", "place"):
            if rules.type.get_field_index(name) < 0:
                continue
            sides = rules.flatten()[rules.type.get_field_index(name)]
            for side in sides.flatten():
                if isinstance(side, (pa.ListArray, pa.LargeListArray)):
                    lengths = np.diff(side.offsets.to_numpy())
                    if lengths[side.is_null().to_numpy(zero_copy_only=False)].any():
                        return True
    return False
