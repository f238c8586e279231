"""Any number of made-up ads under the demo's rules, and people to show them to."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from grace.demo.assign import draw_assignment, iso_time
from grace.demo.places import zip_places
from grace.demo.shapes import load_shapes

AT = 1_767_225_600  # 2026-01-01T00:00:00Z, when the made-up requests ask
NUM_POPULAR = 1000  # ads whose audience others keep away
AGES = (13, 75)
WATCHED = 50
CHUNK_ADS = 131_072  # keeps the text of one array below Arrow's 2 GiB

_STRINGS = pa.list_(pa.string())
_SET_RULE = pa.struct({"include": _STRINGS, "exclude": _STRINGS})
_RULE_TYPES = {
    "age": pa.struct({"min": pa.int64(), "max": pa.int64()}),
    "gender": _SET_RULE,
    "place": _SET_RULE,
}


def demo_catalog(num_ads: int, seed: int, *, num_levels: int = 4, num_codes: int = 256) -> pa.Table:
    """Return a catalogue of made-up ads whose rules are dealt as the demo's are.

    Args:
        num_ads: N, at least 2; ids are 1 to N.
        seed: of rules and SIDs.
        num_levels: L; the tokens of a SID are uniform and independent.
        num_codes: tokens per level.

    Returns:
        A table with the columns `ad_id`, `sid`, `rules`, `start`, `end` and `paused`. The excluded
        audiences are those of the first `NUM_POPULAR` ads, number i with a chance of 1/i.
    """
    zips = zip_places()
    shapes = load_shapes()
    drawn = draw_assignment(shapes, _popularity(num_ads), AT, seed)
    rules = [shape.rules(zips) for shape in shapes]
    columns = {
        name: pa.array([shape_rules.get(name) for shape_rules in rules], rule_type)
        for name, rule_type in _RULE_TYPES.items()
    }
    sids = np.random.default_rng([seed, 1]).integers(
        0, num_codes, (num_ads, num_levels), dtype=np.int32
    )
    windows = {
        name: pa.array(
            seconds * 1_000_000, pa.timestamp("us", tz="UTC"), mask=np.equal(drawn.ends, 0)
        )
        for name, seconds in (("start", drawn.starts), ("end", drawn.ends))
    }
    batches = []
    for first in range(0, num_ads, CHUNK_ADS):
        chunk = slice(first, min(first + CHUNK_ADS, num_ads))
        dealt = pa.array(drawn.shapes[chunk])
        fields = {name: column.take(dealt) for name, column in columns.items()}
        fields["watched"] = _exclusions(drawn.excluded[chunk])
        batches.append(
            pa.record_batch(
                {
                    "ad_id": pa.array(np.arange(chunk.start + 1, chunk.stop + 1)),
                    "sid": _lists(sids[chunk]),
                    "rules": pa.StructArray.from_arrays(list(fields.values()), list(fields)),
                    "start": windows["start"][chunk],
                    "end": windows["end"][chunk],
                    "paused": pa.array(drawn.paused[chunk]),
                }
            )
        )
    return pa.Table.from_batches(batches)


def synthetic_requests(num_requests: int, num_ads: int, seed: int) -> list[dict]:
    """Return requests of made-up people for `demo_catalog(num_ads, ...)`.

    ZIP codes are uniform over the table's US codes, ages over 13 to 75, and each person has rated
    `WATCHED` ads, or fewer, drawn like the excluded ones. There are no model features.
    """
    zips = zip_places()
    codes = sorted(code for code, row in zips.rows.items() if row["country"] == "US")
    generator = np.random.default_rng([seed, 2])
    popularity = _popularity(num_ads)
    requests = []
    for number in range(num_requests):
        home = zips.home(codes[generator.integers(len(codes))])
        watched = generator.choice(num_ads, WATCHED, p=popularity / popularity.sum()) + 1
        requests.append(
            {
                "id": str(number),
                "attributes": {
                    "age": int(generator.integers(AGES[0], AGES[1], endpoint=True)),
                    "gender": ("male", "female")[generator.integers(2)],
                    "place": list(home.values),
                    "watched": [str(ad_id) for ad_id in np.unique(watched)],
                },
                "features": {},
                "at": iso_time(AT),
            }
        )
    return requests


def _popularity(num_ads: int) -> np.ndarray:
    """Return float64 [num_ads]: 1/rank for the first `NUM_POPULAR`, else 0."""
    ranks = np.arange(1, num_ads + 1)
    return np.where(ranks <= NUM_POPULAR, 1 / ranks, 0.0)


def _lists(tokens: np.ndarray) -> pa.Array:
    """Return the rows of int32 [n, L] as lists."""
    num_ads, num_levels = tokens.shape
    offsets = np.arange(num_ads + 1, dtype=np.int32) * num_levels
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens.reshape(-1)))


def _exclusions(excluded: np.ndarray) -> pa.Array:
    """Return rules `{exclude: [id]}` for int64 [n] positions of ads; -1 is no rule."""
    has_rule = excluded >= 0
    ids = pa.array((excluded[has_rule] + 1).astype(str), pa.string())
    offsets = np.concatenate([[0], np.cumsum(has_rule)]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), ids)
    return pa.StructArray.from_arrays([lists], ["exclude"], mask=pa.array(~has_rule))
