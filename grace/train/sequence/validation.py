"""The validation that chooses the best model of a run."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from grace.datasets import Split
from grace.errors import DataError
from grace.train.sequence.config import SequenceConfig
from grace.train.sequence.processes import Processes
from grace.train.sequence.rank import rank_windows
from grace.train.sequence.windows import split_windows

CUTS = (1, 5, 10, 20)


class Validation:
    """Users to rank for, shared out over the processes of a run.

    Args:
        split: the validation split.
        config: of the run.
        processes: of the run.

    Raises:
        DataError: if there are no users, or one without a history.
    """

    def __init__(self, split: Split, config: SequenceConfig, processes: Processes):
        self._config, self._processes = config, processes
        users = np.arange(len(split))
        if 0 < config.valid_users < len(users):
            drawn = np.random.default_rng([config.seed, 1]).permutation(users)
            users = np.sort(drawn[: config.valid_users])
        if not len(users):
            raise DataError(f"{split.name}: there are no users to validate on")
        self._num_users = len(users)
        users = users[processes.number :: processes.count]
        self._windows = split_windows(split, config.history).take(users)
        self._seen = split_windows(split).take(users) if config.exclude_history else None
        self._targets = torch.from_numpy(split.targets[users])

    def measure(self, model: nn.Module) -> dict[str, float]:
        """Return recall@k and NDCG@k by name, over the users of all processes."""
        config, device = self._config, self._processes.device
        model.eval()
        ranked = rank_windows(
            model, self._windows, self._seen, max(CUTS), config.beam_width, config.rank_batch,
            device,
        )  # fmt: skip
        sums = measure(ranked, self._targets)
        total = torch.tensor(list(sums.values()), dtype=torch.float64, device=device)
        self._processes.sum_(total)
        return dict(zip(sums, (total / self._num_users).tolist(), strict=True))


def measure(ranked: Tensor, targets: Tensor) -> dict[str, float]:
    """Return recall@k and NDCG@k, summed over users.

    Args:
        ranked: `[U, K]` int64, no item twice in a row.
        targets: `[U]` int64.
    """
    hit = ranked == targets[:, None]
    gain = 1 / torch.log2(torch.arange(2, ranked.shape[1] + 2, dtype=torch.float64))
    sums = {}
    for k in CUTS:
        sums[f"recall@{k}"] = float(hit[:, :k].sum())
        sums[f"ndcg@{k}"] = float((hit[:, :k] * gain[:k]).sum())
    return sums
