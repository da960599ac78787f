"""EASE: linear item-item weights in closed form."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowrank import kernels
from recsys.errors import DataError
from recsys.models.base import (
    Floats,
    Histories,
    Indices,
    Step,
    check_indices,
    fitted,
    model,
    parameter,
)
from recsys.models.item_item import HistoryModel, weighted_matrix, weights_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from recsys.data.ratings import Ratings

__all__ = ["EASE", "FoldedItems", "fold_in_items"]

_PENALTY = 30.0
_BLOCK = 2**22  # entries of the Gram matrix that are worked on at a time


@model
class EASE(HistoryModel):
    """Score an item by the sum of its weights with the items the user has.

    The weights B predict every item from all others by ridge regression,
    ``min ||X - X B||^2 + lambda ||B||^2`` with zeros on the diagonal of B, where x_ui is 1 for what
    a user has and 0 otherwise; a rating stands for its share of the highest one, a count for its
    multiple of the mean. With ``P = (X'X + lambda I)^-1`` the solution is ``B = I - P diag(P)^-1``.

    The matrix of items x items is held in memory once, in single precision: the penalty keeps it
    so well conditioned that the rounding does not show in the scores, and catalogues of 1.4 times
    the size fit, in half the time. The last bits depend on the number of BLAS threads.

    Attributes
    ----------
    penalty : float
        The regularization given or chosen.
    weights : float32 ndarray of shape (n_items, n_items)
        What having the item of the row adds to the score of the item of the column.

    References
    ----------
    Steck (2019), "Embarrassingly shallow autoencoders for sparse data", section 3.
    """

    name: ClassVar[str] = "ease"
    summary: ClassVar[str] = "Implicit feedback on up to some 30,000 items; one parameter."

    regularization: float | None = parameter(
        None, "Ridge penalty of the weights, in users; by default it follows from the data."
    )

    penalty: float = fitted()
    weights: Floats = fitted("n_items", "n_items")

    @property
    def n_items(self) -> int:
        """Number of items of the training ratings."""
        return len(self.weights)

    def fit(
        self,
        ratings: Ratings,
        *,
        on_step: Callable[[Step], None] | None = None,
        validation: Ratings | None = None,
    ) -> Self:
        """Fit to `ratings`.

        Raises
        ------
        DataError
            If the items are so many that their Gram matrix would not fit into memory.
        """
        _check_fits(ratings.n_items)
        self._take_histories(ratings)
        gram = _gram(weighted_matrix(ratings))
        self.penalty = self.regularization or _default_penalty(ratings)
        gram[np.diag_indices_from(gram)] += np.float32(self.penalty)
        _invert(gram)
        self.weights = _weights_of(gram)
        return self

    def with_items(self, histories: Histories) -> EASE:
        """Return the model whose items are these, each by its own ridge regression on the others.

        Their weights are those that a fit with the new item would give it, from what the users of
        the model have; new items have no part in one another's scores. (An item of the fit would be
        explained by itself.) Solved by conjugate
        gradients, so that no inverse has to be kept.

        Raises
        ------
        DataError
            If the regressions are too ill-conditioned to be solved.
        """
        return fold_in_items(self, histories)

    def item_vectors(self) -> Floats:
        """Return the weights, shape (n_items, n_items): items are alike that speak for the same."""
        return self.weights

    def _products(self, histories: Histories) -> Floats:
        return kernels.csr_matmat(*histories, self.weights)

    def _entries(self, rows: Indices, columns: Indices) -> Floats:
        return self.weights[np.ix_(rows, columns)]


def _check_fits(n_items: int) -> None:
    needed, memory = 4 * n_items**2, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise DataError(
            f"The ease model needs {needed / 2**30:.1f} GiB for the matrix of {n_items:,} x "
            f"{n_items:,} items, and this machine has {memory / 2**30:.1f} GiB; use spectral or "
            "implicit-als, which need no such matrix."
        )


def _default_penalty(ratings: Ratings) -> float:
    counts = np.bincount(ratings.indices).astype(np.float64)
    return float(_PENALTY * np.cbrt(counts @ counts / counts.sum()))


def _gram(X: csr_array[np.float32]) -> Floats:
    """Return X'X, shape (n_items, n_items)."""
    by_item = X.T.tocsr()
    gram = np.empty((X.shape[1], X.shape[1]), dtype=np.float32)
    for part in _row_blocks(len(gram)):
        (by_item[part] @ X).toarray(out=gram[part])
    return gram


