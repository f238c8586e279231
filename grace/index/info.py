"""What an index holds, as GRACE's Tables 1 and 2 show it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from grace.errors import ConfigError
from grace.index.bits import count_bits
from grace.index.index import Index
from grace.index.state_log import FLAGS
from grace.index.unions import UNIONS, UnionMatcher


@dataclass(frozen=True)
class MatcherLevel:
    """One kind of matcher on the transitions that reach one level.

    Attributes:
        rows: partitions of the transitions, each of which would store a row.
        distinct_rows: rows left when equal ones are stored once.
        num_bytes, distinct_bytes: what either takes, indices not counted.
        fill_rate: mean share of 1 bits over the partitions; lower is more selective.
    """

    rows: int
    distinct_rows: int
    num_bytes: int
    distinct_bytes: int
    fill_rate: float


@dataclass(frozen=True)
class LevelInfo:
    """Transitions that end at prefixes of one length; level 0 is the root itself."""

    level: int
    transitions: int
    bitmask: MatcherLevel
    bloom: MatcherLevel


@dataclass(frozen=True)
class IndexInfo:
    """Sizes of an index.

    Attributes:
        version: id on disk, or None in memory.
        ads, sids, levels, vocab_size: counts; `vocab_size` is the largest token + 1.
        paused_ads, bid_off_ads: ads paused now, and ads whose bid is off now.
        ads_per_sid: p50, p99 and max.
        rules: distinct rules per attribute, "no rule" included.
        windows, signatures: distinct ones.
        array_bytes: all arrays of the index.
        matching: whose rows `per_level` counts.
        per_level: one entry per level, the root first.
    """

    version: str | None
    ads: int
    sids: int
    levels: int
    vocab_size: int
    paused_ads: int
    bid_off_ads: int
    ads_per_sid: dict[str, int]
    rules: dict[str, int]
    windows: int
    signatures: int
    array_bytes: int
    matching: str
    per_level: list[LevelInfo]

    def to_dict(self) -> dict:
        """Return the form that `grace index info --json` prints."""
        return asdict(self)


def index_info(index: Index, matching: str = "bitmask+bloom") -> IndexInfo:
    """Count what an index holds.

    Args:
        index: an open index.
        matching: whose rows to count, one of `UNIONS`; they are built for it.

    Raises:
        ConfigError: if that mode has no rows.
    """
    if matching not in UNIONS:
        raise ConfigError(f"matching must be one of {', '.join(UNIONS)}, got {matching!r}")
    matcher = index.unions(matching)
    from grace.index.storage import tensors_of

    data = index.data
    per_sid = np.diff(data.sid_ad_offsets.numpy())
    p50, p99 = np.percentile(per_sid, [50, 99], method="higher").tolist()
    rules = data.tables.rules
    return IndexInfo(
        version=index.version,
        ads=index.num_ads,
        sids=index.num_sids,
        levels=index.num_levels,
        vocab_size=index.vocab_size,
        paused_ads=int((index.ad_state & FLAGS["paused"] != 0).sum()),
        bid_off_ads=int((index.ad_state & FLAGS["bid_off"] != 0).sum()),
        ads_per_sid={"p50": p50, "p99": p99, "max": int(per_sid.max())},
        rules={n: r.num_rules for n, r in zip(index.schema.names, rules, strict=True)},
        windows=len(data.tables.windows),
        signatures=len(data.tables.signatures),
        array_bytes=sum(t.numel() * t.element_size() for t in tensors_of(data).values()),
        matching=matching,
        per_level=[_level(index, matcher, level) for level in range(index.num_levels + 1)],
    )


def _level(index: Index, matcher: UnionMatcher, level: int) -> LevelInfo:
    first, last = index.trie.level_offsets[level : level + 2].tolist()
    rows, transitions = matcher.rows, last - first
    if rows.partition_offsets is not None:
        first, last = rows.partition_offsets[[first, last]].tolist()
    bitmask, bloom = (
        _matcher_level(table.numpy(), chosen[first:last].numpy(), num_bits)
        for table, chosen, num_bits in (
            (rows.bitmask_rows, rows.bitmask_index, matcher.layout.num_bits),
            (rows.bloom_rows, rows.bloom_index, rows.bloom_rows.shape[1] * 64),
        )
    )
    return LevelInfo(level, transitions, bitmask, bloom)


def _matcher_level(table: np.ndarray, index: np.ndarray, num_bits: int) -> MatcherLevel:
    uses = np.bincount(index, minlength=len(table))
    distinct = int(np.count_nonzero(uses))
    row_bytes = table.shape[1] * table.itemsize
    fill = (count_bits(table) * uses).sum() / (len(index) * num_bits) if num_bits else 0.0
    return MatcherLevel(
        rows=len(index),
        distinct_rows=distinct,
        num_bytes=len(index) * row_bytes,
        distinct_bytes=distinct * row_bytes,
        fill_rate=float(fill),
    )
