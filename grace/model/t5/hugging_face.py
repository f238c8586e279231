"""A T5 as a folder of transformers: `config.json` and `model.safetensors`, in and out.

What a `T5ForConditionalGeneration` does not know, the tokens of SIDs, stands in `config.json` under
`grace`, which transformers keeps when it opens and saves a folder.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from grace.errors import ConfigError, ModelError
from grace.files import atomic_write
from grace.model.t5.config import T5Config
from grace.model.t5.module import T5
from grace.model.t5.token_map import END, PADDING, TokenMap

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
MODEL_TYPE = "t5"
GRACE_KEY = "grace"
FORMAT_VERSION = 1

# In older folders: copies of the embedding table, and a bias that no T5 has read since.
TIED_NAMES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
UNREAD_NAME = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"


def save_hf(model: T5, directory: str | os.PathLike) -> None:
    """Write a model as a folder that `T5ForConditionalGeneration.from_pretrained` opens.

    Each file is replaced whole, the weights first. The folder may hold other files, too.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    with atomic_write(directory / WEIGHTS_FILE) as file:
        file.write(safetensors.torch.save(weights, {"format": "pt"}))
    content = {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": MODEL_TYPE,
        "is_encoder_decoder": True,
        **dataclasses.asdict(model.config),
        # Where it is false, transformers scales no logits, whatever else is written.
        "tie_word_embeddings": model.config.scale_decoder_outputs,
        "pad_token_id": PADDING,
        "eos_token_id": END,
        "dtype": str(model.shared.weight.dtype).removeprefix("torch."),
    }
    if model.tokens is not None:
        content[GRACE_KEY] = {
            "format_version": FORMAT_VERSION,
            "max_items": model.max_items,
            "tokens": dataclasses.asdict(model.tokens),
        }
    with atomic_write(directory / CONFIG_FILE) as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")


def load_hf(
    directory: str | os.PathLike,
    tokens: TokenMap | None = None,
    max_items: int | None = None,
    device: str = "cpu",
) -> T5:
    """Read a folder of a `T5ForConditionalGeneration`, ready for inference in float32.

    Args:
        directory: the folder, of `save_hf` or of transformers.
        tokens: which token is which code; by default what the folder says, which one made
            elsewhere does not.
        max_items: of a history; by default likewise.
        device: where the weights go.

    Raises:
        ModelError: if a file is missing or damaged, or the model is no such T5; it names the file.
    """
    directory = Path(directory)
    content = read_config(directory)
    path = directory / CONFIG_FILE
    if content.get("model_type") != MODEL_TYPE:
        raise ModelError(
            f"{path}: not a T5: `model_type` is {content.get('model_type')!r}, expected "
            f"{MODEL_TYPE!r}"
        )
    weights = _read_weights(directory / WEIGHTS_FILE)
    try:
        config = _config(content, "lm_head.weight" not in weights)
        extra = _extra(content, tokens, max_items)
        model = T5(config, **extra)
    except (ConfigError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None
    if config.tie_word_embeddings:
        weights["lm_head.weight"] = weights.get("shared.weight", torch.empty(0))
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise ModelError(
            f"{directory / WEIGHTS_FILE}: does not fit {CONFIG_FILE}: {reason}"
        ) from None
    return model.eval().to(device)


def read_config(directory: Path) -> dict[str, Any]:
    """Return what a model folder's `config.json` holds.

    Raises:
        ModelError: if it is missing or no JSON object.
    """
    path = directory / CONFIG_FILE
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(f"{path}: not found; a model is a directory that holds one") from None
    except ValueError as error:
        raise ModelError(f"{path}: damaged: {error}") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path}: expected an object")
    return content


def _config(content: dict[str, Any], tied: bool) -> T5Config:
    """Return the sizes; a head that has weights of its own is not tied, whatever is written."""
    for name, expected in (("pad_token_id", PADDING), ("eos_token_id", END)):
        if content.get(name, expected) != expected:
            raise ConfigError(f"{name} must be {expected}, got {content[name]!r}")
    fields = {field.name: field.default for field in dataclasses.fields(T5Config)}
    table = {name: content[name] for name in fields if content.get(name) is not None}
    for name in ("decoder_start_token_id", "num_decoder_layers"):
        other = {"decoder_start_token_id": PADDING, "num_decoder_layers": content["num_layers"]}
        table.setdefault(name, other[name])
    # Sizes that transformers leaves out of a file have its defaults, not TIGER's.
    missing = [name for name in ("vocab_size", "d_model", "d_kv", "d_ff", "num_heads")
               if name not in table]  # fmt: skip
    if missing:
        raise ConfigError(f"the key {missing[0]!r} is missing")
    written_as_tied = content.get("tie_word_embeddings") is not False
    table.setdefault("scale_decoder_outputs", written_as_tied)
    table["tie_word_embeddings"] = tied
    return T5Config(**table)


def _extra(
    content: dict[str, Any], tokens: TokenMap | None, max_items: int | None
) -> dict[str, Any]:
    written = content.get(GRACE_KEY)
    extra: dict[str, Any] = {}
    if written is not None:
        version = written["format_version"]
        if version != FORMAT_VERSION:
            raise ConfigError(
                f"{GRACE_KEY}: format version {version!r}, this program reads {FORMAT_VERSION}"
            )
        extra = {"tokens": TokenMap(**written["tokens"]), "max_items": written["max_items"]}
    given = {"tokens": tokens, "max_items": max_items}
    return extra | {name: value for name, value in given.items() if value is not None}


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors in float32, without those that repeat the embedding table."""
    try:
        weights = safetensors.torch.load(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(
            f"{path}: not found; other forms of weights are not read: open the folder with "
            "transformers and save it in one file"
        ) from None
    except SafetensorError as error:
        raise ModelError(f"{path}: damaged: {error}") from None
    weights = {name: tensor.float() for name, tensor in weights.items()}
    weights.pop(UNREAD_NAME, None)
    # Where only a tied copy was written, it is the table.
    for name in TIED_NAMES:
        if name in weights and "shared.weight" not in weights:
            weights["shared.weight"] = weights[name]
        if name in weights and torch.equal(weights[name], weights["shared.weight"]):
            del weights[name]
    return weights
