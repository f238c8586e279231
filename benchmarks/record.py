"""The one record format of every benchmark: `benchmarks/results/<machine>/<benchmark>.json`.

A script measures, builds rows with `row`, shows them with `show` and saves them with `write`.
Tables in docs are made from these files alone (`python -m benchmarks.report`).
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from grace.files import atomic_write

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
# Asked at the start: a benchmark may keep its threads to some cores later.
CORES = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()

UNITS = {
    "ms": "latency",
    "1/s": "throughput",
    "rate": "a share between 0 and 1: recall, pass rate, share of peak",
    "ratio": "how many times one measured value goes into another",
    "bytes": "memory",
    "bytes/s": "memory bandwidth",
    "flop/s": "arithmetic",
    "count": "how many",
}
PACKAGES = ("torch", "numpy", "pyarrow", "safetensors", "triton", "transformers", "tokenizers")


def row(
    case: str,
    variant: str,
    metric: str,
    unit: str,
    value: float,
    *,
    p20: float | None = None,
    p80: float | None = None,
    p99: float | None = None,
    n: int | None = None,
    counts: dict[str, int | float] | None = None,
    reference: dict | None = None,
) -> dict:
    """One measured value, checked.

    Args:
        case: the workload, such as `paper` or `demo`.
        variant: what was run, such as a matching mode or a backend.
        metric: what was measured. A file holds one row per (case, variant, metric).
        unit: a key of `UNITS`.
        value: the median where several were measured.
        p20: 20th percentile, like `p80` and `p99`.
        n: how many measurements stand behind `value`.
        counts: sizes of the workload or raw counts behind a rate.
        reference: `{"value", "source"}` of a figure published elsewhere, in the same unit.

    Raises:
        ValueError: on an unknown unit, a value that is not finite, negative, or a rate above 1.
    """
    if unit not in UNITS:
        raise ValueError(f"{metric}: unit must be one of {', '.join(UNITS)}, got {unit!r}")
    if reference is not None and set(reference) != {"value", "source"}:
        raise ValueError(f"{metric}: reference must hold value and source, got {sorted(reference)}")
    measured = {"value": value, "p20": p20, "p80": p80, "p99": p99}
    published = {"reference": reference["value"]} if reference is not None else {}
    for name, number in (measured | published).items():
        if number is None and name != "value":
            continue
        if number is None or not math.isfinite(number) or number < 0:
            raise ValueError(f"{metric}: {name} must be finite and not negative, got {number}")
        if unit == "rate" and number > 1:
            raise ValueError(f"{metric}: {name} is a rate and must be at most 1, got {number}")
    measured = {name: float(number) for name, number in measured.items() if number is not None}
    optional = {"n": n, "counts": counts, "reference": reference}
    return {
        "case": case,
        "variant": variant,
        "metric": metric,
        "unit": unit,
        **measured,
        **{name: given for name, given in optional.items() if given is not None},
    }


def time_calls(fn: Callable[[], object], repeats: int, warmup: int = 3) -> list[float]:
    """Wall-clock milliseconds of `repeats` calls of `fn`, after `warmup` calls that do not count.

    A function that starts work on a GPU must wait for it before it returns.
    """
    for _ in range(warmup):
        fn()
    times_ms = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        fn()
        times_ms.append((time.perf_counter_ns() - start) / 1e6)
    return times_ms


def quantiles(samples: Sequence[float]) -> dict[str, float]:
    """Median as `value`, with `p20`, `p80`, `p99` and `n`: the keyword arguments `row` takes."""
    median, p20, p80, p99 = np.quantile(np.asarray(samples, np.float64), [0.5, 0.2, 0.8, 0.99])
    return {
        "value": float(median),
        "p20": float(p20),
        "p80": float(p80),
        "p99": float(p99),
        "n": len(samples),
    }


def write(
    benchmark: str,
    rows: Sequence[dict],
    machine: str | None = None,
    results: Path = RESULTS,
    added: bool = False,
) -> Path:
    """Replace the result file of one benchmark on one machine, whole or not at all.

    Args:
        benchmark: name of the script, and of the file.
        rows: made by `row`; at least one, no (case, variant, metric) twice.
        machine: folder of the file; by default the GPU's name where there is one, else `cpu`. A
            script that uses no GPU passes `cpu`.
        results: the folder of all machines.
        added: whether some rows are of the present file; their command is then named too.

    Raises:
        ValueError: if there is no row or two rows measure the same thing.
    """
    if not rows:
        raise ValueError(f"{benchmark}: expected at least one row, got none")
    keys = [(entry["case"], entry["variant"], entry["metric"]) for entry in rows]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"{benchmark}: measured more than once: {twice}")
    path = results / (machine or machine_name()) / f"{benchmark}.json"
    command = command_line()
    if added and path.exists():
        command = f"{json.loads(path.read_text())['command']} && {command}"
    content = {
        "benchmark": benchmark,
        "command": command,
        "commit": git_commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine_facts(),
        "versions": versions(),
        "rows": list(rows),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write((json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
    return path


def write_cases(
    benchmark: str, rows: Sequence[dict], machine: str, results: Path = RESULTS
) -> Path:
    """Do what `write` does, and keep the rows of other cases, of whatever commit."""
    path = results / machine / f"{benchmark}.json"
    before = json.loads(path.read_text())["rows"] if path.exists() else []
    again = {entry["case"] for entry in rows}
    kept = [entry for entry in before if entry["case"] not in again]
    return write(benchmark, [*kept, *rows], machine, results, added=bool(kept))


def kept_rows(benchmark: str, again: Collection[str], results: Path = RESULTS) -> list[dict]:
    """Rows of the cases that are not measured again, from this machine's present result file.

    Args:
        benchmark: name of the script.
        again: cases that are measured again.
        results: the folder of all machines.

    Raises:
        ValueError: if they were measured at another commit: one file speaks of one commit.
    """
    path = results / machine_name() / f"{benchmark}.json"
    if not path.exists():
        return []
    content = json.loads(path.read_text())
    kept = [entry for entry in content["rows"] if entry["case"] not in again]
    if kept and content["commit"] != git_commit():
        raise ValueError(
            f"{path}: measured at commit {content['commit']}, now at {git_commit()}: measure all "
            "cases again, without --add"
        )
    return kept


def show(benchmark: str, rows: Sequence[dict]) -> None:
    """Print the rows as a table, published figures beside ours where there are any."""
    table = Table(title=benchmark)
    published = any("reference" in entry for entry in rows)
    for name in ("case", "variant", "metric", "unit"):
        table.add_column(name, overflow="fold")
    for name in ("median", "p20", "p80", "p99", "n"):
        table.add_column(name, justify="right")
    if published:
        table.add_column("published", overflow="fold")
    for entry in rows:
        reference = entry.get("reference")
        source = f"{format_number(reference['value'])} ({reference['source']})" if reference else ""
        numbers = [entry.get(name) for name in ("value", "p20", "p80", "p99")]
        table.add_row(
            *(entry[name] for name in ("case", "variant", "metric", "unit")),
            *("" if number is None else format_number(number) for number in numbers),
            str(entry.get("n", "")),
            *([source] if published else []),
        )
    console = Console()
    if not console.is_terminal:
        console.width = 140
    console.print(table)


def format_number(number: float) -> str:
    """Three digits that matter, or all those before the point."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def machine_name() -> str:
    """Folder name of this machine: the first GPU's, such as `h200`, or `cpu`."""
    if not torch.cuda.is_available():
        return "cpu"
    return torch.cuda.get_device_name(0).removeprefix("NVIDIA ").lower().replace(" ", "-")


def machine_facts() -> dict:
    """CPU model, cores this process may use, memory, GPUs."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].partition(":")[2].strip() if lines else model
    facts = {
        "cpu": model,
        "cores": CORES,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if torch.cuda.is_available():
        gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        facts["gpu"] = gpus[0].name
        facts["gpus"] = len(gpus)
        facts["gpu_memory_bytes"] = gpus[0].total_memory
    return facts


def versions() -> dict[str, str]:
    """Versions of Python and of those packages of `PACKAGES` that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
    return found


def git_commit() -> str:
    """Hash of the commit measured, `+` behind it where the code differs; `unknown` without git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        changed = git("status", "--porcelain", "--", ".", ":!benchmarks/results", ":!docs")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+" if changed else "")


def command_line() -> str:
    """How this process was started, as one would type it in the repository's root."""
    spec = sys.modules["__main__"].__spec__
    program = os.path.relpath(sys.argv[0], ROOT)
    if spec is not None:
        program = f"-m {spec.name.removesuffix('.__main__')}"
    return " ".join(["python", program, *(shlex.quote(argument) for argument in sys.argv[1:])])
