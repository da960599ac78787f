"""Vectors of items and users for vector databases, as data frames.

The inner product of the vectors of a user and an item is the score of the model. The bias of the
item, with its discount for few ratings, and the offset of the user are in two more dimensions::

    user (x_u, 1, offset_u)    item (y_i, bias_i, 1)

Similarities are cosines times a confidence c between 0 and 1, of the result only. With vectors of
length 1, they are the cosines of a query and a vector::

    query (y_i, 0)    vector (c_i y_i, sqrt(1 - c_i^2))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from recsys.models.factor_form import FactorForm
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
    """

    ids: Ids
    rows: Indices
    metric: Metric
    dimension: int
    details: Sequence[pl.Series]
    _source: _Scores | _Similarities

    def batches(self) -> Iterator[pl.DataFrame]:
        """Yield the rows in frames; the first one has the columns even without rows."""
        size = max(1, _BLOCK // self.dimension)
        for part in kernels.pieces(max(1, len(self.rows)), size):
            rows = self.rows[part]
            ids = self.ids.take(rows).alias(self.ids.kind)
            vectors = self._source.columns(self.ids.kind, rows)
            columns = [ids]
            for name, values in vectors.items():
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


@dataclass(frozen=True)
class _Scores:
    """Vectors whose inner products are the scores of a model."""

    model: Model

    def __post_init__(self) -> None:
        form = self.model._factor_form([])
        if form is None or form.sparse is not None:
            ability: Any = FactorModel | Bias | Popular
            error = abilities.unsupported(
                self.model,
                ability,
                "be written as vectors, because its scores are not products of factors",
            )
            raise DataError(
                f"{str(error)[:-1]}, spectral with linear=false, and a blend of "
                "these models."
            )

    @property
    def dimension(self) -> int:
        n_factors: int = self._form([]).items.shape[1]
        return n_factors + _ADDED

    def _form(self, users: Any) -> FactorForm:
        form = self.model._factor_form(users)
        assert form is not None  # checked above
        return form

    def columns(self, side: str, rows: Indices) -> dict[str, Floats]:
        """Return the vectors of some users (or items)."""
        ones = np.ones(len(rows), np.float32)
        zeros = np.zeros(len(rows), np.float32)
        if side == "user":
            form = self._form(rows)
            offset = zeros if form.offset is None else form.offset
            parts = [form.users, ones, offset]
        else:
            form = self._form([])
            bias = zeros if form.bias is None else form.bias[rows]
            parts = [form.items[rows], bias, ones]
        return {"vector": np.column_stack(parts)}


@dataclass(frozen=True)
class _Similarities:
    """Vectors whose cosines are similarities, and the queries for these."""

    scorer: Cosine

    @property
    def dimension(self) -> int:
        n_factors: int = self.scorer.unit_vectors.shape[1]
        return n_factors + 1

    def columns(self, side: str, rows: Indices) -> dict[str, Floats]:
        """Return the vectors and queries of some users (or items)."""
        unit = self.scorer.unit_vectors[rows]
        confidence = self.scorer.confidence[rows, None]
        confidence = np.minimum(confidence, 1).astype(np.float64)
        # The square of the last number makes the length 1.
        last = np.sqrt(1 - confidence**2)
        vectors = np.hstack([confidence * unit, last]).astype(np.float32)
        queries = np.hstack([unit, np.zeros_like(unit[:, :1])])
        return {"vector": vectors, "query": queries}


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
    source = _Scores(model)
    return VectorTable(ids, rows, "inner-product", source.dimension, details, source)


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
    source = _Similarities(scorer)
    has_length = np.isfinite(scorer.unit_vectors[rows]).all(axis=1)
    rows = rows[has_length]
    return VectorTable(ids, rows, "cosine", source.dimension, details, source)
