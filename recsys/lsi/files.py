"""Files of a saved index: arrays and tables, checked when they are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from numpy.typing import NDArray

from recsys.saving.arrays import (
    MANIFEST,
    DamageError,
    SavedDirectory,
    check_rows,
)
from recsys.saving.model_file import (
    INDEX,
    checked_manifest,
    listed,
    mapped_arrays,
    read_directory,
)
from recsys.saving.storage import target_directory, write_directory
from recsys.saving.tables import saved_table

# Shapes by names of sizes, to compare all arrays with each other.
_SPACE_ARRAYS = {
    "components": ("k", "terms"),
    "singular_values": ("k",),
    "term_weights": ("terms",),
    "totals": ("2 k + 1", "k"),
}
_DOCUMENT_ARRAYS = {
    "embedding": ("documents", "k"),
    "counts_data": ("entries",),
    "counts_indices": ("entries",),
    "counts_indptr": ("documents + 1",),
    "inverse": ("documents",),
    "lengths": ("documents",),
    "postings_indptr": ("terms + 1",),
    "postings_documents": ("postings",),
    "postings_counts": ("postings",),
}
_ARRAYS = _SPACE_ARRAYS | _DOCUMENT_ARRAYS
# Suffixes of names of arrays of integers.
_INTEGERS = ("_indices", "_indptr", "_documents")
_SHORT = ("postings_documents", "postings_counts")  # of 32 bits, as the kernel takes


@dataclass(frozen=True, slots=True)
class SavedIndex:
    """Contents of a saved index; `documents` is the table with ids, titles and snippets."""

    parameters: dict[str, Any]
    training: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    documents: pl.DataFrame
    terms: pl.Series
    stop_words: list[str]


def save_index(
    index: SavedIndex,
    path: str | Path,
    *,
    overwrite: bool = False,
) -> None:
    """Write an index to a new directory atomically."""
    arrays = {f"arrays/{name}": array for name, array in index.arrays.items()}
    stop_words = pl.Series("word", index.stop_words, dtype=pl.String)
    tables = {
        "documents": index.documents,
        "terms": index.terms.alias("term").to_frame(),
        "stop_words": stop_words.to_frame(),
    }
    with target_directory(path, INDEX, overwrite) as directory:
        write_directory(
            directory,
            INDEX,
            "lsi",
            arrays,
            tables,
            None,
            parameters=index.parameters,
            training=index.training,
            source=None,
        )


def load_index(path: str | Path, *, verify: bool = False) -> SavedIndex:
    """Load a saved index; see `recsys.saving.storage.load_model`.

    Raises
    ------
    ModelFileError
    """
    return read_directory(path, INDEX, partial(_loaded_index, verify=verify))


def _loaded_index(directory: SavedDirectory, verify: bool) -> SavedIndex:
    """Load the index in a saved directory."""
    manifest = checked_manifest(directory, INDEX)
    # Arrays stay on the disk until a search reads their pages.
    mapped = mapped_arrays(directory, manifest, verify=verify)
    arrays = {name: listed(mapped, f"arrays/{name}") for name in _ARRAYS}
    documents = saved_table(mapped, manifest, "documents")
    terms = saved_table(mapped, manifest, "terms")
    stop_words = saved_table(mapped, manifest, "stop_words")
    if documents.columns[:1] != ["document"]:
        raise DamageError(f"{MANIFEST} does not name the columns of documents")
    if terms.columns != ["term"] or stop_words.columns != ["word"]:
        raise DamageError(
            f"{MANIFEST} does not name the columns of terms and stop_words"
        )
    _check_arrays(arrays, len(documents), len(terms))
    return SavedIndex(
        manifest.parameters,
        manifest.training,
        arrays,
        documents,
        terms["term"],
        stop_words["word"].to_list(),
    )


def _check_arrays(
    arrays: Mapping[str, NDArray[Any]],
    n_documents: int,
    n_terms: int,
) -> None:
    """Check types and shapes of arrays, so that no file makes a kernel leave its arrays."""
    k = arrays["singular_values"].size
    sizes = {
        "terms": n_terms,
        "terms + 1": n_terms + 1,
        "k": k,
        "2 k + 1": 2 * k + 1,
        "documents": n_documents,
        "documents + 1": n_documents + 1,
        "entries": arrays["counts_data"].size,
        "postings": arrays["postings_documents"].size,
    }
    for name, array in arrays.items():
        # Other types would make the kernels read beyond an array.
        kind = "i" if name.endswith(_INTEGERS) else "f"
        types = [f"<{kind}4"] if name in _SHORT else [f"<{kind}4", f"<{kind}8"]
        if array.dtype.str not in types:
            raise DamageError(f"{name} has the type {array.dtype.str}")
        shape = tuple(sizes[axis] for axis in _ARRAYS[name])
        if array.shape != shape:
            raise DamageError(f"{name} must have shape {shape}, not {array.shape}")
    # Indices of entries are used without checks in the kernels.
    check_rows(
        "counts_indptr", arrays["counts_indptr"], arrays["counts_indices"], n_terms
    )
    postings = arrays["postings_indptr"], arrays["postings_documents"]
    check_rows("postings_indptr", *postings, n_documents)
