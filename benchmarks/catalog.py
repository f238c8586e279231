"""A public benchmark catalogue: ads with real targeting, and requests for them.

Writes `catalog.parquet`, `schema.yaml`, `requests.jsonl` and `manifest.json` to a folder; what they
are like and how they were fitted stands in docs/benchmark.md. From Python, without files:
`catalog_table`, `make_requests` and `schema`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

if __package__ in (None, ""):  # started as a script: its folder is on the path, not the root
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.generator.counts import Tally
from benchmarks.generator.people import make_requests
from benchmarks.generator.spec import SETTINGS, Spec, schema
from benchmarks.generator.table import catalog_chunks, catalog_table
from grace.files import atomic_write
from grace.progress import progress

__all__ = ["Spec", "catalog_table", "make_requests", "schema", "write_catalog"]

VERSION = 1  # of what a seed stands for
SWEEP = "0.0001,0.001,0.01,0.1,0.5,1"


def main() -> None:
    """Write a catalogue and say what it holds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ads", type=int, default=1_000_000, help="10^4 to 4·10^7 make sense")
    parser.add_argument("--places", choices=SETTINGS, default="geo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="default: runs/catalog-<ads>-<places>")
    parser.add_argument("--requests", type=int, default=1024)
    parser.add_argument("--request-places", type=int, default=64, help="places a request, at most")
    parser.add_argument(
        "--selectivity",
        nargs="?",
        const=SWEEP,
        default="",
        help=f"make a sweep with these shares of eligible ads (default {SWEEP})",
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print the manifest")
    options = parser.parse_args()
    try:
        spec = Spec(
            ads=options.ads,
            places=options.places,
            seed=options.seed,
            selectivity=tuple(map(float, filter(None, options.selectivity.split(",")))),
            request_places=options.request_places,
        )
    except ValueError as error:
        parser.error(str(error))
    kind = "-sweep" if spec.selectivity else ""
    out = options.out or Path("runs") / f"catalog-{spec.ads}-{spec.places}{kind}"
    start = time.perf_counter()
    manifest = write_catalog(spec, out, options.requests, options.workers)
    if options.json:
        print(json.dumps(manifest, indent=1))
        return
    for name, count in manifest["counts"].items():
        print(f"{name:32} {count:>14,}" if isinstance(count, int) else f"{name:32} {count:>14.4f}")
    print(f"wrote {out} in {time.perf_counter() - start:.1f} s")


def write_catalog(spec: Spec, out: Path, num_requests: int = 1024, workers: int = 1) -> dict:
    """Write the four files and return the manifest; the bytes do not depend on `workers`.

    The manifest is written last, so a folder that has one is whole.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / "manifest.json").unlink(missing_ok=True)
    tally = Tally(spec.ads)
    with (
        atomic_write(out / "catalog.parquet") as file,
        progress("making ads", spec.ads) as advance,
    ):
        writer = None
        for chunk in catalog_chunks(spec, workers=workers):
            writer = writer or _writer(file, chunk.batch.schema)
            writer.write_batch(chunk.batch, row_group_size=chunk.batch.num_rows)
            tally.add(chunk)
            advance(chunk.batch.num_rows)
        writer.close()
    requests = make_requests(spec, num_requests)
    places = [len(request["attributes"]["place"]) for request in requests]
    manifest = {
        "version": VERSION,
        **asdict(spec),
        "requests": num_requests,
        "counts": tally.finish()
        | {
            "places per request, mean": round(sum(places) / max(len(places), 1), 3),
            "places per request, most": max(places, default=0),
        },
    }
    texts = {
        "schema.yaml": yaml.safe_dump(schema(spec), sort_keys=False),
        "requests.jsonl": "".join(json.dumps(request) + "\n" for request in requests),
        "manifest.json": json.dumps(manifest, indent=1) + "\n",
    }
    for name, text in texts.items():
        with atomic_write(out / name) as file:
            file.write(text.encode())
    return manifest


def _writer(file: object, columns: pa.Schema) -> pq.ParquetWriter:
    # All but ids have few distinct values, and the place names need 2 MB of dictionary.
    dictionaries = [path for path in _leaves(columns) if path != "ad_id"]
    return pq.ParquetWriter(
        file,
        columns,
        compression="zstd",
        compression_level=1,
        use_dictionary=dictionaries,
        dictionary_pagesize_limit=8 << 20,
    )


def _leaves(columns: pa.Schema) -> list[str]:
    """Paths of a schema's Parquet columns."""
    sink = pa.BufferOutputStream()
    pq.write_table(columns.empty_table(), sink)
    layout = pq.ParquetFile(sink.getvalue()).schema
    return [layout.column(i).path for i in range(len(layout))]


if __name__ == "__main__":
    main()
