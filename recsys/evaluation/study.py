"""A study on disk: what is tuned, and the trials so far, so that an interrupted one goes on.

::

    STUDY/
        study.json      what is tuned on what: data, model, metric, ranges, seed
        trials.jsonl    one line per finished trial

A trial is appended and flushed to the disk when it ends. A line that was cut off by a sudden end is
forgotten, and its trial is run again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from recsys.errors import DataError
from recsys.evaluation.sampling import Trial

__all__ = ["MANIFEST", "TRIALS", "Study", "open_study"]

MANIFEST = "study.json"
TRIALS = "trials.jsonl"

_FORMAT = {"format": "recsys-study", "format_version": 1}
_CALLED = {
    "fingerprint": "other training data",
    "model": "another model",
    "metric": "another metric",
    "ranges": "other ranges",
    "fixed": "other fixed parameters",
    "validation": "another validation part",
    "seed": "another seed",
}


class Study:
    """The trials so far; `add` keeps one more, on disk if there is a file."""

    def __init__(self, trials: list[Trial], file: IO[bytes] | None) -> None:
        self.trials = trials
        self._file = file

    def add(self, trial: Trial) -> None:
        """Keep a finished trial."""
        if self._file is not None:
            self._file.write(json.dumps(asdict(trial)).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        self.trials.append(trial)


@contextmanager
def open_study(path: str | Path | None, what: Mapping[str, Any]) -> Iterator[Study]:
    """Open the study in the directory `path`, or begin one; without a path nothing is kept.

    Parameters
    ----------
    path : str or Path, optional
    what : mapping
        What is tuned on what, as JSON can hold it: the keys of `_CALLED`. A study of something
        else is refused.

    Raises
    ------
    DataError
        If `path` is something else, the study is one of something else, it is damaged, or another
        process is at work on it.
    """
    if path is None:
        yield Study([], None)
        return
    directory = Path(path)
    _begin(directory, dict(what))
    with (directory / TRIALS).open("a+b") as file:
        _lock(file, directory)
        yield Study(_read(file, directory, set(what["ranges"])), file)


def _begin(directory: Path, what: dict[str, Any]) -> None:
    """Write study.json, or compare the one that is there."""
    file = directory / MANIFEST
    for each in (file, directory / TRIALS):
        if each.exists() and not each.is_file():
            raise DataError(f"{each} is not a file; choose another directory.")
    if not file.exists():
        _check_free(directory)
        directory.mkdir(exist_ok=True)
        try:
            _write(directory, what)
        except BaseException:  # nothing is left of a study that could not begin
            with suppress(OSError):
                directory.rmdir()
            raise
        return
    try:
        known = json.loads(file.read_bytes())
        is_ours = known["format"] == _FORMAT["format"] and "format_version" in known
    except (ValueError, KeyError, TypeError, RecursionError):
        is_ours = False
    if not is_ours:
        raise DataError(f"{file} is not what `recsys tune` writes; choose another directory.")
    if known["format_version"] != _FORMAT["format_version"]:
        raise DataError(
            f"The study {directory} has format version {known['format_version']}, and this "
            f"version of recsys knows {_FORMAT['format_version']}; choose another directory."
        )
    _compare(directory, known, json.loads(json.dumps(what)))


def _write(directory: Path, what: dict[str, Any]) -> None:
    """Write study.json beside its place, and rename it."""
    beside = directory / f".{MANIFEST}.tmp"
    try:
        with beside.open("wb") as stream:
            stream.write(json.dumps(_FORMAT | what, indent=2).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(directory / MANIFEST)
    finally:
        beside.unlink(missing_ok=True)


def _check_free(directory: Path) -> None:
    """Refuse a place where no study can begin; one that was killed while it began is free."""
    if directory.exists() and not directory.is_dir():
        raise DataError(f"{directory} is a file; a study is a directory.")
    if not directory.parent.is_dir():
        raise DataError(f"Cannot write {directory}: there is no directory {directory.parent}.")
    others = [each.name for each in directory.iterdir()] if directory.exists() else []
    if set(others) - {f".{MANIFEST}.tmp"}:
        raise DataError(
            f"{directory} exists and is not a study; choose a new directory or a study."
        )


def _compare(directory: Path, known: Mapping[str, Any], what: Mapping[str, Any]) -> None:
    different = [called for key, called in _CALLED.items() if known.get(key) != what[key]]
    if different:
        raise DataError(
            f"The study {directory} is of {' and '.join(different)}; choose another directory, "
            "or ask for the same as before."
        )


def _lock(file: IO[bytes], directory: Path) -> None:
    """Keep other processes out until the file is closed, however this one ends."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataError(
            f"Another process is at work on the study {directory}; wait for it to end."
        ) from None


def _read(file: IO[bytes], directory: Path, names: set[str]) -> list[Trial]:
    """Read the trials, and cut off a line that was not finished."""
    file.seek(0)
    text = file.read()
    whole = text.rfind(b"\n") + 1
    file.truncate(whole)
    lines = text[:whole].splitlines()
    return [_trial(line, number, directory, names) for number, line in enumerate(lines)]


def _trial(line: bytes, number: int, directory: Path, names: set[str]) -> Trial:
    try:
        found = json.loads(line)
        trial = Trial(**found | {"curve": tuple(found["curve"])})
        is_next = trial.number == number and _is_sound(trial, names)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        is_next = False
    if not is_next:
        raise DataError(
            f"The study {directory} is damaged: line {number + 1} of {TRIALS} is not trial "
            f"{number}; choose another directory."
        )
    return trial


def _is_sound(trial: Trial, names: set[str]) -> bool:
    """Whether a trial has values for the parameters `names`, and a result, as `Trial` says."""
    return (
        set(trial.parameters) == names
        and all(map(_is_number, trial.parameters.values()))
        and trial.state in ("complete", "pruned")
        and (trial.value is None if trial.state == "pruned" else _is_number(trial.value))
        and (trial.sweeps is None or (type(trial.sweeps) is int and trial.sweeps > 0))
        and all(map(_is_number, (*trial.curve, trial.seconds)))
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < float("inf")
