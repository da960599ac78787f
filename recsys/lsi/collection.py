"""The documents of an index: their names, their weighted rows, their coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.lsi.labels import Labels
from recsys.lsi.queries import inverse_lengths

__all__ = ["Collection", "snippet"]

_SNIPPET = 120  # characters


def snippet(text: str) -> str:
    """Return the beginning of a text on one line."""
    words = " ".join(text[: 4 * _SNIPPET].split())
    return words if len(words) <= _SNIPPET else words[: _SNIPPET - 1].rstrip() + "…"


@dataclass(frozen=True, eq=False)
class Collection:
    """Documents of an index.

    Attributes
    ----------
    ids : Labels
    titles, snippets : Series of String, or None
        What is shown of each document beside its id.
    rows : csr_array of shape (n_documents, n_terms)
        Weights of their terms.
    embedding : ndarray of shape (n_documents, k)
        Their coordinates, V_k S_k.
    """

    ids: Labels
    titles: pl.Series | None
    snippets: pl.Series | None
    rows: Any
    embedding: NDArray[np.floating[Any]]

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def vectors(self) -> NDArray[np.float32]:
        """The coordinates as float32, in which cosines are computed."""
        return np.asarray(self.embedding, dtype=np.float32)

    @cached_property
    def inverse(self) -> NDArray[np.float32]:
        """1 / length of each document's coordinates, NaN for one without words."""
        return inverse_lengths(self.vectors)

    def shown(self, places: NDArray[np.int64]) -> list[pl.Series]:
        """Return the columns that tell what some documents are, as far as they are known."""
        columns = []
        if self.titles is not None:
            columns.append(self.titles[places].alias("title"))
        if self.snippets is not None:
            columns.append(self.snippets[places].alias("snippet"))
        return columns

    def extended(self, more: Collection) -> Collection:
        """Return these and further documents.

        Raises
        ------
        DataError
            If an id is there already.
        """
        from scipy import sparse

        sizes = (len(self), len(more))
        return Collection(
            ids=self.ids.extended(more.ids.values),
            titles=_joined("title", self.titles, more.titles, sizes),
            snippets=_joined("snippet", self.snippets, more.snippets, sizes),
            rows=sparse.vstack([self.rows, more.rows], format="csr"),
            embedding=np.vstack([self.embedding, more.embedding]),
        )

    def placed(self, embedding: NDArray[np.floating[Any]]) -> Collection:
        """Return the same documents with other coordinates."""
        return replace(self, embedding=embedding)


def _joined(
    name: str, first: pl.Series | None, second: pl.Series | None, sizes: Sequence[int]
) -> pl.Series | None:
    if first is None and second is None:
        return None
    parts = [
        pl.Series(name, [None] * size, dtype=pl.String) if part is None else part
        for part, size in zip((first, second), sizes, strict=True)
    ]
    return pl.concat(parts)
