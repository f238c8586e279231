"""Public data sets for sequential recommendation: raw files → checked Parquet → arrays."""

from grace.datasets.prepare import Dataset, Statistics, prepare
from grace.datasets.published import DATASETS
from grace.datasets.raw import Raw
from grace.datasets.sequences import HeldOut, Sequences, load

__all__ = [
    "DATASETS",
    "Dataset",
    "HeldOut",
    "Raw",
    "Sequences",
    "Statistics",
    "load",
    "prepare",
]
