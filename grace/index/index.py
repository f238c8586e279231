"""The index: one version of a catalogue, opened for reading, and the states that may change."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from grace import _native
from grace.catalog import Schema, parse_targeting, read_catalog
from grace.catalog.values import describe
from grace.errors import CatalogError
from grace.index import storage
from grace.index.bits import MAX_REQUESTS
from grace.index.bloom import BloomShape
from grace.index.build import IndexData, build_data
from grace.index.exact import ExactMatcher
from grace.index.exact_cost import visited_children
from grace.index.filter import AdFilter, Expansion, FoundAds
from grace.index.history import DEFAULT_KEEP, check_watermark
from grace.index.rules import CompiledTargeting
from grace.index.state import AdStates
from grace.index.trie import Trie
from grace.index.unions import UNIONS, UnionMatcher, build_unions
from grace.index.verdict import Verdict

if TYPE_CHECKING:
    from grace.index.reader import IndexReader

MATCHERS = ("off", "valid", *UNIONS, "exact")


def build_index(
    catalog: object,
    schema: object,
    out: str | os.PathLike | None = None,
    bloom_bits: int = 256,
    bloom_hashes: int = 4,
    watermark: str | None = None,
    keep: int = DEFAULT_KEEP,
    workers: int = 1,
) -> Index:
    """Build an index from a catalogue.

    Args:
        catalog: a `.parquet` or `.jsonl` path, a table, or an iterable of dicts; see
            `grace.catalog.iter_rows`.
        schema: a YAML path, a dict, or a `Schema`.
        out: directory to write a new version to and make it current; None keeps it in memory.
        bloom_bits: bits of one Bloom filter, a multiple of 64.
        bloom_hashes: bits that one value sets.
        watermark: the last delta that the catalogue holds; `grace index watch` goes on after it.
        keep: versions to leave in `out`, this one among them.
        workers: threads; the index does not depend on them.

    Raises:
        CatalogError: naming the row and the field; nothing is written then.
        SchemaError: if the schema is wrong.
        IndexFormatError: if `out` holds something else.
    """
    if isinstance(schema, dict):
        schema = Schema.from_dict(schema)
    elif not isinstance(schema, Schema):
        schema = Schema.load(schema)
    shape = BloomShape(bloom_bits, bloom_hashes)
    check_watermark(watermark)
    data = build_data(read_catalog(catalog, schema, workers), shape, workers)
    if out is None:
        return Index(data)
    storage.save(data, out, watermark, keep)
    return Index.open(out)


class Index:
    """Tries, matchers and ads of one catalogue version. The arrays never change; ad states do.

    Attributes:
        version: id of the version on disk, or None in memory.
        data: the version's arrays.
    """

    def __init__(self, data: IndexData, version: str | None = None, directory: Path | None = None):
        self.data = data
        self.version = version
        self._states = AdStates(data.ad_paused, self.find_ads, directory)
        self._unions: dict[str, UnionMatcher] = {}
        self._building = threading.Lock()
        self._filter = AdFilter(data.tables, data.sid_ad_offsets, data.ad_signatures)

    @staticmethod
    def open(directory: str | os.PathLike) -> Index:
        """Open the current version in a directory; later builds there do not change this object.

        Raises:
            IndexFormatError: if the index is torn, damaged, foreign or newer, naming the file.
        """
        version, data = storage.load(directory)
        return Index(data, version, Path(directory))

    @staticmethod
    def follow(directory: str | os.PathLike) -> IndexReader:
        """Open a directory for a server: its `current` moves on to new versions between batches.

        Raises:
            IndexFormatError: as `open` does.
        """
        from grace.index.reader import IndexReader

        return IndexReader(directory)

    @cached_property
    def exact(self) -> ExactMatcher:
        """The exact matcher on the CPU."""
        data = self.data
        return ExactMatcher(
            data.tables, data.trie, data.sid_ad_offsets, data.ad_signatures, self.ad_state
        )

    @property
    def schema(self) -> Schema:
        """The targeting attributes."""
        return self.data.schema

    @property
    def trie(self) -> Trie:
        """The SIDs' prefixes."""
        return self.data.trie

    @property
    def num_levels(self) -> int:
        """L, tokens of a SID."""
        return self.trie.num_levels

    @property
    def level_sizes(self) -> tuple[int, ...]:
        """Prefixes of length 0..L."""
        return self.trie.level_sizes

    @property
    def vocab_size(self) -> int:
        """The least V that a generator needs: the largest token + 1."""
        return self.trie.vocab_size

    @property
    def num_sids(self) -> int:
        """N, distinct SIDs."""
        return self.trie.level_sizes[-1]

    @property
    def num_ads(self) -> int:
        """Ads in the catalogue."""
        return len(self.data.ad_signatures)

    @property
    def sids(self) -> np.ndarray:
        """int32 [N, L], all SIDs, ascending."""
        return self.trie.sids

    @cached_property
    def ad_sid(self) -> np.ndarray:
        """int64 [num_ads], the SID index of each ad."""
        counts = np.diff(self.data.sid_ad_offsets.numpy())
        return np.repeat(np.arange(self.num_sids), counts)

    def ad_id(self, position: int) -> str | int:
        """Return the id of the ad at a position; ads are sorted by (SID, ad id)."""
        return self.data.ad_ids[position]

    def take_ad_ids(self, positions: np.ndarray) -> list[str | int]:
        """Return the ids of the ads at positions, int64 [n]."""
        return self.data.ad_ids.take(positions)

    def find_ads(self, ad_ids: Sequence[object]) -> np.ndarray:
        """Return int64 [n], the position of each ad, or -1 where it is not in the catalogue."""
        return self.data.ad_ids.find(ad_ids)

    def find_sids(self, sids: np.ndarray) -> np.ndarray:
        """Return int64 [n], the index of each SID of [n, L] ints, or -1."""
        return self.trie.find(sids)

    def sid_ads(self, sid: int) -> tuple[int, int]:
        """Return the first position and the one past the last of a SID's ads."""
        first, last = self.data.sid_ad_offsets[sid : sid + 2].tolist()
        return first, last

    def compile(self, attributes: dict | None, at: object = None) -> CompiledTargeting:
        """Check a request's attributes and time and look its values up.

        Raises:
            RequestError: naming the field.
        """
        return self.data.tables.compile(parse_targeting(self.schema, attributes, at))

    def compile_plain(
        self, attributes: Sequence[object], times: Sequence[object]
    ) -> list[CompiledTargeting | None]:
        """Do what `compile` does for many requests; None for each that only `compile` can read."""
        return self.data.tables.compile_plain(attributes, times)

    def compile_texts(self, texts: _native.RequestTexts) -> list[CompiledTargeting | None]:
        """Do the same for requests as texts."""
        return self.data.tables.compile_texts(texts)

    def unions(self, matching: str) -> UnionMatcher:
        """Return one of the paper's matchers; the first call derives it from the ads' rules.

        Args:
            matching: `bitmask+bloom`, `static-kway` or `dynamic-kway`.
        """
        with self._building:
            if matching not in self._unions:
                data = self.data
                self._unions[matching] = build_unions(
                    matching, data.tables, data.trie, data.sid_ad_offsets, data.ad_signatures,
                    data.bloom, UNIONS[matching], workers=len(os.sched_getaffinity(0)),
                )  # fmt: skip
            return self._unions[matching]

    def match(
        self,
        matching: str,
        requests: Sequence[CompiledTargeting],
        widths: Sequence[int] | None = None,
    ) -> Verdict | None:
        """Return the matcher's verdict on a batch.

        Args:
            matching: one of `MATCHERS`.
            requests: at most 32.
            widths: of the search that will read the verdict, L of them. With them `exact` may
                decide only the nodes that are visited, where that is estimated to be cheaper;
                `Verdict.how` says which it is. Without them it decides every node.

        Returns:
            The verdict; None where the mode asks nothing of requests (`off`, `valid`).
        """
        if matching not in MATCHERS:
            raise ValueError(f"matching must be one of {', '.join(MATCHERS)}, got {matching!r}")
        if len(requests) > MAX_REQUESTS:
            raise ValueError(f"a batch holds {MAX_REQUESTS} requests, got {len(requests)}")
        if matching in UNIONS:
            return self.unions(matching).start(requests)
        if matching == "exact":
            visits = widths and visited_children(self.level_sizes, widths, len(requests))
            return self.exact.start(requests, visits)
        return None

    def expand(self, sids: np.ndarray, request: CompiledTargeting) -> Expansion:
        """Return the eligible ads of SID indices, int64 [n], in their order, with counts."""
        return self._filter.expand(sids, self.ad_state, request)

    def find(
        self,
        tokens: np.ndarray,
        nodes: np.ndarray,
        scores: np.ndarray,
        requests: Sequence[CompiledTargeting],
        top_k: Sequence[int | None],
    ) -> list[FoundAds]:
        """Return the eligible ads of a whole batch's beams, in one call without the interpreter.

        Args:
            tokens: int64 [B, K, L], the beams' SIDs, best first.
            nodes: int64 [B, K], their leaves; -1 for a SID outside the catalogue, which is counted.
            scores: float32 [B, K]; -inf marks a dead beam, which is not.
            requests: B of them.
            top_k: per request, how many ads to return at most; None for all.
        """
        first_leaf = self.trie.first_leaf
        return self._filter.find(tokens, nodes, scores, first_leaf, self.ad_state, requests, top_k)

    def explain(self, positions: np.ndarray, request: CompiledTargeting) -> np.ndarray:
        """Return uint64 [n]: bit i is set if `refusal_reasons[i]` refuses the ad at a position."""
        return self._filter.explain(positions, self.ad_state, request)

    @property
    def refusal_reasons(self) -> tuple[str, ...]:
        """Why an ad can be refused, in the order of counting: its state, window, each attribute."""
        return self._filter.reasons

    @property
    def ad_state(self) -> Tensor:
        """uint8 [num_ads], 0 where an ad is live; bit 0 paused, bit 1 bid off. Changes in place."""
        return self._states.flags

    def pause(self, ad_ids: Sequence[str | int]) -> None:
        """Stop showing ads from the next batch on; an index on disk remembers it.

        Raises:
            CatalogError: if an id is not in the catalogue; then nothing changes.
        """
        self._switch("paused", True, ad_ids)

    def resume(self, ad_ids: Sequence[str | int]) -> None:
        """Show paused ads again, those too that the catalogue says are paused.

        Raises:
            CatalogError: if an id is not in the catalogue; then nothing changes.
        """
        self._switch("paused", False, ad_ids)

    def bid_off(self, ad_ids: Sequence[str | int]) -> None:
        """Stop showing ads that bid no more, as `pause` does but apart from it.

        Raises:
            CatalogError: if an id is not in the catalogue; then nothing changes.
        """
        self._switch("bid_off", True, ad_ids)

    def bid_on(self, ad_ids: Sequence[str | int]) -> None:
        """Show ads again that bid again; a paused one stays paused.

        Raises:
            CatalogError: if an id is not in the catalogue; then nothing changes.
        """
        self._switch("bid_off", False, ad_ids)

    def catch_up(self) -> None:
        """See states that other processes changed in the index's directory; costs a `stat` if none.

        Raises:
            IndexFormatError: if the log of states is damaged.
        """
        self._states.catch_up()

    def subscribe(self, callback: Callable[[np.ndarray], None]) -> None:
        """Call `callback(positions)`, int64 [n], after `ad_state` changed there.

        For copies on a device: subscribe, then copy everything once. Calls come one at a time,
        before `pause` and its like return.
        """
        self._states.subscribe(callback)

    def _switch(self, flag: str, on: bool, ad_ids: Sequence[str | int]) -> None:
        if isinstance(ad_ids, (str, bytes)):
            raise TypeError(f"ad_ids must be a list of ids, got the text {ad_ids!r}")
        positions = self.find_ads(ad_ids)
        for ad_id, position in zip(ad_ids, positions.tolist(), strict=True):
            if position < 0:
                raise CatalogError(f"no ad {describe(ad_id)} in the catalogue", field="ad_id")
        self._states.change(flag, on, self.take_ad_ids(positions))
