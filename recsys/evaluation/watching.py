"""How good a model is between the sweeps of its fit, measured on a few validation users."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from recsys.evaluation import metrics
from recsys.evaluation.measuring import with_history
from recsys.evaluation.metrics import Counts, Doubles, Hits
from recsys.evaluation.parts import has_ratings, restricted
from recsys.evaluation.ranking import Task
from recsys.evaluation.sampling import Trial
from recsys.evaluation.split import Split
from recsys.models.base import Model, Step

__all__ = ["MOST_USERS", "Watch", "is_due", "is_hopeless"]

MOST_USERS = 500
_COMPARED_WITH = 5  # complete trials before any is pruned
_FIRST = 2  # the first sweep after which is looked

_RANKING: Mapping[str, Callable[[Hits, Counts], Doubles]] = {
    "precision": lambda hits, _: metrics.precision(hits),
    "recall": metrics.recall,
    "hit_rate": lambda hits, _: metrics.hit_rate(hits),
    "map": metrics.average_precision,
    "mrr": lambda hits, _: metrics.reciprocal_rank(hits),
    "ndcg": metrics.ndcg,
}


@dataclass(frozen=True, slots=True)
class Watch:
    """Measures a model that is still being fitted.

    Attributes
    ----------
    metric : str
        "rmse", "mae", or a ranking metric such as "ndcg@10".
    split : Split
        Of the test users, some.
    """

    metric: str
    split: Split

    @classmethod
    def of(cls, metric: str, split: Split, seed: int) -> Watch:
        """Choose at most `MOST_USERS` of the users with test ratings, at random."""
        users = np.flatnonzero(has_ratings(split.test))
        chosen = np.zeros(split.test.n_users, dtype=np.bool_)
        chosen[np.random.default_rng(seed).permutation(users)[:MOST_USERS]] = True
        if split.history is None:
            rows = chosen[split.test.user_index_of_nonzeros()]
            return cls(metric, replace(split, test=split.test.take(rows)))
        every = np.ones(split.test.n_items, dtype=np.bool_)
        test, history = (restricted(part, chosen, every) for part in (split.test, split.history))
        return cls(metric, replace(split, test=test, history=history))

    def __call__(self, model: Model) -> float:
        """Return the metric of the model as it is, not clipped to the range of the ratings."""
        served = with_history(model, self.split.history)
        kind, _, n = self.metric.partition("@")
        test = self.split.test
        if not n:
            error = metrics.rmse if kind == "rmse" else metrics.mae
            return error(served.predict(test.user_index_of_nonzeros(), test.indices), test.values)
        task = Task.of(self.split, int(n))
        hits = metrics.hit_matrix(task.recommend(served), task.users, test)
        return float(np.mean(_RANKING[kind](hits, task.n_relevant)))


def is_due(step: Step) -> bool:
    """Whether to look after this sweep: the 2nd, 4th, 8th, 16th and so on."""
    return step.step >= _FIRST and step.step & (step.step - 1) == 0


def is_hopeless(curve: Sequence[float], before: Sequence[Trial], *, minimise: bool = True) -> bool:
    """Whether the best so far is worse than the median of what complete trials had by then.

    Parameters
    ----------
    curve : sequence of float
        Of the trial that runs.
    before : sequence of Trial
        Five of them at least must be complete and have a curve.
    minimise : bool
        Whether smaller values are better.
    """
    others = [trial.curve for trial in before if trial.state == "complete" and trial.curve]
    if len(others) < _COMPARED_WITH or not curve:
        return False
    best = min if minimise else max
    middle = median(best(other[: len(curve)]) for other in others)
    return best(curve) > middle if minimise else best(curve) < middle
