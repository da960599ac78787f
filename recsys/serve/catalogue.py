"""Catalogue about the items and users of a model as JSON objects: titles, counts, histories."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.changes import plausible_range
from recsys.data.ids import Ids
from recsys.models.abilities import HasItemVectors
from recsys.models.base import FactorModel
from recsys.models.nonnegative import has_topics
from recsys.models.parts import Indices
from recsys.predictions import unsupported
from recsys.recommender import Recommender
from recsys.serve.deadline import check_time
from recsys.serve.problems import ProblemError

if TYPE_CHECKING:
    from recsys.models.base import Model

Id: TypeAlias = int | str
"""Id in a request: a number, or text. Responses have ids as text (see `id_texts`)."""
Json: TypeAlias = dict[str, Any]
"""JSON object of strings, Python numbers, lists and objects."""

_EXACT = 2**53  # from here on, a browser rounds integers
_DIGITS = 7  # significant digits of a number in single precision
_LARGEST = float(np.finfo(np.float32).max)
_LONGEST_SEARCH = 200  # maximum number of characters of a query
_TOPIC_ITEMS = 10  # number of items of a topic
_ENDS = 3  # number of items named at each end of an axis


class Catalogue:
    """Catalogue about one fitted model, its items and its users; answers contain its `name`."""

    def __init__(self, recommender: Recommender, name: str) -> None:
        self.recommender, self.ratings, self.name = (
            recommender,
            recommender.ratings,
            name,
        )
        self._titles = recommender._titles

    def names(self, items: NDArray[Any]) -> list[Json]:
        """Return ids and titles of items, given by index."""
        ids = id_texts(self.ratings.items, items)
        titles = self.titles(items)
        return [
            {"item": id, "title": title} for id, title in zip(ids, titles, strict=True)
        ]

    def named(self, item: int) -> Json:
        """Return id and title of an item."""
        return self.names(np.array([item]))[0]

    def titles(self, items: NDArray[Any]) -> list[str | None]:
        """Return titles of items, None if unknown."""
        titles = self._titles
        return [None] * len(items) if titles is None else titles[items].to_list()

    def place(self, item: Id) -> int:
        """Return the index of an item."""
        place = self.ratings.items.place(item)
        # raises
        return place if place >= 0 else int(self.ratings.items.index([item])[0])

    def items(self, text: str, n: int) -> Json:
        """Return the items whose title contains all words of a text, or whose id is the text.

        Case and accents are ignored. The item with this id comes first, then titles that begin with
        the text, titles with a word that begins with it, and others; ties are ordered by the number
        of ratings.
        """
        counts = self.counts
        wanted = _plain(pl.Series([text.strip()[:_LONGEST_SEARCH]]))[0]
        if not wanted:
            found = np.arange(len(counts))
            rank = np.zeros(len(counts), np.int64)
        else:
            titles = self._plain_titles
            starts = titles.str.starts_with(wanted).to_numpy()
            begins = titles.str.contains(f" {wanted}", literal=True).to_numpy()
            contains = titles.str.contains(wanted, literal=True).to_numpy()
            within = np.ones(len(titles), np.bool_)
            for word in wanted.split():
                check_time()
                within &= titles.str.contains(word, literal=True).to_numpy()
            rank = np.where(starts, 1, np.where(begins, 2, np.where(contains, 3, 4)))
            if (place := self.ratings.items.place(text.strip())) >= 0:
                rank[place], within[place] = 0, True
            found = np.flatnonzero(within)
        best = found[np.lexsort((found, -counts[found], rank[found]))[:n]]
        named = zip(self.names(best), counts[best].tolist(), strict=True)
        rows = [name | {"count": count} for name, count in named]
        return {"items": rows, "total": len(found), "model": self.name}

    def item(self, item: Id) -> Json:
        """Return facts about an item."""
        place = self.place(item)
        found = self.named(place) | {"count": int(self.counts[place])}
        if not self.ratings.implicit:
            found["mean"] = short(self.means[place]) if self.counts[place] else None
        return found | {"features": self.features("item", place), "model": self.name}

    def users(self, n: int) -> Json:
        """Return the n users with the most ratings, and the number of all users."""
        counts = np.diff(self.ratings.indptr)
        order = np.argsort(-counts, kind="stable")[:n]
        ids = id_texts(self.ratings.users, order)
        return {"users": ids, "total": len(counts), "model": self.name}

    def user(self, user: Id, n: int) -> Json:
        """Return facts about a user, and the n highest ratings."""
        row = int(self.ratings.users.index([user])[0])
        ratings = self.ratings
        own = slice(int(ratings.indptr[row]), int(ratings.indptr[row + 1]))
        places, values = ratings.indices[own], ratings.values_at(own)
        order = np.lexsort((places, -values))[:n]
        history = [
            named | {"value": value}
            for named, value in zip(
                self.names(places[order]), numbers(values[order]), strict=True
            )
        ]
        return {
            "user": str(ratings.users.values[row]),
            "count": len(places),
            "history": history,
            "features": self.features("user", row),
            "model": self.name,
        }

    @cached_property
    def plausible(self) -> tuple[float, float]:
        """Lowest and highest grade that is plausible, in single precision."""
        low, high = plausible_range(self.ratings)
        return max(low, -_LARGEST), min(high, _LARGEST)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Number of ratings of each item."""
        return np.bincount(self.ratings.indices, minlength=self.ratings.n_items)

    @cached_property
    def means(self) -> NDArray[np.float64]:
        """Mean rating of each item, 0 without ratings."""
        sums = np.bincount(
            self.ratings.indices, self.ratings.values, self.ratings.n_items
        )
        return sums / np.maximum(self.counts, 1)

    def most_rated(self, n: int) -> Indices:
        """Return the n items with the most ratings, the first one first."""
        return np.argsort(-self.counts, kind="stable")[:n]

    @cached_property
    def _plain_titles(self) -> pl.Series:
        """Titles (ids if unknown), lower case and without accents."""
        titles = self._titles
        ids = self.ratings.items.values.cast(pl.String)
        return _plain(ids if titles is None else titles.fill_null(ids))

    @cached_property
    def _rows(self) -> dict[str, Indices]:
        """Rows of items and users in their tables, -1 if missing."""
        known = self.ratings
        sides = (
            ("item", known.items, known.item_table),
            ("user", known.users, known.user_table),
        )
        return {
            side: table.rows_of(ids) for side, ids, table in sides if table is not None
        }

    def features(self, side: str, place: int) -> Json:
        """Return the values of an item or user in its table, without missing ones."""
        if side not in self._rows or (row := self._rows[side][place]) < 0:
            return {}
        table = getattr(self.ratings, f"{side}_table")
        return {
            name: _shown(value)
            for name, value in table.frame.row(int(row), named=True).items()
            if name in table.kinds and value is not None
        }

    def map(self, n: int) -> Json:
        """Return coordinates in the plane of the n items with the most ratings.

        They are the first two principal components of the item vectors, scaled to length 1, so that
        similar items are close. "share" is the share of the variance that they explain.

        Raises
        ------
        ProblemError
            If the model has no item vectors, or all of them are zero.
        """
        model = self.recommender.model
        if not isinstance(model, HasItemVectors):
            error = unsupported(model, HasItemVectors, "place its items on a map")
            raise ProblemError("not-available", str(error))
        chosen = self.most_rated(n)
        vectors = model.item_vectors()[chosen].astype(np.float64)
        lengths = np.linalg.norm(vectors, axis=1)
        placed = lengths > 0  # a vector of zeros has no direction
        if not placed.any():
            reason = f"The items of the {model.name} model do not differ, and so there is no map."
            raise ProblemError("not-available", reason)
        chosen = chosen[placed]
        points, share = _plane(vectors[placed] / lengths[placed, None])
        items = [
            named | {"x": x, "y": y, "count": count}
            for named, (x, y), count in zip(
                self.names(chosen),
                points.tolist(),
                self.counts[chosen].tolist(),
                strict=True,
            )
        ]
        titles = [
            str(each["item"] if each["title"] is None else each["title"])
            for each in items
        ]
        axes = []
        for column in points.T:
            order = np.argsort(column, kind="stable").tolist()
            ends = {"low": order[:_ENDS], "high": order[::-1][:_ENDS]}
            axes.append(
                {end: [titles[at] for at in places] for end, places in ends.items()}
            )
        return {"items": items, "axes": axes, "share": share, "model": self.name}

    def spectrum(self) -> Json:
        """Return the singular values of the low-rank part of the model, in descending order.

        For factor models, they are those of the product of user and item factors; for spectral,
        those of the normalised interactions; for a blend, those of its first model that has any.
        If the factors are not negative, also the topics.

        Raises
        ------
        ProblemError
            If the model has no factors.
        """
        model = self.recommender.model
        if (values := _singular_values(model)) is None:
            reason = (
                f"The {model.name} model has no factors, and so no singular values."
            )
            raise ProblemError("not-available", reason)
        kept = np.sort(values.astype(np.float64))[::-1].tolist()
        answer: Json = {"values": kept, "rank": len(kept), "model": self.name}
        if has_topics(model):
            answer["topics"] = self._topics()
        return answer

    def _topics(self) -> list[Json]:
        """Return the items with the largest weights in each topic."""
        topics = self.recommender._topics
        answer = []
        for topic in range(topics.weights.shape[1]):
            items = topics.top_items(topic, _TOPIC_ITEMS)
            weights = numbers(topics.weights[items, topic])
            named = zip(self.names(items), weights, strict=True)
            rows = [name | {"weight": weight} for name, weight in named]
            answer.append({"topic": topic + 1, "items": rows})
        return answer


