"""docs/runtime.md: its example runs as printed."""

import json
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "runtime.md"


def test_the_example_answers_every_item(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)
    assert [item["answer"] for item in names["items"]] == [n * n for n in range(40)]
    events = json.loads(Path("timeline.json").read_text())["traceEvents"]
    batches = {e["args"]["batch"] for e in events if e["ph"] == "X"}
    assert batches == {0, 1, 2}
