"""The documents of an index in parts, one for each addition, with search structures and files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from lowrank.kernels import pieces
from lowrank.kernels.retrieval import scan_codes
from recsys import schema
from recsys.data.ids import Ids
from recsys.lsi.bm25 import Postings, document_lengths
from recsys.saved_arrays import (
    MANIFEST,
    VERIFIED_TOGETHER,
    DamageError,
    SavedDirectory,
    check_rows,
    resolved,
)
from recsys.schema import INDEX, checked_manifest, mapped_arrays, read_directory
from recsys.storage import Origin, target_directory, write_directory
from recsys.topn import inverse_lengths

if TYPE_CHECKING:
    from recsys.data.ids import IdsLike

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Indices = NDArray[np.int64]

_SMALL = 4096  # maximum number of documents without codes; rows of a block
_LEVELS = 15  # maximum of a code
_MOST_QUERY = 2047  # maximum entry of a query in integers
_FEWEST = 64  # minimum number of dimensions of codes
_LARGER = 2  # minimum ratio of the sizes of a part and the next one
_MOST_REMOVED = 4  # maximum share of removed documents in a part, as 1 in this many
_SHARED = 2**23  # size of codes in bytes from which on several threads read them
_CODES = "codes", "code_scale", "code_error"  # names of the arrays of `Codes`
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
    "lengths": ("documents",),
    "postings_indptr": ("terms + 1",),
    "postings_documents": ("postings",),
    "postings_counts": ("postings",),
}


class Codes(NamedTuple):
    """Unit vectors as integers of 4 bits, an eighth of their size, for upper bounds of cosines.

    The vectors are first rotated by a Hadamard matrix, so that their entries are of similar size.
    A rotated vector is approximately ``scale * (u - 7.5)``, with an error of length `error`. A byte
    of `values` holds two of the integers u, those of columns j and j + width.
    """

    values: NDArray[np.uint8]
    scale: Floats
    error: Floats

    @classmethod
    def of(cls, vectors: Floats, inverse: Floats) -> Self:
        """Return the codes of vectors, given 1 / length of each, 0 for vectors of zero."""
        n, turn = len(vectors), _hadamard(vectors.shape[1])
        width = turn.shape[1] // 2
        codes = cls(np.empty((n, width), np.uint8), *np.zeros((2, n), np.float32))
        for part in pieces(n, _SMALL):
            turned = (vectors[part] * inverse[part, None]) @ turn
            scale = np.abs(turned).max(axis=1, initial=0)[:, None] * np.float32(2 / _LEVELS)
            steps = np.divide(turned, scale, out=np.zeros_like(turned), where=scale > 0)
            levels = np.clip(np.rint(steps + _LEVELS / 2), 0, _LEVELS)
            turned -= scale * (levels - np.float32(_LEVELS / 2))
            codes.scale[part] = scale[:, 0]
            codes.error[part] = np.sqrt(np.einsum("ij,ij->i", turned, turned))
            whole = levels.astype(np.uint8)
            codes.values[part] = whole[:, :width] | whole[:, width:] << 4
        return codes

    def bounds(
        self, direction: Floats, bm25: Floats | None, words: float, meaning: float, out: Floats
    ) -> float:
        """Write ``words bm25 + meaning cosine`` to `out`; return what to add for upper bounds."""
        turned = direction @ _hadamard(len(direction))
        step = max(float(np.abs(turned).max()) / _MOST_QUERY, 1e-30)
        query = np.rint(turned / step)
        lost = float(np.linalg.norm(turned - query * step))
        # q . d = q' . d' + (q - q') . d' + q . (d - d') for the codes q' and d'.
        scan_codes(
            *self,
            query.astype(np.int16),
            out,
            base=bm25,
            weight=words,
            factor=meaning * step,
            centre=float(query.sum()) * _LEVELS / 2,
            slack=meaning * (1 + lost),
            threads=1 if self.values.size < _SHARED else None,
        )
        return meaning * lost


@cache
def _hadamard(k: int) -> Floats:
    """Return k orthonormal rows, whose length is a power of 2, with entries of equal size."""
    signs = np.ones((1, 1), np.float32)
    while len(signs) < max(k, _FEWEST):
        signs = np.block([[signs, signs], [signs, -signs]])
    return np.ascontiguousarray(signs[:k] / np.float32(np.sqrt(len(signs))))


@dataclass(frozen=True, eq=False)
class Part:
    """Documents that were added together.

    `table` has the columns document and, if known, title and snippet. `counts` is a csr_array of
    counts of terms, or the rows of the given matrix. `embedding` are the coordinates V_k S_k.
    `has_counts` is false if the rows are not counts, which BM25 needs. `removed` are the ascending
    rows of removed documents. `stored` are the arrays of a saved index, which are used instead of
    computing them again.
    """

    table: pl.DataFrame
    counts: Any
    embedding: NDArray[np.floating[Any]]
    has_counts: bool
    removed: Indices = field(default_factory=lambda: np.zeros(0, np.int64))
    stored: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @classmethod
    def joined(cls, parts: Sequence[Part]) -> Part:
        """Return several parts as one, without removed documents."""
        kept = [np.delete(np.arange(len(part)), part.removed) for part in parts]
        pairs = [*zip(parts, kept, strict=True)]
        return cls(
            tables_joined([part.table[rows] for part, rows in pairs]),
            sparse.vstack([part.counts[rows] for part, rows in pairs], format="csr"),
            np.concatenate([part.embedding[rows] for part, rows in pairs]),
            parts[0].has_counts,
        )

    def __len__(self) -> int:
        return len(self.table)

    def without(self, rows: Indices) -> Part:
        """Return the part with further documents removed."""
        left = replace(self, removed=np.union1d(self.removed, rows))
        shared = ("vectors", "inverse", "lengths", "postings", "codes", "arrays")
        left.__dict__.update({key: each for key, each in self.__dict__.items() if key in shared})
        return left

    def widened(self, n_terms: int) -> Part:
        """Return the part with further terms, which none of its documents has."""
        csr = (self.counts.data, self.counts.indices, self.counts.indptr)
        counts = sparse.csr_array(csr, shape=(len(self), n_terms))
        wide = replace(self, counts=counts)
        shared = ("vectors", "inverse", "lengths", "codes", "arrays")
        wide.__dict__.update({key: each for key, each in self.__dict__.items() if key in shared})
        return wide

    @cached_property
    def vectors(self) -> Floats:
        """Coordinates as float32, for cosines."""
        return np.asarray(self.embedding, dtype=np.float32)

    @cached_property
    def inverse(self) -> Floats:
        """1 / length of the coordinates of each document, 0 for coordinates of zero."""
        if "inverse" in self.stored:
            return self.stored["inverse"]
        return np.nan_to_num(inverse_lengths(self.vectors), nan=0.0)

    @cached_property
    def postings(self) -> Postings:
        """The documents of each term."""
        n_terms = self.counts.shape[1]
        if "postings_indptr" in self.stored:
            stored = [self.stored[f"postings_{name}"] for name in Postings._fields]
            return Postings(*stored).widened(n_terms)
        return Postings.of(self.counts) if self.has_counts else Postings.none(n_terms)

    @cached_property
    def lengths(self) -> NDArray[np.floating[Any]]:
        """Number of words of each document."""
        return self.stored["lengths"] if self.stored else document_lengths(self.counts)

    @cached_property
    def codes(self) -> Codes | None:
        """Codes of the vectors, None if there are few."""
        if "codes" not in self.stored:
            return Codes.of(self.vectors, self.inverse) if len(self) > _SMALL else None
        codes = Codes(*(self.stored[name] for name in _CODES))
        return codes if len(codes.values) else None

    def totals(self, rows: Any = slice(None)) -> Doubles:
        """Return sums of unit vectors, of their outer products, and of those of coordinates."""
        vectors, inverse = self.embedding[rows], self.inverse[rows]
        k = vectors.shape[1]
        sums = np.zeros((2 * k + 1, k))
        for part in pieces(len(vectors), _SMALL):
            block = np.asarray(vectors[part], np.float64)
            unit = block.astype(np.float32) * inverse[part, None]
            sums[0] += unit.sum(axis=0)
            sums[1 : k + 1] += unit.T @ unit
            sums[k + 1 :] += block.T @ block
        return sums

    @cached_property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """The arrays of a saved index."""
        if self.stored:
            return self.stored
        nothing = np.zeros((0, 0), np.uint8), *np.zeros((2, 0), np.float32)
        codes = self.codes or Codes(*nothing)
        return {
            "embedding": self.embedding,
            "counts_data": self.counts.data,
            "counts_indices": self.counts.indices,
            "counts_indptr": self.counts.indptr.astype(np.int64),
            "inverse": self.inverse,
            "lengths": self.lengths,
            **dict(zip(_CODES, codes, strict=True)),
            **{f"postings_{name}": each for name, each in self.postings._asdict().items()},
        }

    @classmethod
    def of(
        cls,
        arrays: Mapping[str, NDArray[Any]],
        table: pl.DataFrame,
        n_terms: int,
        has_counts: bool,
    ) -> Self:
        """Return the documents that the `arrays` and `table` of a saved index describe."""
        csr = (arrays["counts_data"], arrays["counts_indices"], arrays["counts_indptr"])
        counts = sparse.csr_array(csr, shape=(len(table), n_terms))
        return cls(table, counts, arrays["embedding"], has_counts, stored=arrays)


@dataclass(frozen=True, eq=False)
class Collection:
    """Documents of an index; places number the rows of all parts."""

    parts: tuple[Part, ...]

    def __len__(self) -> int:
        return sum(len(part) - len(part.removed) for part in self.parts)

    @cached_property
    def whole(self) -> Part:
        """All documents as one part, without removed ones."""
        if len(self.parts) == 1 and not len(self.parts[0].removed):
            return self.parts[0]
        return Part.joined(self.parts)

    @cached_property
    def ids(self) -> Ids:
        """Ids of the documents."""
        labels = self.table["document"]
        kept = labels if self._places is None else labels.gather(self._places)
        return Ids(kept, "document", sort=False)

    @cached_property
    def table(self) -> pl.DataFrame:
        """Columns document and, if known, title and snippet, of all places."""
        return tables_joined([part.table for part in self.parts])

    @cached_property
    def _places(self) -> Indices | None:
        """Place of each document, None if no document is removed."""
        return np.delete(np.arange(len(self.table)), self.removed) if len(self.removed) else None

    @cached_property
    def removed(self) -> Indices:
        """Places of removed documents."""
        return np.concatenate([own.start + part.removed for part, own in self.slices])

    @cached_property
    def slices(self) -> list[tuple[Part, slice]]:
        """The parts, each with its places."""
        ends = np.cumsum([0, *map(len, self.parts)]).tolist()
        return [*zip(self.parts, map(slice, ends[:-1], ends[1:]), strict=True)]

    def places(self, labels: IdsLike) -> Indices:
        """Return the places of documents by their ids."""
        return self.places_of(self.ids.index(labels))

    def places_of(self, numbers: Indices) -> Indices:
        """Return the places of documents by their numbers among `ids`."""
        return numbers if self._places is None else self._places[numbers]

    def shown(self, places: Indices) -> list[pl.Series]:
        """Return ids and, if known, titles and snippets of some documents."""
        index = pl.Series(places.astype(np.uint32))  # by far the fastest way
        return [column[index] for column in self.table.get_columns()]

    def row_of(self, place: int) -> tuple[Part, int]:
        """Return the part that contains a place, and the row in this part."""
        return next((part, place - own.start) for part, own in self.slices if place < own.stop)

    def counts_of(self, place: int) -> Any:
        """Return the row of counts of one document."""
        part, row = self.row_of(place)
        return part.counts[[row]]

    def extended(self, more: Part) -> Collection:
        """Return a collection of these and further documents.

        A part that is less than twice as large as the next one is joined with it, so that there are
        few parts.
        """
        parts = [*self.parts, more]
        while len(parts) > 1 and len(parts[-2]) < _LARGER * len(parts[-1]):
            parts[-2:] = [Part.joined(parts[-2:])]
        return Collection(tuple(parts))

    def widened(self, n_terms: int) -> Collection:
        """Return a collection with further terms, which none of its documents has."""
        return Collection(tuple(part.widened(n_terms) for part in self.parts))

    def without(self, places: Indices) -> Collection:
        """Return a collection without some documents; rebuild parts that lose a quarter."""
        owned = {id(part): rows for part, rows in self.owned(places)}
        parts = []
        for part in self.parts:
            left = part
            if (rows := owned.get(id(part))) is not None:
                left = part.without(rows)
                if _MOST_REMOVED * len(left.removed) >= len(left):
                    left = Part.joined([left])
            parts += [left] if len(left) else []
        return Collection(tuple(parts))

    def owned(self, places: Indices) -> Iterator[tuple[Part, Indices]]:
        """Yield the parts that contain places, and the rows in each part."""
        for part, own in self.slices:
            inside = (places >= own.start) & (places < own.stop)
            if inside.any():
                yield part, places[inside] - own.start


def tables_joined(tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Concatenate tables of documents; ids of mixed types become strings."""
    if len(tables) == 1:
        return tables[0]
    if len({table.schema["document"] for table in tables}) > 1:
        tables = [table.with_columns(pl.col("document").cast(pl.String)) for table in tables]
    order = [name for name in ("document", "title", "snippet") if any(name in t for t in tables)]
    return pl.concat(tables, how="diagonal").select(order)


