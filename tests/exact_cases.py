"""Random inputs for the exact matcher's kernels, and the checks that every backend must pass."""

import numpy as np
import torch

from grace.kernels.leaf_words import leaf_words
from grace.kernels.rule_words import interval_words, value_words
from grace.kernels.segment_or import segment_or
from grace.kernels.signature_words import signature_words
from grace.kernels.words import everyone

OFFSETS = (torch.int32, torch.int64)
# Around tiles and limits of every backend; one long segment among short ones.
LENGTHS = ((0, 1, 2), (1, 1, 1, 1, 2), (0, 3, 4, 5, 31, 32, 33, 64), (1, 1, 1, 1, 1, 1, 1, 600))


def random_words(rng, size, share=0.5):
    """int32 words, the sign bit among those set; a bit is set with a chance of `share`."""
    bits = rng.random((size, 32)) < share
    packed = np.packbits(bits, axis=1, bitorder="little").view("<i4").reshape(-1)
    return torch.from_numpy(packed.astype(np.int32))


def random_offsets(rng, segments, lengths, dtype=torch.int64):
    counts = rng.choice(lengths, segments)
    return torch.from_numpy(np.cumsum([0, *counts])).to(dtype)


def random_ids(rng, size, below):
    return torch.from_numpy(rng.integers(0, below, size).astype(np.int32))


def check_segment_or(rng, backend, device, segments, lengths, dtype):
    offsets = random_offsets(rng, segments, lengths, dtype)
    words = random_words(rng, int(offsets[-1]) + 3, 0.1)
    for shift in (0, 3):
        want = segment_or(words, offsets, shift, backend="reference")
        got = segment_or(words.to(device), offsets.to(device), shift, backend=backend)
        assert torch.equal(got.cpu(), want)


def check_leaf_words(rng, backend, device, sids, lengths, dtype):
    offsets = random_offsets(rng, sids, lengths, dtype)
    ads = int(offsets[-1])
    state = torch.from_numpy(rng.choice(np.array([0, 0, 0, 1, 2, 3], np.uint8), ads))
    inputs = (random_words(rng, 50, 0.2), random_ids(rng, ads, 50), state, offsets)
    want = leaf_words(*inputs, backend="reference")
    got = leaf_words(*(tensor.to(device) for tensor in inputs), backend=backend)
    assert torch.equal(got.cpu(), want)


def check_value_words(rng, backend, device, rules, lengths, dtype):
    include = random_offsets(rng, rules, lengths, dtype)
    exclude = random_offsets(rng, rules, (0, 0, *lengths), torch.int64)
    lists = (
        include, random_ids(rng, int(include[-1]), 200),
        exclude, random_ids(rng, int(exclude[-1]), 200),
    )  # fmt: skip
    carried = random_words(rng, 200, 0.02)
    known = int(random_words(rng, 1, 0.8))
    want = value_words(*lists, carried & known, known, -1, backend="reference")
    inputs = (tensor.to(device) for tensor in (*lists, carried & known))
    got = value_words(*inputs, known, -1, backend=backend)
    assert torch.equal(got.cpu(), want)


def check_interval_words(rng, backend, device, rules, requests):
    for closed, dtype in ((True, torch.float64), (False, torch.int64)):
        # Few distinct numbers, so that requests stand on ends; around 2^53 and past it, where
        # neighbouring microseconds are one float.
        low, high = (torch.from_numpy(rng.integers(0, 9, rules)).to(dtype) for _ in range(2))
        points = torch.from_numpy(rng.integers(0, 9, requests)).to(dtype)
        if closed:
            low[::3], high[1::3], points[::5] = -torch.inf, torch.inf, torch.nan
        else:
            low, high, points = low + 2**60, high + 2**60, points + 2**60
            low[::3], high[1::3] = -(2**63), 2**63 - 1
        word = everyone(requests)
        want = interval_words(low, high, points, closed, word, backend="reference")
        inputs = (tensor.to(device) for tensor in (low, high, points))
        got = interval_words(*inputs, closed, word, backend=backend)
        assert torch.equal(got.cpu(), want)


