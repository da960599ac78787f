"""Facts about the items and users of a model as JSON objects: titles, counts, histories."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.changes import has_grades
from recsys.data.features import Features
from recsys.data.ids import CANONICAL_INTEGER, Ids, as_id_series
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.models.base import Indices
from recsys.recommender import Recommender

Id: TypeAlias = int | str
Json: TypeAlias = dict[str, Any]
"""A JSON object: text, Python numbers, lists and objects only."""

_DIGITS = 7  # of a number in single precision
_LONGEST_SEARCH = 200  # characters


class Facts:
    """Facts about the items and users of one fitted model, which never changes.

    Parameters
    ----------
    recommender : Recommender
    name : str
        What the answers call the model.
    """

    def __init__(self, recommender: Recommender, name: str) -> None:
        self.ratings: Ratings = recommender.ratings
        self.name = name
        self._training = recommender.training
        self._titles = recommender._titles

    def names(self, items: NDArray[Any]) -> list[Json]:
        """Return ids and titles of items, given by index."""
        ids = self.ratings.items.take(items).to_list()
        titles = self.titles(items)
        return [{"item": id, "title": title} for id, title in zip(ids, titles, strict=True)]

    def named(self, item: int) -> Json:
        """Return id and title of an item."""
        return self.names(np.array([item]))[0]

    def titles(self, items: NDArray[Any]) -> list[str | None]:
        """Return titles of items, None where they are not known."""
        titles = self._titles
        return [None] * len(items) if titles is None else titles[items].to_list()

    def place(self, item: Id) -> int:
        """Return the index of an item.

        Raises
        ------
        UnknownIdError
        """
        place = self.ratings.items.place(item)
        return place if place >= 0 else int(self.ratings.items.index([item])[0])  # raises

    def items(self, text: str, n: int) -> Json:
        """Return the items with a title that contains all words of a text, or that have it as id.

        Case and accents do not count. Those whose title begins with the text come first, then those
        with a word that does, and among these the ones with more ratings.
        """
        counts = self._counts
        wanted = _plain(pl.Series([text.strip()[:_LONGEST_SEARCH]]))[0]
        if not wanted:
            found = np.arange(len(counts))
            rank = np.zeros(len(counts), np.int64)
        else:
            titles = self._plain_titles
            starts, begins, contains, *words = (
                titles.str.starts_with(wanted).to_numpy(),
                *(
                    titles.str.contains(each, literal=True).to_numpy()
                    for each in (f" {wanted}", wanted, *wanted.split())
                ),
            )
            within = np.logical_and.reduce(words)
            rank = np.where(starts, 1, np.where(begins, 2, np.where(contains, 3, 4)))
            named = self.ratings.items.find([text.strip()])
            named = named[named >= 0]
            rank[named] = 0
            within[named] = True
            found = np.flatnonzero(within)
        order = np.lexsort((found, -counts[found], rank[found]))[:n]
        rows = [self.named(int(place)) | {"count": int(counts[place])} for place in found[order]]
        return {"items": rows, "total": len(found), "model": self.name}

    def item(self, item: Id) -> Json:
        """Return what is known of an item.

        Raises
        ------
        UnknownIdError
        """
        place = self.place(item)
        ratings = self.ratings
        found = self.named(place) | {"count": int(self._counts[place])}
        if not ratings.implicit:
            found["mean"] = short(self._means[place]) if self._counts[place] else None
        found["features"] = _features(ratings.item_table, self._item_rows, place)
        return found | {"model": self.name}

    def users(self, n: int) -> Json:
        """Return the n users with most ratings, and the number of all."""
        counts = np.diff(self.ratings.indptr)
        order = np.argsort(-counts, kind="stable")[:n]
        ids = self.ratings.users.take(order).to_list()
        return {"users": ids, "total": len(counts), "model": self.name}

    def user(self, user: Id, n: int) -> Json:
        """Return what is known of a user, and the n ratings that are highest.

        Raises
        ------
        UnknownIdError
        """
        row = int(self.ratings.users.index([user])[0])
        ratings = self.ratings
        own = slice(int(ratings.indptr[row]), int(ratings.indptr[row + 1]))
        places, values = ratings.indices[own], ratings.values_at(own)
        order = np.lexsort((places, -values))[:n]
        history = [
            named | {"value": value}
            for named, value in zip(self.names(places[order]), numbers(values[order]), strict=True)
        ]
        return {
            "user": id_of(ratings.users, row),
            "count": len(places),
            "history": history,
            "features": _features(ratings.user_table, self._user_rows, row),
            "model": self.name,
        }

    def check_events(self, events: Sequence[Json]) -> None:
        """Check that `recsys update` will be able to add events to the model.

        Raises
        ------
        DataError
            If an id cannot be one of the model's, or a rating is missing or outside of the range.
        """
        ratings, training = self.ratings, self._training
        low, high = training["rating_min"], training["rating_max"]
        for number, event in enumerate(events, start=1):
            for ids, id in ((ratings.users, event["user"]), (ratings.items, event["item"])):
                is_text = as_id_series([id], ids.kind).dtype == pl.String
                if ids.dtype == pl.Int64 and is_text and not CANONICAL_INTEGER.fullmatch(id):
                    expected = f"the model has integer {ids.kind} ids"
                    raise DataError(f"Event {number}: {expected}; {id!r} cannot be among them.")
            value = event["value"]
            if not ratings.implicit and value is None:
                raise DataError(f"Event {number}: the model needs a rating, as the value.")
            if self._has_grades and not low <= value <= high:
                expected = f"the value must be between {low:g} and {high:g}"
                raise DataError(f"Event {number}: {expected}; got {value:g}.")

    @cached_property
    def _has_grades(self) -> bool:
        return has_grades(self.ratings)

    @cached_property
    def _counts(self) -> NDArray[np.int64]:
        return np.bincount(self.ratings.indices, minlength=self.ratings.n_items)

    @cached_property
    def _means(self) -> NDArray[np.float64]:
        sums = np.bincount(self.ratings.indices, self.ratings.values, self.ratings.n_items)
        return sums / np.maximum(self._counts, 1)

    @cached_property
    def _plain_titles(self) -> pl.Series:
        """Titles, or ids where there are none, without case and accents."""
        titles = self._titles
        ids = self.ratings.items.values.cast(pl.String)
        return _plain(ids if titles is None else titles.fill_null(ids))

    @cached_property
    def _item_rows(self) -> Indices | None:
        table = self.ratings.item_table
        return None if table is None else table.rows_of(self.ratings.items)

    @cached_property
    def _user_rows(self) -> Indices | None:
        table = self.ratings.user_table
        return None if table is None else table.rows_of(self.ratings.users)


def short(value: float) -> float:
    """Return a number in single precision with seven significant digits, which JSON shows.

    Examples
    --------
    >>> short(np.float32(3.4567)), float(np.float32(3.4567))
    (3.4567, 3.456700086593628)
    """
    return float(f"{value:.{_DIGITS}g}")


def numbers(values: NDArray[Any]) -> list[float]:
    """Return `short` of each number."""
    exact = values.astype(np.float64)
    size = np.maximum(np.abs(exact), 1e-30)
    scale = 10.0 ** np.maximum(_DIGITS - 1 - np.floor(np.log10(size)), 0)
    rounded: list[float] = (np.round(exact * scale) / scale).tolist()
    return rounded


def _plain(texts: pl.Series) -> pl.Series:
    return texts.str.to_lowercase().str.normalize("NFD").str.replace_all(r"\p{M}", "")


def id_of(ids: Ids, place: int) -> Id:
    """Return one id."""
    found: Id = ids.values[place]
    return found


def _features(table: Features | None, rows: Indices | None, place: int) -> Json:
    """Return what a table has about an item or a user, without missing values."""
    if table is None or rows is None or rows[place] < 0:
        return {}
    found = table.frame.row(int(rows[place]), named=True)
    return {
        name: value if isinstance(value, int | float | str | list) else str(value)
        for name, value in found.items()
        if name in table.kinds and value is not None
    }
