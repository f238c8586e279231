"""Which stage of the targeting rules refuses how many of the generated ads: GRACE's Table 3.

The paper's rates are sequential: `bitmask` is a share of all generated ads, `bloom` a share of
those that passed `bitmask`, so that they multiply to `final` (its section 6.2: 57.81 % × 40.74 % =
23.55 %). Windows and pauses, which the paper does not report, come third here. Rates of a stage
on its own, over all generated ads, are reported beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from grace.catalog import Attribute
from grace.evaluate.metrics import Estimate, bootstrap

PAUSED_BIT, BID_OFF_BIT, WINDOW_BIT, FIRST_ATTRIBUTE_BIT = (
    0,
    1,
    2,
    3,
)  # of the masks of Index.explain

# Columns of the counts of one request.
GENERATED, AFTER_BITMASK, AFTER_BLOOM, ACCEPTED, BLOOM_ALONE, WINDOW_ALONE = range(6)


@dataclass(frozen=True)
class StageMasks:
    """Bits of `Index.explain` that belong to each stage, uint64.

    Attributes:
        bitmask: categorical and range attributes, which the paper's bitmask matcher decides.
        bloom: set attributes, which its Bloom matcher decides.
        window: start, end, pause and bid.
    """

    bitmask: np.uint64
    bloom: np.uint64
    window: np.uint64

    @classmethod
    def of(cls, attributes: Sequence[Attribute]) -> StageMasks:
        """The masks of a schema's attributes, in its order."""
        bits = {"categorical": 0, "range": 0, "set": 0}
        for bit, attribute in enumerate(attributes, start=FIRST_ATTRIBUTE_BIT):
            bits[attribute.kind] |= 1 << bit
        return cls(
            bitmask=np.uint64(bits["categorical"] | bits["range"]),
            bloom=np.uint64(bits["set"]),
            window=np.uint64(1 << PAUSED_BIT | 1 << BID_OFF_BIT | 1 << WINDOW_BIT),
        )


@dataclass(frozen=True)
class PassRates:
    """One row of GRACE's Table 3.

    Attributes:
        users: requests in this bucket, and `user_share` their share of all.
        generated_ads: ads before the last filter, summed over those requests.
        bitmask: share of generated ads that every categorical and range rule accepts.
        bloom: share of what is left that every set rule accepts.
        window: share of what is left that runs: not paused and inside its window.
        final: share of generated ads that pass everything; the product of the three.
        bloom_alone: as `bloom`, but of all generated ads, like `window_alone`.
    """

    users: int
    user_share: float
    generated_ads: int
    bitmask: Estimate
    bloom: Estimate
    window: Estimate
    final: Estimate
    bloom_alone: Estimate
    window_alone: Estimate


@dataclass(frozen=True)
class FixedPassRate:
    """Pass rate among the first `ads` generated ads of each request, in order of score.

    Attributes:
        users: the requests for which every mode that stays in the catalogue generated that many, so
            that they are compared on the same requests and the same number of ads; for `off`, those
            of them for which it did so too.
    """

    ads: int
    users: int
    final: Estimate


def count_passes(fail_masks: np.ndarray, stages: StageMasks) -> np.ndarray:
    """Counts of one request's generated ads by stage.

    Args:
        fail_masks: uint64 `[n]`, of `Index.explain`; 0 is an accepted ad.

    Returns:
        int64 `[6]`: generated, after bitmask, after Bloom, accepted, Bloom alone, window alone.
    """
    bitmask = (fail_masks & stages.bitmask) == 0
    bloom = (fail_masks & stages.bloom) == 0
    window = (fail_masks & stages.window) == 0
    columns = (bitmask, bitmask & bloom, bitmask & bloom & window, bloom, window)
    return np.array([len(fail_masks), *(np.count_nonzero(column) for column in columns)], np.int64)


def pass_rates(counts: np.ndarray, total_users: int) -> PassRates:
    """Rates over the requests of one bucket.

    Args:
        counts: int64 `[n, 6]`, a row of `count_passes` per request.
        total_users: requests in all buckets together.
    """

    def rate(passed: int, of: int) -> Estimate:
        return bootstrap(counts[:, passed], counts[:, of])

    return PassRates(
        users=len(counts),
        user_share=len(counts) / total_users if total_users else 0.0,
        generated_ads=int(counts[:, GENERATED].sum()),
        bitmask=rate(AFTER_BITMASK, GENERATED),
        bloom=rate(AFTER_BLOOM, AFTER_BITMASK),
        window=rate(ACCEPTED, AFTER_BLOOM),
        final=rate(ACCEPTED, GENERATED),
        bloom_alone=rate(BLOOM_ALONE, GENERATED),
        window_alone=rate(WINDOW_ALONE, GENERATED),
    )


def bucketed_pass_rates(counts: np.ndarray, bounds: Sequence[int]) -> dict[str, PassRates]:
    """Rates by bucket of generated ads, smallest first, and over all requests as `all`.

    Args:
        counts: int64 `[n, 6]`.
        bounds: ascending; bucket i holds `bounds[i - 1] <= generated < bounds[i]`.
    """
    bucket = np.searchsorted(np.asarray(bounds), counts[:, GENERATED], side="right")
    rows = {
        label: pass_rates(counts[bucket == i], len(counts))
        for i, label in enumerate(bucket_labels(bounds))
    }
    return rows | {"all": pass_rates(counts, len(counts))}


def bucket_labels(bounds: Sequence[int]) -> list[str]:
    """Such as `< 5,000`, `5,000-9,999`, `≥ 10,000`; none for no bounds."""
    if not bounds:
        return []
    middle = [f"{low:,}-{high - 1:,}" for low, high in pairwise(bounds)]
    return [f"< {bounds[0]:,}", *middle, f"≥ {bounds[-1]:,}"]


def default_bounds(generated: np.ndarray) -> tuple[int, ...]:
    """Bounds that cut the generated counts of all modes, int `[n]`, into thirds.

    Fewer than two where many counts are equal: a bound that leaves nothing below it is no bound.
    """
    if len(generated) == 0:
        return ()
    thirds = np.unique(np.quantile(generated, [1 / 3, 2 / 3], method="higher"))
    return tuple(int(bound) for bound in thirds if bound > generated.min())


def fixed_pass_rates(
    generated: dict[str, np.ndarray], accepted_first: dict[str, np.ndarray], sizes: Sequence[int]
) -> dict[str, list[FixedPassRate]]:
    """Pass rate of each mode among the first generated ads, on the requests that modes share.

    Args:
        generated: by mode, int64 `[n]` ads before the last filter. What `off` generates is mostly
            outside the catalogue and has few ads: it would leave the others little to compare.
        accepted_first: by mode, int64 `[n, len(sizes)]` accepted ads among the first `sizes[i]`.
        sizes: how many ads are looked at.
    """
    inside = [counts for mode, counts in generated.items() if mode != "off"]
    fewest = np.min(inside or [generated["off"]], axis=0)
    rates = {mode: [] for mode in generated}
    for column, size in enumerate(sizes):
        for mode, accepted in accepted_first.items():
            passed = accepted[(fewest >= size) & (generated[mode] >= size), column]
            final = bootstrap(passed, np.full(len(passed), size))
            rates[mode].append(FixedPassRate(size, len(passed), final))
    return rates
