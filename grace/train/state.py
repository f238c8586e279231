"""What a stopped run needs to go on, and the check that it is the same run."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch

from grace.errors import TrainError
from grace.files import atomic_write

STATE_FILE = "resume.pt"
STATE_VERSION = 2
MAGIC = b"grace-resume"
"""The file begins with a line `grace-resume <version> <SHA-256 of what follows>`."""


@dataclasses.dataclass(kw_only=True)
class TrainState:
    """The state of a run between two epochs.

    Random numbers are no part of it: each epoch seeds its own from the run's seed and its number.

    Attributes:
        identity: what makes the run what it is, name to value; see `check_identity`.
        history: one record an epoch, as in `metrics.jsonl`.
        model: the model's `state_dict`.
        optimiser: the optimiser's `state_dict`.
    """

    identity: dict[str, Any]
    history: list[dict[str, Any]]
    model: dict[str, Any]
    optimiser: dict[str, Any]

    def save(self, run: Path) -> None:
        """Write the state into a run folder, in place of the one before."""
        buffer = io.BytesIO()
        torch.save(dataclasses.asdict(self), buffer)
        digest = hashlib.sha256(buffer.getbuffer()).hexdigest()
        with atomic_write(run / STATE_FILE) as file:
            file.write(b"%s %d %s\n" % (MAGIC, STATE_VERSION, digest.encode()))
            file.write(buffer.getbuffer())

    @classmethod
    def load(cls, run: str | os.PathLike) -> TrainState | None:
        """Read the state of a run folder; None if it has none.

        Raises:
            TrainError: if the file cannot be read, is damaged, or of another version.
        """
        path = Path(run) / STATE_FILE
        if not path.exists():
            return None
        try:
            header, _, content = path.read_bytes().partition(b"\n")
        except OSError as error:
            raise TrainError(f"{path}: {error.strerror}") from None
        match header.split(b" "):
            case [magic, version, digest] if magic == MAGIC:
                pass
            case _:
                raise TrainError(
                    f"{path}: damaged, or of an older version: it does not begin with "
                    f"{MAGIC.decode()}; start again in another folder"
                )
        if version != b"%d" % STATE_VERSION:
            raise TrainError(
                f"{path}: version {version.decode(errors='replace')!r}, this program reads "
                f"{STATE_VERSION}; start again in another folder"
            )
        if hashlib.sha256(content).hexdigest().encode() != digest:
            raise TrainError(
                f"{path}: damaged: it differs from what was written; start again in another folder"
            )
        try:
            return cls(**torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))
        except Exception as error:  # torch promises no exceptions of its own
            reason = " ".join(str(error).split())
            raise TrainError(f"{path}: damaged ({reason}); start again in another folder") from None

    def check_identity(self, identity: dict[str, Any]) -> None:
        """Refuse to go on with anything but the run that was stopped.

        Raises:
            TrainError: naming the first part that differs.
        """
        for name, value in identity.items():
            if self.identity.get(name) != value:
                raise TrainError(
                    f"the run to resume had another {name}: it was {self.identity.get(name)}, "
                    f"now it is {value}; start a new run in another folder"
                )
