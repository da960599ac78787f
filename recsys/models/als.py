"""Alternating least squares: a matrix factorization of the observed ratings, with biases."""

from __future__ import annotations

import copy
import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from lowrank import kernels
from lowrank.completion import linked_als, links
from lowrank.completion.als import AlsSweep, als_sweeps, solve_rows
from lowrank.completion.cold_start import mean_covariance
from lowrank.kernels import Stored, at_most
from recsys.errors import DataError
from recsys.models.base import Progress
from recsys.models.histories import Histories
from recsys.models.nonnegative import strongest_first
from recsys.models.parameters import (
    model,
    overflow_error,
    parameter,
    random_state_parameter,
    threads_parameter,
)
from recsys.models.parts import OTHER, AnyFloats, Doubles, Floats, Indices
from recsys.models.vector_model import Priors, VectorModel

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings

_CHECKED = 2**20  # ratings per block when checking, which copies them
# Penalty of non-negative factors in units of the regularization. Without biases it shrinks whole
# ratings, and shrinks all alike if it grows with their number.
_PART_PENALTY = 1 / 13
_FEW = 2**21  # ratings
_STORED = 2**25  # numbers in the covariances of items that are kept for explanations


@model
class ALS(VectorModel):
    """Predict a rating as ``mu + b_u + c_i + a_u . m_i``, fitted by alternating least squares.

    The ridge penalty of a user or item with n ratings is ``regularization * n**count_power``, for
    ratings scaled to standard deviation 1. With features of items or users (`with_features`), the
    vectors are shrunk towards a prediction from the features instead of zero.

    With `nonnegative`, a rating is predicted as a sum of parts, ``a_u . m_i``, and no number in the
    factors is negative: each factor is a topic of items (see `recsys.Recommender.topics`). There is
    no mean, no bias and no use of features, and ratings must not be negative. The penalty then
    shrinks ratings instead of their differences from biases. It is
    ``regularization / 13 * n**(2 * count_power)``, by default 0.1 for each rating.

    References
    ----------
    Zhou, Wilkinson, Schreiber and Pan (2008), "Large-scale parallel collaborative filtering for
    the Netflix prize", section 3. Koren, Bell and Volinsky (2009), "Matrix factorization
    techniques for recommender systems". Kim and Park (2011), "Fast nonnegative matrix
    factorization: an active-set-like method and comparisons".
    """

    name = "als"
    summary = "Ratings of many users and items: accurate, fast, any number of threads."
    _scores_between_sweeps: ClassVar[bool] = True
    _keeps_best_sweep: ClassVar[bool] = True

    factors: int = parameter(32, "Number of latent factors.", low=4, high=128, log=True)
    regularization: float = parameter(
        1.3,
        "Ridge penalty, for ratings of standard deviation 1.",
        low=0.1,
        high=10.0,
        log=True,
    )
    count_power: float = parameter(
        0.5,
        "Power of the number of ratings in the penalty: 0 is plain ridge.",
        low=0.0,
        high=1.0,
    )
    linked: bool = parameter(
        False, "Learn also from which items a user rated: slower, more accurate."
    )
    link_penalty: float = parameter(
        10.0, "Ridge penalty on the implicit-feedback (who rated what) term."
    )
    nonnegative: bool = parameter(
        False, "Predict ratings by sums of non-negative parts (topics), without biases."
    )
    iterations: int = parameter(20, "Maximum number of sweeps (users, then items).")
    tol: float = parameter(
        1e-4,
        "Stop when a sweep lowers the objective by less than this fraction of it.",
        minimum=0,
    )
    random_state: int = random_state_parameter()
    threads: int | None = threads_parameter()

    @property
    def uses_features(self) -> bool:  # type: ignore[override]
        """True unless the factors are non-negative."""
        return not self.nonnegative

    def _fit(self, ratings: Ratings, progress: Progress) -> None:
        if self.nonnegative:
            self._check_parts(ratings)
        sweeps = self._sweeps(ratings)
        self._take_best(sweeps, progress)
        del sweeps  # frees the transpose of the ratings
        if self.nonnegative:
            self.item_factors = strongest_first(self.item_factors)
        # Solve the users again, so that folding in a training user returns the same vector.
        histories = Histories.of(ratings, ratings.user_features)
        if self.priors is None:  # without links and features
            entries = ratings.coded or histories.csr
            self.user_factors, self.user_bias = self._plain_rows("user", entries)
            return
        vars(self).update(self._side("user", self._solved_rows("user", histories)))
        with at_most(self.threads):
            self._fit_features(ratings)

    def _take_best(self, sweeps: Generator[AlsSweep], progress: Progress) -> None:
        """Set the arrays of the last sweep, or of the one with the lowest validation RMSE."""
        # The best sweep is kept without users, which follow from the items and the mean.
        names = ("global_mean", "item_bias", "item_factors", "priors")
        best = {}
        previous = math.inf
        for number, sweep in enumerate(islice(sweeps, self.iterations), start=1):
            if not math.isfinite(sweep.objective):
                raise overflow_error(self, "regularization", "count_power")
            self._take(sweep)
            progress.report(self, number, self.iterations, sweep.objective, sweep.rmse)
            if progress.is_best:
                best = {name: getattr(self, name) for name in names}
                if progress.validation is not None:
                    # The next sweep writes to the same arrays.
                    best = copy.deepcopy(best)
            gain = previous - sweep.objective
            if progress.is_over or gain <= self.tol * sweep.objective:
                break
            previous = sweep.objective
        vars(self).update(best)

    def _sweeps(self, ratings: Ratings) -> Generator[AlsSweep]:
        matrix = ratings.coded or ratings.matrix
        regularization, count_power = self._penalty
        if self.nonnegative:
            mean, deviation = ratings.mean_and_std()
            # Sweeps without biases have another unit.
            scale = math.hypot(mean, deviation) or 1.0
            regularization *= self.rating_std / scale
        shared: dict[str, Any] = {
            "regularization": regularization,
            "count_power": count_power,
            "random_state": self.random_state,
            "threads": self.threads,
        }
        if self.nonnegative:
            return als_sweeps(
                matrix, self.factors, biases=False, nonnegative=True, **shared
            )
        if not self.linked and ratings.user_features is ratings.item_features is None:
            return als_sweeps(matrix, self.factors, **shared)
        return linked_als.linked_als_sweeps(
            matrix,
            self.factors,
            link_penalty=self.link_penalty if self.linked else 0.0,
            row_features=ratings.user_features,
            column_features=ratings.item_features,
            **shared,
        )

    def _take(self, sweep: AlsSweep) -> None:
        """Set the fitted arrays from a sweep."""
        factors = sweep.factors
        self.global_mean = factors.mean
        self.user_bias, self.item_bias = factors.row_bias, factors.column_bias
        self.user_factors = factors.row_factors
        self.item_factors = factors.column_factors
        if isinstance(sweep, linked_als.LinkedSweep):
            priors = []
            for prior in (sweep.row_prior, sweep.column_prior):
                link = prior.link if self.linked else prior.link[:0]
                precision = self._precision(np.float32)
                priors.append(replace(prior, precision=precision, link=link))
            self.priors = Priors.from_priors(*priors)

    @property
    def _penalty(self) -> tuple[float, float]:
        """The ridge penalty of a row with one rating, and the power of its count."""
        if self.nonnegative:
            return self.regularization * _PART_PENALTY, 2 * self.count_power
        return self.regularization, self.count_power

    def _precision(self, dtype: type) -> AnyFloats:
        regularization, _ = self._penalty
        return links.ridge_precision(
            self.factors, regularization, self.rating_std, dtype
        )

    def _prior(self, side: str) -> links.RowPrior:
        """Return the prior of the vectors of users (or items)."""
        if self.priors is not None:
            return super()._prior(side)
        d = self.factors + 1
        _, count_power = self._penalty
        return links.RowPrior(
            np.zeros(d), self._precision(float), np.zeros((0, d)), count_power
        )

    def _plain_rows(self, side: str, entries: Stored) -> tuple[Floats, Floats]:
        """Return the factors and biases of users (or items) without links and features."""
        factors, bias = self._vectors_of(OTHER[side])
        regularization, count_power = self._penalty
        return solve_rows(
            entries,
            factors,
            bias,
            mean=self.global_mean,
            regularization=regularization,
            scale=self.rating_std,
            count_power=count_power,
            biases=not self.nonnegative,
            nonnegative=self.nonnegative,
            threads=self.threads,
        )

    def _user_terms(self, histories: Sequence[Histories]) -> list[links.Terms]:
        """Return the vector of each user as a sum over the entries and features."""
        if not self.nonnegative:
            return super()._user_terms(histories)
        return [self._nonnegative_terms(history) for history in histories]

    def _nonnegative_terms(self, row: Histories) -> links.Terms:
        """Return the vector of a user without negative factors as a sum over its ratings."""
        source = self._source
        factors, _ = source._vectors_of("item")
        rated = factors[row.indices].astype(np.float64)
        regularization, count_power = self._penalty
        n = max(len(rated), 1)
        penalty = regularization * self.rating_std * n**count_power
        system = rated.T @ rated + penalty * np.eye(self.factors)
        solution, _ = source._plain_rows("user", row.csr)
        # A non-negative solution solves the normal equations of its positive entries. On these it
        # is a sum over ratings, as an unconstrained solution is.
        support = np.flatnonzero(solution[0] > 0)
        d = self.factors + 1  # without a bias, the last
        on_support = np.eye(d)
        on_support[np.ix_(support, support)] = system[np.ix_(support, support)]
        parts = np.zeros((len(rated), d))
        parts[:, support] = rated[:, support] * row.values[:, None]
        none = np.zeros((0, d))
        inverse = kernels.solve_positive(on_support, np.eye(d))
        return links.Terms(inverse, np.zeros(d), parts, none, none, np.eye(d))

    def _check_parts(self, ratings: Ratings) -> None:
        """Check that ratings can be fitted by non-negative factors."""
        if self.linked:
            raise DataError(
                "als fits either linked or nonnegative factors; leave one of them out."
            )
        for block in kernels.pieces(ratings.nnz, _CHECKED):
            values = ratings.values_at(block)
            if values.min() < 0:
                position = block.start + int(np.argmax(values < 0))
                user = np.searchsorted(ratings.indptr, position, "right") - 1
                item = ratings.indices[position]
                raise DataError(
                    "als with nonnegative=True needs ratings that are not negative; got "
                    f"{ratings.values_at(slice(position, position + 1))[0]:g} of user "
                    f"{ratings.users.values[int(user)]!r} for item "
                    f"{ratings.items.values[int(item)]!r}."
                )

    def _solved_rows(self, side: str, histories: Histories) -> links.Posterior:
        # Without links and features the prior mean is zero, for which there is a faster kernel.
        if self.priors is None:
            factors, bias = self._plain_rows(side, histories.csr)
            return links.Posterior.exactly(np.column_stack([factors, bias]))
        with at_most(self.threads):
            return links.posterior_rows(
                histories.csr,
                self._posterior(OTHER[side]),
                self._prior(side),
                mean=self.global_mean,
                features=histories.features,
            )

    def _mean_covariance(self, side: str, histories: Histories) -> Doubles:
        sample = links.sampled_rows(histories.counts)
        sampled = histories.take(sample)
        posterior = links.exact_posterior(
            sampled.csr,
            self._posterior(OTHER[side]).mean,
            self._prior(side),
            self._posterior(side, sample).mean,
            self.global_mean,
        )
        return mean_covariance(posterior, sampled.counts)

    def _item_covariance(self, items: Indices, fitted: Ratings) -> Floats:
        source = self._source
        stored: dict[int, Floats] = {}
        factors, cached = vars(source).get("_covariances", (None, stored))
        if factors is source.item_factors:
            stored = cached
        missing = [item for item in items.tolist() if item not in stored]
        if missing:
            # Of few ratings, the covariances of all items take less time than a fit's sweep.
            rows = np.array(missing)
            if fitted.nnz <= _FEW:
                rows = np.arange(self.n_items)
            covariance = source._solved_covariance(Histories.of_items(fitted, rows))
            solved = dict(zip(rows.tolist(), covariance, strict=True))
            if len(stored) * covariance.shape[1] > _STORED:
                stored = {
                    item: stored[item] for item in items.tolist() if item in stored
                }
            # Other threads keep what they have read.
            stored = stored | solved
            vars(source)["_covariances"] = source.item_factors, stored
        return np.array([stored[item] for item in items.tolist()])

    def _solved_covariance(self, histories: Histories) -> Floats:
        """Return the covariances of the vectors of items with some histories."""
        prior = self._prior("item")
        # The inverses of systems with large condition numbers need double precision.
        prior = replace(
            prior,
            mean=prior.mean.astype(np.float64),
            precision=prior.precision.astype(np.float64),
        )
        entries = histories.csr
        posterior = links.exact_posterior(
            entries._replace(data=entries.data.astype(np.float64)),
            self._posterior("user").mean.astype(np.float64),
            prior,
            np.zeros((histories.n_rows, self.factors + 1)),
            self.global_mean,
        )
        return posterior.covariance.astype(np.float32)
