"""Training of sequence models on prepared data sets: TIGER's T5, GRACE, causal, SASRec."""

from grace.train.sequence.config import Recipe, SequenceConfig
from grace.train.sequence.loop import SequenceReport, train_sequences
from grace.train.sequence.rank import rank, run_sids

__all__ = ["Recipe", "SequenceConfig", "SequenceReport", "rank", "run_sids", "train_sequences"]
