"""The paper's tables on a tiny catalogue, against plain loops and the brute-force oracle."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import oracle
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from benchmarks import matching, record
from benchmarks.catalog import Spec, write_catalog
from benchmarks.generator.spec import NUM_LEVELS
from benchmarks.paper.counts import PAPER_BOUNDS, buckets, equal_ads
from benchmarks.paper.figures import FIGURES, PLAN
from benchmarks.paper.search import Workload
from benchmarks.paper.seeded import SeededModel, ad_shares
from grace.evaluate.passes import bucket_labels
from grace.index import build_index
from grace.index.bloom import bloom_bits

ADS, REQUESTS = 400, 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("catalog")
    write_catalog(Spec(ads=ADS, places="geo", seed=3), out, REQUESTS)
    return out


@pytest.fixture(scope="module")
def workload(folder):
    index = build_index(folder / "catalog.parquet", folder / "schema.yaml")
    requests = [json.loads(line) for line in (folder / "requests.jsonl").open()]
    return Workload(
        index=index,
        requests=requests,
        compiled=[index.compile(r["attributes"], r["at"]) for r in requests],
        batch=2,  # so that the last batch is smaller
        plan=PLAN.limited(index.level_sizes),
        device="cpu",
    )


@pytest.fixture(scope="module")
def runs(workload):
    return {run.name: run for run in matching.run_modes(workload, list(matching.MODES), 1, 0)}


@pytest.fixture(scope="module")
def ads(folder, workload):
    """Catalogue rows by their position in the index."""
    rows = pq.read_table(folder / "catalog.parquet").to_pylist()
    positions = workload.index.find_ads([row["ad_id"] for row in rows])
    return [row for _, row in sorted(zip(positions.tolist(), rows, strict=True))]


@pytest.fixture(scope="module")
def attributes(folder):
    return yaml.safe_load((folder / "schema.yaml").read_text())["attributes"]


def generated(workload, run) -> list[list[int]]:
    """Positions of each request's ads, in the order of its SIDs."""
    return [
        [p for sid in row if sid >= 0 for p in range(*workload.index.sid_ads(int(sid)))]
        for row in run.searched.leaves
    ]


@pytest.mark.parametrize("mode", matching.MODES)
def test_ads_are_counted_by_stage(workload, runs, ads, attributes, mode):
    run = runs[mode]
    few = [a for a in attributes if a["kind"] != "set"]
    many = [a for a in attributes if a["kind"] == "set"]
    for b, positions in enumerate(generated(workload, run)):
        request, counts = workload.requests[b], [len(positions), 0, 0, 0]
        useful = set()
        for position in positions:
            ad = ads[position]
            sid = tuple(ad["sid"])
            bitmask = oracle.UnionMatcher([ad], few).allows(sid, request)
            bloom = oracle.UnionMatcher([ad], many, bloom_bits).allows(sid, request)
            accepted = oracle.accepts(ad, request, attributes)
            counts[1] += bitmask
            counts[2] += bitmask and bloom
            counts[3] += accepted
            if accepted:
                useful.add(sid)
        assert run.outcome.stages[b].tolist() == counts
        assert run.outcome.eligible_sids[b] == len(useful)
        assert run.outcome.sids[b] == (run.searched.leaves[b] >= 0).sum()


@pytest.mark.parametrize("mode", matching.MODES)
def test_wasted_beams_lead_to_no_eligible_ad(workload, runs, ads, attributes, mode):
    searched, sids = runs[mode].searched, workload.index.sids
    prefixes = [()]  # by node
    for length in range(1, NUM_LEVELS + 1):
        prefixes += map(tuple, np.unique(sids[:, :length], axis=0).tolist())
    for b, request in enumerate(workload.requests):
        useful = oracle.eligible_prefixes(ads, request, attributes)
        batch, row = divmod(b, workload.batch)
        for t, nodes in enumerate(searched.entered[batch]):
            live = [prefixes[node] for node in nodes[row].tolist() if node >= 0]
            assert searched.live[b, t] == len(live)
            assert searched.wasted[b, t] == sum(prefix not in useful for prefix in live)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_says_the_same(workload, runs):
    on_gpu = replace(workload, device="cuda")
    for run in matching.run_modes(on_gpu, list(matching.MODES), 4, 0):
        other = runs[run.name]
        assert np.array_equal(run.searched.leaves, other.searched.leaves)
        assert np.array_equal(run.searched.wasted, other.searched.wasted)
        assert np.array_equal(run.outcome.stages, other.outcome.stages)
        assert len(run.times_ms) >= 4


def test_exact_wastes_nothing_and_lists_what_passes(runs):
    run = runs["exact"]
    kept, accepted = run.listed
    assert run.searched.wasted.sum() == 0
    assert (run.outcome.eligible_sids == run.outcome.sids).all()
    assert kept.tolist() == accepted.tolist() == run.outcome.stages[:, 3].tolist()


