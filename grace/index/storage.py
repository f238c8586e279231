"""An index on disk: whole or refused.

    DIR/CURRENT                        the id of the version to open, one line
    DIR/versions/<id>/manifest.json    format, schema, counts, and the hash of every array
    DIR/versions/<id>/arrays.safetensors
    DIR/history.jsonl                  see grace.index.history
    DIR/pauses.log                     see grace.index.state_log

A version's id is the hash of its manifest, so the same catalogue gives the same version. Every
tensor is described in docs/index-format.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from torch import Tensor

from grace.catalog import Schema
from grace.errors import IndexFormatError
from grace.files import atomic_write, sync_directory
from grace.index.bloom import BloomShape
from grace.index.build import IndexData
from grace.index.history import (
    CURRENT,
    DEFAULT_KEEP,
    VERSIONS,
    Publication,
    commit,
    find_current,
    parent_of,
    read_current,
    read_history,
    utc_now,
)
from grace.index.lookup import IntegerTable, TextTable
from grace.index.rules import RangeRules, RuleTables, ValueRules
from grace.index.trie import Trie

FORMAT = "grace-index"
FORMAT_VERSION = 2
ARRAYS, MANIFEST = "arrays.safetensors", "manifest.json"
UNFINISHED = ".unfinished"


def save(
    data: IndexData,
    directory: str | os.PathLike,
    watermark: str | None = None,
    keep: int = DEFAULT_KEEP,
    merged_into: str | None = None,
    first: bool = False,
) -> str:
    """Write a version and make it current; a failure at any point leaves the old one current.

    Args:
        data: the arrays.
        directory: of the index.
        watermark: the last delta that the arrays hold, see `grace.index.changes`.
        keep: versions to leave on disk, this one among them; at least 1.
        merged_into: of a version made from changes, the version that they were merged into; it must
            still be the current one.
        first: whether there must be no version yet.

    Returns:
        The version's id.

    Raises:
        IndexFormatError: if the directory holds something else, another process is writing, or
            another version is current than `merged_into` and `first` say.
        ValueError: if `keep` is below 1.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}")
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise IndexFormatError(f"{directory}: is a file; an index is written to a directory")
    if directory.is_dir() and any(directory.iterdir()) and not (directory / "versions").is_dir():
        raise IndexFormatError(
            f"{directory}: holds something that is no index; name an empty folder"
        )
    versions = directory / VERSIONS
    versions.mkdir(parents=True, exist_ok=True)
    with writer_lock(directory):
        read_history(directory)  # a damaged one is refused before the work
        current = find_current(directory)
        if merged_into is not None and current != merged_into:
            raise IndexFormatError(
                f"{directory}: {current} became current while changes were merged into "
                f"{merged_into}; start again"
            )
        if first and current is not None:
            raise IndexFormatError(
                f"{directory}: {current} became current while a first version was made; start again"
            )
        unfinished = versions / UNFINISHED
        shutil.rmtree(unfinished, ignore_errors=True)  # what a killed writer left
        unfinished.mkdir()
        try:
            tensors = tensors_of(data)
            save_file(tensors, unfinished / ARRAYS)
            _sync_file(unfinished / ARRAYS)
            described = _manifest(data, tensors)
            manifest = json.dumps(described, indent=1, ensure_ascii=False).encode()
            with atomic_write(unfinished / MANIFEST) as file:
                file.write(manifest)
            version = _hash(manifest)[:16]
            _publish(unfinished, versions / version)
        except SafetensorError as error:  # how safetensors reports a full disk
            shutil.rmtree(unfinished, ignore_errors=True)
            raise IndexFormatError(f"{directory}: cannot be written: {error}") from None
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        action = "build" if merged_into is None else "watch"
        counts = described["counts"]
        parent = parent_of(directory, version)
        published = Publication(version, utc_now(), action, parent, watermark, counts)
        commit(directory, published, keep)
    return version


def _publish(unfinished: Path, version: Path) -> None:
    if version.is_dir():
        # The same content was built before: replacing file by file mends damage, and whoever is
        # opening the version meanwhile finds it whole.
        for name in (ARRAYS, MANIFEST):
            os.replace(unfinished / name, version / name)
        unfinished.rmdir()
        sync_directory(version)
    else:
        unfinished.rename(version)
    sync_directory(version.parent)


def load(directory: str | os.PathLike) -> tuple[str, IndexData]:
    """Map the current version's arrays and check every byte of them against the manifest.

    Returns:
        The version's id and its arrays.

    Raises:
        IndexFormatError: naming the file that is missing, damaged, foreign or newer.
    """
    directory = Path(directory)
    while True:
        version = read_current(directory)
        try:
            return version, load_version(directory, version)
        except IndexFormatError:
            if read_current(directory) == version:
                raise
            # Another version was made current and this one removed meanwhile: open that one.


