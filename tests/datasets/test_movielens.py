"""MovieLens-100K: found, downloaded, or clearly refused."""

from __future__ import annotations

import gzip
import shutil
import subprocess

import pytest

from grace.datasets.movielens import INSIDE_RECBOLE, Rating, load_movielens
from grace.errors import DataError


def test_counts_and_order(movielens):
    assert [user.user_id for user in movielens.users] == list(range(1, 944))
    assert [movie.movie_id for movie in movielens.movies] == list(range(1, 1683))
    assert sum(len(ratings) for ratings in movielens.ratings.values()) == 100_000
    for ratings in movielens.ratings.values():
        assert ratings == sorted(ratings, key=lambda r: (r.timestamp, r.movie_id))
    assert movielens.last_timestamp == 893_286_638


def test_fields(movielens):
    user, movie = movielens.users[0], movielens.movies[0]
    assert (user.age, user.gender, user.occupation, user.zip_code) == (
        24,
        "male",
        "technician",
        "85711",
    )
    assert (movie.title, movie.release_year) == ("Toy Story", 1995)
    assert movie.genres == ("Animation", "Children's", "Comedy")
    assert Rating(881_250_949, 242, 3) in movielens.ratings[196]
    assert [m.movie_id for m in movielens.movies if m.release_year is None] == [267, 1412]


@pytest.fixture
def files(shared_data, tmp_path):
    """A directory of its own with the three files, unpacked."""
    source = shared_data / "movielens-100k"
    directory = tmp_path / "data"
    directory.mkdir()
    for kind in ("user", "item"):
        shutil.copy(source / f"ml-100k.{kind}", directory)
        (directory / f"ml-100k.{kind}").chmod(0o644)
    with gzip.open(source / "ml-100k.inter.gz") as packed:
        (directory / "ml-100k.inter").write_bytes(packed.read())
    return directory


def test_an_unpacked_recbole_tree(files, tmp_path, movielens):
    tree = tmp_path / "site-packages"
    (tree / INSIDE_RECBOLE).parent.mkdir(parents=True)
    files.rename(tree / INSIDE_RECBOLE)
    assert load_movielens(tree) == movielens


def test_a_directory_without_the_files(tmp_path):
    with pytest.raises(DataError, match="leave the directory out to have them downloaded"):
        load_movielens(tmp_path)


def test_a_missing_rating(files):
    path = files / "ml-100k.inter"
    path.write_bytes(path.read_bytes().rsplit(b"\n", 2)[0] + b"\n")
    with pytest.raises(DataError, match="100000 ratings, found 943, 1682 and 99999"):
        load_movielens(files)


def test_another_header(files):
    path = files / "ml-100k.user"
    path.write_text(path.read_text().replace("zip_code", "postcode"))
    with pytest.raises(DataError, match=r"ml-100k\.user: expected the columns"):
        load_movielens(files)


def test_a_short_line(files):
    path = files / "ml-100k.item"
    path.write_text(path.read_text().replace("\tToy Story", ""))
    with pytest.raises(DataError, match="line 2: expected 4 fields, got 3"):
        load_movielens(files)


def test_a_value_of_another_kind(files):
    path = files / "ml-100k.user"
    path.write_text(path.read_text().replace("1\t24\tM", "1\tyoung\tM", 1))
    with pytest.raises(DataError, match=r"line 2: not a value of its column: .*young"):
        load_movielens(files)


def test_the_wheel_is_downloaded_once(tmp_path, monkeypatch, movielens):
    monkeypatch.setenv("GRACE_CACHE", str(tmp_path))
    try:
        downloaded = load_movielens()
    except DataError as error:
        pytest.skip(f"pip cannot reach its index here: {error}")
    assert downloaded == movielens
    names = {path.name for path in (tmp_path / "ml-100k").iterdir()}
    assert names == {"ml-100k.inter", "ml-100k.item", "ml-100k.user"}
    monkeypatch.setattr(subprocess, "run", None)  # a second download would fail
    assert load_movielens() == movielens


def test_a_failed_download_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("GRACE_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(DataError, match=r"pip could not download .*--data DIR"):
        load_movielens()
