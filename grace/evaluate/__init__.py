"""Measure a model and an index: recall, NDCG, eligibility, and where ads are refused."""

from grace.evaluate.metrics import Estimate
from grace.evaluate.run import FIXED_ADS, Evaluation, ModeEvaluation, evaluate

__all__ = ["FIXED_ADS", "Estimate", "Evaluation", "ModeEvaluation", "evaluate"]
