r"""Linear filters such as `spectral`: item-item weights of sparse plus low-rank form.

The scores of a user with history r are ``r D (g N'N + V f V') E``, where N is the matrix of
interactions with scaled rows and columns, V its leading right singular vectors, and D and E are
diagonal. The linear part ``g D N'N E`` is stored as sparse rows, possibly only their largest
weights, and the low-rank part as factors. The compiled top-N search adds both.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from lowrank import kernels
from lowrank.kernels import CsrArrays
from lowrank.kernels.retrieval import gram_rows
from lowrank.subspace import leading_directions
from recsys.errors import DataError
from recsys.models.base import Model, Progress, check_indices
from recsys.models.factor_form import FactorForm
from recsys.models.histories import Histories
from recsys.models.item_item import HistoryModel, ProfileModel
from recsys.models.parameters import (
    fitted,
    model,
    parameter,
    random_state_parameter,
    threads_parameter,
)
from recsys.models.parts import OTHER, Array, Floats, Indices, Ints, Longs
from recsys.saving.arrays import check_sorted_rows

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings

_STEPS = 3  # of subspace iteration from random columns
_EXTRA = 64  # oversampling: columns of the random subspace beyond the factors
_BLOCK = 2**22  # weights computed at a time: 32 MB, which are used again
_MOST_WEIGHTS = 2**26  # maximum number of stored weights: 512 MB
_SAMPLE = 256  # sampled items for estimating the number of weights
_PRODUCTS = 1.5e12  # maximum number of products for scoring all items for all users
_PRODUCTS_EACH = 2e5  # the same per interaction, if that is more
# Relative singular value below which a direction is rounding error.
_NO_DIRECTION = 1e-4


def power_parameter(side: str, default: float) -> Any:
    """Declare the exponent of the scale factors of users (or items)."""
    what = f"{side}s with many {OTHER[side]}s"
    description = f"Exponent by which {what} are weighted down."
    return parameter(default, description, low=0.0, high=1.0)


@model
class LinearFilter(ProfileModel, HistoryModel):
    """A model whose item-item weights are sparse rows plus a product of factors.

    Subclasses define the scaling of rows, columns and directions.

    Attributes
    ----------
    weighted : bool
        Whether interactions have weights other than 1, which are stored.
    history_weights : float32 ndarray
        The weights in the order of `history_items`.
    item_weight, item_output : float32 ndarrays of shape (n_items,)
        The diagonals D and E.
    singular_values : float32 ndarray of shape (k,)
    item_factors : float32 ndarray of shape (n_items, k)
        Right singular vectors times `item_output`.
    item_order : int32 ndarray of shape (n_items,)
        Items by decreasing length of their factors.
    weight_indptr, weight_places, weight_values : int64, int32 and float32 ndarrays
        Linear filter as CSR arrays, with a row for each item of the histories. Columns are
        positions in `item_order`.
    """

    # Items without users are mostly less popular than others with their features. With this share,
    # they take no places from better items in the lists of known users (ml-latest-small).
    _new_item_share: ClassVar[float] = 0.4

    weighted: bool = fitted()
    history_weights: Floats = fitted("n_interactions", when="weighted")
    item_weight: Floats = fitted("n_items")
    item_output: Floats = fitted("n_items")
    singular_values: Floats = fitted("k")
    item_factors: Floats = fitted("n_items", "k")
    item_order: Ints = fitted("n_items", when="linear")
    weight_indptr: Longs = fitted("n_items + 1", when="linear")
    weight_places: Ints = fitted("n_weights", when="linear")
    weight_values: Floats = fitted("n_weights", when="linear")

    if TYPE_CHECKING:
        factors: int | None
        user_power: float
        item_power: float
        linear: bool
        neighbors: int | None
        random_state: int
        threads: int | None
        _is_cut: bool  # whether only the largest weights are kept

    @abstractmethod
    def _begin(self, ratings: Ratings) -> None:
        """Set the attributes that `_counting` needs, and `weighted`."""

    @abstractmethod
    def _outputs(
        self,
        sums: Array,
        squares: Array,
        vectors: Floats,
    ) -> Floats:
        """Return the diagonal E, given total weights, sums of squares and vectors of items."""

    @property
    @abstractmethod
    def _slope(self) -> float:
        """Factor g of the linear part."""

    @property
    @abstractmethod
    def _response(self) -> Floats:
        """Factors f of the singular directions, shape (k,)."""

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.item_weight)

    def _n_factors(self, ratings: Ratings) -> int:
        """Return the number of directions, by default from the size of the data."""
        return self.factors or default_factors(*ratings.shape, ratings.n_ratings)

    def _fit(self, ratings: Ratings, progress: Progress) -> None:
        """Compute the singular vectors of the scaled interactions of `ratings`."""
        self._begin(ratings)
        self._take_histories(Histories.of(ratings))
        histories = self._all_histories()
        sums = np.bincount(histories.indices, histories.values, ratings.n_items)
        self.item_weight = power(sums, -self.item_power)
        scaled = np.repeat(self._user_scale(), histories.counts)
        scaled *= self.item_weight[histories.indices]
        if self.weighted:
            scaled *= histories.values
        squares = np.bincount(histories.indices, scaled**2, ratings.n_items)
        k = min(self._n_factors(ratings), *ratings.shape)
        start = self._start(progress.trials, k, ratings.n_ratings)
        with kernels.at_most(self.threads):
            vectors, self.singular_values = leading_directions(
                CsrArrays(histories.indptr, histories.indices, scaled),
                ratings.n_items,
                k,
                steps=_STEPS if start is None else 1,
                extra=_EXTRA,
                start=start,
                random_state=self.random_state,
            )
        del scaled
        self.item_output = self._outputs(sums, squares, vectors)
        self.item_factors = vectors
        self.item_factors *= self.item_output[:, None]
        if self.linear:
            self._set_weights(self, histories)
        self._fit_profiles(ratings)

    def _start(
        self, trials: Mapping[str, Model], k: int, n_ratings: int
    ) -> Floats | None:
        """Return k directions of another filter, scaled for this one, or None.

        Directions of less than half of the ratings are too far from this fit.
        """
        filters = [
            trial
            for trial in trials.values()
            if isinstance(trial, LinearFilter)
            and len(trial.singular_values) >= k
            and 2 * len(trial.history_items) >= n_ratings
        ]
        if not filters:
            return None
        filters.sort(key=lambda trial: trial.name != self.name)
        nearest = filters[0]
        scale = self.item_weight * inverse_of(nearest.item_output)
        scale *= inverse_of(nearest.item_weight)
        return nearest.item_factors * scale[:, None]

    def _factor_form(self, users: ArrayLike) -> FactorForm:
        """Return the factors, with the linear filter as sparse part."""
        u = check_indices(users, self.n_users, "user")
        history = self._all_histories().take(u)
        vectors = self._vectors(history)
        vectors *= self._response
        vectors = self._user_columns(vectors, history.csr, u)
        sparse = None
        if self.linear:
            sparse = kernels.SparsePart(history.csr, self._weights, self.item_order)
        return FactorForm(vectors, self._item_columns(self.item_factors), sparse=sparse)

    def _terms(self, history: Histories, items: Indices) -> Floats:
        n = len(history.indices)
        # Scores are linear: they are sums over users who have one of the items each.
        single = Histories(np.arange(n + 1), history.indices, history.values)
        users = np.tile(np.arange(n), len(items))
        scores = self.with_users(single).predict(users, np.repeat(items, n))
        return scores.reshape(len(items), n)

    def item_vectors(self) -> Floats:
        """Return vectors whose cosine is the similarity of two items, shape (n_items, k)."""
        return self.item_factors * (
            inverse_of(self.item_output)[:, None] * self.singular_values
        )

    def user_vectors(self) -> Floats:
        """Return vectors whose cosine is the similarity of two users, shape (n_users, k)."""
        return self._vectors(self._all_histories())

    def _check_arrays(self) -> None:
        super()._check_arrays()
        if self.linear:
            n_items = self.n_items
            check_sorted_rows(
                "weights", self.weight_indptr, self.weight_places, n_items, n_items
            )
            if (np.sort(self.item_order) != np.arange(n_items)).any():
                raise DataError("The order of the items must name each item once.")

    def _renumber(
        self,
        changes: dict[str, Any],
        side: str,
        new_index: Indices,
    ) -> None:
        if self.linear and side == "item":  # new items, with zero factors, come last
            new = np.arange(len(self.item_order), len(new_index))
            order = new_index[np.append(self.item_order, new)]
            changes["item_order"] = order.astype(np.int32)

    def _take_histories(self, histories: Histories) -> None:
        self.history_indptr, self.history_items = histories.indptr, histories.indices
        if self.weighted:
            self.history_weights = self._counting(histories)

    def _set_weights(self, source: Self, of_users: Histories) -> None:
        """Set the linear filter, with a row for each item that users of `source` have.

        `of_users` has the items to score, by user.
        """
        length = np.einsum("ij,ij->i", self.item_factors, self.item_factors)
        self.item_order = np.argsort(-length, kind="stable").astype(np.int32)
        column_of = np.empty_like(self.item_order)
        column_of[self.item_order] = np.arange(self.n_items)
        of_items = _transposed(source._all_histories(), source.n_items).csr
        rows = partial(
            gram_rows,
            CsrArrays(
                of_users.indptr,
                column_of[of_users.indices],
                np.ascontiguousarray(of_users.values),
            ),
            weight=source._user_scale() ** 2 * np.float32(source._slope),
            out=(self.item_weight * self.item_output)[self.item_order],
            threads=self.threads,
        )
        scale = source.item_weight**2
        n_kept = min(self.neighbors or self.n_items, self.n_items)
        if self.neighbors is None:  # estimate the number of weights from sampled rows
            positions = np.linspace(0, source.n_items - 1, _SAMPLE).astype(np.int64)
            sample = np.unique(positions)
            sampled = rows(
                of_items.take(sample),
                slice(0, len(sample)),
                self.n_items,
                scale=scale[sample],
            )
            lengths = np.diff(sampled.indptr)
            if lengths.mean() * source.n_items > _MOST_WEIGHTS:
                n_kept = _most_that_fit(lengths, source.n_items)
        vars(self)["_is_cut"] = n_kept < self.n_items
        blocks = [
            rows(of_items, block, n_kept, scale=scale)
            for block in kernels.pieces(source.n_items, max(1, _BLOCK // n_kept))
        ]
        counts = np.concatenate([np.diff(block.indptr) for block in blocks])
        self.weight_indptr = np.append(0, np.cumsum(counts))
        self.weight_places = np.concatenate([block.indices for block in blocks])
        self.weight_values = np.concatenate([block.data for block in blocks])
        if self._is_cut and self.neighbors is None and source is self:
            size = f"{8 * len(self.weight_values) / 2**20:,.0f} MB"
            remark = f"weights: the {n_kept:,} largest of each item ({size})"
            vars(self)["remarks"] = (remark,)

    def _set_items(self, histories: Histories) -> None:
        """Compute vectors of new items from their users: a normalised column times U S^-1.

        A training item gets its own vector, as accurately as the singular vectors were computed.
        """
        source = self._source
        histories = replace(histories, values=self._counting(histories))
        user_scale = source._user_scale() / source.singular_values[0]
        values = user_scale[histories.indices] ** 2 * histories.values
        sums = np.bincount(histories.rows, histories.values, histories.n_rows)
        self.item_weight = power(sums, -self.item_power)
        scaled = source._user_scale()[histories.indices] * histories.values
        scaled *= self.item_weight[histories.rows]
        squares = np.bincount(histories.rows, scaled**2, histories.n_rows)
        users, positions = np.unique(histories.indices, return_inverse=True)
        columns = CsrArrays(histories.indptr, positions.astype(np.int32), values)
        user_histories = source._all_histories().take(users.astype(np.int64))
        projected = source._vectors(user_histories)  # rows of U S
        self.item_factors = kernels.csr_matmat(columns, projected, threads=self.threads)
        share = self.singular_values / self.singular_values[0]
        is_direction = share > _NO_DIRECTION
        inverse = np.divide(1, share**2, out=np.zeros_like(share), where=is_direction)
        self.item_factors *= inverse * self.item_weight[:, None]
        self.item_output = self._outputs(sums, squares, self.item_factors)
        self.item_factors *= self.item_output[:, None]
        if self.linear:
            self._set_weights(source, _transposed(histories, source.n_users))

    def _user_scale(self) -> Floats:
        """Return the scale factors of the rows of N, shape (n_users,)."""
        sums = np.diff(self.history_indptr)
        if self.weighted:
            histories = self._all_histories()
            sums = np.bincount(histories.rows, histories.values, histories.n_rows)
        return power(sums, -self.user_power)

    def _all_histories(self) -> Histories:
        """Return the histories of all users, with ones as values if there are no weights."""
        if self.weighted:
            return Histories(
                self.history_indptr, self.history_items, self.history_weights
            )
        # This allocates nothing.
        ones = np.broadcast_to(np.float32(1), self.history_items.shape)
        return Histories(self.history_indptr, self.history_items, ones)

    def _vectors(self, histories: Histories) -> Floats:
        """Return histories projected on the singular vectors, shape (n_rows, k)."""
        source = self._source
        scale = source.item_weight * inverse_of(source.item_output)
        values = histories.values * scale[histories.indices]
        scaled = CsrArrays(histories.indptr, histories.indices, values)
        return kernels.csr_matmat(scaled, source.item_factors, threads=self.threads)

    def _filter(self, Z: Floats) -> Floats:
        scale = self.item_weight * inverse_of(self.item_output)
        factors = self.item_factors * scale[:, None] * self._response
        filtered: Floats = factors @ (self.item_factors.T @ Z)
        if self.linear:
            filtered += kernels.csr_matmat(self._weights, Z[self.item_order])
        return filtered

    def _scored(self, Q: Floats) -> Floats:
        source = self._source
        scale = source.item_weight * inverse_of(source.item_output)
        vectors = (source.item_factors * scale[:, None] * self._response).T @ Q
        scores: Floats = self.item_factors @ vectors
        if self.linear:
            linear = kernels.csr_rmatmat(self._weights, Q, self.n_items)
            scores[self.item_order] += linear
        return scores

    @property
    def _weights(self) -> CsrArrays:
        return CsrArrays(self.weight_indptr, self.weight_places, self.weight_values)


@model
class Spectral(LinearFilter):
    r"""Rank items by a graph filter of the user's history, where any rating is an interaction.

    Let R be the matrix of interactions (ones or weights), D_u and D_i its row and column sums, and
    :math:`\tilde R = D_u^{-p} R D_i^{-q}`. The scores of a user with history r are

    .. math:: r D_i^{-q} \, h(\tilde R'\tilde R) \, D_i^{y}, \qquad
              h(\lambda) = \lambda + (c - t \lambda^2) [\lambda \ge \lambda_k],

    where eigenvalues :math:`\lambda` are relative to the largest one. The filter h has three parts:
    a linear filter (items of users with similar histories); a low-pass filter that raises the k
    leading directions by the median c of their eigenvalues; and a sharpening that lowers the first
    directions, which popular items share. The last two need only a truncated SVD of low accuracy.

    The parameters are p = `user_power`, q = `item_power`, y = `popularity` and t = `sharpening`.
    Without `linear`, h is 0 below :math:`\lambda_k`, and scores are products of factors, which are
    fast to rank. The linear filter is stored as item-item weights: by default, all of them or as
    many of the largest of each item as fit in 512 MB.

    References
    ----------
    Shen et al. (2021), "How powerful is graph convolution for recommendation?", section 4, for the
    filter and its two parts. Choi et al. (2023), "Blurring-sharpening process models for
    collaborative filtering", for sharpening. Cremonesi, Koren and Turrin (2010), "Performance of
    recommender algorithms on top-N recommendation tasks", for PureSVD.
    """

    name = "spectral"
    summary = "Implicit feedback: the most accurate top-N lists, at any size."

    factors: int | None = parameter(
        None,
        "Number of singular vectors; by default a sixteenth of the users or items, at most 1,024, "
        "and fewer for very many users and items.",
    )
    user_power: float = power_parameter("user", 0.3)
    item_power: float = power_parameter("item", 0.35)
    popularity: float = parameter(
        0.25,
        "Exponent by which items with many users are recommended more.",
        low=0.0,
        high=1.0,
    )
    sharpening: float = parameter(
        0.8, "Strength of the correction for popular items.", low=0.0, high=2.0
    )
    linear: bool = parameter(
        True,
        "Add the exact linear filter; without it ranking is faster and less accurate.",
    )

    neighbors: int | None = parameter(
        None,
        "Item-item weights of the linear filter kept of each item; by default 512 MB of them.",
    )
    random_state: int = random_state_parameter()
    threads: int | None = threads_parameter()

    def _begin(self, ratings: Ratings) -> None:
        self.weighted = ratings.implicit and ratings.weighted

    def _counting(self, histories: Histories) -> Floats:
        return histories.values if self.weighted else np.ones_like(histories.values)

    def _outputs(
        self,
        sums: Array,
        squares: Array,
        vectors: Floats,
    ) -> Floats:
        return power(sums, self.popularity)

    @property
    def _slope(self) -> float:
        return float(self.singular_values[0]) ** -2 if self.singular_values[0] else 0.0

    @property
    def _response(self) -> Floats:
        """Low-pass filter and sharpening of each direction, shape (k,)."""
        share = (self.singular_values / self.singular_values[0]) ** 2
        response: Floats = np.median(share) - np.float32(self.sharpening) * share**2
        return response if self.linear else response + share


def _most_that_fit(lengths: Longs, n_rows: int) -> int:
    """Return the number of weights per row that fit in memory, given the lengths of some rows.

    Examples
    --------
    >>> _most_that_fit(np.array([100, 3]), 2), _most_that_fit(np.array([2**26, 3]), 2)
    (100, 67108861)
    """

    def n_weights(length: int) -> int:
        return int(np.minimum(lengths, length).mean() * n_rows)

    candidates = range(1, int(lengths.max()) + 1)
    return max(1, bisect_right(candidates, _MOST_WEIGHTS, key=n_weights))


def inverse_of(output: Floats) -> Floats:
    """Return 1 / output, or zero where output is zero."""
    inverse: Floats = np.divide(1, output, out=np.zeros_like(output), where=output > 0)
    return inverse


def power(sums: Array, exponent: float) -> Floats:
    """Return powers of counts or of sums of weights; any power of 0 is 0."""
    powers = np.where(sums > 0, sums, 1).astype(np.float32) ** np.float32(exponent)
    zeroed: Floats = np.where(sums > 0, powers, np.float32(0))
    return zeroed


def _transposed(rows: Histories, n_columns: int) -> Histories:
    from scipy.sparse import csr_array

    matrix = csr_array(
        (rows.values, rows.indices, rows.indptr), shape=(rows.n_rows, n_columns)
    )
    return Histories(*kernels.csr_arrays(matrix.T.tocsr()))


def default_factors(
    n_users: int,
    n_items: int,
    n_interactions: int,
) -> int:
    """Return the number of singular vectors for data of this size.

    It is a sixteenth of the smaller number of users or items, at most 1,024, and less if scoring
    all items for all users would take too long.

    Examples
    --------
    >>> default_factors(610, 9724, 100_000), default_factors(29858, 40981, 810_128)
    (38, 1024)
    >>> default_factors(162541, 59047, 25_000_000)
    520
    """
    within_time = max(_PRODUCTS, _PRODUCTS_EACH * n_interactions) / (n_users * n_items)
    return min(1024, max(1, min(n_users, n_items) // 16), max(64, int(within_time)))
