"""Catalogue about the items and users of a model as JSON objects: titles, counts, histories."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lowrank.kernels.arrays import Float64s, Floats, Int64s, Masks
from recsys.changes import plausible_range
from recsys.data.ids import Ids
from recsys.models.abilities import HasItemVectors, unsupported, vectors_of
from recsys.models.base import FactorModel
from recsys.models.nonnegative import has_topics
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
_SHORT = f"%.{_DIGITS}g"
_FEW = 32  # numbers that are rounded faster as texts than by arrays
_TINY = 1e-300  # logarithms of zero are not finite
_LARGEST = float(np.finfo(np.float32).max)
_LONGEST_SEARCH = 200  # maximum number of characters of a query
_TOPIC_ITEMS = 10  # number of items of a topic
_NAMED = 2**14  # items whose names are kept
_ENDS = 3  # number of items named at each end of an axis


class Catalogue:
    """Items and users of one fitted model; answers contain the `name` of the model."""

    def __init__(self, recommender: Recommender, name: str) -> None:
        self.recommender = recommender
        self.ratings = recommender.ratings
        self.name = name
        self._titles = recommender._titles
        # Reasons name the same items again and again. A cache of the method would be a cycle,
        # which keeps a replaced model and its mapped files until Python looks for garbage.
        self._kept_names: dict[int, Json] = {}

    def named(self, item: int) -> Json:
        """Return id and title of an item."""
        names = self._kept_names.get(item)
        if names is None:
            names = self._named(item)
            if len(self._kept_names) >= _NAMED:
                self._kept_names = {}  # other threads may read the earlier ones
            self._kept_names[item] = names
        return names.copy()

    def names(self, items: NDArray[Any]) -> list[Json]:
        """Return ids and titles of items, given by index."""
        ids = id_texts(self.ratings.items, items)
        pairs = zip(ids, self.titles(items), strict=True)
        return [{"item": id, "title": title} for id, title in pairs]

    def _named(self, item: int) -> Json:
        title = None if self._titles is None else self._titles[item]
        return {"item": str(self.ratings.items.values[item]), "title": title}

    def titles(self, items: NDArray[Any]) -> list[str | None]:
        """Return titles of items, None if unknown."""
        if self._titles is None:
            return [None] * len(items)
        return self._titles[items].to_list()

    def title(self, item: Id) -> str | None:
        """Return the title of an item, None if the item or its title is unknown."""
        index = self.ratings.items.place(item)
        if index < 0:
            return None
        return self.titles(np.array([index]))[0]

    def place(self, item: Id) -> int:
        """Return the index of an item."""
        index = self.ratings.items.place(item)
        if index < 0:
            self.ratings.items.index([item])  # raises
        return index

    def items(self, text: str, n: int) -> Json:
        """Return the items whose title contains all words of a text, or whose id is the text.

        Case and accents are ignored. The item with this id comes first, then titles that begin with
        the text, titles with a word that begins with it, and others; ties are ordered by the number
        of ratings.
        """
        text = text.strip()
        query = _plain(pl.Series([text[:_LONGEST_SEARCH]]))[0]
        ranks = np.zeros(len(self.counts), np.int64)
        if query:
            ranks = self._ranks(query, self.ratings.items.place(text))
        matches = np.flatnonzero((ranks >= 0) & self._offered)
        # The last key is the first to count.
        order = np.lexsort((-self.counts[matches], ranks[matches]))
        items = self._counted(matches[order[:n]])
        return {
            "items": items,
            "total": len(matches),
            "model": self.name,
        }

    def _counted(self, items: Int64s) -> list[Json]:
        """Return ids, titles and numbers of ratings of items."""
        rows = self.names(items)
        counts = self.counts[items].tolist()
        for row, count in zip(rows, counts, strict=True):
            row["count"] = count
        return rows

    def _ranks(self, query: str, index: int) -> Int64s:
        """Return the rank of each title for a query, -1 without a match.

        `index` is the index of the item whose id is the query, or negative.
        """
        ranks = np.full(len(self.counts), 4)
        ranks[self._contain(query)] = 3
        ranks[self._contain(f" {query}")] = 2
        ranks[self._plain_titles.str.starts_with(query).to_numpy()] = 1
        for word in query.split():
            check_time()
            ranks[~self._contain(word)] = -1
        if index >= 0:
            ranks[index] = 0
        return ranks

    @cached_property
    def _offered(self) -> Masks:
        """Items that may be recommended: all, or the items of a catalogue."""
        offered = self.ratings.axis("item").offered
        if offered is None:
            return np.ones(len(self.counts), np.bool_)
        return offered

    def _contain(self, text: str) -> Masks:
        """Return whether each title contains a text."""
        matches = self._plain_titles.str.contains(text, literal=True)
        return matches.to_numpy()

    def item(self, item: Id) -> Json:
        """Return facts about an item."""
        index = self.place(item)
        (facts,) = self._counted(np.array([index]))
        if not self.ratings.implicit:
            facts["mean"] = short(self.means[index]) if facts["count"] else None
        facts["features"] = self.features("item", index)
        facts["model"] = self.name
        return facts

    def users(self, n: int) -> Json:
        """Return the n users with the most ratings, and the number of all users."""
        counts = self.ratings.counts("user")
        order = np.argsort(-counts, kind="stable")
        return {
            "users": id_texts(self.ratings.users, order[:n]),
            "total": len(counts),
            "model": self.name,
        }

    def user(self, user: Id, n: int) -> Json:
        """Return facts about a user, and the n highest ratings."""
        ratings = self.ratings
        (row,) = ratings.users.index([user]).tolist()
        start, stop = ratings.indptr[row : row + 2].tolist()
        entries = slice(start, stop)
        items = ratings.indices[entries]
        values = ratings.values_at(entries)
        order = np.lexsort((items, -values))[:n]
        history = self.names(items[order])
        best_values = numbers(values[order])
        for rating, value in zip(history, best_values, strict=True):
            rating["value"] = value
        return {
            "user": str(ratings.users.values[row]),
            "count": len(items),
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
    def counts(self) -> Int64s:
        """Number of ratings of each item."""
        return self.ratings.counts("item")

    @cached_property
    def means(self) -> Float64s:
        """Mean rating of each item, 0 without ratings."""
        sums = np.bincount(
            self.ratings.indices, self.ratings.values, self.ratings.n_items
        )
        return sums / np.maximum(self.counts, 1)

    def most_rated(self, n: int) -> Int64s:
        """Return the n items with the most ratings, the first one first."""
        order = np.argsort(-self.counts, kind="stable")
        return order[self._offered[order]][:n]

    @cached_property
    def _plain_titles(self) -> pl.Series:
        """Titles (ids if unknown), lower case and without accents."""
        titles = self._titles
        ids = self.ratings.items.values.cast(pl.String)
        return _plain(ids if titles is None else titles.fill_null(ids))

    @cached_property
    def _rows(self) -> dict[str, Int64s]:
        """Rows of items and users in their tables, -1 if missing."""
        return {
            axis.ids.kind: axis.table.rows_of(axis.ids)
            for axis in self.ratings.axes
            if axis.table is not None
        }

    def features(self, side: str, index: int) -> Json:
        """Return the values of an item or user in its table, without missing ones."""
        table = self.ratings.axis(side).table
        if table is None:
            return {}
        row = int(self._rows[side][index])
        if row < 0:
            return {}
        values = table.frame.row(row, named=True)
        return {
            name: _to_json(value)
            for name, value in values.items()
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
        items = self.most_rated(n)
        vectors = vectors_of(model, "item")[items].astype(np.float64)
        lengths = np.linalg.norm(vectors, axis=1)
        has_direction = lengths > 0
        if not has_direction.any():
            reason = f"The items of the {model.name} model do not differ, and so there is no map."
            raise ProblemError("not-available", reason)
        items = items[has_direction]
        # Otherwise popular items, whose vectors are long, would fill the map.
        directions = vectors[has_direction] / lengths[has_direction, None]
        points, share = _plane(directions)
        rows = self._counted(items)
        titles = []
        for row, point in zip(rows, points.tolist(), strict=True):
            row["x"], row["y"] = point
            titles.append(str(row["title"] or row["item"]))
        axes = []
        for column in points.T:
            order = np.argsort(column, kind="stable")
            ordered = [titles[at] for at in order]
            high = ordered[::-1]
            axes.append({"low": ordered[:_ENDS], "high": high[:_ENDS]})
        return {
            "items": rows,
            "axes": axes,
            "share": share,
            "model": self.name,
        }

    def spectrum(self) -> Json:
        """Return the singular values of the low-rank part of the model, in descending order.

        For factor models, they belong to the product of user and item factors; for spectral,
        to the normalised interactions; for a blend, to its first model that has any.
        If the factors are not negative, also the topics.

        Raises
        ------
        ProblemError
            If the model has no factors.
        """
        model = self.recommender.model
        values = _singular_values(model)
        if values is None:
            reason = (
                f"The {model.name} model has no factors, and so no singular values."
            )
            raise ProblemError("not-available", reason)
        ascending = np.sort(values.astype(np.float64))
        descending = ascending[::-1].tolist()
        answer: Json = {
            "values": descending,
            "rank": len(descending),
            "model": self.name,
        }
        if has_topics(model):
            answer["topics"] = self._topics()
        return answer

    def _topics(self) -> list[Json]:
        """Return the items with the largest weights in each topic."""
        topics = self.recommender._topics
        answer = []
        for topic in range(topics.weights.shape[1]):
            items = topics.top_items(topic, _TOPIC_ITEMS)
            rows = self.names(items)
            weights = numbers(topics.weights[items, topic])
            for row, weight in zip(rows, weights, strict=True):
                row["weight"] = weight
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
    values = ids.take(indices).to_list()
    return [str(id) for id in values]


def _to_json(value: Any) -> Any:
    """Return a value of a table for JSON: text, if it is of another type or a browser rounds it."""
    if isinstance(value, list):
        return [_to_json(element) for element in value]
    if isinstance(value, int) and not -_EXACT < value < _EXACT:
        return str(value)
    if isinstance(value, int | float | str | None):
        return value
    return str(value)


def short(value: float) -> float:
    """Return a number in single precision, rounded to seven significant digits for JSON.

    Examples
    --------
    >>> short(np.float32(3.4567)), float(np.float32(3.4567))
    (3.4567, 3.456700086593628)
    """
    return float(_SHORT % value)


def numbers(values: NDArray[Any]) -> list[float]:
    """Return `short` of each number.

    Examples
    --------
    >>> numbers(np.float32([3.4567, -0.1, 0, 1e-9, 12345678]))
    [3.4567, -0.1, 0.0, 1e-09, 12345680.0]
    """
    if values.size <= _FEW:
        return [short(value) for value in values.tolist()]
    # Texts would take several times as long.
    doubles = values.astype(np.float64)
    sizes = np.maximum(np.abs(doubles), _TINY)
    exponents = np.floor(np.log10(sizes))
    scales = 10.0 ** (_DIGITS - 1 - exponents)
    rounded = np.rint(doubles * scales)
    values_in_json: list[float] = (rounded / scales).tolist()
    return values_in_json


def _plain(texts: pl.Series) -> pl.Series:
    """Return texts in lower case and without accents."""
    decomposed = texts.str.to_lowercase().str.normalize("NFD")
    return decomposed.str.replace_all(r"\p{M}", "")


def _plane(vectors: Float64s) -> tuple[Float64s, float]:
    """Return the first two principal components, in -1 to 1, and their share of the variance."""
    centred = vectors - vectors.mean(axis=0)
    U, s, _ = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(vectors), 2))
    points[:, : len(s)] = U[:, :2] * s[:2]
    largest = np.abs(points).max(axis=0, initial=0)
    largest[largest == 0] = 1
    points /= largest
    # The sign of a component is arbitrary: choose the longer tail as the positive side.
    skewness = (points**3).sum(axis=0)
    points *= np.where(skewness < 0, -1, 1)
    squares = s**2
    total = float(squares.sum())
    if total == 0:
        return points, 0.0
    share = float(squares[:2].sum()) / total
    return points, share


def _singular_values(model: Model) -> Floats | None:
    for part in getattr(model, "parts", ()):  # of a blend
        values = _singular_values(part)
        if values is not None:
            return values
    if isinstance(model, FactorModel):
        # With A = Q R and B = P S, the singular values of A B' are those of the small R S'.
        R = _triangle(model.user_vectors())
        S = _triangle(model.item_vectors())
        return np.linalg.svdvals(R @ S.T)
    return getattr(model, "singular_values", None)


def _triangle(vectors: NDArray[Any]) -> Float64s:
    """Return the triangular factor of a QR decomposition."""
    triangle: Any = np.linalg.qr(vectors.astype(np.float64), mode="r")
    return np.asarray(triangle)
