"""Vectors of items and users for vector databases, as data frames.

The inner product of the vectors of a user and an item is the score of the model. The bias of the
item, with its discount for few ratings, and the offset of the user are in two more dimensions::

    user (x_u, 1, offset_u)    item (y_i, bias_i, 1)

Similarities are cosines times a confidence c between 0 and 1, of the result only. With vectors of
length 1, they are the cosines of a query and a vector::

    query (y_i, 0)    vector (c_i y_i, sqrt(1 - c_i^2))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import polars as pl

from lowrank import kernels
from recsys.data.ids import Ids
from recsys.errors import DataError
from recsys.models import abilities
from recsys.models.base import FactorModel, Model
from recsys.models.baselines import Bias, Popular
from recsys.models.parts import Floats, Indices
from recsys.ranking.topn import Cosine, Scorer

if TYPE_CHECKING:
    from recsys.provenance import Provenance

Metric: TypeAlias = Literal["inner-product", "cosine"]
METRICS = ("inner-product", "cosine")

_ADDED = 2  # dimensions of biases
_BLOCK = 2**24  # numbers in the vectors of a block: 64 MB


@dataclass(frozen=True)
class VectorTable:
    """Vectors of items (or users) with their ids, as frames of some megabytes.

    Attributes
    ----------
    ids : Ids
    rows : int64 ndarray
        Indices of the items (or users) to write.
    metric : {"inner-product", "cosine"}
    dimension : int
    details : sequence of Series
        Further columns of the items, in index order.
    vectors : callable
        Columns of vectors by their names, of some items (or users).
    """

    ids: Ids
    rows: Indices
    metric: Metric
    dimension: int
    details: Sequence[pl.Series]
    vectors: Callable[[Indices], dict[str, Floats]]

    def batches(self) -> Iterator[pl.DataFrame]:
        """Yield the rows in frames; the first one has the columns even without rows."""
        size = max(1, _BLOCK // self.dimension)
        for part in kernels.pieces(max(1, len(self.rows)), size):
            rows = self.rows[part]
            ids = self.ids.take(rows).alias(self.ids.kind)
            columns = [ids]
            for name, values in self.vectors(rows).items():
                dtype = pl.Array(pl.Float32, self.dimension)
                columns.append(pl.Series(name, values, dtype=dtype))
            columns += [values.gather(rows) for values in self.details]
            yield pl.DataFrame(columns)

    def manifest(self, provenance: Provenance, name: str) -> dict[str, Any]:
        """Return what tells later which model the vectors are of, and how to compare them."""
        return {
            "kind": self.ids.kind,
            "model": provenance.version or name,
            "metric": self.metric,
            "dimension": self.dimension,
            "fingerprint": provenance.fingerprint,
            "created": provenance.created,
        }


def score_table(
    model: Model,
    ids: Ids,
    rows: Indices,
    details: Sequence[pl.Series],
) -> VectorTable:
    """Return vectors whose inner products are scores.

    Raises
    ------
    DataError
        If the scores of the model are not products of factors.
    """
    form = model._factor_form([])
    if form is None or form.sparse is not None:
        ability: Any = FactorModel | Bias | Popular
        error = abilities.unsupported(
            model,
            ability,
            "be written as vectors, because its scores are not products of factors",
        )
        raise DataError(
            f"{str(error)[:-1]}, spectral with linear=false, and a blend of these models."
        )

    def vectors(some: Indices) -> dict[str, Floats]:
        ones = np.ones(len(some), np.float32)
        if ids.kind == "user":
            of_users = model._factor_form(some)
            assert of_users is not None  # as for no users
            return {"vector": _extended(of_users.users, ones, of_users.offset)}
        bias = None if form.bias is None else form.bias[some]
        return {"vector": _extended(form.items[some], bias, ones)}

    dimension = form.items.shape[1] + _ADDED
    return VectorTable(ids, rows, "inner-product", dimension, details, vectors)


def _extended(factors: Floats, *columns: Floats | None) -> Floats:
    """Return factors with further columns, of zeros where there are none."""
    zeros = np.zeros(len(factors), np.float32)
    added = [zeros if column is None else column for column in columns]
    return np.column_stack([factors, *added])


def similarity_table(
    scorer: Scorer,
    model: Model,
    ids: Ids,
    rows: Indices,
    details: Sequence[pl.Series],
) -> VectorTable:
    """Return vectors whose cosines are similarities, without the vectors of zeros.

    Raises
    ------
    DataError
        If similarities are not cosines.
    """
    if not isinstance(scorer, Cosine):
        raise DataError(
            f"The similarities of the {model.name} model are not cosines of vectors; "
            f"similar_{ids.kind}s lists them."
        )
    unit_vectors = scorer.unit_vectors

    def vectors(some: Indices) -> dict[str, Floats]:
        unit = unit_vectors[some]
        confidence = scorer.confidence[some, None]
        confidence = np.minimum(confidence, 1).astype(np.float64)
        # The square of the last number makes the length 1.
        last = np.sqrt(1 - confidence**2)
        return {
            "vector": np.hstack([confidence * unit, last]).astype(np.float32),
            "query": np.hstack([unit, np.zeros_like(unit[:, :1])]),
        }

    has_length = np.isfinite(unit_vectors[rows]).all(axis=1)
    rows = rows[has_length]
    dimension = unit_vectors.shape[1] + 1
    return VectorTable(ids, rows, "cosine", dimension, details, vectors)
