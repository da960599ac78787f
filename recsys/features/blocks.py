"""Blocks: the encoding of one column of a table as named, sparse and scaled features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import polars as pl
from scipy import sparse

from recsys.data.arrays import AnyFloats, Doubles
from recsys.data.ids import Ids
from recsys.data.kinds import FeatureKind
from recsys.lsi.space import Space, Weighting, decompose, default_rank
from recsys.lsi.vectorizer import Encoded, word_frame

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["FORMS", "KINDS", "Block"]

_RARE = 2  # a category that occurs less often is pooled with the others
_QUANTILES = (0.02, 0.25, 0.5, 0.75, 0.98)  # of a column of numbers; they are its knots
_MOST_TERMS = 50_000  # words of a text column; the most frequent ones are kept
DIRECTIONS = 100
"""Largest number of dimensions of texts as vectors."""

_NAMED = 3  # number of words in the name of a direction
_DAY = 86_400_000_000  # microseconds
_YEAR = 365.2425  # days
OTHER = "other"
"""Name of the level that pools rare categories."""
_TRUTHS = {
    **dict.fromkeys(("true", "yes", "t", "y", "1"), "true"),
    **dict.fromkeys(("false", "no", "f", "n", "0"), "false"),
}


@dataclass(frozen=True, kw_only=True)
class Block(ABC):
    """Features of one column of a table."""

    column: str
    scale: float = 1.0  # factor that gives the rows a mean squared norm of 1

    @classmethod
    @abstractmethod
    def of(cls, values: pl.Series) -> Self:
        """Learn the features of a column from its values, at least one of which is not missing."""

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """Names of the features."""

    @abstractmethod
    def suited(self, values: pl.Series) -> pl.Series:
        """Convert values to the type that is encoded, with null where that is not possible."""

    @abstractmethod
    def _encoded(self, values: pl.Series) -> csr_array:
        """Return the unscaled features of values that `suited` has converted."""

    def rows(self, values: pl.Series) -> csr_array:
        """Return the features of values, csr_array of shape (n, n_features)."""
        encoded = self._encoded(self.suited(values))
        encoded.data = (encoded.data * self.scale).astype(np.float32)
        return encoded

    def unknown(self, values: pl.Series) -> list[str]:
        """Return the values that are not among the learned levels; none without levels."""
        return []


@dataclass(frozen=True, kw_only=True)
class NumberBlock(Block):
    """Encoding of a number as weights of the knots next to it, with a flag for missing values.

    The weights add up to 1, so a linear function of them is linear between the knots, and constant
    beyond the outer ones: models do not extrapolate to unusual numbers.
    """

    knots: Doubles
    has_missing: bool

    @classmethod
    def of(cls, values: pl.Series) -> Self:
        numbers = values.drop_nulls().cast(pl.Float64)
        return cls(
            column=values.name,
            knots=_knots(numbers),
            has_missing=values.null_count() > 0,
        )

    @property
    def names(self) -> list[str]:
        return self._named([f"{knot:g}" for knot in self.knots])

    def _named(self, knots: Sequence[str], *others: str) -> list[str]:
        """Return the names of the features of knots, of others, and of missing values."""
        names = [f"{self.column} near {knot}" for knot in knots]
        names += [f"{self.column} ({other})" for other in others]
        if self.has_missing:
            names.append(f"{self.column} missing")
        return names

    def suited(self, values: pl.Series) -> pl.Series:
        dtype = values.dtype
        numbers = values
        if not dtype.is_numeric() and dtype not in (pl.String, pl.Boolean, pl.Null):
            numbers = _nulls(values)
        numbers = numbers.cast(pl.Float64, strict=False)
        return numbers.set(numbers.is_infinite(), None)

    def _encoded(self, values: pl.Series) -> csr_array:
        return self._weights(values)

    def _weights(self, numbers: pl.Series, *others: AnyFloats) -> csr_array:
        """Return the weights of the knots of each number, and other features."""
        array = numbers.fill_null(np.nan).to_numpy()
        # The weight of a knot is the linear interpolation of 1 there and 0 at the others.
        knots = self.knots
        columns = [np.interp(array, knots, unit) for unit in np.eye(len(knots))]
        columns += others
        if self.has_missing:
            columns.append(np.isnan(array).astype(np.float64))
        weights = np.nan_to_num(np.column_stack(columns))
        return sparse.csr_array(weights)


@dataclass(frozen=True, kw_only=True)
class DateBlock(NumberBlock):
    """Encoding of a date as a number, with features for the season."""

    seasonal: bool

    @classmethod
    def of(cls, values: pl.Series) -> Self:
        dates = values.drop_nulls()
        return cls(
            column=values.name,
            knots=_knots(_days(dates)),
            # Otherwise only the years differ.
            seasonal=dates.dt.ordinal_day().n_unique() > 2,
            has_missing=values.null_count() > 0,
        )

    @property
    def names(self) -> list[str]:
        days = self.knots.astype(np.int64).astype("datetime64[D]")
        seasons = ("winter", "spring") if self.seasonal else ()
        return self._named(days.astype(str).tolist(), *seasons)

    def suited(self, values: pl.Series) -> pl.Series:
        if values.dtype == pl.Date or isinstance(values.dtype, pl.Datetime):
            return values
        texts = values if values.dtype == pl.String else _nulls(values)
        return texts.str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False)

    def _encoded(self, values: pl.Series) -> csr_array:
        if not self.seasonal:
            return self._weights(_days(values))
        days_of_year = values.dt.ordinal_day().cast(pl.Float64)
        days = days_of_year.fill_null(np.nan).to_numpy()
        angles = 2 * np.pi * days / _YEAR
        winter = np.cos(angles)
        spring = np.sin(angles)
        return self._weights(_days(values), winter, spring)


@dataclass(frozen=True, kw_only=True)
class LevelBlock(Block):
    """Encoding of a category, boolean or list: a feature per level, and one for all rare levels."""

    levels: Ids
    has_rare: bool
    is_list: bool = False

    @classmethod
    def of(cls, values: pl.Series) -> Self:
        counts = _elements(values)["level"].value_counts()
        least = 1 if values.dtype == pl.Boolean else _RARE
        frequent = counts.filter(pl.col("count") >= least)["level"]
        return cls(
            column=values.name,
            levels=Ids(frequent, "level"),
            has_rare=len(frequent) < len(counts),
            is_list=isinstance(values.dtype, pl.List),
        )

    @property
    def names(self) -> list[str]:
        levels = self.levels.values.to_list()
        if self.has_rare:
            levels.append(OTHER)
        return [f"{self.column} = {level}" for level in levels]

    def suited(self, values: pl.Series) -> pl.Series:
        if values.dtype != pl.String:
            return values
        if set(self.levels.values) <= {*_TRUTHS.values()}:
            return values.str.to_lowercase().replace(_TRUTHS)
        if self.is_list:
            stripped = pl.element().str.strip_chars()
            return values.str.split("|").list.eval(stripped)
        return values

    def _encoded(self, values: pl.Series) -> csr_array:
        elements = _elements(values)
        rows = elements["row"].to_numpy()
        codes = self.levels.find(elements["level"])
        has_column = (codes >= 0) | self.has_rare
        columns = np.where(codes < 0, len(self.levels), codes)
        columns = columns[has_column]
        n_columns = len(self.levels) + self.has_rare
        shape = (len(values), n_columns)
        ones = np.ones(len(columns))
        rows = rows[has_column]
        entries = (ones, (rows, columns))
        matrix = sparse.coo_array(entries, shape).tocsr()
        # Several rare elements count once.
        matrix.data = np.minimum(matrix.data, 1)
        return matrix

    def unknown(self, values: pl.Series) -> list[str]:
        levels = _elements(self.suited(values))["level"]
        is_unknown = pl.Series(self.levels.find(levels) < 0)
        return levels.filter(is_unknown).unique().sort().to_list()


@dataclass(frozen=True, kw_only=True)
class TextBlock(Block):
    """Encoding of a text as weighted words, or as a vector of latent semantic indexing.

    If both were tried, the `remark` compares them.
    """

    terms: Ids
    weights: Doubles
    components: AnyFloats | None = None
    remark: str = ""

    @classmethod
    def of(cls, values: pl.Series) -> Self:
        words = word_frame(values).unique()
        frequency = words["word"].value_counts()
        frequency = frequency.filter(pl.col("count") >= _RARE)
        frequency = frequency.sort("count", "word", descending=[True, False])
        terms = Ids(frequency["word"].head(_MOST_TERMS), "term")
        block = cls(
            column=values.name,
            terms=terms,
            weights=np.zeros(len(terms)),
        )
        weighting = Weighting.learn("tfidf", block._counts(values))
        return replace(block, weights=weighting.term_weights)

    def as_vectors(self, values: pl.Series, random_state: int) -> Self:
        """Return a block whose features are directions in the space of words, not single words."""
        rows = self._weighted(values)
        if not rows.nnz:
            return self
        k = default_rank(rows.shape, DIRECTIONS)
        components = decompose(rows, k, random_state).components
        space = Space(components, np.ones(len(components)))
        vectors = space.project(rows).astype(np.float32)
        squares = np.square(vectors, dtype=np.float64)
        mean_square = squares.sum() / len(values)
        scale = float(1 / np.sqrt(mean_square))
        return replace(self, components=components, scale=scale)

    @property
    def names(self) -> list[str]:
        terms = self.terms.values.to_list()
        if self.components is None:
            return [f"{self.column} ~ {term}" for term in terms]
        sizes = np.abs(self.components)
        order = np.argsort(-sizes, axis=1, kind="stable")
        names = []
        for row in order[:, :_NAMED]:
            main_terms = ", ".join(terms[column] for column in row)
            names.append(f"{self.column} ~ {main_terms}")
        return names

    def suited(self, values: pl.Series) -> pl.Series:
        is_list = isinstance(values.dtype, pl.List)
        texts = values.list.join(" ") if is_list else values
        return texts.cast(pl.String)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the weighted words of texts, and the unknown words of each text."""
        values = pl.Series(self.column, texts, dtype=pl.String)
        words = word_frame(values)
        unknown: list[list[str]] = [[] for _ in texts]
        is_unknown = pl.Series(self.terms.find(words["word"]) < 0)
        for row, word in words.filter(is_unknown).rows():
            unknown[row].append(word)
        return Encoded(self._weighted(values), unknown)

    def _encoded(self, values: pl.Series) -> csr_array:
        rows = self._weighted(values)
        if self.components is None:
            return sparse.csr_array(rows)
        space = Space(self.components, np.ones(len(self.components)))
        return sparse.csr_array(space.project(rows))

    def _weighted(self, values: pl.Series) -> csr_array:
        """Return the words of each text, weighted by tf-idf."""
        counts = self._counts(values)
        rows: csr_array = Weighting("tfidf", self.weights).apply(counts)
        return rows

    def _counts(self, values: pl.Series) -> csr_array:
        """Return the number of occurrences of each known word in each text."""
        words = word_frame(values)
        columns = self.terms.find(words["word"])
        is_term = columns >= 0
        columns = columns[is_term]
        rows = words["row"].to_numpy()[is_term]
        ones = np.ones(len(columns), np.float32)
        shape = (len(values), len(self.terms))
        entries = (ones, (rows, columns))
        return sparse.coo_array(entries, shape).tocsr()


