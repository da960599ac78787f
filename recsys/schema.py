"""Documents and columns of saved models, indexes and splits, with strict checks of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast

import msgspec
import numpy as np
import polars as pl
from msgspec import Meta, Struct
from numpy.typing import NDArray

from recsys.data.features import FeatureKind, Features
from recsys.data.ids import Ids
from recsys.errors import ModelFileError
from recsys.saved_arrays import FORMAT_VERSION, LONGEST, MANIFEST, DamageError

INDEX_FORMAT = "recsys-lsi"
SPARK_FORMAT = "recsys-spark-model"  # written by `recsys.spark`, and opened by one machine as well
MEASURED = "metrics.json"
MEASURED_FORMAT: Literal["recsys-metrics"] = "recsys-metrics"
SPLIT_MANIFEST = "split.json"
SPLIT_FORMAT: Literal["recsys-split"] = "recsys-split"
_FEW_TEXTS = 2**16  # that are cut by Python in the time in which polars starts its threads

Scalar: TypeAlias = bool | int | float | str | None
ColumnType: TypeAlias = Literal["number", "text", "list", "date", "datetime"]
Side: TypeAlias = Literal["user", "item"]
Number: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | float
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Positive: TypeAlias = Annotated[float, Meta(gt=0)]
# Patterns end in \Z: $ would let a line end follow.
_TABLES = r"users|items|(item|user)_(table|levels)|terms|documents_[0-9]{1,6}"
TableName: TypeAlias = Annotated[str, Meta(pattern=rf"\A({_TABLES})\Z")]
FOLDER = rf"(arrays|part_[0-9]{{1,6}}|ratings|(item|user)_features|{_TABLES})"
"""Pattern of the directories of a saved model or index."""
FileName: TypeAlias = Annotated[str, Meta(pattern=rf"\A{FOLDER}/[A-Za-z0-9_]{{1,100}}\.npy\Z")]
FoldName: TypeAlias = Annotated[str, Meta(pattern=r"\Afold-[0-9]{1,9}\Z")]
PartName: TypeAlias = Annotated[str, Meta(pattern=r"\A(train|test|history)\.(csv|parquet)\Z")]

# Types of the columns of each kind of features; numbers have any numeric type.
_FEATURES: dict[str, tuple[Any, ...]] = {
    "boolean": (pl.Boolean,),
    "date": (pl.Date, pl.Datetime),
    "category": (pl.String, pl.Int64),
    "list": (pl.List(pl.String),),
    "text": (pl.String,),
}

S = TypeVar("S")


class FileEntry(Struct, frozen=True):
    """One array file: its checksum, size, type (``<f4`` is float32) and shape."""

    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    bytes: Count
    dtype: Annotated[str, Meta(pattern=r"\A[<|][biuf][1248]\Z")]
    shape: tuple[Count, ...]


class ColumnEntry(Struct, frozen=True):
    """One column of a table; lists are of texts, dates days, datetimes microseconds since 1970.

    `kind` is that of a column of features.
    """

    name: str
    type: ColumnType
    kind: FeatureKind | None = None


class BlockEntry(Struct, frozen=True):
    """One block of features: levels, words or knots in a table, and directions of words."""

    form: Literal["number", "date", "levels", "text"]
    column: str
    scale: Positive
    seasonal: bool = False
    has_missing: bool = False
    has_rare: bool = False
    is_list: bool = False
    n_levels: Count = 0
    n_directions: Count = 0
    remark: str = ""

    @property
    def contents(self) -> str:
        """Number of values, words or dimensions."""
        if self.form == "levels":
            return f"{self.n_levels + self.has_rare:,} values"
        if self.form == "text":
            n, what = (
                (self.n_directions, "dimensions") if self.n_directions else (self.n_levels, "")
            )
            return f"{n:,} {what or 'terms'}" + f" ({self.remark})" * bool(self.remark)
        return self.form


class RatingsTraining(Struct, frozen=True):
    """The fields of a model's training summary that predictions depend on."""

    implicit: bool
    users: Count
    items: Count
    rating_min: float | None
    rating_max: float | None


