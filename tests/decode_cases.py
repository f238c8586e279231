"""Random searches over static memory for the tests of decoding, and what results must agree in.

Two searches with scores that differ by rounding may keep other beams, but only where a cut lets
them: `assert_agree` follows both through the trie, step by step.
"""

import copy

import numpy as np
import torch
from device_cases import compiled
from harness import build
from model_cases import small_model, with_random_norms
from strategies import Case

from grace.decode import BeamPlan
from grace.decode.beams import Beams
from grace.decode.step_search import StepSearch
from grace.decode.steps import StepBuffers, run_steps
from grace.index.on_device import DeviceIndex
from grace.kernels.constrained_select import Workspace
from grace.kernels.logsumexp import logsumexp
from grace.model.step_decoder import StepDecoder

TOLERANCES = {"float32": 1e-4, "bfloat16": 0.05, "float8": 0.25}
"""Of a whole SID's score between two devices, for models as small and as untrained as these."""


def index_of(seed, num_levels=3, vocab=8, num_ads=300, num_requests=32, rule_rate=0.5, **changes):
    """An index and its compiled requests; some of them find nothing."""
    case = Case(
        seed=seed, num_levels=num_levels, vocab=vocab, num_ads=num_ads, num_requests=num_requests,
        rule_rate=rule_rate, **changes,
    )  # fmt: skip
    index = build(case)
    return index, compiled(index, case.requests)


def plan_of(trie, width, num_sids=None):
    """`width` beams at every step where the trie is as wide."""
    plan = BeamPlan((1, *[width] * (trie.num_levels - 1)), num_sids or width)
    return plan.limited(trie.level_sizes)


def model_of(index, seed=0, spare_vocab=3, **sizes):
    """A model for an index whose V is more than the catalogue needs."""
    sizes = {"vocab_size": index.vocab_size + spare_vocab, "num_recent_tokens": 0} | sizes
    return with_random_norms(small_model(seed=seed, num_levels=index.num_levels, **sizes), seed)


def step_decoder(model, device="cpu", precision="float32"):
    """Of a copy: a module moves to the device of its `StepDecoder`."""
    return StepDecoder(copy.deepcopy(model.decoder), model.config, device, precision)


