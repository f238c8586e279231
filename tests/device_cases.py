"""Searches that read a matcher's fixed memory on a device, against the index's own verdicts."""

import numpy as np
import torch
from harness import build, build_rows
from strategies import Case

from grace.index.device_matchers import UnionsOnDevice
from grace.kernels.constrained_select import constrained_select
from grace.kernels.logsumexp import logsumexp

SIZES = (32, 1, 17, 0, 2, 31, 16, 3)  # batches one after the other
SCHEMA = [{"name": "age", "kind": "range"}, {"name": "place", "kind": "set"}]
AT = "2026-03-01T12:00:00Z"


def compiled(index, requests):
    return [index.compile(request.get("attributes"), request["at"]) for request in requests]


def random_case(seed, num_ads=60, num_requests=32, **changes):
    """An index and its requests; some of them find nothing."""
    # More values than the exact matcher's masks have bits in every other case.
    case = Case(
        seed=seed, num_ads=num_ads, num_requests=num_requests, rule_rate=(0.2, 0.5, 0.9)[seed % 3],
        shape=("uniform", "dense", "few", "one")[seed % 4], num_places=(60, 2000)[seed % 2],
        **changes,
    )  # fmt: skip
    index = build(case)
    return index, compiled(index, case.requests)


def place_index(num_places=400, num_ads=100):
    """Ads that ask for a place or two, or for none."""
    rng = np.random.default_rng(1)
    ads = [
        {
            "ad_id": i,
            "sid": rng.integers(0, 6, 3).tolist(),
            "rules": {"place": {"include": [f"p{p}" for p in rng.integers(0, num_places, 2)]}}
            if i % 5
            else {"age": {"min": 30}},
        }
        for i in range(num_ads)
    ]
    return build_rows(ads, SCHEMA)


def place_requests(index, counts, num_places=400):
    """A request for each count, which carries so many places."""
    rng = np.random.default_rng(2)
    places = [[f"p{p}" for p in rng.permutation(num_places)[:count]] for count in counts]
    return [index.compile({"place": some}, AT) for some in places]


class Search:
    """All steps of a search over fixed logits, for a number of rows that may exceed the batch."""

    def __init__(self, trie, rows, beams, seed, device="cpu"):
        self.trie, self.rows = trie, rows
        self.widths = [min(beams, size) for size in trie.level_sizes]
        draw = torch.Generator().manual_seed(seed)
        self.logits = [
            torch.randn(rows, width, trie.vocab_size + 3, generator=draw)
            for width in self.widths[:-1]
        ]
        # Devices may differ in a normaliser's last bit, which is not what is compared.
        self.normalisers = [logsumexp(columns).to(device) for columns in self.logits]
        self.logits = [columns.to(device) for columns in self.logits]

    def run(self, root, masks):
        """(nodes, scores), [rows, K], from `root` and what `masks(nodes, most_children)` says."""
        nodes = root[: self.rows, None].long() - 1
        scores = torch.zeros_like(nodes, dtype=torch.float32).masked_fill_(nodes < 0, -torch.inf)
        number = len(nodes)
        for t, width in enumerate(self.widths[1:]):
            most = self.trie.most_children[t]
            words, allowed = masks(nodes, most)
            chosen = constrained_select(
                self.logits[t][:number], self.normalisers[t][:number], scores, nodes,
                self.trie.child_offsets, self.trie.child_tokens, words, width, allowed=allowed,
                max_children=most,
            )  # fmt: skip
            nodes, scores = chosen.nodes, chosen.scores
        return nodes, scores


def expected(index, matching, requests, search):
    """What the search returns on the CPU under `Index.match`, for the batch's rows alone."""
    verdict = index.match(matching, requests)
    if verdict is None:
        return search.run(torch.ones(len(requests), dtype=torch.bool), lambda *_: (None, None))

    def masks(nodes, most):
        return verdict.words, verdict.children and verdict.children(nodes)

    return search.run(verdict.root, masks)


