"""Loading of saved models and indexes to serve."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl

from recsys.errors import DataError, ModelFileError
from recsys.readers import read_frame
from recsys.readers.sources import open_data
from recsys.recommender import Recommender
from recsys.saving import model_file
from recsys.saving.arrays import DamageError, signature_of
from recsys.saving.model_file import INDEX_FORMAT, format_of
from recsys.serve.catalogue import Json, numbers
from recsys.serve.responses import NO_CONDITIONS, Responses

if TYPE_CHECKING:
    from recsys.lsi.index import Index

T = TypeVar("T")

_PAIR_COLUMNS = {
    "item": pl.String,
    "other": pl.String,
    "both": pl.Int64,
    "lift": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "rank": pl.Int64,
}
_ATTEMPTS = 10  # maximum number of loads of a model that is replaced again and again


def load_served(path: Path) -> Any:
    """Load and verify a saved model or index."""
    is_index = format_of(str(path)) == INDEX_FORMAT
    return load_search(path) if is_index else load_responses(path)


def load_responses(
    path: Path, conditions: Mapping[str, str] = NO_CONDITIONS
) -> Responses:
    """Load and verify a saved model, for lists with named conditions."""
    recommender, manifest = _load_unchanged(
        path, lambda: Recommender.load(path, verify=True)
    )
    name = f"{recommender.model.name}@{manifest['checksum'][:8]}"
    responses = Responses(recommender, name, manifest, conditions)
    # Caches are filled before the model gets its first request.
    responses.warm()
    return responses


def load_search(path: Path) -> IndexResponses:
    """Load and verify a saved index."""
    from recsys.lsi.index import Index

    index, manifest = _load_unchanged(path, lambda: Index.load(path, verify=True))
    return IndexResponses(index, f"lsi@{manifest['checksum'][:8]}")


def _load_unchanged(path: Path, load: Callable[[], T]) -> tuple[T, Json]:
    """Return what `load` loads, and the contents of model.json of the same directory."""
    for _ in range(_ATTEMPTS):
        before = signature_of(str(path))
        loaded = load()
        try:
            manifest = model_file.read_document(path)
        except (OSError, DamageError) as error:
            raise ModelFileError(f"{path} cannot be served: {error}.") from None
        if before == signature_of(str(path)):
            return loaded, manifest
    raise ModelFileError(f"{path} cannot be served: it is replaced again and again.")


@dataclass(frozen=True, slots=True)
class IndexResponses:
    """Responses of one saved index of documents; they contain its name."""

    index: Index
    name: str

    def search(self, query: str, n: int) -> Json:
        """Return the n documents that match a query best."""
        # The command prints them, and a client gets them as notes.
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            frame = self.index.query(query, n)
        notes = [str(warning.message) for warning in caught]
        documents = frame.to_dicts()
        for document in documents:
            document["document"] = str(document["document"])
        return {
            "query": query,
            "documents": documents,
            "notes": notes,
            "model": self.name,
        }


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of items that are bought together.

    Attributes
    ----------
    frame : polars DataFrame
        Rows of `recsys.together`, by item and rank, with titles.
    places : dict
        First row and number of rows of each item.
    """

    frame: pl.DataFrame
    places: dict[str, tuple[int, int]]
    name: str = "together"

    def rows_of(self, item: str, n: int) -> list[Json]:
        """Return the first n rows of an item."""
        start, count = self.places.get(item, (0, 0))
        rows = self.frame.slice(start, min(n, count))
        limits = [
            pl.Series(name, numbers(rows[name].to_numpy()))
            for name in ("lift", "low", "high")
        ]
        return rows.with_columns(limits).to_dicts()


def load_pairs(source: str) -> Pairs:
    """Load the output of `recsys together`, a file or a table of a database.

    Raises
    ------
    DataError
        If a column is missing, or has missing values or values of another type.
    """
    with open_data(source) as data:
        parts = [read_frame(part, "item")[0] for part in data.parts or (data,)]
        name = data.name
    frame = pl.concat(parts, how="diagonal_relaxed")
    missing = [column for column in _PAIR_COLUMNS if column not in frame.columns]
    if missing:
        raise DataError(
            f"{name} has no column {missing[0]!r}; a table of `recsys together` has "
            f"{', '.join(_PAIR_COLUMNS)}."
        )
    columns = []
    for column, dtype in _PAIR_COLUMNS.items():
        values = frame[column].cast(dtype, strict=False)
        # NaN and infinity are not JSON.
        is_bad = values.is_null()
        if dtype == pl.Float64:
            is_bad |= ~values.is_finite()
        if is_bad.any():
            value = frame[column].filter(is_bad)[0]
            raise DataError(
                f"{name}: {column} must be a number or an id; got {value!r}."
            )
        columns.append(values)
    pairs = pl.DataFrame(columns).with_columns(title=pl.lit(None, pl.String))
    if "title" in frame.columns:
        pairs = pairs.with_columns(title=frame["title"].cast(pl.String))
    pairs = pairs.sort("item", "rank", maintain_order=True)
    counts = pairs.with_row_index("row").group_by("item").agg(pl.min("row"), pl.len())
    places = {item: (row, count) for item, row, count in counts.iter_rows()}
    renamed = pairs.drop("item").rename({"other": "item"})
    return Pairs(renamed, places)
