"""The data sets that Grace reports quality on, with the statistics their publishers state."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from grace.datasets.amazon import read_amazon
from grace.datasets.movielens import load_movielens, movielens_files
from grace.datasets.preparation import Dataset, Statistics
from grace.datasets.raw import Item, Raw

S3_REC = "S3-Rec (Zhou et al., 2020) and TIGER (Rajput et al., 2023)"


def read_movielens(root: Path) -> Raw:
    """Read MovieLens-100K as implicit feedback: any rating is an interaction.

    Histories go by time, then by film, since many ratings share a second; ids are the films'.
    """
    data = load_movielens(root)
    items = [
        Item(
            movie.movie_id,
            movie.title,
            " ".join(
                [movie.title, *([f"({movie.release_year})"] if movie.release_year else [])]
                + ([f"- {', '.join(movie.genres)}"] if movie.genres else [])
            ),
            movie.genres,
        )
        for movie in data.movies
    ]
    histories = {user: [rated.movie_id for rated in rs] for user, rs in data.ratings.items()}
    files = movielens_files(root)
    return Raw(items, dict(sorted(histories.items())), (files["inter"], files["item"]))


DATASETS = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            "beauty",
            partial(read_amazon, name="Beauty"),
            Statistics(users=22_363, items=12_101, interactions=198_502),
            S3_REC,
        ),
        Dataset(
            "sports",
            partial(read_amazon, name="Sports_and_Outdoors"),
            Statistics(users=35_598, items=18_357, interactions=296_337),
            S3_REC,
        ),
        Dataset(
            "toys",
            partial(read_amazon, name="Toys_and_Games"),
            Statistics(users=19_412, items=11_924, interactions=167_597),
            S3_REC,
        ),
        Dataset(
            "movielens",
            read_movielens,
            Statistics(users=943, items=1_682, interactions=100_000),
            "GroupLens, MovieLens-100K",
        ),
    )
}
