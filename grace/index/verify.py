"""Deep checks of an index: not only that its bytes are those written, but that they make sense."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from grace.errors import IndexFormatError
from grace.index.index import Index
from grace.index.lookup import TextTable


def verify_index(index: Index) -> list[str]:
    """Check that an opened index (whose hashes `Index.open` has compared) is consistent.

    Returns:
        The checks that passed, in words.

    Raises:
        IndexFormatError: naming the first check that fails.
    """
    passed = ["every array has the hash in the manifest"]
    for check, holds in _checks(index):
        if not holds:
            raise IndexFormatError(f"the index is inconsistent: not true that {check}")
        passed.append(check)
    return passed


def _checks(index: Index) -> Iterator[tuple[str, bool]]:
    data = index.data
    offsets, tokens = data.trie.child_offsets.numpy(), data.trie.child_tokens.numpy()
    starts = np.zeros(len(tokens) + 1, bool)
    starts[offsets] = True
    yield "every inner node has a child", bool((np.diff(offsets) > 0).all())
    ascending = tokens[1:] > tokens[:-1]
    yield "children are in token order", bool((ascending | starts[1:-1]).all())
    ads = np.diff(data.sid_ad_offsets.numpy())
    yield "every SID has an ad", bool((ads > 0).all()) and ads.sum() == index.num_ads
    yield "ads of a SID are in id order", _ids_ascend(index)
    numbers = np.arange(index.num_ads)
    sample = numbers[:: max(1, len(numbers) // 10_000)]
    found = index.find_ads([index.ad_id(int(number)) for number in sample])
    yield "ids lead back to their ads", bool((found == sample).all())
    signatures = data.tables.signatures.numpy()
    sizes = [*(rules.num_rules for rules in data.tables.rules), len(data.tables.windows)]
    yield "signatures name rules that exist", bool(((signatures >= 0) & (signatures < sizes)).all())
    named = data.ad_signatures.numpy()
    yield "ads name signatures that exist", bool(((named >= 0) & (named < len(signatures))).all())


def _ids_ascend(index: Index) -> bool:
    table = index.data.ad_ids
    first_of_sid = np.zeros(index.num_ads + 1, bool)
    first_of_sid[index.data.sid_ad_offsets.numpy()] = True
    if isinstance(table, TextTable):
        ids = [text.encode() for text in table.take(np.arange(index.num_ads))]
        ascending = np.array([a < b for a, b in itertools.pairwise(ids)], bool)
    else:
        ascending = table.values.numpy()[1:] > table.values.numpy()[:-1]
    return bool((ascending | first_of_sid[1:-1]).all())
