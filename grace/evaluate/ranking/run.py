"""Runs of one model, a seed each, measured on the validation or the test split of a data set."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grace.datasets import Sequences, Split
from grace.errors import ConfigError
from grace.evaluate.ranking import testlog
from grace.evaluate.ranking.breadth import breadth
from grace.evaluate.ranking.cache import cached_lists
from grace.evaluate.ranking.fusion import Fusion, choose_fusion, fuse
from grace.evaluate.ranking.intervals import Quality, qualities
from grace.evaluate.ranking.lists import NONE, check_lists, in_history, places, repeated, without
from grace.evaluate.ranking.metrics import KS, per_user
from grace.evaluate.ranking.tokenizer import (
    TokenizerReport,
    Transitions,
    check_tokenizer,
    last_training_transitions,
)
from grace.files import atomic_write

SPLITS = ("valid", "test")
COLD_EVENTS = 5
"""An item with at most so many training events is cold."""
DEPTH = 50
BREADTH_K = 10

Rank = Callable[[Path, Split, int], np.ndarray]
"""`(run, users, k) -> [U, k]` int64 item positions, best first, -1 for none."""
ReadSids = Callable[[Path], np.ndarray | None]
"""`run -> [N, L]` SIDs of the data's items; None where the model has none."""


@dataclass(frozen=True)
class RankingEvaluation:
    """What was measured of one model.

    Attributes:
        data: name of the data set's folder.
        split: `valid` or `test`.
        runs: per seed, the run folders whose lists were fused; mostly one.
        num_users, num_items: U and N.
        history_dropped: whether items of the user's history were taken out of the lists.
        fusion: how lists were fused, chosen on validation; None for one list.
        repeated: places taken out since their item stood further up.
        unfilled: places at the ends of lists that stayed empty, of all; over all seeds.
        quality: metric → mean and intervals, for `all` users, and for those whose target is
            `cold` or `warm`.
        breadth: coverage and popularity bias of the first 10 places, by seed.
        tokenizer: checks of the first seed's SIDs, by its own lists; None for models without.
    """

    data: str
    split: str
    runs: tuple[tuple[str, ...], ...]
    num_users: int
    num_items: int
    history_dropped: bool
    fusion: Fusion | None
    repeated: int
    unfilled: int
    quality: dict[str, dict[str, Quality]]
    breadth: tuple[dict[str, float], ...]
    tokenizer: TokenizerReport | None

    def save(self, path: str | os.PathLike) -> None:
        """Write everything as JSON, whole or not at all."""
        text = json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n"
        with atomic_write(path) as file:
            file.write(text.encode("utf-8", "backslashreplace"))


def evaluate_runs(
    data: Sequences,
    seeds: Sequence[Sequence[Path]],
    split: str,
    rank: Rank,
    read_sids: ReadSids,
    drop_history: bool = False,
    depth: int = DEPTH,
    ranked_with: Mapping[str, Any] | None = None,
) -> RankingEvaluation:
    """Rank all items for all users of a split and measure the lists.

    An item that stands in a list twice counts at its first place; later ones close up. The test
    split is opened only where `split` says so, and every run's `test-log.jsonl` says so first.

    Args:
        data: the prepared data set.
        seeds: run folders of one model, a seed each; several in one entry have their lists fused,
            the same models in the same order in every entry. Weights are chosen on validation.
        split: `valid` or `test`.
        rank: makes lists of a run.
        read_sids: of a run.
        drop_history: take items out that are in the user's history.
        depth: places of a list, before anything is taken out.
        ranked_with: settings of `rank`; lists kept in run folders are of one setting.

    Raises:
        ConfigError: if the split has no such name, or the entries are not of one length.
        DataError: if a folder holds no run or the data is torn.
    """
    if split not in SPLITS:
        raise ConfigError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if not seeds or any(len(runs) != len(seeds[0]) or not runs for runs in seeds):
        raise ConfigError(
            f"expected as many runs to fuse for each seed, got {[len(runs) for runs in seeds]}"
        )
    lists_of = _Lists(data, rank, drop_history, depth, dict(ranked_with or {}))
    fusion = None
    if len(seeds[0]) > 1:
        valid = data.valid()
        lists = [[lists_of(run, valid)[0] for run in runs] for runs in seeds]
        fusion = choose_fusion(lists, valid.targets)
    every = sorted({run for runs in seeds for run in runs})
    if split == "test":
        digests = {run: testlog.checkpoint_digest(run) for run in every}
        for run in every:
            others = [str(r) for runs in seeds if run in runs for r in runs if r != run]
            about = {"data": _name(data), "best": digests[run], "fused_with": others}
            testlog.append(run, {"event": "opened"} | about)
    users = data.test() if split == "test" else data.valid()
    lists, num_repeated = [], 0
    for runs in seeds:
        cleaned = [lists_of(run, users) for run in runs]
        num_repeated += sum(number for _, number in cleaned)
        ranked = [ranked for ranked, _ in cleaned]
        lists.append(fuse(ranked, fusion) if fusion else ranked[0])
    tokenizer = _check_tokenizer(data, seeds[0], users, lists_of, read_sids)
    evaluation = _measure(data, seeds, users, lists, tokenizer)
    evaluation = dataclasses.replace(
        evaluation, fusion=fusion, repeated=num_repeated, history_dropped=drop_history
    )
    if split == "test":
        for number, runs in enumerate(seeds):
            shown = {
                name: evaluation.quality["all"][name].by_seed[number]
                for name in ("recall@10", "ndcg@10")
            }
            for run in runs:
                testlog.append(run, {"event": "measured", "best": digests[run]} | shown)
    return evaluation


