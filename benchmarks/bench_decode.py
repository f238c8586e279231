"""How long does decoding take on a GPU, and which step of the work brings what (GRACE, Table 6)?

All L steps of a search, as replays of one CUDA graph between events on its stream: random weights,
random contexts, random SIDs, rules and requests drawn at the paper's sizes
(`benchmarks.exact_arrays`), or an index and its catalogue. The encoder, and the projection of the
context to keys and values, come before and are not timed. Before a variant is timed, it must find
what the plain path finds in float32, up to what rounding decides at a step's cut.

- `paper`: GRACE's shape. `no-matching` is the trie alone; `exact` reads the exact matcher's words,
  and the matcher's own work, begun with the loop, is in its time (beside it the time of the loop
  whose words are there before, as they are where matching runs beside an encoder);
  `bitmask+bloom` tests unions in the loop, 64 places a request (the root's test and the copy of
  what requests ask for come before). `paper fixed` has GRACE's fixed beams, dead ones included;
  `paper batch 1` one request.
- `levels`: Table 6, switched on one by one. L0 to L4 have fixed beams, D0 dynamic ones, all six
  without a trie and with `torch.topk` over all tokens: L0 attends through FlashAttention, with the
  context copied for every beam (before the loop) and beams' keys and values moved at each step, L1
  lets beams be queries, L2 has our self-attention over the dense cache, L3 the fused one, L4 paged
  blocks. From D1 on beams stay in the trie; D2 tests bitmasks, D3 Bloom filters too. Then exact
  matching, its own work counted, prefix tables, FP8.
- `sweeps`: GRACE's shape without matching, one size changed at a time (`batch 4`, `vocab 2048`).
- `profile`: the kernels of a replay by the part of the work that they belong to, and what each part
  takes at least at the speeds that a large copy and large products reach here.

MFU is equation 15, of 989 TFLOP/s in any precision; FLOPs are counted from the sizes.

    python -m benchmarks.bench_decode --parts paper
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from benchmarks import record
from benchmarks.decode.ladder import ladder_rows
from benchmarks.decode.paper import NO_TABLES, PAPER, paper_rows
from benchmarks.decode.profile import profile_rows
from benchmarks.decode.searches import num_cores
from benchmarks.decode.shape import read_shape, small_shape
from benchmarks.decode.sweeps import SMALL, SWEEPS, sweep_rows
from benchmarks.decode.world import drawn_world, opened_world

PARTS = ("paper", "levels", "sweeps", "profile")
SIDS = 30_000_000
SMALL_SCALE = 1e-4


@torch.inference_mode()
def main(arguments: Sequence[str] | None = None) -> list[dict]:
    """Check and time the parts, show their rows, save them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--replays", type=int, default=500, help="of the case `paper`")
    parser.add_argument("--scale", type=float, default=1.0, help="of the paper's catalogue")
    parser.add_argument("--index", type=Path, help="search this index instead of drawn arrays")
    parser.add_argument("--catalog", type=Path, help="what it was built from, for its requests")
    parser.add_argument(
        "--sweeps", nargs="+", choices=SWEEPS, default=list(SWEEPS), help="of the part `sweeps`"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="tiny sizes, nothing saved")
    parser.add_argument("--add", action="store_true", help="keep other cases of the same commit")
    options = parser.parse_args(arguments)
    parts = options.parts.split(",")
    if not set(parts) <= set(PARTS):
        parser.error(f"--parts must be some of {', '.join(PARTS)}, got {options.parts}")
    if (options.index is None) != (options.catalog is None):
        parser.error("--index and --catalog go together")
    device = "cuda" if torch.cuda.is_available() and not options.small else "cpu"
    if options.add:
        record.kept_rows("decode", ())  # refuses another commit's file before anything is measured

    measure = Parts(options, device)
    rows: list[dict] = []
    try:
        for part in parts:
            began = time.perf_counter()
            for row in getattr(measure, part)():
                rows.append(row)
            print(f"{part}: {time.perf_counter() - began:.0f} s", flush=True)
    finally:  # what is measured stays, even if a later part fails
        if rows:
            record.show("decode", rows)
            if not options.small:
                again = {row["case"] for row in rows}
                kept = record.kept_rows("decode", again) if options.add else []
                print(record.write("decode", [*kept, *rows], added=options.add))
    return rows


class Parts:
    """What can be measured; the catalogue is made once, for whichever part asks first."""

    def __init__(self, options: argparse.Namespace, device: str):
        self._options, self._device = options, device
        self._shape = small_shape if options.small else read_shape
        self._replays = 3 if options.small else options.replays
        self._world = None

    @property
    def world(self) -> object:
        """The catalogue."""
        if self._world is None:
            began = time.perf_counter()
            options, device = self._options, self._device
            batch = self._shape("dynamic").batch
            if options.index is not None:
                self._world = opened_world(
                    options.index, options.catalog, batch, device, num_cores()
                )
            else:
                scale = SMALL_SCALE if options.small else options.scale
                self._world = drawn_world(scale, batch, options.seed, device, num_cores())
            print(f"{self._world.counts}, {time.perf_counter() - began:.1f} s", flush=True)
        return self._world

    def paper(self) -> Iterable[dict]:
        """Rows of the cases `paper`, `paper fixed` and `paper batch 1`."""
        dynamic, fixed = self._shape("dynamic"), self._shape("fixed")
        return paper_rows(self.world, dynamic, fixed, self._replays, self._options.seed)

    def levels(self) -> Iterable[dict]:
        """Rows of Table 6, and of what Grace has beyond it."""
        dynamic, fixed = self._shape("dynamic"), self._shape("fixed")
        replays = -(-self._replays // 5)
        return ladder_rows(self.world, dynamic, fixed, replays, self._options.seed)

    def sweeps(self) -> Iterable[dict]:
        """Rows of the sweeps that are asked for."""
        options = self._options
        points = {name: (SMALL if options.small else SWEEPS)[name] for name in options.sweeps}
        num_sids = 3000 if options.small else int(SIDS * options.scale)
        replays = -(-self._replays // 8)
        middle = self._shape("dynamic")
        return sweep_rows(middle, points, num_sids, replays, options.seed, self._device)

    def profile(self) -> Iterable[dict]:
        """Rows of where the time goes, in bfloat16 and in FP8."""
        names = ("no-matching" + NO_TABLES, "no-matching", "exact+fp8" + NO_TABLES, "exact+fp8")
        chosen = [variant for variant in PAPER if variant.name in names]
        replays = -(-self._replays // 5)
        return profile_rows(self.world, self._shape("dynamic"), chosen, replays, self._options.seed)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # what is measured is written
    main()
