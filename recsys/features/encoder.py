"""Encoder of tables of items or users as sparse matrices of features in named blocks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import polars as pl
from scipy import sparse

from recsys.data.arrays import AnyFloats
from recsys.data.columns import plain_name
from recsys.data.features import Features
from recsys.data.ids import Ids
from recsys.data.kinds import FeatureKind
from recsys.errors import DataError
from recsys.features.blocks import (
    DIRECTIONS,
    FORMS,
    KINDS,
    OTHER,
    Block,
    DateBlock,
    LevelBlock,
    NumberBlock,
    TextBlock,
)
from recsys.lsi.space import decompose, default_rank
from recsys.messages import absent, close_matches

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Texts: TypeAlias = Literal["terms", "vectors"]
"""Encoding of texts: weighted words, or vectors from latent semantic indexing."""

_NAMED = 3  # maximum number of close values in a message
_SHOWN = 10  # maximum number of values listed in a message
_ARRAYS = ("knots", "levels", "terms", "weights", "components")
_PERSONAL = re.compile(
    r"""(?:first|middle|last|sur|given|family|maiden|full|user|nick|customer)?name
    | \w*e?mail(?:address)?
    | (?:tele|mobile|cell|home|work)?phone(?:number|no)? | mobile(?:number|no)?
    | (?:home|postal|billing|shipping|street|ip)?address[1-3]? | street
    | iban | ssn | passport(?:number|no)?""",
    re.VERBOSE,
)
_EMAIL = r"^[^\s@]+@[^\s@]+\.[^\s@.]+$"
_LEVELS = {"level": pl.String, "weight": pl.Float64}


class EncoderState(NamedTuple):
    """Learned state of an encoder: scalars of the blocks, levels, words and directions."""

    entries: list[dict[str, Any]]
    levels: pl.DataFrame
    components: Mapping[str, AnyFloats]


@dataclass(frozen=True, eq=False)
class FeatureBlocks:
    """Features of items or users as a sparse matrix, in blocks of one source column each.

    Attributes
    ----------
    matrix : csr_array of float32 of shape (n, n_features)
        Rows in the order of the ids; zero if an id has no features. Each block is scaled so that
        its rows had a mean squared norm of 1 when the encoder was fitted.
    encoder : FeatureEncoder
        Encoder that names the features and encodes further rows.
    """

    matrix: csr_array
    encoder: FeatureEncoder

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features, such as "genres = Horror", "price" or "about ~ robot"."""
        return self.encoder.names

    @property
    def groups(self) -> Mapping[str, slice]:
        """Features (columns of the matrix) of each source column; together they are all."""
        return self.encoder.groups

    @cached_property
    def texts(self) -> tuple[TextSpace, ...]:
        """Columns of texts in their spaces of latent semantic indexing, computed once."""
        blocks = (
            block for block in self.encoder.blocks if isinstance(block, TextBlock)
        )
        return tuple(TextSpace.of(block, self) for block in blocks)


class TextSpace(NamedTuple):
    """Latent space of a column of texts: block, directions of words, coordinates of rows."""

    block: TextBlock
    components: AnyFloats
    vectors: AnyFloats

    @classmethod
    def of(cls, block: TextBlock, features: FeatureBlocks) -> Self:
        """Return the space of a block; words are decomposed, vectors are taken unchanged."""
        rows = features.matrix[:, features.groups[block.column]]
        components = block.components
        # Seed 0: the space is computed again after loading, and must be the same.
        if components is None:
            components = decompose(
                rows, default_rank(rows.shape, DIRECTIONS), 0
            ).components
            return cls(block, components, np.asarray(rows @ components.T, np.float32))
        return cls(block, components, rows.toarray())


def identifying(features: Features) -> list[str]:
    """Return the columns of users that identify persons: names, addresses, telephone numbers.

    A model does not learn from them by default, because it would have to save them all as soon as
    two users share one.
    """
    if features.kind != "user":
        return []
    return [
        name
        for name, kind in features.kinds.items()
        if kind in ("category", "text")
        and (
            _PERSONAL.fullmatch(plain_name(name))
            or _has_addresses(features.frame[name])
        )
    ]


