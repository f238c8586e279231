"""The benchmark catalogue: the same ads however it is made, and as the manifest says."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml

import grace
from benchmarks.catalog import Spec, catalog_table, make_requests, schema, write_catalog
from benchmarks.generator import table
from benchmarks.generator.sids import level_sigmas
from grace.catalog.schema import Schema

ROOT = Path(__file__).parents[2]
SHARES = (0.01, 0.1, 1.0)
SPECS = [
    pytest.param(Spec(ads=10_000, places="geo"), id="geo"),
    pytest.param(Spec(ads=10_000, places="uniform"), id="uniform"),
    pytest.param(Spec(ads=10_000, places="geo", selectivity=SHARES), id="sweep"),
]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("cut", [1, 4095, 4096, 9_999])
def test_any_piece_holds_the_same_ads(spec, cut):
    whole = catalog_table(spec)
    pieces = [catalog_table(spec, 0, cut), catalog_table(spec, cut, spec.ads)]
    assert pa.concat_tables(pieces).combine_chunks().equals(whole.combine_chunks())


def test_row_groups_and_workers_change_nothing(monkeypatch):
    spec = Spec(ads=5_000)
    whole = catalog_table(spec).combine_chunks()
    monkeypatch.setattr(table, "CHUNK_ADS", 512)
    assert catalog_table(spec, workers=3).combine_chunks().equals(whole)


def test_a_smaller_catalogue_begins_a_larger_one():
    small, large = catalog_table(Spec(ads=1_000)), catalog_table(Spec(ads=40_000_000), 0, 1_000)
    assert small.equals(large)


def test_seeds_and_settings_differ():
    tables = [
        catalog_table(Spec(ads=100, seed=seed, places=places))
        for seed in (0, 1)
        for places in ("geo", "uniform")
    ]
    for i, one in enumerate(tables):
        assert not any(one.equals(other) for other in tables[i + 1 :])


def test_the_farthest_ads_can_be_made_alone():
    ads = catalog_table(Spec(ads=40_000_000), 39_999_990)
    assert ads["ad_id"].to_pylist() == list(range(39_999_991, 40_000_001))


@pytest.mark.parametrize("places", ["geo", "uniform"])
def test_files_do_not_depend_on_workers(tmp_path, places, monkeypatch):
    monkeypatch.setattr(table, "CHUNK_ADS", 1_000)
    spec = Spec(ads=4_500, places=places)
    manifests = [
        write_catalog(spec, tmp_path / str(workers), 8, workers=workers) for workers in (1, 4)
    ]
    assert manifests[0] == manifests[1]
    for name in ("catalog.parquet", "schema.yaml", "requests.jsonl", "manifest.json"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "4" / name).read_bytes()
    assert pq.ParquetFile(tmp_path / "1" / "catalog.parquet").num_row_groups == 5


@pytest.mark.parametrize("spec", SPECS)
def test_counts_are_those_of_the_file(tmp_path, spec):
    counts = write_catalog(spec, tmp_path, 16)["counts"]
    ads = pq.read_table(tmp_path / "catalog.parquet")
    assert counts == json.loads((tmp_path / "manifest.json").read_text())["counts"]
    rows = ads.to_pylist()
    sids = [tuple(row["sid"]) for row in rows]
    assert counts["ads"] == len(rows) == 10_000
    assert counts["distinct SIDs"] == len(set(sids))
    for level in (1, 2, 3):
        assert counts[f"prefixes of length {level}"] == len({sid[:level] for sid in sids})
    lists = [tuple((row["rules"]["place"] or {}).get("include") or ()) for row in rows]
    assert counts["distinct place lists"] == len(set(filter(None, lists)))
    assert counts["places per list, most"] == max(map(len, lists))
    assert counts["share with places"] == np.mean([bool(values) for values in lists])
    attributes = {
        json.dumps({name: rule for name, rule in row["rules"].items() if name != "place"})
        for row in rows
    }
    assert counts["distinct attribute rows"] == len(attributes)
    signatures = {json.dumps([row["rules"], str(row["start"]), str(row["end"])]) for row in rows}
    assert counts["distinct signatures"] == len(signatures)
    windows = [row["start"] is not None or row["end"] is not None for row in rows]
    assert counts["share with a window"] == np.mean(windows)
    assert counts["share paused"] == np.mean([row["paused"] for row in rows])
    excludes = [any(rule and rule.get("exclude") for rule in row["rules"].values()) for row in rows]
    assert counts["share with exclusions"] == np.mean(excludes)


@pytest.mark.parametrize("places", ["geo", "uniform"])
def test_counts_are_as_documented(places, tmp_path):
    counts = write_catalog(Spec(ads=100_000, places=places), tmp_path, 64)["counts"]
    assert 0.72 < counts["distinct SIDs"] / counts["ads"] < 0.78
    assert counts["prefixes of length 1"] == 512
    assert counts["ads per SID, median"] == 1
    assert counts["ads per SID, most"] > 100
    assert 0.08 < counts["share with a window"] < 0.12
    assert 0.08 < counts["share with exclusions"] < 0.12
    assert 0.02 < counts["share paused"] < 0.04
    assert 3 < counts["places per list, mean"] < 9
    assert counts["places per list, most"] > 50
    assert counts["places per request, most"] == 64


def test_levels_are_skewed_like_the_fitted_ones():
    """Two items share a code exp(sigma²) times as often as with uniform codes, below a prefix."""
    sids = np.array(catalog_table(Spec(ads=200_000))["sid"].to_pylist())
    sids = np.unique(sids, axis=0)  # ads that share an item say nothing of codes
    above = 1.0
    for level in (1, 2):
        counts = np.unique(sids[:, :level], axis=0, return_counts=True)[1].astype(float)
        below = (counts * (counts - 1)).sum() / (len(sids) * (len(sids) - 1.0))
        assert below / above * 512 == pytest.approx(np.exp(level_sigmas()[level - 1] ** 2), rel=0.2)
        above = below


@pytest.mark.parametrize("spec", SPECS)
def test_rules_and_requests_are_valid(spec):
    requests = make_requests(spec, 32)
    ads = catalog_table(spec, 0, 3_000)
    assert ads.schema.field("sid").type == pa.list_(pa.int32())
    assert ads.schema.field("start").type == pa.timestamp("us", tz="UTC")
    assert Schema.from_dict(schema(spec)).names == tuple(
        field.name for field in ads.schema.field("rules").type
    )
    index = grace.build_index(ads, Schema.from_dict(schema(spec)))
    assert index.num_ads == 3_000
    for request in requests:
        index.compile(request["attributes"], request["at"])
        places = request["attributes"]["place"]
        assert 3 <= len(places) == len(set(places)) <= 64
    assert make_requests(spec, 8) == requests[:8]


def test_geographic_places_are_correlated():
    """Each city is carried with its region and country; a rule's countries are its places'."""
    spec = Spec(ads=3_000)
    for request in make_requests(spec, 16):
        attributes = request["attributes"]
        city, region, country = attributes["place"][:3]
        assert (country, region) == (attributes["country"], city.rsplit("/", 1)[0])
    for rules in catalog_table(spec)["rules"].to_pylist():
        if rules["place"] and rules["place"]["include"]:
            named = {place.split("/")[0] for place in rules["place"]["include"]}
            assert set(rules["country"]["include"]) == named


@pytest.mark.parametrize("places", ["geo", "uniform"])
def test_a_sweep_lets_in_the_share_that_it_names(places):
    spec = Spec(ads=20_000, places=places, selectivity=SHARES)
    index = grace.build_index(catalog_table(spec), Schema.from_dict(schema(spec)))
    positions = np.arange(index.num_ads)
    requests = make_requests(spec, len(SHARES))
    eligible = []
    for request in requests:
        compiled = index.compile(request["attributes"], request["at"])
        eligible.append(index.explain(positions, compiled) == 0)
    assert [request["attributes"]["tier"] for request in requests] == ["0.01", "0.1", "1"]
    live = _live(catalog_table(spec), requests[0]["at"])
    assert eligible[-1].sum() == live.sum()  # all that run, and no other
    for share, accepted in zip(SHARES, eligible, strict=True):
        assert accepted.sum() / live.sum() == pytest.approx(share, rel=0.25)
    for smaller, larger in itertools.pairwise(eligible):
        assert not (smaller & ~larger).any()


def _live(ads: pa.Table, at: str) -> np.ndarray:
    moment = pa.scalar(np.datetime64(at.removesuffix("Z"), "us")).cast(pa.timestamp("us", tz="UTC"))
    started = pc.fill_null(pc.less_equal(ads["start"], moment), True)
    running = pc.fill_null(pc.greater(ads["end"], moment), True)
    return pc.and_not(pc.and_(started, running), ads["paused"]).to_numpy()


@pytest.mark.parametrize("start", [["benchmarks/catalog.py"], ["-m", "benchmarks.catalog"]])
def test_the_command_writes_four_files(tmp_path, start):
    command = [sys.executable, *start, "--ads", "2000", "--out", str(tmp_path / "c"), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["counts"]["ads"] == 2000
    assert done.stderr == ""
    names = {path.name for path in (tmp_path / "c").iterdir()}
    assert names == {"catalog.parquet", "schema.yaml", "requests.jsonl", "manifest.json"}
    assert yaml.safe_load((tmp_path / "c" / "schema.yaml").read_text()) == schema()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ads": 0}, "ads must be at least 1"),
        ({"ads": 1, "places": "mars"}, "places must be one of geo, uniform"),
        ({"ads": 1, "selectivity": (1.5,)}, "above 0 and at most 1"),
        ({"ads": 1, "request_places": 0}, "request_places must be at least 1"),
    ],
)
def test_wrong_options_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        Spec(**wrong)
