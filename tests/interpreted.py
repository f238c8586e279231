"""Triton kernels on the CPU, by Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def run_interpreted(code: str) -> None:
    """Run Python code that can import test modules and cases; what it raises fails the test.

    The interpreter is chosen when Triton is imported, so it needs a process of its own.
    """
    pytest.importorskip("triton", reason="Triton is not installed")
    paths = [str(TESTS.parent), str(TESTS), str(TESTS / "kernels"), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {
            "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join(paths),
        },
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
