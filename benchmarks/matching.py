"""GRACE's Tables 1, 2 and 3, and what they leave out, for every matching mode in one run.

    python -m benchmarks.catalog --ads 1000000 --places uniform --requests 512
    python -m benchmarks.matching --catalog runs/catalog-1000000-uniform

All modes see one catalogue, the same requests, the same logits (`benchmarks.paper.seeded`) and the
same plan. The run checks itself first; then it prints and records the tables. Several catalogues
make several cases; one made with `--selectivity` makes a case of each share of eligible ads. With
`--demo` it also measures the recall of held-out items, for which a trained model is needed.
docs/benchmarks.md says what the numbers mean.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

if __package__ in (None, ""):  # started as a script: its folder is on the path, not the root
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np
import torch

from benchmarks import record
from benchmarks.kernels import timing
from benchmarks.paper.ads import Generated, OwnRows, expand, judge
from benchmarks.paper.check import check_exact
from benchmarks.paper.counts import count
from benchmarks.paper.figures import PLAN
from benchmarks.paper.matchers import Matching
from benchmarks.paper.rows import Case, ModeRun
from benchmarks.paper.search import Searched, Workload, search
from benchmarks.paper.seeded import SeededModel
from benchmarks.paper.show import show_case
from benchmarks.paper.trained import demo_rows
from grace.index import Index, build_index
from grace.index.info import index_info
from grace.index.unions import UNIONS

MODES = ("valid", *UNIONS, "exact")
VOCAB_SIZE = 512
FULL_SIZE = 40_000_000
STARTED = time.perf_counter()


def main() -> None:
    """Measure, print, and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    many = {"action": "append", "default": []}
    parser.add_argument("--catalog", type=Path, **many, help="may be repeated, like the next two")
    parser.add_argument("--index", type=Path, **many, help="of that catalogue; default: build one")
    parser.add_argument("--case", **many, help="default: by size and places")
    parser.add_argument("--requests", type=int, help="default: 512 on a GPU, 128 on the CPU")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, help="timed batches; default: 256, 64 on the CPU")
    parser.add_argument("--seed", type=int, default=0, help="of the logits")
    parser.add_argument("--demo", type=Path, help="folder of a `grace demo`, to measure recall")
    parser.add_argument("--add", action="store_true", help="keep other cases of the same commit")
    options = parser.parse_args()
    if not options.catalog and options.demo is None:
        parser.error("--catalog: name a folder made by benchmarks/catalog.py")
    on_gpu = options.device.startswith("cuda")
    options.requests = options.requests or (512 if on_gpu else 128)
    options.repeats = options.repeats or (256 if on_gpu else 64)
    modes = options.modes.split(",")
    if not set(modes) <= set(MODES):
        parser.error(f"--modes must be some of {', '.join(MODES)}, got {options.modes}")
    rows: list[dict] = []
    for number, folder in enumerate(options.catalog):
        index = options.index[number] if number < len(options.index) else None
        case = options.case[number] if number < len(options.case) else None
        rows += measure_catalog(folder, index, case, modes, options)
    if options.demo is None:
        say("no recall of held-out items: that takes a trained model, see --demo")
    else:
        found = list(demo_rows(options.demo, modes, options.device))
        show_case(found, "demo", as_paper=False)
        rows += found
    if options.add:
        kept = record.kept_rows("matching", {row["case"] for row in rows})
        rows = kept + rows
    print(record.write("matching", rows, added=options.add))


def measure_catalog(
    folder: Path, index_folder: Path | None, case: str | None, modes: list[str], options: object
) -> list[dict]:
    """All rows of one catalogue; prints its tables."""
    manifest = json.loads((folder / "manifest.json").read_text())
    if index_folder is None:
        index = build_index(folder / "catalog.parquet", folder / "schema.yaml")
        say(f"built an index of {index.num_ads:,} ads on {index.num_sids:,} SIDs")
    else:
        index = Index.open(index_folder)
        say(f"opened {index.num_ads:,} ads on {index.num_sids:,} SIDs")
    with (folder / "requests.jsonl").open() as file:
        requests = [json.loads(line) for line in file][: options.requests]
    workload = Workload(
        index=index,
        requests=requests,
        compiled=[index.compile(r["attributes"], r["at"]) for r in requests],
        batch=options.batch,
        plan=PLAN.limited(index.level_sizes),
        device=options.device,
    )
    name = case or case_name(manifest, options.device)
    say(f"case {name}: {len(requests)} requests of {folder}, {options.device}")
    runs = list(run_modes(workload, modes, options.repeats, options.seed))
    counts = sizes(manifest, index, workload)
    rows: list[dict] = []
    whole = Case(name, counts, compare=name == "paper")
    rows += [row for run in runs for row in whole.batch_rows(run)]
    if manifest["selectivity"]:
        for tier in manifest["selectivity"]:
            label = f"{tier:.10g}"
            asks = np.array([r["attributes"]["tier"] == label for r in requests])
            rows += Case(f"{name}, {tier:.2%} eligible", counts, False).mode_rows(runs, asks)
    else:
        rows += whole.mode_rows(runs)
    for shown in dict.fromkeys(row["case"] for row in rows):
        show_case(rows, shown, as_paper=shown == name)
    return rows


