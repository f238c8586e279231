"""Catalogues whose eligible share is known beforehand, from one ad in 10,000 to all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from benchmarks.generator.atlas import atlas
from benchmarks.generator.campaigns import GENDERS, Audience, interests
from benchmarks.generator.draw import Stream
from benchmarks.generator.place_rules import PlaceRules
from benchmarks.generator.spec import NO_TIER, VISITOR_AGE, Spec


def let_visitor_in(audience: Audience, places: PlaceRules) -> tuple[Audience, PlaceRules]:
    """Rules that also accept the visitor, who carries the wildcard everywhere.

    The wildcard joins every list that includes something, and age ranges stretch to the visitor's.
    """
    low, high = audience.age_min, audience.age_max
    audience = replace(
        audience,
        age_min=np.minimum(low, VISITOR_AGE),
        age_max=np.where(high < 0, high, np.maximum(high, VISITOR_AGE)),
        gender=audience.gender.with_last(len(GENDERS)),
        interest=audience.interest.with_last(len(interests()[0])),
    )
    wildcard = atlas().wildcard
    places = replace(
        places, country=places.country.with_last(wildcard), place=places.place.with_last(wildcard)
    )
    return audience, places


def ad_tiers(spec: Spec, ads: np.ndarray) -> np.ndarray:
    """int64, the lowest tier that each ad lets in; the number of tiers where it lets none in."""
    u = Stream(spec.seed, "tier").uniform(ads)
    return np.searchsorted(spec.selectivity, u, side="right")


def tier_rules(spec: Spec, lowest: np.ndarray) -> pa.StructArray:
    """Rules on `tier`, nested: an ad that lets a share's visitor in lets all larger shares' in."""
    tiers = list(spec.tiers)
    rules = pa.array(
        [{"include": tiers[first:] or [NO_TIER]} for first in range(len(tiers) + 1)],
        pa.struct({"include": pa.list_(pa.string()), "exclude": pa.list_(pa.string())}),
    )
    return rules.take(pa.array(lowest))
