"""Overlap and recall between precisions, counted on lists that a reader can check."""

import json

import numpy as np
import pytest
import sequence_cases as cases

from benchmarks import fp8_quality
from benchmarks.fp8_quality import PRECISIONS, Answers, acceptable, compare, joined, overlap
from grace.model import projection
from grace.train.sequence import train_sequences


def answers(*lists, ranks):
    return Answers(sids=[list(x) for x in lists], ads=[list(x) for x in lists], ranks=ranks)


def rows_of(each, eligible):
    rows = compare("tiny", dict(zip(PRECISIONS, each, strict=True)), np.array(eligible))
    return {(row["variant"], row["metric"]): row for row in rows}


def test_overlap_counts_what_both_have_and_what_the_longer_one_has():
    assert overlap(["abc", "xy"], ["bcd", "xyz"], 3) == (2 + 2, 3 + 3)
    assert overlap(["abc"], ["bac"], 2) == (2, 2)
    assert overlap(["abc"], ["xbc"], 1) == (0, 1)


def test_rows_say_what_was_hit_gained_and_lost():
    full = answers("ab", "cd", "ef", ranks=np.array([1, 0, 11]))
    half = answers("ba", "cd", "ef", ranks=np.array([2, 0, 11]))
    eight = answers("ab", "cx", "ef", ranks=np.array([0, 3, 11]))
    rows = rows_of((full, half, eight), [True, True, True])
    assert rows["float32", "recall@10"]["counts"] == {"hits": 1, "requests": 3}
    assert rows["float8", "recall@100"]["counts"] == {"hits": 2, "requests": 3}
    against = "float8 against bfloat16"
    assert rows[against, "SID overlap@10"]["counts"] == {"shared": 5, "entries": 6}
    assert rows[against, "recall@10 ratio"]["counts"] == {"gained": 1, "lost": 1}
    assert rows[against, "recall@10 ratio"]["value"] == 1
    assert rows["bfloat16 against float32", "ad overlap@10"]["value"] == 1


def test_only_requests_that_may_see_their_ad_count_for_recall():
    each = [answers("a", "b", ranks=np.array([1, 0]))] * 3
    assert rows_of(each, [True, False])["float8", "recall@10"]["value"] == 1


@pytest.mark.parametrize(("lost", "accepted"), [(0, True), (1, False)])
def test_a_lost_hit_in_a_hundred_is_too_much(lost, accepted):
    ranks = np.ones(100, np.int64)
    fewer = np.where(np.arange(100) < lost, 0, ranks)
    same, less = (answers(*["a"] * 100, ranks=r) for r in (ranks, fewer))
    assert acceptable(list(rows_of((same, same, less), [True] * 100).values())) is accepted


def test_runs_are_joined_in_order():
    both = joined([answers("ab", ranks=np.array([1])), answers("c", ranks=np.array([0]))])
    assert both.sids == [["a", "b"], ["c"]]
    assert both.ranks.tolist() == [1, 0]


def trained(kind, tmp_path):
    data = cases.write_data(tmp_path / "toy", num_users=12)
    sids = cases.write_sids(tmp_path / "sids.parquet")
    train_sequences(data, kind, tmp_path / "run", cases.recipe(kind, steps=4), sids)
    return ["--run", str(tmp_path / "run"), "--data", str(data), "--device", "cpu"]


def test_a_run_is_asked_what_its_users_took_next(tmp_path, monkeypatch):
    arguments = [*trained("grace", tmp_path), "--every-product", "--users", "8", "--beams", "20"]
    monkeypatch.setattr(fp8_quality.record, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(projection, "LEAST_FP8_FLOPS", projection.LEAST_FP8_FLOPS)
    for split in ("valid", "test"):
        fp8_quality.main([*arguments, "--split", split])
    content = json.loads((tmp_path / "results" / "cpu" / "fp8_run.json").read_text())
    rows = {(row["case"], row["variant"], row["metric"]): row for row in content["rows"]}
    for case in ("toy, valid", "toy, test"):
        for precision in PRECISIONS:
            assert rows[case, precision, "recall@10"]["counts"]["requests"] == 8
        assert 0.5 < rows[case, "float8 against float32", "SID overlap@10"]["value"] <= 1
    log = (tmp_path / "run" / "test-log.jsonl").read_text().splitlines()
    assert [json.loads(line)["by"] for line in log] == ["fp8_quality"]


def test_a_run_that_fp8_is_not_for_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        fp8_quality.main(trained("causal", tmp_path))
    assert "FP8 is for models of kind grace, got causal" in capsys.readouterr().err
