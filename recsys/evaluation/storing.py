"""Splits as folders: the parts as files that anything can read, and how they were made.

::

    DIR/train.csv  DIR/test.csv  [DIR/history.csv]  DIR/split.json
    DIR/fold-1/...  DIR/fold-2/...                  DIR/split.json    several folds

Any folder with a train and a test file is a split as well, such as those of LightGCN (train.txt and
test.txt); without split.json, nothing is known of how it was made.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.evaluation.splits import Split, fingerprint, split_from_pair

__all__ = [
    "MANIFEST",
    "check_target",
    "is_split",
    "read_pair",
    "read_split",
    "save_split",
    "split_files",
]

MANIFEST = "split.json"
FORMAT = "recsys-split"
FORMAT_VERSION = 1
_PARTS = ("train", "test", "history")
_OURS = re.compile(r"(train|test|history)\.(csv|parquet)|fold-[0-9]{1,9}")
_NUMBERS = {  # that the description of a split is made of
    "random": ("test_fraction", "random_state"),
    "per-user": ("test_fraction", "random_state"),
    "leave-last": ("k",),
    "time": ("cut",),
    "k-fold": ("fold", "folds", "random_state"),
    "users": ("test_fraction", "user_fraction", "random_state"),
}
_LARGEST = 2**128  # number that there is any use for: a seed
_SUFFIXES = ("csv", "tsv", "txt", "dat", "jsonl", "parquet")

Read = Callable[[Path], Ratings]


def save_split(
    splits: Split | Sequence[Split],
    path: str | Path,
    *,
    form: Literal["csv", "parquet"] = "csv",
    overwrite: bool = False,
) -> None:
    """Save a split, or several folds, in a new folder; complete or not at all.

    Parameters
    ----------
    splits : Split or sequence of Split
    path : str or Path
    form : {"csv", "parquet"}
        Of the files.
    overwrite : bool
        Replace a saved split there; never anything else.

    Raises
    ------
    DataError
        If the parts overlap, something else is at `path`, or it cannot be written.
    """
    import polars as pl

    from recsys.storage import staged

    target = Path(os.path.realpath(path))
    check_target(target, overwrite=overwrite)
    try:
        with staged(target) as folder:
            if isinstance(splits, Split):
                _write(splits, folder, form)
                return
            names = [f"fold-{number}" for number in range(1, len(splits) + 1)]
            for name, split in zip(names, splits, strict=True):
                (folder / name).mkdir()
                _write(split, folder / name, form)
            _write_manifest(folder, {"method": "k-fold", "folds": names})
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = str(error)
        raise DataError(f"The split cannot be saved in {path}: {reason}.") from error


def check_target(target: Path, *, overwrite: bool) -> None:
    """Refuse a place that cannot be written or must not be replaced.

    Raises
    ------
    DataError
        If there is something at `target`, and it is no saved split or is not to be replaced.
    """
    if not target.parent.is_dir():
        raise DataError(
            f"The split cannot be saved in {target}: there is no directory {target.parent}."
        )
    if not target.exists():
        return
    manifest = _manifest(target)
    if manifest is None:
        raise DataError(
            f"{target} exists and is not a saved split, so it is not replaced; choose another path."
        )
    if not overwrite:
        raise DataError(
            f"There is a saved split in {target} already; choose another path, or overwrite it "
            "(--force)."
        )
    own = {MANIFEST, *_names(manifest, "files"), *_names(manifest, "folds")}
    foreign = sorted({entry.name for entry in target.iterdir()} - own)
    if foreign:
        raise DataError(
            f"{target} holds other files beside the split ({', '.join(foreign[:3])}), so it is "
            "not replaced; move them or choose another path."
        )


def split_files(path: str | Path) -> dict[str, Path] | None:
    """Return the train, test and history files of a folder, or None if it is no split."""
    folder = Path(path)
    if not folder.is_dir():
        return None
    files: dict[str, Path] = {}
    for entry in sorted(folder.iterdir()):
        stem, _, suffix = entry.name.partition(".")
        plain = suffix.removesuffix(".gz").removesuffix(".zst")
        if stem in _PARTS and plain in _SUFFIXES and stem not in files:
            files[stem] = entry
    return files if {"train", "test"} <= set(files) else None


def is_split(path: str | Path) -> bool:
    """Return whether `path` is a folder with a split, or with folds."""
    return split_files(path) is not None or "folds" in (_manifest(Path(path)) or {})


def read_split(path: str | Path, read: Read | None = None) -> Split | list[Split]:
    """Read the split in a folder, or the folds of one.

    Parameters
    ----------
    path : str or Path
    read : callable, optional
        Reads the ratings of a file; `recsys.readers.read_ratings`, if not given.

    Raises
    ------
    DataError
        If there is no split, the parts overlap, test ratings are older than the cut or training
        ratings newer, or the files are not those that the folder's split.json describes.
    """
    manifest = _manifest(Path(path)) or {}
    if "folds" in manifest:
        names = _names(manifest, "folds")
        if not names:
            raise DataError(f"{Path(path) / MANIFEST} is damaged: it does not name the folds.")
        return [_read_one(Path(path) / name, read) for name in names]
    return _read_one(Path(path), read)


def read_pair(
    train: str | Path, test: str | Path, read: Read | None = None, history: Path | None = None
) -> Split:
    """Read a split of two files; if they are those of a saved split, it is checked to be as saved.

    Parameters
    ----------
    train, test : str or Path
    read : callable, optional
        As in `read_split`.
    history : Path, optional
        What else the test users have rated, if they are not in `train`.

    Raises
    ------
    DataError
        As `read_split`.
    """
    read = read or _plain_read
    folder = Path(train).parent
    files = split_files(folder) or {}
    manifest = _manifest(folder)
    if manifest is None or (files.get("train"), files.get("test")) != (Path(train), Path(test)):
        manifest = {}
    method, parameters = _how(manifest, folder)
    history = history or (files.get("history") if manifest else None)
    split = split_from_pair(
        read(Path(train)),
        read(Path(test)),
        history=None if history is None else read(history),
        method=method,
        parameters=parameters,
    )
    if manifest and manifest.get("fingerprint") != fingerprint(*split.parts):
        raise DataError(
            f"The files in {folder} are not those that its {MANIFEST} describes; make the split "
            f"again, or remove {MANIFEST} if they were changed on purpose."
        )
    return split


def _how(manifest: dict[str, Any], folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the method of a split and its parameters."""
    method, parameters = manifest.get("method", "given"), manifest.get("parameters", {})
    if isinstance(method, str) and isinstance(parameters, dict):
        needed = (*_NUMBERS.get(method, ()), *({"cut"} & parameters.keys()))
        if all(_is_number(parameters.get(name)) for name in needed):
            return method, parameters
    raise DataError(f"{folder / MANIFEST} is damaged: it does not say how the split was made.")


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < _LARGEST  # type: ignore[arg-type]


