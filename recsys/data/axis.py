"""Axis: the users or the items of ratings, with their table and their features."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from recsys.data.arrays import Mask
from recsys.data.features import Features
from recsys.data.ids import Ids

if TYPE_CHECKING:
    import polars as pl

    from lowrank.completion.feature_ridge import GroupedFeatures
    from recsys.features.encoder import FeatureEncoder


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """Users or items of ratings, for what is done with both in the same way.

    Attributes
    ----------
    ids : Ids
        Ids of the kind "user" or "item".
    table : Features or None
        Table that may have rows for ids without ratings, and may lack ids.
    features : GroupedFeatures or None
        Features with rows in index order.
    """

    ids: Ids
    table: Features | None = None
    features: GroupedFeatures | None = None

    @property
    def encoder(self) -> FeatureEncoder | None:
        """Encoder of the features; None if there are none, or if they have another source."""
        return getattr(self.features, "encoder", None)

    @property
    def in_table(self) -> Mask:
        """Mask of the ids that have a row in the table."""
        if self.table is None:
            return np.zeros(len(self.ids), np.bool_)
        return self.table.rows_of(self.ids) >= 0

    def column(self, name: str) -> pl.Series | None:
        """Return a column of the table in the order of the ids; None if there is no such column."""
        if self.table is None or name not in self.table.kinds:
            return None
        return self.table.aligned(self.ids)[name]

    @property
    def offered(self) -> Mask | None:
        """Mask of the ids that may be recommended, by a catalogue; None for all."""
        if self.table is None or not self.table.is_catalogue:
            return None
        in_table = self.in_table
        return None if in_table.all() else in_table

    def aligned(self, ids: Ids) -> Axis:
        """Return the axis with other ids; features get empty rows for unknown ids."""
        if self.features is None or self.ids == ids:
            return replace(self, ids=ids)
        from scipy import sparse

        matrix = self.features.matrix
        empty_row = sparse.csr_array((1, matrix.shape[1]), dtype=matrix.dtype)
        # The index -1 of an unknown id selects the last row.
        rows = sparse.vstack([matrix, empty_row], format="csr")[
            self.ids.find(ids.values)
        ]
        features: Any = self.features
        return Axis(ids, self.table, replace(features, matrix=rows))
