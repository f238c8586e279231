"""What a run writes beside its models: settings, where they came from, metrics, a picture."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import hashlib
import importlib.metadata
import io
import json
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

import grace
from grace.datasets import Sequences, Split
from grace.files import atomic_write
from grace.train.sequence.config import Recipe

CONFIG_FILE = "config.toml"
METRICS_FILE = "metrics.csv"
CURVE_FILE = "curve.png"
CHECKPOINTS = "checkpoints"
BEST = "best"
COLUMNS = ("step", "epoch", "split", "metric", "value")

Row = tuple[int, int, str, str, float]
"""Step, epoch, split, metric, value: a line of `metrics.csv`."""


def write_config(folder: Path, recipe: Recipe, run: dict[str, Any]) -> None:
    """Write `config.toml`: `[model]` and `[train]` as a recipe takes them, and `[run]`.

    Args:
        folder: the run's.
        recipe: every setting is written, defaults too.
        run: where the run came from, name to string or number.
    """
    tables = {"model": recipe.model, "train": dataclasses.asdict(recipe.train), "run": run}
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items()), ""]
    with atomic_write(folder / CONFIG_FILE) as file:
        file.write("\n".join(lines).encode())


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)  # of strings, numbers and booleans: the same


def identity_of(
    model: str, recipe: Recipe, data: Sequences, held_out: Split, sids: np.ndarray | None
) -> dict[str, Any]:
    """Return what makes a run what it is, name to value."""
    arrays = {
        "items": [data.item_ids],
        "training data": [data.users, data.offsets, data.items],
        "validation data": [held_out.users, held_out.offsets, held_out.items, held_out.targets],
        "SIDs": [] if sids is None else [sids],
    }
    digests = {
        name: hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in parts)).hexdigest()
        for name, parts in arrays.items()
    }
    sizes = {f"[model] {name}": value for name, value in recipe.model.items()}
    settings = dataclasses.asdict(recipe.train)
    return {
        "model": model,
        **sizes,
        **{f"[train] {name}": value for name, value in settings.items()},
        **digests,
    }


def code_version() -> dict[str, str]:
    """Return what ran: versions, and the commit where the code lies in a checkout of git."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found["grace"] = importlib.metadata.version("grace")
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=40", "--exclude=*"],
            cwd=Path(grace.__file__).parent, capture_output=True, text=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return found
    return found | ({"commit": answer.stdout.strip()} if answer.returncode == 0 else {})


def write_metrics(folder: Path, rows: Iterable[Row]) -> None:
    """Write `metrics.csv`, in place of the one before."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows((*row[:4], repr(row[4])) for row in rows)
    with atomic_write(folder / METRICS_FILE) as file:
        file.write(text.getvalue().encode())


def draw_metrics(folder: Path, rows: list[Row], select: str) -> None:
    """Draw the training loss and the validation metrics by step as `curve.png`."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    left = figure.subplots()
    right = left.twinx()
    lines = []
    for axis, split, metric, style in (
        (left, "train", "loss", "C0-"),
        (right, "valid", "recall@10", "C2--"),
        (right, "valid", "ndcg@10", "C3--"),
    ):
        points = [(row[0], row[4]) for row in rows if row[2:4] == (split, metric)]
        lines += axis.plot(*zip(*points, strict=True), style, label=f"{metric}, {split}")
    scores = [(row[4], -row[0]) for row in rows if row[2:4] == ("valid", select)]
    left.axvline(-max(scores)[1], color="0.8", zorder=0)
    left.set_xlabel("step")
    left.set_ylabel("cross-entropy (nats)")
    right.set_ylim(bottom=0)
    left.legend(lines, [line.get_label() for line in lines], loc="center right")
    with atomic_write(folder / CURVE_FILE) as file:
        figure.savefig(file, format="png", dpi=150)