def check_signature_words(rng, backend, device, signatures, columns, dtypes=(torch.int32,)):
    sizes = rng.integers(1, 100, columns)
    tables = [random_words(rng, size, 0.8) for size in sizes]
    matrix = torch.stack([random_ids(rng, signatures, size) for size in sizes], 1)
    want = signature_words(matrix.unbind(1), tables, backend="reference")
    for dtype in dtypes:
        typed = matrix.to(dtype).to(device)
        for asked in (typed.unbind(1), typed.t().contiguous().unbind(0)):
            got = signature_words(asked, [table.to(device) for table in tables], backend=backend)
            assert torch.equal(got.cpu(), want)


def check_all(backend, device, sizes, requests, seed=0):
    """Every kernel of one backend against the reference on the CPU."""
    rng = np.random.default_rng(seed)
    for lengths in LENGTHS:
        for dtype in OFFSETS:
            for segments in sizes:
                check_segment_or(rng, backend, device, segments, lengths, dtype)
                check_leaf_words(rng, backend, device, segments, lengths, dtype)
                check_value_words(rng, backend, device, segments, lengths, dtype)
    for number in requests:
        check_interval_words(rng, backend, device, sizes[-1], number)
    for columns in (1, 2, 7):
        dtypes = (torch.uint8, torch.int16, torch.int32)
        check_signature_words(rng, backend, device, sizes[-1], columns, dtypes)


def check_chunks(device, seed=0):
    """The Triton kernels with long segments cut up and long rules set apart."""
    from grace.kernels.leaf_words.kernel import leaf_words_triton
    from grace.kernels.rule_words.kernel import LONG, value_words_triton
    from grace.kernels.segment_or.kernel import Chunks, segment_or_triton

    rng = np.random.default_rng(seed)
    for lengths in ((0, 1, 1, 2), (1, 2, 4, 5, 36, 37), (1, 1, 1, 1, 1, 300)):
        for dtype in OFFSETS:
            offsets = random_offsets(rng, 40, lengths, dtype)
            chunks = Chunks.of(offsets, device=device)
            size = int(offsets[-1])
            words, signatures = random_words(rng, size + 1, 0.1), random_ids(rng, size, 50)
            out = torch.full((40,), -1, dtype=torch.int32, device=device)
            segment_or_triton(words.to(device), offsets.to(device), 1, out, chunks)
            assert torch.equal(out.cpu(), segment_or(words, offsets, 1, backend="reference"))

            state = torch.from_numpy(rng.choice(np.array([0, 0, 1, 2], np.uint8), size))
            words = random_words(rng, 50, 0.1)
            want = leaf_words(words, signatures, state, offsets, backend="reference")
            live = torch.where(state == 0, signatures, -1)
            for ads in ((signatures, state), (live, None)):
                inputs = (None if t is None else t.to(device) for t in (words, *ads, offsets))
                leaf_words_triton(*inputs, out, chunks, block=16)
                assert torch.equal(out.cpu(), want)

    include, exclude = (random_offsets(rng, 40, (0, 1, 63, 64, 65, 1500)) for _ in range(2))
    lists = (
        include, random_ids(rng, int(include[-1]), 200),
        exclude, random_ids(rng, int(exclude[-1]), 200),
    )  # fmt: skip
    carried = random_words(rng, 200, 0.01)
    long = (include.diff() > LONG) | (exclude.diff() > LONG)
    want = value_words(*lists, carried, -1, -1, backend="reference")
    inputs = (tensor.to(device) for tensor in (*lists, carried))
    long = torch.nonzero(long).squeeze(1).int().to(device)
    value_words_triton(*inputs, -1, -1, out, long)
    assert torch.equal(out.cpu(), want)


