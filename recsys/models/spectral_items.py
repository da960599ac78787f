"""Items that a spectral model has not seen, placed among those that it has."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels
from recsys.models.base import Floats, Histories, Indices, check_indices
from recsys.models.spectral import Spectral, ones_at, power

__all__ = ["FoldedItems", "fold_in_items"]

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
    folded = FoldedItems(**model.params())
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
        model = Spectral(**self.params())
        vars(model).update({name: getattr(self, name) for name in self.arrays()})
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
