"""The benchmark of decoding: its counts, and every part at tiny sizes with its own checks."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import bench_decode
from benchmarks.decode.cost import flops_per_request
from benchmarks.decode.shape import read_shape
from grace.model.beam_cache import BeamCache
from grace.model.decoder import Decoder


@torch.no_grad()
@pytest.mark.parametrize("plan", ["dynamic", "fixed"])
def test_flops_are_those_of_the_module(plan):
    shape = read_shape(plan)
    config = shape.config
    with torch.device("meta"):
        decoder = Decoder(config)
        keys = decoder.project_context(torch.empty(1, config.num_context_tokens, config.model_dim))
        cache = BeamCache(config, max(shape.plan.widths), keys[0][0])
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            for t, width in enumerate(shape.plan.widths):
                tokens = None if t == 0 else torch.zeros(1, width, dtype=torch.int64)
                if t:
                    cache.reorder(tokens, length=t)
                decoder.step(keys, cache, tokens, t)
    flops = flops_per_request(config, shape.plan.widths)
    assert flops == counter.get_total_flops()
    if plan == "dynamic":
        assert round(flops / 1e9) == 434


@pytest.mark.parametrize("part", bench_decode.PARTS)
def test_a_part_runs_at_tiny_sizes(part, capsys):
    rows = bench_decode.main(["--small", f"--parts={part}"])
    assert rows
    assert part in capsys.readouterr().out


def test_an_unknown_part_is_refused(capsys):
    with pytest.raises(SystemExit):
        bench_decode.main(["--parts=levels,nothing"])
    assert "--parts must be some of" in capsys.readouterr().err
