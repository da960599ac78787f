"""Saved models: directories of JSON and arrays."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import polars as pl
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from recsys.atomic import old_one_of, put_in_place, unfinished_directory
from recsys.data.ids import Ids
from recsys.data.ratings import Ratings
from recsys.errors import DataError, ModelFileError
from recsys.models.base import Model
from recsys.models.registry import MODELS, model_class

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST",
    "MODEL",
    "SPARK_FORMAT",
    "DamageError",
    "FileEntry",
    "Form",
    "Manifest",
    "Reading",
    "Saved",
    "Writer",
    "check_files",
    "format_of",
    "is_saved_model",
    "is_small",
    "load_model",
    "read_array",
    "read_manifest",
    "read_parquet",
    "save_model",
    "sha256_of",
    "staged",
    "to_json",
    "writing",
]

MANIFEST = "model.json"
FORMAT_VERSION = 1
SPARK_FORMAT = "recsys-spark-model"  # of what `recsys.spark` writes, and one machine may open

_LONGEST = 64 * 2**20  # bytes of model.json
_SHA256 = re.compile(r"[0-9a-f]{64}")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of saved directory: what its model.json says, and what messages call it.

    Attributes
    ----------
    format : str
        The entry ``format`` of model.json.
    noun : str
        Such as "saved model".
    maker : str
        The command that makes one.
    files : Pattern
        Of the names that its files may have.
    check_training : callable
        Given the training summary, raises `DamageError` if an entry that is needed is not there.
    """

    format: str
    noun: str
    maker: str
    files: re.Pattern[str]
    check_training: Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a saved model.

    Attributes
    ----------
    sha256 : str
        Checksum, in hexadecimal digits.
    bytes : int
        Size.
    dtype : str or None
        Of an array, as NumPy writes it: ``<f4`` is float32.
    shape : tuple of int, or None
        Of an array.
    """

    sha256: str
    bytes: int
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of model.json.

    Attributes
    ----------
    package_version : str
        Version of this package that wrote the model.
    model : str
        Name in `recsys.models.registry.MODELS`.
    parameters : dict
        Parameters of the model.
    training : dict
        Summary of the fit: users, items, ratings, implicit, rating_min, rating_max, seconds,
        sweeps, train_rmse, validation_rmse.
    versions : dict
        Versions of Python, of libraries and of the kernels at the time of saving.
    files : dict of str to FileEntry
        By path within the directory.
    """

    package_version: str
    model: str
    parameters: dict[str, Any]
    training: dict[str, Any]
    versions: dict[str, Any]
    files: dict[str, FileEntry]


class DamageError(Exception):
    """What is wrong with a saved model, as the end of a sentence."""


class Reading:
    """Turn whatever is wrong while a saved model is read into one `ModelFileError`."""

    def __init__(self, path: str | Path, form: Form | None = None) -> None:
        self._path = path
        self._noun = (form or MODEL).noun

    def __enter__(self) -> None:
        """Begin to read."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise the error that the caller is to see."""
        if isinstance(error, DamageError):
            raise ModelFileError(f"The {self._noun} {self._path} is damaged: {error}.") from None
        if isinstance(error, OSError):
            reason = error.strerror or type(error).__name__
            raise ModelFileError(
                f"The {self._noun} {self._path} cannot be read: {reason}."
            ) from error


def read_manifest(path: str | Path, form: Form | None = None) -> Manifest:
    """Read and check the model.json of the saved model (or other form) in the directory `path`.

    Raises
    ------
    ModelFileError
        If there is no saved model, or it is damaged, or of a newer format than this version of
        the package knows.
    """
    form = form or MODEL
    file = Path(path) / MANIFEST
    with Reading(path, form):
        if not file.is_file():
            raise ModelFileError(_why_none(Path(path), form))
        document = _object(_contents(file))
        if document.get("format") != form.format:
            raise ModelFileError(_why_other(Path(path), document.get("format"), form))
        _refuse_newer(path, document, form)
        return _parse(document, form)


def _contents(file: Path) -> bytes:
    """Read a file that is one, and not a pipe or a device that never ends, if it is not absurd."""
    if not file.is_file():
        raise DamageError(f"{MANIFEST} is not a file")
    with file.open("rb") as stream:
        text = stream.read(_LONGEST + 1)
    if len(text) > _LONGEST:
        raise DamageError(f"{MANIFEST} has more than {_LONGEST:,} bytes")
    return text


def is_saved_model(directory: Path, form: Form | None = None) -> bool:
    """Whether `directory` has the model.json of a saved model, of any version, damaged or not."""
    return format_of(directory) == (form or MODEL).format


