"""Fitting the encoder-decoder to behaviour."""

from grace.train.config import RunConfig, TrainConfig
from grace.train.loop import TrainReport, train

__all__ = ["RunConfig", "TrainConfig", "TrainReport", "train"]
