"""The same code on a CUDA device: identical logits give identical answers, the model's agree."""

import match_cases
import numpy as np
import pytest
import torch
from model_cases import small_model
from select_cases import assert_same, case

import grace
from grace.index import MATCHERS
from grace.index.unions import UNIONS
from grace.kernels.constrained_select import constrained_select
from grace.kernels.logsumexp import logsumexp
from grace.kernels.match_children import match_children

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

SCHEMA = {"attributes": [{"name": "age", "kind": "range"}, {"name": "place", "kind": "set"}]}


class Table:
    """Logits that depend on nothing but the step, made on the CPU and moved to the device."""

    def __init__(self, device: str):
        self.device = device

    def start(self, features):
        return {"batch": len(features), "random": torch.Generator().manual_seed(3)}

    def step(self, state, parents, tokens):
        assert parents is None or parents.device.type == self.device
        beams = 1 if parents is None else parents.shape[1]
        shape = (state["batch"], beams, 5)
        return torch.randn(shape, generator=state["random"]).to(self.device)


def random_index():
    rng = np.random.default_rng(0)
    rules = [{}, {"age": {"min": 30}}, {"place": {"include": ["US"], "exclude": ["US/MN"]}}]
    return grace.build_index(
        [
            {"ad_id": i, "sid": rng.integers(0, 5, 3).tolist(), "rules": rules[i % 3]}
            for i in range(200)
        ],
        SCHEMA,
    )


REQUESTS = [
    {"id": 1, "attributes": {"age": 40, "place": ["US"]}, "features": {}},
    {"id": 2, "attributes": {"place": ["US", "US/MN"]}, "features": {"age": 20}},
    {"id": 3, "features": {"age": 30, "clicks": [{"ad_id": 1}, {"ad_id": 7}]}},
]


@pytest.mark.parametrize("matching", MATCHERS)
def test_identical_logits_give_identical_answers(matching):
    index, plan = random_index(), grace.BeamPlan((1, 4, 16), 33)
    answers = [
        grace.Retriever(index, Table(device), plan, matching, device).retrieve(REQUESTS)
        for device in ("cpu", "cuda")
    ]
    for one, other in zip(*answers, strict=True):
        assert one.sids == other.sids
        assert one.to_dict() == other.to_dict()


def test_the_model_agrees_within_a_tolerance():
    index = random_index()
    plan = grace.BeamPlan((1, 5, 25), index.num_sids)  # as wide as the trie: all SIDs, any order
    answers = []
    for device in ("cpu", "cuda"):
        # Each size of a batch is tuned here, as nowhere else in the tests.
        retriever = grace.Retriever(
            index, small_model(seed=1), plan, "valid", device, batch_size=4, precision="float32"
        )
        answers.append(retriever.retrieve(REQUESTS))
    for one, other in zip(*answers, strict=True):
        scores, others = dict(one.sids), dict(other.sids)
        assert scores.keys() == others.keys()
        for sid, score in scores.items():
            assert score == pytest.approx(others[sid], abs=1e-4)


def test_kernels_on_the_device_equal_those_on_the_cpu():
    for seed in range(10):
        step = case(seed, batch=16, beams=33, vocab=64, levels=3, coarse=bool(seed % 2))
        moved = {k: v if v is None else v.cuda() for k, v in step.items()}
        there = constrained_select(**moved, width=129)
        here = constrained_select(**step, width=129)
        assert_same(here, type(here)(*(tensor.cpu() for tensor in vars(there).values())))
        torch.testing.assert_close(
            logsumexp(step["columns"]), logsumexp(moved["columns"]).cpu(), rtol=1e-14, atol=1e-14
        )


@pytest.mark.parametrize("jagged", [False, True])
@pytest.mark.parametrize("narrow", [False, True])
def test_children_on_the_device_equal_those_on_the_cpu(jagged, narrow):
    for seed in range(20):
        step = match_cases.case(
            seed,
            batch=match_cases.BATCHES[seed % 7],
            beams=(1, 33, 256)[seed % 3],
            vocab=(1, 33, 300)[seed % 3],
            levels=1 + seed % 6,
            bitmask_words=1 + seed % 7,
            slots=seed % 4,
            filter_words=(1, 4, 5, 8)[seed % 4],
            jagged=jagged,
            num_places=(1, 7, 8, 9, 64)[seed % 5],
            narrow=narrow,
            max_sids=20_000,
        )
        moved = match_cases.on("cuda", step)
        here = match_children(**step, backend="native")
        assert torch.equal(here, match_children(**moved, backend="triton").cpu())
        assert torch.equal(here, match_children(**moved, backend="reference").cpu())


@pytest.mark.parametrize("jagged", [False, True])
def test_a_graph_holds_the_test_of_children(jagged):
    sizes = {"batch": 16, "beams": 100, "vocab": 300, "levels": 3, "max_sids": 20_000}
    steps = [match_cases.case(1, jagged=jagged, **sizes)]
    for other in (2, 3):
        order = torch.randperm(100, generator=torch.Generator().manual_seed(other))
        steps.append(steps[0] | {"nodes": steps[0]["nodes"][:, order].contiguous()})
    static = match_cases.on("cuda", steps[0])
    out = torch.empty(16, 100, 10, dtype=torch.int32, device="cuda")
    match_children(**static, max_children=300, out=out)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        match_children(**static, max_children=300, out=out)
    for replay in range(30):
        step = steps[replay % 3]
        static["nodes"].copy_(step["nodes"])
        out.fill_(-1)
        graph.replay()
        want = match_children(**step, backend="native", max_children=300)
        assert torch.equal(out.cpu(), want)


@pytest.mark.parametrize("matching", UNIONS)
def test_unions_on_the_device_equal_those_on_the_cpu(matching):
    index = random_index()
    requests = [index.compile(request.get("attributes"), None) for request in REQUESTS]
    matcher = index.unions(matching)
    here, there = matcher.start(requests), matcher.to("cuda").start(requests)
    assert torch.equal(here.root, there.root.cpu())
    nodes = torch.arange(index.trie.first_leaf).expand(len(requests), -1)
    assert torch.equal(here.children(nodes), there.children(nodes.cuda()).cpu())