def _has_addresses(values: pl.Series) -> bool:
    """Return whether a column is of texts, and most of them are e-mail addresses."""
    if values.dtype != pl.String:
        return False
    texts = values.drop_nulls()
    return 2 * int(texts.str.contains(_EMAIL).sum()) > len(texts)


@dataclass(frozen=True, eq=False)
class FeatureEncoder:
    """Encoder of tables by blocks of features, learned from one table.

    Attributes
    ----------
    kind : {"item", "user"}
    blocks : tuple of Block

    Examples
    --------
    >>> films = {"item": [1, 2, 3, 4], "year": [1990, 2010, None, 2000]}
    >>> films["genres"] = ["War|Drama", "Drama", "War", "War|Horror"]
    >>> features = Features.of(pl.DataFrame(films), "item")
    >>> encoder = FeatureEncoder.fit(features, Ids([1, 2, 3, 4], "item"))
    >>> encoder.names  # doctest: +NORMALIZE_WHITESPACE
    ('year near 1990', 'year near 2000', 'year near 2010', 'year missing',
     'genres = Drama', 'genres = War', 'genres = other')
    >>> print(encoder)
    year (number), genres (3)
    >>> encoder.row("genres=War|Western, year=1990").matrix.toarray().round(2)
    array([[1.  , 0.  , 0.  , 0.  , 0.  , 0.82, 0.82]], dtype=float32)
    """

    kind: str
    blocks: tuple[Block, ...]

    @classmethod
    def fit(
        cls,
        features: Features,
        ids: Ids,
        columns: Sequence[str] | None = None,
    ) -> Self:
        """Learn the features of a table from the rows of the given ids.

        A number becomes weights of up to 5 knots, which are quantiles of its column: models are
        linear between the knots and constant beyond the outer ones. Dates are encoded in the same
        way, with their season. Both have a feature for missing values. Categories and elements of
        lists that occur once are pooled. Words of texts are weighted by tf-idf. Columns without
        information are left out: all values are the same, or all categories are distinct.

        Parameters
        ----------
        features : Features
        ids : Ids
            Items or users, such as `Ratings.items`.
        columns : sequence of str, optional
            Columns to use; by default all except the title, and except columns that identify
            persons (see `identifying`).

        Raises
        ------
        DataError
            If a column does not exist.
        """
        if columns is None:
            left_out = {features.title, *identifying(features)}
            columns = [name for name in features.kinds if name not in left_out]
        chosen = features.select(columns)
        rows = chosen.rows_of(ids)
        table = chosen.frame[rows[rows >= 0]]  # whatever the order of the table
        blocks = []
        for name, kind in chosen.kinds.items():
            values = table[name]
            # Nothing can be learned of a column without a value.
            if values.null_count() == len(values):
                continue
            block = KINDS[kind].of(values)
            if not block.names:
                continue
            encoded = block.rows(values)
            n = len(values)
            means = encoded.sum(axis=0, dtype=np.float64) / n
            squares = (encoded * encoded).sum(axis=0, dtype=np.float64) / n
            if not np.allclose(squares, means**2):  # equal rows have no information
                # A block of many features would outweigh one number otherwise.
                square = np.square(encoded.data, dtype=np.float64).sum() / n
                blocks.append(replace(block, scale=float(1 / np.sqrt(square))))
        return cls(features.kind, tuple(blocks))

    def with_vectors(
        self,
        features: Features,
        ids: Ids,
        random_state: int = 0,
    ) -> Self:
        """Return the encoder with vectors from latent semantic indexing in place of words.

        The vectors have up to 100 dimensions. They are learned from the rows from which the words
        were learned, and `random_state` is the seed of their decomposition.
        """
        chosen = features.select([block.column for block in self.blocks])
        rows = chosen.rows_of(ids)
        table = chosen.frame[rows[rows >= 0]]
        blocks = (
            block.as_vectors(table[block.column], random_state)
            if isinstance(block, TextBlock)
            else block
            for block in self.blocks
        )
        return replace(self, blocks=tuple(blocks))

    def transform(self, features: Features, ids: Ids) -> FeatureBlocks:
        """Encode the rows of the given ids; an id without a row gets zeros.

        Values are missing if the table lacks the column, or if they cannot be read as a number or
        date. Unknown categories are encoded as the pooled ones, if there were any; unknown words
        are ignored.
        """
        table = features.aligned(ids)
        has_row = pl.Series(features.rows_of(ids) >= 0)
        # `hstack` needs one matrix at least, and there may be no blocks.
        parts = [sparse.csr_array(np.zeros((len(ids), 0), np.float32))]
        for block in self.blocks:
            values = pl.Series(block.column, [None] * len(ids), dtype=pl.Null)
            if block.column in features.kinds:
                values = table[block.column]
            parts.append(block.rows(values))
        matrix: csr_array = sparse.hstack(parts, format="csr", dtype=np.float32)
        if not has_row.all():  # flags of missing values are for ids with a row only
            present = sparse.diags_array(
                has_row.cast(pl.Float32).to_numpy(), dtype=np.float32
            )
            matrix = (present @ matrix).tocsr()
        matrix.eliminate_zeros()
        return FeatureBlocks(matrix, self)

    def row(
        self, values: str | Mapping[str, Any], known: Features | None = None
    ) -> FeatureBlocks:
        """Encode a single row that is given as text or mapping.

        Parameters
        ----------
        values : str or mapping
            Values by column: ``"age=30, genres=War|Drama"``, or a mapping such as ``{"age": 30}``.
            Other columns are missing.
        known : Features, optional
            Table of known categories: one that is neither a feature nor in this table is an error,
            also where rare categories are pooled.

        Raises
        ------
        DataError
            If a column does not exist, a number or date cannot be read, or a category is unknown.
        """
        texts_by_column = _parsed(values) if isinstance(values, str) else dict(values)
        texts_by_column = {
            name: _as_text(value) for name, value in texts_by_column.items()
        }
        columns = {block.column: block for block in self.blocks}
        for name, text in texts_by_column.items():
            if name not in columns:
                raise DataError(absent("feature", name, f"{self.kind}s", columns))
            block = columns[name]
            typed = pl.Series(name, [text])
            if isinstance(block, NumberBlock) and block.suited(typed).null_count():
                kind = "number"
                if isinstance(block, DateBlock):
                    kind = "date, such as 2024-01-31"
                raise DataError(f"{name}: {text!r} is not a {kind}.")
            # A word that was typed wrong would count as a rare category.
            if isinstance(block, LevelBlock) and not (block.has_rare and known is None):
                levels = [*block.levels.values, *[OTHER] * block.has_rare]
                if known is not None and name in known.kinds:
                    levels += block.unknown(known.frame[name])
                if unknown := [
                    level for level in block.unknown(typed) if level not in levels
                ]:
                    suggestions = close_matches(unknown[0], levels, _NAMED)
                    examples = ", ".join(sorted(levels)[:_SHOWN])
                    if len(levels) > _SHOWN:
                        examples += ", ..."
                    hint = (
                        f"did you mean {' or '.join(suggestions)}?"
                        if suggestions
                        else f"known are {examples}."
                    )
                    raise DataError(f"{name}: {unknown[0]!r} is unknown; {hint}")
        frame = pl.DataFrame(
            {
                self.kind: ["new"],
                **{name: [text] for name, text in texts_by_column.items()},
            }
        )
        # The blocks read numbers and dates from texts themselves.
        kinds: dict[str, FeatureKind] = dict.fromkeys(texts_by_column, "category")
        return self.transform(Features(frame, kinds), Ids(["new"], self.kind))

    def unknown(self, features: Features) -> dict[str, list[str]]:
        """Return the categories of a table that were unknown when this was fitted, by column."""
        unknown_values = {
            block.column: block.unknown(features.frame[block.column])
            for block in self.blocks
            if block.column in features.kinds
        }
        return {column: values for column, values in unknown_values.items() if values}

    def state(self) -> EncoderState:
        """Return the state that a saved model keeps; `from_state` is the inverse."""
        entries, levels, components = [], [pl.DataFrame(schema=_LEVELS)], {}
        for number, block in enumerate(self.blocks):
            scalars = {
                value.name: getattr(block, value.name) for value in fields(block)
            }
            if isinstance(block, NumberBlock):
                weights, values = (
                    block.knots,
                    pl.Series(map(repr, block.knots.tolist())),
                )
            else:
                values = scalars["levels" if "levels" in scalars else "terms"].values
                weights = scalars.get("weights", np.ones(len(values)))
            levels.append(
                pl.DataFrame([values.alias("level"), pl.Series("weight", weights)])
            )
            entry = {
                name: value for name, value in scalars.items() if name not in _ARRAYS
            }
            entry |= {"form": FORMS[type(block)], "n_levels": len(values)}
            if scalars.get("components") is not None:
                components[f"components_{number}"] = scalars["components"]
                entry["n_directions"] = len(scalars["components"])
            entries.append(entry)
        return EncoderState(entries, pl.concat(levels), components)

    @classmethod
    def from_state(cls, kind: str, state: EncoderState) -> Self:
        """Return the encoder of a saved state.

        Raises
        ------
        DataError
            If the parts of the state do not fit each other.
        """
        types = {form: value for value, form in FORMS.items()}
        blocks, start = [], 0
        for number, entry in enumerate(state.entries):
            # The levels of all blocks are in one table, one block after the other.
            block_levels = state.levels.slice(start, entry["n_levels"])
            start += entry["n_levels"]
            block_type = types[entry["form"]]
            names = {value.name for value in fields(block_type)}
            values = {name: value for name, value in entry.items() if name in names}
            if "knots" in names:
                values["knots"] = knots = block_levels["weight"].to_numpy()
                if (
                    not len(knots)
                    or not np.isfinite(knots).all()
                    or (np.diff(knots) <= 0).any()
                ):
                    raise DataError(
                        f"The knots of {entry['column']!r} do not increase."
                    )
            elif "levels" in names:
                values["levels"] = Ids(block_levels["level"], "level")
            elif "terms" in names:
                values["terms"] = Ids(block_levels["level"], "term", sort=False)
                values["weights"] = block_levels["weight"].to_numpy()
                components = state.components.get(f"components_{number}")
                if entry["n_directions"] != (
                    0 if components is None else len(components)
                ) or (
                    components is not None
                    and components.shape != (len(components), len(block_levels))
                ):
                    raise DataError(
                        f"The directions of {entry['column']!r} do not fit its words."
                    )
                values["components"] = components
            blocks.append(block_type(**values))
        encoder = cls(kind, tuple(blocks))
        # Two blocks of one column would share their features.
        if start != len(state.levels) or len(encoder.groups) != len(blocks):
            raise DataError(
                "The blocks of features do not fit the table of their levels."
            )
        return encoder

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(name for block in self.blocks for name in block.names)

    @cached_property
    def groups(self) -> dict[str, slice]:
        """Features of each source column."""
        ends = accumulate((len(block.names) for block in self.blocks), initial=0)
        columns = [block.column for block in self.blocks]
        return {
            column: slice(*ends)
            for column, ends in zip(columns, pairwise(ends), strict=True)
        }

    def __str__(self) -> str:
        parts = []
        for block in self.blocks:
            what = f"{len(block.names):,}"
            if isinstance(block, NumberBlock):
                what = "date" if isinstance(block, DateBlock) else "number"
            elif isinstance(block, TextBlock):
                what += " terms" if block.components is None else " dimensions"
                if block.remark:
                    what += f"; {block.remark}"
            parts.append(f"{block.column} ({what})")
        return ", ".join(parts) or "none"

    def __repr__(self) -> str:
        return f"<Encoder of {self.kind}s: {self}>"


def _parsed(text: str) -> dict[str, str]:
    """Return the values in "age=30, job=student"; values may contain commas."""
    fields: dict[str, str] = {}
    last = ""
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if equals and name.strip():
            last = name.strip()
            fields[last] = value.strip()
        # A comma inside the last value.
        elif last:
            fields[last] += f",{part}"
        else:
            raise DataError(
                f"Features are given as NAME=VALUE, NAME=VALUE, ...; got {text!r}."
            )
    return fields


def _as_text(value: Any) -> str:
    """Return a value as it is written in a text file."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return str(value).lower() if isinstance(value, bool) else str(value)
    return "|".join(map(str, value))