def run_modes(workload: Workload, modes: list[str], repeats: int, seed: int) -> Iterator[ModeRun]:
    """Search under every mode, then judge all ads, then time the matching."""
    index, device = workload.index, workload.device
    exact = Matching(index, "exact", device)
    check_exact(workload, exact)
    say("the exact words are what the reference and the last filter say")
    model = SeededModel(index.trie, index.data.sid_ad_offsets, VOCAB_SIZE, device, seed)
    say("the model knows the catalogue")
    offsets = index.data.sid_ad_offsets.numpy()
    parts: dict[str, dict] = {}
    for name in modes:
        began = time.perf_counter()
        part = {"levels": None, "build_s": None}
        if name in UNIONS:
            index.unions(name)
            part["build_s"] = time.perf_counter() - began
            part["levels"] = index_info(index, name).per_level
            say(f"{name}: derived its rows in {part['build_s']:.1f} s")
        matching = exact if name == "exact" else Matching(index, name, device)
        searched = search(workload, model, matching, exact)
        say(f"{name}: searched")
        part["times_ms"] = time_matching(workload, matching, searched, repeats)
        say(f"{name}: timed, median {np.median(part['times_ms']):.4g} ms")
        parts[name] = part | {"searched": searched, "ads": expand(searched.leaves, offsets)}
    del model
    positions = np.unique(np.concatenate([part["ads"].positions for part in parts.values()]))
    own = OwnRows(index, positions, device)
    for name, part in parts.items():
        generated, searched = part.pop("ads"), part["searched"]
        passed = judge(workload, generated, own)
        outcome = count(searched.leaves, generated, passed)
        if name == "exact":
            check_spent_well(searched, outcome.eligible_sids, outcome.sids)
            part["listed"] = eligible_only(workload, exact, generated, passed.final)
        say(f"{name}: judged {len(generated.positions):,} ads")
        yield ModeRun(name=name, outcome=outcome, **part)


def time_matching(
    workload: Workload, matching: Matching, searched: Searched, repeats: int
) -> list[float]:
    """Milliseconds of matching one batch, over all full batches in turn."""
    batches = workload.batches
    full = [i for i, part in enumerate(batches) if part.stop - part.start == workload.batch]
    full = full or [0]
    each = -(-repeats // len(full))
    times: list[float] = []
    for i in full:
        entered = [nodes.long() for nodes in searched.entered[i]]
        work = matching.work(workload.compiled[batches[i]], entered)
        if matching.on_gpu and matching.name == "exact":
            times += timing.event_times(work, each)  # a graph already
        elif matching.on_gpu and matching.name != "valid":
            times += timing.replay_times(work, each)
        else:
            times += record.time_calls(work, each, warmup=1)
    return times


def check_spent_well(searched: Searched, eligible_sids: np.ndarray, sids: np.ndarray) -> None:
    """Assert what `exact` promises: no beam and no SID without an eligible ad."""
    assert searched.wasted.sum() == 0, f"exact wasted {searched.wasted.sum():,} beams"
    assert (eligible_sids == sids).all(), "exact generated a SID without an eligible ad"


def eligible_only(
    workload: Workload, exact: Matching, generated: Generated, final: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Expand only ads whose word accepts; asserts that these are the filter's.

    Returns:
        int64 [R] twice, ads left per request, and accepted ones among them.
    """
    accepts = np.zeros(len(final), bool)
    for part in workload.batches:
        flat = slice(generated.offsets[part.start], generated.offsets[part.stop])
        positions = torch.from_numpy(generated.positions[flat])
        words = exact.ad_words(workload.compiled[part], positions).numpy()
        accepts[flat] = words >> (generated.requests[flat] - part.start) & 1 != 0
    assert np.array_equal(accepts, final), "an ad's word differs from the last filter"
    kept, accepted = (
        np.bincount(generated.requests[flags], minlength=len(workload.requests))
        for flags in (accepts, accepts & final)
    )
    return kept, accepted


def case_name(manifest: dict, device: str) -> str:
    """`paper` and `geo` at full size, else such as `cpu-1e6-geo`; a sweep ends in `-sweep`."""
    places, ads = manifest["places"], manifest["ads"]
    if ads == FULL_SIZE and not manifest["selectivity"]:
        return "paper" if places == "uniform" else places
    size = f"{ads:.0e}".replace("e+0", "e").replace("e+", "e")
    sweep = "-sweep" if manifest["selectivity"] else ""
    return f"{'gpu' if device.startswith('cuda') else 'cpu'}-{size}-{places}{sweep}"


def sizes(manifest: dict, index: Index, workload: Workload) -> dict[str, int | float]:
    """The counts that stand in every row."""
    made = manifest["counts"]
    per_sid = np.diff(index.data.sid_ad_offsets.numpy())
    places = [len(r["attributes"]["place"] or ()) for r in workload.requests]
    return {
        "ads": index.num_ads,
        "sids": index.num_sids,
        "ads per SID, median": int(np.median(per_sid)),
        "distinct attribute rows": made["distinct attribute rows"],
        "distinct place lists": made["distinct place lists"],
        "share with a window": made["share with a window"],
        "share with exclusions": made["share with exclusions"],
        "share paused": made["share paused"],
        "requests": len(workload.requests),
        "batch": workload.batch,
        "places per request, mean": float(np.mean(places)),
        "beams": max(workload.plan.widths),
    }


def say(what: str) -> None:
    """Progress with the seconds since the start."""
    print(f"{time.perf_counter() - STARTED:7.1f} s  {what}", flush=True)


if __name__ == "__main__":
    main()
