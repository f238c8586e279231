"""Rankings of held-out users by a trained model."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from grace.datasets import Split
from grace.decode import check_device
from grace.errors import DataError, ModelError
from grace.train.sequence.folder import BEST
from grace.train.sequence.models import ITEMS_FILE, load_kept
from grace.train.sequence.windows import Ranker, Windows, split_windows


def rank(
    run: str | os.PathLike,
    rows: Split,
    k: int,
    device: str = "cpu",
    beam_width: int | None = None,
    rank_batch: int = 512,
) -> np.ndarray:
    """Rank all items for held-out users with the model that a run kept.

    A generator's SIDs rank by score, then by SID; the items of one SID by item id. Items of the
    history are not left out.

    Args:
        run: run folder of `grace train --data`.
        rows: `Sequences.valid()` or `.test()` of the data that the run was trained on.
        k: items per user.
        device: where the model runs.
        beam_width: SIDs that a search keeps; by default the run's.
        rank_batch: users ranked at once.

    Returns:
        `[U, k]` int64 dense item numbers (`rows.item_ids` has their ids), best first, no item
        twice; -1 at the end where a search found fewer.

    Raises:
        ModelError: if the run holds no model.
        DataError: if the model ranks other items, or a history is empty.
    """
    check_device(device)
    kept = load_kept(Path(run) / BEST, device)
    if not np.array_equal(kept.item_ids, rows.item_ids):
        raise DataError(f"{run}: its model ranks other items than these of {rows.name}")
    ranker = kept.model.ranker(beam_width or kept.beam_width)
    return rank_windows(ranker, split_windows(rows, kept.history), k, rank_batch, device).numpy()


def run_sids(run: str | os.PathLike) -> np.ndarray | None:
    """Return the SIDs `[N, L]` of the items that a run's model ranks; None if it needs none.

    Raises:
        ModelError: if the run holds no model.
    """
    path = Path(run) / BEST / ITEMS_FILE
    try:
        sids = safetensors.torch.load_file(path).get("sids")
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: {error}; a run folder of grace train holds it") from None
    return None if sids is None else sids.numpy()


def rank_windows(ranker: Ranker, windows: Windows, k: int, rank_batch: int, device: str) -> Tensor:
    """Return `[E, k]` int64 item numbers, on the CPU.

    Users go by the length of their history, so that a batch pads little.
    """
    on_device = windows.to(device)
    order = np.argsort(windows.lengths, kind="stable")
    ranked = torch.empty(len(windows), k, dtype=torch.int64, device=device)
    for first in range(0, len(order), rank_batch):
        chosen = order[first : first + rank_batch]
        room = int(windows.lengths[chosen[-1]])
        rows = torch.from_numpy(chosen).to(device)
        ranked[rows] = ranker(on_device.batch(rows, room), k)
    return ranked.cpu()
