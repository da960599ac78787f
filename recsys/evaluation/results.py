"""Results of an evaluation: values with intervals, tests between models, and gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl

import recsys
from recsys.errors import DataError
from recsys.evaluation.latex import latex_table
from recsys.evaluation.metrics import CORRECTED, Metric
from recsys.evaluation.propensity import LEAST, SAMPLE_SIZE, WEIGHT
from recsys.evaluation.reliability import RELIABILITY
from recsys.evaluation.saved import (
    EvaluationDocument,
    MetricFacts,
    load_evaluation,
    save_evaluation,
)
from recsys.evaluation.settings import Settings, SplitInfo, names_of
from recsys.evaluation.slices import GROUP_VALUES, SLICES, pooled, summarized
from recsys.evaluation.staleness import STALENESS, refit_periods
from recsys.evaluation.statistics import (
    ERRORS,
    Ratio,
    adjusted,
    bca,
    bootstrap,
    jackknife,
    ratio_of,
    sign_flip,
)
from recsys.messages import counted, worded
from recsys.models.base import Step

INTERVALS = (
    "BCa bootstrap over users; coverage and gini: jackknife over users, normal "
    "quantiles"
)
TESTS = (
    "paired sign-flip test over users, two-sided; adjusted by Holm's method over the pairs of "
    "models of each metric"
)
# Columns that are summed over folds.
_ADDED = ["relevant", *dict.fromkeys(chain(*ERRORS.values()))]
# Splits whose training part may precede the test part.
_IN_TIME = ("time", "leave-last", "given")
_KEY = {"metric": pl.String, "kind": pl.String, "n": pl.Int64}
_BOUNDS = {"low": pl.Float64, "high": pl.Float64}
_MEASURED = {
    "model": pl.String,
    **_KEY,
    "value": pl.Float64,
    **_BOUNDS,
    "users": pl.Int64,
}
_COMPARED = {
    **_KEY,
    "model": pl.String,
    "other": pl.String,
    **dict.fromkeys(("difference", "low", "high", "p_value", "adjusted"), pl.Float64),
    "verdict": pl.String,
}
_BINS = _BOUNDS | {"count": pl.Int64}
_FOLD_COLUMNS = ("fold_mean", "fold_deviation", "fold_low", "fold_high")
_OF_FOLDS = {
    "model": pl.String,
    **_KEY,
    "fold": pl.Int64,
    "value": pl.Float64,
}

_WINDOWS = dict.fromkeys(("fold", "cut", "until", "users"), pl.Int64)

_LABEL = {"model": pl.String}
_FRAMES: dict[str, dict[str, Any]] = {
    "table": _LABEL | {"users": pl.Int64},
    "metrics": _MEASURED,
    "comparisons": _COMPARED,
    "per_user": _LABEL,
    "per_group": GROUP_VALUES,
    "residuals": _LABEL | _BINS,
    "folds": _OF_FOLDS,
    "slices": SLICES,
    "staleness": STALENESS,
    "reliability": RELIABILITY,
}
"""Frames of an `Evaluation`, with the columns that all have."""
_OF_MODELS = ("per_user", "per_group", "residuals", "reliability")
"""Frames that each model has of its own."""
_FACTS = (
    "settings",
    "splits",
    "counts",
    "fingerprint",
    "timed",
    "steps",
    "parameters",
)
"""Parts of an `Evaluation` that are saved as they are in its document."""
NamedValue: TypeAlias = tuple[Metric, int | None, str]
"""Metric, length of lists and name of a value."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measurements of one model, on one split or on all folds together.

    `values` has the columns of `Evaluation.per_user`. `overall` has the metrics of all
    recommendations together; `values` also has their changes when each user is left out.
    """

    values: pl.DataFrame
    overall: dict[str, float]
    residuals: pl.DataFrame | None
    steps: tuple[Step, ...]
    fit_seconds: float
    recommend_seconds: float
    parameters: dict[str, Any] = field(default_factory=dict)
    timed: bool = False  # whether predictions used the times of the test ratings
    per_group: pl.DataFrame | None = None  # values of users in groups
    reliability: pl.DataFrame | None = None
    stale: pl.DataFrame | None = None  # values of users by the first model and this one

    @property
    def per_user(self) -> pl.DataFrame:
        """The values, without metrics of all lists together, which no user has."""
        return self.values.drop(self.overall, strict=False)


def joined(runs: Sequence[Measurement], *, weighted: bool = False) -> Measurement:
    """Join the measurements on several folds.

    Counts and sums of errors are added. Other values are averaged over the folds, or over those
    that test the user; if `weighted`, each fold by its number of relevant items or positions.
    """
    first = runs[0]
    if len(runs) == 1:
        return first
    influences = list(first.overall)
    columns = []
    for name in first.values.columns:
        column = pl.col(name)
        if name in _ADDED:
            # A sum of nulls alone would be 0, which is a value.
            columns.append(pl.when(column.count() > 0).then(column.sum()).alias(name))
        elif name in influences:
            # Over all folds, as the metric; a user changes nothing in the others.
            columns.append(column.sum() / len(runs))
        elif f"{CORRECTED}@" in name or (weighted and name != "user"):
            # A user's rare items of a fold count as much as in the mean over users.
            weight = pl.col("relevant" if weighted else WEIGHT)
            weights = weight.filter(column.is_not_null())
            columns.append((column * weight).sum() / weights.sum())
        elif name != "user":
            columns.append(column.mean())
    values = pl.concat([run.values for run in runs]).group_by("user").agg(columns)
    residuals = None
    if first.residuals is not None:
        # Bins differ between folds whose ratings have different ranges.
        histograms = [run.residuals for run in runs if run.residuals is not None]
        bins = pl.concat(histograms).group_by("low", "high").agg(pl.col("count").sum())
        residuals = bins.sort("low", "high")
    slices = [run.per_group for run in runs if run.per_group is not None]
    return replace(
        first,
        per_group=pooled(slices) if slices else None,
        values=values.sort("user").select(first.values.columns),
        overall={
            name: sum(run.overall[name] for run in runs) / len(runs)
            for name in influences
        },
        residuals=residuals,
        fit_seconds=sum(run.fit_seconds for run in runs) / len(runs),
        recommend_seconds=sum(run.recommend_seconds for run in runs) / len(runs),
    )


def claimed(run: Measurement) -> Measurement:
    """Leave out corrected metrics of a few effective test items."""
    size = run.overall.get(SAMPLE_SIZE.name, LEAST)
    if size >= LEAST:
        return run
    is_corrected = [name for name in run.values.columns if f"{CORRECTED}@" in name]
    return replace(run, values=run.values.drop(is_corrected))


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of `evaluate`.

    The name of a metric is its kind, as in `METRICS`, followed by N for recommendations: "rmse",
    "ndcg@10".

    Attributes
    ----------
    table : polars DataFrame
        One row per model: model, rmse, mae, the other metrics, fit_seconds, recommend_seconds
        (means over folds), users (number of users in ranking metrics). A metric is null where it
        does not apply, such as rmse and mae of models that only rank, or on implicit feedback.
    metrics : polars DataFrame
        One row per model and metric that applies: model, metric, kind, n (null for rmse and mae),
        value, low, high (the confidence interval), users (number of users with a value).
    comparisons : polars DataFrame
        One row per pair of models and metric, except coverage and gini: metric, kind, n, model,
        other, difference (other minus model, so new minus old), low, high, p_value, adjusted (by
        Holm's method, over the pairs of models of the metric), verdict ("better" or "worse" if
        the other model is so significantly, else null).
    per_user : polars DataFrame
        One row per model and user with test ratings: model, user, relevant and ratings (numbers of
        test items), squared_error and absolute_error (sums), and the metrics, null for users
        without a value. Over several folds, numbers and sums are added, and metrics are averaged.
    per_group : polars DataFrame
        One row per model, group and user with a value in it: model, side, by, group, user, ratings,
        squared_error and absolute_error (sums over the ratings in the group, if the model
        predicts), the metrics of lists; exposure and relevance of a group of items (its shares of
        the lists and of the relevant items, means over all users).
    residuals : polars DataFrame
        Histogram of predicted minus actual ratings: model, low, high, count.
    folds : polars DataFrame
        One row per model, metric and fold (or split): model, metric, kind, n, fold (from 1), value.
    slices : polars DataFrame
        One row per model, group and metric, except those of all lists together: model, side, by,
        group, metric, users, value, low, high, gap (to the other users; of a group of items, to
        the other groups), p_value, adjusted (by Holm's method over the groups), exposure and
        relevance (share of the group in the lists, and in the relevant items, of items).
    staleness : polars DataFrame
        One row per model, length of lists and window of `time_cuts` after the first, on users with
        ratings before the first cut: model, metric (the NDCG), n, fold, cut, age (seconds since the
        first cut), users, refit and stale (the value of the model that is fitted again at this cut,
        and of the one of the first cut), loss (1 - stale / refit), low, high. The items that users
        had before the window are in neither list, and items since the first cut are misses of the
        stale model.
    reliability : polars DataFrame
        Ten rows per model, on the first fold, bins of listed items by their chances, of which each
        half of the users gives the other: model, chance (the mean), taken (share of the items that
        are relevant), low, high, count, brier (mean squared error).
    steps : dict of str to tuple of Step
        Iterations of each model on the first fold.
    measured : dict of str to Metric
    counts : dict of str to int
        Sums over folds: train_ratings, test_ratings; users_evaluated and
        users_without_test_items (not in ranking metrics); new_users, new_items, new_ratings.
    fingerprint : str
        SHA-256 of the training and test ratings of the first split.
    parameters : dict of str to dict
        Parameters of each model.
    timed : tuple of str
        Models whose predictions used the times of the test ratings. Unless the test ratings are
        the newest ones, these models also knew later ratings.
    """

    table: pl.DataFrame
    metrics: pl.DataFrame
    comparisons: pl.DataFrame
    per_user: pl.DataFrame
    per_group: pl.DataFrame
    residuals: pl.DataFrame
    folds: pl.DataFrame
    slices: pl.DataFrame
    staleness: pl.DataFrame
    reliability: pl.DataFrame
    steps: dict[str, tuple[Step, ...]]
    measured: dict[str, Metric]
    settings: Settings
    splits: tuple[SplitInfo, ...]
    counts: dict[str, int]
    fingerprint: str
    parameters: dict[str, dict[str, Any]]
    timed: tuple[str, ...] = ()

    def worded(self, sentence: str) -> str:
        """Return a sentence on ratings, which are interactions if the data have no values."""
        return worded(sentence, implicit=self.splits[0].implicit)

    @property
    def remark(self) -> str | None:
        """Reason why metrics corrected for exposure have no value, if they have none."""
        sizes = self.metrics.filter(metric=SAMPLE_SIZE.name)["value"]
        smallest = float(sizes.to_numpy().min(initial=LEAST))
        if smallest >= LEAST:
            return None
        return (
            f"the effective sample size is {smallest:.1f}, below {LEAST}: a few rare items decide "
            "the corrected metrics, which have no value"
        )

    def __repr__(self) -> str:
        tested = self.worded(counted(self.counts["test_ratings"], "test rating"))
        return (
            f"<Evaluation: {', '.join(self.table['model'])}; held out: {self.held_out}; "
            f"{tested}, "
            f"{counted(self.counts['users_evaluated'], 'user')}>"
        )

    def _repr_html_(self) -> str:
        rows = self.table.transpose(
            include_header=True, header_name="metric", column_names="model"
        )
        with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_hide_dataframe_shape=True):
            return f"<p>{escape(repr(self)[1:-1])}</p>{rows._repr_html_()}"

    def to_frame(self) -> pl.DataFrame:
        """Return `metrics` with the mean over folds, if there are several.

        The further columns are fold_mean, fold_deviation (the standard deviation), fold_low and
        fold_high: the interval of the mean by the t distribution. Folds share training ratings, so
        that this interval is too short; the one over users (low and high) is not affected.
        """
        if len(self.splits) == 1:
            return self.metrics
        # The quantile function of scipy.stats, which is slow to import.
        from scipy.special import stdtrit

        value = pl.col("value")
        of_folds = self.folds.group_by("model", "metric").agg(
            fold_mean=value.mean(), fold_deviation=value.std(), fold_high=pl.len()
        )
        n_folds = of_folds["fold_high"].to_numpy()
        quantiles = stdtrit(n_folds - 1, (1 + self.settings.confidence) / 2)
        half = pl.col("fold_deviation") * pl.Series(quantiles / np.sqrt(n_folds))
        of_folds = of_folds.with_columns(
            fold_low=pl.col("fold_mean") - half, fold_high=pl.col("fold_mean") + half
        ).select("model", "metric", *_FOLD_COLUMNS)
        return self.metrics.join(
            of_folds, on=["model", "metric"], how="left", maintain_order="left"
        )

    def to_latex(self, metrics: str | Sequence[str] | None = None) -> str:
        """Return a table of the models for a paper, in LaTeX with booktabs.

        The best value of each metric is bold, and stars mark values that are significantly worse.
        With several folds, values are means over folds, with their standard deviations.

        Parameters
        ----------
        metrics : str or sequence of str, optional
            Names such as "rmse" and "ndcg@10"; by default those that have a direction.

        Raises
        ------
        DataError
            If a metric was not measured.
        """
        values = self.to_frame()
        measured = [name for name in self.table.columns if name in {*values["metric"]}]
        directions = {
            name: self.measured[name.partition("@")[0]].direction for name in measured
        }
        if metrics is None:
            metrics = [name for name in measured if directions[name]]
        metrics = names_of(metrics)
        for name in metrics:
            if name not in measured:
                raise DataError(
                    f"There is no metric {name!r}; the evaluation has "
                    f"{', '.join(measured)}."
                )
        return latex_table(
            values,
            self.comparisons,
            {name: directions[name] for name in metrics},
            self.held_out,
        )

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Save the results in a new directory, for `load` and `recsys evaluate PATH`.

        Raises
        ------
        DataError
            If the directory exists, and is not a saved evaluation to `overwrite`.
        """
        document = EvaluationDocument(
            package_version=recsys.__version__,
            measured={
                name: MetricFacts(metric.definition, metric.direction)
                for name, metric in self.measured.items()
            },
            **{name: getattr(self, name) for name in _FACTS},
        )
        frames = {name: getattr(self, name) for name in _FRAMES}
        save_evaluation(document, frames, path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path) -> Evaluation:
        """Load saved results; custom metrics have their values, but not their functions.

        Raises
        ------
        DataError
            If the directory is not a saved evaluation, or is damaged.
        """
        document, frames = load_evaluation(path, _FRAMES)
        parts: dict[str, Any] = {**frames}
        parts |= {name: getattr(document, name) for name in _FACTS}
        measured = {
            name: metric.metric(name) for name, metric in document.measured.items()
        }
        return cls(**parts, measured=measured)

    @property
    def cuts(self) -> pl.DataFrame:
        """Values in each window of `time_cuts`: `folds` with cut, until and users.

        cut and until (null for the last window) are in seconds since 1970, and users is the number
        of users in ranking metrics. Without such windows, there are no rows.
        """
        windows = []
        for fold, split in enumerate(self.splits, 1):
            if "windows" in split.parameters:
                ends = [split.parameters.get(name) for name in ("cut", "until")]
                windows.append((fold, *ends, split.counts["users_evaluated"]))
        frame = pl.DataFrame(windows, schema=_WINDOWS, orient="row")
        return self.folds.join(frame, on="fold", maintain_order="left")

    @property
    def largest_gaps(self) -> pl.DataFrame:
        """Rows of `slices` with the largest gap of each model, column of groups and metric.

        `adjusted` is the p value of the gap, adjusted by Holm's method over the groups.
        """
        keys = ["model", "side", "by", "metric"]
        by_gap = self.slices.drop_nulls("gap").filter(pl.col("gap").is_not_nan())
        by_gap = by_gap.sort(pl.col("gap").abs(), descending=True, maintain_order=True)
        return by_gap.unique(keys, keep="first", maintain_order=True).sort(keys)

    @property
    def refit_periods(self) -> pl.DataFrame:
        """How fast models go stale: a row per model and metric of `staleness`.

        loss_per_window is the sum of the losses divided by the sum of the ages in windows.
        refit_windows and refit_seconds are the smallest age at which a refit gains: the loss
        exceeds the half-width of its interval, as the mean loss of all windows does. They are null
        if none is seen.
        """
        return refit_periods(self.staleness)

    @property
    def held_out(self) -> str:
        """Description of the test part, and of the models that knew the times of its ratings."""
        first = self.splits[0]
        folds = len(self.splits)
        if folds == 1:
            text = first.description
        elif first.method == "k-fold":
            seed = first.parameters["random_state"]
            text = self.worded(
                f"each of {folds} folds of the ratings in turn, at random (seed {seed})"
            )
        elif all(split.method == "given" for split in self.splits):
            text = f"each of {folds} given pairs of data sets in turn"
        else:
            text = f"each of {folds} splits in turn, the first one {first.description}"
        if not self.timed:
            return text
        later = "" if first.method in _IN_TIME else ", and later ratings"
        models = " and ".join(self.timed)
        return text + self.worded(f"; times of test ratings{later} known to ") + models


def fold_values(
    runs: Mapping[str, Sequence[Measurement]],
    metrics: Sequence[Metric],
    settings: Settings,
) -> pl.DataFrame:
    """Return the value of each metric of each model on each fold; see `Evaluation.folds`."""
    named_values = value_names(metrics, settings.ns)
    plain = replace(settings, resamples=0)
    frames = [pl.DataFrame(schema=_OF_FOLDS)]
    for model, of_folds in runs.items():
        for fold, run in enumerate(of_folds, 1):
            sampled = _sampled({model: run.values}, named_values, plain)
            values = _estimates({model: run}, named_values, *sampled, plain)
            frames.append(values.with_columns(fold=fold).select([*_OF_FOLDS]))
    return pl.concat(frames, how="vertical_relaxed")


def value_names(metrics: Sequence[Metric], ns: Sequence[int]) -> list[NamedValue]:
    """Return metric, N and name of each value, with rating metrics first."""
    of_lists = [m for m in metrics if m.scope in ("catalogue", "user")]
    others = [(m, None, m.name) for m in metrics if m not in of_lists]
    return others + [(m, n, f"{m.name}@{n}") for m in of_lists for n in ns]


def summarize(
    runs: Mapping[str, Measurement],
    metrics: Sequence[Metric],
    settings: Settings,
) -> dict[str, pl.DataFrame]:
    """Return the frames of an `Evaluation` by name, given one measurement per model."""
    columns = {column for run in runs.values() for column in run.values.columns}
    computable = [
        metric
        for metric in metrics
        if metric.name not in ERRORS or columns.issuperset(ERRORS[metric.name])
    ]
    named_values = value_names(computable, settings.ns)
    names_of_lists = [name for metric, _, name in named_values if metric.is_sliced]
    values = {model: run.values for model, run in runs.items()}
    sampled = _sampled(values, named_values, settings)
    estimates = _estimates(runs, named_values, *sampled, settings)
    frames = {name: _of_models(runs, name) for name in _OF_MODELS}
    return {
        "table": _table(runs, estimates, [name for *_, name in named_values]),
        "metrics": estimates,
        "comparisons": _comparisons([*runs], named_values, *sampled, settings),
        "slices": summarized(frames["per_group"], names_of_lists, settings),
        **frames,
    }


def _estimates(
    runs: Mapping[str, Measurement],
    named_values: list[NamedValue],
    ratios: Mapping[tuple[str, str], Ratio],
    replicates: Mapping[tuple[str, str], Any],
    settings: Settings,
) -> pl.DataFrame:
    """Return the values of the metrics of each model, with intervals if there are samples."""
    rows = []
    for (model, run), (metric, n, name) in product(runs.items(), named_values):
        ends: Sequence[float | None] = (None, None)
        users = run.values.height
        if name in run.values.columns:
            users = run.values[name].count()
        if name in run.overall:
            value = run.overall[name]
            if settings.resamples and users > 1 and n:
                influence = run.values[name].drop_nulls().to_numpy()
                # Coverage and gini are in [0, 1]; normal quantiles may not be.
                bounds = jackknife(value, influence, settings.confidence)
                ends = np.clip(bounds, 0, 1).tolist()
        elif (ratio := ratios.get((model, name))) is not None:
            value = ratio.value
            if replicates:
                left_out = ratio.leave_one_out()
                samples = replicates[model, name]
                ends = bca(samples, value, left_out, settings.confidence)
        else:
            continue
        rows.append((model, name, metric.name, n, value, *ends, users))
    return pl.DataFrame(rows, schema=_MEASURED, orient="row")


def _table(
    runs: Mapping[str, Measurement],
    estimates: pl.DataFrame,
    names: Sequence[str],
) -> pl.DataFrame:
    """Return a row for each model, with a column for each metric."""
    rows = []
    for model, run in runs.items():
        values = estimates.filter(model=model).select("metric", "value").iter_rows()
        row: dict[str, Any] = {"model": model} | dict.fromkeys(names) | dict(values)
        row["fit_seconds"] = run.fit_seconds
        row["recommend_seconds"] = run.recommend_seconds
        row["users"] = int((run.values["relevant"] > 0).sum())
        rows.append(row)
    schema = dict.fromkeys(rows[0], pl.Float64) | _FRAMES["table"]
    return pl.DataFrame(rows, schema=schema)


def _of_models(runs: Mapping[str, Measurement], name: str) -> pl.DataFrame:
    """Return a frame of the measurements of all models that have it."""
    frames = [pl.DataFrame(schema=_FRAMES[name])]
    for model, run in runs.items():
        frame = getattr(run, name)
        if frame is not None:
            frames.append(frame.select(pl.lit(model).alias("model"), pl.all()))
    return pl.concat(frames, how="diagonal")


def _sampled(
    values: Mapping[str, pl.DataFrame],
    named_values: list[NamedValue],
    settings: Settings,
) -> tuple[dict[tuple[str, str], Ratio], dict[tuple[str, str], Any]]:
    """Return the metrics of each model as ratios over users, and on bootstrap samples."""
    ratios: dict[tuple[str, str], Ratio] = {}
    for (model, of_users), (metric, _, name) in product(values.items(), named_values):
        ratio = _ratio(of_users, metric, name, by_position=settings.positions)
        if ratio is not None:
            ratios[model, name] = ratio
    replicates: dict[tuple[str, str], Any] = {}
    if settings.resamples and ratios and len(next(iter(ratios.values())).above) > 1:
        # In one call: the samples are the same, so that differences are paired.
        sampled = bootstrap(
            list(ratios.values()), settings.resamples, settings.random_state
        )
        replicates = dict(zip(ratios, sampled.T, strict=True))
    return ratios, replicates


def compared(
    values: Mapping[str, pl.DataFrame],
    named_values: list[NamedValue],
    settings: Settings,
) -> pl.DataFrame:
    """Return the tests of metrics between models, given the values of the same users by model."""
    sampled = _sampled(values, named_values, settings)
    return _comparisons([*values], named_values, *sampled, settings)


def combined(parts: Mapping[str, Evaluation]) -> Evaluation:
    """Return evaluations of models on the same test ratings as one, with tests between them.

    Models of the same name get the keys of `parts` as labels.

    Raises
    ------
    DataError
        If the settings, or the test ratings of the users, differ.
    """
    first_key, first = next(iter(parts.items()))
    if len(parts) == 1:
        return first
    names = [name for found in parts.values() for name in found.parameters]
    evaluations = []
    for key, found in parts.items():
        differs = found.settings != first.settings
        if differs or not _tested(found).equals(_tested(first)):
            raise DataError(
                f"{first_key} and {key} have different settings or test ratings, so their "
                "models cannot be compared; evaluate the models together."
            )
        labels = {name: name for name in found.parameters}
        for name in found.parameters:
            if names.count(name) > 1:
                labels[name] = f"{key} {name}" if len(labels) > 1 else key
        evaluations.append(_relabelled(found, labels))
    frames = {
        name: pl.concat([getattr(found, name) for found in evaluations], how="diagonal")
        for name in _FRAMES
    }
    measured: dict[str, Metric] = {}
    parameters: dict[str, dict[str, Any]] = {}
    steps: dict[str, tuple[Step, ...]] = {}
    values = {}
    for found in evaluations:
        measured |= found.measured
        parameters |= found.parameters
        steps |= found.steps
        for label in found.parameters:
            values[label] = found.per_user.filter(model=label).sort("user")
    named_values = [
        row
        for row in value_names([*measured.values()], first.settings.ns)
        if row[2] in frames["table"].columns
    ]
    frames["comparisons"] = compared(values, named_values, first.settings)
    return replace(
        first,
        **frames,
        measured=measured,
        parameters=parameters,
        steps=steps,
        timed=tuple(label for found in evaluations for label in found.timed),
    )


def _tested(found: Evaluation) -> pl.DataFrame:
    """Return the users with their numbers of test ratings."""
    of_model = found.per_user.filter(model=next(iter(found.parameters)))
    return of_model.select("user", "relevant", "ratings").sort("user")


def _relabelled(found: Evaluation, labels: Mapping[str, str]) -> Evaluation:
    """Return an evaluation with other labels of its models."""
    model = pl.col("model").replace(labels)
    frames = {name: getattr(found, name).with_columns(model) for name in _FRAMES}
    return replace(
        found,
        **frames,
        parameters={labels[name]: p for name, p in found.parameters.items()},
        steps={labels[name]: steps for name, steps in found.steps.items()},
        timed=tuple(labels[name] for name in found.timed),
    )


def _ratio(
    values: pl.DataFrame,
    metric: Metric,
    name: str,
    *,
    by_position: bool,
) -> Ratio | None:
    """Return the metric as a ratio of sums over users; None if it is not one or has no values.

    A metric `by_position` is a mean over positions, of which users have different numbers.
    """
    column, _ = ERRORS.get(name, (name, ""))
    if metric.scope == "catalogue" or column not in values.columns:
        return None
    if not values[column].count():
        return None
    weights = WEIGHT if metric.name.endswith(CORRECTED) else None
    return ratio_of(values, name, "relevant" if by_position else weights)


def _comparisons(
    models: list[str],
    named_values: list[NamedValue],
    ratios: Mapping[tuple[str, str], Ratio],
    replicates: Mapping[tuple[str, str], Any],
    settings: Settings,
) -> pl.DataFrame:
    """Test the difference of each metric between each pair of models that have it."""
    rows = []
    differences = []
    for metric, n, name in named_values:
        for one, other in combinations(models, 2):
            if not {(one, name), (other, name)} <= replicates.keys():
                continue
            old, new = ratios[one, name], ratios[other, name]
            both = (old.below > 0) & (new.below > 0)
            # A user whom only one model has says nothing about the difference.
            differences.append(np.where(both, new.above - old.above, 0.0))
            difference = new.value - old.value
            sampled = replicates[other, name] - replicates[one, name]
            left_out = new.leave_one_out() - old.leave_one_out()
            ends = bca(sampled, difference, left_out, settings.confidence)
            rows.append((name, metric.name, n, one, other, difference, *ends))
    if not rows:
        return pl.DataFrame(schema=_COMPARED)
    p_values = sign_flip(
        np.column_stack(differences), random_state=settings.random_state
    )
    columns = [*_COMPARED][: len(rows[0])]
    schema = {name: _COMPARED[name] for name in columns}
    tested = pl.DataFrame(rows, schema=schema, orient="row")
    directions = {metric.name: metric.direction for metric, *_ in named_values}
    return judged(tested.with_columns(p_value=p_values), directions, settings)


def judged(
    tested: pl.DataFrame,
    directions: Mapping[str, int],
    settings: Settings,
) -> pl.DataFrame:
    """Return comparisons with p values adjusted for each metric, and with their verdicts."""
    gain = pl.col("difference") * pl.col("kind").replace_strict(directions)
    is_significant = pl.col("adjusted") < 1 - settings.confidence
    return adjusted(tested, "metric").with_columns(
        verdict=verdict(gain, is_significant)
    )


def verdict(gain: pl.Expr, is_significant: pl.Expr) -> pl.Expr:
    """Return "better" or "worse" by the sign of a gain, null if it is not significant."""
    return (
        pl.when(is_significant & (gain > 0))
        .then(pl.lit("better"))
        .when(is_significant & (gain < 0))
        .then(pl.lit("worse"))
    )


def ranking(found: Evaluation) -> str:
    """Describe the items that recommendations are chosen from."""
    if found.splits and found.splits[0].method == "items":
        return "the held-out items alone"
    if found.settings.positions:
        if found.splits[0].repeats == "keep":
            return "all items, at each position of the test histories"
        return (
            "all items that did not come before, at each position of the test histories"
        )
    if found.settings.candidates is None:
        return "all items that the user has not rated in the training part"
    return (
        f"SAMPLED: each user's relevant items among {found.settings.candidates:,} random others; "
        "not comparable with metrics over all items (Krichene and Rendle 2020)"
    )


def named(metric: str, found: Evaluation) -> str:
    """Return the name of a metric, marked if it uses sampled candidates."""
    is_sampled = found.settings.candidates is not None and metric not in ERRORS
    return f"{metric} (sampled)" if is_sampled else metric


def best_model(found: Evaluation, metric: str) -> str | None:
    """Return the model with the best value; None if the metric has no direction."""
    direction = found.measured[metric.partition("@")[0]].direction
    values = found.metrics.filter(pl.col("metric") == metric)
    position = (values["value"] * direction).arg_max() if direction else None
    return None if position is None else str(values["model"][position])


def significantly_worse(found: Evaluation) -> set[tuple[str, str]]:
    """Return the (model, metric) pairs that differ significantly from the metric's best model."""
    worse = set()
    is_significant = pl.col("adjusted") < 1 - found.settings.confidence
    for row in found.comparisons.filter(is_significant).to_dicts():
        best = best_model(found, row["metric"])
        if best == row["model"]:
            worse.add((row["other"], row["metric"]))
        elif best == row["other"]:
            worse.add((row["model"], row["metric"]))
    return worse


def only(found: Evaluation, ns: Sequence[int]) -> Evaluation:
    """Return the evaluation restricted to lists of the lengths `ns`."""
    ns = tuple(sorted(set(ns)))
    other_lengths = [f"@{n}" for n in found.settings.ns if n not in ns]

    def without(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.select(
            c for c in frame.columns if f"@{c.partition('@')[2]}" not in other_lengths
        )

    has_length = pl.col("n").is_null() | pl.col("n").is_in(ns)
    # Errors have no length.
    length = pl.col("metric").str.extract(r"(@\d+)$").fill_null("")
    is_other = length.is_in(other_lengths)
    return replace(
        found,
        table=without(found.table),
        metrics=found.metrics.filter(has_length),
        comparisons=found.comparisons.filter(has_length),
        per_user=without(found.per_user),
        per_group=without(found.per_group),
        folds=found.folds.filter(has_length),
        staleness=found.staleness.filter(has_length),
        slices=found.slices.filter(~is_other),
        settings=replace(found.settings, ns=ns),
    )
