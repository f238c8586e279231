"""The kinds of sequence models: made for a run, kept in its folder, read again from there."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from grace.datasets import Sequences
from grace.errors import ConfigError, ModelError
from grace.files import atomic_write
from grace.model import EncoderDecoder, FeatureSpec, ModelConfig, load_model, save_model
from grace.model.causal import Causal, CausalConfig, load_causal, save_causal
from grace.model.config import config_from_table
from grace.model.t5 import T5, T5Config, TokenMap, load_hf, save_hf
from grace.train.sequence.causal import CausalModel
from grace.train.sequence.config import Recipe
from grace.train.sequence.generators import GraceModel, Tiger
from grace.train.sequence.popularity import Popularity
from grace.train.sequence.sasrec import Sasrec, SasrecConfig
from grace.train.sequence.sids import SidTable
from grace.train.sequence.windows import Windows, cut_windows, span_windows

KINDS = ("tiger", "grace", "causal", "sasrec", "popularity")
GENERATORS = ("tiger", "grace", "causal")
"""Kinds that write SIDs and so need a catalogue."""
EVERY_PLACE = ("causal", "sasrec")
"""Kinds that learn from every place of a history at once."""

FORMAT_VERSION = 1
TOKEN_MULTIPLE = 8
"""A T5's vocabulary is a multiple of it, else the products with its head are several times slower
on a GPU. The last few tokens may so be no code's; like a user's they are never right."""
ABOUT_FILE = "sequence.json"
ITEMS_FILE = "items.safetensors"
WEIGHTS_FILE = "model.safetensors"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kept:
    """What a run folder's `best` holds.

    Attributes:
        kind: one of `KINDS`.
        model: ready for inference.
        item_ids: `[N]` int64, ids of the items that it ranks.
        history: items that it reads, at most.
        beam_width: SIDs that a search keeps.
        exclude_history: whether items of a user's history are left out of rankings.
    """

    kind: str
    model: nn.Module
    item_ids: np.ndarray
    history: int
    beam_width: int
    exclude_history: bool


def training_windows(kind: str, data: Sequences, history: int) -> Windows:
    """Return the training examples of a kind, of at most so many items each."""
    return (span_windows if kind in EVERY_PLACE else cut_windows)(data, history)


def make_model(
    kind: str, recipe: Recipe, data: Sequences, sids: np.ndarray | None, device: str
) -> nn.Module:
    """Make a new model, its weights from torch's default generator.

    Args:
        kind: one of `KINDS`.
        recipe: sizes and settings.
        data: the items.
        sids: int32 `[N, L]` of the items; needed by `GENERATORS` alone.
        device: where it goes.

    Raises:
        ConfigError: if `[model]` has an unknown key or a wrong size for this kind.
    """
    table, settings = dict(recipe.model), recipe.train
    if kind == "sasrec":
        config = config_from_table(SasrecConfig, table, "[model]")
        return Sasrec(config, data.num_items, settings.history).to(device)
    if kind == "popularity":
        if table:
            raise ConfigError(f"[model]: popularity has no sizes, got {next(iter(table))!r}")
        return Popularity(data.num_items, data.items).to(device)
    catalogue = SidTable.build(sids, device)
    if kind == "causal":
        follows = {
            "num_levels": sids.shape[1],
            "vocab_size": max(catalogue.sizes),
            "max_items": settings.history,
            "exclude_history": settings.exclude_history,
        }
        _refuse_sizes(table, tuple(follows))
        config = config_from_table(CausalConfig, follows | table, "[model]")
        made = Causal(config, torch.from_numpy(sids).long(), torch.from_numpy(data.item_ids))
        return CausalModel(made, catalogue).to(device)
    if kind == "tiger":
        users = table.pop("user_buckets", 0)
        if type(users) is not int or users < 0:
            raise ConfigError(f"[model]: user_buckets must be an integer from 0, got {users!r}")
        tokens = TokenMap.of(catalogue.sizes, users)
        _refuse_sizes(table, ("vocab_size",))
        vocabulary = -(-tokens.vocab_size // TOKEN_MULTIPLE) * TOKEN_MULTIPLE
        config = config_from_table(T5Config, {"vocab_size": vocabulary} | table, "[model]")
        return Tiger(T5(config, tokens, settings.history), catalogue).to(device)
    _refuse_sizes(table, ("vocab_size", "num_levels"))
    sizes = {"num_levels": sids.shape[1], "vocab_size": max(catalogue.sizes)} | table
    config = config_from_table(ModelConfig, sizes, "[model]")
    field = {"name": "history", "kind": "sequence", "actions": [], "max_length": settings.history}
    spec = FeatureSpec.from_dict({"fields": [field]})
    return GraceModel(EncoderDecoder(config, spec), catalogue).to(device)


def _refuse_sizes(table: dict, names: tuple[str, ...]) -> None:
    for name in names:
        if name in table:
            raise ConfigError(f"[model]: {name} follows from the SIDs or [train]; leave it out")


def keep_model(
    kept: Kept, sids: np.ndarray | None, folder: Path, chosen: dict[str, object]
) -> None:
    """Write a model into a folder, in place of what it held.

    Args:
        kept: the model.
        sids: int32 `[N, L]`, or None.
        folder: written beside and then renamed, so it is whole or not there.
        chosen: what it was chosen by, for people.
    """
    new, old = folder.with_name(f".{folder.name}-new"), folder.with_name(f".{folder.name}-old")
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    new.mkdir(parents=True)
    if kept.kind == "tiger":
        save_hf(kept.model.model, new)
    elif kept.kind == "grace":
        save_model(kept.model.model, new)
    elif kept.kind == "causal":
        save_causal(kept.model.model, new)
    else:
        _write(new / WEIGHTS_FILE, dict(kept.model.state_dict()))
    items = {"item_ids": torch.from_numpy(kept.item_ids)}
    _write(new / ITEMS_FILE, items | ({} if sids is None else {"sids": torch.from_numpy(sids)}))
    about = {
        "format_version": FORMAT_VERSION,
        "model": kept.kind,
        "history": kept.history,
        "beam_width": kept.beam_width,
        "exclude_history": kept.exclude_history,
        "sizes": dataclasses.asdict(kept.model.config) if kept.kind == "sasrec" else {},
        "chosen": chosen,
    }
    with atomic_write(new / ABOUT_FILE) as file:
        file.write(json.dumps(about, indent=1).encode() + b"\n")
    if folder.exists():
        os.rename(folder, old)
    os.rename(new, folder)
    shutil.rmtree(old, ignore_errors=True)


def _write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_write(path) as file:
        file.write(safetensors.torch.save(content))


def load_kept(folder: str | os.PathLike, device: str = "cpu") -> Kept:
    """Read what `keep_model` wrote.

    Raises:
        ModelError: if a file is missing, damaged, or of another version.
    """
    folder = Path(folder)
    path = folder / ABOUT_FILE
    try:
        about = json.loads(path.read_bytes())
        if about["format_version"] != FORMAT_VERSION:
            raise ModelError(
                f"{path}: format version {about['format_version']}, this program reads "
                f"{FORMAT_VERSION}"
            )
        items = safetensors.torch.load_file(folder / ITEMS_FILE)
        kind, history = about["model"], about["history"]
        table = SidTable.build(items["sids"].numpy(), device) if kind in GENERATORS else None
        if kind == "tiger":
            model = Tiger(load_hf(folder), table)
        elif kind == "grace":
            model = GraceModel(load_model(folder), table)
        elif kind == "causal":
            model = CausalModel(load_causal(folder), table)
        else:
            model = (
                Sasrec(SasrecConfig(**about["sizes"]), len(items["item_ids"]), history)
                if kind == "sasrec"
                else Popularity(len(items["item_ids"]))
            )
            model.load_state_dict(safetensors.torch.load_file(folder / WEIGHTS_FILE))
    except OSError as error:
        raise ModelError(f"{path.parent}: {error}; a run folder of grace train holds it") from None
    except (ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{folder}: damaged: {reason}") from None
    return Kept(
        kind=kind,
        model=model.eval().to(device),
        item_ids=items["item_ids"].numpy(),
        history=history,
        beam_width=about["beam_width"],
        exclude_history=about.get("exclude_history", False),
    )
