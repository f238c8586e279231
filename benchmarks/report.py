"""Fill the tables of README.md and docs/ from the result files, and from nothing else.

A table stands between two comments, the first of which says what it shows:

    <!-- report cpu/filter rows=case columns=variant -->
    <!-- end report -->

`rows` and `columns` name fields of the record format (`case`, `variant`, `metric`) whose values
become rows and columns, several joined by a comma; `case=`, `variant=` and `metric=` keep only the
rows with that value (any of several, separated by `|`; `_` stands for a space); `show=value,p99`
says what a cell holds, numbers of the row or of its counts in its unit. Below each table stand the
machine, commit, date and command of its file.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import record
from grace.files import atomic_write

BLOCK = re.compile(
    r"(?P<start><!-- report (?P<file>\S+)(?P<options>[^>]*) -->\n).*?(?P<end><!-- end report -->)",
    re.DOTALL,
)
FIELDS = ("case", "variant", "metric")
OPTIONS = ("rows", "columns", "show", *FIELDS)


def main() -> None:
    """Rewrite the documents, or only say which are out of date."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if out of date")
    options = parser.parse_args()
    paths = [record.ROOT / "README.md", *sorted((record.ROOT / "docs").glob("*.md"))]
    texts = {path: path.read_text() for path in paths if path.exists()}
    try:
        filled = {path: fill(text) for path, text in texts.items()}
    except ValueError as error:  # before anything is written
        sys.exit(f"error: {error}")
    stale = [path for path in texts if filled[path] != texts[path]]
    for path in stale if not options.check else ():
        with atomic_write(path) as file:
            file.write(filled[path].encode())
    print("\n".join(str(path.relative_to(record.ROOT)) for path in stale) or "all up to date")
    sys.exit(1 if stale and options.check else 0)


def fill(text: str, results: Path = record.RESULTS) -> str:
    """The document with every table made anew.

    Raises:
        ValueError: if a comment asks for something that there is not.
    """

    def replace(block: re.Match) -> str:
        body = table(block["file"], parse_options(block["file"], block["options"]), results)
        return f"{block['start']}{body}\n{block['end']}"

    return BLOCK.sub(replace, text)


def parse_options(name: str, text: str) -> dict[str, str]:
    """`key=value` words, checked."""
    options = {"rows": "case", "columns": "variant", "show": "value"}
    for word in text.split():
        key, _, value = word.partition("=")
        if key not in OPTIONS or not value:
            raise ValueError(f"report {name}: expected {', '.join(OPTIONS)} with =, got {word!r}")
        options[key] = value.replace("_", " ")
    return options


def table(name: str, options: dict[str, str], results: Path) -> str:
    """A Markdown table of one result file, with where it was measured below."""
    path = results / f"{name}.json"
    if not path.exists():
        target = "bench" if name.startswith("cpu/") else "bench-gpu"
        return f"Not measured yet: `make {target}`."
    content = json.loads(path.read_text())
    rows = [
        row
        for row in content["rows"]
        if all(
            row[field].replace("_", " ") in options[field].split("|")
            for field in FIELDS
            if field in options
        )
    ]
    if not rows:
        raise ValueError(f"report {name}: no row fits {options}")
    row_fields, column_fields = options["rows"].split(","), options["columns"].split(",")
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        label = ", ".join(row[field] for field in row_fields)
        column = ", ".join(row[field] for field in column_fields)
        line = cells.setdefault(label, {})
        if column in line:
            raise ValueError(f"report {name}: two values for {label!r}, {column!r}")
        line[column] = cell(row, options["show"].split(","))
    columns = list(dict.fromkeys(column for line in cells.values() for column in line))
    lines = [
        [", ".join(row_fields), *columns],
        ["---", *("---:" for _ in columns)],
        *([label, *(line.get(column, "") for column in columns)] for label, line in cells.items()),
    ]
    markdown = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{markdown}\n\n{provenance(content)}"


def cell(row: dict, show: Sequence[str]) -> str:
    """Such as `0.12 ms`, `8.1 / 9.9 ms`, `40.42 %`, `75.6x`, with a published figure behind it."""
    factor, unit = shown_unit(row["value"], row["unit"])
    known = row.get("counts", {}) | row
    numbers = [format_value(known[name] * factor, row["unit"]) for name in show if name in known]
    text = f"{' / '.join(numbers)}{unit}"
    if "reference" not in row:
        return text
    reference = row["reference"]
    published = format_value(reference["value"] * factor, row["unit"])
    return f"{text} ({reference['source']}: {published}{unit})"


def shown_unit(value: float, unit: str) -> tuple[float, str]:
    """What values are multiplied by before they are shown, and what follows them."""
    if unit in ("1/s", "bytes") and value >= 1e6:
        return 1e-6, {"1/s": " M/s", "bytes": " MB"}[unit]
    if unit == "bytes/s":
        return 1e-9, " GB/s"
    return {"rate": (100, " %"), "ratio": (1, "x"), "count": (1, "")}.get(unit, (1, f" {unit}"))


def format_value(value: float, unit: str) -> str:
    """Percentages with two digits behind the point, all else with three that matter."""
    return f"{value:.2f}" if unit == "rate" else record.format_number(value)


def provenance(content: dict) -> str:
    """Where, when and how a file was measured."""
    machine, versions = content["machine"], content["versions"]
    commit = content["commit"]
    commit = commit[:12] + ("+ (with changes)" if commit.endswith("+") else "")
    gpus = f"{machine['gpus']} x {machine['gpu']}, " if "gpu" in machine else ""
    return (
        f"{gpus}{machine['cpu']}, {machine['cores']} cores; Python {versions['python']}, torch "
        f"{versions['torch']}; commit {commit}, {content['date'][:10]}; "
        f"`{content['command']}`"
    )


if __name__ == "__main__":
    main()
