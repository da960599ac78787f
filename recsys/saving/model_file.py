"""Files of saved models and indexes: schemas of model.json, and checked opening.

Functions that check contents raise a `DamageError`. Functions that open a directory turn
it into a `ModelFileError` with the path. Nothing here needs a data frame, so that a list
for a known user is made without importing polars.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
)

import msgspec
import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import asdict as as_dict
from numpy.typing import NDArray

from recsys.data.feedback import Feedback, Kind
from recsys.data.kinds import EventRule, FeatureKind, FeatureRequest, ReadAs
from recsys.errors import DataError, ModelFileError, RecsysError
from recsys.messages import is_out_of_memory
from recsys.models.registry import MODELS, class_to_load
from recsys.provenance import FitRequest
from recsys.ranking.chance import Chances
from recsys.saving.arrays import (
    FORMAT_VERSION,
    LONGEST,
    MANIFEST,
    MODEL_FORMAT,
    VERIFIED,
    DamageError,
    SavedDirectory,
    as_path,
    check_finite,
    mapped,
)
from recsys.saving.atomic import recover

if TYPE_CHECKING:
    from recsys.models.base import Model

INDEX_FORMAT = "recsys-lsi"
SPARK_FORMAT = (
    "recsys-spark-model"  # written by `recsys.spark`, and loaded without a cluster too
)
MEASURED = "metrics.json"
_ATTEMPTS = 20  # to read a directory that is replaced again and again
_PAUSE = 0.02  # seconds before the second attempt; as many more before each further one

Scalar: TypeAlias = bool | int | float | str | None
ColumnType: TypeAlias = Literal["number", "text", "list", "date", "datetime"]
Side: TypeAlias = Literal["user", "item"]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Positive: TypeAlias = Annotated[float, Meta(gt=0)]
Arrays: TypeAlias = dict[str, NDArray[Any]]
"""Arrays of a saved directory by their names without suffix."""
# Patterns end in \Z, since $ also matches before a final line feed.
_TABLES = r"users|items|(item|user)_(table|levels)|terms|stop_words|documents"
TableName: TypeAlias = Annotated[str, Meta(pattern=rf"\A({_TABLES})\Z")]
FOLDER = rf"(arrays|ratings|events|(item|user)_features|{_TABLES})"
"""Pattern of the directories of a saved model or index."""
FileName: TypeAlias = Annotated[
    str, Meta(pattern=rf"\A{FOLDER}/[A-Za-z0-9_]{{1,100}}\.npy\Z")
]
_OTHER_FORMS = {
    MODEL_FORMAT: "it is a saved model of ratings; see `recsys info`",
    INDEX_FORMAT: "it is an index of texts; see `recsys lsi info` and `recsys lsi query`",
    SPARK_FORMAT: "it was fitted with --engine spark; see `recsys info`",
}
# As in `recsys.evaluation.saved` and `recsys.saving.splits`.
_OTHER_MANIFESTS = {
    "evaluation.json": "it is a saved evaluation; see `recsys evaluate`",
    "split.json": "it is a saved split; fit its training part with `recsys fit`",
}
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


class FeedbackEntry(Struct, frozen=True):
    """Decision on the values of ratings, with the name of their column; see `Feedback`."""

    kind: Kind
    name: str = ""
    common: float | None = None

    @classmethod
    def from_feedback(cls, feedback: Feedback | None) -> FeedbackEntry | None:
        """Describe a decision, without the range of the values."""
        if feedback is None:
            return None
        return cls(feedback.kind, feedback.name, feedback.common)


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
    is_catalogue : bool
        Whether the items without a row in the item table are not to be recommended.
    rule : EventRule
        Rule by which the ratings were made of events.
    feedback : FeedbackEntry or None
        Decision on the values, which a refit makes again.
    checksum : str
        SHA-256 of all other fields.
    created, source, fingerprint, period, parent, tag, reading, request, keep_columns, chances
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
    is_catalogue: bool = False
    rule: EventRule = EventRule()
    feedback: FeedbackEntry | None = None
    reading: dict[str, Scalar | list[float] | dict[str, float]] = {}
    request: FitRequest | None = None
    keep_columns: tuple[str, ...] = ()
    chances: Chances | None = None
    checksum: str = ""

    @property
    def version(self) -> str:
        """Name of the model and prefix of the checksum, such as "als@1f2e3d4c"."""
        return f"{self.model}@{self.checksum[:8]}"

    @property
    def size(self) -> int:
        """Total size of the files, in bytes."""
        return sum(entry.bytes for entry in self.files.values())


def read_document(path: str | Path, name: str = MANIFEST) -> dict[str, Any]:
    """Read a JSON object of at most 64 MB in a directory.

    Raises
    ------
    DamageError, OSError
    """
    with SavedDirectory(path) as directory:
        return read_document_of(directory, name)


def read_document_of(directory: SavedDirectory, name: str = MANIFEST) -> dict[str, Any]:
    """Read a JSON object of at most 64 MB in a saved directory.

    Raises
    ------
    DamageError
    """
    with directory.open(name) as stream:
        # One more byte tells a longer document from one of just this length.
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


def checked(
    document: Any,
    kind: type[S],
    name: str = MANIFEST,
) -> S:
    """Return a document as a struct, with exactly the declared types.

    Raises
    ------
    DamageError
    """
    try:
        return msgspec.convert(document, kind, strict=True)
    except (ValueError, RecursionError) as error:
        raise DamageError(f"{name}: {str(error).rstrip('.')}") from None


def is_written(path: str | Path, name: str, form: str) -> bool:
    """Return whether a directory has a JSON document of this name and format."""
    file = as_path(path) / name
    # Other programs may write a file of this name.
    return file.is_file() and form.encode() in file.read_bytes()


def read_unlinked(
    path: str | Path,
    name: str,
    kind: type[S],
    noun: str,
    command: str,
) -> S:
    """Read the JSON document of a directory of plain files, such as a split.

    Raises
    ------
    DataError
    """
    # A link may lead out of the directory.
    links = sorted(entry.name for entry in Path(path).iterdir() if entry.is_symlink())
    if links:
        raise DataError(
            f"{path} is a {noun} with a link, {links[0]}; links in it are not followed, so put "
            "the file itself there."
        )
    try:
        document = read_document(path, name)
        check_version(document, f"{noun} {path}", command, DataError)
        return checked(document, kind, name)
    except DamageError as error:
        raise DataError(f"{Path(path) / name} is damaged: {error}.") from None


def parse(document: Mapping[str, Any], training: type[Struct]) -> Manifest:
    """Return a document as a manifest, after checking its fields and checksum.

    Raises
    ------
    DamageError
    """
    manifest = checked(document, Manifest)
    # The checksum covers the checksums of all files.
    if manifest.checksum != checksum(document):
        raise DamageError(f"the checksum of {MANIFEST} is wrong")
    checked(manifest.training, training, f"training in {MANIFEST}")
    return manifest


def checksum(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object without its field "checksum", independent of layout."""
    # A field cannot cover itself.
    signed = {key: value for key, value in document.items() if key != "checksum"}
    return hashlib.sha256(_encoded(signed, order="deterministic")).hexdigest()


