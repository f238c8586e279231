"""What is generated: size, setting, seed."""

from __future__ import annotations

from dataclasses import dataclass

NUM_LEVELS = 4
NUM_CODES = 512
AT = 1_767_225_600  # 2026-01-01T00:00:00Z, when the requests ask
SETTINGS = ("geo", "uniform")
# In a sweep, what the visitor carries and every include rule holds besides its own values.
WILDCARD = "*"
VISITOR_AGE = 40
NO_TIER = "none"


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One benchmark catalogue. An ad depends on its number and on all fields but `ads`.

    Attributes:
        ads: how many; a smaller catalogue is the beginning of a larger one.
        places: `geo` (rules and people follow cities, regions and countries) or `uniform` (places
            drawn at random, as in the paper's synthetic setting).
        seed: of everything.
        selectivity: shares of the live ads, in (0, 1]. Where given, the catalogue is a sweep: all
            rules let the sweep's visitor in but the one on `tier`, which lets each share in.
        request_places: places of a request, at most.
    """

    ads: int
    places: str = "geo"
    seed: int = 0
    selectivity: tuple[float, ...] = ()
    request_places: int = 64

    def __post_init__(self) -> None:
        if self.ads < 1:
            raise ValueError(f"ads must be at least 1, got {self.ads}")
        if self.places not in SETTINGS:
            raise ValueError(f"places must be one of {', '.join(SETTINGS)}, got {self.places!r}")
        if self.request_places < 1:
            raise ValueError(f"request_places must be at least 1, got {self.request_places}")
        if not all(0 < share <= 1 for share in self.selectivity):
            raise ValueError(f"selectivity must be above 0 and at most 1, got {self.selectivity}")
        object.__setattr__(self, "selectivity", tuple(sorted(set(self.selectivity))))

    @property
    def tiers(self) -> tuple[str, ...]:
        """The values of `tier`, one a share, ascending."""
        return tuple(f"{share:.10g}" for share in self.selectivity)


def schema(spec: Spec | None = None) -> dict:
    """Return the targeting schema, as `schema.yaml` holds it; with `tier` for a sweep."""
    attributes = [
        {"name": "country", "kind": "categorical"},
        {"name": "age", "kind": "range"},
        {"name": "gender", "kind": "categorical"},
        {"name": "interest", "kind": "categorical"},
        {"name": "place", "kind": "set"},
    ]
    if spec is not None and spec.selectivity:
        attributes.append({"name": "tier", "kind": "categorical"})
    return {"attributes": attributes}
