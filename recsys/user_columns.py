"""Columns of the table of users that are saved: those in use, and those that are named.

A table of customers has more than a model needs, such as names and addresses. Columns of items are
saved all, since they are titles and conditions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recsys.data.features import Features
from recsys.data.ids import Ids
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.messages import absent, enumerated

_TEXT = re.compile(r"'[^']*'")  # a text in a condition
_NAMED = 8  # maximum number of columns named in a message


@dataclass(frozen=True, slots=True)
class SavedColumns:
    """Columns of a table of users: saved ones and others."""

    saved: tuple[str, ...]
    left_out: tuple[str, ...]

    def __str__(self) -> str:
        saved = enumerated(self.saved, _NAMED) if self.saved else "none"
        sentence = f"columns of users that are saved: {saved}"
        if self.left_out:
            left_out = enumerated(self.left_out, _NAMED)
            sentence += f"; left out: {left_out} (--keep-col NAME saves a column)"
        return sentence


def saved_columns(ratings: Ratings, named: Iterable[str] = ()) -> SavedColumns | None:
    """Return which columns of the table of users are saved, or None without any.

    In use are the columns of the features, and those that were requested as features.
    """
    table = ratings.user_table
    if table is None or not table.kinds:
        return None
    columns = {*named}
    encoder = ratings.axis("user").encoder
    if encoder is not None:
        columns.update(block.column for block in encoder.blocks)
    if ratings.feature_request is not None:
        columns.update(ratings.feature_request.columns or ())
    return _divided(table, columns)


def useful_columns(
    ratings: Ratings,
    requested: Sequence[str] | None = None,
    named: Iterable[str] = (),
) -> SavedColumns | None:
    """Return which columns of the table of users to save for models that are fitted later.

    These are the columns that can be features, of those that are `requested`: not names, for
    example, which are all distinct.
    """
    table = ratings.user_table
    if table is None or not table.kinds:
        return None
    from recsys.features.encoder import FeatureEncoder

    columns = requested
    if requested is not None:
        columns = [name for name in requested if name in table.kinds]
    encoder = FeatureEncoder.fit(table, Ids(table.frame["user"], "user"), columns)
    return _divided(table, {*named, *(block.column for block in encoder.blocks)})


def _divided(table: Features, wanted: set[str]) -> SavedColumns:
    saved = tuple(name for name in table.kinds if name in wanted)
    return SavedColumns(
        saved, tuple(name for name in table.kinds if name not in wanted)
    )


def with_columns(ratings: Ratings, columns: SavedColumns | None) -> Ratings:
    """Return ratings whose table of users has the saved columns only; no table without any."""
    table = ratings.user_table
    if table is None:
        return ratings
    if columns is None or not columns.saved:
        return replace(ratings, user_table=None)
    return replace(ratings, user_table=table.select(columns.saved))


def named_in(condition: str, ratings: Ratings) -> list[str]:
    """Return the columns of users that a condition names, such as "age" in ``age < 30``."""
    table = ratings.user_table
    if table is None:
        return []
    words = {
        word.casefold()
        for word in re.findall(r'"[^"]+"|\w+', _TEXT.sub(" ", condition))
    }
    return [
        name
        for name in table.kinds
        if {name.casefold(), f'"{name.casefold()}"'} & words
    ]


def check_columns(ratings: Ratings, named: Iterable[str]) -> None:
    """Check that columns of the table of users exist.

    Raises
    ------
    DataError
    """
    kinds: Any = {} if ratings.user_table is None else ratings.user_table.kinds
    for name in named:
        if name not in kinds:
            raise DataError(absent("column", name, "users to keep", kinds))