def id_texts(ids: Ids, indices: NDArray[Any]) -> list[str]:
    """Return ids as texts, because a browser rounds integers above 2^53.

    Examples
    --------
    >>> from recsys.data.ids import Ids
    >>> id_texts(Ids([2**53 + 1, 7], "item"), np.array([1, 0]))
    ['9007199254740993', '7']
    """
    return [str(id) for id in ids.take(indices).to_list()]


def _shown(value: Any) -> Any:
    """Return a value of a table for JSON: text, if it is of another type or a browser rounds it."""
    if isinstance(value, list):
        return [_shown(element) for element in value]
    if isinstance(value, int) and not -_EXACT < value < _EXACT:
        return str(value)
    return value if isinstance(value, int | float | str | None) else str(value)


def short(value: float) -> float:
    """Return a number in single precision, rounded to seven significant digits for JSON.

    Examples
    --------
    >>> short(np.float32(3.4567)), float(np.float32(3.4567))
    (3.4567, 3.456700086593628)
    """
    return float(f"{value:.{_DIGITS}g}")


def numbers(values: NDArray[Any]) -> list[float]:
    """Return `short` of each number."""
    return [short(value) for value in values.tolist()]


def _plain(texts: pl.Series) -> pl.Series:
    return texts.str.to_lowercase().str.normalize("NFD").str.replace_all(r"\p{M}", "")


