"""Offline evaluation: splits, metrics, and models compared on held-out ratings."""

from recsys.evaluation.experiment import WithoutFeatures, evaluate, sample_candidates
from recsys.evaluation.metrics import (
    METRICS,
    Metric,
    average_precision,
    hit_matrix,
    hit_rate,
    mae,
    ndcg,
    precision,
    recall,
    reciprocal_rank,
    rmse,
)
from recsys.evaluation.monitor import Monitoring, monitor
from recsys.evaluation.report import html_report
from recsys.evaluation.results import Evaluation, Settings, SplitInfo
from recsys.evaluation.split_files import SharedTest, read_split, shared_test, split_from_pair
from recsys.evaluation.splits import (
    Split,
    held_out_cold_users,
    held_out_items,
    held_out_users,
    k_fold,
    leave_last_split,
    per_user_split,
    random_split,
    time_split,
)
from recsys.evaluation.tuning import Trial, Tuning, tune
from recsys.provenance import fingerprint
from recsys.storage import save_split

__all__ = [
    "METRICS",
    "Evaluation",
    "Metric",
    "Monitoring",
    "Settings",
    "SharedTest",
    "Split",
    "SplitInfo",
    "Trial",
    "Tuning",
    "WithoutFeatures",
    "average_precision",
    "evaluate",
    "fingerprint",
    "held_out_cold_users",
    "held_out_items",
    "held_out_users",
    "hit_matrix",
    "hit_rate",
    "html_report",
    "k_fold",
    "leave_last_split",
    "mae",
    "monitor",
    "ndcg",
    "per_user_split",
    "precision",
    "random_split",
    "read_split",
    "recall",
    "reciprocal_rank",
    "rmse",
    "sample_candidates",
    "save_split",
    "shared_test",
    "split_from_pair",
    "time_split",
    "tune",
]
