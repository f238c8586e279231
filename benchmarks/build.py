"""How fast an index is built and changed, and what it takes.

    python -m benchmarks.build                      # the trie alone, beside a numpy builder
    python -m benchmarks.build --catalog DIR        # also `grace index build` of a catalogue there
                                                    # and a delta of 100,000 changed ads

The trie: N random SIDs of four tokens below 512, sorted beforehand, built by Grace and by
`benchmarks.static_trie`, in turns, in one process; both hold the same transitions, which is
checked. The catalogue is one of `benchmarks.catalog`; its build is a process of its own, measured
by `/usr/bin/time -v`, whose output is kept beside the results.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import record
from benchmarks.catalog import Spec, catalog_table
from benchmarks.static_trie import build_static_trie
from grace import _native
from grace.index.trie import build_trie

VOCAB_SIZE, NUM_LEVELS = 512, 4
DELTA = {"new": 20_000, "changed": 60_000, "removed": 20_000}


def main() -> None:
    """Measure, print, and replace the result file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sids", type=int, default=10_000_000, help="random SIDs of the trie")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--catalog", type=Path, help="folder made by benchmarks/catalog.py")
    options = parser.parse_args()
    rows = trie_rows(options.sids, options.repeats, options.workers)
    if options.catalog is not None:
        rows += catalog_rows(options.catalog, options.workers)
    record.show("build", rows)
    record.write("build", rows, machine="cpu")


def trie_rows(num_sids: int, repeats: int, workers: int) -> list[dict]:
    """Time both builders on the same sorted SIDs."""
    random = np.random.default_rng(0)
    drawn = random.integers(0, VOCAB_SIZE, (num_sids, NUM_LEVELS), np.int32)
    ids = np.arange(num_sids)
    order = _native.sort_by_integer_id(drawn, ids, workers)
    sids = drawn[order]
    sids = sids[np.r_[True, (sids[1:] != sids[:-1]).any(1)]]
    trie, _ = build_trie(sids)
    static = build_static_trie(sids, VOCAB_SIZE)
    first = trie.level_sizes[1]
    # Transitions after the first token: the same tokens, level by level, in the same order.
    assert np.array_equal(trie.child_tokens.numpy()[first:], static.transitions[:-VOCAB_SIZE, 0])
    counts = {"sids": len(sids), "levels": NUM_LEVELS, "vocab": VOCAB_SIZE, "workers": workers}
    case = f"trie, {num_sids:,} random SIDs"
    times = {
        "grace": record.time_calls(lambda: build_trie(sids, None, workers), repeats, 1),
        "grace, 1 thread": record.time_calls(lambda: build_trie(sids, None, 1), repeats, 1),
        "numpy (STATIC's form)": record.time_calls(
            lambda: build_static_trie(sids, VOCAB_SIZE), repeats, 1
        ),
        "grace, sorting included": record.time_calls(
            lambda: build_trie(
                drawn, _native.sort_by_integer_id(drawn, ids, workers), workers
            ),
            repeats,
            1,
        ),
    }  # fmt: skip
    rows = [
        record.row(case, variant, "latency", "ms", **record.quantiles(samples), counts=counts)
        for variant, samples in times.items()
    ]
    ours = sum(array.numel() * array.element_size() for array in list(vars(trie).values())[:3])
    rows.append(record.row(case, "grace", "memory", "bytes", ours))
    rows.append(record.row(case, "numpy (STATIC's form)", "memory", "bytes", static.num_bytes))
    return rows


def catalog_rows(folder: Path, workers: int) -> list[dict]:
    """Build an index from a generated catalogue, then apply a delta, each in its own process."""
    size = (folder / "catalog.parquet").stat().st_size
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        out, changes = Path(scratch) / "index", Path(scratch) / "changes"
        grace = [sys.executable, "-m", "grace", "index"]
        build = [
            *grace, "build", "--catalog", str(folder / "catalog.parquet"),
            "--schema", str(folder / "schema.yaml"), "--out", str(out), "--workers", str(workers),
        ]  # fmt: skip
        rows = timed_rows("index build", build, workers, {"parquet_bytes": size})
        changes.mkdir()
        write_delta(folder, changes / "000001.parquet")
        watch = [
            *grace, "watch", "--index", str(out), "--changes", str(changes), "--once",
            "--workers", str(workers),
        ]  # fmt: skip
        return rows + timed_rows("delta of 100,000 ads", watch, workers, DELTA)


def write_delta(folder: Path, path: Path) -> None:
    """Write new, changed and removed ads for a generated catalogue.

    Ads past the catalogue's end are new, or lend their SIDs and rules to ads that change.
    """
    facts = json.loads((folder / "manifest.json").read_text())
    num_ads = facts["counts"]["ads"]
    spec = Spec(ads=num_ads + DELTA["new"] + DELTA["changed"], places=facts["places"],
                seed=facts["seed"])  # fmt: skip
    table = catalog_table(spec, num_ads)
    touched = np.linspace(1, num_ads, DELTA["changed"] + DELTA["removed"]).astype(np.int64)
    changed, removed = touched[: DELTA["changed"]], touched[DELTA["changed"] :]
    ids = np.concatenate([table["ad_id"].to_numpy()[: DELTA["new"]], changed])
    table = table.set_column(table.schema.get_field_index("ad_id"), "ad_id", pa.array(ids))
    gone = pa.table({"ad_id": removed, "removed": np.ones(len(removed), bool)})
    pq.write_table(pa.concat_tables([table, gone], promote_options="default"), path)


def timed_rows(case: str, command: list[str], workers: int, counts: dict) -> list[dict]:
    """Run a command under `/usr/bin/time -v`; keep its log, return its time and peak memory."""
    print("$", " ".join(command), flush=True)
    done = subprocess.run(
        ["/usr/bin/time", "-v", *command], capture_output=True, text=True, cwd=record.ROOT
    )
    sys.stderr.write(done.stdout + done.stderr)
    if done.returncode != 0:
        raise SystemExit(f"{case} failed")
    log = record.RESULTS / "cpu" / f"build-{case.split()[0]}.log"
    log.write_text(re.sub(r"\"[^\"]*\"", '"..."', done.stderr) + done.stdout)
    clock = re.search(r"Elapsed.*: ([\d:.]+)", done.stderr).group(1)
    seconds = sum(float(part) * 60**i for i, part in enumerate(reversed(clock.split(":"))))
    peak = int(re.search(r"Maximum resident set size \(kbytes\): (\d+)", done.stderr).group(1))
    counts = counts | {"workers": workers}
    return [
        record.row(case, "grace", "latency", "ms", seconds * 1e3, n=1, counts=counts),
        record.row(case, "grace", "memory", "bytes", peak * 1024),
    ]


if __name__ == "__main__":
    main()
