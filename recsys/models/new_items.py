"""New items: predictions of their transitions by features."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recsys.models.item_item import AxisProfiles
from recsys.models.parts import Floats

if TYPE_CHECKING:
    from recsys.models.sequences import Sparse


class NewItems(NamedTuple):
    """Predictions by features for items without users.

    A new item at position t has the column ``B Z t`` of weights B, and the row ``t' Z' B``, with Z
    as in `recsys.models.item_item`.

    Attributes
    ----------
    axis : AxisProfiles
        Positions t of the new items, and Z as `loadings`.
    columns : float32 ndarray of shape (n_decays * n_items, w)
        B Z, one below the other.
    items : float32 ndarray of shape (n_items, w + n_decays * w)
        The positions t, and B'Z for each decay, next to one another.
    corner : float32 ndarray of shape (n_decays * w, w)
        Z'B Z, for new items after new items.
    chances : float32 ndarray of shape (w,)
        The product of `item_chances` and Z.
    row_positions : csr_array of shape (n_decays * n_items, n_decays * w)
        Positions of new items as sources of each decay.
    """

    axis: AxisProfiles
    columns: Floats
    items: Floats
    corner: Floats
    chances: Floats
    row_positions: Sparse

    @classmethod
    def of(
        cls,
        axis: AxisProfiles,
        weights: Sparse,
        chances: Floats,
    ) -> NewItems:
        """Multiply the weights of all decays by Z."""
        from scipy.sparse import block_diag, csr_array

        Z = axis.loadings
        n_items = len(Z)
        columns: Floats = weights @ Z
        starts = range(0, weights.shape[0], n_items)
        blocks = [slice(start, start + n_items) for start in starts]
        rows = [weights[block].T @ Z for block in blocks]
        corner = [Z.T @ columns[block] for block in blocks]
        of_each_decay = [csr_array(axis.positions) for _ in blocks]
        positions = block_diag(of_each_decay, format="csr")
        return cls(
            axis=axis,
            columns=columns,
            items=np.hstack([axis.positions, *rows]),
            corner=np.vstack(corner),
            chances=chances @ Z,
            row_positions=positions,
        )