def load_version(directory: Path, version: str) -> IndexData:
    """Map one version's arrays and check them, as `load` does.

    Raises:
        IndexFormatError: naming the file that is missing, damaged, foreign or newer.
    """
    from safetensors import SafetensorError, safe_open

    folder = directory / VERSIONS / version
    if not folder.is_dir():
        raise IndexFormatError(
            f"{directory}: has no version {version!r} (named by {CURRENT}, or asked for)"
        )
    manifest = read_manifest(folder, version)
    path = folder / ARRAYS
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise IndexFormatError(f"{path}: cannot be read ({error}); build the index again") from None
    described = manifest["tensors"]
    if tensors.keys() != described.keys():
        stray = min(tensors.keys() ^ described.keys())
        raise IndexFormatError(f"{path}: {stray} is in the file or the manifest, not in both")
    for name, tensor in tensors.items():
        if _described(tensor) != described[name]:
            raise IndexFormatError(
                f"{path}: {name} differs from what was written; the file is damaged: build the "
                "index again"
            )
    return _data_of(manifest, tensors)


def read_manifest(folder: Path, version: str) -> dict:
    """Return a version's manifest, or raise IndexFormatError, naming it."""
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
        manifest = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        raise IndexFormatError(f"{path}: cannot be read: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise IndexFormatError(f"{path}: is not the manifest of an index")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise IndexFormatError(
            f"{path}: has format version {manifest.get('format_version')}, this release reads "
            f"{FORMAT_VERSION}; build the index again or use the release that wrote it"
        )
    if _hash(content)[:16] != version:
        raise IndexFormatError(f"{path}: differs from what was written; build the index again")
    return manifest


def tensors_of(data: IndexData) -> dict[str, Tensor]:
    """Return every array of an index under its name in the file."""
    tensors = {f"trie.{name}": array for name, array in vars_of(data.trie).items()}
    tensors |= {
        "sid.ad_offsets": data.sid_ad_offsets,
        "ad.signatures": data.ad_signatures,
        "ad.paused": data.ad_paused,
        "targeting.windows": data.tables.windows,
        "targeting.signatures": data.tables.signatures,
    }
    tensors |= {f"ad.ids.{name}": array for name, array in vars_of(data.ad_ids).items()}
    for attribute, rules in enumerate(data.tables.rules):
        prefix = f"rules.{attribute}"
        tensors |= {f"{prefix}.{name}": array for name, array in vars_of(rules).items()}
        if isinstance(rules, ValueRules):
            values = vars_of(rules.values)
            tensors |= {f"{prefix}.values.{name}": array for name, array in values.items()}
    return tensors


def vars_of(part: object) -> dict[str, Tensor]:
    """Return the tensors among an object's fields."""
    return {name: value for name, value in vars(part).items() if isinstance(value, Tensor)}


def _manifest(data: IndexData, tensors: dict[str, Tensor]) -> dict:
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "schema": data.schema.to_dict(),
        "ad_id": "integer" if isinstance(data.ad_ids, IntegerTable) else "string",
        "bloom": vars(data.bloom),
        "counts": {
            "ads": len(data.ad_signatures),
            "sids": data.trie.level_sizes[-1],
            "levels": data.trie.num_levels,
            "nodes": data.trie.num_nodes,
            "vocab_size": data.trie.vocab_size,
            "signatures": len(data.tables.signatures),
            "windows": len(data.tables.windows),
        },
        "tensors": {name: _described(tensor) for name, tensor in sorted(tensors.items())},
    }


def _data_of(manifest: dict, tensors: dict[str, Tensor]) -> IndexData:
    def under(prefix: str, kind: type, **others: object) -> object:
        names = kind.__dataclass_fields__
        return kind(**others, **{n: tensors[f"{prefix}.{n}"] for n in names if n not in others})

    schema = Schema.from_dict(manifest["schema"])
    rules = []
    for attribute, declared in enumerate(schema.attributes):
        prefix = f"rules.{attribute}"
        if declared.kind == "range":
            rules.append(under(prefix, RangeRules))
        else:
            rules.append(under(prefix, ValueRules, values=under(f"{prefix}.values", TextTable)))
    tables = RuleTables(
        schema, tuple(rules), tensors["targeting.windows"], tensors["targeting.signatures"]
    )
    return IndexData(
        trie=under("trie", Trie),
        sid_ad_offsets=tensors["sid.ad_offsets"],
        ad_ids=under("ad.ids", IntegerTable if manifest["ad_id"] == "integer" else TextTable),
        ad_signatures=tensors["ad.signatures"],
        ad_paused=tensors["ad.paused"],
        tables=tables,
        bloom=BloomShape(**manifest["bloom"]),
    )


def _described(tensor: Tensor) -> dict:
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "xxh3_128": _hash(tensor.contiguous().numpy().view(np.uint8).data),
    }


def _hash(content: object) -> str:
    import xxhash

    return xxhash.xxh3_128_hexdigest(content)


def _sync_file(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def writer_lock(directory: Path) -> Iterator[None]:
    """Keep other writers of the directory out; raise IndexFormatError if one is at work."""
    with open(directory / ".lock", "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise IndexFormatError(
                f"{directory}: another process is writing this index; try again when it is done"
            ) from None
        yield