class IndexTraining(Struct, frozen=True):
    """The fields of an index's training summary that its methods read."""

    documents: Count
    terms: Count
    words: Count
    empty_documents: Count
    added: Count
    removed: Count
    mean_length: float
    language: str | None


class Manifest(Struct, frozen=True, kw_only=True):
    """Contents of model.json.

    `model` is a name in `recsys.MODELS`, or "lsi"; `created` the time in UTC, ISO 8601; `source`
    how the ratings were read, `period` the times of the first and the last one, `reading` the
    options of reading that an update uses again; `parent` the version of the model that this one is
    an update of; `tag` free text; `title` the column of the titles of items; `features` what the
    features mean; `checksum` the SHA-256 of all other fields.
    """

    format: str
    format_version: int
    package_version: str
    model: str
    parameters: dict[str, Scalar | list[Scalar]]
    training: dict[str, Scalar]
    created: str
    source: str | None
    fingerprint: str | None
    versions: dict[str, str]
    columns: dict[TableName, list[ColumnEntry]]
    files: dict[FileName, FileEntry]
    features: dict[Side, list[BlockEntry]] = {}
    period: tuple[str, str] | None = None
    parent: str | None = None
    tag: str | None = None
    title: str | None = None
    reading: dict[str, Scalar | dict[str, float]] = {}
    checksum: str = ""

    @property
    def version(self) -> str:
        """Name of the model and beginning of the checksum, such as "als@1f2e3d4c"."""
        return f"{self.model}@{self.checksum[:8]}"

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.bytes for entry in self.files.values())


class Measured(Struct, frozen=True, kw_only=True):
    """Metrics of a model on one set of test ratings: value, and bounds of the interval."""

    test: str
    fingerprint: str
    time: str
    ratings: Count
    users: Count
    metrics: dict[str, tuple[float, float | None, float | None]]


class MeasuredFile(Struct, frozen=True, kw_only=True):
    """Contents of metrics.json."""

    format: Literal["recsys-metrics"] = MEASURED_FORMAT
    measured: list[Measured] = []


class SplitManifest(Struct, frozen=True, kw_only=True):
    """Contents of split.json; `folds` are the folders of a split with several folds."""

    format: Literal["recsys-split"] = SPLIT_FORMAT
    format_version: Literal[2] = FORMAT_VERSION
    package_version: str = ""
    method: str = "k-fold"
    parameters: dict[str, Number] = {}
    description: str = ""
    fingerprint: str = ""
    counts: dict[str, int] = {}
    files: list[PartName] = []
    folds: list[FoldName] = []


def read_document(file: Path) -> dict[str, Any]:
    """Return the JSON object of at most 64 MB in a file.

    Raises
    ------
    DamageError
    """
    if not file.is_file():
        raise DamageError(f"{file.name} is not a file")
    with file.open("rb") as stream:
        text = stream.read(LONGEST + 1)
    if len(text) > LONGEST:
        raise DamageError(f"{file.name} has more than {LONGEST:,} bytes")
    try:
        document = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        raise DamageError(f"{file.name} is not valid JSON") from None
    if not isinstance(document, dict):
        raise DamageError(f"{file.name} is not a JSON object")
    return document


def checked(document: Any, kind: type[S], name: str = MANIFEST) -> S:
    """Return a document as a struct, with exactly the declared types.

    Raises
    ------
    DamageError
    """
    try:
        return msgspec.convert(document, kind, strict=True)
    except (ValueError, RecursionError) as error:
        raise DamageError(f"{name}: {str(error).rstrip('.')}") from None


def parse(document: Mapping[str, Any], training: type[Struct]) -> Manifest:
    """Return the manifest that a document describes, once its fields and checksum are checked.

    Raises
    ------
    DamageError
    """
    manifest = checked(document, Manifest)
    if manifest.checksum != checksum(document):
        raise DamageError(f"the checksum of {MANIFEST} is wrong")
    checked(manifest.training, training, f"training in {MANIFEST}")
    return manifest


