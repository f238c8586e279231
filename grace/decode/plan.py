"""How wide the search is at every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grace.errors import ConfigError

DEFAULT_NUM_SIDS = 256


@dataclass(frozen=True)
class BeamPlan:
    """Widths of a beam search over SIDs of L tokens (GRACE, section 2.4).

    Attributes:
        widths: beams entering step 0..L-1; the first is 1, since decoding starts from one state.
        num_sids: SIDs kept after the last step.
    """

    widths: tuple[int, ...]
    num_sids: int

    def __post_init__(self):
        object.__setattr__(self, "widths", tuple(self.widths))
        for name, value in (*((f"widths[{t}]", w) for t, w in enumerate(self.widths)),
                            ("num_sids", self.num_sids)):  # fmt: skip
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"plan: {name} must be an integer of at least 1, got {value!r}")
        if not self.widths or self.widths[0] != 1:
            raise ConfigError(
                f"plan: widths[0] must be 1, the one state decoding starts from, got {self.widths}"
            )

    def limited(self, possible: Sequence[int]) -> BeamPlan:
        """Return the plan with no step wider than there are prefixes.

        Args:
            possible: the number of prefixes of length 0..L.

        Raises:
            ConfigError: if the plan is for SIDs of another length.
        """
        if len(self.widths) != len(possible) - 1:
            raise ConfigError(
                f"plan: widths must have {len(possible) - 1} entries, one for each token of a SID, "
                f"got {len(self.widths)}"
            )
        wanted = (*self.widths, self.num_sids)
        *widths, num_sids = (min(w, p) for w, p in zip(wanted, possible, strict=True))
        return BeamPlan(tuple(widths), num_sids)


def full_plan(num_levels: int, num_sids: int = DEFAULT_NUM_SIDS) -> BeamPlan:
    """Return the plan that is `num_sids` wide wherever the number of prefixes allows it."""
    return BeamPlan((1, *[num_sids] * (num_levels - 1)), num_sids)
