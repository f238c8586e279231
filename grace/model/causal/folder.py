"""A causal model on disk: `config.json`, and `model.safetensors` with its items and their SIDs."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError

from grace.errors import ConfigError, ModelError
from grace.files import atomic_write
from grace.model.causal.config import CausalConfig
from grace.model.causal.module import Causal
from grace.model.config import config_from_table

FORMAT = "grace-causal"
FORMAT_VERSION = 1
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"


def save_causal(model: Causal, folder: str | os.PathLike) -> None:
    """Write a model into an existing folder."""
    folder = Path(folder)
    tensors = {name: tensor.cpu().contiguous() for name, tensor in model.state_dict().items()}
    with atomic_write(folder / WEIGHTS_FILE) as file:
        file.write(safetensors.torch.save(tensors))
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "model": dataclasses.asdict(model.config),
    }
    with atomic_write(folder / CONFIG_FILE) as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")


def load_causal(folder: str | os.PathLike) -> Causal:
    """Read what `save_causal` wrote, ready for inference; weights become float32.

    Raises:
        ModelError: if a file is missing, damaged, or of another version.
    """
    folder = Path(folder)
    try:
        content = json.loads((folder / CONFIG_FILE).read_bytes())
        if content["format"] != FORMAT or content["format_version"] != FORMAT_VERSION:
            raise ModelError(
                f"{folder / CONFIG_FILE}: expected {FORMAT} of version {FORMAT_VERSION}, got "
                f"{content['format']} of version {content['format_version']}"
            )
        config = config_from_table(CausalConfig, content["model"], "model")
        tensors = safetensors.torch.load_file(folder / WEIGHTS_FILE)
        model = Causal(config, tensors["sids"], tensors["item_ids"])
        model.load_state_dict(tensors)
    except OSError as error:
        raise ModelError(f"{folder}: {error}; grace train writes it") from None
    except (ValueError, KeyError, TypeError, RuntimeError, ConfigError, SafetensorError) as error:
        raise ModelError(f"{folder}: damaged: {' '.join(str(error).split())}") from None
    return model.eval()