def checksum(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object without its own checksum, whatever its layout."""
    rest = {key: value for key, value in document.items() if key != "checksum"}
    return hashlib.sha256(msgspec.json.encode(rest, order="deterministic")).hexdigest()


def to_json(manifest: Struct) -> bytes:
    """Return a document as indented JSON, with a checksum of itself if it has that field."""
    document = msgspec.json.decode(msgspec.json.encode(manifest, enc_hook=_plain))
    if "checksum" in document:
        document["checksum"] = checksum(document)
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{value!r} is not a number or text")


def encoded(series: pl.Series) -> tuple[ColumnType, dict[str, NDArray[Any]]]:
    """Return the type of a column, and its arrays by the ends of their names.

    Raises
    ------
    ModelFileError
        If values of its type cannot be saved.
    """
    kind: ColumnType = "number"
    arrays: dict[str, NDArray[Any]] = {}
    if series.null_count():
        arrays["_valid"] = series.is_not_null().to_numpy()
    if series.dtype == pl.List(pl.String):
        lists = [each or [] for each in series.to_list()]
        kind, series = "list", pl.Series([text for each in lists for text in each], dtype=pl.String)
        arrays["_ends"] = np.cumsum([len(each) for each in lists], dtype=np.int64)
    if isinstance(series.dtype, pl.String | pl.Categorical | pl.Enum):
        kind = "list" if kind == "list" else "text"
        texts = series.cast(pl.String).fill_null("")
        lengths = np.append(0, texts.str.len_bytes().to_numpy())
        arrays["_offsets"] = np.cumsum(lengths, dtype=np.int64)
        arrays["_bytes"] = np.frombuffer((texts.str.join().item() or "").encode(), dtype=np.uint8)
        return kind, arrays
    if series.dtype == pl.Date:
        kind, series = "date", series.cast(pl.Int32)
    elif isinstance(series.dtype, pl.Datetime):
        kind, series = "datetime", series.dt.cast_time_unit("us").cast(pl.Int64)
    if not (series.dtype.is_numeric() or series.dtype == pl.Boolean) or series.dtype.is_decimal():
        raise ModelFileError(
            f"The column {series.name!r} of the metadata cannot be saved: it has {series.dtype} "
            "values; texts, lists of texts, numbers, booleans and dates can be."
        )
    filled = series.fill_null(0 if series.dtype != pl.Boolean else False)
    return kind, arrays | {"": filled.to_numpy()}


def listed(found: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    """Return an array by its name.

    Raises
    ------
    DamageError
    """
    if name not in found:
        raise DamageError(f"{MANIFEST} does not list {name}.npy")
    return found[name]


def check_rows(name: str, indptr: NDArray[Any], indices: NDArray[Any], n_columns: int) -> None:
    """Check that the arrays are the rows of a CSR matrix.

    Raises
    ------
    DamageError
    """
    if indptr.ndim != 1 or not len(indptr) or indptr[0] != 0 or (np.diff(indptr) < 0).any():
        raise DamageError(f"{name} does not rise from 0")
    if indptr[-1] != indices.size:
        raise DamageError(f"{name} does not end at the number of entries")
    if indices.size and not (indices.min() >= 0 and indices.max() < n_columns):
        raise DamageError(f"the entries of {name} have columns that do not exist")


def check_features(frame: pl.DataFrame, side: str, kinds: Mapping[str, Any]) -> None:
    """Check that a table can be that of `Features`.

    Raises
    ------
    DamageError
    """
    names = frame.columns
    if names[:1] != [side] or names[1:] != [*kinds]:
        raise DamageError(f"a table of {side}s needs kinds of the columns {names[1:]}")
    ids = frame[side]
    if ids.dtype not in (pl.Int64, pl.String) or ids.null_count() or len({*ids}) < len(ids):
        raise DamageError(f"a table of {side}s needs distinct ids, integers or strings")
    for name, kind in kinds.items():
        dtype = frame.schema[name]
        fits = dtype.is_numeric() if kind == "number" else dtype in _FEATURES.get(kind, ())
        if not fits:
            raise DamageError(f"column {name!r} has {dtype} values; they cannot be of {kind!r}")


def decoded(found: Mapping[str, NDArray[Any]], place: str, entry: ColumnEntry) -> pl.Series:
    """Return the column that `encoded` made arrays of; texts are checked to be UTF-8.

    Raises
    ------
    DamageError
    """
    if entry.type in ("text", "list"):
        offsets, text = listed(found, f"{place}_offsets"), listed(found, f"{place}_bytes")
        if offsets.dtype != np.int64 or text.dtype != np.uint8 or text.ndim != 1:
            raise DamageError(f"{place} is not text")
        check_rows(f"{place}_offsets", offsets, text, 256)
        whole = text.tobytes()
        if len(offsets) <= _FEW_TEXTS:
            cuts = pairwise(offsets.tolist())
            values = pl.Series([whole[a:b].decode() for a, b in cuts], dtype=pl.String)
        else:
            spans = pl.DataFrame({"start": offsets[:-1], "length": np.diff(offsets)})
            cut = pl.lit(whole).bin.slice("start", "length").cast(pl.String)
            values = spans.select(cut).to_series()
        if entry.type == "list":
            ends = listed(found, f"{place}_ends")
            starts = np.append(0, ends)
            check_rows(f"{place}_ends", starts, offsets[:-1], text.size + 1)
            flat = values.to_list()
            lists = [flat[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=False)]
            values = pl.Series(lists, dtype=pl.List(pl.String))
    else:
        array = listed(found, place)
        if array.ndim != 1 or not array.dtype.isnative:
            raise DamageError(f"{place} is not a column")
        values = pl.Series(array)
        if entry.type != "number":
            values = values.cast(pl.Date if entry.type == "date" else pl.Datetime("us"))
    if f"{place}_valid" in found:
        missing = pl.Series([None], dtype=values.dtype)
        values = values.zip_with(pl.Series(found[f"{place}_valid"]), missing)
    return values.alias(entry.name)


def saved_ids(found: Mapping[str, NDArray[Any]], manifest: Manifest, kind: str) -> Ids:
    """Return the saved ids of users or items.

    Raises
    ------
    DamageError
    """
    table = saved_table(found, manifest, f"{kind}s")
    if table.columns != [kind] or table[kind].dtype not in (pl.Int64, pl.String):
        raise DamageError(f"the {kind}s have no column of ids")
    ids = Ids(table[kind], kind)
    if not ids.values.equals(table[kind]):
        raise DamageError(f"the {kind} ids are not in order")
    return ids


def saved_features(
    found: Mapping[str, NDArray[Any]], manifest: Manifest, kind: str
) -> Features | None:
    """Return the saved table of users or items, if there is one.

    Raises
    ------
    DamageError
    """
    name: Any = f"{kind}_table"
    if name not in manifest.columns:
        return None
    kinds = {each.name: each.kind for each in manifest.columns[name][1:]}
    frame = saved_table(found, manifest, name)
    check_features(frame, kind, kinds)
    return Features(frame, cast("dict[str, FeatureKind]", kinds))


def saved_table(found: Mapping[str, NDArray[Any]], manifest: Manifest, name: Any) -> pl.DataFrame:
    """Return a saved table with the columns that the manifest lists.

    Raises
    ------
    DamageError
    """
    entries = manifest.columns.get(name, [])
    columns = [decoded(found, f"{name}/{n}", entry) for n, entry in enumerate(entries)]
    if len({len(column) for column in columns}) != 1:
        raise DamageError(f"the columns of {name} are of different lengths, or missing")
    return pl.DataFrame(columns)
