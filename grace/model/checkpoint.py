"""A model on disk: `config.json`, and the weights file that it names with its hash.

The name of a weights file holds its hash, and `config.json` is replaced last, so a save that stops
anywhere leaves the model before it whole.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from grace.errors import ConfigError, ModelError
from grace.files import atomic_write
from grace.model.config import ModelConfig, config_from_table
from grace.model.encoder_decoder import EncoderDecoder
from grace.model.features import FeatureSpec

FORMAT = "grace-encoder-decoder"
FORMAT_VERSION = 1
CONFIG_FILE = "config.json"

_REMEDY = "copy the whole directory again, or train again"


def save_model(model: EncoderDecoder, directory: str | os.PathLike) -> None:
    """Write a model into a directory, in place of the one that it holds.

    The directory may hold other files, too. It is made if it does not exist.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    weights = safetensors.torch.save(tensors)
    digest = hashlib.sha256(weights).hexdigest()
    name = f"model-{digest[:16]}.safetensors"
    with atomic_write(directory / name) as file:
        file.write(weights)
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "model": dataclasses.asdict(model.config),
        "features": model.features.to_dict(),
        "weights": {"file": name, "sha256": digest},
    }
    content["sha256"] = _digest(content)
    with atomic_write(directory / CONFIG_FILE) as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")
    for old in directory.glob("model-*.safetensors"):
        if old.name != name:
            old.unlink()


def load_model(directory: str | os.PathLike, device: str = "cpu") -> EncoderDecoder:
    """Read a model that `save_model` wrote, ready for inference.

    Args:
        directory: the checkpoint; a run folder of `grace train` is one.
        device: where the weights go.

    Raises:
        ModelError: if the checkpoint is missing, damaged, of another program or of a newer version;
            the message names the file.
    """
    directory = Path(directory)
    content = _read_config(directory / CONFIG_FILE)
    try:
        config = config_from_table(ModelConfig, content["model"], "model")
        features = FeatureSpec.from_dict(content["features"])
        weights_file, digest = directory / content["weights"]["file"], content["weights"]["sha256"]
    except (KeyError, TypeError, ConfigError) as error:
        raise ModelError(f"{directory / CONFIG_FILE}: damaged: {error}; {_REMEDY}") from None
    tensors = _read_weights(weights_file, digest)
    model = EncoderDecoder(config, features)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise ModelError(
            f"{weights_file}: does not fit {CONFIG_FILE}: {reason}; {_REMEDY}"
        ) from None
    return model.eval().to(device)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(
            f"{path}: not found; a model is a directory that `grace train --out` wrote"
        ) from None
    except ValueError as error:
        raise ModelError(f"{path}: damaged: {error}; {_REMEDY}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ModelError(f"{path}: not a model of Grace: `format` is not {FORMAT!r}")
    version = content.get("format_version")
    if version != FORMAT_VERSION:
        raise ModelError(
            f"{path}: format version {version!r}, this program reads {FORMAT_VERSION}; "
            "use the version of Grace that wrote it, or train again"
        )
    if content.pop("sha256", None) != _digest(content):
        raise ModelError(f"{path}: differs from what was written; {_REMEDY}")
    return content


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_weights(path: Path, digest: str) -> dict[str, Tensor]:
    try:
        weights = path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{path}: not found; {_REMEDY}") from None
    if hashlib.sha256(weights).hexdigest() != digest:
        raise ModelError(f"{path}: damaged: its SHA-256 is not that in {CONFIG_FILE}; {_REMEDY}")
    try:
        return safetensors.torch.load(weights)
    except SafetensorError as error:
        raise ModelError(f"{path}: damaged: {error}; {_REMEDY}") from None
