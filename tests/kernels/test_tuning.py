"""Choices between ways to run a kernel: defaults, pins, and what the disk remembers."""

import json

import pytest
import torch

from grace.kernels import tuning

CANDIDATES = [["slow", 4], ["broken", 1], ["fast", 2]]
CPU = torch.device("cpu")


def test_a_cpu_gets_the_first_and_runs_nothing():
    assert tuning.choose("test", (1,), CANDIDATES, pytest.fail, CPU) == ["slow", 4]


def test_a_pin_chooses_inside_its_block():
    with tuning.pinned(lambda candidates: candidates[-1]):
        assert tuning.choose("test", (1,), CANDIDATES, pytest.fail, CPU) == ["fast", 2]
        with tuning.pinned():
            assert tuning.choose("test", (1,), CANDIDATES, pytest.fail, CPU) == ["slow", 4]
        assert tuning.choose("test", (1,), CANDIDATES, pytest.fail, CPU) == ["fast", 2]
    assert tuning.choose("test", (1,), CANDIDATES, pytest.fail, CPU) == ["slow", 4]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_the_fastest_is_measured_once_and_kept(tmp_path, monkeypatch):
    import triton

    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    device, x = torch.device("cuda", 0), torch.ones(2**24, device="cuda")
    calls = []

    def run(candidate):
        calls.append(candidate[0])
        if candidate[0] == "broken":
            raise RuntimeError("does not run here")
        for _ in range(200 if candidate[0] == "slow" else 1):  # others may be on the device
            x.mul_(1)

    assert tuning.choose("test", (1, "a"), CANDIDATES, run, device) == ["fast", 2]
    kept = json.loads(next(tmp_path.glob("grace/test-*.json")).read_text())
    assert kept["choice"] == ["fast", 2]
    assert [candidate for candidate, _ in kept["ms"]] == [["slow", 4], ["fast", 2]]

    def nested(_):
        tuning.choose("inner", (1,), CANDIDATES, run, device)

    assert tuning.choose("outer", (1,), ["a", "b"], nested, device) in ("a", "b")
    calls.clear()
    assert tuning.choose("test", (1, "a"), CANDIDATES, run, device) == ["fast", 2]
    monkeypatch.setattr(tuning, "_chosen", {})  # as a new process would find it
    assert tuning.choose("test", (1, "a"), CANDIDATES, run, device) == ["fast", 2]
    assert not calls
    assert tuning.choose("test", (1, "b"), CANDIDATES[1:], run, device) == ["fast", 2]
    with pytest.raises(RuntimeError, match=r"none of .* runs here"):
        tuning.choose("test", (2,), [["broken", 1], ["broken", 2]], run, device)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_capture_measures_nothing():
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chosen = tuning.choose("test", (3,), CANDIDATES, pytest.fail, x.device)
        x.mul_(2)
    assert chosen == ["slow", 4]
