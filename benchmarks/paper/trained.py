"""Recall of held-out items, where there is a trained model: that of a `grace demo` run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import record
from grace.decode import BeamPlan
from grace.demo.folder import REPORT_FILE
from grace.evaluate.run import evaluate
from grace.index import Index

METRICS = ("recall@10", "recall@50", "eligible_recall@10", "eligible_recall@50")


def demo_rows(folder: Path, modes: Sequence[str], device: str) -> Iterator[dict]:
    """Evaluate the demo's model on its own index, with its own plan, which is much narrower.

    Args:
        folder: what `grace demo` left behind.
        modes: matching modes.
        device: where the model runs.
    """
    index = Index.open(folder / "index")
    with (folder / "held-out.jsonl").open() as file:
        requests = [json.loads(line) for line in file]
    plan = json.loads((folder / REPORT_FILE).read_text())["plan"]
    plan = BeamPlan(tuple(plan["widths"]), plan["num_sids"])
    found = evaluate(index, str(folder / "model"), requests, modes, plan, device=device)
    counts = {
        "ads": index.num_ads,
        "sids": index.num_sids,
        "requests": found.num_evaluated,
        "beams": max(plan.widths),
        "held-out ad known": found.num_known,
        "held-out ad eligible": found.num_eligible,
    }
    for mode, measured in found.modes.items():
        estimates = {metric: measured.ranking[metric] for metric in METRICS} | {
            "eligible_sid_rate": measured.decoding.eligible_sid_rate,
            "pass_rate": measured.decoding.ad_pass_rate,
        }
        for metric, each in estimates.items():
            if each.value is None:
                continue
            row = record.row("demo", mode, metric, "rate", each.value, n=each.n, counts=counts)
            yield row | {"low": each.low, "high": each.high}
