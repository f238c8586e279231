"""A small case of decoding on a GPU that uses every kernel once, for NVIDIA's compute-sanitizer.

    compute-sanitizer --tool memcheck python tests/sanitize_decode.py
    compute-sanitizer --tool racecheck python tests/sanitize_decode.py
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer python tests/sanitize_decode.py --eager

The last one runs without graphs, each tensor in an allocation of its own, so that memcheck notices
what is read beyond it; the others see what graphs replay. Nothing is tuned: a sanitizer slows
kernels down a hundredfold. A run without one fills Triton's cache first.
"""

import argparse

import torch
from decode_cases import (
    TOLERANCES,
    FixedLogits,
    Search,
    assert_agree,
    assert_identical,
    assert_same_beams,
    context_of,
    index_of,
    model_of,
    plan_of,
)

from grace.decode.beams import Beams
from grace.decode.step_search import StepSearch
from grace.decode.steps import StepBuffers
from grace.index import MATCHERS
from grace.index.on_device import DeviceIndex
from grace.kernels.tuning import pinned
from grace.model import projection

SIZES = {"model_dim": 32, "num_heads": 2, "head_dim": 32, "ffn_dim": 32, "num_context_tokens": 20}


class EagerSearch(StepSearch):
    """Without graphs."""

    def _capture_all(self):
        for bucket in self.buckets:
            self._buffers[bucket] = StepBuffers.allocate(bucket, self.plan, self._device)

    @torch.inference_mode()
    def run(self, context, lengths=None, trace=False):
        batch = len(context)
        bucket = next(b for b in self.buckets if b >= batch)
        self.decoder.load(self._memory, context, lengths)
        self._admit(batch, bucket)
        self._enqueue(bucket)
        return Beams.of(self._buffers[bucket], self._vocab_size, batch, trace)


def check_search(index, requests, matching, precision, **options):
    """Two buckets, the larger one not full the second time, over garbage."""
    model = model_of(index, vocab_size=index.vocab_size + 16 - index.vocab_size % 16, **SIZES)
    plan = plan_of(index.trie, 8)
    here, there = (
        Search(index, model, plan, device, matching, precision, 2, **options)
        for device in ("cpu", "cuda")
    )
    ragged = options.get("ragged", False)
    for batch in (2, 1):
        context = context_of(model, batch)
        lengths = torch.tensor([7, 20][:batch], dtype=torch.int32) if ragged else None
        there.poison()
        found = there.run(requests[:batch], context, lengths)
        again = there.run(requests[:batch], context, lengths)
        assert_same_beams(found, again)
        wanted = here.run(requests[:batch], context, lengths)
        assert_agree(index.trie, found, wanted, TOLERANCES[precision])


def check_selection(index, requests, matching):
    """Selection from given logits, with holes and NaN, bit for bit."""
    plan = plan_of(index.trie, 8)
    results = []
    for device in ("cpu", "cuda"):
        there = DeviceIndex(index, device, matching)
        fixed = FixedLogits(there.trie, plan, 2, there.matcher, "holes")
        if there.matcher is not None:
            there.matcher.start(requests[:2])
        fixed.poison()
        fixed.enqueue()
        results.append(fixed.results())
    assert_identical(results[1], results[0])


def ours(candidates):
    """Our own kernels where there is a choice."""
    mine = [c for c in candidates if c == "triton" or c[0] == "triton"]
    return (mine or candidates)[0]


def main():
    """Run all of it once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--eager", action="store_true", help="no graphs")
    eager = parser.parse_args().eager
    if eager:
        import decode_cases

        decode_cases.StepSearch = EagerSearch
    projection.LEAST_FP8_FLOPS = 1
    index, requests = index_of(1, num_levels=3, vocab=13, num_ads=60, num_requests=2, rule_rate=0.3)
    with pinned(ours):
        for matching in MATCHERS:
            print(f"selection and search: {matching}", flush=True)
            check_selection(index, requests, matching)
            check_search(index, requests, matching, "bfloat16")
        for precision, options in (
            ("float8", {}), ("bfloat16", {"ragged": True}), ("float32", {"ragged": True}),
            ("bfloat16", {"table_bytes": 10_000}), ("float8", {"table_bytes": 1 << 30}),
        ):  # fmt: skip
            print(f"search: {precision} {options}", flush=True)
            check_search(index, requests, "exact", precision, **options)
    with pinned():
        print("search: cuBLAS", flush=True)
        check_search(index, requests, "exact", "bfloat16")
        check_search(index, requests, "exact", "float8")
    torch.cuda.synchronize()
    print("done")


if __name__ == "__main__":
    main()
