"""The beam tree against brute force: every branch, every reason, every count."""

import numpy as np
import oracle
import pytest
from harness import UNION_MODES, build, examples, union_matcher
from hypothesis import given
from strategies import MODES, cases

import grace
from grace.retrieve.paths import GeneratorPath, make_generator
from grace.retrieve.request import parse_request
from grace.serve.playground.explain import CATALOGUE, RULES, WIDTH, Limits, grow_tree
from grace.serve.playground.refusals import Refusals, spread

EVERYTHING = Limits(kept=10**6, refused=10**6, outside=10**6, narrow=10**6)


def grow(case, index, request, matching, limits):
    plan = grace.BeamPlan(*case.plan)
    generator = make_generator(case.generator, index, "cpu", "auto", plan)
    path = GeneratorPath(generator, index, "cpu", matching, plan)
    checked = parse_request(request, index, path)
    return grow_tree(generator, index, matching, plan, checked, limits)


def refusals_of(ad, request, schema):
    """All reasons to refuse an ad, one oracle call each."""
    life = {key: ad.get(key) for key in ("start", "end")}
    alone = [{"paused": ad.get("paused")}, life]
    alone += [{"rules": {name: rule}} for name, rule in (ad.get("rules") or {}).items()]
    return {reason for part in alone if (reason := oracle.refusal(part, request, schema))}


def candidates(case, request, beams):
    for prefix, score in beams:
        step = oracle.step_scores(case.generator.logits(request["features"], prefix))
        for token in np.flatnonzero(np.isfinite(step)).tolist():
            yield (*prefix, token), score + step[token]


@pytest.mark.parametrize("matching", MODES)
@given(case=cases(max_ads=120, max_vocab=70, widths=(1, 2, 3, 8, 31), num_requests=1))
@examples(1)
def test_every_branch_of_the_tree_is_as_brute_force_says(matching, case):
    index, request = build(case), case.requests[0]
    union = union_matcher(case, matching=matching) if matching in UNION_MODES else None
    allowed = oracle.allowed_prefixes(case.ads, request, case.schema, matching, union)
    valid = oracle.valid_prefixes(case.ads)
    eligible = oracle.eligible_prefixes(case.ads, request, case.schema)
    tree = grow(case, index, request, matching, EVERYTHING)

    enters = allowed is None or () in allowed
    assert (tree.root.kept, tree.root.why) == (enters, None if () in eligible else RULES)
    if not enters:
        assert tree.steps == []
        return
    widths, num_sids = case.plan
    steps = oracle.beam_search(
        lambda prefix: case.generator.logits(request["features"], prefix), widths, num_sids, allowed
    )
    assert len(tree.steps) == len(steps) == case.num_levels
    entering = [((), np.float32(0))]
    for step, kept in zip(tree.steps, steps, strict=True):
        beams = dict(kept)
        every = dict(candidates(case, request, entering))
        assert step.entered == len(entering)
        assert step.kept == len(beams) <= step.width
        cut = min(beams.values()) if len(beams) == step.width else -np.inf
        assert step.cut == (None if cut == -np.inf else cut)

        why = {}
        for prefix, score in every.items():
            if prefix in beams:
                reason = None if prefix in eligible else RULES if prefix in valid else CATALOGUE
                why[prefix] = (True, reason)
            elif allowed is None or prefix in allowed:
                why[prefix] = (False, WIDTH)
            elif score >= cut:
                why[prefix] = (False, RULES if prefix in valid else CATALOGUE)
        assert {b.prefix: (b.kept, b.why) for b in step.branches} == why
        assert all(b.score == every[b.prefix] for b in step.branches)
        scores = [branch.score for branch in step.branches]
        assert scores == sorted(scores, reverse=True)
        whys = list(why.values())
        assert step.in_vain == {w: whys.count((True, w)) for w in (CATALOGUE, RULES)}
        assert step.not_kept == {w: whys.count((False, w)) for w in (CATALOGUE, RULES, WIDTH)}

        named = {}
        for branch in step.branches:
            assert (branch.refusals is not None) == (branch.why == RULES)
            if branch.why != RULES:
                continue
            below = [a for a in case.ads if tuple(a["sid"][: len(branch.prefix)]) == branch.prefix]
            reasons = [refusals_of(ad, request, case.schema) for ad in below]
            assert all(reasons)  # no ad below may be seen
            counts = {r: sum(r in ad for ad in reasons) for r in set().union(*reasons)}
            assert branch.refusals.by == counts
            assert branch.refusals.num_ads == branch.refusals.checked == len(below)
            assert counts[branch.refusals.rule] == max(counts.values())
            named[branch.refusals.rule] = named.get(branch.refusals.rule, 0) + 1
        assert sum(step.refused_by.values()) == min(200, sum(named.values()))
        entering = kept


@given(case=cases(max_ads=80, max_vocab=12, widths=(8, 31), num_requests=1))
@examples(1)
def test_a_short_tree_is_a_connected_part_of_the_whole(case):
    index, request = build(case), case.requests[0]
    limits = Limits(kept=4, best=3, refused=2, outside=1, narrow=1)
    whole = grow(case, index, request, "exact", EVERYTHING)
    short = grow(case, index, request, "exact", limits)
    shown = {()}
    for step, all_of_it in zip(short.steps, whole.steps, strict=True):
        assert {b.prefix[:-1] for b in step.branches} <= shown
        assert {b.prefix: b for b in step.branches}.items() <= {
            b.prefix: b for b in all_of_it.branches
        }.items()
        kept = [branch for branch in step.branches if branch.kept]
        assert len(kept) <= limits.kept
        assert sum(b.why == RULES and not b.kept for b in step.branches) <= limits.refused
        assert (step.kept, step.not_kept) == (all_of_it.kept, all_of_it.not_kept)
        shown = {branch.prefix for branch in kept}
    if short.steps:  # what leads to the best SIDs is shown to its end
        best = [b.prefix for b in whole.steps[-1].branches if b.kept][: limits.best]
        assert {b.prefix for b in short.steps[-1].branches if b.kept} >= set(best)


def test_a_large_subtree_is_sampled_evenly_and_says_so():
    ads = [{"ad_id": i, "sid": [0], "rules": {"age": {"min": 18 + i % 2}}} for i in range(50)]
    index = grace.build_index(ads, {"attributes": [{"name": "age", "kind": "range"}]})
    child = index.compile({"age": 12})
    assert Refusals.of(index, [0, 1], child, sample=10) == [Refusals(50, 10, {"age": 10})] * 2
    assert spread(3, 53, 10).tolist() == list(range(3, 53, 5))
    assert spread(7, 9, 10).tolist() == [7, 8]


def test_unusable_logits_are_the_requests_error():
    class Broken:
        def start(self, features):
            return None

        def step(self, state, parents, tokens):
            return grace.retrieve.retriever.torch.full((1, 1, 3), float("nan"))

    index = grace.build_index([{"ad_id": 1, "sid": [2]}], {"attributes": []})
    plan = grace.BeamPlan((1,), 1)
    generator = make_generator(Broken(), index, "cpu", "auto", plan)
    path = GeneratorPath(generator, index, "cpu", "exact", plan)
    request = parse_request({"id": 1}, index, path)
    with pytest.raises(grace.errors.RequestError, match="NaN"):
        grow_tree(generator, index, "exact", plan, request)
