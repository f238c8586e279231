"""How much faster does Grace retrieve with a T5 on a CPU than transformers' own `generate`?

TIGER's sizes and a catalogue of Amazon Beauty's: 12,101 items, SIDs of 4 levels of 256 codes, drawn
at random unless a file holds some; random weights, saved in one folder that both open. One request
at a time, the same number of beams at every step. Both must return the same SIDs, and scores that
differ by less than 1e-4, before anything is timed.

- `grace`: `Retriever.retrieve`, whole: features, encoder, search inside the trie, ads.
- `transformers`: `T5ForConditionalGeneration.generate` alone, unmodified, with its cache and a
  `prefix_allowed_tokens_fn` over a dict from prefix to its tokens; its inputs are made beforehand.

Both take turns, some calls each.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import tempfile
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import numpy as np
import torch

import grace
from benchmarks import record
from benchmarks.filter import SCHEMA
from benchmarks.peers.t5 import HuggingFaceT5, assert_alike
from grace.model.t5 import T5, T5Config, TokenMap, save_hf
from grace.model.t5.features import HistoryFeatures

CODES = (256,) * 4
USERS = 2000
TOLERANCE = 1e-4
POOL = 8  # distinct requests
ROUNDS = 5  # in which both take turns: what else the machine does meets them alike


def main(arguments: list[str] | None = None) -> None:
    """Check that both agree, time them, write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--items", type=int, default=12_101)
    parser.add_argument("--sids", type=Path, help='.json.gz, {item: ["<a_5>", ...]}, as LETTER\'s')
    parser.add_argument("--beams", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--history", type=int, nargs="+", default=[8, 20], help="items")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of torch")
    parser.add_argument("--repeats", type=int, default=40, help="timed calls of each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-write", action="store_true", help="leave the result file alone")
    options = parser.parse_args(arguments)

    sids = drawn(options.items, options.seed) if options.sids is None else read(options.sids)
    catalogue = [{"ad_id": i, "sid": sid, "rules": {}} for i, sid in enumerate(sids)]
    index = grace.build_index(catalogue, SCHEMA)
    tokens = TokenMap.of(CODES, USERS)
    torch.manual_seed(options.seed)
    model = T5(T5Config(vocab_size=tokens.vocab_size), tokens, max(options.history)).eval()
    with tempfile.TemporaryDirectory() as folder:
        save_hf(model, folder)
        other = HuggingFaceT5(folder, index)
        gc.collect()
        gc.freeze()  # what made the catalogue would be no part of a server
        rows = []
        for threads in options.threads:
            torch.set_num_threads(threads)
            for items in options.history:
                for beams in options.beams:
                    rows += measure(index, folder, other, beams, items, options)
        gc.unfreeze()
    record.show("retrieve_t5_cpu", rows)
    if not options.no_write:
        print(record.write("retrieve_t5_cpu", rows, machine="cpu"))


def measure(
    index: grace.Index,
    folder: str,
    other: HuggingFaceT5,
    beams: int,
    items: int,
    options: argparse.Namespace,
) -> Iterator[dict]:
    """Rows of one number of beams and items: both variants, and how many times faster Grace is."""
    plan = grace.BeamPlan((1, *[beams] * (index.num_levels - 1)), beams)
    retriever = grace.Retriever(index, folder, plan, "valid", batch_size=1)
    features = HistoryFeatures(other.tokens, max(options.history))
    draw = np.random.default_rng([options.seed, items])
    pool = []
    for i in range(POOL):
        history = draw.integers(0, index.num_ads, items).tolist()
        request = {"id": i, "features": {"history": history, "user": i}}
        inputs, _ = features.encode([request["features"]], index)
        ids = inputs["input_ids"][inputs["mask"]][None]  # alone, it needs no padding
        pool.append((request, ids, torch.ones_like(ids, dtype=torch.bool)))
    for request, *inputs in pool:
        mine = dict(retriever.retrieve([request])[0].sids)
        assert_alike(mine, other.generate(*inputs, beams).found(0), TOLERANCE)
    turns = cycle(pool), cycle(pool)
    calls = {
        "grace": lambda: retriever.retrieve([next(turns[0])[0]]),
        "transformers": lambda: other.generate(*next(turns[1])[1:], beams),
    }
    times_ms: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times_ms[name] += record.time_calls(call, max(1, options.repeats // ROUNDS), warmup=1)
    threads = torch.get_num_threads()
    case = f"{beams} beams, {items} items, {threads} thread{'s' if threads > 1 else ''}"
    counts = {"threads": threads, "beams": beams, "items": items, "sids": index.num_sids}
    stats = {name: record.quantiles(times) for name, times in times_ms.items()}
    for name, quantiles in stats.items():
        yield record.row(case, name, "latency", "ms", **quantiles, counts=counts)
    ratio = stats["transformers"]["value"] / stats["grace"]["value"]
    yield record.row(case, "speedup", "latency", "ratio", ratio)


def drawn(items: int, seed: int) -> list[list[int]]:
    """Random SIDs; a few items may share one."""
    draw = np.random.default_rng(seed)
    return np.stack([draw.integers(0, size, items) for size in CODES], 1).tolist()


def read(path: Path) -> list[list[int]]:
    """SIDs of a file in LETTER's form, by item."""
    content = json.loads(gzip.decompress(path.read_bytes()))
    return [
        [int(token.strip("<>").partition("_")[2]) for token in content[item]]
        for item in sorted(content, key=int)
    ]


if __name__ == "__main__":
    main()