KINDS: dict[FeatureKind, type[Block]] = {
    "number": NumberBlock,
    "date": DateBlock,
    "boolean": LevelBlock,
    "category": LevelBlock,
    "list": LevelBlock,
    "text": TextBlock,
}
"""Block class of each kind of column."""

FORMS: dict[type[Block], str] = {
    NumberBlock: "number",
    DateBlock: "date",
    LevelBlock: "levels",
    TextBlock: "text",
}
"""Name of each block in saved models."""


def _nulls(values: pl.Series) -> pl.Series:
    """Return a column of nulls of the same length, of type String."""
    return pl.Series(values.name, [None] * len(values), dtype=pl.String)


def _knots(numbers: pl.Series) -> Doubles:
    """Return the distinct quantiles of numbers, in ascending order."""
    quantiles = np.quantile(numbers.to_numpy(), _QUANTILES, method="nearest")
    return np.unique(quantiles)


def _days(dates: pl.Series) -> pl.Series:
    """Return dates as days since 1970."""
    microseconds = dates.cast(pl.Datetime("us")).cast(pl.Int64)
    return microseconds.cast(pl.Float64) / _DAY


def _elements(values: pl.Series) -> pl.DataFrame:
    """Return elements of lists, or single values, as strings with the numbers of their rows."""
    elements = values.alias("level").to_frame().with_row_index("row")
    if isinstance(values.dtype, pl.List):
        elements = elements.explode("level")
    levels = pl.col("level").cast(pl.String)
    return elements.drop_nulls().with_columns(levels)
