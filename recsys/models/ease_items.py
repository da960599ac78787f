"""Items that an EASE model has not seen: one ridge regression each, on the items that it has."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowrank import kernels
from recsys.errors import DataError
from recsys.models.base import Floats, Histories, check_indices
from recsys.models.ease import EASE
from recsys.models.history import weights_of

__all__ = ["FoldedItems", "fold_in_items"]

_TOL = 1e-6  # of what a regression leaves of its right-hand side: float32 has no more
_STEPS = 2000
_BLOCK = 2**22  # numbers of the weights that are solved for together

Doubles = NDArray[np.float64]


def fold_in_items(model: EASE, contacts: Histories) -> FoldedItems:
    """Return `model` with the items of `contacts`, a row of users for each, in place of its own."""
    check_indices(contacts.indices, model.n_users, "user")
    folded = FoldedItems(**model.params())
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
