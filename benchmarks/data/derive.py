"""Make the generator's data files from the real data sets: `python -m benchmarks.data.derive DIR`.

DIR holds `places/cities5000.csv.gz` and `places/countries.json` (GeoNames), `facebook-kag/`,
`ira-facebook-ads/`, `amazon-2014-5core/Beauty_sid_letter.json.gz` and `amazon-minionerec/`. Only
counts leave them, see README.md beside this file. Nothing else reads DIR.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from grace.demo.shapes import RuleShape, load_shapes

HERE = Path(__file__).parent
SID_FILES = {
    "LETTER, Amazon 2014 Beauty": "amazon-2014-5core/Beauty_sid_letter.json.gz",
    "MiniOneRec, Industrial and Scientific": (
        "amazon-minionerec/Industrial_and_Scientific.index.json.gz"
    ),
    "MiniOneRec, Office Products": "amazon-minionerec/Office_Products.index.json.gz",
}


def main() -> None:
    """Write `cities.parquet`, `sids.json` and `targeting.json` beside this file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    data = parser.parse_args().data
    pq.write_table(
        cities(data / "places"), HERE / "cities.parquet", compression="zstd", compression_level=19
    )
    for name, content in (("sids", sids(data)), ("targeting", targeting(data))):
        text = json.dumps(content, indent=1, ensure_ascii=False)
        # A list of numbers reads better on one line.
        text = re.sub(r"\[[^][{}]*\]", lambda numbers: " ".join(numbers[0].split()), text)
        (HERE / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def cities(folder: Path) -> pa.Table:
    """Cities of at least 5,000 people by continent, country, region, most populous first."""
    continents = {
        code: country["continentcode"]
        for code, country in json.loads((folder / "countries.json").read_text()).items()
    }
    with gzip.open(folder / "cities5000.csv.gz", "rt", encoding="utf-8") as file:
        rows = [
            (
                continents[row["countrycode"]],
                row["countrycode"],
                row["admin1code"] or "00",
                -int(row["population"]),
                int(row["geonameid"]),
                round(float(row["latitude"]), 2),
                round(float(row["longitude"]), 2),
            )
            for row in csv.DictReader(file)
        ]
    rows.sort()
    continent, country, admin1, population, geonameid, latitude, longitude = zip(*rows, strict=True)
    return pa.table(
        {
            "geonameid": pa.array(geonameid, pa.int32()),
            "continent": pa.array(continent),
            "country": pa.array(country),
            "admin1": pa.array(admin1),
            "population": pa.array([-people for people in population], pa.int32()),
            "latitude": pa.array(latitude, pa.float32()),
            "longitude": pa.array(longitude, pa.float32()),
        }
    )


def sids(data: Path) -> dict:
    """Per data set and level: codes used and how much more often two items share a code.

    `excess` is the chance that two items with the same prefix share their next code, times the
    number of codes used: 1 if codes were drawn uniformly, exp(sigma²) if their weights below each
    prefix are lognormal with sigma.
    """
    measured = {}
    for name, file in SID_FILES.items():
        with gzip.open(data / file, "rt") as stream:
            items = list(json.load(stream).values())
        tokens = np.array([[int(re.search(r"\d+", token)[0]) for token in sid] for sid in items])
        levels = []
        for level in range(tokens.shape[1]):
            below = _pairs(tokens[:, : level + 1])
            above = _pairs(tokens[:, :level])
            used = len(np.unique(tokens[:, level]))
            prefixes = len(np.unique(tokens[:, : level + 1], axis=0))
            excess = below / above * used
            levels.append({"used": used, "prefixes": prefixes, "excess": round(excess, 3)})
        measured[name] = {"items": len(items), "levels": levels}
    return measured


def _pairs(prefixes: np.ndarray) -> int:
    """Ordered pairs of items with the same prefix."""
    counts = np.unique(prefixes, axis=0, return_counts=True)[1] if prefixes.shape[1] else None
    counts = np.array([len(prefixes)]) if counts is None else counts
    return int((counts * (counts - 1)).sum())


def targeting(data: Path) -> dict:
    """Counts of ads by what they were aimed at."""
    shapes = load_shapes()
    ads = Counter()
    tallies = {key: Counter() for key in ("age_gender", "days", "countries", "market", "local")}
    combinations = Counter()
    for shape in shapes:
        local = any(place.state or place.city for place in shape.include)
        ads["local" if local else "broad"] += shape.count
        tallies["age_gender"][shape.age_min, shape.age_max, shape.gender] += shape.count
        tallies["days"][shape.days] += shape.count
        countries = tuple(sorted({place.country for place in shape.include}))
        if countries:
            tallies["market"][countries] += shape.count
        if local:
            tallies["local"][_pattern(shape)] += shape.count
        elif countries:
            tallies["countries"][len(countries)] += shape.count
        combinations[local] += 1
    with (data / "facebook-kag" / "KAG_conversion_data.csv").open() as file:
        rows = list(csv.DictReader(file))
    ages = Counter(
        (*map(int, row["age"].split("-")), {"M": "male", "F": "female"}[row["gender"]])
        for row in rows
    )
    interests = Counter(int(row["interest"]) for row in rows)
    return {
        "ira": {
            "ads": dict(ads),
            "shapes": {"local": combinations[True], "broad": combinations[False]},
            "age_gender": _table(tallies["age_gender"]),
            "days": _table(tallies["days"]),
            "countries": _table(tallies["countries"]),
            "markets": [[*key, n] for key, n in tallies["market"].most_common()],
            "local (countries, regions, cities, radius km)": _table(tallies["local"]),
            "interests named": _table(_interest_sizes(data / "ira-facebook-ads")),
        },
        "kag": {"age_gender": _table(ages), "interest": _table(interests)},
    }


def _pattern(shape: RuleShape) -> tuple[int, int, int, float]:
    """How many countries, regions and cities a shape names, and its largest radius (0: none)."""
    cities = [place for place in shape.include if place.city]
    regions = sum(bool(place.state) for place in shape.include) - sum(bool(p.state) for p in cities)
    radius = max((place.radius_km or 0 for place in cities), default=0)
    return len(shape.include) - len(cities) - regions, regions, len(cities), radius


def _interest_sizes(folder: Path) -> Counter:
    """Number of ads by how many interests or matching audiences they name."""
    sizes = Counter()
    path = folder / "fb_russia_ads_clean.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            filled = [row[key] for key in ("Interests", "People_Who_Match") if row[key] != "NA"]
            text = re.sub(r"^.*?interests?:", "", filled[0], flags=re.I) if filled else ""
            sizes[len([part for part in re.split(r",| or ", text) if part.strip()])] += 1
    return sizes


def _table(counts: Counter) -> list[list]:
    """`[key..., count]` rows, most frequent first."""
    return [
        [*(key if isinstance(key, tuple) else (key,)), count] for key, count in counts.most_common()
    ]


if __name__ == "__main__":
    main()
