"""Where does the time of a retrieval go on a CPU, stage by stage?

Made-up ads under the demo's rules, a model of the demo's size with random weights, 256 beams where
the trie allows them. A batch of requests is answered as one; its latency is the latency of each
request in it. Each call takes the next requests of a pool. Metrics:

- `total`: `Retriever.retrieve`, without a trace; checks of the requests are in it and in no stage.
- `prefill`: features to tensors, which `features` measures alone, and the encoder.
- `match`: the matcher's verdict on every prefix, before decoding.
- `decode`: all steps, model, constraint and selection.
- `filter`: SIDs to ads, their rules, the results.
- `requests`: batch size by `total`.

Random weights spread the beams over the whole trie; a trained model visits fewer prefixes.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import torch

import grace
import grace.demo
from benchmarks import record
from benchmarks.filter import SCHEMA
from grace.demo.synthetic import demo_catalog, synthetic_requests
from grace.index import MATCHERS
from grace.model import EncoderDecoder, FeatureSpec, ModelConfig

FEATURES = Path(grace.demo.__file__).with_name("features.yaml")
ROUNDS = 10  # in which modes take turns: what else the machine does meets all of them alike
POOL = 64  # distinct requests
HISTORY = 50  # events of each
CATALOGUES = {  # name → ads, levels, codes per level
    "demo size": (1_682, 3, 64),
    "100,000 ads": (100_000, 4, 256),
}
OCCUPATIONS = ("artist", "engineer", "student", "writer")
ACTIONS = tuple(f"rated_{stars}" for stars in range(1, 6))


def main() -> None:
    """Time every catalogue, batch size and mode, write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--catalogue", nargs="+", choices=CATALOGUES, default=list(CATALOGUES))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--repeats", type=int, default=200, help="calls with one request")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    rows = []
    for name in options.catalogue:
        num_ads, num_levels, num_codes = CATALOGUES[name]
        catalogue = demo_catalog(num_ads, options.seed, num_levels=num_levels, num_codes=num_codes)
        index = grace.build_index(catalogue, SCHEMA)
        requests = made_up_requests(num_ads, options.seed)
        model = made_up_model(num_levels, num_codes, requests, options.seed)
        # What made the catalogue lives on in this process, millions of objects that a retriever
        # would not hold: keep the garbage collector from visiting them.
        gc.collect()
        gc.freeze()
        for batch_size in options.batch:
            timers = [StageTimer(index, model, requests, mode, batch_size) for mode in MATCHERS]
            for _ in range(ROUNDS):
                for timer in timers:
                    timer.measure(max(5, options.repeats // ROUNDS // batch_size))
            for timer in timers:
                rows += timer.rows(f"{name}, batch {batch_size}")
    record.show("retrieve_cpu", rows)
    print(record.write("retrieve_cpu", rows, machine="cpu"))


class StageTimer:
    """Times one retriever on batches cut from a pool of requests, over and over."""

    def __init__(
        self,
        index: grace.Index,
        model: EncoderDecoder,
        requests: Sequence[dict],
        matching: str,
        batch_size: int,
    ):
        self.index, self.model, self.matching = index, model, matching
        self.retriever = grace.Retriever(index, model, matching=matching, batch_size=batch_size)
        self.batch_size = batch_size
        self.pool = cycle(requests)
        self.stages_ms: dict[str, list[float]] = {}
        self.returned_ads = 0

    def measure(self, repeats: int) -> None:
        """Time so many calls more, each whole, by stage, and the features alone."""
        for stage, call in (("total", self.retrieve), ("features", self.encode)):
            self.stages_ms.setdefault(stage, []).extend(record.time_calls(call, repeats, warmup=1))
        for _ in range(repeats):
            results = self.retriever.retrieve(self.batch(), trace=True)
            self.returned_ads = sum(result.funnel["returned_ads"] for result in results)
            for stage, time_ms in results[0].trace.stages_ms.items():
                self.stages_ms.setdefault(stage, []).append(time_ms)

    def rows(self, case: str) -> Iterator[dict]:
        """One row per stage."""
        counts = {
            "threads": torch.get_num_threads(),
            "ads": self.index.num_ads,
            "sids": self.index.num_sids,
            "generated_sids": self.retriever.plan.num_sids,
            "returned_ads": self.returned_ads,
        }
        for stage, times_ms in self.stages_ms.items():
            stats = record.quantiles(times_ms)
            yield record.row(case, self.matching, stage, "ms", **stats, counts=counts)
        totals_ms = self.stages_ms["total"]
        speeds = record.quantiles([self.batch_size / (time_ms / 1e3) for time_ms in totals_ms])
        del speeds["p99"]  # of a throughput it is the best call, not the worst
        yield record.row(case, self.matching, "requests", "1/s", **speeds)

    def retrieve(self) -> None:
        """Answer the next batch."""
        self.retriever.retrieve(self.batch())

    def encode(self) -> None:
        """Turn the features of the next batch into tensors."""
        self.model.features.encode([request["features"] for request in self.batch()], self.index)

    def batch(self) -> list[dict]:
        """The next requests of the pool."""
        return list(islice(self.pool, self.batch_size))


def made_up_requests(num_ads: int, seed: int) -> list[dict]:
    """The benchmark's people, with histories of random ads."""
    draw = np.random.default_rng([seed, 3])
    requests = synthetic_requests(POOL, num_ads, seed)
    for request in requests:
        attributes = request["attributes"]
        ads = draw.integers(1, num_ads, HISTORY, endpoint=True).tolist()
        request["features"] = {
            "age": attributes["age"],
            "gender": attributes["gender"],
            "occupation": str(draw.choice(OCCUPATIONS)),
            "history": [
                {"ad_id": ad_id, "action": str(draw.choice(ACTIONS)), "at": 3600 * hour}
                for hour, ad_id in enumerate(ads)
            ],
        }
    return requests


def made_up_model(
    num_levels: int, num_codes: int, requests: Sequence[dict], seed: int
) -> EncoderDecoder:
    """The demo's model with random weights."""
    torch.manual_seed(seed)
    features = FeatureSpec.load(FEATURES).fit([request["features"] for request in requests])
    config = ModelConfig(num_levels=num_levels, vocab_size=num_codes)
    return EncoderDecoder(config, features).eval()


if __name__ == "__main__":
    main()
