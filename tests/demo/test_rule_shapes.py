"""The shipped rule shapes against the released ads, where those are at hand."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from grace.demo.ad_locations import LocationParser
from grace.demo.city_names import CityNames
from grace.demo.places import zip_places
from grace.demo.rule_shapes import SOURCE, count_shapes, main, read_ads
from grace.demo.shapes import RuleShape, dump_shapes, load_shapes
from grace.errors import DataError

SHIPPED = files("grace.demo").joinpath("shapes.json")


def test_the_shipped_file_is_what_the_script_writes(shared_data, capsys):
    main(str(shared_data / "ira-facebook-ads" / "fb_russia_ads_clean.csv.gz"))
    assert capsys.readouterr().out == SHIPPED.read_text(encoding="utf-8")


def test_the_shipped_file_holds_all_ads_and_nothing_of_their_texts():
    content = json.loads(SHIPPED.read_text(encoding="utf-8"))
    assert content["source"] == SOURCE
    assert content["report"]["ads"] == sum(shape["count"] for shape in content["shapes"]) == 3517
    assert content["report"]["distinct combinations of the raw fields"] == 1038
    fields = {"age_min", "age_max", "gender", "include", "exclude", "excluded_connections", "days"}
    assert {name for shape in content["shapes"] for name in shape} == fields | {"count"}


def test_shapes_survive_the_file():
    shapes = load_shapes()
    written = json.loads(dump_shapes({"source": "a test"}, shapes))
    assert tuple(RuleShape.from_dict(fields) for fields in written["shapes"]) == shapes


def test_shapes_are_distinct_and_sound():
    shapes = load_shapes()
    assert len({repr(shape) for shape in shapes}) == len(shapes)
    for shape in shapes:
        assert shape.count >= 1
        assert shape.days is None or shape.days >= 1
        assert shape.age_min is None or shape.age_max is None or shape.age_min <= shape.age_max
        for place in (*shape.include, *shape.exclude):
            assert (place.radius_km is None) == (place.latitude is None) == (not place.longitude)


def test_ads_that_differ_in_texts_alone_share_a_shape():
    row = dict.fromkeys(
        ("Language", "People_Who_Match", "Interests", "Custom_Audience", "Location"), "NA"
    )
    row |= {"Age": "18 65+", "Gender": "Female", "Excluded_Connections": "Exclude people who like"}
    row |= {"Create_Date": "2016-01-01", "End_Date": "2016-01-01"}
    early = row | {"Interests": "Music", "End_Date": "2015-12-31"}
    leaked = row | {"Custom_Audience": "Lookalike Location - Living In: United States: Ohio"}
    shapes, report = count_shapes(
        [row, row | {"Interests": "Music"}, early, leaked],
        LocationParser(CityNames(zip_places())),
    )
    assert [shape.count for shape in shapes] == [2, 1, 1]
    assert (shapes[0].age_min, shapes[0].age_max, shapes[0].gender) == (18, None, "female")
    assert (shapes[0].days, shapes[0].excluded_connections) == (1, 1)
    assert report["ads with a duration"] == 3
    assert report["guessed or given up"]["ends before it was created: no duration"] == 1
    assert [place.value for shape in shapes for place in shape.include] == ["US/OH"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("ads.csv", b"Age,Gender\n1,2\n", "no column Location"),
        ("ads.csv", b"", "no column Location"),
        ("ads.csv.gz", b"not gzipped", "cannot be read as CSV"),
        ("ads.csv", b"\xff\xfe", "cannot be read as CSV"),
    ],
)
def test_another_file_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_ads(tmp_path / name)
