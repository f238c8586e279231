"""A whole evaluation against the brute-force oracle, request by request."""

from __future__ import annotations

import dataclasses
import json

import harness
import numpy as np
import oracle
import pytest

from grace.errors import ConfigError, DataError
from grace.evaluate import evaluate
from grace.index import MATCHERS

STAGES = {"categorical": "bitmask", "range": "bitmask", "set": "bloom"}


@pytest.fixture(scope="module")
def evaluation(case, index, requests, plan):
    return evaluate(
        index,
        case.generator,
        requests,
        plan=plan,
        ks=(1, 5),
        bucket_bounds=(5, 10),
        fixed_ads=(1, 4),
    )


@pytest.fixture(scope="module")
def answers(case, requests, plan) -> dict[str, list[oracle.Expected]]:
    """The oracle's answer to every request, by mode."""
    plan = (plan.widths, plan.num_sids)
    return {
        mode: [harness.expected(case, request, mode, plan) for request in requests]
        for mode in MATCHERS
    }


@pytest.fixture(scope="module")
def failures(case, requests, answers) -> dict[str, list[list[set[str]]]]:
    """By mode and request, the stages that refuse each generated ad, in order of SID and id."""
    return {
        mode: [
            [stages_failed(ad, request, case.schema) for ad in generated_ads(case.ads, answer)]
            for request, answer in zip(requests, answers[mode], strict=True)
        ]
        for mode in MATCHERS
    }


def generated_ads(ads, answer) -> list[dict]:
    by_sid = {sid: [] for sid, _ in answer.sids}
    for ad in ads:
        by_sid.get(tuple(ad["sid"]), []).append(ad)
    return [ad for sid, _ in answer.sids for ad in sorted(by_sid[sid], key=lambda a: a["ad_id"])]


def stages_failed(ad, request, schema) -> set[str]:
    failed = {
        STAGES[attribute["kind"]]
        for attribute in schema
        if not oracle.rule_accepts(
            (ad["rules"] or {}).get(attribute["name"]),
            attribute["kind"],
            request["attributes"].get(attribute["name"]),
        )
    }
    if oracle.refusal(ad | {"rules": {}}, request, schema) is not None:
        failed.add("window")
    return failed


@pytest.mark.parametrize("mode", MATCHERS)
def test_ranking_is_the_oracles(evaluation, case, requests, answers, mode):
    by_id = {ad["ad_id"]: ad for ad in case.ads}
    found = {name: [] for name in evaluation.modes[mode].ranking}
    for request, answer in zip(requests, answers[mode], strict=True):
        target = by_id.get(request["target"])
        eligible = target is not None and oracle.accepts(target, request, case.schema)
        returned = [ad_id for ad_id, _, _ in answer.ads]
        sids = [sid for sid, _ in answer.sids]
        for k in (1, 5):
            hit = request["target"] in returned[:k]
            values = {
                "recall": hit,
                "ndcg": 1 / np.log2(returned.index(request["target"]) + 2) if hit else 0,
                "sid_hit": target is not None and tuple(target["sid"]) in sids[:k],
            }
            for name, value in values.items():
                found[f"{name}@{k}"].append(value)
                if eligible:
                    found[f"eligible_{name}@{k}"].append(value)
    for name, values in found.items():
        estimate = evaluation.modes[mode].ranking[name]
        assert estimate.n == len(values)
        assert estimate.value == pytest.approx(np.mean(values)), name
        assert estimate.low <= estimate.value <= estimate.high
    assert 0 < evaluation.num_eligible == evaluation.modes[mode].ranking["eligible_recall@1"].n


@pytest.mark.parametrize("mode", MATCHERS)
def test_decoding_is_the_oracles(evaluation, answers, mode):
    decoding = evaluation.modes[mode].decoding

    def total(name: str) -> int:
        return sum(answer.funnel[name] for answer in answers[mode])

    assert decoding.eligible_sid_rate.value == total("eligible_sids") / total("generated_sids")
    assert decoding.ad_pass_rate.value == total("eligible_ads") / total("expanded_ads")
    assert decoding.generated_ads.value == pytest.approx(total("expanded_ads") / 40)
    assert decoding.returned_ads.value == pytest.approx(total("eligible_ads") / 40)
    live = np.array([answer.live for answer in answers[mode]])
    wasted = np.array([answer.wasted for answer in answers[mode]])
    assert [e.value for e in decoding.live_beams] == pytest.approx(live.mean(0))
    assert [e.value for e in decoding.wasted_beams] == pytest.approx(wasted.mean(0))
    shares = wasted.sum(0) / live.sum(0)
    assert [e.value for e in decoding.wasted_share] == pytest.approx(shares)


def test_exact_wastes_nothing(evaluation):
    decoding = evaluation.modes["exact"].decoding
    assert decoding.eligible_sid_rate.value == 1
    assert all(wasted.value == 0 for wasted in decoding.wasted_beams)