def _names(manifest: dict[str, Any], entry: str) -> list[str]:
    """Return names of files or folds; what is no name of ours is left out."""
    names = manifest.get(entry)
    if not isinstance(names, list):
        return []
    return [name for name in names if isinstance(name, str) and _OURS.fullmatch(name)]


def _read_one(folder: Path, read: Read | None) -> Split:
    files = split_files(folder)
    if files is None:
        raise DataError(
            f"{folder} is no split: it needs a train and a test file, such as train.csv and "
            "test.csv."
        )
    return read_pair(files["train"], files["test"], read, files.get("history"))


def _plain_read(path: Path) -> Ratings:
    from recsys.readers import read_ratings

    return read_ratings(path)


def _write(split: Split, folder: Path, form: str) -> None:
    split.check()
    for name, part in _named_parts(split):
        frame = part.to_frame()
        file = folder / f"{name}.{form}"
        frame.write_csv(file) if form == "csv" else frame.write_parquet(file)
    files = [f"{name}.{form}" for name, _ in _named_parts(split)]
    document = {
        "method": split.method,
        "parameters": split.parameters,
        "description": split.description,
        "fingerprint": fingerprint(*split.parts),
        "counts": {f"{name}_ratings": part.n_ratings for name, part in _named_parts(split)}
        | {name: getattr(split, name) for name in ("new_users", "new_items", "new_ratings")},
        "files": files,
    }
    _write_manifest(folder, document)


def _write_manifest(folder: Path, document: dict[str, Any]) -> None:
    from recsys import __version__

    head = {"format": FORMAT, "format_version": FORMAT_VERSION, "package_version": __version__}
    text = json.dumps(head | document, indent=2, ensure_ascii=False)
    (folder / MANIFEST).write_text(f"{text}\n", encoding="utf-8")


def _named_parts(split: Split) -> Iterator[tuple[str, Ratings]]:
    return zip(_PARTS, split.parts, strict=False)


def _manifest(folder: Path) -> dict[str, Any] | None:
    """Return what split.json says, or None if there is none of ours."""
    if not (folder / MANIFEST).is_file():
        return None
    try:
        document = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        return None
    return document