def to_json(manifest: Struct) -> bytes:
    """Return a document as indented JSON, with its checksum if it has that field."""
    # Plain values, as they are read again: the checksum is of these.
    document = msgspec.json.decode(_encoded(manifest))
    if "checksum" in document:
        document["checksum"] = checksum(document)
    return msgspec.json.format(_encoded(document), indent=2) + b"\n"


def _encoded(value: Any, order: Literal["deterministic"] | None = None) -> bytearray:
    """Return a value as JSON."""
    # `msgspec.json.encode` (0.22) ends the process if there is no memory for its result.
    text = bytearray()
    msgspec.json.Encoder(enc_hook=_plain, order=order).encode_into(value, text)
    return text


def _plain(value: Any) -> Any:
    # Parameters may be scalars of NumPy, which msgspec does not encode.
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


class Form(NamedTuple):
    """Kind of a saved directory, with its name in messages."""

    format: str
    noun: str
    command: str
    training: type[Struct]


MODEL = Form(MODEL_FORMAT, "saved model", "recsys fit", RatingsTraining)
INDEX = Form(INDEX_FORMAT, "saved index", "recsys lsi index", IndexTraining)


def read_manifest(path: str | Path, form: Form = MODEL) -> Manifest:
    """Read and check the model.json of a saved model or index.

    Raises
    ------
    ModelFileError
    """
    return read_directory(path, form, partial(checked_manifest, form=form))


