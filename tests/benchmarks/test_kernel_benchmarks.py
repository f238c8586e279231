"""The kernel benchmarks run, on a CPU at tiny sizes; their checks are asserted on the way."""

import pytest

from benchmarks.kernels.__main__ import BENCHMARKS, SMALL


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_runs_at_tiny_sizes(name, capsys):
    BENCHMARKS[name].main([*SMALL, "--device=cpu"])
    assert "latency" in capsys.readouterr().out
