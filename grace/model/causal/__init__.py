"""A causal transformer over items that writes the next item's SID, and knows items, too."""

from grace.model.causal.config import CausalConfig
from grace.model.causal.folder import load_causal, save_causal
from grace.model.causal.generator import CausalGenerator
from grace.model.causal.module import Causal

__all__ = ["Causal", "CausalConfig", "CausalGenerator", "load_causal", "save_causal"]