@dataclass(frozen=True, slots=True)
class SavedIndex:
    """Contents of a saved index, with the arrays and the table of each part."""

    parameters: dict[str, Any]
    training: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    terms: pl.Series
    stop_words: list[str]
    parts: list[tuple[Mapping[str, NDArray[Any]], pl.DataFrame]]


def save_index(
    index: SavedIndex, path: str | Path, *, overwrite: bool = False, origin: Origin | None = None
) -> Origin:
    """Write an index to a new directory atomically; files of `origin` are linked, not copied."""
    arrays = {f"arrays/{name}": array for name, array in index.arrays.items()}
    stop_words = pl.Series("word", index.stop_words, dtype=pl.String)
    tables = {"terms": index.terms.alias("term").to_frame(), "stop_words": stop_words.to_frame()}
    for number, (own, table) in enumerate(index.parts):
        arrays |= {f"part_{number}/{name}": array for name, array in own.items()}
        tables[f"documents_{number}"] = table
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
    return read_directory(path, INDEX, partial(_loaded_index, verify=verify))


def _loaded_index(directory: SavedDirectory, verify: bool) -> tuple[SavedIndex, Origin]:
    """Load the index in a saved directory.

    Raises
    ------
    DamageError, ModelFileError
    """
    manifest = checked_manifest(directory, INDEX)
    everything = verify or manifest.size <= VERIFIED_TOGETHER
    found = mapped_arrays(directory, manifest, everything)
    tables = {name: schema.saved_table(found, manifest, name) for name in manifest.columns}
    arrays = {name: schema.listed(found, f"arrays/{name}") for name in _ARRAYS}
    for name, column in (("terms", "term"), ("stop_words", "word")):
        if tables.get(name, pl.DataFrame()).columns != [column]:
            raise DamageError(f"{MANIFEST} does not name the column of {name}")
    terms, stop_words = tables["terms"]["term"], tables["stop_words"]["word"].to_list()
    k = arrays["singular_values"].size
    sizes = {"terms": len(terms), "terms + 1": len(terms) + 1, "k": k, "2 k + 1": 2 * k + 1}
    sizes["removed"] = arrays["removed"].size
    _check_arrays(arrays, _ARRAYS, sizes, everything)
    parts = list[tuple[Mapping[str, NDArray[Any]], pl.DataFrame]]()
    for number in range(len(tables) - 2):
        folder, table = f"part_{number}", tables.get(f"documents_{number}", pl.DataFrame())
        own = {name: schema.listed(found, f"{folder}/{name}") for name in _PART_ARRAYS}
        if "document" not in table.columns:
            raise DamageError(f"{MANIFEST} does not name the columns of documents_{number}")
        _check_part(own, len(table), sizes, everything)
        parts.append((own, table))
    n, removed = sum(len(table) for _, table in parts), arrays["removed"]
    if (np.diff(removed, prepend=-1, append=n) < 1).any() or len(removed) == n:
        raise DamageError("removed must be ascending places of documents, but not all")
    saved = SavedIndex(manifest.parameters, manifest.training, arrays, terms, stop_words, parts)
    return saved, Origin(directory.real, manifest, found, tables)


def _check_part(
    arrays: Mapping[str, NDArray[Any]], n: int, sizes: Mapping[str, int], everything: bool
) -> None:
    """Check the arrays of n documents."""
    own = {**sizes, "documents": n, "documents + 1": n + 1}
    own |= {"entries": arrays["counts_data"].size, "postings": arrays["postings_documents"].size}
    coded, width = (*arrays["codes"].shape, 0, 0)[:2]  # a damaged array may have any number of axes
    # Terms of documents that were added later are not among those of earlier parts.
    own["terms + 1"] = min(sizes["terms + 1"], max(1, arrays["postings_indptr"].size))
    own |= {"coded": n if coded else 0, "code width": width if coded else 0}
    _check_arrays(arrays, _PART_ARRAYS, own, everything)
    if coded and (2 * width < max(_FEWEST, sizes["k"]) or width & (width - 1)):
        raise DamageError(f"codes of {sizes['k']} dimensions cannot have {width} columns")
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
