"""Measurement of models: fit to the training part of a task, measure lists and errors."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lowrank.kernels import pieces
from recsys.data.arrays import Doubles
from recsys.data.ratings import Ratings, has_ratings, restricted
from recsys.errors import DataError
from recsys.evaluation.metrics import (
    METRICS,
    Lists,
    Metric,
    grades_of,
    highest_grades,
    recommended_counts,
)
from recsys.evaluation.propensity import (
    SAMPLE_SIZE,
    corrected,
    corrected_values,
    effective_sample_size,
)
from recsys.evaluation.reliability import reliability
from recsys.evaluation.results import (
    Measurement,
    value_names,
)
from recsys.evaluation.slices import Grouping
from recsys.evaluation.splits import (
    COLD,
    Split,
)
from recsys.evaluation.tasks import OTHER_RATINGS, RankingTask
from recsys.models.abilities import FoldsInUsers, fold, unsupported
from recsys.models.base import Model, Step, predicted_ratings
from recsys.models.histories import Histories
from recsys.models.parts import Floats
from recsys.models.registry import make_model
from recsys.predictions import clip_to_range
from recsys.recommender import Recommender

NO_FEATURES = ":no-features"
"""Suffix of a model name: fit the model without the features of the ratings."""


@dataclass(frozen=True, slots=True)
class WithoutFeatures:
    """Model to fit without the features of the ratings, for a comparison with the same one."""

    model: Model

    @property
    def name(self) -> str:
        """Name of the model with the suffix ``:no-features``."""
        return self.model.name + NO_FEATURES


ModelLike = Model | Recommender | WithoutFeatures | str

_BLOCK = 2**20  # recommendations measured together
_MOST_LISTS = 20_000  # for the reliability of chances
_BINS = 40  # bins of the histogram of residuals


def check_folding(model: Model, split: Split) -> None:
    """Check that a model can fold in the users of a split's history, if there is one.

    Raises
    ------
    DataError
        If it cannot; the message lists the models that can.
    """
    has_new_users = split.history is not None or split.method == "sessions"
    if not has_new_users or isinstance(model, FoldsInUsers):
        return
    action = (
        "fold in new users, as a split by users or an evaluation by position requires"
    )
    raise unsupported(model, FoldsInUsers, action)


def with_history(model: Model, history: Ratings | None) -> Model:
    """Return the model with the test users folded in from their histories, if there are any."""
    if history is None or not isinstance(model, FoldsInUsers):
        return model
    return fold(model, "user", Histories.of(history))


def _fitted(
    model: ModelLike,
    split: Split,
    on_step: Callable[[Step], None] | None,
) -> tuple[Recommender, tuple[Step, ...]]:
    """Return the model, fitted to the training part unless it is fitted, and its iterations."""
    train = split.train
    if isinstance(model, str) and model.endswith(NO_FEATURES):
        model = WithoutFeatures(make_model(model.removesuffix(NO_FEATURES)))
    if isinstance(model, WithoutFeatures):
        model = model.model
        train = replace(train, item_features=None, user_features=None)
    recommender = model if isinstance(model, Recommender) else Recommender(model)
    check_folding(recommender.model, split)
    steps: list[Step] = []

    def listen(step: Step) -> None:
        steps.append(step)
        if on_step is not None:
            on_step(step)

    if recommender is not model:
        recommender.fit(train, features=False, on_step=listen)
    elif not (
        recommender.ratings.shape == train.shape
        and np.array_equal(recommender.ratings.indptr, train.indptr)
        and np.array_equal(recommender.ratings.indices, train.indices)
        and np.array_equal(recommender.ratings.values, train.values)
    ):
        raise DataError(OTHER_RATINGS)
    return recommender, tuple(steps)


def measure(
    model: ModelLike,
    task: RankingTask,
    ns: Sequence[int],
    metrics: Sequence[Metric],
    on_step: Callable[[Step], None] | None,
    groups: Sequence[Grouping] = (),
    confidence: float = 0.0,
) -> tuple[Measurement, Model]:
    """Fit a model to the training part, unless it is fitted, and measure it on the test part.

    The fitted model is returned, too. With a `confidence`, the chances of its lists are measured
    with intervals.
    """
    split = task.split
    begun = time.perf_counter()
    recommender, steps = _fitted(model, split, on_step)
    fitted = time.perf_counter()
    served = recommender.model
    if task.positions is None:
        served = with_history(served, split.history)
    lists = scores = None
    if any(metric.scope != "ratings" for metric in metrics):
        lists, scores = task.scored_lists(served)
    listed = time.perf_counter()
    errors = _errors(served, recommender.training, task)
    columns = {"relevant": task.counts, **_sums_of_errors(errors, task)}
    overall: dict[str, float] = {}
    slices = reliable = None
    if lists is not None and scores is not None:
        # Positions and candidates have other chances than lists for users.
        if confidence and task.positions is None and task.candidates is None:
            reliable = _reliability(lists, scores, task, confidence)
        of_lists, overall = measure_lists(lists, task, ns, metrics)
        of_all = of_lists
        if task.inverse is not None:
            variants = corrected(metrics)
            of_all = of_lists | corrected_values(
                lists, task.users, task.inverse, ns, variants
            )
            weights = task.inverse.values.astype(np.float64)
            overall[SAMPLE_SIZE.name] = effective_sample_size(weights)
        columns |= {name: task.of_users(values) for name, values in of_all.items()}
        if groups:
            slices = _sliced(groups, lists, task, ns, metrics, of_lists, errors)
    uses_times = served.uses_times and split.test.seconds is not None
    measurement = Measurement(
        _of_test_users(columns, split.test),
        overall,
        None if errors is None else _histogram(errors, recommender.training),
        steps,
        fit_seconds=fitted - begun,
        recommend_seconds=listed - fitted,
        parameters=recommender.model.get_params(),
        timed=uses_times and errors is not None,
        per_group=slices,
        reliability=reliable,
    )
    return measurement, recommender.model


def _errors(
    model: Model,
    training: Mapping[str, Any],
    task: RankingTask,
) -> Doubles | None:
    """Return the errors of the predicted test ratings, None without such predictions."""
    test = task.split.test
    if training["implicit"] or test.implicit or task.positions is not None:
        return None
    if not model.predicts_ratings:
        return None
    predicted = clip_to_range(predicted_ratings(model, test), training)
    return np.subtract(predicted, test.values, dtype=np.float64)


def _sums_of_errors(errors: Doubles | None, task: RankingTask) -> dict[str, Any]:
    """Return the number of test ratings of each user, and the sums of their errors."""
    test = task.split.test
    n_users = test.n_users
    missing = np.full(n_users, np.nan)
    if errors is None:
        counts = test.counts("user") if task.positions is None else task.counts
        return {"ratings": counts, "squared_error": missing, "absolute_error": missing}
    rows = test.user_index_of_nonzeros()
    columns: dict[str, Any] = {
        "ratings": test.counts("user"),
        "squared_error": np.bincount(rows, errors**2, n_users),
        "absolute_error": np.bincount(rows, np.abs(errors), n_users),
    }
    if task.split.method in COLD:
        is_cold = task.split.is_new
        for part, mask in (("warm", ~is_cold), ("cold", is_cold)):
            squares = np.bincount(rows[mask], errors[mask] ** 2, n_users)
            columns[f"{part}_squared_error"] = squares
            columns[f"{part}_ratings"] = np.bincount(rows[mask], minlength=n_users)
    return columns


def _histogram(errors: Doubles, training: Mapping[str, Any]) -> pl.DataFrame:
    """Return the numbers of errors in bins up to the range of the ratings on both sides."""
    width = training["rating_max"] - training["rating_min"] or 1.0
    edges = np.linspace(-width, width, _BINS + 1)
    counts, _ = np.histogram(np.clip(errors, -width, width), edges)
    return pl.DataFrame({"low": edges[:-1], "high": edges[1:], "count": counts})


def _reliability(
    lists: Lists,
    scores: Floats,
    task: RankingTask,
    confidence: float,
) -> pl.DataFrame:
    """Return how well chances hold in the lists, or in a sample of many lists."""
    # More lists would not make the bins more exact.
    sample = slice(None, None, -(-len(lists) // _MOST_LISTS))
    hits = task.hits(sample, lists[sample])
    return reliability(scores[sample], hits, confidence)


def _of_test_users(columns: Mapping[str, Any], test: Ratings) -> pl.DataFrame:
    """Return a row for each user with test ratings, with null for NaN."""
    users = np.flatnonzero(columns["ratings"])
    values = {
        name: pl.Series(of_users[users], nan_to_null=True)
        for name, of_users in columns.items()
    }
    return pl.DataFrame({"user": test.users.take(users), **values})


def stale_lists(
    model: Model,
    first: RankingTask,
    task: RankingTask,
    ns: Sequence[int],
) -> pl.DataFrame:
    """Return the NDCG in a later window of a model of the first cut, for users it knows.

    Users had the items before the window, also those since the first cut.
    """
    old, split = first.split.train, task.split
    old_users = old.users.find(split.test.users.values)
    is_known = (old_users >= 0) & has_ratings(old)[old_users]
    rows = np.flatnonzero(is_known[task.users])
    is_old_item = old.items.find(split.test.items.values) >= 0
    seen, test = (
        restricted(part, old_users >= 0, is_old_item)
        for part in (split.train, split.test)
    )
    earlier = replace(
        first,
        split=replace(split, train=seen, test=test),
        users=old_users[task.users[rows]],
    )
    lists = earlier.recommend(model)
    # Items have other indices in the later window.
    items = split.test.items.find(old.items.values)
    listed = np.where(lists >= 0, items[lists], -1).astype(np.int32)
    later = replace(task, users=task.users[rows], catalogue=None)
    values, _ = measure_lists(listed, later, ns, [METRICS["ndcg"]])
    users = split.test.users.take(later.users)
    return pl.DataFrame({"user": users, **values})


def _sliced(
    groups: Sequence[Grouping],
    lists: Lists,
    task: RankingTask,
    ns: Sequence[int],
    metrics: Sequence[Metric],
    of_all: dict[str, Doubles],
    errors: Doubles | None,
) -> pl.DataFrame:
    """Return the metrics of each user in each group of users, or for each group of items.

    For a group of items, only its items are relevant. Its share of the lists is the exposure, and
    its share of the relevant items the relevance, as means over all users. The `errors` of test
    ratings are summed over the ratings of the users, or of the items.
    """
    test = task.split.test
    raters = test.user_index_of_nonzeros()
    of_lists = [metric for metric in metrics if metric.is_sliced]
    names = [name for *_, name in value_names(of_lists, ns)]
    parts = []
    named_members = [
        (group, *named)
        for group in groups
        for named in zip(group.names, group.members, strict=True)
    ]
    for group, group_name, is_member in named_members:
        exposure = relevance = np.nan
        if group.side == "user":
            is_rated = is_member[raters]
            values = {
                name: np.where(is_member, task.of_users(of_all[name]), np.nan)
                for name in names
            }
        else:
            is_rated = is_member[test.indices]
            # The lists stay as they are: hits are counted among the items of the group.
            relevant = task.relevant.take(is_member[task.relevant.indices])
            n_relevant = relevant.counts("user")[task.users]
            rows = np.flatnonzero(n_relevant)
            part = replace(task, relevant=relevant, users=task.users[rows])
            of_rows, _ = measure_lists(lists[rows], part, ns, of_lists)
            values = {name: part.of_users(of_rows[name]) for name in names}
            # Over all users: those with relevant items of the group have more of them.
            is_listed = lists >= 0
            n_listed = np.maximum(is_listed.sum(axis=1), 1)
            n_of_group = (is_listed & is_member[lists]).sum(axis=1)
            exposure = float((n_of_group / n_listed).mean())
            relevance = float((n_relevant / task.n_relevant).mean())
        sums = {"ratings": is_rated.astype(np.float64)}
        if errors is not None:
            sums["squared_error"] = is_rated * errors**2
            sums["absolute_error"] = is_rated * np.abs(errors)
        totals = {
            name: np.bincount(raters, of_ratings, test.n_users)
            for name, of_ratings in sums.items()
        }
        of_users = _of_test_users(totals | values, test)
        names_of_group = [
            pl.lit(group.side).alias("side"),
            pl.lit(group.by).alias("by"),
            pl.lit(group_name).alias("group"),
        ]
        shares = {"exposure": pl.lit(exposure), "relevance": pl.lit(relevance)}
        parts.append(of_users.select(*names_of_group, pl.all(), **shares))
    sliced = pl.concat(parts)
    if sliced.is_empty():
        raise DataError("No test user is in any of the groups.")
    return sliced


def measure_lists(
    lists: Lists,
    task: RankingTask,
    ns: Sequence[int],
    metrics: Sequence[Metric],
) -> tuple[dict[str, Doubles], dict[str, float]]:
    """Return the metrics of each of the task's lists, and of all lists together.

    `lists` has shape (n_lists, N), and no length in `ns` exceeds N. A metric of all lists together
    refers to the allowed items; its array of users holds its change when the user is left out.

    Raises
    ------
    DataError
        If a custom metric does not return one finite value (or NaN) per user.
    """
    catalogue = task.catalogue
    n_items = task.split.train.n_items
    listed = lists
    if task.allowed is not None:  # number the allowed items only
        n_items = int(np.count_nonzero(task.allowed))
        numbers = np.append(np.cumsum(task.allowed) - 1, -1)
        listed = numbers.astype(np.int32)[lists]
    aligned: dict[str, NDArray[Any]] = {"n_relevant": task.n_relevant}
    arrays: dict[str, Any] = {}
    if catalogue is not None:
        aligned["profile"] = catalogue.profile(task.split.seen, task.users)
        arrays = {name: getattr(catalogue, name) for name in catalogue.__slots__}
    if any(metric.uses_grades for metric in metrics):
        train = task.split.train
        aligned["users"] = task.users
        arrays |= {"train": train, "highest": float(train.values.max())}
    counts = {n: recommended_counts(listed[:, :n], n_items) for n in ns}
    of_lists = [metric for metric in metrics if metric.scope != "ratings"]
    blocks: dict[str, list[Doubles]] = {
        f"{metric.name}@{n}": [np.zeros(0)] for metric in of_lists for n in ns
    }
    step = max(1, _BLOCK // lists.shape[1])  # limits temporary arrays
    for rows in pieces(len(lists), step):
        hits = task.hits(rows, lists[rows])
        arrays |= {name: values[rows] for name, values in aligned.items()}
        for metric, n in itertools.product(of_lists, ns):
            arrays |= {"lists": lists[rows, :n], "hits": hits[:, :n]}
            if metric.uses_grades:
                users = task.users[rows]
                arrays["grades"] = grades_of(lists[rows, :n], users, task.relevant)
                arrays["ideal"] = highest_grades(n, users, task.relevant)
            if metric.influence is None:
                metric_values = metric._of_users(arrays)
            else:
                metric_values = metric.influence(listed[rows, :n], counts[n])
            returned = np.asarray(metric_values)
            if returned.shape != hits.shape[:1] or returned.dtype.kind not in "biuf":
                raise DataError(
                    f"The metric {metric.name} must return one number per user, shape "
                    f"{hits.shape[:1]}; got {returned.dtype} of shape {returned.shape}."
                )
            values = returned.astype(np.float64)
            if np.isinf(values).any():
                raise DataError(
                    f"The metric {metric.name} must return finite values, or NaN where it has "
                    "none; got infinity."
                )
            blocks[f"{metric.name}@{n}"].append(values)
    overall = {
        f"{metric.name}@{n}": float(metric.function(counts[n]))
        for metric, n in itertools.product(of_lists, ns)
        if metric.influence is not None
    }
    return {name: np.concatenate(parts) for name, parts in blocks.items()}, overall