class _Lists:
    """Lists of runs, cleaned."""

    def __init__(
        self,
        data: Sequences,
        rank: Rank,
        drop_history: bool,
        depth: int,
        ranked_with: dict[str, Any],
    ):
        self._data, self._rank = data, rank
        self._drop_history, self._depth = drop_history, depth
        self._settings = {"depth": depth} | ranked_with

    def __call__(self, run: Path, users: Split) -> tuple[np.ndarray, int]:
        """Return int64 `[U, depth]` without duplicates, and how many there were."""

        def ranked() -> np.ndarray:
            lists = self._rank(run, users, self._depth)
            check_lists(lists, len(users.targets), self._data.num_items)
            return lists

        lists = cached_lists(run, users, self._settings, ranked)
        again = repeated(lists)
        dropped = again
        if self._drop_history:
            dropped = again | in_history(lists, users.offsets, users.items)
        return without(lists, dropped), int(again.sum())


def _check_tokenizer(
    data: Sequences, runs: Sequence[Path], users: Split, lists_of: _Lists, read_sids: ReadSids
) -> TokenizerReport | None:
    """Check the SIDs of the first run that has some, by its own lists, before any fusion."""
    for run in runs:
        sids = read_sids(run)
        if sids is not None:
            return check_tokenizer(
                sids,
                lists_of(run, users)[0],
                Transitions(users.offsets, users.items, users.targets),
                last_training_transitions(data.offsets, data.items),
                np.bincount(data.items, minlength=data.num_items),
            )
    return None


def _name(data: Sequences) -> str:
    return data.folder.resolve().name


def _measure(
    data: Sequences,
    seeds: Sequence[Sequence[Path]],
    users: Split,
    lists: Sequence[np.ndarray],
    tokenizer: TokenizerReport | None,
) -> RankingEvaluation:
    counts = np.bincount(data.items, minlength=data.num_items)
    cold = counts[users.targets] <= COLD_EVENTS
    found = [per_user(places(ranked, users.targets)) for ranked in lists]
    values = {name: np.stack([seed[name] for seed in found]) for name in found[0]}
    quality = {
        group: qualities({name: value[:, kept] for name, value in values.items()})
        for group, kept in (("all", slice(None)), ("cold", cold), ("warm", ~cold))
    }
    return RankingEvaluation(
        data=_name(data),
        split=users.name,
        runs=tuple(tuple(map(str, runs)) for runs in seeds),
        num_users=len(users.targets),
        num_items=data.num_items,
        history_dropped=False,
        fusion=None,
        repeated=0,
        unfilled=int(sum((ranked[:, : KS[-1]] == NONE).sum() for ranked in lists)),
        quality=quality,
        breadth=tuple(breadth(ranked[:, :BREADTH_K], users.targets, counts) for ranked in lists),
        tokenizer=tokenizer,
    )