def format_of(directory: Path) -> str | None:
    """Return the format that the model.json in `directory` states, None if there is none."""
    try:
        document = _object(_contents(directory / MANIFEST))
    except (OSError, DamageError):
        return None
    return str(document.get("format"))


def to_json(manifest: Manifest, form: Form | None = None) -> bytes:
    """Return the contents of model.json, with a checksum of itself.

    Raises
    ------
    DataError
        If a parameter is nothing that JSON can hold.
    """
    head = {"format": (form or MODEL).format, "format_version": FORMAT_VERSION}
    document = head | asdict(manifest)
    plain = json.loads(json.dumps(document, default=_plain))
    return json.dumps(plain | {"checksum": _checksum(plain)}, indent=2).encode() + b"\n"


def _plain(value: Any) -> Any:
    """Return a NumPy scalar as a Python number."""
    if isinstance(value, np.generic):
        return value.item()
    raise DataError(f"A model can be saved if its parameters are numbers or text; got {value!r}.")


def _checksum(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object, whatever its layout and without its own checksum."""
    rest = {key: value for key, value in document.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _why_none(path: Path, form: Form) -> str:
    if path.is_dir():
        return f"{path} is not a {form.noun}: it has no {MANIFEST}."
    if path.exists():
        return f"{path} is not a {form.noun}: it is a file, and a {form.noun} is a directory."
    old = old_one_of(path)
    if old is not None:
        return (
            f"There is no {form.noun} {path}: a process was killed while it replaced it; the old "
            f"one is {old}, rename it to use it."
        )
    from difflib import get_close_matches

    around = path.parent.iterdir() if path.parent.is_dir() else ()
    models = [each.name for each in around if (each / MANIFEST).is_file()]
    near = get_close_matches(path.name, models, n=1, cutoff=0.5)
    hint = f"did you mean {path.with_name(near[0])}?" if near else f"`{form.maker}` makes one."
    return f"There is no {form.noun} {path}; {hint}"


def _why_other(path: Path, found: object, form: Form) -> str:
    """Say what a directory is instead of a `form`, and which command takes it."""
    nouns = {
        "recsys-model": "a saved model of ratings; see `recsys info` and `recsys recommend`",
        "recsys-lsi": "an index of texts; see `recsys lsi info` and `recsys lsi query`",
        SPARK_FORMAT: "a model that was fitted with --engine spark; see `recsys info`",
    }
    wrong = f"{path} is not a {form.noun}: "
    if isinstance(found, str) and found in nouns:
        return f"{wrong}it is {nouns[found]}."
    return f"{wrong}its {MANIFEST} does not say format {form.format!r}."


def _object(text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
        json.dumps(document)  # as deep as `_checksum` goes
    except (ValueError, RecursionError):
        raise DamageError(f"{MANIFEST} is not valid JSON") from None
    if not isinstance(document, dict):
        raise DamageError(f"{MANIFEST} is not a JSON object")
    return document


def _refuse_newer(path: str | Path, document: Mapping[str, Any], form: Form) -> None:
    version = _field(document, "format_version", int)
    if version <= FORMAT_VERSION:
        return
    needed = _field(document, "package_version", str)
    raise ModelFileError(
        f"The {form.noun} {path} has format version {version}, and this version of recsys reads "
        f"up to {FORMAT_VERSION}; install lowrank-recsys {needed} or newer."
    )


def _parse(document: Mapping[str, Any], form: Form) -> Manifest:
    if _field(document, "checksum", str) != _checksum(document):
        raise DamageError(f"the checksum of {MANIFEST} is wrong")
    manifest = Manifest(
        package_version=_field(document, "package_version", str),
        model=_field(document, "model", str),
        parameters=_field(document, "parameters", dict),
        training=_field(document, "training", dict),
        versions=_field(document, "versions", dict),
        files={
            name: _file_entry(name, document["files"], form)
            for name in _field(document, "files", dict)
        },
    )
    form.check_training(manifest.training)
    return manifest


def _check_training(training: Mapping[str, Any]) -> None:
    """Check what predictions depend on: the range of the ratings."""
    if _field(training, "implicit", bool):
        return
    for name in ("rating_min", "rating_max"):
        if not math.isfinite(_field(training, name, float)):
            raise DamageError(f"{name!r} in {MANIFEST} must be finite")


def _file_entry(name: str, files: Mapping[str, Any], form: Form) -> FileEntry:
    if not form.files.fullmatch(name):
        raise DamageError(f"{MANIFEST} names a file that a {form.noun} does not have, {name!r}")
    entry = _field(files, name, dict)
    sha256, size = _field(entry, "sha256", str), _field(entry, "bytes", int)
    if not _SHA256.fullmatch(sha256) or size < 0:
        raise DamageError(f"{MANIFEST} has no valid checksum and size for {name}")
    if not name.endswith(".npy"):
        return FileEntry(sha256, size)
    shape = _field(entry, "shape", list)
    if not all(type(length) is int and length >= 0 for length in shape):
        raise DamageError(f"{MANIFEST} has no valid shape for {name}")
    return FileEntry(sha256, size, _field(entry, "dtype", str), tuple(shape))


def _field(document: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """Return an entry of a JSON object if it is there and of the right type."""
    value = document.get(key)
    if kind is float and type(value) is int and abs(value) < 2**64:
        value = float(value)
    if type(value) is not kind:
        raise DamageError(f"{key!r} in {MANIFEST} must be of type {kind.__name__}")
    return value


MODEL = Form(
    format="recsys-model",
    noun="saved model",
    maker="recsys fit",
    files=re.compile(r"(arrays|ratings)/[A-Za-z_]\w{0,99}\.npy|(users|items)\.parquet", re.ASCII),
    check_training=_check_training,
)


class Writer:
    """Writes the files of a saved directory, the manifest last, and keeps their checksums."""

    def __init__(self, directory: Path, form: Form) -> None:
        self._directory = directory
        self._form = form
        self._entries: dict[str, FileEntry] = {}

    def array(self, name: str, array: NDArray[Any]) -> None:
        """Write ``FOLDER/NAME.npy``."""
        path = self._directory / name
        path.parent.mkdir(exist_ok=True)
        with _flushed(path) as file:
            np.save(file, array, allow_pickle=False)
        self._entries[name] = replace(_entry(path), dtype=array.dtype.str, shape=array.shape)

    def table(self, name: str, frame: pl.DataFrame) -> None:
        """Write ``NAME.parquet``."""
        with _flushed(self._directory / name) as file:
            frame.write_parquet(file)
        self._entries[name] = _entry(self._directory / name)

    def manifest(self, model: str, parameters: dict[str, Any], training: dict[str, Any]) -> None:
        """Write model.json."""
        manifest = Manifest(
            package_version=_package_version(),
            model=model,
            parameters=parameters,
            training=training,
            versions=_versions(),
            files=self._entries,
        )
        with _flushed(self._directory / MANIFEST) as file:
            file.write(to_json(manifest, self._form))


@contextmanager
def writing(path: str | Path, form: Form, own: set[str], *, overwrite: bool) -> Iterator[Writer]:
    """Yield a `Writer` of a saved directory that appears at `path` complete, or not at all.

    Parameters
    ----------
    path : str or Path
    form : Form
    own : set of str
        Names of its files and folders; a directory that holds others is not replaced.
    overwrite : bool
        Replace one of this form; any other file or directory is refused all the same.

    Raises
    ------
    ModelFileError
        If something is in the way or the disk cannot be written.
    """
    target = Path(os.path.realpath(path))
    what = form.noun.rpartition(" ")[2]
    _check_target(target, path, form, own, overwrite)
    try:
        with staged(target) as directory:
            yield Writer(directory, form)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise ModelFileError(f"The {what} cannot be saved in {path}: {reason}.") from error


def _check_target(
    target: Path, path: str | Path, form: Form, own: set[str], overwrite: bool
) -> None:
    """Refuse a place that cannot be written or must not be replaced."""
    if not target.parent.is_dir():
        raise ModelFileError(
            f"The {form.noun.rpartition(' ')[2]} cannot be saved in {path}: "
            f"there is no directory {target.parent}."
        )
    if not target.exists():
        return
    if not (target.is_dir() and is_saved_model(target, form)):
        raise ModelFileError(
            f"{path} exists and is not a {form.noun}, so it is not replaced; choose another path."
        )
    if not overwrite:
        raise ModelFileError(
            f"There is a {form.noun} in {path} already; choose another path or ask to overwrite it."
        )
    foreign = sorted({entry.name for entry in target.iterdir()} - own)
    if foreign:
        raise ModelFileError(
            f"{path} holds other files beside the {form.noun} ({', '.join(foreign[:3])}), "
            "so it is not replaced; move them or choose another path."
        )


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Yield a new directory beside `target` that takes its place, or vanishes on an exception."""
    with unfinished_directory(target) as directory:
        yield directory
        _flush_directories(directory)
        put_in_place(directory, target)
    _flush_directory(target.parent)


@contextmanager
def _flushed(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file and push it to the disk before it is closed."""
    with path.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _flush_directories(directory: Path) -> None:
    for each in (*(entry for entry in directory.iterdir() if entry.is_dir()), directory):
        _flush_directory(each)


def _flush_directory(directory: Path) -> None:
    if os.name == "nt":  # directories cannot be opened there
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _entry(path: Path) -> FileEntry:
    return FileEntry(sha256_of(path), path.stat().st_size)


def sha256_of(path: Path) -> str:
    """Return the checksum of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _package_version() -> str:
    from recsys import __version__

    return __version__


def _versions() -> dict[str, str]:
    import platform

    from lowrank.kernels import backend

    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "polars": pl.__version__,
        "kernels": str(backend()),
    }


_RATINGS_ARRAYS = ("indptr", "indices", "values")
_OWN_ENTRIES = {MANIFEST, "arrays", "ratings", "users.parquet", "items.parquet"}
_ALWAYS_VERIFIED = 2**20  # bytes of one file
_VERIFIED_TOGETHER = 64 * 2**20  # bytes of all files


@dataclass(frozen=True, slots=True)
class Saved:
    """What a saved model holds.

    Attributes
    ----------
    model : Model
        Fitted.
    ratings : Ratings
        The ratings it was fitted to, without their times.
    training : dict
        Summary of the fit.
    """

    model: Model
    ratings: Ratings
    training: dict[str, Any]


def save_model(saved: Saved, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a model to the directory `path`, which must not exist.

    At every moment there is nothing, the old model, or the whole new one at `path`.

    Parameters
    ----------
    saved : Saved
    path : str or Path
    overwrite : bool
        Replace a saved model at `path`; any other file or directory is refused all the same.

    Raises
    ------
    ModelFileError
        If something is in the way, the disk cannot be written, or the model is not one of
        `recsys.models.registry.MODELS`.
    """
    name = saved.model.name
    if name not in MODELS or model_class(name) is not type(saved.model):
        raise ModelFileError(
            f"A saved {type(saved.model).__name__} could not be loaded again, since "
            f"recsys.models.registry.MODELS does not have it as {name!r}; enter it there first."
        )
    with writing(path, MODEL, _OWN_ENTRIES, overwrite=overwrite) as writer:
        _write(saved, writer)


def load_model(path: str | Path, *, verify: bool = False) -> Saved:
    """Load a saved model; its arrays are mapped into memory, not read.

    A result of the Spark engine is read from its Parquet files instead (`recsys.spark.results`).

    Parameters
    ----------
    path : str or Path
    verify : bool
        Check all checksums, however large the files; see the module's docstring.

    Raises
    ------
    ModelFileError
        If there is no saved model at `path`, or it is damaged or too new.
    """
    if format_of(Path(path)) == SPARK_FORMAT:
        from recsys.spark.results import load_result

        return Saved(*load_result(path))
    manifest = read_manifest(path)
    if manifest.model not in MODELS:
        raise ModelFileError(
            f"The saved model {path} is of the kind {manifest.model!r}, which this version of "
            f"recsys does not know; it knows {', '.join(sorted(MODELS))}."
        )
    with Reading(path):
        return _read(Path(path), manifest, verify)


# Writing


def _write(saved: Saved, writer: Writer) -> None:
    """Write the files, model.json last."""
    for name, array in saved.model._arrays().items():
        writer.array(f"arrays/{name}.npy", array)
    for name in _RATINGS_ARRAYS:
        writer.array(f"ratings/{name}.npy", getattr(saved.ratings, name))
    for kind, frame in _tables(saved.ratings).items():
        writer.table(f"{kind}s.parquet", frame)
    writer.manifest(saved.model.name, saved.model.get_params(), saved.training)


def _tables(ratings: Ratings) -> dict[str, pl.DataFrame]:
    """Return users and items in index order, with what is known of them."""
    tables = {}
    for kind, ids, info in (
        ("user", ratings.users, ratings.user_info),
        ("item", ratings.items, ratings.item_info),
    ):
        table = ids.values.alias(kind).to_frame()
        tables[kind] = (
            table if info is None else table.join(info, on=kind, how="left", maintain_order="left")
        )
    return tables


# Reading


def _read(directory: Path, manifest: Manifest, verify: bool) -> Saved:
    check_files(directory, manifest, verify)
    ratings = _read_ratings(directory, manifest)
    arrays = {
        name.removeprefix("arrays/").removesuffix(".npy"): np.require(
            read_array(directory, name, manifest), requirements="C"
        )
        for name in manifest.files
        if name.startswith("arrays/")
    }
    try:
        model = model_class(manifest.model)._from_arrays(manifest.parameters, arrays)
    except (DataError, TypeError, ValueError) as error:
        raise DamageError(f"{error}".rstrip(".")) from None
    if (model.n_users, model.n_items) != ratings.shape:
        raise DamageError(
            f"the model has {model.n_users} users and {model.n_items} items, "
            f"its ratings have {ratings.n_users} and {ratings.n_items}"
        )
    indices = ratings.indices
    if len(indices) and not (indices.min() >= 0 and indices.max() < ratings.n_items):
        raise DamageError("ratings/indices.npy names items that there are not")
    if (verify or is_small(manifest)) and not np.isfinite(ratings.values).all():
        raise DamageError("ratings/values.npy has values that are not finite")
    return Saved(model, ratings, manifest.training)


def _read_ratings(directory: Path, manifest: Manifest) -> Ratings:
    users, user_info = _table(directory, "user", manifest)
    items, item_info = _table(directory, "item", manifest)
    indptr, indices, values = (
        read_array(directory, f"ratings/{name}.npy", manifest) for name in _RATINGS_ARRAYS
    )
    if indptr.ndim != 1 or not len(indptr) or indptr[0] != 0 or (np.diff(indptr) < 0).any():
        raise DamageError("ratings/indptr.npy does not rise from 0")
    try:
        return Ratings(
            users=users,
            items=items,
            indptr=indptr,
            indices=indices,
            values=values,
            implicit=manifest.training["implicit"],
            item_info=item_info,
            user_info=user_info,
        )
    except DataError as error:
        raise DamageError(f"{error}".rstrip(".")) from None


def check_files(directory: Path, manifest: Manifest, verify: bool) -> None:
    """Check the sizes of all files, and the checksums that the module's docstring names.

    Raises
    ------
    DamageError
        Naming the first file that is not as it was saved.
    """
    for name, entry in manifest.files.items():
        _check_file(directory / name, name, entry)
    small = is_small(manifest)
    for name, entry in manifest.files.items():
        if verify or small or entry.bytes <= _ALWAYS_VERIFIED:
            _check_sum(directory / name, name, entry)


def is_small(manifest: Manifest) -> bool:
    """Whether the files are so small together that everything in them is checked."""
    return sum(entry.bytes for entry in manifest.files.values()) <= _VERIFIED_TOGETHER


def _check_file(path: Path, name: str, entry: FileEntry) -> None:
    if not path.is_file():
        raise DamageError(f"{name} is missing")
    size = path.stat().st_size
    if size != entry.bytes:
        raise DamageError(f"{name} has {size:,} bytes instead of {entry.bytes:,}")


def _check_sum(path: Path, name: str, entry: FileEntry) -> None:
    if sha256_of(path) != entry.sha256:
        raise DamageError(f"the contents of {name} have changed since it was saved")


def _listed(manifest: Manifest, name: str) -> FileEntry:
    if name not in manifest.files:
        raise DamageError(f"{MANIFEST} does not list {name}")
    return manifest.files[name]


def read_array(directory: Path, name: str, manifest: Manifest) -> NDArray[Any]:
    """Map an array into memory.

    Raises
    ------
    DamageError
        If it is not listed, or not of the type and shape that it was saved with.
    """
    entry = _listed(manifest, name)
    try:
        array = open_memmap(directory / name, mode="r")  # never unpickles, and takes no zip
    except OSError:
        raise
    except Exception:  # a header can be wrong in many ways
        raise DamageError(f"{name} is not an array of numbers") from None
    if array.dtype.kind not in "biuf" or (array.dtype.str, array.shape) != (
        entry.dtype,
        entry.shape,
    ):
        raise DamageError(
            f"{name} must be of type {entry.dtype} and shape {entry.shape}, "
            f"not {array.dtype.str} and {array.shape}"
        )
    return np.asarray(array)


def _table(directory: Path, kind: Any, manifest: Manifest) -> tuple[Ids, pl.DataFrame | None]:
    """Read the ids of users or items, and what else is known of them."""
    name = f"{kind}s.parquet"
    try:
        table = read_parquet(directory, name, manifest)
        ids = Ids(table[kind], kind)
    except (DataError, pl.exceptions.PolarsError):
        raise DamageError(f"{name} has no column of {kind} ids") from None
    if not ids.values.equals(table[kind], check_dtypes=True):
        raise DamageError(f"the {kind} ids of {name} are not in order")
    return ids, table if table.width > 1 else None


def read_parquet(directory: Path, name: str, manifest: Manifest) -> pl.DataFrame:
    """Read a table, from memory since polars takes a path for a pattern."""
    _listed(manifest, name)
    try:
        return pl.read_parquet((directory / name).read_bytes())
    except pl.exceptions.PanicException as error:
        raise pl.exceptions.ComputeError(str(error)) from None
