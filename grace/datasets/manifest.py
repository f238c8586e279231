"""`manifest.json`: what lies in a prepared folder, and whether a file is still that."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from grace.errors import DataError
from grace.files import atomic_write

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
FILES = ("items.parquet", "train.parquet", "valid.parquet", "test.parquet")


def sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, content: dict) -> dict:
    """Write a manifest, whole or not at all, and return it with its format version."""
    manifest = {"format_version": FORMAT_VERSION, **content}
    with atomic_write(folder / MANIFEST) as file:
        file.write(json.dumps(manifest, indent=1).encode() + b"\n")
    return manifest


def check_file(path: Path) -> None:
    """Compare a file with the manifest beside it, if there is one.

    Raises:
        DataError: if the file is missing, the folder was left half written, the manifest is of
            another format, or the file is not the one it describes.
    """
    manifest = path.parent / MANIFEST
    try:
        content = json.loads(manifest.read_bytes())
        version, files = content["format_version"], content["files"]
        expected = files.get(path.name)
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{manifest}: not a manifest of a prepared data set: {error!r}") from None
    if version != FORMAT_VERSION:
        raise DataError(
            f"{manifest}: expected format version {FORMAT_VERSION}, got {version}; "
            "run `grace data prepare` again"
        )
    if expected is None:
        raise DataError(f"{manifest}: the folder is half written; run `grace data prepare` again")
    try:
        found = sha256(path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; grace data prepare writes it") from None
    if found != expected:
        raise DataError(
            f"{path}: is not the file that {MANIFEST} describes; run `grace data prepare` again"
        )
