"""Which form of the exact matcher is cheaper for a batch: every node, or visited nodes only.

Work is counted in nanoseconds of one core; both forms split it among the same threads. The figures
per item are stages of `python -m benchmarks.exact` at 10^6 ads divided by their counts, as time of
the processor; other machines are slower or faster in all of them alike, which leaves the choice as
it is. A signature costs more alone than among all others: its rules are scattered in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Every node.
NS_PER_LISTED_VALUE = 2.7
NS_PER_SIGNATURE = 5.5
NS_PER_AD = 1.8
NS_PER_NODE = 2.5
NS_PER_BATCH = 100_000.0  # the interpreter's part
# Visited nodes.
NS_PER_CHILD = 25.0
NS_PER_SCANNED_AD = 5.5
NS_PER_DECIDED = 200.0  # a signature, when an ad first shows it
NS_PER_STEP = 30_000.0  # the interpreter's part
NS_PER_SAMPLE = 200_000.0  # the ads looked at to learn how rare a request's are


@dataclass(frozen=True)
class Sizes:
    """How much there is of what either form touches.

    Attributes:
        listed_values: included and excluded values of all rules.
        signatures: G.
        ads: A.
        level_sizes: prefixes of length 0..L.
    """

    listed_values: int
    signatures: int
    ads: int
    level_sizes: tuple[int, ...]

    @property
    def every_node_ns(self) -> float:
        """Work to decide all nodes."""
        return (
            NS_PER_BATCH
            + NS_PER_LISTED_VALUE * self.listed_values
            + NS_PER_SIGNATURE * self.signatures
            + NS_PER_AD * self.ads
            + NS_PER_NODE * sum(self.level_sizes)
        )

    def visited_ns(self, visits: Sequence[int], rarest: float) -> float:
        """Work to decide the children that the steps visit.

        Args:
            visits: distinct children of each step.
            rarest: share of ads that accept the request with the fewest; about 1 / rarest ads are
                looked at before one of them is found, but never more than a child has.
        """
        scanned = sum(
            count * min(1 / rarest, self.ads / max(size, 1))
            for count, size in zip(visits, self.level_sizes[1:], strict=True)
        )
        return (
            NS_PER_SAMPLE
            + NS_PER_STEP * len(visits)
            + NS_PER_CHILD * sum(visits)
            + NS_PER_SCANNED_AD * scanned
            + NS_PER_DECIDED * min(scanned, self.signatures)
        )


def visited_children(
    level_sizes: Sequence[int], widths: Sequence[int], num_requests: int
) -> tuple[int, ...]:
    """Estimate how many distinct children each step of a beam search looks at.

    Args:
        level_sizes: prefixes of length 0..L.
        widths: beams that enter each of the L steps.
        num_requests: B; a child that several requests look at counts once.
    """
    return tuple(
        min(size, -(-size * min(width * num_requests, parents) // parents))
        for width, parents, size in zip(widths, level_sizes[:-1], level_sizes[1:], strict=True)
    )
