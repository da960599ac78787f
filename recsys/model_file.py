"""Schemas of saved models, indexes and splits, and checked loading of them.

Functions that check contents raise a `DamageError`. Functions that open a directory turn it into a
`ModelFileError` with the path.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    BinaryIO,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
    cast,
)

import msgspec
import numpy as np
import polars as pl
from msgspec import Meta, Struct
from msgspec.structs import asdict as as_dict
from numpy.typing import NDArray
from polars.exceptions import PanicException, PolarsError

from recsys.atomic import recover
from recsys.data.csr import Values
from recsys.data.events import EventRule, Events
from recsys.data.features import FeatureKind, FeatureRequest, Features, ReadAs
from recsys.data.feedback import Feedback, Kind
from recsys.data.ids import Ids
from recsys.data.ratings import Ratings
from recsys.data.rows import Policy, check_scale
from recsys.data.split_parts import SPLIT_FORMAT, PartReading
from recsys.errors import ModelFileError, RecsysError
from recsys.models.base import Model
from recsys.models.registry import MODELS
from recsys.provenance import FitRequest, Provenance
from recsys.saved_arrays import (
    FORMAT_VERSION,
    LONGEST,
    MANIFEST,
    MODEL_FORMAT,
    VERIFIED,
    DamageError,
    SavedDirectory,
    as_path,
    check_finite,
    check_rows,
    mapped,
)

if TYPE_CHECKING:
    from lowrank.completion.feature_ridge import GroupedFeatures


INDEX_FORMAT = "recsys-lsi"
SPARK_FORMAT = (
    "recsys-spark-model"  # written by `recsys.spark`, and loaded without a cluster too
)
MEASURED = "metrics.json"
ATTEMPTS = 20
"""Maximum number of times to read a directory that is replaced again and again."""
PAUSE = 0.02
"""Seconds before the second attempt; there are as many more before each further one."""

Scalar: TypeAlias = bool | int | float | str | None
ColumnType: TypeAlias = Literal["number", "text", "list", "date", "datetime"]
Side: TypeAlias = Literal["user", "item"]
Number: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | float
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Positive: TypeAlias = Annotated[float, Meta(gt=0)]
# Patterns end in \Z, since $ also matches before a final line feed.
_TABLES = r"users|items|(item|user)_(table|levels)|terms|stop_words|documents"
TableName: TypeAlias = Annotated[str, Meta(pattern=rf"\A({_TABLES})\Z")]
FOLDER = rf"(arrays|ratings|events|(item|user)_features|{_TABLES})"
"""Pattern of the directories of a saved model or index."""
FileName: TypeAlias = Annotated[
    str, Meta(pattern=rf"\A{FOLDER}/[A-Za-z0-9_]{{1,100}}\.npy\Z")
]
FoldName: TypeAlias = Annotated[str, Meta(pattern=r"\Afold-[0-9]{1,9}\Z")]
_PARTS = r"(train|test|history)\.(csv|parquet)|(items|users)\.parquet"
PartName: TypeAlias = Annotated[str, Meta(pattern=rf"\A({_PARTS})\Z")]

# Valid types of columns for each kind of features; "number" allows any numeric type.
_FEATURES: dict[str, tuple[Any, ...]] = {
    "boolean": (pl.Boolean,),
    "date": (pl.Date, pl.Datetime),
    "category": (pl.String, pl.Int64),
    "list": (pl.List(pl.String),),
    "text": (pl.String,),
}

_OTHER_FORMS = {
    MODEL_FORMAT: "it is a saved model of ratings; see `recsys info`",
    INDEX_FORMAT: "it is an index of texts; see `recsys lsi info` and `recsys lsi query`",
    SPARK_FORMAT: "it was fitted with --engine spark; see `recsys info`",
}
_ROWS = ("indptr", "indices", "data")

S = TypeVar("S")
T = TypeVar("T")


class FileEntry(Struct, frozen=True):
    """Description of an array file: checksum, size, type (``<f4`` is float32) and shape."""

    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    bytes: Count
    dtype: Annotated[str, Meta(pattern=r"\A(\|b1|\|[iu]1|<[iuf][248])\Z")]
    shape: tuple[Count, ...]


class ColumnEntry(Struct, frozen=True):
    """Description of a column of a table.

    Lists contain texts; dates are stored as days, and datetimes as microseconds, since 1970. `kind`
    is set for columns of features, and `read_as` for those that were strings.
    """

    name: str
    type: ColumnType
    kind: FeatureKind | None = None
    read_as: ReadAs | None = None


class RuleEntry(Struct, frozen=True):
    """Rule by which events become ratings; fields as in `EventRule`."""

    policy: Policy = "last"
    half_life: Positive | None = None
    kinds: list[str] = []
    weights: list[float] = []
    above: float | None = None

    @classmethod
    def from_rule(cls, rule: EventRule) -> RuleEntry:
        """Describe a rule."""
        kinds, weights = list(rule.kinds), list(rule.weights)
        return cls(rule.policy, rule.half_life, kinds, weights, rule.above)

    def to_rule(self) -> EventRule:
        """Return the rule.

        Raises
        ------
        DamageError
        """
        if len(self.kinds) != len(self.weights) or not np.isfinite(self.weights).all():
            raise DamageError(f"the kinds of events in {MANIFEST} need a weight each")
        kinds, weights = tuple(self.kinds), tuple(self.weights)
        return EventRule(self.policy, self.half_life, kinds, weights, self.above)


class FeedbackEntry(Struct, frozen=True):
    """Decision on the values of ratings, with the name of their column; see `Feedback`."""

    kind: Kind
    name: str = ""
    common: float | None = None

    @classmethod
    def from_feedback(cls, feedback: Feedback | None) -> FeedbackEntry | None:
        """Describe a decision, without the range of the values."""
        return (
            None
            if feedback is None
            else cls(feedback.kind, feedback.name, feedback.common)
        )


class BlockEntry(Struct, frozen=True):
    """Description of a block of features, the columns that encode one column of a table."""

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
            size = f"{self.n_levels:,} terms"
            if self.n_directions:
                size = f"{self.n_directions:,} dimensions"
            return f"{size} ({self.remark})" if self.remark else size
        return self.form


class RatingsTraining(Struct, frozen=True):
    """Fields of a model's training summary that predictions depend on."""

    implicit: bool
    users: Count
    items: Count
    rating_min: float | None
    rating_max: float | None


