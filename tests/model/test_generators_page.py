"""docs/generators.md: its example runs as printed, and keeps the promises that the page makes."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from model_cases import small_index

import grace

PAGE = Path(__file__).parents[2] / "docs" / "generators.md"


@pytest.fixture(scope="module")
def page() -> dict:
    torch.manual_seed(0)
    names = {"index": small_index()}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)
    return names


def test_the_example_finds_every_ad_under_a_plan_that_covers_the_trie(page, capsys):
    index, result = page["index"], page["result"]
    assert {ad.ad_id for ad in result.ads} == set(range(index.num_ads))
    scores = [ad.score for ad in result.ads]
    assert scores == sorted(scores, reverse=True)
    # All SIDs together are not more likely than the V^L that the model could write.
    assert sum(np.exp(score) for _, score in result.sids) <= 1


def test_the_example_scores_each_sid_as_its_own_gru_would(page):
    index, result = page["index"], page["result"]
    model = page["GruGenerator"](index.vocab_size)
    model.load_state_dict(page["retriever"]._path._generator._model.state_dict())
    for sid, score in result.sids[:10]:
        hidden, expected = model.start_from(torch.tensor([[0.34]])), 0.0
        for token in sid:
            expected += torch.log_softmax(model.head(hidden), -1)[0, token].item()
            hidden = model.cell(model.tokens(torch.tensor([token])), hidden)
        assert score == pytest.approx(expected, abs=1e-5)


def test_a_narrow_plan_and_neighbours_leave_the_scores(page):
    index = page["index"]
    full = dict(page["result"].sids)
    narrow = grace.Retriever(
        index, page["retriever"]._path._generator._model, plan=grace.BeamPlan((1, 3, 7), 4)
    )
    requests = [{"id": age, "features": {"age": age}} for age in (20, 34, 90)]
    result = narrow.retrieve(requests)[1]
    assert len(result.sids) == 4
    for sid, score in result.sids:
        assert score == pytest.approx(full[sid], abs=1e-5)
