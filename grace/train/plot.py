"""The learning curve as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grace.files import atomic_write


def draw_curve(history: list[dict[str, Any]], recall_at: int, path: Path) -> None:
    """Draw training loss, validation loss and validation recall by epoch, as a PNG.

    Args:
        history: one record an epoch, as in `metrics.jsonl`.
        recall_at: k of the recall.
        path: the file, replaced when the picture is complete.
    """
    epochs = [record["epoch"] for record in history]
    figure = Figure(figsize=(7, 4), layout="constrained")
    loss_axis = figure.subplots()
    recall_axis = loss_axis.twinx()
    lines = [
        *loss_axis.plot(epochs, [r["train_loss"] for r in history], "C0-", label="training loss"),
        *loss_axis.plot(epochs, [r["valid_loss"] for r in history], "C1-", label="validation loss"),
        *recall_axis.plot(
            epochs,
            [r["valid_recall"] for r in history],
            "C2--",
            label=f"validation recall@{recall_at}",
        ),
    ]
    loss_axis.set_xlabel("epoch")
    loss_axis.set_ylabel("cross-entropy per token (nats)")
    loss_axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    recall_axis.set_ylabel(f"recall@{recall_at}")
    recall_axis.set_ylim(bottom=0)
    best = min(history, key=lambda record: record["valid_loss"])
    loss_axis.axvline(best["epoch"], color="0.8", zorder=0)
    loss_axis.legend(lines, [line.get_label() for line in lines], loc="center right")
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=150)