@pytest.mark.parametrize("bounds", [PAPER_BOUNDS, (30, 100), (1,)])
def test_buckets_pool_the_ads_of_their_requests(runs, bounds):
    for run in runs.values():
        found = buckets(run.outcome, bounds)
        assert list(found) == bucket_labels(bounds)
        assert sum(bucket.users for bucket in found.values()) == REQUESTS
        edges = [0, *bounds, np.inf]
        for i, bucket in enumerate(found.values()):
            rows = [s for s in run.outcome.stages.tolist() if edges[i] <= s[0] < edges[i + 1]]
            every, bitmask, both, final = np.sum([[0] * 4, *rows], axis=0).tolist()
            assert (bucket.users, bucket.user_share) == (len(rows), len(rows) / REQUESTS)
            rates = bucket.rates
            assert rates.get("pass_rate") == (final / every if every else None)
            assert rates.get("bloom_pass_rate") == (both / bitmask if bitmask else None)
            if both:
                product = rates["bitmask_pass_rate"] * rates["bloom_pass_rate"]
                assert product == pytest.approx(rates["own_rows_pass_rate"])


def test_control_compares_the_same_number_of_ads(workload, runs, ads, attributes):
    lists = {mode: generated(workload, run) for mode, run in runs.items()}
    limit, rates = equal_ads({mode: run.outcome for mode, run in runs.items()})
    for b in range(REQUESTS):
        assert limit[b] == min(len(each[b]) for each in lists.values())
    for mode, each in lists.items():
        passed = sum(
            oracle.accepts(ads[position], workload.requests[b], attributes)
            for b in range(REQUESTS)
            for position in each[b][: limit[b]]
        )
        assert rates[mode].value == pytest.approx(passed / limit.sum())


def test_shares_of_ads(workload):
    index = workload.index
    shares = ad_shares(index.trie, index.data.sid_ad_offsets)
    counts = {}
    for position in range(index.num_ads):
        for prefix in oracle.prefixes(index.sids[index.ad_sid[position]].tolist()):
            counts[prefix] = counts.get(prefix, 0) + 1
    prefixes = sorted(counts, key=lambda prefix: (len(prefix), prefix))
    wanted = [counts[prefix] / counts[prefix[:-1]] for prefix in prefixes[1:]]
    assert shares.tolist() == wanted


def test_logits_depend_on_request_and_prefix_alone(workload):
    index, requests = workload.index, workload.requests

    def step(order: list[int], tokens: list[int]) -> torch.Tensor:
        model = SeededModel(index.trie, index.data.sid_ad_offsets)
        state = model.start([requests[b] for b in order]).state
        model.step(state, None, None, 0)
        beams = torch.tensor(tokens).expand(len(order), -1)
        return model.step(state, torch.zeros_like(beams), beams, 1)[0]

    first, second = index.trie.child_tokens[:2].tolist()
    both, turned = step([0, 1], [first, second]), step([1, 0], [second, first])
    assert torch.equal(both, turned.flip(0).flip(1))
    assert torch.equal(both[:1, :1], step([0], [first]))
    assert not torch.equal(both[0], both[1])
    assert not torch.equal(both[0, 0], both[0, 1])


def run_main(monkeypatch, *arguments: str) -> list[dict]:
    written = []
    monkeypatch.setattr(
        record, "write", lambda name, rows, added=False: written.append((name, rows))
    )
    monkeypatch.setattr(sys, "argv", ["matching", *arguments])
    matching.main()
    ((name, rows),) = written
    assert name == "matching"
    return rows


def test_end_to_end(monkeypatch, capsys, folder):
    rows = run_main(
        monkeypatch, "--catalog", str(folder), "--case", "paper", "--repeats", "2", "--device",
        "cpu",
    )  # fmt: skip
    assert {row["case"] for row in rows} == {"paper"}
    measured = {(row["variant"], row["metric"]) for row in rows}
    for mode in matching.MODES:
        assert {(mode, "latency"), (mode, "pass_rate"), (mode, "eligible_sid_rate")} <= measured
    # Buckets that no request falls in have no rate.
    labels = bucket_labels(PAPER_BOUNDS)
    empty = {f"pass_rate, {label}" for label in labels[1:]}
    missing = {(mode, metric) for mode, metric in FIGURES if metric not in empty} - measured
    assert missing == set()
    by_key = {(row["variant"], row["metric"]): row for row in rows}
    assert by_key["exact", "eligible_sid_rate"]["value"] == 1
    assert by_key["exact", "pass_rate_eligible_only"]["value"] == 1
    assert by_key["valid", "pass_rate"]["reference"]["value"] == 0.2355
    assert by_key["exact", "pass_rate"]["counts"]["ads"] == ADS
    printed = capsys.readouterr().out
    assert all(f"Table {i}" in printed for i in (1, 2, 3))


def test_a_sweep_makes_a_case_of_each_share(monkeypatch, tmp_path):
    spec = Spec(ads=ADS, places="geo", selectivity=(0.1, 1.0))
    write_catalog(spec, tmp_path, 4)
    rows = run_main(
        monkeypatch, "--catalog", str(tmp_path), "--modes", "valid,exact", "--repeats", "1",
        "--device", "cpu",
    )  # fmt: skip
    name = matching.case_name({"ads": ADS, "places": "geo", "selectivity": [0.1]}, "cpu")
    assert {row["case"] for row in rows} == {
        name, f"{name}, 10.00% eligible", f"{name}, 100.00% eligible",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ads", "places", "selectivity", "name"),
    [
        (40_000_000, "uniform", [], "paper"),
        (40_000_000, "geo", [], "geo"),
        (1_000_000, "geo", [], "cpu-1e6-geo"),
        (100_000, "uniform", [0.1], "cpu-1e5-uniform-sweep"),
    ],
)
def test_case_names(ads, places, selectivity, name):
    manifest = {"ads": ads, "places": places, "selectivity": selectivity}
    assert matching.case_name(manifest, "cpu") == name