def _invert(gram: Floats) -> None:
    """Invert a positive definite matrix in place."""
    from scipy.linalg import lapack

    # LAPACK works on columns, so on the transpose, and writes one triangle: the upper one here.
    _, failed = lapack.spotrf(gram.T, lower=True, clean=False, overwrite_a=True)
    if failed:
        raise DataError(
            "The Gram matrix of the items is singular in single precision; "
            "a larger regularization mends that."
        )
    lapack.spotri(gram.T, lower=True, overwrite_c=True)
    for part in _row_blocks(len(gram)):
        corner = gram[part, part]
        corner[:] = np.triu(corner) + np.triu(corner, 1).T
        gram[part.stop :, part] = gram[part, part.stop :].T


def _weights_of(inverse: Floats) -> Floats:
    """Return B = I - P diag(P)^-1, in the memory of P."""
    scale = -1 / np.diagonal(inverse)
    for part in _row_blocks(len(inverse)):
        inverse[part] *= scale
    np.fill_diagonal(inverse, 0)
    return inverse


def _row_blocks(n: int) -> Iterator[slice]:
    size = max(1, _BLOCK // max(1, n))
    return (slice(start, min(n, start + size)) for start in range(0, n, size))


_TOL = 1e-6  # of what a regression leaves of its right-hand side: float32 has no more
_STEPS = 2000
_BLOCK = 2**22  # numbers of the weights that are solved for together

Doubles = NDArray[np.float64]


def fold_in_items(model: EASE, contacts: Histories) -> FoldedItems:
    """Return `model` with the items of `contacts`, a row of users for each, in place of its own."""
    check_indices(contacts.indices, model.n_users, "user")
    folded = FoldedItems(**model.get_params())
    vars(folded).update(vars(model))
    folded.source = model
    folded.weights = np.empty((model.n_items, contacts.n_rows), np.float32)
    rows = contacts._replace(values=weights_of(contacts.values, model.unit))
    size = max(1, _BLOCK // max(model.n_users, model.n_items))
    for start in range(0, contacts.n_rows, size):
        some = np.arange(start, min(start + size, contacts.n_rows))
        folded.weights[:, some] = _ridge(model, rows.take(some))
    return folded


class FoldedItems(EASE):
    """What `EASE.with_items` gives: weights of the items of `source` for new ones."""

    source: EASE

    @property
    def n_items(self) -> int:
        """Number of items folded in."""
        return int(self.weights.shape[1])

    def with_items(self, histories: Histories) -> EASE:
        """Return the model whose items are these; those folded in before have no part in it."""
        return fold_in_items(self.source, histories)

    def with_users(self, histories: Histories) -> NoReturn:
        """Refuse: the new items have no weights for one another."""
        raise _no_weights()

    def contributions(self, history: Histories, items: ArrayLike) -> NoReturn:
        """Refuse: the new items have no weights for one another."""
        raise _no_weights()

    def item_vectors(self) -> Floats:
        """Return the weights, shape (n_items, n_old_items): for which the same items speak."""
        return np.ascontiguousarray(self.weights.T)


def _no_weights() -> DataError:
    return DataError(
        "The items that an ease model has folded in have no weights for one another; fold in new "
        "users first, then the items, or fit to all ratings."
    )


def _ridge(model: EASE, contacts: Histories) -> Doubles:
    """Solve (X'X + lambda I) B = X'C by conjugate gradients, preconditioned by the diagonal."""
    users = (
        model.history_indptr,
        model.history_items,
        model.history_weights.astype(np.float64),
    )
    squares = np.bincount(users[1], users[2] ** 2, minlength=model.n_items)
    scale = 1 / (squares + model.penalty)[:, None]
    target = np.zeros((model.n_users, contacts.n_rows))
    target[contacts.indices, contacts.rows] = contacts.values
    residual = kernels.csr_rmatmat(*users, target, model.n_items)
    limit = _TOL * np.linalg.norm(residual, axis=0)
    found, step = np.zeros_like(residual), scale * residual
    size = (residual * step).sum(axis=0)
    for _ in range(_STEPS):
        if (np.linalg.norm(residual, axis=0) <= limit).all():
            return np.asarray(found, np.float64)
        image = kernels.csr_rmatmat(*users, kernels.csr_matmat(*users, step), model.n_items)
        image += model.penalty * step
        curvature = (step * image).sum(axis=0)
        length = np.divide(size, curvature, out=np.zeros_like(size), where=curvature > 0)
        found += length * step
        residual -= length * image
        before, size = size, (scale * residual**2).sum(axis=0)
        turn = np.divide(size, before, out=np.zeros_like(size), where=before > 0)
        step = scale * residual + turn * step
    raise DataError(
        f"The weights of the items folded in were not found in {_STEPS} steps; "
        "a larger regularization mends that."
    )