def _plane(vectors: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return the first two principal components, in -1 to 1, and their share of the variance."""
    U, s, _ = np.linalg.svd(
        vectors - vectors.mean(axis=0, keepdims=True), full_matrices=False
    )
    points = np.zeros((len(vectors), 2))
    points[:, : len(s)] = (U * s)[:, :2]
    largest = np.abs(points).max(axis=0, initial=0)
    points /= np.where(largest > 0, largest, 1)
    # The sign of a component is arbitrary: choose the longer tail as the positive side.
    points *= np.where((points**3).sum(axis=0) < 0, -1, 1)
    shares = s**2 / max(float(s @ s), np.finfo(float).tiny)
    return points, float(shares[:2].sum())


def _singular_values(model: Model) -> NDArray[np.floating[Any]] | None:
    parts = getattr(model, "parts", None)
    if parts is not None:
        found = (_singular_values(part) for part in parts)
        return next((each for each in found if each is not None), None)
    if isinstance(model, FactorModel):
        # With A = Q R and B = P S, the singular values of A B' are those of the small R S'.
        R, S = (
            np.asarray(np.linalg.qr(np.asarray(factors, np.float64), mode="r"))
            for factors in (model.user_vectors(), model.item_vectors())
        )
        return np.linalg.svdvals(R @ S.T)
    return getattr(model, "singular_values", None)
