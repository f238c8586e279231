"""The soak, shortened: as `make soak` runs it, with fewer requests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_soak():
    done = subprocess.run(
        [sys.executable, "-m", "tests.serve.soak", "--requests", "1500"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "problems: 0" in done.stdout
    assert "rollback" in done.stdout