def assert_found(found, wanted):
    """Equal in the batch's rows, dead beyond."""
    for tensor, want, dead in zip(found, wanted, (-1, -torch.inf), strict=True):
        tensor = tensor.cpu()
        assert torch.equal(tensor[: len(want)], want)
        assert (tensor[len(want) :] == dead).all()


def check_batch(index, matching, matcher, trie, requests, seed=0, beams=7, rows=32):
    """One batch: the verdict, every word and every child, and a search."""
    verdict = matcher.start(requests)
    if matcher.ready is not None:
        torch.cuda.current_stream().wait_event(matcher.ready)
    number, want = len(requests), index.match(matching, requests)
    root = torch.ones(number, dtype=torch.bool) if want is None else want.root
    assert torch.equal(verdict.root.cpu(), root)
    assert torch.equal(matcher.root[:number].cpu(), root)
    assert not matcher.root[number:].any()
    bounds = trie.level_offsets.tolist()
    for level, most in enumerate(trie.most_children):
        nodes = torch.arange(bounds[level], bounds[level + 1]).repeat(rows, 1)
        nodes[number:] = -1
        words, allowed = matcher.masks(nodes.to(trie.child_offsets.device), most)
        if matching == "valid":
            assert words is allowed is None
        elif matching == "exact":
            assert allowed is None
            assert torch.equal(words.cpu(), want.words)
        else:
            assert words is None
            if number:
                assert torch.equal(allowed[:number].cpu(), want.children(nodes[:number]))
            assert not allowed[number:].any()
    here = Search(index.trie, rows, beams, seed)
    there = Search(trie, rows, beams, seed, trie.child_offsets.device)
    assert_found(there.run(matcher.root, matcher.masks), expected(index, matching, requests, here))


def check_unions_interpreted():
    """Unions whose children and root Triton tests."""
    for seed, matching in enumerate(("bitmask+bloom", "static-kway", "dynamic-kway")):
        index, requests = random_case(seed, num_ads=10, num_requests=3)
        matcher = UnionsOnDevice(index.unions(matching), index.trie.child_offsets, "triton")
        for number in (3, 1):
            check_batch(index, matching, matcher, index.trie, requests[:number], rows=4, beams=4)


def check_exact_interpreted():
    """`ExactOnDevice` that an index tells of its pauses."""
    import gc
    import weakref

    from grace.index import device_memory, exact_device

    exact_device.CAPACITY = 4  # grows at once, and takes next to no memory
    for seed in (0, 1):
        index, requests = random_case(seed, num_ads=40)
        data = index.data
        matcher = exact_device.ExactOnDevice(
            data.tables, data.trie, data.sid_ad_offsets, data.ad_signatures, index.ad_state, "cpu",
            child_offsets=index.trie.child_offsets, subscribe=index.subscribe,
        )  # fmt: skip
        address = matcher.words.data_ptr(), matcher.root.data_ptr()
        ids = [index.ad_id(position) for position in range(index.num_ads)]
        for number, change, some in (
            (32, index.resume, ids), (3, index.pause, ids[::2]), (17, index.bid_off, ids[:10]),
            (1, index.resume, ids[:20]), (32, index.pause, ids),
        ):  # fmt: skip
            change(some)
            check_batch(index, "exact", matcher, index.trie, requests[:number])
        assert not matcher.root.any()
        assert matcher.generation == 0
        assert address == (matcher.words.data_ptr(), matcher.root.data_ptr())

        trie_bytes = device_memory.held_bytes(torch.device("cpu"), index.trie)
        held = device_memory.held_bytes(torch.device("cpu"), matcher, index.trie)
        on_host = index.trie.level_offsets.nbytes + 5 * index.num_ads
        needed = device_memory.needed_bytes(index, "exact") - device_memory.STAGING
        assert trie_bytes < held - on_host < needed + 2**14, (held, needed)

        # The index does not keep it; what is told to nobody is no error.
        gone = weakref.ref(matcher)
        del matcher
        gc.collect()
        assert gone() is None
        index.resume(ids)
