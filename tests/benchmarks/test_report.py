"""Tables in documents come from result files: values, units, and nothing but what stands there."""

from __future__ import annotations

import pytest

from benchmarks import record, report


@pytest.fixture
def results(tmp_path):
    rows = [
        record.row("demo", "exact", "match", "ms", 0.1234, p99=2),
        record.row("demo", "valid", "match", "ms", 1234.5),
        record.row("demo", "exact", "pass rate", "rate", 0.4042,
                   reference={"value": 0.2355, "source": "GRACE 6.2"}),
        record.row("demo", "exact", "speedup", "ratio", 75.61),
        record.row("demo", "exact", "checks", "1/s", 14_400_000),
        record.row("demo", "exact", "table", "bytes", 2_500_000),
        record.row("demo", "exact", "ads", "count", 17),
        record.row("demo", "exact", "eligible_sid_rate", "rate", 1, counts={"low": 0.5}),
    ]  # fmt: skip
    record.write("toy", rows, machine="cpu", results=tmp_path)
    return tmp_path


def filled(options: str, results) -> list[str]:
    text = f"# Title\n\n<!-- report cpu/toy {options} -->\nold\n<!-- end report -->\n\nTail\n"
    document = report.fill(text, results)
    assert report.fill(document, results) == document
    assert document.startswith(f"# Title\n\n<!-- report cpu/toy {options} -->\n| ")
    assert document.endswith("\n<!-- end report -->\n\nTail\n")
    return document.splitlines()[3:-3]


def test_cells_have_units_and_references(results):
    lines = filled("rows=metric", results)
    assert lines[:-2] == [
        "| metric | exact | valid |",
        "| --- | ---: | ---: |",
        "| match | 0.123 ms | 1,234 ms |",
        "| pass rate | 40.42 % (GRACE 6.2: 23.55 %) |  |",
        "| speedup | 75.6x |  |",
        "| checks | 14.4 M/s |  |",
        "| table | 2.5 MB |  |",
        "| ads | 17 |  |",
        "| eligible_sid_rate | 100.00 % |  |",
    ]
    assert "commit" in lines[-1]


def test_options_choose_rows_columns_and_values(results):
    lines = filled("rows=variant columns=case,metric metric=match show=value,p99", results)
    assert lines[:4] == [
        "| variant | demo, match |",
        "| --- | ---: |",
        "| exact | 0.123 / 2 ms |",
        "| valid | 1,234 ms |",
    ]
    assert filled("metric=pass_rate|ads rows=metric", results)[2].startswith("| pass rate |")
    lines = filled("metric=eligible_sid_rate rows=metric", results)
    assert lines[2] == "| eligible_sid_rate | 100.00 % |"
    lines = filled("metric=eligible_sid_rate rows=metric show=value,low", results)
    assert lines[2] == "| eligible_sid_rate | 100.00 / 50.00 % |"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("colour=red", "expected rows, columns"),
        ("metric=none", "no row fits"),
        ("rows=case columns=variant", "two values for 'demo', 'exact'"),
    ],
)
def test_what_a_file_cannot_show_is_an_error(results, options, message):
    with pytest.raises(ValueError, match=message):
        filled(options, results)


def test_without_a_result_the_table_says_how_to_get_one(tmp_path):
    text = "<!-- report cpu/toy -->\n<!-- end report -->"
    assert "make bench" in report.fill(text, tmp_path)