class IndexTraining(Struct, frozen=True):
    """Fields of an index's training summary that its methods use."""

    documents: Count
    terms: Count
    terms_outside_dimensions: Count
    words: Count
    empty_documents: Count
    added: Count
    removed: Count
    mean_length: float
    language: str | None


class Manifest(Struct, frozen=True, kw_only=True):
    """Contents of model.json.

    Attributes
    ----------
    model : str
        A name in `recsys.MODELS`, or "lsi".
    features : dict
        Blocks of the encoded features of users and of items.
    feature_request : FeatureRequest or None
    untyped : list of str
        As in `Ratings`.
    title : str or None
        Column of the item table with titles.
    rule : RuleEntry
        Rule by which the ratings were made of events.
    feedback : FeedbackEntry or None
        Decision on the values, which a refit makes again.
    checksum : str
        SHA-256 of all other fields.
    created, source, fingerprint, period, parent, tag, reading, request, keep_columns
        As in `Provenance`.
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
    feature_request: FeatureRequest | None = None
    untyped: list[Side] = []
    period: tuple[str, str] | None = None
    parent: str | None = None
    tag: str | None = None
    title: str | None = None
    rule: RuleEntry = RuleEntry()
    feedback: FeedbackEntry | None = None
    reading: dict[str, Scalar | list[float] | dict[str, float]] = {}
    request: FitRequest | None = None
    keep_columns: tuple[str, ...] = ()
    checksum: str = ""

    @property
    def version(self) -> str:
        """Name of the model and prefix of the checksum, such as "als@1f2e3d4c"."""
        return f"{self.model}@{self.checksum[:8]}"

    @property
    def size(self) -> int:
        """Total size of the files, in bytes."""
        return sum(entry.bytes for entry in self.files.values())


class SplitManifest(Struct, frozen=True, kw_only=True):
    """Contents of split.json; `folds` are the subdirectories of a split into folds."""

    format: Literal["recsys-split"] = SPLIT_FORMAT
    format_version: Literal[4] = FORMAT_VERSION
    package_version: str = ""
    method: str = "k-fold"
    parameters: dict[str, Number] = {}
    repeats: Literal["drop", "keep"] = "drop"
    description: str = ""
    fingerprint: str = ""
    counts: dict[str, int] = {}
    files: list[PartName] = []
    folds: list[FoldName] = []
    reading: PartReading = PartReading()


def read_document(file: Path) -> dict[str, Any]:
    """Read a JSON object of at most 64 MB from a file.

    Raises
    ------
    DamageError
    """
    if not file.is_file():
        raise DamageError(f"{file.name} is not a file")
    with file.open("rb") as stream:
        return _json_object(stream, file.name)


def _json_object(stream: BinaryIO, name: str) -> dict[str, Any]:
    """Return the JSON object in a stream of at most 64 MB; `name` is for messages."""
    text = stream.read(LONGEST + 1)
    if len(text) > LONGEST:
        raise DamageError(f"{name} has more than {LONGEST:,} bytes")
    try:
        document = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        raise DamageError(f"{name} is not valid JSON") from None
    if not isinstance(document, dict):
        raise DamageError(f"{name} is not a JSON object")
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
    """Return a document as a manifest, after checking its fields and checksum.

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
    """Return the SHA-256 of a JSON object without its field "checksum", independent of layout."""
    signed = {key: value for key, value in document.items() if key != "checksum"}
    return hashlib.sha256(
        msgspec.json.encode(signed, order="deterministic")
    ).hexdigest()


