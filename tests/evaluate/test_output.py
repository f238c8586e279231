"""What a reader sees: the tables hold every mode's numbers, the chart is a picture."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from grace.evaluate import evaluate
from grace.evaluate.chart import draw
from grace.evaluate.table import tables


@pytest.fixture
def evaluation(case, index, requests, plan):
    modes = ("valid", "exact")
    return evaluate(index, case.generator, requests, modes=modes, plan=plan, fixed_ads=(1, 10**6))


def test_tables_hold_the_numbers(evaluation):
    console = Console(file=io.StringIO(), width=160)
    for table in tables(evaluation):
        console.print(table)
    text = console.file.getvalue()
    for mode in evaluation.modes.values():
        for estimate in mode.ranking.values():
            assert f"{estimate.value:.3f} ({estimate.low:.3f}-{estimate.high:.3f})" in text
        for rates in mode.pass_rates.values():
            assert f"{rates.users} ({rates.user_share:.1%})" in text
        final = mode.pass_rates["all"].final
        assert f"{final.value:.1%} ({100 * final.low:.1f}-{100 * final.high:.1f})" in text
    assert "eligible_recall@10" in text
    assert "first 1000000" in text  # more ads than any request generated: a row without a number


def test_chart_is_a_png(evaluation, tmp_path):
    path = draw(evaluation, tmp_path / "plots" / "evaluation.png")
    assert path.read_bytes().startswith(b"\x89PNG")