def read_directory(
    path: str | Path,
    form: Form,
    read: Callable[[SavedDirectory], T],
) -> T:
    """Open a saved directory, and return what `read` reads there.

    If another directory has taken its place meanwhile, a failure says nothing about the new one,
    and `read` is called again.

    Raises
    ------
    ModelFileError
    """
    as_path(path)  # a number is an error of its own
    try:
        return _read_undisturbed(path, form, read)
    except ModelFileError:
        raise
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelFileError(
            f"The {form.noun} {path} cannot be read: {reason}."
        ) from error
    except _errors_of_damage() as error:
        if is_out_of_memory(error):
            raise ModelFileError(
                f"The {form.noun} {path} needs more memory than there is."
            ) from error
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ModelFileError(f"The {form.noun} {path} is damaged: {reason}.") from None


def _read_undisturbed(
    path: str | Path,
    form: Form,
    read: Callable[[SavedDirectory], T],
) -> T:
    """Return what `read` reads; call it again if the directory is replaced meanwhile."""
    for is_last in attempts():
        with _opened(path, form) as directory:
            try:
                return read(directory)
            except Exception:
                if is_last or not directory.was_replaced():
                    raise
    raise AssertionError("the last attempt returns or raises")


def attempts() -> Iterator[bool]:
    """Yield whether an attempt to read a directory is the last one; pause between them."""
    for number in range(1, _ATTEMPTS):
        yield False
        time.sleep(number * _PAUSE)
    yield True


def _errors_of_damage() -> tuple[type[BaseException], ...]:
    """Return the errors that unexpected contents cause; called only after an error."""
    from polars.exceptions import PanicException, PolarsError

    return (
        RecsysError,
        TypeError,
        ValueError,
        MemoryError,
        PolarsError,
        PanicException,
    )


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
            # A process may have been killed between the two renames of a replacement.
            if not recover(Path(os.path.realpath(place))):
                raise
            return SavedDirectory(path)
    except NotADirectoryError:
        raise ModelFileError(
            f"{place} is not a {form.noun}: it is a file, and a {form.noun} is a directory."
        ) from None
    except FileNotFoundError:
        models = [
            manifest.parent.name
            for manifest in place.parent.glob(f"[!.]*/{MANIFEST}")
            if manifest.is_file()
        ]
        near = get_close_matches(place.name, models, n=1, cutoff=0.5)
        hint = f"`{form.command}` makes one."
        if near:
            hint = f"did you mean {place.with_name(near[0])}?"
        raise ModelFileError(f"There is no {form.noun} {place}; {hint}") from None


def checked_manifest(directory: SavedDirectory, form: Form) -> Manifest:
    """Read and check the model.json of a saved directory of some form.

    Raises
    ------
    DamageError, ModelFileError
    """
    path = directory.path
    if not (directory.real / MANIFEST).is_file() and not directory.was_replaced():
        reason = f"it has no {MANIFEST}"
        for name, other_reason in _OTHER_MANIFESTS.items():
            if (directory.real / name).is_file():
                reason = other_reason
        raise ModelFileError(f"{path} is not a {form.noun}: {reason}.")
    # The form first: an index has other fields, which would look damaged.
    document = read_document_of(directory)
    format_name = document.get("format")
    if format_name != form.format:
        expected = f"its {MANIFEST} does not have the format {form.format!r}"
        reason = _OTHER_FORMS.get(str(format_name), expected)
        raise ModelFileError(f"{path} is not a {form.noun}: {reason}.")
    check_version(document, f"{form.noun} {path}", form.command, ModelFileError)
    return parse(document, form.training)