def check_masks(device, seed=0):
    """Rules over exactly 64 values, one of them the sign bit, as bits."""
    from grace.index.batch import Batch
    from grace.index.device_rules import DeviceMasks
    from grace.index.rules import ValueRules
    from grace.kernels.words import everyone

    rng = np.random.default_rng(seed)
    include, exclude = (random_offsets(rng, 600, (0, 0, 1, 3, 64)) for _ in range(2))
    lists = []
    for bounds in (include, exclude):
        bounds = bounds - bounds[1].clone()  # rule 0 has no values
        bounds[0] = 0
        lists += [bounds, random_ids(rng, int(bounds[-1]), 64)]
    rules = DeviceMasks(3, ValueRules(None, *lists), torch.device(device))
    for number in (1, 17, 32):
        words = random_words(rng, 64, 0.1) & everyone(number)
        carried = torch.nonzero(words).squeeze(1).int()
        known = int(np.bitwise_or.reduce(words.numpy())) | (1 << 3) & everyone(number)
        batch = Batch(
            everyone(number), np.full(5, known, np.int32), np.empty((5, number)),
            np.zeros(number, np.int64),
            ((),) * 3 + ((carried.numpy(), words[carried.long()].numpy()),),
        )  # fmt: skip
        forms = rules.forms(0) | dict.fromkeys(("everyone", "num_requests"), (torch.int32, (1,)))
        host = {name: torch.zeros(shape, dtype=dtype) for name, (dtype, shape) in forms.items()}
        host["everyone"][0], host["num_requests"][0] = batch.everyone, number
        rules.fill(host, batch)
        rules.enqueue({name: tensor.to(device) for name, tensor in host.items()})
        want = value_words(*lists, words, known, batch.everyone, backend="reference")
        assert torch.equal(rules.words.cpu(), want)


def check_matcher(device, seeds=(0, 1, 2, 3), batches=(1, 2, 15, 16, 17, 31, 32)):
    """`ExactOnDevice` against `ExactMatcher`, through pauses and batches of other sizes."""
    from harness import build
    from strategies import Case

    from grace.index.batch import Batch
    from grace.index.eligible import eligible_ads
    from grace.index.exact import ExactMatcher
    from grace.index.exact_device import ExactOnDevice

    shapes = ("uniform", "dense", "few", "one")
    for seed in seeds:
        # More values than a mask has bits in every other case.
        case = Case(
            seed=seed, num_ads=60, num_requests=32, shape=shapes[seed % 4],
            num_places=60 if seed % 2 else 2000,
        )  # fmt: skip
        index = build(case)
        data, state = index.data, torch.zeros(index.num_ads, dtype=torch.uint8)
        arrays = (data.tables, data.trie, data.sid_ad_offsets, data.ad_signatures, state)
        requests = [index.compile(r["attributes"], r["at"]) for r in case.requests]
        host = ExactMatcher(*arrays)
        for postings in (True, False):
            matcher = ExactOnDevice(*arrays, device=device, postings=postings)
            for number in batches:
                changed = np.random.default_rng(number).integers(0, index.num_ads, 20)
                state[changed] = torch.randint(0, 4, (20,)).byte()
                matcher.state_changed(changed)
                want, got = (m.start(requests[:number]) for m in (host, matcher))
                if matcher.ready is not None:
                    torch.cuda.current_stream().wait_event(matcher.ready)
                assert torch.equal(got.words.cpu(), want.words)
                assert torch.equal(got.root.cpu(), want.root)
                batch = Batch.of(requests[:number], len(data.tables.rules))
                sids = torch.arange(-1, index.num_sids).repeat(number, 1)
                ads = (data.ad_signatures, state, data.sid_ad_offsets)
                want = eligible_ads(sids, host.signature_words(batch), *ads)
                ads = (matcher.live_signatures, None, matcher.sid_ad_offsets)
                got = eligible_ads(sids.to(device), matcher.signature_words, *ads)
                for name, tensor in vars(got).items():
                    assert torch.equal(tensor.cpu(), getattr(want, name)), name
