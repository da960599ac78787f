"""Shortlists: the best items of known users, computed directly from the files of a saved model.

This is a fast path of the command. NumPy and the kernels are imported much faster than models, data
frames and sparse matrices. All other cases, and the errors for damaged models, are left to
`recsys.recommender`.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lowrank.kernels import Seen, backend
from lowrank.kernels.retrieval import hash_texts, top_k
from lowrank.kernels.topk import Hashes, Ties
from recsys.saved_arrays import (
    FORMAT_VERSION,
    LONGEST,
    MANIFEST,
    MODEL_FORMAT,
    DamageError,
    SavedDirectory,
    mapped,
)

if TYPE_CHECKING:
    from recsys.models.base import Model

_COMPACT = (",", ":")  # separators of JSON


@dataclass(frozen=True, slots=True)
class Shortlist:
    """Recommendations as lists by column, with the methods of a polars frame that write them."""

    model: str
    columns: dict[str, list[Any]]

    def __len__(self) -> int:
        return len(self.columns["user"])

    def to_dict(self, *, as_series: bool = False) -> dict[str, list[Any]]:
        """Return the columns."""
        return self.columns

    def write_ndjson(self) -> str:
        """Return the rows as JSON objects, one per line."""
        lines = []
        for row in self._rows():
            entry = dict(zip(self.columns, row, strict=True))
            text = json.dumps(entry, ensure_ascii=False, separators=_COMPACT)
            lines.append(f"{text}\n")
        return "".join(lines)

    def write_csv(self, *, include_header: bool = True, separator: str = ",") -> str:
        """Return the rows as delimited text."""
        rows = self._rows()
        if include_header:
            rows.insert(0, tuple(self.columns))
        lines = []
        for row in rows:
            cells = [_cell(value, separator) for value in row]
            lines.append(f"{separator.join(cells)}\n")
        return "".join(lines)

    def _rows(self) -> list[tuple[Any, ...]]:
        return list(zip(*self.columns.values(), strict=True))


def _cell(value: Any, separator: str) -> str:
    """Return a value as polars writes it: an empty text is quoted, a missing one is not."""
    if value is None:
        return ""
    text = str(value)
    if isinstance(value, bool):
        text = text.lower()
    if text and not {separator, '"', "\n", "\r"} & {*text}:
        return text
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


def shortlist(path: str | Path, users: Sequence[str], n: int) -> Shortlist | None:
    """Return the n best items that each user has not rated, or None if a `Recommender` is needed.

    It is needed if the model is damaged or its scores have no factored form, if a user is unknown,
    if no user has any items left, and without compiled kernels. Each of `users` is an id, or
    several ids between commas; a repeated id counts once.
    """
    try:
        if backend().name != "compiled":
            return None
        with SavedDirectory(path) as directory:
            return _Model(directory).best(users, n)
    except (
        AttributeError,
        LookupError,
        OSError,
        RecursionError,
        TypeError,
        ValueError,
    ):
        return None


class _Model:
    """The files of a saved model; unexpected contents raise errors of any kind."""

    def __init__(self, directory: SavedDirectory) -> None:
        with directory.open(MANIFEST) as file:
            manifest = json.loads(file.read(LONGEST))
        version = manifest["format"], manifest["format_version"]
        if version != (MODEL_FORMAT, FORMAT_VERSION):
            raise DamageError("it is not a model")
        # The same as `recsys.model_file.checksum`, except for some numbers such as 1e-5.
        signed = {k: v for k, v in manifest.items() if k != "checksum"}
        text = json.dumps(
            signed, sort_keys=True, ensure_ascii=False, separators=_COMPACT
        )
        checksum = hashlib.sha256(text.encode()).hexdigest()
        if checksum != manifest["checksum"]:
            raise DamageError("its checksum is wrong")
        self._directory = directory
        self._manifest = manifest
        self._files = manifest["files"]
        self.name: str = manifest["model"]

    def mapped(self, file: str) -> NDArray[Any]:
        """Return the array in a file."""
        return mapped(self._directory, file, self._files[file], verify=False)

    def array(self, name: str, dtype: str) -> NDArray[Any]:
        """Return a vector."""
        array = self.mapped(f"{name}.npy")
        if array.dtype.str != dtype or array.ndim != 1:
            raise DamageError(f"{name} is of another type")
        return array

    def column(self, table: str, position: int = 0) -> _Column:
        """Return a column of a table, of integers or texts."""
        name = f"{table}/{position}"
        kind = self._manifest["columns"][table][position]["type"]
        offsets = None
        if kind == "number":
            values = self.array(name, "<i8")
        else:
            values = self.array(f"{name}_bytes", "|u1")
            offsets = self.array(f"{name}_offsets", "<i8")
        valid = None
        if f"{name}_valid.npy" in self._files:
            valid = self.array(f"{name}_valid", "|b1")
        return _Column(values, offsets, valid)

    def model(self) -> Model:
        """Return the fitted model."""
        from recsys.models.registry import model_class

        arrays = {}
        for file in self._files:
            if file.startswith("arrays/"):
                name = file.removeprefix("arrays/").removesuffix(".npy")
                arrays[name] = self.mapped(file)
        parameters = self._manifest["parameters"]
        return model_class(self.name)._from_arrays(parameters, arrays)

    def rated(self, users: NDArray[np.int64], n_items: int) -> Seen:
        """Return the items that some users have rated."""
        indptr = self.array("ratings/indptr", "<i8")
        indices = self.array("ratings/indices", "<i4")
        starts = indptr[users]
        stops = indptr[users + 1]
        if (starts < 0).any() or (starts > stops).any() or (stops > len(indices)).any():
            raise DamageError("the ratings are not in rows")
        spans = zip(starts, stops, strict=True)
        items_of_users = [indices[start:stop] for start, stop in spans]
        items = np.concatenate(items_of_users)
        if items.size and not 0 <= items.min() <= items.max() < n_items:
            raise DamageError("there are ratings of other items")
        ends = np.cumsum([0, *map(len, items_of_users)])
        return Seen(np.arange(len(users)), ends, items)

    def is_new(self, n_items: int) -> NDArray[np.bool_] | None:
        """Return which items have no ratings; None if all have some."""
        if "item" not in self._manifest["features"]:
            return None
        indices = self.array("ratings/indices", "<i4")
        if indices.size and not 0 <= indices.min() <= indices.max() < n_items:
            raise DamageError("there are ratings of other items")
        is_new = np.bincount(indices, minlength=n_items) == 0
        return is_new if is_new.any() else None

    def best(self, users: Sequence[str], n: int) -> Shortlist:
        """Return the n best items of each user."""
        user_ids = self.column("users")
        item_ids = self.column("items")
        requested = [index for text in users for index in _indices(text, user_ids)]
        indices = np.array([*dict.fromkeys(requested)])
        model = self.model()
        form = model._factor_form(indices)
        if form is None or form.weight is not None:
            raise LookupError(self.name)
        n_items = len(item_ids)
        if len(form.items) != n_items:
            raise DamageError("there are other items")
        is_new = self.is_new(n_items)
        if is_new is not None and not model.uses_features:
            raise LookupError("items that are not recommended")
        search = partial(
            top_k,
            form.users,
            form.items,
            offset=form.offset,
            bias=form.bias,
            sparse=form.sparse,
            seen=self.rated(indices, n_items),
        )
        # One more item shows whether the last score is shared by another item.
        top = search(n + 1)
        if not top.counts.any():
            raise LookupError("no items")
        is_filled = np.arange(top.items.shape[1]) < top.counts[:, None]
        is_equal = top.scores[:, 1:] == top.scores[:, :-1]
        if (is_filled[:, 1:] & is_equal).any():
            top = search(n, ties=Ties(item_ids.hashes()))
        rows, ranks = np.nonzero(is_filled[:, :n])
        items = top.items[rows, ranks].tolist()
        scores = top.scores[rows, ranks]
        if form.link is not None:
            scores = form.link(scores)
        columns: dict[str, list[Any]] = {
            "user": [user_ids[index] for index in indices[rows]],
            "item": [item_ids[item] for item in items],
            "rank": (ranks + 1).tolist(),
            # The shortest digits of single precision, as polars writes them.
            "score": [float(str(score)) for score in scores],
        }
        title = self._manifest.get("title")
        if title is not None:
            columns["title"] = self._titles(title, columns["item"], items)
        if is_new is not None:
            columns["new"] = is_new[items].tolist()
        return Shortlist(self.name, columns)

    def _titles(self, title: str, ids: list[Any], items: list[int]) -> list[str | None]:
        """Return the titles of items; fast if the table has the order of the items."""
        columns = self._manifest["columns"]["item_table"]
        names = [column["name"] for column in columns]
        table_ids = self.column("item_table")
        titles = self.column("item_table", names.index(title))
        row_of: dict[Any, int] = {}
        titles_of_items: list[str | None] = []
        for id, item in zip(ids, items, strict=True):
            row: int | None = item
            if item >= len(table_ids) or table_ids[item] != id:
                if not row_of:
                    row_of = {table_ids[at]: at for at in range(len(table_ids))}
                row = row_of.get(id)
            titles_of_items.append(None if row is None else titles[row])
        return titles_of_items


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of integers or texts that are read one at a time."""

    values: NDArray[Any]
    offsets: NDArray[Any] | None
    valid: NDArray[Any] | None

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
        ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
        offsets = np.insert(ends, 0, 0)
        joined = np.frombuffer(b"".join(texts), np.uint8)
        return hash_texts(joined, offsets)

    def find(self, text: str) -> int:
        """Return the position of an id in the sorted column, or -1."""
        query: Any = text
        if self.offsets is None:
            query = int(text)
            if str(query) != text:
                return -1
        row = bisect_left(self, query)
        if row < len(self) and self[row] == query:
            return row
        return -1


def _indices(text: str, ids: _Column) -> list[int]:
    """Return the position of an id, or of several between commas; all must exist."""
    indices = [_index(text, ids)]
    if indices[0] < 0:
        parts = [part.strip() for part in text.split(",")]
        indices = [_index(part, ids) for part in parts if part]
    if not indices or min(indices) < 0:
        raise LookupError(text)
    return indices


def _index(text: str, ids: _Column) -> int:
    try:
        return ids.find(text)
    except ValueError:  # not an integer
        return -1
