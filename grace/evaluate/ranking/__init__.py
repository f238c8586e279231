"""Quality of models that rank all items of a data set for held-out users (docs/quality.md)."""

from grace.evaluate.ranking.fusion import Fusion, choose_fusion, fuse
from grace.evaluate.ranking.intervals import Quality, qualities
from grace.evaluate.ranking.run import RankingEvaluation, evaluate_runs
from grace.evaluate.ranking.tokenizer import TokenizerReport, check_tokenizer

__all__ = [
    "Fusion",
    "Quality",
    "RankingEvaluation",
    "TokenizerReport",
    "check_tokenizer",
    "choose_fusion",
    "evaluate_runs",
    "fuse",
    "qualities",
]
