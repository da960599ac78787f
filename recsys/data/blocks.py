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
        knots = _knots(values.drop_nulls().cast(pl.Float64).to_numpy())
        return cls(column=values.name, knots=knots, has_missing=values.null_count() > 0)

    @property
    def names(self) -> list[str]:
        names = [f"{self.column} near {knot:g}" for knot in self.knots]
        return names + [f"{self.column} missing"] * self.has_missing

    def suited(self, values: pl.Series) -> pl.Series:
        dtype = values.dtype
        is_number = dtype.is_numeric() or dtype in (pl.String, pl.Boolean, pl.Null)
        numbers = (values if is_number else _nulls(values)).cast(
            pl.Float64, strict=False
        )
        return numbers.set(numbers.is_infinite(), None)

    def _encoded(self, values: pl.Series) -> csr_array:
        numbers = values.fill_null(np.nan).to_numpy()
        missing = [np.isnan(numbers).astype(np.float64)] * self.has_missing
        return _sparse([*_weights(numbers, self.knots), *missing], len(values))


@dataclass(frozen=True, kw_only=True)
class DateBlock(Block):
    """Encoding of a date as a number, with features for the season."""

    knots: Doubles
    seasonal: bool
    has_missing: bool

    @classmethod
    def of(cls, values: pl.Series) -> Self:
        dates = values.drop_nulls()
        return cls(
            column=values.name,
            knots=_knots(_days(dates).to_numpy()),
            seasonal=dates.dt.ordinal_day().n_unique()
            > 2,  # else only the years differ
            has_missing=values.null_count() > 0,
        )

    @property
    def names(self) -> list[str]:
        days = self.knots.astype(np.int64).astype("datetime64[D]")
        names = [f"{self.column} near {day}" for day in days]
        names += [f"{self.column} (winter)", f"{self.column} (spring)"] * self.seasonal
        return names + [f"{self.column} missing"] * self.has_missing

    def suited(self, values: pl.Series) -> pl.Series:
        if values.dtype == pl.Date or isinstance(values.dtype, pl.Datetime):
            return values
        texts = values if values.dtype == pl.String else _nulls(values)
        return texts.str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False)

    def _encoded(self, values: pl.Series) -> csr_array:
        days = _days(values).fill_null(np.nan).to_numpy()
        columns = _weights(days, self.knots)
        if self.seasonal:
            angle = (
                2
                * np.pi
                * values.dt.ordinal_day().cast(pl.Float64).fill_null(np.nan)
                / _YEAR
            )
            columns += [np.nan_to_num(f(angle.to_numpy())) for f in (np.cos, np.sin)]
        if self.has_missing:
            columns.append(np.isnan(days).astype(np.float64))
        return _sparse(columns, len(values))


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
        levels = [*self.levels.values, *[OTHER] * self.has_rare]
        return [f"{self.column} = {level}" for level in levels]

    def suited(self, values: pl.Series) -> pl.Series:
        if values.dtype != pl.String:
            return values
        if set(self.levels.values) <= {*_TRUTHS.values()}:
            return values.str.to_lowercase().replace(_TRUTHS)
        if self.is_list:
            return values.str.split("|").list.eval(pl.element().str.strip_chars())
        return values

    def _encoded(self, values: pl.Series) -> csr_array:
        elements = _elements(values)
        rows, codes = elements["row"].to_numpy(), self.levels.find(elements["level"])
        has_column = (codes >= 0) | self.has_rare
        columns = np.where(codes < 0, len(self.levels), codes)[has_column]
        shape = (len(values), len(self.levels) + self.has_rare)
        entries = sparse.coo_array(
            (np.ones(len(columns)), (rows[has_column], columns)), shape
        )
        matrix = entries.tocsr()
        matrix.data = np.minimum(matrix.data, 1)  # several rare elements count once
        return matrix

    def unknown(self, values: pl.Series) -> list[str]:
        levels = _elements(self.suited(values))["level"]
        return (
            levels.filter(pl.Series(self.levels.find(levels) < 0))
            .unique()
            .sort()
            .to_list()
        )


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
        frequency = words["word"].value_counts().filter(pl.col("count") >= _RARE)
        terms = Ids(
            frequency.sort("count", "word", descending=[True, False])["word"].head(
                _MOST_TERMS
            ),
            "term",
        )
        block = cls(column=values.name, terms=terms, weights=np.zeros(len(terms)))
        return replace(
            block, weights=Weighting.learn("tfidf", block._counts(values)).term_weights
        )

    def as_vectors(self, values: pl.Series, random_state: int) -> Self:
        """Return a block whose features are directions in the space of words, not single words."""
        rows = self._encoded(values)
        if not rows.nnz:
            return self
        k = default_rank(rows.shape, DIRECTIONS)
        return replace(self, components=decompose(rows, k, random_state).components)

    @property
    def names(self) -> list[str]:
        terms = self.terms.values.to_list()
        if self.components is None:
            return [f"{self.column} ~ {term}" for term in terms]
        main = np.argsort(-np.abs(self.components), axis=1, kind="stable")[:, :_NAMED]
        return [f"{self.column} ~ {', '.join(terms[at] for at in row)}" for row in main]

    def suited(self, values: pl.Series) -> pl.Series:
        is_list = isinstance(values.dtype, pl.List)
        return (values.list.join(" ") if is_list else values).cast(pl.String)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the weighted words of texts, and the unknown words of each text."""
        values = pl.Series(self.column, texts, dtype=pl.String)
        words = word_frame(values)
        unknown: list[list[str]] = [[] for _ in texts]
        for row, word in words.filter(
            pl.Series(self.terms.find(words["word"]) < 0)
        ).rows():
            unknown[row].append(word)
        return Encoded(
            Weighting("tfidf", self.weights).apply(self._counts(values)), unknown
        )

    def _encoded(self, values: pl.Series) -> csr_array:
        rows = Weighting("tfidf", self.weights).apply(self._counts(values))
        if self.components is None:
            return sparse.csr_array(rows)
        space = Space(self.components, np.ones(len(self.components)))
        return sparse.csr_array(space.project(rows))

    def _counts(self, values: pl.Series) -> csr_array:
        """Return the number of occurrences of each known word in each text."""
        words = word_frame(values)
        columns = self.terms.find(words["word"])
        is_term = columns >= 0
        entries = (
            np.ones(int(is_term.sum()), np.float32),
            (words["row"].to_numpy()[is_term], columns[is_term]),
        )
        return sparse.coo_array(entries, (len(values), len(self.terms))).tocsr()


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


def _knots(numbers: Doubles) -> Doubles:
    """Return the distinct quantiles of numbers, in ascending order."""
    return np.unique(np.quantile(numbers, _QUANTILES, method="nearest"))


def _weights(numbers: Doubles, knots: Doubles) -> list[AnyFloats]:
    """Return the linear interpolation weights of each knot; zeros for missing numbers."""
    return [np.nan_to_num(np.interp(numbers, knots, one)) for one in np.eye(len(knots))]


def _days(dates: pl.Series) -> pl.Series:
    """Return dates as days since 1970."""
    return dates.cast(pl.Datetime("us")).cast(pl.Int64).cast(pl.Float64) / _DAY


def _elements(values: pl.Series) -> pl.DataFrame:
    """Return elements of lists, or single values, as strings with the numbers of their rows."""
    rows = pl.Series("row", np.arange(len(values)))
    elements = pl.DataFrame([rows, values.alias("level")])
    if isinstance(values.dtype, pl.List):
        elements = elements.explode("level")
    return elements.drop_nulls().with_columns(pl.col("level").cast(pl.String))


def _sparse(columns: Sequence[AnyFloats], n: int) -> csr_array:
    return sparse.csr_array(np.column_stack([np.zeros((n, 0)), *columns]))
