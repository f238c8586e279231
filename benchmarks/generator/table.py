"""Ads as Arrow tables, in the catalogue's columns (docs/catalog.md)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa

from benchmarks.generator.atlas import atlas
from benchmarks.generator.campaigns import (
    GENDERS,
    PAUSED,
    Audience,
    ad_campaigns,
    draw_audiences,
    interests,
)
from benchmarks.generator.draw import Stream, distinct, mix
from benchmarks.generator.lists import Lists
from benchmarks.generator.place_rules import PlaceRules, draw_places
from benchmarks.generator.sids import ad_items, item_sids, sid_keys
from benchmarks.generator.spec import NUM_LEVELS, WILDCARD, Spec
from benchmarks.generator.sweep import ad_tiers, let_visitor_in, tier_rules

CHUNK_ADS = 524_288  # a row group; keeps the text of one array far below Arrow's 2 GiB
_TIME = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Chunk:
    """Ads made together.

    Attributes:
        batch: the catalogue's columns.
        sids: int64 [n], each ad's SID as one number.
        attribute_rows, place_lists, signatures: uint64, distinct hashes of what the chunk's
            ads ask of all but places, of the places they include, and of everything.
        num_windows, num_exclusions, num_places, num_paused: ads with each.
        place_values: places included, over all ads.
        longest_list: of the places included.
    """

    batch: pa.RecordBatch
    sids: np.ndarray
    attribute_rows: np.ndarray
    place_lists: np.ndarray
    signatures: np.ndarray
    num_windows: int
    num_exclusions: int
    num_places: int
    num_paused: int
    place_values: int
    longest_list: int


def catalog_table(
    spec: Spec, first: int = 0, last: int | None = None, workers: int = 1
) -> pa.Table:
    """Return ads `first` (from 0) to `last` (excluded; None: all) of a catalogue.

    Their ids are their numbers plus 1. Any range holds the same ads as a larger one does.
    """
    chunks = catalog_chunks(spec, first, last, workers)
    return pa.Table.from_batches([chunk.batch for chunk in chunks])


def catalog_chunks(
    spec: Spec, first: int = 0, last: int | None = None, workers: int = 1
) -> Iterator[Chunk]:
    """Yield ads `first` to `last` in order, a row group at a time, made by `workers` threads."""
    last = spec.ads if last is None else last
    if not 0 <= first < last <= spec.ads:
        raise ValueError(f"expected 0 <= first < last <= {spec.ads}, got {first} and {last}")
    atlas()  # once, before threads ask for it together
    starts = iter(range(first, last, CHUNK_ADS))
    with ThreadPoolExecutor(workers) as pool:

        def submit(start: int) -> Future[Chunk]:
            return pool.submit(make_chunk, spec, start, min(start + CHUNK_ADS, last))

        # One more than can run, so that no thread waits for the reader.
        waiting = [submit(start) for start in islice(starts, workers + 1)]
        while waiting:
            yield waiting.pop(0).result()
            waiting.extend(submit(start) for start in islice(starts, 1))


def make_chunk(spec: Spec, first: int, last: int) -> Chunk:
    """Make ads `first` to `last`."""
    ads = np.arange(first, last)
    tokens = item_sids(spec, ad_items(spec, ads))
    campaigns, dealt = np.unique(ad_campaigns(spec, ads), return_inverse=True)
    audience, places = draw_audiences(spec, campaigns), draw_places(spec, campaigns)
    paused = Stream(spec.seed, "paused").uniform(ads) < PAUSED
    if spec.selectivity:
        audience, places = let_visitor_in(audience, places)
    rules = _rules(audience, places)
    fields = {name: rule.take(pa.array(dealt)) for name, rule in rules.items()}
    tiers = ad_tiers(spec, ads) if spec.selectivity else None
    if tiers is not None:
        fields["tier"] = tier_rules(spec, tiers)
    columns = {
        "ad_id": pa.array(ads + 1),
        "sid": pa.ListArray.from_arrays(
            pa.array(np.arange(len(ads) + 1, dtype=np.int32) * NUM_LEVELS),
            pa.array(tokens.reshape(-1)),
        ),
        "rules": pa.StructArray.from_arrays(list(fields.values()), list(fields)),
        "start": _times(audience.start[dealt]),
        "end": _times(audience.end[dealt]),
        "paused": pa.array(paused),
    }
    return Chunk(
        batch=pa.record_batch(columns),
        sids=sid_keys(tokens),
        num_paused=int(paused.sum()),
        **_count(audience, places, dealt, tiers),
    )


def _count(
    audience: Audience, places: PlaceRules, dealt: np.ndarray, tiers: np.ndarray | None
) -> dict:
    """Count what a chunk's ads ask; fields of `Chunk`. `dealt` says each ad's campaign."""
    place_sizes = places.place.sizes
    excludes = [audience.not_interest, places.not_country, places.not_place]
    has_exclusion = np.logical_or.reduce([lists.sizes > 0 for lists in excludes])
    has_window = (audience.start >= 0) | (audience.end >= 0)
    values = [audience.gender, audience.interest, audience.not_interest]
    values = [lists.hashes() for lists in (*values, places.country, places.not_country)]
    attribute_rows = _hash_rows([audience.age_min + 1, audience.age_max + 1, *values])
    place_lists = places.place.hashes()
    values = [attribute_rows, place_lists, places.not_place.hashes()]
    signatures = _hash_rows([*values, audience.start + 1, audience.end + 1])
    if tiers is not None:  # rules on tiers are an ad's own, not its campaign's
        attribute_rows = _hash_rows([attribute_rows[dealt], tiers])
        signatures = _hash_rows([signatures[dealt], tiers])
    return {
        "attribute_rows": distinct(attribute_rows),
        "place_lists": distinct(place_lists[place_sizes > 0]),
        "signatures": distinct(signatures),
        "num_windows": int(has_window[dealt].sum()),
        "num_exclusions": int(has_exclusion[dealt].sum()),
        "num_places": int((place_sizes > 0)[dealt].sum()),
        "place_values": int(place_sizes[dealt].sum()),
        "longest_list": int(place_sizes.max()),
    }


def _rules(audience: Audience, places: PlaceRules) -> dict[str, pa.StructArray]:
    """Each attribute's rules, an entry a campaign, null where there is none."""
    names, codes = atlas().names, pa.array([*interests()[0], WILDCARD])
    sexes = pa.array([*GENDERS, WILDCARD])
    nothing = audience.gender.only(np.zeros(len(audience.age_min), bool))
    return {
        "country": _set_rule(places.country, places.not_country, names),
        "age": _range_rule(audience.age_min, audience.age_max),
        "gender": _set_rule(audience.gender, nothing, sexes),
        "interest": _set_rule(audience.interest, audience.not_interest, codes),
        "place": _set_rule(places.place, places.not_place, names),
    }


def _set_rule(include: Lists, exclude: Lists, names: pa.Array) -> pa.StructArray:
    none = (include.sizes == 0) & (exclude.sizes == 0)
    lists = [include.to_arrow(names), exclude.to_arrow(names)]
    return pa.StructArray.from_arrays(lists, ["include", "exclude"], mask=pa.array(none))


def _range_rule(low: np.ndarray, high: np.ndarray) -> pa.StructArray:
    ends = [pa.array(end, pa.int64(), mask=end < 0) for end in (low, high)]
    return pa.StructArray.from_arrays(ends, ["min", "max"], mask=pa.array((low < 0) & (high < 0)))


def _times(seconds: np.ndarray) -> pa.Array:
    return pa.array(seconds * 1_000_000, _TIME, mask=seconds < 0)


def _hash_rows(columns: list[np.ndarray]) -> np.ndarray:
    """uint64 [n], one hash of each row."""
    hashes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        hashes = mix(hashes ^ mix(column.astype(np.uint64)))
    return hashes
