"""Full latency, level by level: every level runs, and finds what the last one finds."""

import pytest

from benchmarks import serve_levels
from benchmarks.decode.levels import LEVELS
from benchmarks.decode.shape import small_shape
from benchmarks.serve_levels import ALL, decoding_with
from benchmarks.serving.world import paper_world
from grace.retrieve import Retriever


def test_it_runs(capsys):
    rows = serve_levels.main(["--small", "--batches", "2"])
    whole = [row["variant"] for row in rows if row["metric"] == "full latency"]
    assert whole == [level.name for level in ALL]
    assert "L0 naive" in capsys.readouterr().out


def test_levels_find_the_same():
    world = paper_world(1e-4, small_shape("dynamic"), 64, 0, "cpu")
    plan, some = small_shape("fixed").plan, world.requests[:5]

    def answers(decoder):
        with decoding_with(decoder):
            retriever = Retriever(world.index, world.model, plan, "valid", batch_size=4)
        return retriever.retrieve(some)

    wanted = answers(LEVELS["L4 paged"])
    assert all(result.sids for result in wanted)
    for name, decoder in LEVELS.items():
        for found, one in zip(answers(decoder), wanted, strict=True):
            assert [sid for sid, _ in found.sids] == [sid for sid, _ in one.sids], name
            scores = [score for _, score in one.sids]
            assert [score for _, score in found.sids] == pytest.approx(scores, abs=1e-4), name
