"""The searches that Grace is compared with run on a CPU; that they agree is asserted on the way."""

import dataclasses

import pytest
import torch

pytest.importorskip("transformers", reason="Hugging Face's generate is one of the peers")

from benchmarks import bench_peers
from benchmarks.peers.found import EMPTY, Found, assert_same, count_faults, overlap

SIDS = ["--tiny", "--sids=20000", "--device=cpu", "--least=1", "--seconds=0.01"]


def test_all_agree_and_are_timed(capsys):
    bench_peers.main([*SIDS, "--batch", "1", "3", "--beams", "48"])
    out = capsys.readouterr().out
    assert "float32, small: grace, static, eager, generate, tuned, generate, callback agree" in out
    assert out.count("latency") == 8


@pytest.fixture(scope="module")
def case():
    """What `assert_same` takes, with Grace's own result as the one to be judged."""
    setup = bench_peers.make_setup(bench_peers.SMALL, 5_000, torch.float32, "cpu", seed=1)
    context = bench_peers.draw_context(setup, 2, seed=1)
    widths, num_sids = (1, 20, 20, 20), 20
    beams = bench_peers.grace_beams(setup.model, setup.trie, context, widths, num_sids)
    kept = [*beams.entered_scores[1:], beams.scores]
    cuts = torch.stack([scores.min(1).values for scores in kept], 1)
    found = Found(beams.tokens, beams.scores)
    return setup, found, (found, cuts, setup.model.decoder, context, 1e-4)


def test_equal_results_are_the_same(case):
    setup, found, expected = case
    assert_same("it", found, *expected)
    assert count_faults(found, setup.trie) == (40, 0, 0)
    assert overlap(found, found) == (1, 0)


def test_another_score_is_noticed(case):
    _, found, expected = case
    with pytest.raises(AssertionError, match="scores differ"):
        assert_same("it", dataclasses.replace(found, scores=found.scores + 0.01), *expected)


def test_another_sid_is_noticed_unless_a_cut_is_near(case):
    setup, found, expected = case
    others = setup.trie.sids[::500].tolist()
    present = {tuple(sid) for sid in found.sids[1].tolist()}
    sids = found.sids.clone()
    sids[1, 0] = torch.tensor(next(sid for sid in others if tuple(sid) not in present))
    with pytest.raises(AssertionError, match="far from any cut"):
        assert_same("it", Found(sids, found.scores), *expected)
    assert overlap(Found(sids, found.scores), found)[0] == 39 / 40

    loose = (*expected[:-1], 20.0)
    assert_same("it", Found(sids, found.scores), *loose)


def test_faults_are_counted(case):
    setup, found, _ = case
    sids = found.sids.clone()
    sids[0, 1] = sids[0, 0]
    sids[0, 2] = -1
    sids[1, 3] = EMPTY
    assert count_faults(Found(sids, found.scores), setup.trie) == (39, 1, 1)


def test_grace_returns_what_there_is_where_beams_outnumber_sids():
    with torch.inference_mode():
        rows = list(bench_peers.few_sids_rows(["grace"], "cpu", seed=0))
    assert [row["value"] for row in rows] == [0, 0]
    assert rows[0]["counts"] == {"returned": 60}
