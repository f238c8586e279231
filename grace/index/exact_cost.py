"""Which form of the exact matcher is cheaper for a batch: every node, or visited nodes only.

Work is counted in nanoseconds of one core; both forms split it among the same threads. The figures
per item come from `python -m benchmarks.exact`, whose rows "cost per …" measure each of them at
10^6 ads on the machine of benchmarks/results/cpu; other machines are slower or faster in all of
them alike, which leaves the choice as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# The form of every node.
NS_PER_LISTED_VALUE = 3.0
NS_PER_SIGNATURE = 14.0
NS_PER_AD = 4.0
NS_PER_NODE = 2.5
NS_PER_BATCH = 200_000.0  # the interpreter's part, and starting threads
# The form of visited nodes.
NS_PER_CHILD = 150.0
NS_PER_SCANNED_AD = 25.0
NS_PER_CALL = 20_000.0


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
        return sum(
            NS_PER_CALL
            + count * (NS_PER_CHILD + NS_PER_SCANNED_AD * min(1 / rarest, self.ads / max(size, 1)))
            for count, size in zip(visits, self.level_sizes[1:], strict=True)
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
