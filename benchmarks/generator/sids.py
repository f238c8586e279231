"""Semantic IDs with the skew of real ones, and ads that share them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from statistics import NormalDist

import numpy as np

from benchmarks.generator.draw import Stream, cumulate
from benchmarks.generator.spec import NUM_CODES, NUM_LEVELS, Spec

FIT = Path(__file__).parent.parent / "data" / "sids.json"
# Chosen so that 4·10^7 ads have 3·10^7 SIDs; the others join items with a tail of k^-1.5.
OWN_ITEM = 0.713


@cache
def level_sigmas() -> tuple[float, ...]:
    """Spread of the lognormal weights of the codes below one prefix, per level.

    The mean over the data sets that have the level, from the excess of shared codes, exp(sigma²).
    """
    data_sets = json.loads(FIT.read_text(encoding="utf-8")).values()
    sigmas = []
    for level in range(NUM_LEVELS):
        fitted = [
            np.log(max(data_set["levels"][level]["excess"], 1.0)) ** 0.5
            for data_set in data_sets
            if level < len(data_set["levels"])
        ]
        sigmas.append(float(np.mean(fitted)))
    return tuple(sigmas)


@cache
def _ranks(level: int) -> np.ndarray:
    """Cumulated weights of a prefix's codes, heaviest first: lognormal quantiles."""
    normal = NormalDist(0, level_sigmas()[level])
    quantiles = [normal.inv_cdf(1 - (rank + 0.5) / NUM_CODES) for rank in range(NUM_CODES)]
    return cumulate(np.exp(quantiles))


def ad_items(spec: Spec, ads: np.ndarray) -> np.ndarray:
    """int64, the item (SID) that each ad, numbered from 0, is for.

    Most ads have an item of their own; the rest join one of the items before, the k-th oldest of n
    with a chance that falls with (k/n)^(-2/3). So the mode is one ad and the tail is heavy.
    """
    u = Stream(spec.seed, "joined item").uniform(ads)
    joined = (ads * (u * u * u)).astype(np.int64)
    return np.where(Stream(spec.seed, "own item").uniform(ads) < OWN_ITEM, ads, joined)


def item_sids(spec: Spec, items: np.ndarray) -> np.ndarray:
    """int32 [n, NUM_LEVELS], the tokens of items.

    Below every prefix the codes' weights are the same lognormal ones, dealt to the codes by a
    permutation of the prefix's own (affine, so that no table is needed).
    """
    tokens = np.empty((len(items), NUM_LEVELS), np.int32)
    prefixes = np.zeros(len(items), np.int64)
    for level in range(NUM_LEVELS):
        ranks = Stream(spec.seed, f"code {level}").choose(_ranks(level), items)
        deal = Stream(spec.seed, f"deal {level}").bits(prefixes)
        factors = (deal % (NUM_CODES // 2)).astype(np.int64) * 2 + 1
        shifts = (deal >> np.uint64(32)).astype(np.int64)
        codes = (ranks * factors + shifts) % NUM_CODES
        tokens[:, level] = codes
        prefixes = prefixes * NUM_CODES + codes
    return tokens


def sid_keys(tokens: np.ndarray) -> np.ndarray:
    """int64 [n], each SID as one number, in the order of the SIDs."""
    keys = np.zeros(len(tokens), np.int64)
    for level in range(tokens.shape[1]):
        keys = keys * NUM_CODES + tokens[:, level]
    return keys
