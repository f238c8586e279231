"""Codebooks on disk, with the autoencoder of an RQ-VAE beside them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

import numpy as np
import safetensors
import safetensors.numpy
import torch

from grace.errors import SidError
from grace.files import atomic_write
from grace.sid.rq_vae import Autoencoder


def save_codebooks(
    path: str | os.PathLike,
    codebooks: Sequence[np.ndarray],
    report: dict | None = None,
    autoencoder: Autoencoder | None = None,
) -> None:
    """Save codebooks: tensors `level.0` ... `level.<L-1>`, `[K, D]` float32; report as metadata.

    An RQ-VAE's autoencoder goes with them, as `encoder.*` and `decoder.*`.
    """
    tensors = {f"level.{level}": codebook for level, codebook in enumerate(codebooks)}
    if autoencoder is not None:
        weights = autoencoder.state_dict()
        tensors |= {name: weight.cpu().numpy() for name, weight in weights.items()}
    content = safetensors.numpy.save(tensors, {"report": json.dumps(report)} if report else None)
    with atomic_write(path) as file:
        file.write(content)


def load_codebooks(path: str | os.PathLike) -> tuple[np.ndarray, ...]:
    """Load what `save_codebooks` saved, for `assign_sids`.

    Raises:
        SidError: if the file is missing, damaged or holds something else.
    """
    tensors = _load_tensors(path)
    found = [name for name in tensors if not name.startswith(("encoder.", "decoder."))]
    names = [f"level.{level}" for level in range(len(found))]
    if not names or set(names) != set(found):
        raise SidError(f"{path}: expected tensors level.0, level.1, ..., got {sorted(tensors)}")
    return tuple(tensors[name] for name in names)


def load_autoencoder(path: str | os.PathLike) -> Autoencoder | None:
    """Load the RQ-VAE's autoencoder that lies beside codebooks; None where they are k-means'.

    Raises:
        SidError: if the file is missing, damaged or holds something else.
    """
    tensors = _load_tensors(path)
    encoder = [name for name in tensors if name.startswith("encoder.") and name.endswith("weight")]
    if not encoder:
        return None
    encoder.sort(key=lambda name: int(name.split(".")[1]))
    widths = [tensors[name].shape[0] for name in encoder]
    autoencoder = Autoencoder(tensors[encoder[0]].shape[1], widths[:-1], widths[-1])
    weights = {
        name: torch.from_numpy(tensor)
        for name, tensor in tensors.items()
        if not name.startswith("level.")
    }
    try:
        autoencoder.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise SidError(f"{path}: not an autoencoder of an RQ-VAE: {reason}") from None
    return autoencoder.eval()


def _load_tensors(path: str | os.PathLike) -> dict[str, np.ndarray]:
    try:
        return safetensors.numpy.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise SidError(f"{path}: cannot be read as codebooks: {error}") from None
