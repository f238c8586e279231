"""Beam search under a plan and a constraint; it knows trie nodes and logits, no files, no HTTP."""

from grace.decode.beams import Beams
from grace.decode.device import check_device
from grace.decode.generator import CoreGenerator, Generator, ProtocolGenerator, check_sids
from grace.decode.plan import DEFAULT_NUM_SIDS, BeamPlan, full_plan
from grace.decode.search import beam_search
from grace.decode.step_search import StepSearch

__all__ = [
    "DEFAULT_NUM_SIDS",
    "BeamPlan",
    "Beams",
    "CoreGenerator",
    "Generator",
    "ProtocolGenerator",
    "StepSearch",
    "beam_search",
    "check_device",
    "check_sids",
    "full_plan",
]
