"""The benchmark of T5s on a CPU runs; that both find the same is asserted on the way."""

import gzip
import json

import pytest

from benchmarks import retrieve_t5_cpu
from benchmarks.peers.t5 import assert_alike

SMALL = ["--beams", "4", "--history", "2", "--threads", "1", "--repeats", "2", "--no-write"]


def test_it_runs(capsys, tmp_path):
    path = tmp_path / "sids.json.gz"
    sids = {str(i): [f"<{name}_{i * 37 % 200}>" for name in "abcd"] for i in range(40)}
    path.write_bytes(gzip.compress(json.dumps(sids).encode()))
    assert retrieve_t5_cpu.read(path)[11] == [11 * 37 % 200] * 4
    retrieve_t5_cpu.main([*SMALL, "--sids", str(path)])
    out = capsys.readouterr().out
    assert "4 beams, 2 items, 1 thread" in out
    assert "speedup" in out


def test_what_differs_is_noticed():
    theirs = {(0, 1): -1.0, (0, 2): -2.0}
    assert_alike({(0, 1): -1.00005, (0, 3): -2.00005}, theirs, 1e-4)
    with pytest.raises(AssertionError, match=r"scores of \(0, 1\) differ"):
        assert_alike({(0, 1): -1.1, (0, 2): -2.0}, theirs, 1e-4)
    with pytest.raises(AssertionError, match=r"only one of both finds \(0, 3\)"):
        assert_alike({(0, 1): -1.0, (0, 2): -2.0, (0, 3): -1.5}, theirs, 1e-4)
