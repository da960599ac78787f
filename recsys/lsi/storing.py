"""Saved indexes: directories as `recsys.storage` describes them, of another form.

::

    INDEX/
        model.json             format, versions, parameters, training summary, file checksums
        arrays/NAME.npy        directions, singular values, term weights, coordinates, weighted rows
        terms.parquet          the terms in index order
        documents.parquet      ids of the documents in index order, titles and snippets
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.errors import DataError, ModelFileError
from recsys.lsi.collection import Collection
from recsys.lsi.labels import Labels
from recsys.lsi.vectorizer import Weighting, WordEncoder
from recsys.storage import (
    DamageError,
    Form,
    Manifest,
    Reading,
    check_files,
    is_small,
    read_array,
    read_manifest,
    read_parquet,
    writing,
)

if TYPE_CHECKING:
    from recsys.lsi.model import LSI

__all__ = ["INDEX", "load_index", "save_index"]

_ARRAYS = (
    "components",
    "singular_values",
    "term_weights",
    "embedding",
    "rows_data",
    "rows_indices",
    "rows_indptr",
)
_INTEGERS = {"rows_indices", "rows_indptr"}
_OWN_ENTRIES = {"model.json", "arrays", "terms.parquet", "documents.parquet"}


def _check_training(training: Mapping[str, Any]) -> None:
    for name in ("documents", "terms", "words"):
        if type(training.get(name)) is not int:
            raise DamageError(f"{name!r} in model.json must be of type int")


INDEX = Form(
    format="recsys-lsi",
    noun="saved index",
    maker="recsys lsi index",
    files=re.compile(rf"arrays/({'|'.join(_ARRAYS)})\.npy|(terms|documents)\.parquet", re.ASCII),
    check_training=_check_training,
)


def save_index(lsi: LSI, path: str | Path, *, overwrite: bool) -> None:
    """Write an index to the directory `path`.

    Raises
    ------
    ModelFileError
        As `LSI.save` says.
    """
    encoder = lsi._encoder
    if not isinstance(encoder, WordEncoder):
        raise ModelFileError(
            "An index with a vectorizer of its own cannot be saved without pickle; save the "
            "vectorizer's matrix as you like and index that, or choose a weighting by name."
        )
    documents, rows = lsi.documents_, lsi.documents_.rows
    arrays: dict[str, NDArray[Any]] = {
        "components": lsi.components_,
        "singular_values": lsi.singular_values_,
        "term_weights": encoder.weighting.term_weights,
        "embedding": documents.embedding,
        "rows_data": rows.data,
        "rows_indices": rows.indices,
        "rows_indptr": rows.indptr.astype(np.int64),
    }
    shown = [each for each in (documents.titles, documents.snippets) if each is not None]
    with writing(path, INDEX, _OWN_ENTRIES, overwrite=overwrite) as writer:
        for name, array in arrays.items():
            writer.array(f"arrays/{name}.npy", array)
        writer.table("terms.parquet", lsi.terms_.values.alias("term").to_frame())
        writer.table("documents.parquet", pl.DataFrame([documents.ids.values, *shown]))
        writer.manifest("lsi", _parameters(lsi), lsi.training_)


def load_index(path: str | Path, *, verify: bool = False) -> LSI:
    """Load a saved index.

    Raises
    ------
    ModelFileError
        If there is none at `path`, or it is damaged or too new.
    """
    manifest = read_manifest(path, INDEX)
    with Reading(path, INDEX):
        check_files(Path(path), manifest, verify)
        try:
            return _restored(Path(path), manifest, verify)
        except (DataError, TypeError, ValueError, pl.exceptions.PolarsError) as error:
            raise DamageError(f"{error}".rstrip(".")) from None


def _restored(directory: Path, manifest: Manifest, verify: bool) -> LSI:
    from scipy import sparse

    from recsys.lsi.model import LSI

    arrays = {name: read_array(directory, f"arrays/{name}.npy", manifest) for name in _ARRAYS}
    lsi = LSI(**manifest.parameters)
    encoder = cast("WordEncoder", lsi._make_encoder())  # JSON holds names, and no vectorizers
    terms = read_parquet(directory, "terms.parquet", manifest)
    encoder.terms = Labels(terms["term"], "term")
    encoder.n_words = manifest.training["words"]
    encoder.weighting = Weighting(str(lsi.weighting), arrays["term_weights"])
    table = read_parquet(directory, "documents.parquet", manifest)
    shape = (len(table), len(encoder.terms))
    _check_arrays(arrays, shape)
    for name, array in arrays.items():
        if (verify or is_small(manifest)) and not np.isfinite(array).all():
            raise DamageError(f"{name} has values that are not finite")
    csr = (arrays["rows_data"], arrays["rows_indices"], arrays["rows_indptr"])
    lsi._encoder = encoder
    lsi.components_, lsi.singular_values_ = arrays["components"], arrays["singular_values"]
    lsi.n_components_, lsi.n_features_in_ = len(lsi.singular_values_), shape[1]
    lsi.documents_ = Collection(
        ids=Labels(table["document"], "document"),
        titles=table.get_column("title", default=None),
        snippets=table.get_column("snippet", default=None),
        rows=sparse.csr_array(csr, shape=shape),
        embedding=arrays["embedding"],
    )
    lsi.training_ = manifest.training
    return lsi


def _check_arrays(arrays: Mapping[str, NDArray[Any]], shape: tuple[int, int]) -> None:
    """Check types and shapes, and that the rows are those of a matrix of `shape`."""
    for name, array in arrays.items():
        dtype, kind = array.dtype, "i" if name in _INTEGERS else "f"
        if not (dtype.isnative and dtype.kind == kind and dtype.itemsize in (4, 8)):
            raise DamageError(f"{name} has the type {dtype.str}")
    k = arrays["singular_values"].size
    wanted = {
        "singular_values": (k,),
        "components": (k, shape[1]),
        "term_weights": (shape[1],),
        "embedding": (shape[0], k),
        "rows_indptr": (shape[0] + 1,),
        "rows_indices": (arrays["rows_data"].size,),
        "rows_data": (arrays["rows_data"].size,),
    }
    for name, expected in wanted.items():
        if arrays[name].shape != expected:
            raise DamageError(f"{name} must have shape {expected}, not {arrays[name].shape}")
    indices, indptr = arrays["rows_indices"], arrays["rows_indptr"]
    if indptr[0] != 0 or (np.diff(indptr) < 0).any() or indptr[-1] != indices.size:
        raise DamageError("rows_indptr does not rise from 0 to the number of entries")
    if indices.size and not (indices.min() >= 0 and indices.max() < shape[1]):
        raise DamageError("rows_indices points beyond the terms")


def _parameters(lsi: LSI) -> dict[str, Any]:
    parameters: dict[str, Any] = lsi.get_params(deep=False)
    words = parameters["stop_words"]
    if words is not None and not isinstance(words, str):
        parameters["stop_words"] = sorted(words)
    return parameters
