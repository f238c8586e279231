"""A model folder of any kind that retrieval runs; its `config.json` says which."""

from __future__ import annotations

import json
import os
from pathlib import Path

from grace.model.causal import CausalGenerator, load_causal
from grace.model.causal.folder import FORMAT as CAUSAL
from grace.model.checkpoint import load_model
from grace.model.encoder_decoder import EncoderDecoder
from grace.model.t5 import T5, load_hf
from grace.model.t5.hugging_face import CONFIG_FILE, MODEL_TYPE


def open_model(directory: str | os.PathLike) -> EncoderDecoder | T5 | CausalGenerator:
    """Read a checkpoint of `grace train`, or a folder of a T5 in the layout of Hugging Face.

    A run folder of `grace train --data` keeps such a folder as its `best`, unless it is a baseline.

    Raises:
        ModelError: if it is none of them, or missing or damaged; the message names the file.
    """
    try:
        content = json.loads((Path(directory) / CONFIG_FILE).read_bytes())
    except (OSError, ValueError):
        return load_model(directory)  # which says what is wrong
    if isinstance(content, dict) and content.get("model_type") == MODEL_TYPE:
        return load_hf(directory)
    if isinstance(content, dict) and content.get("format") == CAUSAL:
        return CausalGenerator(load_causal(directory))
    return load_model(directory)
