"""Rule shapes: who real ads were aimed at, with how many ads shared each combination."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.resources import files

from grace.demo.places import Place, ZipPlaces


@dataclass(frozen=True)
class RuleShape:
    """One combination of targeting rules.

    Attributes:
        age_min, age_max: whole years, both ends included; None where open ("65+" is open).
        gender: "male", "female" or None.
        include, exclude: places; with no include, the whole world.
        excluded_connections: how many audiences ("people who like PAGE") are kept away.
        days: how long the ad ran, at least 1, or None without an end.
        count: number of ads with this combination.
    """

    age_min: int | None
    age_max: int | None
    gender: str | None
    include: tuple[Place, ...]
    exclude: tuple[Place, ...]
    excluded_connections: int
    days: int | None
    count: int

    def rules(self, zips: ZipPlaces) -> dict[str, dict]:
        """Return the catalogue's rules on age, gender and place; one that says nothing is absent.

        Places with a radius become sets of cities, see `ZipPlaces.rule_values`.
        """
        age = {"min": self.age_min, "max": self.age_max}
        place = {
            key: sorted({value for place in places for value in zips.rule_values(place)})
            for key, places in (("include", self.include), ("exclude", self.exclude))
        }
        rules = {
            "age": {end: years for end, years in age.items() if years is not None},
            "gender": {"include": [self.gender]} if self.gender else {},
            "place": {key: values for key, values in place.items() if values},
        }
        return {attribute: rule for attribute, rule in rules.items() if rule}

    def to_dict(self) -> dict:
        """Return the shape as `shapes.json` holds it: fields that say nothing are left out."""
        fields = asdict(self)
        for key in ("include", "exclude"):
            fields[key] = [{k: v for k, v in place.items() if v} for place in fields[key]]
        return {name: value for name, value in fields.items() if value}

    @classmethod
    def from_dict(cls, fields: dict) -> RuleShape:
        """Read what `to_dict` wrote."""
        places = {
            key: tuple(Place(**place) for place in fields.get(key, ()))
            for key in ("include", "exclude")
        }
        plain = {key: fields.get(key) for key in ("age_min", "age_max", "gender", "days", "count")}
        return cls(**plain, **places, excluded_connections=fields.get("excluded_connections", 0))


def dump_shapes(header: dict, shapes: Iterable[RuleShape]) -> str:
    """Return `shapes.json`: the header's fields, then one shape a line."""
    lines = ",\n".join(json.dumps(shape.to_dict()) for shape in shapes)
    head = json.dumps(header, indent=1, ensure_ascii=False).removesuffix("\n}")
    return f'{head},\n "shapes": [\n{lines}\n]}}\n'


@functools.cache
def load_shapes() -> tuple[RuleShape, ...]:
    """Return the shapes that Grace ships, most frequent first."""
    text = files("grace.demo").joinpath("shapes.json").read_text(encoding="utf-8")
    return tuple(RuleShape.from_dict(fields) for fields in json.loads(text)["shapes"])
