"""Logs of events and requests: the lines of some users removed from them."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import msgspec

from recsys.atomic import flush, unfinished_file
from recsys.data.columns import usual_column
from recsys.errors import DataError

_KEYS = ("user", "users")  # of the logs of `recsys serve`


def erase_users(path: str | Path, users: Collection[Any], column: str | None = None) -> int:
    """Remove the lines of some users from a log, and return how many there were.

    Lines of JSON are overwritten with spaces, in their place: a service may go on appending to the
    log, and nothing of them stays on the disk. A table of text is written anew and renamed.

    Parameters
    ----------
    path : path
        A file of JSON lines (.jsonl, .ndjson, .json, .log), or of CSV or TSV with a header.
    users : collection of ids
    column : str, optional
        Name of the column of users; by default "user", "users" or the usual names.

    Raises
    ------
    DataError
        If the file is missing, or has no column of users.
    """
    file, wanted = Path(path), {str(each) for each in users}
    if not file.is_file():
        raise DataError(f"There is no log {file}.")
    if file.suffix.lower() in (".csv", ".tsv"):
        return _rewritten(file, wanted, column)
    keys = (*_KEYS, column) if column else _KEYS
    erased, place = 0, 0
    with file.open("r+b") as stream:
        while line := stream.readline():
            if _is_of(line, wanted, keys):
                stream.seek(place)
                stream.write(b" " * len(line.rstrip(b"\r\n")))
                stream.seek(place + len(line))
                erased += 1
            place += len(line)
        stream.flush()
        os.fsync(stream.fileno())
    return erased


def _is_of(line: bytes, users: Collection[str], keys: Iterable[str]) -> bool:
    """Return whether a line of JSON names one of the users; one that is not JSON does not."""
    try:
        record = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return False
    if not isinstance(record, dict):
        return False
    for key in keys:
        value = record.get(key)
        if any(str(each) in users for each in (value if isinstance(value, list) else [value])):
            return True
    return False


def _rewritten(file: Path, users: Collection[str], column: str | None) -> int:
    """Write a table without the rows of some users."""
    erased = 0
    with (
        file.open(encoding="utf-8", newline="") as source,
        unfinished_file(file.resolve()) as (new, stream),
    ):
        form = csv.excel_tab if file.suffix.lower() == ".tsv" else csv.excel
        rows = csv.reader(source, form)
        header = next(rows, [])
        place = usual_column(header, "user", str(file)) if column not in header else None
        place = header.index(column) if column in header else place
        if place is None:
            raise DataError(f"{file} has no column of users; its columns are {', '.join(header)}.")
        with new.open("w", encoding="utf-8", newline="") as target:
            writer = csv.writer(target, form, lineterminator="\n")
            writer.writerow(header)
            for row in rows:
                if len(row) > place and row[place] in users:
                    erased += 1
                else:
                    writer.writerow(row)
        stream.close()
        flush(new)
        shutil.copymode(file, new)
        if erased:
            new.replace(file.resolve())
    return erased
