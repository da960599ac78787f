"""model.json, the table of contents of a saved model or index (see `recsys.storage`)."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from recsys.errors import DataError, ModelFileError
from recsys.leftovers import old_one_of

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
    "format_of",
    "is_saved_model",
    "read_manifest",
    "to_json",
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
        Name in `recsys.models.MODELS`.
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
    version = _entry(document, "format_version", int)
    if version <= FORMAT_VERSION:
        return
    needed = _entry(document, "package_version", str)
    raise ModelFileError(
        f"The {form.noun} {path} has format version {version}, and this version of recsys reads "
        f"up to {FORMAT_VERSION}; install lowrank-recsys {needed} or newer."
    )


def _parse(document: Mapping[str, Any], form: Form) -> Manifest:
    if _entry(document, "checksum", str) != _checksum(document):
        raise DamageError(f"the checksum of {MANIFEST} is wrong")
    manifest = Manifest(
        package_version=_entry(document, "package_version", str),
        model=_entry(document, "model", str),
        parameters=_entry(document, "parameters", dict),
        training=_entry(document, "training", dict),
        versions=_entry(document, "versions", dict),
        files={
            name: _file_entry(name, document["files"], form)
            for name in _entry(document, "files", dict)
        },
    )
    form.check_training(manifest.training)
    return manifest


def _check_training(training: Mapping[str, Any]) -> None:
    """Check what predictions depend on: the range of the ratings."""
    if _entry(training, "implicit", bool):
        return
    for name in ("rating_min", "rating_max"):
        if not math.isfinite(_entry(training, name, float)):
            raise DamageError(f"{name!r} in {MANIFEST} must be finite")


def _file_entry(name: str, files: Mapping[str, Any], form: Form) -> FileEntry:
    if not form.files.fullmatch(name):
        raise DamageError(f"{MANIFEST} names a file that a {form.noun} does not have, {name!r}")
    entry = _entry(files, name, dict)
    sha256, size = _entry(entry, "sha256", str), _entry(entry, "bytes", int)
    if not _SHA256.fullmatch(sha256) or size < 0:
        raise DamageError(f"{MANIFEST} has no valid checksum and size for {name}")
    if not name.endswith(".npy"):
        return FileEntry(sha256, size)
    shape = _entry(entry, "shape", list)
    if not all(type(length) is int and length >= 0 for length in shape):
        raise DamageError(f"{MANIFEST} has no valid shape for {name}")
    return FileEntry(sha256, size, _entry(entry, "dtype", str), tuple(shape))


def _entry(document: Mapping[str, Any], key: str, kind: type[T]) -> T:
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
