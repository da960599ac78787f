"""Base classes of the models: declared parameters, fitted arrays, and scores from indices.

A model class declares its parameters and the arrays that `fit` sets. Saving, loading, checks of
values and shapes, and the error "not fitted yet" follow from the declarations::

    @model
    class Constant(Model):
        name = "constant"
        summary = "The same rating for every pair."
        value: float = parameter(3.0, "Predicted rating.", low=1.0, high=5.0)
        n_users: int = fitted()
        n_items: int = fitted()

Models know integer indices only; `recsys.Recommender` translates ids.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from lowrank import kernels
from recsys.accuracy import rmse
from recsys.errors import DataError, NotFittedError
from recsys.models.factor_form import FactorForm
from recsys.models.histories import Explanation, Histories, csr_rows
from recsys.models.parameters import Parameter, fitted, model, parameter
from recsys.models.parts import (
    OTHER,
    AnyFloats,
    Array,
    ArrayReader,
    Doubles,
    Floats,
    Indices,
    Ints,
    Longs,
    Part,
    arrays_of,
    part,
    put_rows,
    record,
    rows_taken,
    saved,
    values_of,
)
from recsys.provenance import FitRequest
from recsys.ranking.topn import checked_scores, unmasked

if TYPE_CHECKING:
    from lowrank.completion.feature_ridge import GroupedFeatures
    from recsys.data.ratings import Ratings

_COUNTED = 2**20  # ratings per block when counting, which copies them
_FAR = 1e9  # from 1: powers of such ratings may leave single precision
_PAIRS = 2**16  # pairs scored at a time
_SCORES = 2**22  # scores computed at a time for pairs, without a form: 16 MB
_PATIENCE = 3  # sweeps without a better validation RMSE before the fit stops


@dataclass(frozen=True, slots=True)
class Step:
    """Progress of an iterative fit, passed to ``on_step`` after each iteration.

    Attributes
    ----------
    step, total : int
        Number of iterations done, and its maximum.
    objective : float or None
        The minimised penalised sum of squares; for bayes, minus the free energy.
    train_rmse, validation_rmse : float or None
    """

    step: int
    total: int
    objective: float | None = None
    train_rmse: float | None = None
    validation_rmse: float | None = None


OnStep = Callable[[Step], None] | None


class Progress:
    """Reports of a fit, and early stopping by the RMSE on held-out ratings.

    Attributes
    ----------
    on_step : callable or None
        Called with a `Step` after each iteration.
    validation : Ratings or None
        Without held-out ratings, every sweep is the best.
    trials : mapping of str to Model
        Models by name, fitted to a part of the same ratings: what they have chosen is not searched
        for again.
    deadline : float
        Time, by `time.perf_counter`, after which no sweep begins.
    is_best, is_over : bool
        Whether the last sweep is the best so far, and whether it is the last one: the RMSE has
        stopped improving, or it is late.
    """

    def __init__(
        self,
        on_step: OnStep = None,
        validation: Ratings | None = None,
        trials: Mapping[str, Model] | None = None,
        deadline: float = math.inf,
    ) -> None:
        self.deadline = deadline
        self.on_step = on_step
        self.validation = validation
        self.trials = trials or {}
        self.is_best = True
        self.is_over = False
        self._best = math.inf
        self._n_worse = 0

    def report(
        self,
        model: Model | None,
        step: int,
        total: int,
        objective: float | None = None,
        train_rmse: float | None = None,
    ) -> None:
        """Report a step, and measure the model if it can score between steps."""
        error = None if model is None else validation_rmse(model, self.validation)
        if self.on_step is not None:
            self.on_step(Step(step, total, objective, train_rmse, error))
        # Without held-out ratings every sweep counts as the best, so that the last one
        # is kept.
        if error is not None:
            self.is_best = error < self._best
            self._best = min(error, self._best)
            self._n_worse = 0 if self.is_best else self._n_worse + 1
            self.is_over = self._n_worse >= _PATIENCE
        if self.is_late:
            self.is_over = True

    @property
    def is_late(self) -> bool:
        """True if the deadline has passed."""
        return time.perf_counter() > self.deadline


def checked_predictions(
    model: Model,
    users: Indices | Ints,
    items: Indices | Ints,
    **options: Any,
) -> Floats:
    """Return predictions of pairs; a masked one is NaN.

    Raises
    ------
    DataError
        If they are not one number for each pair, as of a model of one's own.
    """
    predicted = unmasked(model.predict(users, items, **options), np.nan)
    if predicted.shape != users.shape or predicted.dtype.kind not in "biuf":
        raise DataError(
            f"The predictions of the {model.name} model must be one number for each pair, shape "
            f"{users.shape}; got {predicted.dtype} of shape {predicted.shape}."
        )
    return predicted


def predicted_ratings(model: Model, held_out: Ratings) -> Floats:
    """Return predictions of held-out ratings, at their times if the model uses times.

    Raises
    ------
    DataError
        If they are not finite numbers, one for each rating, as of a model of one's own.
    """
    users = held_out.user_index_of_nonzeros()
    options = {}
    if model.uses_times and held_out.seconds is not None:
        options["times"] = held_out.timestamps
    predicted = checked_predictions(model, users, held_out.indices, **options)
    # An error of NaN would be worse or better than nothing.
    is_finite = np.isfinite(predicted)
    if not is_finite.all():
        position = int(is_finite.argmin())
        raise DataError(
            f"The predictions of the {model.name} model must be finite; got "
            f"{predicted[position]} for the user of index {users[position]} and the item of index "
            f"{held_out.indices[position]}."
        )
    return predicted


def validation_rmse(model: Model, held_out: Ratings | None) -> float | None:
    """Return the RMSE of a model on held-out ratings, or None without such ratings."""
    if held_out is None:
        return None
    return rmse(predicted_ratings(model, held_out), held_out.values)


def check_indices(
    indices: ArrayLike,
    size: int,
    what: str,
) -> Indices:
    """Return `indices` as a one-dimensional int64 array, checked to be in ``range(size)``.

    Raises
    ------
    TypeError
        If they are not a one-dimensional array of integers.
    IndexError
        If an index is not in ``range(size)``; negative indices do not wrap around.
    """
    array = np.asarray(indices)
    if array.ndim == 0:
        array = array[None]
    if array.size == 0:
        return np.zeros(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(
            f"{what} indices must be a one-dimensional array of integers; "
            f"got {array.dtype} of shape {array.shape}."
        )
    longs = array.astype(np.int64, copy=False)
    # As unsigned numbers, negative ones are the largest.
    if longs.view(np.uint64).max() >= size:
        bad = array[(array < 0) | (array >= size)][0]
        raise IndexError(f"{what} indices must be between 0 and {size - 1}; got {bad}.")
    return longs


def obscurity(
    log_counts: AnyFloats,
    most: float,
    rating_std: float,
) -> Floats:
    """Return ``rating_std * max(log(1 + most) - log_counts, 0)`` for each item."""
    behind = np.maximum(np.log1p(most) - log_counts.astype(np.float64), 0)
    return np.asarray(rating_std * behind, np.float32)


@dataclass(kw_only=True, eq=False)
class Model:
    """A model of ratings or of implicit feedback.

    Attributes
    ----------
    name : str
        The name in `recsys.models.registry.MODELS`.
    summary : str
        When to use the model, in one line.
    predicts_ratings : bool
        Whether `predict` estimates ratings, so that RMSE and MAE apply.
    uses_weights : bool
        Whether the model uses the weights of implicit feedback.
    uses_zeros : bool
        Whether the model uses dislikes and impressions.
    uses_features : bool
        Whether the model uses features of items and users.
    uses_times : bool
        Whether the fitted model can predict a rating at a given time.
    uses_order : bool
        Whether the order of a history counts.
    remarks : tuple of str
        Choices made by the fit, one line each.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    predicts_ratings: ClassVar[bool] = True
    uses_weights: ClassVar[bool] = True
    uses_zeros: ClassVar[bool] = False
    uses_features: ClassVar[bool] = False
    uses_times = False
    uses_order = False
    remarks: ClassVar[tuple[str, ...]] = ()
    _parameters: ClassVar[tuple[Parameter, ...]] = ()
    _needs_values: ClassVar[bool] = False  # whether `fit` rejects implicit feedback
    _scores_between_sweeps: ClassVar[bool] = (
        False  # whether it can score in ``on_step``
    )
    # Whether `fit` keeps the sweep with the best validation RMSE.
    _keeps_best_sweep: ClassVar[bool] = False
    # Of the axes of the arrays of a loaded model.
    _sizes: ClassVar[Mapping[str, int]] = {}

    if TYPE_CHECKING:

        @property
        def n_users(self) -> int: ...  # noqa: D102

        @property
        def n_items(self) -> int: ...  # noqa: D102

    else:

        def __getattr__(self, name: str) -> Any:
            """Raise NotFittedError for a fitted array that is not set, else AttributeError."""
            if any(name == f.name for f in fields(self) if not f.init):
                raise NotFittedError(
                    f"The {self.name} model is not fitted yet; call fit first."
                )
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}"
            )

    def __post_init__(self) -> None:
        for declared in self.parameters():
            value = declared.checked(getattr(self, declared.name))
            setattr(self, declared.name, value)

    @classmethod
    def parameters(cls) -> tuple[Parameter, ...]:
        """Return the declared parameters in their order."""
        return cls._parameters

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the values of the parameters by name; `deep` is ignored."""
        return {
            declared.name: getattr(self, declared.name)
            for declared in self.parameters()
        }

    @property
    def _request(self) -> FitRequest:
        """The model's name, and its parameters that are not the defaults."""
        defaults = {declared.name: declared.default for declared in self.parameters()}
        values = self.get_params().items()
        changed = {name: value for name, value in values if value != defaults[name]}
        return FitRequest(self.name, changed)

    def _plan(self, ratings: Ratings) -> Ratings:
        """Decide from the ratings what to fit, and return them in the form that is fitted."""
        return ratings

    @property
    def _takes_features(self) -> bool:
        """Return whether features of the ratings would be used, after `_plan`."""
        return self.uses_features

    def _with_request(self, request: FitRequest) -> Self:
        """Set what a request has in addition to the parameters of the model."""
        return self

    def _found_params(self) -> dict[str, Any]:
        """Return the parameters that the fit has chosen on held-out interactions."""
        return {}

    def _trial_params(self, ratings: Ratings) -> dict[str, Any]:
        """Return the parameters of fits that are only compared with others, or weighted."""
        return self.get_params()

    def set_params(self, **params: Any) -> Self:
        """Set some of the parameters, for the next `fit`.

        Raises
        ------
        DataError
            If a parameter does not exist, or a value has another type or is out of range.
        """
        declared = {p.name: p for p in self.parameters()}
        values: dict[str, Any] = {}
        for name, value in params.items():
            if name not in declared:
                names = ", ".join(declared) or "none"
                raise DataError(
                    f"The {self.name} model has no parameter {name!r}; it has {names}."
                )
            values[name] = declared[name].checked(value)
        for name, value in values.items():
            setattr(self, name, value)
        return self

    def fit(
        self,
        ratings: Ratings,
        *,
        on_step: OnStep = None,
        validation: Ratings | None = None,
    ) -> Self:
        """Fit to `ratings`.

        Parameters
        ----------
        ratings : Ratings
            Ratings with values, or implicit feedback.
        on_step : callable, optional
            Called with a `Step` after each iteration.
        validation : Ratings, optional
            Held-out ratings of the same users and items, for the RMSE in each `Step`. Fits of
            als and variational bayes stop when it no longer falls, and keep their best sweep.

        Raises
        ------
        DataError
            If the model needs values and `ratings` are implicit, or if the fit fails.
        """
        if not hasattr(ratings, "indptr"):
            raise DataError(
                f"A model is fitted to Ratings; got {type(ratings).__name__}. Ratings.from_frame "
                "makes them, and a Recommender around the model takes frames and paths."
            )
        ratings = self._graded(ratings)
        if self._needs_values and ratings.implicit:
            reason = "these have no rating column (implicit feedback)"
            if ratings.feedback is not None and ratings.feedback.kind == "counts":
                reason = "these are counts of interactions (--scale LOW,HIGH reads them as grades)"
            raise DataError(
                f"The {self.name} model needs ratings with values, but {reason}; use a model of "
                "implicit feedback such as spectral, ease or popular."
            )
        return self._fit_checked(
            ratings.as_interactions(), Progress(on_step, validation)
        )

    def _graded(self, ratings: Ratings) -> Ratings:
        """Return likes and dislikes as grades, for a model that needs values."""
        if self._needs_values and ratings.implicit and ratings.rule.has_zeros:
            return ratings.with_dislikes_as_grades()
        return ratings

    def _fit_checked(self, ratings: Ratings, progress: Progress) -> Self:
        """Fit to checked ratings, after forgetting the parts of an earlier fit.

        The parameters stay as they are requested, so that another fit chooses again.
        """
        for declared in fields(self):
            if "part" in declared.metadata:
                vars(self).pop(declared.name, None)
        # What a trial has chosen holds for this fit; the request is restored after it.
        requested = self.get_params()
        if self.name in progress.trials:
            self.set_params(**progress.trials[self.name]._found_params())
        largest = max(map(abs, ratings.value_range())) if ratings.nnz else 1.0
        if largest and not 1 / _FAR <= largest <= _FAR:
            self._fit_extreme(ratings, progress)
        else:
            self._prepare(ratings)
            self._fit(ratings, progress)
        return self.set_params(**requested)

    def _fit_extreme(self, ratings: Ratings, progress: Progress) -> None:
        """Fit to ratings so large or small that their powers may leave single precision.

        Raises
        ------
        DataError
        """
        try:
            with np.errstate(over="raise", invalid="raise", divide="raise"):
                self._prepare(ratings)
                self._fit(ratings, progress)
                self._check_finite()
        except (FloatingPointError, DataError) as error:
            position = int(np.abs(ratings.values).argmax())
            user = ratings.users.values[int(ratings.user_index_of_nonzeros()[position])]
            item = ratings.items.values[int(ratings.indices[position])]
            value = ratings.values[position]
            raise DataError(
                f"The fit of {self.name} exceeds single precision: the largest rating is "
                f"{value:g}, of item {item!r} by user {user!r}; scale the ratings to about 1."
            ) from error

    def _prepare(self, ratings: Ratings) -> None:
        """Compute statistics of the ratings before the fit."""

    @abstractmethod
    def _fit(self, ratings: Ratings, progress: Progress) -> None:
        """Set the fitted arrays."""

    def _chosen(self, ratings: Ratings) -> tuple[Model, Ratings, str | None]:
        """Return the model to keep after a fit, its training data, and the reason for it."""
        return self, ratings, None

    def _check_finite(self) -> None:
        """Check that the arrays of a fit are finite."""
        for name, array in self._arrays().items():
            if array.dtype.kind != "f":
                continue
            with np.errstate(invalid="ignore"):  # inf - inf
                # Unlike isfinite, a sum allocates no array.
                total = array.sum(dtype=np.float64)
            if not np.isfinite(total):
                raise DataError(
                    f"The fit of {self.name} diverged: {name} has values that are not finite; "
                    "choose parameters nearer to their defaults."
                )

    def predict(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Return predicted ratings of pairs, shape (n_pairs,); by default, the ranking scores."""
        return self.pair_scores(users, items)

    def scores(self, users: ArrayLike) -> Floats:
        """Return ranking scores of all items, (n_block, n_items); the caller may overwrite them.

        Rounding depends on the block (see `_score_error`).
        """
        # Most models are products of factors or sparse sums, and have no other code for
        # scores.
        form = self._factor_form(users)
        if form is None:
            raise DataError(
                f"The {self.name} model must define `scores(self, users)`: a row for each user "
                "with the score of each item."
            )
        return form.scores(self._threads)

    def pair_scores(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Return ranking scores of pairs, shape (n_pairs,); independent of the other pairs."""
        u, i = self._checked_pairs(users, items)
        is_factored = self._factor_form(u[:0]) is not None
        size = _PAIRS if is_factored else max(1, _SCORES // max(1, self.n_items))
        pair_scores = np.empty(len(u), np.float32)
        # Users in order share a form or scores, which are made once for each user of a block.
        order = np.argsort(u, kind="stable")
        for block in np.array_split(order, max(1, -(-len(u) // size))):
            distinct, rows = np.unique(u[block], return_inverse=True)
            form = self._factor_form(distinct)
            if form is None:
                pair_scores[block] = checked_scores(self, distinct)[rows, i[block]]
            else:
                pair_scores[block] = form.pairs(rows, i[block], self._threads)
        return pair_scores

    def _checked_pairs(
        self, users: ArrayLike, items: ArrayLike
    ) -> tuple[Indices, Indices]:
        u = check_indices(users, self.n_users, "user")
        return u, check_indices(items, self.n_items, "item")

    def _checked_history(
        self, history: Histories, items: ArrayLike
    ) -> tuple[Indices, Indices]:
        """Return the items whose scores are explained, and the items of the history."""
        columns = check_indices(items, self.n_items, "item")
        return columns, check_indices(history.indices, self.n_items, "item")

    @property
    def _threads(self) -> int | None:
        threads: int | None = getattr(self, "threads", None)
        return threads

    def _features_of(self, side: str) -> Any:
        """Return what the model has learned from features of users (or items), if anything."""
        features = vars(self).get("features")
        return None if features is None else features.of(side)

    def knows(self, side: str) -> bool:
        """Return whether the model uses features of `side`, "item" or "user"."""
        return self._features_of(side) is not None

    @property
    def _source(self) -> Self:
        """The originally fitted model, if users or items were folded into it; else this one."""
        source: Self = vars(self).get("_source_model", self)
        return source

    def _item_totals(self, fitted: Ratings) -> tuple[Longs, Doubles]:
        """Return the number of ratings of each item of a fit, and their sum above zero; cached."""
        cached: tuple[Any, Longs, Doubles] | None = vars(self._source).get("_totals")
        if cached is None or cached[0] is not fitted.indices:
            positive = np.maximum(fitted.values, 0)
            sums = np.bincount(fitted.indices, positive, fitted.n_items)
            cached = fitted.indices, fitted.counts("item"), sums.astype(np.float64)
            vars(self._source)["_totals"] = cached
        return cached[1:]

    def _score_error(self, users: ArrayLike) -> Floats | None:
        """Return a bound on the rounding difference ``|scores - pair_scores|`` for each user.

        None means that both are equal bit for bit. Otherwise top-N search returns `pair_scores`.
        """
        form = self._factor_form(users)
        # A sum of an offset, a bias and a sparse part has the same bits in any order.
        if form is None or not form.items.shape[1]:
            return None
        return form.error()

    def _factor_form(self, users: ArrayLike) -> FactorForm | None:
        """Return the scores in factored form, or None if they have no such form."""
        return None

    def _arrays(self, prefix: str = "") -> dict[str, Array]:
        """Return the fitted arrays by name without copying them; scalars have shape ()."""
        return arrays_of(self, prefix)

    @classmethod
    def _from_arrays(
        cls,
        params: Mapping[str, Any],
        arrays: Mapping[str, Array],
        prefix: str = "",
    ) -> Self:
        """Return a fitted model that shares memory with `arrays`, after checking them.

        Their names begin with `prefix`.
        """
        # Parameters come first: some arrays exist only for some of their values.
        result = cls(**params)
        reader = ArrayReader(getattr(cls, "name", cls.__name__), arrays)
        for name, value in reader.fields(result, prefix):
            setattr(result, name, value)
        result._check_arrays()
        vars(result)["_sizes"] = reader.sizes
        return result

    def _check_features(self, side: str, n_features: int) -> None:
        """Check that the arrays of a saved model have a row for each feature of `side`."""
        n_rows = self._sizes.get(f"n_{side}_features", n_features)
        if n_rows != n_features:
            raise ValueError(
                f"the model has {n_rows} features of {side}s instead of {n_features}"
            )

    def _check_arrays(self) -> None:
        """Check the arrays of a saved model beyond their shapes and types."""

    def _with(self, **changed: Any) -> Self:
        """Return a copy of the model with some fitted arrays and parts replaced."""
        # Caches of this model are not fields, and stay behind.
        result = type(self)(**self.get_params())
        fitted_values = {declared.name: value for declared, value in values_of(self)}
        vars(result).update(fitted_values | changed)
        return result

    def _rearranged(self, **rows: Indices) -> Self:
        """Return the model with only the given rows of `user` or `item`; see `rows_taken`."""
        return self._with(**rows_taken(self, rows))

    def _put(
        self,
        other: Model,
        side: str,
        rows: Indices,
    ) -> None:
        """Take the rows of some users (or items) from another model."""
        vars(self).update(put_rows(self, other, side, rows))


class FoldingModel(Model):
    """A model that can fold in new users for fixed items, and new items for fixed users."""

    @abstractmethod
    def _solved(self, side: str, histories: Histories) -> dict[str, Any]:
        """Return the arrays and parts of users given the items, or of items given the users."""

    def _counted(self, side: str, histories: Histories) -> dict[str, Any]:
        """Return the arrays that only depend on the number of ratings of each row."""
        return {}

    def with_users(self, histories: Histories) -> Self:
        """Return the model with these users instead of its own, and the same items.

        A training user with the same ratings gets an identical vector.
        """
        folded = self._folded("user", histories)
        vars(folded)["_source_model"] = self._source
        return folded

    def with_items(self, histories: Histories) -> Self:
        """Return the model with these items instead of its own, and the same users."""
        return self._folded("item", histories)

    def _folded(self, side: str, histories: Histories) -> Self:
        other = OTHER[side]
        n_others = self.n_users if other == "user" else self.n_items
        check_indices(histories.indices, n_others, other)
        counted = self._counted(side, histories)
        return self._with(**counted, **self._solved(side, histories))


@record
class CountMap(Part):
    """The prediction of ``log(1 + count)`` of an item from its features."""

    mean: float = saved()
    weights: Floats = saved("n_item_features")

    @classmethod
    def fit(cls, features: GroupedFeatures, counts: Longs) -> Self:
        """Fit the map to the counts of items with ratings."""
        from lowrank.completion.cold_start import fit_cold_map  # only with features

        log_counts = np.log1p(counts).astype(np.float32)[:, None]
        # The variance of the logarithm of a Poisson count is about its inverse.
        variance = np.mean(1 / (1 + counts[counts > 0]))
        is_rated = np.minimum(counts, 1)
        fit = fit_cold_map(log_counts, is_rated, features, np.full((1, 1), variance))
        return cls(mean=float(fit.mean[0]), weights=fit.coefficients[:, 0].copy())


@model
class RatingModel(Model):
    """A model that predicts ratings, and ranks items by predicted rating and popularity.

    Lists by predicted rating alone begin with obscure items that a few users rated highly. Ranking
    scores also reflect the odds that an item is chosen at all, a power of its number of ratings.

    Attributes
    ----------
    item_obscurity : float32 ndarray of shape (n_items,)
        Standard deviation of the ratings times ``log(1 + most_ratings) - log(1 + count)``. Ranking
        scores are predictions minus `popularity` times this. For an item without ratings, features
        predict ``log(1 + count)`` if there are any.
    """

    _needs_values: ClassVar[bool] = True

    popularity: float = parameter(
        0.3,
        "Weight of an item's number of ratings in lists; 0 ranks by the predicted rating alone.",
        low=0.0,
        high=1.0,
    )
    rating_std: float = fitted()
    most_ratings: int = fitted()
    item_obscurity: Floats = fitted("n_items")
    item_counts: CountMap | None = part(CountMap)

    if TYPE_CHECKING:
        item_bias: Floats

    def _prepare(self, ratings: Ratings) -> None:
        """Count the ratings of items, and fit a prediction of the counts from features."""
        counts = np.zeros(ratings.n_items, np.int64)
        for start in range(0, ratings.nnz, _COUNTED):
            block = ratings.indices[start : start + _COUNTED]
            counts += np.bincount(block, minlength=ratings.n_items)
        # Equal ratings have no deviation, and penalties are in units of it.
        self.rating_std = ratings.mean_and_std()[1] or 1.0
        self.most_ratings = int(counts.max(initial=0))
        features = ratings.item_features if self.uses_features else None
        rows = csr_rows(features)
        if features is not None and rows is not None:
            self.item_counts = CountMap.fit(features, counts)
        self.item_obscurity = self._obscurity(counts, rows)

    def _obscurity(self, counts: Longs, features: kernels.CsrArrays | None) -> Floats:
        log_counts: AnyFloats = np.log1p(counts)
        if self.item_counts is not None:
            predicted = np.full(len(counts), self.item_counts.mean)
            if features is not None:
                weights = self.item_counts.weights[:, None]
                predicted += kernels.csr_matmat(features, weights)[:, 0]
            log_counts = np.where(counts > 0, log_counts, np.maximum(predicted, 0))
        return obscurity(log_counts, self.most_ratings, self.rating_std)

    def _counted(self, side: str, histories: Histories) -> dict[str, Any]:
        if side == "user":
            return {}
        # A new user changes no counts of items.
        discount = self._obscurity(histories.counts, histories.features)
        return {"item_obscurity": discount}

    @property
    def _list_bias(self) -> Floats:
        """Item biases minus the discount for few ratings; cached."""
        arguments = self.item_bias, self.item_obscurity, self.popularity
        # Every list of a single user needs it, and it takes as long as the search.
        cached = vars(self).get("_cached_list_bias")
        if cached is None or any(
            a is not b for a, b in zip(cached[0], arguments, strict=True)
        ):
            discount = np.float32(self.popularity) * self.item_obscurity
            cached = arguments, self.item_bias - discount
            vars(self)["_cached_list_bias"] = cached
        bias: Floats = cached[1]
        return bias

    def _explanation(
        self,
        base: Array,
        terms: Array,
        items: Indices,
        **features: Floats,
    ) -> Explanation:
        """Return scores of items as sums: predictions minus the discount for few ratings."""
        discount = None
        if self.popularity:
            discount = -np.float32(self.popularity) * self.item_obscurity[items]
        return Explanation(
            base.astype(np.float32),
            terms.astype(np.float32),
            **features,
            popularity=discount,
        )


@model
class FactorModel(Model):
    """A model whose prediction is ``mu + b_u + c_i + a_u . m_i``."""

    _needs_values: ClassVar[bool] = True

    global_mean: float = fitted()
    user_bias: Floats = fitted("n_users")
    item_bias: Floats = fitted("n_items")
    user_factors: Floats = fitted("n_users", "k")
    item_factors: Floats = fitted("n_items", "k")

    @property
    def n_users(self) -> int:
        """Number of users of the training ratings."""
        return len(self.user_bias)

    @property
    def n_items(self) -> int:
        """Number of items of the training ratings."""
        return len(self.item_bias)

    def item_vectors(self) -> Floats:
        """Return vectors whose cosine is the similarity of two items, shape (n_items, k)."""
        return self.item_factors

    def user_vectors(self) -> Floats:
        """Return vectors whose cosine is the similarity of two users, shape (n_users, k)."""
        return self.user_factors

    def _vectors_of(self, side: str) -> tuple[Floats, Floats]:
        """Return the factors and biases of users (or items)."""
        if side == "user":
            return self.user_factors, self.user_bias
        return self.item_factors, self.item_bias

    def predict(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Predict the ratings of pairs, shape (n_pairs,); independent of the other pairs."""
        return self._sums(users, items, self.item_bias)

    def pair_scores(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Return ranking scores of pairs, shape (n_pairs,): predictions with `_list_bias`."""
        return self._sums(users, items, self._list_bias)

    @property
    def _list_bias(self) -> Floats:
        """Item biases in ranking scores."""
        return self.item_bias

    def _sums(
        self,
        users: ArrayLike,
        items: ArrayLike,
        item_bias: Floats,
    ) -> Floats:
        u, i = self._checked_pairs(users, items)
        sums = self.user_bias[u] + self.global_mean + item_bias[i]
        sums += kernels.pair_dots(self.user_factors, self.item_factors, u, i)
        return sums

    def _factor_form(self, users: ArrayLike) -> FactorForm:
        """Return the factors; a model that overrides `predict` must override this too."""
        u = check_indices(users, self.n_users, "user")
        offset = self.user_bias[u] + self.global_mean
        return FactorForm(
            self.user_factors[u], self.item_factors, offset, self._list_bias
        )