def to_json(manifest: Struct) -> bytes:
    """Return a document as indented JSON, with its checksum if it has that field."""
    document = msgspec.json.decode(msgspec.json.encode(manifest, enc_hook=_plain))
    if "checksum" in document:
        document["checksum"] = checksum(document)
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{value!r} is not a number or text")


def listed(arrays: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    """Return an array by its name.

    Raises
    ------
    DamageError
    """
    if name not in arrays:
        raise DamageError(f"{MANIFEST} does not list {name}.npy")
    return arrays[name]


def check_features(frame: pl.DataFrame, side: str, kinds: Mapping[str, Any]) -> None:
    """Check that a frame is a valid table of `Features`.

    Raises
    ------
    DamageError
    """
    names = frame.columns
    if names[:1] != [side] or names[1:] != [*kinds]:
        raise DamageError(f"a table of {side}s needs kinds of the columns {names[1:]}")
    ids = frame[side]
    if (
        ids.dtype not in (pl.Int64, pl.String)
        or ids.null_count()
        or len({*ids}) < len(ids)
    ):
        raise DamageError(f"a table of {side}s needs distinct ids, integers or strings")
    for name, kind in kinds.items():
        dtype = frame.schema[name]
        fits = (
            dtype.is_numeric() if kind == "number" else dtype in _FEATURES.get(kind, ())
        )
        if not fits:
            raise DamageError(
                f"column {name!r} has {dtype} values; they cannot be of {kind!r}"
            )


def decoded(
    arrays: Mapping[str, NDArray[Any]], prefix: str, entry: ColumnEntry
) -> pl.Series:
    """Return a column from the arrays of `storage.encoded`, whose names begin with `prefix`."""
    if entry.type in ("text", "list"):
        values = _decoded_texts(arrays, prefix)
        if entry.type == "list":
            starts = np.append(0, listed(arrays, f"{prefix}_ends"))
            check_rows(f"{prefix}_ends", starts, np.zeros(len(values)), 1)
            lists = pl.lit(values.implode()).list
            values = _slices(starts, lists.slice, pl.List(pl.String))
    else:
        array = listed(arrays, prefix)
        if array.ndim != 1 or not array.dtype.isnative:
            raise DamageError(f"{prefix} is not a column")
        values = pl.Series(array)
        if entry.type != "number":
            values = values.cast(pl.Date if entry.type == "date" else pl.Datetime("us"))
    if f"{prefix}_valid" in arrays:
        missing = pl.Series([None], dtype=values.dtype)
        values = values.zip_with(pl.Series(arrays[f"{prefix}_valid"]), missing)
    return values.alias(entry.name)


def _decoded_texts(arrays: Mapping[str, NDArray[Any]], prefix: str) -> pl.Series:
    """Return the texts between offsets of bytes, which must be valid UTF-8."""
    offsets = listed(arrays, f"{prefix}_offsets")
    text = listed(arrays, f"{prefix}_bytes")
    if offsets.dtype != np.int64 or text.dtype != np.uint8 or text.ndim != 1:
        raise DamageError(f"{prefix} is not text")
    # An offset outside the bytes would be cut to an empty text in silence.
    check_rows(f"{prefix}_offsets", offsets, text, 256)
    return _slices(offsets, pl.lit(text.tobytes()).bin.slice, pl.Binary).cast(pl.String)


def _slices(
    starts: NDArray[Any], slice_of: Callable[[str, str], pl.Expr], dtype: Any
) -> pl.Series:
    """Return slices of one value, each from a start to the next one."""
    spans = pl.DataFrame({"start": starts[:-1], "length": np.diff(starts)})
    if not len(spans):  # a literal would be a column of one row
        return pl.Series([], dtype=dtype)
    return spans.select(slice_of("start", "length")).to_series()


def _saved_ids(
    arrays: Mapping[str, NDArray[Any]], manifest: Manifest, kind: str
) -> Ids:
    """Return the saved ids of users or items."""
    table = saved_table(arrays, manifest, f"{kind}s")
    if table.columns != [kind] or table[kind].dtype not in (pl.Int64, pl.String):
        raise DamageError(f"the {kind}s have no column of ids")
    ids = Ids(table[kind], kind)
    if not ids.values.equals(table[kind]):
        raise DamageError(f"the {kind} ids are not in order")
    return ids


def _saved_features(
    arrays: Mapping[str, NDArray[Any]], manifest: Manifest, kind: str
) -> Features | None:
    """Return the saved table of users or items, or None."""
    name: Any = f"{kind}_table"
    if name not in manifest.columns:
        return None
    entries = manifest.columns[name][1:]
    kinds = {entry.name: entry.kind for entry in entries}
    read_as = {
        entry.name: entry.read_as for entry in entries if entry.read_as is not None
    }
    frame = saved_table(arrays, manifest, name)
    check_features(frame, kind, kinds)
    return Features(frame, cast("dict[str, FeatureKind]", kinds), read_as=read_as)


def saved_table(
    arrays: Mapping[str, NDArray[Any]], manifest: Manifest, name: Any
) -> pl.DataFrame:
    """Return a saved table with the columns that the manifest lists.

    Raises
    ------
    DamageError
    """
    entries = manifest.columns.get(name, [])
    columns = [decoded(arrays, f"{name}/{n}", entry) for n, entry in enumerate(entries)]
    if len({len(column) for column in columns}) != 1:
        raise DamageError(f"the columns of {name} are of different lengths, or missing")
    return pl.DataFrame(columns)


class Form(NamedTuple):
    """Kind of a saved directory, with its name in messages."""

    format: str
    noun: str
    command: str
    training: type[Struct]


MODEL = Form(MODEL_FORMAT, "saved model", "recsys fit", RatingsTraining)
INDEX = Form(INDEX_FORMAT, "saved index", "recsys lsi index", IndexTraining)


@dataclass(frozen=True, slots=True)
class Saved:
    """A fitted model with its ratings, training summary and provenance."""

    model: Model
    ratings: Ratings
    training: dict[str, Any]
    provenance: Provenance = field(default_factory=Provenance)


def read_manifest(path: str | Path, form: Form = MODEL) -> Manifest:
    """Read and check the model.json of a saved model or index.

    Raises
    ------
    ModelFileError
    """
    return read_directory(path, form, partial(checked_manifest, form=form))


def read_directory(
    path: str | Path, form: Form, read: Callable[[SavedDirectory], T]
) -> T:
    """Open a saved directory, and return what `read` reads there.

    If another directory has taken its place meanwhile, a failure says nothing about the new one,
    and `read` is called again.

    Raises
    ------
    ModelFileError
    """
    for attempt in range(1, ATTEMPTS + 1):
        with _opened(path, form) as directory:
            try:
                with reading_directory(path, form):
                    return read(directory)
            except ModelFileError:
                if attempt == ATTEMPTS or not directory.was_replaced():
                    raise
        time.sleep(attempt * PAUSE)
    raise AssertionError("the last attempt returns or raises")


def _opened(path: str | Path, form: Form) -> SavedDirectory:
    """Open a saved directory; an error says what is at the path instead.

    Raises
    ------
    ModelFileError
    """
    place = as_path(path)
    try:
        try:
            return SavedDirectory(path)
        except FileNotFoundError:
            if not recover(Path(os.path.realpath(place))):
                raise
            return SavedDirectory(path)
    except NotADirectoryError:
        raise ModelFileError(
            f"{place} is not a {form.noun}: it is a file, and a {form.noun} is a directory."
        ) from None
    except FileNotFoundError:
        around = place.parent.iterdir() if place.parent.is_dir() else ()
        models = [
            entry.name
            for entry in around
            if (entry / MANIFEST).is_file() and not entry.name.startswith(".")
        ]
        near = get_close_matches(place.name, models, n=1, cutoff=0.5)
        hint = f"`{form.command}` makes one."
        if near:
            hint = f"did you mean {place.with_name(near[0])}?"
        raise ModelFileError(f"There is no {form.noun} {place}; {hint}") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelFileError(
            f"The {form.noun} {path} cannot be read: {reason}."
        ) from error


def read_document_of(directory: SavedDirectory, name: str = MANIFEST) -> dict[str, Any]:
    """Read a JSON object in a saved directory.

    Raises
    ------
    DamageError
    """
    with directory.open(name) as stream:
        return _json_object(stream, name)


def checked_manifest(directory: SavedDirectory, form: Form) -> Manifest:
    """Read and check the model.json of a saved directory of some form.

    Raises
    ------
    DamageError, ModelFileError
    """
    path = directory.path
    if not (directory.real / MANIFEST).is_file() and not directory.was_replaced():
        raise ModelFileError(f"{path} is not a {form.noun}: it has no {MANIFEST}.")
    document = read_document_of(directory)
    format_name, number = document.get("format"), document.get("format_version")
    if format_name != form.format:
        expected = f"its {MANIFEST} does not have the format {form.format!r}"
        reason = _OTHER_FORMS.get(str(format_name), expected)
        raise ModelFileError(f"{path} is not a {form.noun}: {reason}.")
    if type(number) is int and number != FORMAT_VERSION:
        remedy = f"`{form.command}` writes a new one"
        if number > FORMAT_VERSION:
            remedy = (
                f"install lowrank-recsys {document.get('package_version')} or newer"
            )
        raise ModelFileError(
            f"The {form.noun} {path} has format version {number}, and this version of recsys "
            f"reads {FORMAT_VERSION}; {remedy}."
        )
    return parse(document, form.training)


def format_of(path: str | Path) -> str | None:
    """Return the format in the model.json of a directory, or None without one."""
    try:
        return str(read_document(as_path(path) / MANIFEST).get("format"))
    except (OSError, DamageError):
        return None


@contextmanager
def reading_directory(path: str | Path, form: Form) -> Iterator[None]:
    """Convert all errors of reading a saved directory to one type.

    Raises
    ------
    ModelFileError
    """
    try:
        yield
    except ModelFileError:
        raise
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelFileError(
            f"The {form.noun} {path} cannot be read: {reason}."
        ) from error
    except MemoryError as error:
        raise ModelFileError(
            f"The {form.noun} {path} needs more memory than there is."
        ) from error
    except (RecsysError, TypeError, ValueError, PolarsError, PanicException) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ModelFileError(f"The {form.noun} {path} is damaged: {reason}.") from None


def load_model(path: str | Path, *, verify: bool = False) -> Saved:
    """Load a saved model; `verify` also checks the checksums of large files.

    Raises
    ------
    ModelFileError
    """
    return read_directory(path, MODEL, partial(_loaded_model, verify=verify))


def _loaded_model(directory: SavedDirectory, verify: bool) -> Saved:
    """Load the model in a saved directory.

    Raises
    ------
    DamageError, ModelFileError
    """
    if format_of(directory.real) == SPARK_FORMAT:
        return _loaded_spark_model(directory)
    manifest = checked_manifest(directory, MODEL)
    if manifest.model not in MODELS:
        raise ModelFileError(
            f"The saved model {directory.path} is of the kind {manifest.model!r}, which this "
            f"version of recsys does not know; it knows {', '.join(sorted(MODELS))}."
        )
    training = manifest.training
    if not training["implicit"] and None in (
        training["rating_min"],
        training["rating_max"],
    ):
        raise DamageError(f"rating_min and rating_max in {MANIFEST} must be numbers")
    arrays = mapped_arrays(directory, manifest, verify=verify)
    model = _saved_model(arrays, manifest)
    users, items = (_saved_ids(arrays, manifest, kind) for kind in ("user", "item"))
    if (shape := (model.n_users, model.n_items)) != (len(users), len(items)):
        raise DamageError(
            f"the model is of shape {shape}, not {(len(users), len(items))}"
        )
    ratings = _saved_ratings(arrays, manifest, users, items)
    origin = {f.name: getattr(manifest, f.name) for f in fields(Provenance)}
    return Saved(model, ratings, training, Provenance(**origin))


def read_user_ids(path: str | Path) -> list[pl.Series]:
    """Return the ids of users in a saved model, and in its table of users.

    Raises
    ------
    ModelFileError
    """

    def read(directory: SavedDirectory) -> list[pl.Series]:
        manifest = checked_manifest(directory, MODEL)
        names = [
            name
            for name in manifest.files
            if name.startswith(("users/0", "user_table/0"))
        ]
        arrays = {
            name.removesuffix(".npy"): mapped(
                directory, name, as_dict(manifest.files[name]), verify=False
            )
            for name in names
        }
        tables = [name for name in ("users", "user_table") if name in manifest.columns]
        return [
            decoded(arrays, f"{name}/0", manifest.columns[name][0]) for name in tables
        ]

    return read_directory(path, MODEL, read)


def _loaded_spark_model(directory: SavedDirectory) -> Saved:
    """Load a model of the Spark engine, whose Parquet files are read by their paths."""
    saved = Saved(*resolve_name("recsys.spark.results:load_result")(directory.real))
    if directory.was_replaced():
        raise DamageError("it was replaced while it was read")
    check_finite(saved.model._arrays())
    return saved


def _saved_model(arrays: Mapping[str, NDArray[Any]], manifest: Manifest) -> Model:
    """Return the fitted model of the saved arrays."""
    folder = "arrays/"
    fitted = {
        name.removeprefix(folder): np.require(array, requirements="C")
        for name, array in arrays.items()
        if name.startswith(folder)
    }
    model_class = resolve_name(MODELS[manifest.model])
    model: Model = model_class._from_arrays(manifest.parameters, fitted)
    return model


def _saved_ratings(
    arrays: Mapping[str, NDArray[Any]],
    manifest: Manifest,
    users: Ids,
    items: Ids,
) -> Ratings:
    """Return the training ratings of a saved model, with its tables and features."""
    indptr, indices, data = (listed(arrays, f"ratings/{name}") for name in _ROWS)
    levels, seconds = arrays.get("ratings/levels"), arrays.get("ratings/seconds")
    check_rows("ratings/indptr", indptr, indices, len(items))
    ratings = Ratings(
        users,
        items,
        indptr,
        indices,
        data,
        seconds,
        implicit=bool(manifest.training["implicit"]),
        item_table=_saved_features(arrays, manifest, "item"),
        user_table=_saved_features(arrays, manifest, "user"),
        item_features=_blocks(arrays, manifest, items),
        user_features=_blocks(arrays, manifest, users),
        levels=levels,
        events=_saved_events(arrays, manifest, len(users), len(items)),
        rule=manifest.rule.to_rule(),
        scale=_saved_scale(manifest),
        feature_request=manifest.feature_request,
        untyped=tuple(manifest.untyped),
        in_time_order=arrays.get("ratings/in_time_order"),
    )
    if levels is not None and data.max(initial=0) >= len(levels):
        raise DamageError(f"ratings/data has codes beyond the {len(levels)} levels")
    if (feedback := manifest.feedback) is None:
        return ratings
    low, high = ratings.value_range()
    decision = Feedback(feedback.kind, low, high, feedback.name, common=feedback.common)
    return replace(ratings, feedback=decision)


def _saved_scale(manifest: Manifest) -> tuple[float, float] | None:
    """Return the scale of the grades, if it was given."""
    scale = manifest.reading.get("scale")
    return None if scale is None else check_scale(scale)


def _saved_events(
    arrays: Mapping[str, NDArray[Any]],
    manifest: Manifest,
    n_users: int,
    n_items: int,
) -> Events | None:
    """Return the saved events, or None if the ratings tell everything.

    Raises
    ------
    DamageError
    """
    if "events/indptr" not in arrays:
        return None
    indptr, items = arrays["events/indptr"], listed(arrays, "events/items")
    check_rows("events/indptr", indptr, items, n_items, n_users)
    seconds, kinds, keys, data = (
        arrays.get(f"events/{name}") for name in ("seconds", "kinds", "keys", "data")
    )
    levels = arrays.get("events/levels")
    dtypes: dict[str, tuple[type, ...]] = {
        "indptr": (np.int64,),
        "items": (np.int32,),
        "seconds": (np.int32, np.int64, np.float64),
        "kinds": (np.uint8,),
        "keys": (np.uint64,),
        "data": (np.float32,) if levels is None else (np.uint8,),
    }
    for name, types in dtypes.items():
        array = arrays.get(f"events/{name}")
        if array is None:
            continue
        if array.dtype not in types or (
            name != "indptr" and array.shape != items.shape
        ):
            raise DamageError(f"events/{name} is not an array of {len(items)} events")
    if kinds is not None and kinds.max(initial=0) >= len(manifest.rule.kinds):
        raise DamageError(
            f"events/kinds has codes beyond {len(manifest.rule.kinds)} kinds"
        )
    values = None
    if data is not None:
        if levels is not None and data.max(initial=0) >= len(levels):
            raise DamageError(f"events/data has codes beyond the {len(levels)} levels")
        values = Values(cast(Any, data), levels)
    return Events(indptr, items, values, cast(Any, seconds), kinds, keys)


def mapped_arrays(
    directory: SavedDirectory, manifest: Manifest, *, verify: bool
) -> dict[str, NDArray[Any]]:
    """Map all arrays into memory, by names without suffix, after checking files and values."""
    arrays = {}
    for file, entry in manifest.files.items():
        name = file.removesuffix(".npy")
        array = mapped(directory, file, as_dict(entry), verify=verify)
        # Columns of tables may have numbers that are not finite.
        is_column = name.partition("/")[0] in manifest.columns
        if not is_column and (verify or array.nbytes <= VERIFIED):
            check_finite({name.removeprefix("arrays/"): array})
        arrays[name] = array
    return arrays


def _blocks(
    arrays: Mapping[str, NDArray[Any]], manifest: Manifest, ids: Ids
) -> GroupedFeatures | None:
    """Return the features of users or items, if the model has any."""
    side = cast("Side", ids.kind)
    if side not in manifest.features:
        return None
    from scipy.sparse import csr_array

    # Imported here, because it needs scikit-learn and few models have features.
    from recsys.data.encoder import EncoderState, FeatureBlocks, FeatureEncoder

    levels = saved_table(arrays, manifest, f"{side}_levels")
    if (
        levels.schema != {"level": pl.String, "weight": pl.Float64}
        or levels["weight"].has_nulls()
    ):
        raise DamageError(f"{side}_levels are not levels and their weights")
    folder = f"{side}_features/"
    names = [name for name in arrays if name.startswith(folder)]
    of_side = {name.removeprefix(folder): arrays[name] for name in names}
    entries = [as_dict(entry) for entry in manifest.features[side]]
    encoder = FeatureEncoder.from_state(side, EncoderState(entries, levels, of_side))
    indptr, indices, data = (listed(arrays, f"{folder}{name}") for name in _ROWS)
    check_rows(f"{folder}indptr", indptr, indices, len(encoder.names))
    if (
        len(indptr) != len(ids) + 1
        or data.shape != indices.shape
        or data.dtype != np.float32
    ):
        raise DamageError(f"the {side} features are not a matrix of {len(ids)} rows")
    if not levels["weight"].is_finite().all():
        raise DamageError(f"the {side} features are not all finite")
    shape = len(ids), len(encoder.names)
    return FeatureBlocks(csr_array((data, indices, indptr), shape=shape), encoder)
