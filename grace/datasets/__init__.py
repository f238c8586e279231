"""Prepared data sets: histories of users, split by time."""

from grace.datasets.sequences import Sequences, Split, load

__all__ = ["Sequences", "Split", "load"]
