"""Lines of users in logs of JSON lines, which are found and erased.

Lines are read as the reader of ratings reads them: a user may be in the column of the model, which
may be nested (``context.user.id``), in a column with a usual name, or in a list of objects; and an
id may be a number or a text. Lines that cannot be read are counted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from recsys.data.columns import usual_column
from recsys.errors import DataError
from recsys.saving.atomic import exclusive

_KEYS = ("user", "users")  # in the logs of `recsys serve`
_SUFFIXES = (".jsonl", ".ndjson", ".json", ".log")
_DEEPEST = 8  # maximum depth of nested objects
_INTEGER = re.compile(r"\s*([+-]?(?:0|[1-9][0-9]*))(?:\.0*)?\s*")
_LARGEST = 2.0**63


@dataclass
class LogSearch:
    """Lines of a log that name some users.

    Attributes
    ----------
    n_read, n_lines : int
        Numbers of all lines, and of those that name the users.
    users : set of str
        Those that are named.
    n_unreadable, first_unreadable : int
        Number of lines that cannot be read or have no user, and number of the first one.
    n_suspicious : int
        Number of unreadable lines that contain one of the ids.
    """

    n_read: int = 0
    n_lines: int = 0
    users: set[str] = field(default_factory=set)
    n_unreadable: int = 0
    first_unreadable: int = 0
    n_suspicious: int = 0

    def __str__(self) -> str:
        if not self.n_unreadable:
            return "all lines can be read"
        lines = "1 line" if self.n_unreadable == 1 else f"{self.n_unreadable:,} lines"
        sentence = f"{lines} cannot be read as events (the first is line {self.first_unreadable:,})"
        if self.n_suspicious:
            sentence += f"; {self.n_suspicious:,} of them may name these users"
        return sentence


class WantedUsers:
    """Users to find in logs.

    Parameters
    ----------
    users : collection of str
    column : str or None
        Column of the users of the model, where logs have it.
    are_integers : bool
        Whether the ids of the model are integers: then "1" and "1.0" are the user 1.

    Attributes
    ----------
    ids : list of str
        The users, each once.
    """

    def __init__(
        self,
        users: Collection[Any],
        column: str | None = None,
        *,
        are_integers: bool = False,
    ) -> None:
        self._are_integers = are_integers
        normalised = (self.plain(user) for user in users)
        self.ids = list(dict.fromkeys(user for user in normalised if user is not None))
        self._known = frozenset(self.ids)
        self._keys = {*_KEYS, column} - {None}
        # Whole words only: user 1 is not in "17". Without users, the pattern never matches.
        texts = "|".join(map(re.escape, self.ids)) or "(?!)"
        pattern = rf"(?<!\w)(?:{texts})(?!\w)"
        # Arguments that are not UTF-8 have single surrogates, which fail to encode.
        self._mention = re.compile(pattern.encode("utf-8", "surrogatepass"))

    def plain(self, value: Any) -> str | None:
        """Return the text of an id, the same for all ways to write it; None for other values."""
        if value is None or isinstance(value, bool | list | dict):
            return None
        if isinstance(value, float):
            # Integer ids have at most 64 bits.
            is_whole = value.is_integer() and abs(value) < _LARGEST
            return str(int(value)) if is_whole else str(value)
        text = str(value)
        if self._are_integers and (match := _INTEGER.fullmatch(text)):
            return str(int(match[1]))
        return text

    def named_in(self, record: Mapping[str, Any]) -> set[str] | None:
        """Return which of the users a record names, or None if it names no user at all.

        Raises
        ------
        DataError
            If two columns may have the user.
        """
        values = [value for path, value in _leaves(record, "") if path in self._keys]
        if not values:
            leaves = [*_leaves(record, "")]
            position = _user_position(tuple(path for path, _ in leaves))
            if position is None:
                return None
            values = [value for path, value in leaves if path == leaves[position][0]]
        ids = (self.plain(value) for value in values)
        return {user for user in ids if user in self._known}

    def may_be_in(self, line: bytes) -> bool:
        """Return whether a line that cannot be read contains one of the ids."""
        return self._mention.search(line) is not None


def _leaves(
    value: Any,
    path: str,
    depth: int = 0,
) -> Iterator[tuple[str, Any]]:
    """Yield the values in nested objects, with paths such as "context.user.id".

    Objects in lists are rows, with columns of their own, as for the reader.
    """
    if isinstance(value, dict) and depth < _DEEPEST:
        for key, nested in value.items():
            yield from _leaves(nested, f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(value, list):
        for element in value:
            is_row = isinstance(element, dict)
            yield from _leaves(element, "" if is_row else path, depth + 1)
    else:
        yield path, value


@lru_cache(maxsize=1024)
def _user_position(names: tuple[str, ...]) -> int | None:
    """Return the position of the column of users among distinct names, by its usual names."""
    distinct = [*dict.fromkeys(names)]
    position = usual_column(distinct, "user", "a line")
    return None if position is None else names.index(distinct[position])


def search_log(path: str | Path, wanted: WantedUsers) -> LogSearch:
    """Return what a log of JSON lines has of some users.

    Raises
    ------
    DataError
        If the file is missing, or its name has another suffix than JSON lines.
    """
    search = LogSearch()
    with _log(path).open("rb") as stream:
        for _ in _lines_of(stream, wanted, search):
            pass
    return search


def erase_users(path: str | Path, wanted: WantedUsers) -> LogSearch:
    """Erase the lines of some users from a log of JSON lines, and return what was found.

    Lines are overwritten with spaces in place, so that a service can continue to append to the log,
    and no data of the users stay on the disk. The log is locked, as the service does, only for the
    last lines: complete ones do not change.

    Raises
    ------
    DataError
        As in `search_log`.
    """
    file, search = _log(path), LogSearch()
    with file.open("r+b") as stream:
        _erase(stream, wanted, search, only_complete=True)
        with exclusive(file, lambda: None):
            _erase(stream, wanted, search)
        stream.flush()
        # Data that a crash would bring back are not erased.
        os.fsync(stream.fileno())
    return search


def _erase(
    stream: BinaryIO,
    wanted: WantedUsers,
    search: LogSearch,
    *,
    only_complete: bool = False,
) -> None:
    for offset, line in _lines_of(stream, wanted, search, only_complete=only_complete):
        stream.seek(offset)
        stream.write(b" " * len(line.rstrip(b"\r\n")))
        # The generator continues to read from here.
        stream.seek(offset + len(line))


def torn_lines(path: str | Path, wanted: WantedUsers) -> tuple[Path, int]:
    """Return the file with torn lines of a log, and how many of them may name some users.

    The service moves a last line that a killed process has left there.
    """
    file = Path(path).with_name(f"{Path(path).name}.torn")
    if not file.is_file():
        return file, 0
    with file.open("rb") as stream:
        return file, sum(wanted.may_be_in(line) for line in stream)


def _log(path: str | Path) -> Path:
    file = Path(path)
    if not file.is_file():
        raise DataError(f"There is no log {file}.")
    if file.suffix.lower() not in _SUFFIXES:
        raise DataError(f"{file} is not a log of JSON lines ({', '.join(_SUFFIXES)}).")
    return file


def _lines_of(
    stream: BinaryIO,
    wanted: WantedUsers,
    search: LogSearch,
    *,
    only_complete: bool = False,
) -> Iterator[tuple[int, bytes]]:
    """Yield the place of each further line that names some users, and the line.

    Lines are counted in `search`. With `only_complete`, stop before a last line without end.
    """
    offset = stream.tell()
    while line := stream.readline():
        if only_complete and not line.endswith(b"\n"):
            stream.seek(offset)
            return
        search.n_read += 1
        users = set() if not line.strip() else _named_in(line, wanted)
        if users is None:
            search.n_unreadable += 1
            search.first_unreadable = search.first_unreadable or search.n_read
            search.n_suspicious += wanted.may_be_in(line)
        elif users:
            search.n_lines += 1
            search.users |= users
            yield offset, line
        offset += len(line)


def _named_in(line: bytes, wanted: WantedUsers) -> set[str] | None:
    """Return which users a line names, or None if it cannot be read."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError, DataError):
        return wanted.named_in(msgspec.json.decode(line, type=dict[str, Any]))
    return None