def check_version(
    document: Mapping[str, Any],
    saved: str,
    command: str,
    error: type[RecsysError],
) -> None:
    """Check the format version, before other checks that another version may not pass.

    Raises
    ------
    RecsysError
        Of the type `error`, if another format version wrote the document.
    """
    number = document.get("format_version")
    if type(number) is not int or number == FORMAT_VERSION:
        return
    writer = f"lowrank-recsys {document.get('package_version')}"
    remedy = f"`{command}` writes a new one"
    # Older models are fitted again, newer ones need a newer program.
    if number > FORMAT_VERSION:
        remedy = f"install {writer} or newer"
    raise error(
        f"The {saved} was written by {writer} with format version {number}, and this "
        f"version of recsys reads {FORMAT_VERSION}; {remedy}."
    )


def format_of(path: str | Path) -> str | None:
    """Return the format in the model.json of a directory, or None without one."""
    try:
        return str(read_document(path).get("format"))
    except (OSError, DamageError):
        return None


class OpenedModel(NamedTuple):
    """A fitted model with the description and the arrays of its directory."""

    manifest: Manifest
    arrays: Arrays
    model: Model


def open_model(path: str | Path) -> OpenedModel:
    """Open a saved model, without its ratings and tables.

    Raises
    ------
    ModelFileError
    """
    return read_directory(path, MODEL, opened_model)


def opened_model(directory: SavedDirectory, *, verify: bool = False) -> OpenedModel:
    """Return the model in a saved directory.

    Raises
    ------
    DamageError, ModelFileError
    """
    manifest = checked_manifest(directory, MODEL)
    classes = [_class_of(name, directory.path) for name in _named_models(manifest)]
    training = manifest.training
    grades = training["rating_min"], training["rating_max"]
    if not training["implicit"] and None in grades:
        raise DamageError(f"rating_min and rating_max in {MANIFEST} must be numbers")
    arrays = mapped_arrays(directory, manifest, verify=verify)
    folder = "arrays/"
    fitted = {
        # The kernels read rows without strides.
        name.removeprefix(folder): np.require(array, requirements="C")
        for name, array in arrays.items()
        if name.startswith(folder)
    }
    model = classes[0]._from_arrays(manifest.parameters, fitted)
    return OpenedModel(manifest, arrays, model)


def _named_models(manifest: Manifest) -> list[str]:
    """Return the name of a saved model, and the names of the members of a blend."""
    if manifest.model != "blend":
        return [manifest.model]
    members = str(manifest.parameters.get("members", "")).split(",")
    return [manifest.model, *(name.strip() for name in members if name.strip())]


def _class_of(name: str, path: str | Path) -> type[Model]:
    """Return the class of a saved model that may be loaded."""
    loaded = class_to_load(name)
    if loaded is None:
        raise ModelFileError(
            f"The saved model {path} is of the kind {name!r}, which this version of recsys does "
            f"not know; it knows {', '.join(sorted(MODELS))}. The class of a model of your own "
            "must be named to load it: Recommender.load(path, models=[MyModel]), or "
            "--model-class own.py::MyModel."
        )
    return loaded


def mapped_arrays(
    directory: SavedDirectory,
    manifest: Manifest,
    *,
    verify: bool,
) -> Arrays:
    """Map all arrays into memory, by names without suffix, after checking files and values."""
    arrays: Arrays = {}
    for file, entry in manifest.files.items():
        name = file.removesuffix(".npy")
        array = mapped(directory, file, as_dict(entry), verify=verify)
        # Columns of tables may have numbers that are not finite.
        is_column = name.partition("/")[0] in manifest.columns
        if not is_column and (verify or array.nbytes <= VERIFIED):
            check_finite({name.removeprefix("arrays/"): array})
        arrays[name] = array
    return arrays
