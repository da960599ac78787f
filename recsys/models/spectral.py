"""Spectral filters of the normalised interaction matrix."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

import lowrank
from lowrank import kernels
from recsys.auto import default_factors
from recsys.models.base import (
    Explanation,
    FactorForm,
    Floats,
    Histories,
    Indices,
    OnStep,
    check_indices,
    fitted,
    model,
)
from recsys.models.item_item import HistoryModel, check_rows
from recsys.models.parameters import parameter, random_state_parameter, threads_parameter

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings

_TOL = 3e-2  # of the singular vectors: a tighter one changed no validation metric
_BLOCK = 2**22  # numbers of an intermediate block: 16 MB
_FEW = 8  # users: fewer gain nothing from being added up together
_NO_DIRECTION = 1e-4  # of the largest singular value: below it is rounding


@model
class Spectral(HistoryModel):
    r"""Rank items by a filter of the user's history; any rating is an interaction.

    With R the matrix of interactions, of ones or of weights, D_u and D_i its row and column sums,
    and :math:`\tilde R = D_u^{-p} R D_i^{-q}`, the scores of a user with history r are

    .. math:: r D_i^{-q} \, h(\tilde R'\tilde R) \, D_i^{y}, \qquad
              h(\lambda) = \lambda + (c - t \lambda^2) [\lambda \ge \lambda_k],

    where eigenvalues :math:`\lambda` are in units of the largest: a linear filter (the items of
    users with a similar history), a low pass that lifts the k leading directions by the median c of
    their eigenvalues, and a sharpening that lowers the very first ones, those of popular items. The
    linear filter is exact; the rest takes a truncated SVD. The parameters are p = `user_power`, q =
    `item_power`, y = `popularity` and t = `sharpening`; without `linear`, h is 0 below
    :math:`\lambda_k`, and scores are products of factors, which are fast to rank.

    Attributes
    ----------
    weighted : bool
        Whether interactions have weights; else they are ones, which are not stored.
    trained_indptr, trained_items, item_indptr, item_users : int64 and int32 ndarrays
        The training interactions in CSR form, one row per user and one row per item.
    history_weights, item_user_weights : float32 ndarrays
        The weights in the order of `history_items` and of `item_users`.
    user_weight : float32 ndarray of shape (n_training_users,)
        D_u^(-2p), divided by the largest eigenvalue.
    item_weight, item_output : float32 ndarrays of shape (n_items,)
        D_i^-q and D_i^y.
    singular_values : float32 ndarray of shape (k,)
    item_factors : float32 ndarray of shape (n_items, k)
        Right singular vectors.

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
        "Number of singular vectors; by default a sixteenth of the users or items, at most 1,024.",
    )
    user_power: float = parameter(
        0.3, "Exponent by which users with many items are weighted down.", low=0.0, high=1.0
    )
    item_power: float = parameter(
        0.35, "Exponent by which items with many users are weighted down.", low=0.0, high=1.0
    )
    popularity: float = parameter(
        0.25, "Exponent by which items with many users are recommended more.", low=0.0, high=1.0
    )
    sharpening: float = parameter(
        0.8, "Strength of the correction for popular items.", low=0.0, high=2.0
    )
    linear: bool = parameter(
        True, "Add the exact linear filter; without it ranking is faster and less accurate."
    )
    random_state: int = random_state_parameter()
    threads: int | None = threads_parameter()

    weighted: bool = fitted()
    history_weights: Floats = fitted("n_interactions", when="weighted")
    item_user_weights: Floats = fitted("trained_on", when="weighted")
    trained_indptr: NDArray[np.int64] = fitted("n + 1")
    trained_items: NDArray[np.int32] = fitted("trained_on")
    item_indptr: NDArray[np.int64] = fitted("n_items + 1")
    item_users: NDArray[np.int32] = fitted("trained_on")
    user_weight: Floats = fitted("n")
    item_weight: Floats = fitted("n_items")
    item_output: Floats = fitted("n_items")
    singular_values: Floats = fitted("k")
    item_factors: Floats = fitted("n_items", "k")

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.item_weight)

    def _fit(self, ratings: Ratings, on_step: OnStep, validation: Ratings | None) -> None:
        """Compute the singular vectors of the normalised interactions of `ratings`."""
        self.weighted = ratings.implicit and bool((ratings.values != 1).any())
        self._take_histories(Histories.of(ratings))
        weights = ratings.values if self.weighted else None
        of_items = np.bincount(ratings.indices, weights, minlength=ratings.n_items)
        self.item_weight = _power(of_items, -self.item_power)
        self.item_output = _power(of_items, self.popularity)
        user_scale = np.repeat(_power(self._user_sums(), -self.user_power), np.diff(ratings.indptr))
        normalised = ratings.matrix.copy()
        normalised.data = user_scale * self.item_weight[ratings.indices]
        if weights is not None:
            normalised.data *= weights
        k = min(self.factors or default_factors(*ratings.shape), *ratings.shape)
        with kernels.at_most(self.threads):
            svd = lowrank.truncated_svd(normalised, k, tol=_TOL, random_state=self.random_state)
        self.singular_values, self.item_factors = svd.s, np.ascontiguousarray(svd.Vt.T)
        self._train_on_histories()

    def with_users(self, histories: Histories) -> Self:
        """Return the model whose users are these, after any items folded in."""
        check_indices(histories.indices, self.n_items, "item")
        result = copy.copy(self)
        vars(result).pop("_source_model", None)
        result._take_histories(histories)
        return result

    def predict(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Scores of pairs, shape (n_pairs,); the same bits for a pair in any call."""
        u = check_indices(users, self.n_users, "user")
        i = check_indices(items, self.n_items, "item")
        distinct, rows = np.unique(u, return_inverse=True)
        found = kernels.pair_dots(self._filtered(distinct), self.item_factors, rows, i)
        for block in self._blocks(len(distinct)):
            here = np.flatnonzero((rows >= block.start) & (rows < block.stop))
            shared, pairs = self._shared(distinct[block]), (rows[here] - block.start, i[here])
            linear = self._linear_pairs(shared, *pairs)
            found[here] += linear * self.item_weight[i[here]]  # the same bits as in `_linear`
        found *= self.item_output[i]
        return found

    def scores(self, users: ArrayLike) -> Floats:
        """Scores of all items for each user, shape (n_block, n_items)."""
        u = check_indices(users, self.n_users, "user")
        found: Floats = self._filtered(u) @ self.item_factors.T
        for block in self._blocks(len(u)):
            found[block] += self._linear(self._shared(u[block]))
        found *= self.item_output
        return found

    def _score_error(self, users: ArrayLike) -> Floats:
        """Bound on ``|scores - predict|``, as in `FactorModel._score_error`, shape (n_block,).

        The linear filter is the same bits in both; where it is added, both round once more.
        """
        u = check_indices(users, self.n_users, "user")
        vectors = self._filtered(u)
        size = np.sqrt(np.einsum("uk,uk->u", vectors, vectors)) * (vectors.shape[1] + 4)
        if self.linear:
            history = self._history(u)
            size += np.bincount(history.rows, history.values, minlength=len(u)).astype(np.float32)
        error: Floats = size * self.item_output.max(initial=0)
        return error * np.float32(2 * np.finfo(np.float32).eps)

    def _factor_form(self, users: ArrayLike) -> FactorForm | None:
        """Return the factors where scores are products of them: without the linear filter."""
        if self.linear:
            return None
        vectors = self._filtered(check_indices(users, self.n_users, "user"))
        items = self.item_factors * self.item_output[:, None]
        none = np.zeros(max(len(vectors), self.n_items), np.float32)
        return FactorForm(vectors, none[: len(vectors)], items, none[: self.n_items])

    def contributions(self, history: Histories, items: ArrayLike) -> Explanation:
        """Return the scores of `items`, with a term for each item of the history; the base is 0."""
        columns = check_indices(items, self.n_items, "item")
        n = len(history.indices)
        alone = self.with_users(Histories(np.arange(n + 1), history.indices, history.values))
        each, item = np.tile(np.arange(n), len(columns)), np.repeat(columns, n)
        terms = alone.predict(each, item).reshape(len(columns), n)
        return Explanation(np.zeros(len(columns), np.float32), terms)

    def item_vectors(self) -> Floats:
        """Return vectors whose cosine is the similarity of two items, shape (n_items, k)."""
        return self.item_factors * self.singular_values

    def user_vectors(self) -> Floats:
        """Return vectors whose cosine is the similarity of two users, shape (n_users, k)."""
        return self._vectors(np.arange(self.n_users))

    @classmethod
    def _from_arrays(cls, params: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        result = super()._from_arrays(params, arrays)
        n, n_items = len(result.user_weight), result.n_items
        check_rows(result.trained_indptr, result.trained_items, n_items, "training users", n)
        check_rows(result.item_indptr, result.item_users, n, "items", n_items)
        return result

    def _take_histories(self, histories: Histories) -> None:
        self.history_indptr, self.history_items = histories.indptr, histories.indices
        if self.weighted:
            self.history_weights = histories.values

    def _user_sums(self) -> NDArray[Any]:
        """Return the number, or the weights, of the interactions of each user."""
        counts = np.diff(self.history_indptr)
        if not self.weighted:
            return counts
        rows = np.repeat(np.arange(self.n_users), counts)
        return np.bincount(rows, self.history_weights, minlength=self.n_users)

    def _train_on_histories(self) -> None:
        """Set the users of the linear filter to those of the histories."""
        user_scale = _power(self._user_sums(), -self.user_power)
        self.user_weight = user_scale**2 / self.singular_values[0] ** 2
        self.trained_indptr, self.trained_items = self.history_indptr, self.history_items
        trained = self.trained_indptr, self.trained_items
        weights = self.history_weights if self.weighted else None
        by_item = _transposed(*trained, self.n_items, weights)
        self.item_indptr, self.item_users = by_item.indptr, by_item.indices
        if self.weighted:
            self.item_user_weights = by_item.values

    def _set_items(self, histories: Histories) -> None:
        """Place new items by their users: a normalised column times U S^-1.

        An item of the fit gets its own vector back, as exactly as the singular vectors were found.
        """
        source = copy.copy(self._source)
        source._train_on_histories()
        vars(self)["_source_model"], self.user_weight = source, source.user_weight
        self.item_indptr, self.item_users = histories.indptr, histories.indices
        of_items = self.item_indptr, self.item_users
        by_user = _transposed(*of_items, self.n_users)
        self.trained_indptr, self.trained_items = by_user.indptr, by_user.indices
        sums, values = histories.counts, source.user_weight[histories.indices]
        if self.weighted:
            self.item_user_weights, values = histories.values, values * histories.values
            sums = np.bincount(histories.rows, histories.values, minlength=histories.n_rows)
        self.item_weight = _power(sums, -self.item_power)
        self.item_output = _power(sums, self.popularity)
        users, place = np.unique(histories.indices, return_inverse=True)
        columns = histories._replace(indices=place.astype(np.int32), values=values)
        found = np.empty((histories.n_rows, len(self.singular_values)), np.float32)
        theirs = source._history(users.astype(np.int64))
        width = max(1, _BLOCK // max(len(users), source.n_items))
        for start in range(0, found.shape[1], width):
            block = np.ascontiguousarray(source.item_factors[:, start : start + width])
            placed = kernels.csr_matmat(theirs, block, threads=self.threads)  # rows of U S
            placed = kernels.csr_matmat(columns, placed, threads=self.threads)
            found[:, start : start + width] = placed
        share = self.singular_values / self.singular_values[0]
        found *= np.divide(1, share**2, out=np.zeros_like(share), where=share > _NO_DIRECTION)
        self.item_factors = found * self.item_weight[:, None]

    def _history(self, users: Indices) -> Histories:
        """Return the items of some users, each with its weight."""
        if self.weighted:
            mine = Histories(self.history_indptr, self.history_items, self.history_weights)
            mine = mine.take(users)
            return mine._replace(values=self._source.item_weight[mine.indices] * mine.values)
        ones = np.broadcast_to(np.float32(1), self.history_items.shape)  # without making them
        mine = Histories(self.history_indptr, self.history_items, ones).take(users)
        return mine._replace(values=self._source.item_weight[mine.indices])

    def _vectors(self, users: Indices) -> Floats:
        """Return the users among the singular vectors, shape (n_block, k)."""
        history = self._history(users)
        return kernels.csr_matmat(history, self._source.item_factors, threads=self.threads)

    def _filtered(self, users: Indices) -> Floats:
        """Return the vectors of users after low pass and sharpening, shape (n_block, k)."""
        share = (self.singular_values / self.singular_values[0]) ** 2
        response = np.median(share) - np.float32(self.sharpening) * share**2
        if not self.linear:
            response += share
        vectors = self._vectors(users)
        vectors *= response
        return vectors

    def _blocks(self, n: int) -> list[slice]:
        """Cut n users for the linear filter, in memory that does not grow with n."""
        if not self.linear:
            return []
        size = max(1, _BLOCK // max(len(self.user_weight), self.n_items))
        return [slice(start, min(start + size, n)) for start in range(0, n, size)]

    def _shared(self, users: Indices) -> Floats:
        """Return the overlap of users with the training users, the same bits in any block."""
        source, history = self._source, self._history(users)
        weighted = history._replace(values=history.values * source.item_weight[history.indices])
        of_items, n = (source.item_indptr, source.item_users), len(self.user_weight)
        if self.weighted:
            from scipy.sparse import csr_array

            theirs = csr_array((weighted.values, *weighted[1::-1]), (len(users), source.n_items))
            of_users = csr_array((source.item_user_weights, *of_items[::-1]), (source.n_items, n))
            shared = (theirs @ of_users).toarray()
        else:
            shared = kernels.csr_pattern(weighted, of_items, n, threads=self.threads)
        shared *= self.user_weight
        return shared

    def _linear_pairs(self, shared: Floats, rows: Indices, items: Indices) -> Floats:
        """Return the linear filter's scores of pairs, without the weights of items."""
        if not self.weighted:
            pattern = self.item_indptr, self.item_users
            return kernels.pattern_pairs(shared, pattern, rows, items, threads=self.threads)
        distinct, places = np.unique(items, return_inverse=True)
        of_items = Histories(self.item_indptr, self.item_users, self.item_user_weights)
        return self._item_products(of_items.take(distinct), shared)[places, rows]

    def _item_products(self, of_items: Histories, shared: Floats) -> Floats:
        """Return products of weighted rows of items with overlaps, the same bits in any block."""
        if kernels.backend().name == "compiled":
            return kernels.csr_matmat(of_items, shared.T, threads=self.threads)
        from scipy.sparse import csr_array

        shape = of_items.n_rows, shared.shape[1]
        found: Floats = csr_array((of_items.values, *of_items[1::-1]), shape) @ shared.T
        return found

    def _linear(self, shared: Floats) -> Floats:
        """Return the linear filter's scores of all items, shape (n_block, n_items).

        Either way the terms are added in the order of the training users: to the same bits.
        """
        if self.weighted:
            weights = Histories(self.item_indptr, self.item_users, self.item_user_weights)
            block = self._item_products(weights, shared)
            block *= self.item_weight[:, None]
            return block.T
        if len(shared) >= _FEW and kernels.backend().name == "compiled":  # NumPy adds otherwise
            ones = np.ones(len(self.item_users), np.float32)
            of_items = self.item_indptr, self.item_users, ones
            block = kernels.csr_matmat(of_items, shared.T, threads=self.threads)
            block *= self.item_weight[:, None]
            return block.T
        rows, users = np.nonzero(shared)
        indptr = np.searchsorted(rows, np.arange(len(shared) + 1))
        overlap = indptr, users.astype(np.int32), shared[rows, users]
        trained = self.trained_indptr, self.trained_items
        scores = kernels.csr_pattern(overlap, trained, self.n_items, threads=self.threads)
        scores *= self.item_weight
        return scores


def _power(sums: NDArray[Any], exponent: float) -> Floats:
    """Return powers of counts or of sums of weights; zero where these are."""
    powers = np.where(sums > 0, sums, 1).astype(np.float32) ** np.float32(exponent)
    zeroed: Floats = np.where(sums > 0, powers, np.float32(0))
    return zeroed


def _transposed(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    n_columns: int,
    weights: Floats | None = None,
) -> Histories:
    """Return the entries of a transposed matrix, of ones if there are no weights."""
    from scipy.sparse import csr_array

    values = np.ones(len(indices), np.float32) if weights is None else weights
    matrix = csr_array((values, indices, indptr), shape=(len(indptr) - 1, n_columns))
    return Histories(*kernels.csr_arrays(matrix.T.tocsr()))
