"""Lists of known users from an opened model, without data frames.

Importing polars takes twice as long as NumPy, so the command makes lists of a few users
from the arrays of a model alone.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowrank.kernels.arrays import Hashes
from lowrank.kernels.retrieval import hash_texts
from lowrank.kernels.topk import Ties
from recsys.errors import ModelFileError, UnknownIdError
from recsys.models.parts import Mask
from recsys.ranking.topn import CsrPairs, KnownUsers, TopN
from recsys.saving.arrays import DamageError, check_rows, check_sorted_rows
from recsys.saving.model_file import Arrays, OpenedModel, listed, open_model

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")  # as ids are written


@dataclass(frozen=True, slots=True)
class ListColumns:
    """Lists by column, with the methods of a polars frame that write them."""

    model: str
    columns: dict[str, list[Any]]

    def __len__(self) -> int:
        return len(self.columns["user"])

    def to_dict(self, *, as_series: bool = False) -> dict[str, list[Any]]:
        """Return the columns."""
        return self.columns

    def write_ndjson(self) -> str:
        """Return the rows as JSON objects, one per line."""
        encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
        lines = []
        for row in self._rows():
            entry = dict(zip(self.columns, row, strict=True))
            lines.append(encoder.encode(entry) + "\n")
        return "".join(lines)

    def write_csv(self, *, include_header: bool = True, separator: str = ",") -> str:
        """Return the rows as delimited text."""
        rows = self._rows()
        if include_header:
            rows.insert(0, tuple(self.columns))
        lines = []
        for row in rows:
            cells = [_cell(value, separator) for value in row]
            lines.append(separator.join(cells) + "\n")
        return "".join(lines)

    def _rows(self) -> list[tuple[Any, ...]]:
        return [*zip(*self.columns.values(), strict=True)]


def _cell(value: Any, separator: str) -> str:
    """Return a value as polars writes it: an empty text is quoted, a missing one is not."""
    if value is None:
        return ""
    text = str(value)
    if isinstance(value, bool):
        text = text.lower()
    special = {separator, '"', "\n", "\r"}
    if text and special.isdisjoint(text):
        return text
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


def lists_of_known_users(
    path: str | Path,
    users: Sequence[str],
    n: int,
) -> ListColumns | None:
    """Return the n best items that each user has not rated, as `Recommender.recommend`.

    None if a `Recommender` is needed for the result or its error: the model has a catalogue or
    dislikes, is damaged or of Spark, a user is unknown, or no user has any items left. Each of
    `users` is an id, or several ids between commas; a repeated id counts once.
    """
    try:
        return _lists(open_model(path), users, n)
    except (DamageError, ModelFileError, UnknownIdError):
        return None


def _lists(
    opened: OpenedModel,
    users: Sequence[str],
    n: int,
) -> ListColumns | None:
    manifest, arrays, model = opened
    if manifest.is_catalogue or manifest.rule.has_zeros:
        return None
    user_ids = _Column.of(arrays, "users/0")
    item_ids = _Column.of(arrays, "items/0")
    n_items = len(item_ids)
    if model.n_users != len(user_ids) or model.n_items != n_items:
        raise DamageError("the model is of another shape")
    indptr = listed(arrays, "ratings/indptr")
    rated = listed(arrays, "ratings/indices")
    n_users = len(user_ids)
    check_sorted_rows("ratings/indptr", indptr, rated, n_items, n_users)
    requested: dict[int, None] = {}  # without repetitions
    for text in users:
        requested |= dict.fromkeys(user_ids.indices(text))
    indices = np.array([*requested])
    lowest = manifest.training.get("rating_min")
    # A model without ratings counts weights that are not positive as nothing.
    if isinstance(lowest, int | float) and lowest <= 0 and not model.predicts_ratings:
        return None
    # Users without any data get the popular items.
    has_nothing = indptr[indices] == indptr[indices + 1]
    if has_nothing.any() and not model.predicts_ratings:
        return None
    new = allowed = None
    is_unrated = np.bincount(rated, minlength=n_items) == 0
    if is_unrated.any():
        allowed = ~is_unrated
        if "item" in manifest.features and model.uses_features:
            new = is_unrated
            allowed |= np.diff(listed(arrays, "item_features/indptr")) > 0
    ties = Ties(item_ids.hashes())
    search = KnownUsers(model, CsrPairs(indptr, rated), allowed, ties)
    top = TopN.joined(search.best(indices, n))
    # The command says why there are no items.
    if not len(top):
        return None
    items = top.items.tolist()
    columns: dict[str, list[Any]] = {
        "user": [user_ids[user] for user in indices[top.rows]],
        "item": [item_ids[item] for item in items],
        "rank": top.ranks.tolist(),
        # The shortest digits of single precision, as polars writes them.
        "score": [float(str(score)) for score in top.scores],
    }
    if manifest.title is not None:
        names = [column.name for column in manifest.columns["item_table"]]
        titles = _Column.of(arrays, f"item_table/{names.index(manifest.title)}")
        table_ids = _Column.of(arrays, "item_table/0")
        rows = _table_rows(table_ids, columns["item"], items)
        columns["title"] = [row if row is None else titles[row] for row in rows]
    if new is not None:
        columns["new"] = new[items].tolist()
    return ListColumns(manifest.model, columns)


def _table_rows(
    table_ids: _Column,
    ids: list[Any],
    items: list[int],
) -> list[int | None]:
    """Return the row of each item in a table; fast if it has the order of the items."""
    row_of: dict[Any, int] = {}
    rows: list[int | None] = []
    for id, item in zip(ids, items, strict=True):
        if item < len(table_ids) and table_ids[item] == id:
            rows.append(item)
            continue
        # Rarely needed, so that it is made late.
        if not row_of:
            row_of = {table_ids[row]: row for row in range(len(table_ids))}
        rows.append(row_of.get(id))
    return rows


@dataclass(frozen=True, slots=True)
class _Column:
    """A saved column of integers or texts that are read one at a time."""

    values: NDArray[Any]
    offsets: NDArray[np.int64] | None
    valid: Mask | None

    @classmethod
    def of(cls, arrays: Arrays, prefix: str) -> _Column:
        """Return a column of the arrays whose names begin with `prefix`."""
        offsets = arrays.get(f"{prefix}_offsets")
        values = listed(arrays, prefix if offsets is None else f"{prefix}_bytes")
        if offsets is not None:
            check_rows(f"{prefix}_offsets", offsets, values, 256)
        dtype = np.int64 if offsets is None else np.uint8
        if values.dtype != dtype:
            raise DamageError(f"{prefix} is of another type")
        return cls(values, offsets, arrays.get(f"{prefix}_valid"))

    def __len__(self) -> int:
        if self.offsets is None:
            return len(self.values)
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Any:
        if self.valid is not None and not self.valid[row]:
            return None
        if self.offsets is None:
            return int(self.values[row])
        start, end = self.offsets[row : row + 2]
        return self.values[start:end].tobytes().decode()

    def hashes(self) -> Hashes:
        """Return the hash of each id, as `recsys.Ids.hashes`."""
        if self.offsets is not None:
            return hash_texts(self.values, self.offsets)
        texts = [str(number).encode() for number in self.values.tolist()]
        lengths = [0, *map(len, texts)]
        offsets = np.cumsum(lengths, dtype=np.int64)
        return hash_texts(np.frombuffer(b"".join(texts), np.uint8), offsets)

    def indices(self, text: str) -> list[int]:
        """Return the position of an id, or of several between commas.

        Raises
        ------
        UnknownIdError
        """
        positions = [self._find(text)]
        if positions[0] < 0:
            parts = [part.strip() for part in text.split(",")]
            positions = [self._find(part) for part in parts if part]
        if not positions or min(positions) < 0:
            raise UnknownIdError(text)
        return positions

    def _find(self, text: str) -> int:
        """Return the position of an id in the sorted column, or -1."""
        query: Any = text
        if self.offsets is None:
            if _INTEGER.fullmatch(text) is None:
                return -1
            query = int(text)
        row = bisect_left(self, query)
        if row < len(self) and self[row] == query:
            return row
        return -1