def context_of(model, batch, seed=0):
    """What an encoder might give: float32 `[B, T, model_dim]`."""
    config = model.config
    shape = (batch, config.num_context_tokens, config.model_dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Search:
    """A `StepSearch` together with what has to be called before it runs.

    Args:
        index: of `index_of`.
        model: of `model_of`.
        options: of `StepSearch`.
    """

    def __init__(
        self, index, model, plan, device="cpu", matching="exact", precision="float32",
        max_batch=4, **options,
    ):  # fmt: skip
        self.device = device
        self.on_device = DeviceIndex(index, device, matching)
        self.search = StepSearch(
            step_decoder(model, device, precision), self.on_device.trie, self.on_device.matcher,
            plan, max_batch, model.config.num_context_tokens, **options,
        )  # fmt: skip

    def run(self, requests, context, lengths=None, trace=True):
        """The beams of a batch of compiled requests."""
        if self.on_device.matcher is not None:
            self.on_device.matcher.start(requests)
        lengths = None if lengths is None else lengths.to(self.device)
        return self.search.run(context.to(self.device), lengths, trace)

    def poison(self):
        """Fill what a search may not read before it writes it: NaN, and numbers out of range."""
        search = self.search
        with torch.inference_mode():
            search._workspace.poison()
            memory = search._memory
            for tensor in (*memory.context, *memory.pools, *memory.value_scales):
                tensor.fill_(torch.nan)
            for buffers in search._buffers.values():
                poison(buffers)


def poison(buffers):
    """Fill a search's buffers with what would show if it were read."""
    for tensor in (buffers.scores, buffers.logsumexp):
        tensor.fill_(torch.nan)
    tensors = [buffers.root, buffers.sids]
    for step in buffers.chosen:
        tensors += [step.parents, step.tokens, step.nodes]
    for tensor in tensors:
        tensor.fill_(-77)


class FixedLogits:
    """All steps of a search over logits that are given beforehand.

    Args:
        trie: where they run.
        plan: no wider than the trie.
        batch: B, at least the number of requests of any run.
        style: `smooth`; `coarse`, with many equal scores; `holes`, where tokens and whole beams are
            -inf, and most requests have a NaN or +inf in one beam of a step.
        matcher: a `DeviceMatcher`, or None.
    """

    def __init__(self, trie, plan, batch, matcher=None, style="smooth", seed=0, dtype=None):
        self.trie, self.matcher, self.batch = trie, matcher, batch
        self.device = trie.child_tokens.device
        shapes = [(batch, width, trie.vocab_size + 3) for width in plan.widths]
        draw = np.random.default_rng(seed)
        logits = [
            _logits(draw, shape, style, t).to(dtype or torch.float32)
            for t, shape in enumerate(shapes)
        ]
        self.logits = [columns.to(self.device) for columns in logits]
        self.buffers = StepBuffers.allocate(batch, plan, self.device)
        steps = zip(plan.widths, (*plan.widths[1:], plan.num_sids), trie.most_children, strict=True)
        self.workspace = Workspace.for_steps(batch, steps, self.device)
        self.everyone = torch.ones(batch, dtype=torch.bool, device=self.device)

    def poison(self):
        """Before a run: nothing of the last one may count."""
        self.workspace.poison()
        poison(self.buffers)

    def enqueue(self):
        """All steps; with a matcher that has been started."""
        run_steps(self._score, self.trie, self._masks, self._admit, self.buffers, self.workspace)

    def results(self):
        """Name → tensor on the CPU: everything that a step selects."""
        buffers = self.buffers
        found = {"sids": buffers.sids, "broken": buffers.broken(), "root": buffers.root}
        found["scores"] = buffers.scores
        for t, step in enumerate(buffers.chosen):
            found |= {f"{name} {t}": tensor for name, tensor in vars(step).items()}
        return {name: tensor.cpu().clone() for name, tensor in found.items()}

    def _score(self, entering, t, out):
        logsumexp(self.logits[t], out=out)
        return self.logits[t]

    def _admit(self):
        if self.matcher is None:
            return self.everyone
        if self.matcher.ready is not None:
            torch.cuda.current_stream().wait_event(self.matcher.ready)
        return self.matcher.root[: self.batch]

    def _masks(self, nodes, most):
        return (None, None) if self.matcher is None else self.matcher.masks(nodes, most)


def _logits(draw, shape, style, t):
    logits = draw.normal(size=shape).astype(np.float32) * 3
    if style == "coarse":
        logits = np.round(logits / 3)
    if style == "holes":
        logits[draw.random(shape) < 0.3] = -np.inf
        logits[draw.random(shape[:2]) < 0.1] = -np.inf
        beam = draw.integers(shape[1]), draw.integers(shape[2])
        logits[t + 1 :: 4, *beam] = draw.choice((np.nan, np.inf))
    return torch.from_numpy(logits)


def assert_identical(found, wanted):
    """Two dictionaries of tensors have the same bits."""
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        assert torch.equal(_bits(found[name]), _bits(want)), name


def _bits(tensor):
    return tensor.view(torch.int32) if tensor.dtype == torch.float32 else tensor


def assert_same_beams(one, other, rows=None, others=None):
    """The requests `rows` of one result and `others` of another have the same bits."""
    rows = list(range(len(one.scores))) if rows is None else list(rows)
    others = rows if others is None else list(others)
    for name in ("tokens", "nodes", "scores"):
        first, second = getattr(one, name)[rows], getattr(other, name)[others]
        assert torch.equal(_bits(first), _bits(second)), name
    assert [one.faults[b] for b in rows] == [other.faults[b] for b in others]


def assert_agree(trie, found, wanted, tolerance):
    """Two traced results of the same requests agree up to rounding of `tolerance`.

    Beams that both kept have scores within it. A beam that only one kept descends from such a beam,
    or was out of the other's reach: no better than the last one that the other kept there, up to
    the tolerance; where the other had room left there is no such beam.

    Args:
        trie: on the CPU.
        found, wanted: `Beams` with what entered each step.
    """
    assert found.faults == wanted.faults
    leaves = trie.expand()
    for b, fault in enumerate(wanted.faults):
        assert_whole(trie, leaves, found, b)
        assert_whole(trie, leaves, wanted, b)
        if fault is None:
            steps = [_steps(beams, b) for beams in (found, wanted)]
            _assert_agree_through(trie, *steps, tolerance)


def _steps(beams: Beams, b):
    """Per level {node: score}, and how many slots there were."""
    levels = [*zip(beams.entered, beams.entered_scores, strict=True), (beams.nodes, beams.scores)]
    return [
        ({n: s for n, s in zip(nodes[b].tolist(), scores[b].tolist(), strict=True) if n >= 0},
         nodes.shape[1])
        for nodes, scores in levels
    ]  # fmt: skip


def _assert_agree_through(trie, found, wanted, tolerance):
    offsets = trie.child_offsets.numpy()
    for level, ((one, size), (other, _)) in enumerate(zip(found, wanted, strict=True)):
        for node in one.keys() & other.keys():
            assert abs(one[node] - other[node]) <= tolerance, (level, node, one[node], other[node])
        if level == 0:
            assert one.keys() == other.keys()
            continue
        for mine, theirs, before in (
            (one, other, wanted[level - 1][0]), (other, one, found[level - 1][0]),
        ):  # fmt: skip
            cut = min(theirs.values(), default=-np.inf) if len(theirs) == size else -np.inf
            for node in mine.keys() - theirs.keys():
                parent = int(np.searchsorted(offsets, node - 1, side="right")) - 1
                assert parent not in before or mine[node] <= cut + 2 * tolerance, (
                    level, node, mine[node], cut,
                )  # fmt: skip


def assert_whole(trie, leaves, beams, b):
    """One request's SIDs are those of their leaves, no two the same, the best first."""
    alive = beams.scores[b] > -torch.inf
    count = int(alive.sum())
    assert alive[:count].all()
    nodes, tokens, scores = beams.nodes[b], beams.tokens[b], beams.scores[b, :count]
    assert (nodes[count:] == -1).all()
    assert len(set(nodes[:count].tolist())) == count
    assert (nodes[:count] >= trie.first_leaf).all()
    assert np.array_equal(tokens[:count].numpy(), leaves[nodes[:count].numpy() - trie.first_leaf])
    assert (scores[:-1] >= scores[1:]).all()
    ties = scores[:-1] == scores[1:]
    assert (nodes[:count][:-1][ties] < nodes[:count][1:][ties]).all()
