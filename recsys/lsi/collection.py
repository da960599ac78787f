"""The documents of an index, in the parts in which they were added."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.ids import Ids
from recsys.lsi.parts import Part, tables_joined

if TYPE_CHECKING:
    from recsys.data.ids import IdsLike

_LARGER = 2  # times the size of the part behind it, that a part has
_MOST_REMOVED = 4  # documents of a part for each that is removed


@dataclass(frozen=True, eq=False)
class Collection:
    """Documents of an index, in the parts in which they were added.

    A place is a row of the parts, one below another, those of removed documents included.

    Attributes
    ----------
    parts : tuple of Part
    """

    parts: tuple[Part, ...]

    def __len__(self) -> int:
        return sum(len(part) - len(part.removed) for part in self.parts)

    @cached_property
    def whole(self) -> Part:
        """All documents as one part, without those that are removed."""
        if len(self.parts) == 1 and not len(self.parts[0].removed):
            return self.parts[0]
        return Part.joined(self.parts)

    @cached_property
    def ids(self) -> Ids:
        """Their ids."""
        labels = self.table["document"]
        kept = labels if self._places is None else labels.gather(self._places)
        return Ids(kept, "document", sort=False)

    @cached_property
    def table(self) -> pl.DataFrame:
        """Columns document, title and snippet, as far as they are known, of all places."""
        return tables_joined([part.table for part in self.parts])

    @cached_property
    def _places(self) -> NDArray[np.int64] | None:
        """Place of each document, None where nothing is removed."""
        if len(self) == len(self.table):
            return None
        kept = [np.delete(np.arange(len(part)), part.removed) for part in self.parts]
        return np.concatenate([a + b for a, b in zip(self._starts, kept, strict=True)])

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.cumsum([0, *map(len, self.parts[:-1])])

    def places(self, labels: IdsLike) -> NDArray[np.int64]:
        """Return the places of documents by their ids.

        Raises
        ------
        UnknownIdError
            If one is not there.
        """
        return self.places_of(self.ids.index(labels))

    def places_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of documents by their numbers among `ids`."""
        return numbers if self._places is None else self._places[numbers]

    def shown(self, places: NDArray[np.int64]) -> list[pl.Series]:
        """Return ids, and titles and snippets as far as they are known, of some documents."""
        index = pl.Series(places.astype(np.uint32))  # the quickest way by far
        return [column[index] for column in self.table.get_columns()]

    def counts_of(self, place: int) -> Any:
        """Return the row of counts of one document."""
        owner = int(np.searchsorted(self._starts, place, side="right")) - 1
        return self.parts[owner].counts[[place - self._starts[owner]]]

    def extended(self, more: Part) -> Collection:
        """Return a collection of these and further documents.

        Parts that are not much larger than the one behind them are joined with it: so there are
        few, and each document is written again only as often as the collection has doubled.
        """
        parts = [*self.parts, more]
        while len(parts) > 1 and len(parts[-2]) < _LARGER * len(parts[-1]):
            parts[-2:] = [Part.joined(parts[-2:])]
        return Collection(tuple(parts))

    def without(self, places: NDArray[np.int64]) -> Collection:
        """Return a collection without the documents at some places.

        They stay in their part until they are a quarter of it.
        """
        owned = {id(part): rows for part, rows in self.owned(places)}
        parts = []
        for part in self.parts:
            left = part
            if (rows := owned.get(id(part))) is not None:
                left = part.without(rows)
                if _MOST_REMOVED * len(left.removed) >= len(left):
                    left = Part.joined([left])
            parts += [left] if len(left) else []
        return Collection(tuple(parts))

    def owned(self, places: NDArray[np.int64]) -> Iterator[tuple[Part, NDArray[np.int64]]]:
        """Yield the parts that places are in, with their rows there."""
        for start, part in zip(self._starts.tolist(), self.parts, strict=True):
            inside = (places >= start) & (places < start + len(part))
            if inside.any():
                yield part, places[inside] - start
