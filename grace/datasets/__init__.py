"""Public data sets for sequential recommendation: raw files → checked Parquet → arrays."""

from grace.datasets.preparation import Dataset, Statistics, prepare
from grace.datasets.published import DATASETS
from grace.datasets.raw import Raw
from grace.datasets.sequences import Sequences, Split, load

__all__ = [
    "DATASETS",
    "Dataset",
    "Raw",
    "Sequences",
    "Split",
    "Statistics",
    "load",
    "prepare",
]
