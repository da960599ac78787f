"""Shortlists: the best items of known users, computed directly from the files of a saved model.

This is a fast path of the command. NumPy and the kernels are imported much faster than models, data
frames and sparse matrices. All other cases, and the errors for damaged models, are left to
`recsys.recommender`.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowrank.kernels import Seen, backend
from lowrank.kernels.retrieval import hash_texts, top_k
from lowrank.kernels.topk import Hashes, Ties
from recsys.models.factor_form import FactorForm
from recsys.saved_arrays import (
    FORMAT_VERSION,
    LONGEST,
    MANIFEST,
    MODEL_FORMAT,
    DamageError,
    SavedDirectory,
    mapped,
)

# Models that score as `FactorModel`, and models whose class is imported.
_FACTORED = {"als", "bayes", "clusters", "ials", "softimpute"}
_FACTORED |= {"implicit-als", "implicit-bpr", "implicit-lmf"}
_LOADED = {"blend", "sparse-ease", "spectral"}
_PLACING_NEW = {
    "als",
    "bayes",
    "ials",
}  # factored models that can score items without ratings
_JSON: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":")}


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
        rows = zip(*self.columns.values(), strict=True)
        objects = (dict(zip(self.columns, row, strict=True)) for row in rows)
        return "".join(f"{json.dumps(each, **_JSON)}\n" for each in objects)

    def write_csv(self, *, include_header: bool = True, separator: str = ",") -> str:
        """Return the rows as delimited text."""

        def cell(value: Any) -> str:
            text = "" if value is None else str(value)
            text = text.lower() if isinstance(value, bool) else text
            is_plain = (text or value is None) and not {*text} & {
                separator,
                '"',
                "\n",
                "\r",
            }
            return text if is_plain else '"{}"'.format(text.replace('"', '""'))

        rows = [
            *[tuple(self.columns)] * include_header,
            *zip(*self.columns.values(), strict=True),
        ]
        return "".join(f"{separator.join(map(cell, row))}\n" for row in rows)


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
            about = json.loads(file.read(LONGEST))
        if (about["format"], about["format_version"]) != (MODEL_FORMAT, FORMAT_VERSION):
            raise DamageError("it is not a model")
        # The same as `recsys.schema.checksum`, except for some numbers such as 1e-5.
        rest = {name: value for name, value in about.items() if name != "checksum"}
        text = json.dumps(rest, sort_keys=True, **_JSON)
        if hashlib.sha256(text.encode()).hexdigest() != about["checksum"]:
            raise DamageError("its checksum is wrong")
        if about["model"] not in _FACTORED | _LOADED:
            raise LookupError(about["model"])
        self._directory, self._about, self._files = directory, about, about["files"]
        self.name: str = about["model"]
        self.places_new = self.name in _PLACING_NEW

    def mapped(self, file: str) -> NDArray[Any]:
        """Return the array in a file."""
        return mapped(self._directory, file, self._files[file], verify=False)

    def array(self, name: str, dtype: str, ndim: int = 1) -> NDArray[Any]:
        """Return a fitted array."""
        array = self.mapped(f"{name}.npy")
        if (array.dtype.str, array.ndim) != (dtype, ndim):
            raise DamageError(f"{name} is of another type")
        return array

    def column(self, table: str, place: int = 0) -> _Column:
        """Return a column of a table, of integers or texts."""
        name = f"{table}/{place}"
        kind = self._about["columns"][table][place]["type"]
        ends, suffix = ("<i8", "") if kind == "number" else ("|u1", "_bytes")
        values = self.array(f"{name}{suffix}", ends)
        offsets = None if kind == "number" else self.array(f"{name}_offsets", "<i8")
        is_whole = f"{name}_valid.npy" not in self._files
        return _Column(
            values, offsets, None if is_whole else self.array(f"{name}_valid", "|b1")
        )

    def form(self, users: NDArray[np.int64]) -> FactorForm:
        """Return the scores of some users in factored form, as `Model._factor_form`."""
        if self.name in _LOADED:
            from recsys.models.registry import model_class

            arrays = {
                file.removeprefix("arrays/").removesuffix(".npy"): self.mapped(file)
                for file in self._files
                if file.startswith("arrays/")
            }
            model = model_class(self.name)._from_arrays(
                self._about["parameters"], arrays
            )
            if (form := model._factor_form(users)) is None:
                raise LookupError(self.name)
            self.places_new = model.uses_features
            return form
        vectors, items = (
            self.array(f"arrays/{s}_factors", "<f4", 2) for s in ("user", "item")
        )
        offset, bias = (
            self.array(f"arrays/{side}_bias", "<f4") for side in ("user", "item")
        )
        if "arrays/item_obscurity.npy" in self._files:  # a `RatingModel`
            discount = np.float32(self._about["parameters"]["popularity"])
            bias = bias - discount * self.array("arrays/item_obscurity", "<f4")
        offset = offset[users] + self.array("arrays/global_mean", "<f8", 0).item()
        if len(items) != len(bias) or items.shape[1] != vectors.shape[1]:
            raise DamageError("the arrays do not agree")
        return FactorForm(vectors[users], items, offset, bias)

    def seen(
        self, users: NDArray[np.int64], n_items: int
    ) -> tuple[Seen, NDArray[np.bool_]]:
        """Return the items that some users have rated, and which items have no ratings."""
        indptr, indices = (
            self.array("ratings/indptr", "<i8"),
            self.array("ratings/indices", "<i4"),
        )
        starts, stops = indptr[users], indptr[users + 1]
        if (
            not (starts >= 0).all()
            or (starts > stops).any()
            or (stops > len(indices)).any()
        ):
            raise DamageError("the ratings are not in rows")
        rated = [indices[start:stop] for start, stop in zip(starts, stops, strict=True)]
        own = np.concatenate(rated)
        # otherwise all items have ratings
        has_features = "item" in self._about["features"]
        looked_at = indices if has_features else own
        if looked_at.size and not 0 <= looked_at.min() <= looked_at.max() < n_items:
            raise DamageError("there are ratings of other items")
        is_new = (
            np.bincount(indices, minlength=n_items) == 0
            if has_features
            else np.zeros(0, bool)
        )
        return Seen(
            np.arange(len(users)), np.cumsum([0, *map(len, rated)]), own
        ), is_new

    def best(self, users: Sequence[str], n: int) -> Shortlist:
        """Return the n best items of each user."""
        user_ids, item_ids = self.column("users"), self.column("items")
        listed = (place for text in users for place in _places(text, user_ids))
        places = np.array([*dict.fromkeys(listed)])
        form, n_items = self.form(places), len(item_ids)
        if len(form.items) != n_items:
            raise DamageError("there are other items")
        seen, is_new = self.seen(places, n_items)
        if is_new.any() and not self.places_new:
            raise LookupError("items that are not recommended")
        limits: dict[str, Any] = {"sparse": form.sparse, "seen": seen}
        found = top_k(
            form.users, form.items, n + 1, offset=form.offset, bias=form.bias, **limits
        )
        if not found.counts.any():
            raise LookupError("no items")
        is_found = np.arange(found.items.shape[1]) < found.counts[:, None]
        if (is_found[:, 1:] & (found.scores[:, 1:] == found.scores[:, :-1])).any():
            limits["ties"] = Ties(item_ids.hashes())
            found = top_k(
                form.users, form.items, n, offset=form.offset, bias=form.bias, **limits
            )
        rows, ranks = np.nonzero(is_found[:, :n])
        shown, scores = found.items[rows, ranks].tolist(), found.scores[rows, ranks]
        columns: dict[str, list[Any]] = {
            "user": [user_ids[place] for place in places[rows]],
            "item": [item_ids[place] for place in shown],
            "rank": (ranks + 1).tolist(),
            "score": [
                *map(
                    float, map(str, scores if form.link is None else form.link(scores))
                )
            ],
        }
        if (title := self._about.get("title")) is not None:
            names = [each["name"] for each in self._about["columns"]["item_table"]]
            known, titles = (
                self.column("item_table", each) for each in (0, names.index(title))
            )
            columns["title"] = [*_beside(columns["item"], shown, known, titles)]
        if is_new.any():
            columns["new"] = is_new[shown].tolist()
        return Shortlist(self.name, columns)


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of integers or texts that are read one at a time."""

    values: NDArray[Any]
    offsets: NDArray[Any] | None
    valid: NDArray[Any] | None

    def __len__(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    def __getitem__(self, place: int) -> Any:
        if self.valid is not None and not self.valid[place]:
            return None
        if self.offsets is None:
            return int(self.values[place])
        start, end = self.offsets[place : place + 2]
        return self.values[start:end].tobytes().decode()

    def hashes(self) -> Hashes:
        """Return the hash of each id, as `recsys.Ids.hashes`."""
        if self.offsets is not None:
            return hash_texts(self.values, self.offsets)
        texts = [str(number).encode() for number in self.values.tolist()]
        offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        return hash_texts(np.frombuffer(b"".join(texts), np.uint8), offsets)

    def find(self, text: str) -> int:
        """Return the position of an id in the sorted column, or -1."""
        if self.offsets is None and str(int(text)) != text:
            return -1
        query: Any = text if self.offsets is not None else int(text)
        place = bisect_left(self, query)
        return place if place < len(self) and self[place] == query else -1


def _places(text: str, ids: _Column) -> list[int]:
    """Return the position of an id, or of several between commas; all must exist."""
    try:
        found = [ids.find(text)]
    except ValueError:  # not an integer
        found = [-1]
    if found[0] < 0:
        found = [ids.find(part) for each in text.split(",") if (part := each.strip())]
    if not found or min(found) < 0:
        raise LookupError(text)
    return found


def _beside(
    ids: list[Any], places: list[int], known: _Column, titles: _Column
) -> Iterator[str | None]:
    """Yield the title of each item or None; fast if the table has the order of the items."""
    rows: dict[Any, int] = {}
    for each, place in zip(ids, places, strict=True):
        if place < len(known) and known[place] == each:
            yield titles[place]
            continue
        rows = rows or {known[row]: row for row in range(len(known))}
        yield titles[rows[each]] if each in rows else None