@pytest.mark.parametrize("mode", MATCHERS)
def test_pass_rates_are_the_oracles(evaluation, failures, mode):
    sizes = {"< 5": range(5), "5-9": range(5, 10), "≥ 10": range(10, 10**6), "all": range(10**6)}
    assert list(evaluation.modes[mode].pass_rates) == list(sizes)
    for label, rates in evaluation.modes[mode].pass_rates.items():
        users = [failed for failed in failures[mode] if len(failed) in sizes[label]]
        generated = sum(len(user) for user in users)
        assert (rates.users, rates.user_share) == (len(users), len(users) / 40)
        assert rates.generated_ads == generated
        left = [failed for user in users for failed in user]
        for stage in ("bitmask", "bloom", "window"):
            passed = [failed for failed in left if stage not in failed]
            assert getattr(rates, stage).value == share(len(passed), len(left)), (label, stage)
            left = passed
        assert rates.final.value == share(len(left), generated)


def share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def test_fixed_pass_rates_are_the_oracles(evaluation, failures):
    inside = [mode for mode in MATCHERS if mode != "off"]
    for column, size in enumerate((1, 4)):
        shared = [row for row in range(40) if all(len(failures[m][row]) >= size for m in inside)]
        assert shared
        for mode in MATCHERS:
            rate = evaluation.modes[mode].fixed[column]
            users = [row for row in shared if len(failures[mode][row]) >= size]
            passed = sum(not failed for row in users for failed in failures[mode][row][:size])
            assert (rate.ads, rate.users) == (size, len(users))
            assert rate.final.value == share(passed, size * len(users))


def test_counts_and_plain_values(evaluation, case, requests):
    content = json.loads(json.dumps(evaluation.to_dict()))
    assert content["num_requests"] == content["num_evaluated"] == len(requests)
    known = {ad["ad_id"] for ad in case.ads}
    assert content["num_known"] == sum(request["target"] in known for request in requests) < 40
    assert content["plan"] == {"widths": [1, 4, 8], "num_sids": 8}
    assert list(content["modes"]) == list(MATCHERS)


def test_a_bad_request_is_named_and_left_out_of_every_mode(case, index, requests, plan):
    bad = requests[0] | {"attributes": {"nope": 1}}
    rows, modes = [requests[1], bad], ("valid", "exact")
    evaluation = evaluate(index, case.generator, rows, modes=modes, plan=plan)
    assert (evaluation.num_requests, evaluation.num_evaluated) == (2, 1)
    assert [(e["request"], e["field"]) for e in evaluation.errors] == [(2, "attributes.nope")]
    assert evaluation.modes["valid"].ranking["recall@10"].n == 1
    with pytest.raises(DataError, match=r"none of 1 requests .* request 1: attributes.nope"):
        evaluate(index, case.generator, [bad], modes=modes, plan=plan)


def test_a_request_needs_a_target(case, index, requests, plan):
    with pytest.raises(DataError, match="request 2: target: expected the id of the ad"):
        evaluate(index, case.generator, [requests[1], case.requests[0]], plan=plan)


def test_top_k_does_not_cut_ranks(case, index, requests, plan):
    def measured(rows):
        return evaluate(index, case.generator, rows, modes=("exact",), plan=plan).modes

    assert measured([request | {"top_k": 1} for request in requests]) == measured(
        [request | {"top_k": None} for request in requests]
    )


def test_save_replaces_the_file(evaluation, tmp_path):
    evaluation.save(tmp_path / "new")
    path = evaluation.save(tmp_path / "new")
    assert [entry.name for entry in path.parent.iterdir()] == ["evaluation.json"]
    assert json.loads(path.read_text())["modes"]["exact"]["fixed"][0]["ads"] == 1


@pytest.mark.parametrize("target", [1.5, ["a1"], {"a": 1}, True, "\ud800"], ids=repr)
def test_a_target_that_is_no_ad_id_is_refused(case, index, requests, plan, target):
    rows = [requests[1], requests[0] | {"target": target}]
    with pytest.raises(DataError, match=r"request 2: target: expected (a string|text)"):
        evaluate(index, case.generator, rows, plan=plan)


@pytest.mark.parametrize("at", ["", 0, False], ids=repr)
def test_a_false_time_is_not_the_present(case, index, requests, plan, at):
    rows = [requests[1], requests[0] | {"at": at}]
    evaluation = evaluate(index, case.generator, rows, modes=("exact",), plan=plan)
    assert [(e["request"], e["field"]) for e in evaluation.errors] == [(2, "at")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ks": (10**20,)}, "k: expected integers from 1 to"),
        ({"fixed_ads": (10, 10**30)}, "fixed_ads: expected integers from 1 to"),
        ({"bucket_bounds": (10**5000,)}, "bucket: expected integers .*, got a int"),
        ({"device": "foo"}, "device: cannot use 'foo'"),
        ({"device": "meta"}, "device: cannot use 'meta'"),
    ],
)
def test_an_option_out_of_range_is_refused(case, index, requests, options, message):
    with pytest.raises(ConfigError, match=message):
        evaluate(index, case.generator, requests, **options)


def test_text_that_utf8_cannot_hold_is_saved(evaluation, tmp_path):
    errors = [{"request": 1, "field": "\ud800", "message": "é"}]
    path = dataclasses.replace(evaluation, errors=errors).save(tmp_path)
    assert json.loads(path.read_text(encoding="utf-8"))["errors"] == errors
