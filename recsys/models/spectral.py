"""Spectral filters of the normalised interaction matrix."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowrank import kernels
from recsys.auto import default_factors
from recsys.errors import DataError
from recsys.models.base import (
    Explanation,
    FactorForm,
    Floats,
    Histories,
    Indices,
    Model,
    Step,
    check_indices,
    fitted,
    model,
    parameter,
    random_state_parameter,
    threads_parameter,
)
from recsys.models.item_item import check_rows

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings

__all__ = ["FoldedItems", "Spectral", "fold_in_items", "ones_at", "power"]

_TOL = 3e-2  # of the singular vectors: a tighter one changed no validation metric
_BLOCK = 2**22  # cells of what a block of users shares with the training users
_FEW = 8  # users: fewer gain nothing from being added up together


@model
class Spectral(Model):
    r"""Rank items by a filter of the user's history; whatever the values, a rating is a contact.

    With R the 0/1 matrix of contacts, D_u and D_i its row and column sums, and
    :math:`\tilde R = D_u^{-p} R D_i^{-q}`, the scores of a user with contacts r are

    .. math:: r D_i^{-q} \, h(\tilde R'\tilde R) \, D_i^{y}, \qquad
              h(\lambda) = \lambda + (c - t \lambda^2) [\lambda \ge \lambda_k],

    where eigenvalues :math:`\lambda` are in units of the largest: a linear filter (what users with
    like contacts took), a low pass that lifts the k leading directions by the median c of their
    eigenvalues, and a sharpening that takes back what the very first ones, those of popular items,
    have too much. The linear filter is exact; the rest takes a truncated SVD.

    Attributes
    ----------
    history_indptr, history_indices : int64 and int32 ndarrays
        The users' contacts in CSR form.
    trained_indptr, trained_indices, item_indptr, item_indices : int64 and int32 ndarrays
        The training contacts in CSR form, one row per user and one row per item.
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

    name: ClassVar[str] = "spectral"
    summary: ClassVar[str] = (
        "Implicit feedback: the most accurate top-N recommendations, at any size."
    )
    predicts_ratings: ClassVar[bool] = False

    factors: int | None = parameter(
        None,
        "Number of singular vectors; by default a sixteenth of the users or items, at most 1,024.",
    )
    user_power: float = parameter(
        0.3,
        "Exponent of the number of items by which users are weighted down.",
        low=0.0,
        high=1.0,
        minimum=0,
    )
    item_power: float = parameter(
        0.35,
        "Exponent of the number of users by which items are weighted down.",
        low=0.0,
        high=1.0,
        minimum=0,
    )
    popularity: float = parameter(
        0.25,
        "Exponent of the number of users by which recommended items are weighted up.",
        low=0.0,
        high=1.0,
        minimum=0,
    )
    sharpening: float = parameter(
        0.8, "Strength of the correction for popular items.", low=0.0, high=2.0, minimum=0
    )
    linear: bool = parameter(
        True, "Add the exact linear filter; without it ranking is faster and less accurate."
    )
    random_state: int = random_state_parameter()
    threads: int | None = threads_parameter()

    history_indptr: NDArray[np.int64] = fitted("n_users + 1")
    history_indices: NDArray[np.int32] = fitted("contacts")
    trained_indptr: NDArray[np.int64] = fitted("n + 1")
    trained_indices: NDArray[np.int32] = fitted("trained_on")
    item_indptr: NDArray[np.int64] = fitted("n_items + 1")
    item_indices: NDArray[np.int32] = fitted("trained_on")
    user_weight: Floats = fitted("n")
    item_weight: Floats = fitted("n_items")
    item_output: Floats = fitted("n_items")
    singular_values: Floats = fitted("k")
    item_factors: Floats = fitted("n_items", "k")

    @property
    def n_users(self) -> int:
        """Number of users."""
        return len(self.history_indptr) - 1

    @property
    def n_items(self) -> int:
        """Number of items of the training ratings."""
        return len(self.item_weight)

    def fit(
        self,
        ratings: Ratings,
        *,
        on_step: Callable[[Step], None] | None = None,
        validation: Ratings | None = None,
    ) -> Self:
        """Find the singular vectors of the normalised contacts of `ratings`."""
        from lowrank import truncated_svd

        user_counts = np.diff(ratings.indptr)
        item_counts = np.bincount(ratings.indices, minlength=ratings.n_items)
        user_scale = power(user_counts, -self.user_power)
        self.item_weight = power(item_counts, -self.item_power)
        self.item_output = power(item_counts, self.popularity)
        contacts = ratings.matrix.copy()
        contacts.data = np.repeat(user_scale, user_counts) * self.item_weight[ratings.indices]
        k = min(self.factors or default_factors(*contacts.shape), *contacts.shape)
        with kernels.at_most(self.threads):
            svd = truncated_svd(contacts, k, tol=_TOL, random_state=self.random_state)
        self.singular_values, self.item_factors = svd.s, np.ascontiguousarray(svd.Vt.T)
        self.user_weight = user_scale**2 / svd.s[0] ** 2
        turned = contacts.T.tocsr()
        self.item_indptr = turned.indptr.astype(np.int64, copy=False)
        self.item_indices = turned.indices.astype(np.int32, copy=False)
        self.trained_indptr, self.trained_indices = ratings.indptr, ratings.indices
        self.history_indptr, self.history_indices = ratings.indptr, ratings.indices
        return self

    @classmethod
    def _from_arrays(cls, params: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Rebuild a fitted model, sharing memory with `arrays`.

        Raises
        ------
        DataError
            If an array is missing, its shape does not agree with the others, or contacts name
            users or items that there are not.
        """
        model = super()._from_arrays(params, arrays)
        n_trained = len(model.user_weight)
        check_rows(model.history_indptr, model.history_indices, model.n_items, "history")
        check_rows(model.trained_indptr, model.trained_indices, model.n_items, "training users")
        check_rows(model.item_indptr, model.item_indices, n_trained, "items")
        for indptr, n in ((model.trained_indptr, n_trained), (model.item_indptr, model.n_items)):
            if len(indptr) != n + 1:
                raise DataError(f"The contacts must have {n + 1} row starts; got {len(indptr)}.")
        return model

    def with_users(self, histories: Histories) -> Spectral:
        """Return the model whose users are these: their contacts take the others' place."""
        check_indices(histories.indices, self.n_items, "item")
        model = copy.copy(self)
        model.history_indptr, model.history_indices = histories.indptr, histories.indices
        return model

    def with_items(self, histories: Histories) -> Spectral:
        """Return the model whose items are these, placed by their users; the users stay.

        An item's vector is its normalised column times U S^-1, with the left singular vectors U:
        an item of the training ratings gets its own back, as exactly as the singular vectors were
        found. Its part of the linear filter is exact.
        """
        return fold_in_items(self, histories)

    def predict(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Scores of pairs, shape (n_pairs,); the same bits for a pair in any company."""
        u = check_indices(users, self.n_users, "user")
        i = check_indices(items, self.n_items, "item")
        distinct, rows = np.unique(u, return_inverse=True)
        found = kernels.pair_dots(self._filtered(distinct), self.item_factors, rows, i)
        for part in self._parts(len(distinct)):
            here = np.flatnonzero((rows >= part.start) & (rows < part.stop))
            shared = self._shared(distinct[part])
            found[here] += self._linear_pairs(shared, rows[here] - part.start, i[here])
        found *= self.item_output[i]
        return found

    def scores(self, users: ArrayLike) -> Floats:
        """Scores of all items for each user, shape (n_block, n_items)."""
        u = check_indices(users, self.n_users, "user")
        block: Floats = self._filtered(u) @ self.item_factors.T
        for part in self._parts(len(u)):
            block[part] += self._linear(self._shared(u[part]))
        block *= self.item_output
        return block

    def _score_error(self, users: ArrayLike) -> Floats:
        """Bound on ``|scores - predict|`` for each user, shape (n_block,).

        For the products of factors as in `FactorModel._score_error`. The linear filter is the same
        bits in both; where it is added, both round once more.
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
        """Take the scores of `items` apart: one term for each contact, and nothing else."""
        asked = check_indices(items, self.n_items, "item")
        n = len(history.indices)
        alone = self.with_users(Histories(np.arange(n + 1), history.indices, history.values))
        each, item = np.tile(np.arange(n), len(asked)), np.repeat(asked, n)
        terms = alone.predict(each, item).reshape(len(asked), n)
        return Explanation(np.zeros(len(asked), np.float32), terms)

    def item_vectors(self) -> Floats:
        """Return the vectors whose cosine says how alike two items are, shape (n_items, k)."""
        return self.item_factors * self.singular_values

    def user_vectors(self) -> Floats:
        """Return the vectors whose cosine says how alike two users are, shape (n_users, k)."""
        return self._vectors(np.arange(self.n_users))

    def _history(self, users: Indices) -> Histories:
        """Return the contacts of some users, each with its item's weight."""
        ones = np.broadcast_to(np.float32(1), self.history_indices.shape)  # without making them
        mine = Histories(self.history_indptr, self.history_indices, ones).take(users)
        return mine._replace(values=self.item_weight[mine.indices])

    def _vectors(self, users: Indices) -> Floats:
        """Return the users among the singular vectors, shape (n_block, k)."""
        return kernels.csr_matmat(*self._history(users), self.item_factors, threads=self.threads)

    def _filtered(self, users: Indices) -> Floats:
        """Return what the low pass and the sharpening make of the users, shape (n_block, k)."""
        share = (self.singular_values / self.singular_values[0]) ** 2
        response = np.median(share) - np.float32(self.sharpening) * share**2
        if not self.linear:
            response += share
        vectors = self._vectors(users)
        vectors *= response
        return vectors

    def _parts(self, n: int) -> list[slice]:
        """Cut n users for the linear filter, in memory that does not grow with n."""
        if not self.linear:
            return []
        size = max(1, _BLOCK // max(len(self.user_weight), self.n_items))
        return [slice(start, min(start + size, n)) for start in range(0, n, size)]

    def _shared(self, users: Indices) -> Floats:
        """Return what the users share with the training users, shape (n_block, n_training_users).

        The kernel sums each row in the same order whatever the others are.
        """
        history = self._history(users)
        weighted = history._replace(values=history.values * self.item_weight[history.indices])
        have = self.item_indptr, self.item_indices
        shared = kernels.csr_pattern(*weighted, *have, len(self.user_weight), threads=self.threads)
        shared *= self.user_weight
        return shared

    def _linear(self, shared: Floats) -> Floats:
        """Return the linear filter's scores of all items, shape (n_block, n_items).

        Either way the terms of a score are added in the order of the training users, so that the
        bits are the same: for several users at once, or without those who share nothing.
        """
        if len(shared) >= _FEW and kernels.backend().name == "compiled":  # NumPy adds otherwise
            of_items = ones_at(self.item_indptr, self.item_indices)
            block = kernels.csr_matmat(*of_items, shared.T, threads=self.threads)
            block *= self.item_weight[:, None]
            return block.T
        rows, users = np.nonzero(shared)
        indptr = np.searchsorted(rows, np.arange(len(shared) + 1))
        have = self.trained_indptr, self.trained_indices
        scores = kernels.csr_pattern(
            indptr,
            users.astype(np.int32),
            shared[rows, users],
            *have,
            self.n_items,
            threads=self.threads,
        )
        scores *= self.item_weight
        return scores

    def _linear_pairs(self, shared: Floats, rows: Indices, items: Indices) -> Floats:
        """Return the linear filter's scores of pairs: the same bits as in `_linear`."""
        have = self.item_indptr, self.item_indices
        found = kernels.pattern_pairs(shared, *have, rows, items, threads=self.threads)
        return found * self.item_weight[items]


def ones_at(indptr: NDArray[np.int64], indices: NDArray[np.int32]) -> kernels.CsrArrays:
    """Return the 0/1 matrix with ones at these places."""
    return kernels.CsrArrays(indptr, indices, np.ones(len(indices), np.float32))


def power(counts: NDArray[np.int64], exponent: float) -> Floats:
    """Return powers of counts; zero where there is nothing to count."""
    powers = np.maximum(counts, 1).astype(np.float32) ** np.float32(exponent)
    zeroed: Floats = np.where(counts > 0, powers, np.float32(0))
    return zeroed


_BLOCK = 2**22  # numbers of the users among some of the singular vectors
_NO_DIRECTION = 1e-4  # of the largest singular value: what is below is rounding


def fold_in_items(model: Spectral, contacts: Histories) -> FoldedItems:
    """Return `model` with the items of `contacts`, a row of users for each, in place of its own.

    An item is known by what its users have besides; these are the users that the model has now,
    those of the training ratings unless others were folded in.
    """
    check_indices(contacts.indices, model.n_users, "user")
    source = copy.copy(model)
    user_scale = power(np.diff(model.history_indptr), -model.user_power)
    source.user_weight = user_scale**2 / model.singular_values[0] ** 2
    history = model.history_indptr, model.history_indices
    source.trained_indptr, source.trained_indices = history
    source.item_indptr, source.item_indices = _turned(*history, model.n_items)
    folded = FoldedItems(**model.get_params())
    vars(folded).update(vars(source))
    folded.source = source
    users = _turned(contacts.indptr, contacts.indices, model.n_users)
    folded.trained_indptr, folded.trained_indices = users
    folded.item_indptr, folded.item_indices = contacts.indptr, contacts.indices
    folded.item_weight = power(contacts.counts, -model.item_power)
    folded.item_output = power(contacts.counts, model.popularity)
    folded.item_factors = _vectors(source, contacts) * folded.item_weight[:, None]
    return folded


class FoldedItems(Spectral):
    """What `Spectral.with_items` gives: new items, and histories of the items of `source`."""

    source: Spectral

    def with_items(self, histories: Histories) -> Spectral:
        """Return the model whose items are these; those folded in before have no part in it."""
        return fold_in_items(self.source, histories)

    def with_users(self, histories: Histories) -> Spectral:
        """Return the model whose users are these: their contacts are with the items folded in."""
        model = Spectral(**self.get_params())
        vars(model).update({name: getattr(self, name) for name in self._arrays()})
        return model.with_users(histories)

    def _history(self, users: Indices) -> Histories:
        return self.source._history(users)

    def _vectors(self, users: Indices) -> Floats:
        return self.source._vectors(users)

    def _shared(self, users: Indices) -> Floats:
        return self.source._shared(users)


def _vectors(source: Spectral, contacts: Histories) -> Floats:
    """Return each item's users, weighted, times U S^-1, shape (n_new_items, k).

    U S is where the users are among the singular vectors.
    """
    users, place = np.unique(contacts.indices, return_inverse=True)
    theirs = source._history(users.astype(np.int64))
    rows = contacts._replace(
        indices=place.astype(np.int32), values=source.user_weight[contacts.indices]
    )
    found = np.empty((contacts.n_rows, len(source.singular_values)), np.float32)
    width = max(1, _BLOCK // max(len(users), source.n_items))
    for start in range(0, found.shape[1], width):
        some = np.ascontiguousarray(source.item_factors[:, start : start + width])
        placed = kernels.csr_matmat(*theirs, some, threads=source.threads)
        found[:, start : start + width] = kernels.csr_matmat(*rows, placed, threads=source.threads)
    share = source.singular_values / source.singular_values[0]
    found *= np.divide(1, share**2, out=np.zeros_like(share), where=share > _NO_DIRECTION)
    return found


def _turned(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], n_columns: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the places of the ones of a transposed 0/1 matrix."""
    from scipy.sparse import csr_array

    ones: Any = ones_at(indptr, indices).data
    matrix = csr_array((ones, indices, indptr), shape=(len(indptr) - 1, n_columns))
    turned = kernels.csr_arrays(matrix.T.tocsr())
    return turned.indptr, turned.indices
