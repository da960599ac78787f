"""Saved indexes: arrays and tables of the parts of an index, written once and checked on load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys import schema
from recsys.saved_arrays import (
    MANIFEST,
    VERIFIED_TOGETHER,
    DamageError,
    check_rows,
    resolved,
)
from recsys.schema import INDEX, mapped_arrays, read_manifest, reading_directory
from recsys.storage import Origin, target_directory, write_directory

_ARRAYS = {
    "components": ("k", "terms"),
    "singular_values": ("k",),
    "term_weights": ("terms",),
    "totals": ("2 k + 1", "k"),
    "removed": ("removed",),
}
_PART_ARRAYS = {
    "embedding": ("documents", "k"),
    "counts_data": ("entries",),
    "counts_indices": ("entries",),
    "counts_indptr": ("documents + 1",),
    "inverse": ("documents",),
    "codes": ("coded", "code width"),
    "code_scale": ("coded",),
    "code_error": ("coded",),
    "postings_indptr": ("terms + 1",),
    "postings_documents": ("postings",),
    "postings_weights": ("postings",),
}


class SavedPart(NamedTuple):
    """Documents of a saved index that were added together, with columns as in `Part`."""

    arrays: Mapping[str, NDArray[Any]]
    documents: pl.DataFrame


@dataclass(frozen=True, slots=True)
class SavedIndex:
    """A saved index."""

    parameters: dict[str, Any]
    training: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    terms: pl.Series
    stop_words: list[str]
    parts: list[SavedPart]


def save_index(
    index: SavedIndex, path: str | Path, *, overwrite: bool = False, origin: Origin | None = None
) -> Origin:
    """Write an index to a new directory, whole or not at all; what `origin` has is linked to."""
    arrays = {f"arrays/{name}": array for name, array in index.arrays.items()}
    stop_words = pl.Series("word", index.stop_words, dtype=pl.String)
    tables = {"terms": index.terms.alias("term").to_frame(), "stop_words": stop_words.to_frame()}
    for number, part in enumerate(index.parts):
        arrays |= {f"part_{number}/{name}": array for name, array in part.arrays.items()}
        tables[f"documents_{number}"] = part.documents
    about: dict[str, Any] = {"parameters": index.parameters, "training": index.training}
    about |= {"source": None}
    with target_directory(path, INDEX, overwrite) as directory:
        manifest = write_directory(
            directory, INDEX, "lsi", arrays, tables, {}, None, origin, **about
        )
    return Origin(resolved(path), manifest, arrays, tables)


def load_index(path: str | Path, *, verify: bool = False) -> tuple[SavedIndex, Origin]:
    """Load a saved index; see `recsys.schema.load_model`.

    Raises
    ------
    ModelFileError
    """
    path = resolved(path)
    manifest = read_manifest(path, INDEX)
    with reading_directory(path, INDEX):
        everything = verify or manifest.size <= VERIFIED_TOGETHER
        found = mapped_arrays(Path(path), manifest, everything)
        tables = {name: schema.saved_table(found, manifest, name) for name in manifest.columns}
        arrays = {name: schema.listed(found, f"arrays/{name}") for name in _ARRAYS}
        for name, column in (("terms", "term"), ("stop_words", "word")):
            if tables.get(name, pl.DataFrame()).columns != [column]:
                raise DamageError(f"{MANIFEST} does not name the column of {name}")
        terms, stop_words = tables["terms"]["term"], tables["stop_words"]["word"].to_list()
        sizes = {"terms": len(terms), "terms + 1": len(terms) + 1}
        sizes |= {"k": (k := arrays["singular_values"].size), "2 k + 1": 2 * k + 1}
        sizes["removed"] = arrays["removed"].size
        _check_arrays(arrays, _ARRAYS, sizes, everything)
        parts = []
        for number in range(len(tables) - 2):
            folder, table = f"part_{number}", tables.get(f"documents_{number}", pl.DataFrame())
            own = {name: schema.listed(found, f"{folder}/{name}") for name in _PART_ARRAYS}
            if "document" not in table.columns:
                raise DamageError(f"{MANIFEST} does not name the columns of documents_{number}")
            _check_part(own, len(table), sizes, everything)
            parts.append(SavedPart(own, table))
        n, removed = sum(len(part.documents) for part in parts), arrays["removed"]
        if (np.diff(removed, prepend=-1, append=n) < 1).any() or len(removed) == n:
            raise DamageError("removed must be ascending places of documents, not all of them")
    saved = SavedIndex(manifest.parameters, manifest.training, arrays, terms, stop_words, parts)
    return saved, Origin(Path(path), manifest, found, tables)


def _check_part(
    arrays: Mapping[str, NDArray[Any]], n: int, sizes: Mapping[str, int], everything: bool
) -> None:
    """Check the arrays of n documents."""
    own = {**sizes, "documents": n, "documents + 1": n + 1}
    own |= {"entries": arrays["counts_data"].size, "postings": arrays["postings_documents"].size}
    coded = arrays["codes"].shape
    own |= {"coded": n, "code width": coded[-1]} if coded[0] else {"coded": 0, "code width": 0}
    _check_arrays(arrays, _PART_ARRAYS, own, everything)
    if coded[0] and (2 * coded[-1] < max(64, sizes["k"]) or coded[-1] & (coded[-1] - 1)):
        raise DamageError(f"codes of {sizes['k']} dimensions cannot have {coded[-1]} columns")
    for name, column, size in (("counts", "indices", sizes["terms"]), ("postings", "documents", n)):
        indptr, indices = (arrays[f"{name}_{part}"] for part in ("indptr", column))
        check_rows(f"{name}_indptr", indptr, indices, size)


def _check_arrays(
    arrays: Mapping[str, NDArray[Any]],
    shapes: Mapping[str, tuple[str, ...]],
    sizes: Mapping[str, int],
    everything: bool,
) -> None:
    for name, array in arrays.items():
        integer = name.endswith(("_indices", "_indptr", "_documents", "removed"))
        types = ("<i4", "<i8") if integer else ("<f4", "<f8")
        if array.dtype.str not in (("|u1",) if name == "codes" else types):
            raise DamageError(f"{name} has the type {array.dtype.str}")
        expected = tuple(sizes[axis] for axis in shapes[name])
        if array.shape != expected:
            raise DamageError(f"{name} must have shape {expected}, not {array.shape}")
        if everything and not np.isfinite(array).all():
            raise DamageError(f"{name} has values that are not finite")
