"""Rankings of held-out users by a trained model."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from grace.datasets import Split
from grace.decode import check_device
from grace.errors import DataError, ModelError
from grace.train.sequence.folder import BEST
from grace.train.sequence.models import ITEMS_FILE, load_kept
from grace.train.sequence.windows import Windows, split_windows


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
    history are left out where the run's recipe says so.

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
    windows, width = split_windows(rows, kept.history), beam_width or kept.beam_width
    seen = split_windows(rows) if kept.exclude_history else None
    return rank_windows(kept.model, windows, seen, k, width, rank_batch, device).numpy()


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


def rank_windows(
    model: nn.Module,
    windows: Windows,
    seen: Windows | None,
    k: int,
    beam_width: int,
    rank_batch: int,
    device: str,
) -> Tensor:
    """Return `[E, k]` int64 item numbers, on the CPU.

    Users go by the length of their history, so that a batch pads little.

    Args:
        model: has `ranker(beam_width)`.
        windows: what it reads.
        seen: of the same users, items that are left out; None to leave none out.
        k: items per user.
        beam_width: SIDs that a search keeps, besides those that may have to be left out.
        rank_batch: users ranked at once.
        device: the model's.
    """
    spare = 0 if seen is None else int(windows.lengths.max(initial=0))
    ranker = model.ranker(beam_width + spare)
    on_device = windows.to(device)
    seen_on_device = None if seen is None else seen.to(device)
    order = np.argsort(windows.lengths, kind="stable")
    ranked = torch.empty(len(windows), k, dtype=torch.int64, device=device)
    for first in range(0, len(order), rank_batch):
        chosen = order[first : first + rank_batch]
        room = int(windows.lengths[chosen[-1]])
        rows = torch.from_numpy(chosen).to(device)
        batch = on_device.batch(rows, room)
        if seen is None:
            ranked[rows] = ranker(batch, k)
        else:
            room = int(seen.lengths[chosen].max())
            past = seen_on_device.batch(rows, room).items[:, :-1]
            ranked[rows] = without(ranker(batch, k + room), past)[:, :k]
    return ranked.cpu()


def without(ranked: Tensor, past: Tensor) -> Tensor:
    """Take items out of lists, what follows moves up and -1 fills the ends.

    Args:
        ranked: int64 `[R, K]`, item numbers; -1 for none.
        past: int64 `[R, n]`, the items to take out; -1 for none.
    """
    known, _ = past.sort(dim=1)
    place = torch.searchsorted(known, ranked).clamp_max(known.shape[1] - 1)
    gone = (known.gather(1, place) == ranked) | (ranked < 0)
    order = gone.long().argsort(dim=1, stable=True)
    return torch.where(gone, -1, ranked).gather(1, order)
