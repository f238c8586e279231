"""The beam tree of one request: what each step could have kept, what it kept, and why not more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from grace.decode import BeamPlan, Beams, Generator, beam_search
from grace.errors import RequestError
from grace.index import Index
from grace.index.rules import CompiledTargeting
from grace.retrieve.request import Request
from grace.serve.playground.refusals import Refusals
from grace.serve.playground.steps import Level, Recorder, Tokens, levels_of

Prefix = tuple[int, ...]

CATALOGUE, RULES, WIDTH = "catalogue", "rules", "width"
"""Why a branch leads nowhere: no ad has it; no ad below may be seen; others are better."""
EXPLAINED = 200
"""Branches of a step, the best first, whose rules are read."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much of each step is shown.

    Attributes:
        kept: beams: those that lead to the best SIDs, then those kept in vain, then others.
        best: SIDs that all beams are shown for.
        refused: branches that rules cut.
        outside: branches that end outside the catalogue.
        narrow: branches that the width cut.
    """

    kept: int = 12
    best: int = 8
    refused: int = 5
    outside: int = 2
    narrow: int = 2


@dataclass(frozen=True)
class Branch:
    """One prefix that a step could keep.

    Attributes:
        prefix: its tokens.
        score: log-probability, natural.
        kept: whether it is a beam.
        why: `CATALOGUE`, `RULES` or `WIDTH`; None for a beam with an eligible ad below. A beam with
            a reason was kept in vain.
        refusals: of the ads below where `why` is `RULES`, otherwise None.
    """

    prefix: Prefix
    score: float
    kept: bool
    why: str | None
    refusals: Refusals | None = None


@dataclass(frozen=True)
class Step:
    """One decode step.

    Attributes:
        entered: beams that entered it.
        width: beams that it may keep.
        cut: score of the last beam kept; None where there was room for more.
        kept: beams kept, of which `in_vain` have no eligible ad below.
        in_vain: by reason, `CATALOGUE` or `RULES`.
        not_kept: branches by reason. `CATALOGUE` and `RULES` count those whose score reaches the
            cut, which would have taken a beam's place; `WIDTH` counts all that were allowed.
        refused_by: branches with the reason `RULES`, kept in vain or not, by the rule that refuses
            most of the ads below; of the best `EXPLAINED`.
        branches: those shown, by score; every one's parent is shown, too.
    """

    entered: int
    width: int
    cut: float | None
    kept: int
    in_vain: dict[str, int]
    not_kept: dict[str, int]
    refused_by: dict[str, int]
    branches: list[Branch]


@dataclass(frozen=True)
class Tree:
    """How a search went.

    Attributes:
        root: the empty prefix, which a request that may see nothing does not enter.
        steps: one for each token; none where the root was not entered.
        how: what decided which beams live.
    """

    root: Branch
    steps: list[Step]
    how: str


def grow_tree(
    generator: Generator,
    index: Index,
    matching: str,
    plan: BeamPlan,
    request: Request,
    limits: Limits | None = None,
) -> Tree:
    """Search for one request, step by step on the CPU, and say what became of every branch.

    Beams and scores are those of `beam_search`; the model runs where its generator does.

    Args:
        generator: the model.
        index: a version, on the CPU.
        matching: one of `grace.index.MATCHERS`.
        plan: widths; steps are no wider than the trie unless the mode is `off`.
        request: checked against the index.
        limits: how much to show.

    Raises:
        RequestError: if the model's logits are unusable.
    """
    inside = matching != "off"
    plan = plan.limited(index.level_sizes) if inside else plan
    verdict = index.match(matching, [request.targeting], plan.widths)
    recorder = Recorder(generator)
    with torch.inference_mode():
        prefill = recorder.start([request.features])
    beams = beam_search(recorder, prefill, index.trie, verdict, plan, 1, inside)
    if beams.faults[0] is not None:
        raise RequestError("logits", beams.faults[0])
    limits = limits or Limits()
    eligible = (index.match("exact", [request.targeting]).words.numpy() & 1) != 0
    grower = _Grower(index, request.targeting, eligible, inside, limits)
    enters = verdict is None or bool(verdict.root[0])
    how = matching if verdict is None else verdict.how
    if not enters:
        return Tree(grower.root(enters), [], how)
    levels = levels_of(beams, recorder.tokens)
    wanted = _best_sids(beams, limits.best)
    shown, steps = [()], []
    for t, (entering, leaving) in enumerate(pairwise(levels)):
        tokens = Tokens.of(index.trie, entering, recorder.scores[t], verdict, inside)
        steps.append(
            grower.step(
                tokens, entering, leaving, (*plan.widths, plan.num_sids)[t + 1], shown,
                {sid[: t + 1] for sid in wanted},
            )
        )  # fmt: skip
        shown = [branch.prefix for branch in steps[-1].branches if branch.kept]
    return Tree(grower.root(enters), steps, how)


Place = tuple[int, int]
"""A branch of a step: the row of its beam, and the token that it adds."""
Fate = tuple[bool, str | None]
"""`kept` and `why` of a branch."""


@dataclass(frozen=True)
class _Grower:
    """What all steps of a search have in common; `eligible` is bool [S], by trie node."""

    index: Index
    targeting: CompiledTargeting
    eligible: np.ndarray
    inside: bool
    limits: Limits

    def root(self, enters: bool) -> Branch:
        if self.eligible[0]:
            return Branch((), 0.0, True, None)
        return Branch((), 0.0, enters, RULES, Refusals.of(self.index, [0], self.targeting)[0])

    def step(
        self,
        tokens: Tokens,
        entering: Level,
        leaving: Level,
        width: int,
        shown: Sequence[Prefix],
        wanted: set[Prefix],
    ) -> Step:
        """Describe a step.

        Args:
            tokens: all branches.
            entering: its beams, of which those with the prefixes `shown` are shown.
            leaving: the beams that it kept.
            width: how many it may keep.
            wanted: beams to show whatever their score.
        """
        kept = leaving.mask(entering, tokens.scores.shape)
        num_kept = int(kept.sum())
        cut = float(tokens.scores[kept].min()) if num_kept == width else None
        fates = self._fates(tokens, kept, -np.inf if cut is None else cut)
        picked = self._pick(fates, tokens, entering, shown, wanted)
        refusals, refused_by = self._refusals(fates, tokens, picked)
        count = {fate: int(mask.sum()) for fate, mask in fates.items()}
        return Step(
            entered=int((entering.scores > -np.inf).sum()),
            width=width,
            cut=cut,
            kept=num_kept,
            in_vain={why: count[True, why] for why in (CATALOGUE, RULES)},
            not_kept={why: count[False, why] for why in (CATALOGUE, RULES, WIDTH)},
            refused_by=refused_by,
            branches=[
                Branch(
                    entering.prefix(place[0], place[1]), float(tokens.scores[place]), *fate,
                    refusals.get(place),
                )
                for place, fate in picked
            ],
        )  # fmt: skip

    def _fates(self, tokens: Tokens, kept: np.ndarray, cut: float) -> dict[Fate, np.ndarray]:
        """Return bool `[M, V]` for each fate; a branch that has none was never in question."""
        possible = tokens.scores > -np.inf
        reaches = possible & (tokens.scores >= cut)
        known = tokens.children >= 0
        useful = known & self.eligible[np.maximum(tokens.children, 0)]
        return {
            (True, None): kept & useful,
            (True, CATALOGUE): kept & ~known,
            (True, RULES): kept & known & ~useful,
            (False, CATALOGUE): ~kept & ~known & ~tokens.allowed & reaches,
            (False, RULES): ~kept & known & ~tokens.allowed & reaches,
            (False, WIDTH): ~kept & tokens.allowed & possible,
        }

    def _pick(
        self,
        fates: dict[Fate, np.ndarray],
        tokens: Tokens,
        entering: Level,
        shown: Sequence[Prefix],
        wanted: set[Prefix],
    ) -> list[tuple[Place, Fate]]:
        """Return the branches to show, best first; they grow from beams that are shown."""
        rows = {prefix: row for row, prefix in entering.alive()}
        under = np.zeros((len(tokens.scores), 1), bool)
        under[[rows[prefix] for prefix in shown]] = True
        kept = fates[True, None] | fates[True, CATALOGUE] | fates[True, RULES]
        beams = tokens.best(kept & under, int(kept.sum()))
        # The sort is stable: by score among beams of equal interest.
        beams.sort(
            key=lambda place: (
                entering.prefix(*place) not in wanted,
                bool(fates[True, None][place]),
            )
        )
        chosen = beams[: self.limits.kept]
        for why, most in (
            (RULES, self.limits.refused),
            (CATALOGUE, self.limits.outside),
            (WIDTH, self.limits.narrow),
        ):
            chosen += tokens.best(fates[False, why] & under, most)
        chosen.sort(key=lambda place: (-tokens.scores[place], entering.prefix(*place)))
        return [(place, next(f for f, mask in fates.items() if mask[place])) for place in chosen]

    def _refusals(
        self, fates: dict[Fate, np.ndarray], tokens: Tokens, picked: list[tuple[Place, Fate]]
    ) -> tuple[dict[Place, Refusals], dict[str, int]]:
        """Return the refusals of branches by place, and `Step.refused_by`."""
        best = tokens.best(fates[True, RULES] | fates[False, RULES], EXPLAINED)
        shown = [place for place, (_, why) in picked if why == RULES]
        places = list(dict.fromkeys([*best, *shown]))
        nodes = [int(tokens.children[place]) for place in places]
        found = Refusals.of(self.index, nodes, self.targeting)
        rules = Counter(refusals.rule for refusals in found[: len(best)] if refusals.by)
        return dict(zip(places, found, strict=True)), dict(rules.most_common())


def _best_sids(beams: Beams, most: int) -> list[Prefix]:
    alive = beams.scores[0] > -torch.inf
    return [tuple(sid) for sid in beams.tokens[0, alive].tolist()[:most]]
