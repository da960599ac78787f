"""Offline evaluation: splits, metrics, and models compared on held-out ratings."""

from recsys.evaluation.experiment import Evaluation, evaluate
from recsys.evaluation.metrics import DEFINITIONS, hit_matrix, mae, ndcg, precision, recall, rmse
from recsys.evaluation.split import Split, random_split, split_from_pair

__all__ = [
    "DEFINITIONS",
    "Evaluation",
    "Split",
    "evaluate",
    "hit_matrix",
    "mae",
    "ndcg",
    "precision",
    "random_split",
    "recall",
    "rmse",
    "split_from_pair",
]
