"""JSON lines: one object per line, read by polars, and line by line where something is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import polars as pl

from recsys.data.frames import rating_problem
from recsys.errors import DataError
from recsys.readers.layout import Request, Roles, choose_columns
from recsys.readers.sources import DataFile
from recsys.readers.table import RawRatings, decoded_lines, describe_roles, without_foreign_time

__all__ = ["read_jsonl"]

_SAMPLE = 100
_GLOB = frozenset("*?[")
_NOUNS = {"user": "user id", "item": "item id", "rating": "rating", "timestamp": "time"}


def read_jsonl(data: DataFile, request: Request) -> RawRatings:
    """Read a file of JSON objects, one per line; keys are columns.

    Raises
    ------
    DataError
        Naming file and line, if a line is no JSON object, an id is missing, a rating is not a
        finite number, or the text is not UTF-8; also if columns are missing or ambiguous.
    """
    sample = [fields for _, fields in islice(_objects(data), _SAMPLE)]
    names = list(dict.fromkeys(name for fields in sample for name in fields))
    roles = choose_columns(names, request, data.name)
    times = (
        [] if roles.timestamp is None else [fields.get(names[roles.timestamp]) for fields in sample]
    )
    roles, remarks = without_foreign_time(roles, names, times, request)
    columns = _read_fast(data, names, roles, sample)
    if columns is None:
        columns = _read_carefully(data, names, roles)

    def place(row: int) -> str:
        line = next(islice(_objects(data), row, None))[0]
        return f"{data.name}, line {line}"

    said = ["JSON lines", describe_roles(roles, names, remarks)]
    return RawRatings(columns, ", ".join(said), place)


def _objects(data: DataFile) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the object of each line that is not blank."""
    for number, line in enumerate(decoded_lines(data.path, data.name), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except json.JSONDecodeError as error:
            where = f"column {error.colno}: {error.msg.lower()}"
            raise DataError(f"{data.name}, line {number}: not JSON ({where}).") from None
        except (ValueError, RecursionError):  # thousands of digits, or of brackets
            shown = line.strip()[:40]
            raise DataError(
                f"{data.name}, line {number}: a number is too long or brackets are nested too "
                f"deeply; got {shown!r}."
            ) from None
        if not isinstance(fields, dict):
            shown = line.strip()[:40]
            raise DataError(f"{data.name}, line {number}: expected a JSON object; got {shown!r}.")
        yield number, fields


def _read_fast(
    data: DataFile, names: list[str], roles: Roles, sample: list[dict[str, Any]]
) -> dict[str, pl.Series] | None:
    """Read with polars by the types of the sample; None if it fails or anything is null."""
    if _GLOB.intersection(str(data.path)):
        return None  # scan_ndjson would take the name for a pattern, and cannot be told not to
    schema = {}
    for role, place in roles.items():
        dtype = _dtype_of(role, {type(fields.get(names[place])) for fields in sample})
        if dtype is None:
            return None
        schema[names[place]] = dtype
    try:
        frame = pl.scan_ndjson(data.path, schema=schema).collect(engine="streaming")
    except pl.exceptions.PolarsError:
        return None
    columns = {role: frame[names[place]] for role, place in roles.items()}
    return None if any(column.null_count() for column in columns.values()) else columns


def _dtype_of(role: str, types: set[type]) -> pl.DataType | None:
    """Return the dtype of a column whose sampled values have these types, if polars can take it."""
    if types <= {int, float} and role == "rating":
        return pl.Float64()
    if types == {int}:
        return pl.Int64()
    return pl.String() if types == {str} and role != "rating" else None


def _read_carefully(data: DataFile, names: list[str], roles: Roles) -> dict[str, pl.Series]:
    """Read in Python, where each value is looked at."""
    rows = (_checked(data, line, fields, names, roles) for line, fields in _objects(data))
    columns = list(zip(*rows, strict=True))
    return {
        role: _series(role, values)
        for (role, _), values in zip(roles.items(), columns, strict=True)
    }


def _checked(
    data: DataFile, line: int, fields: dict[str, Any], names: list[str], roles: Roles
) -> list[int | float | str]:
    """Return the values that play a role; raise at the first that cannot."""
    values: list[int | float | str] = []
    for role, place in roles.items():
        value: Any = fields.get(names[place])
        problem = _problem(role, value)
        if problem is not None:
            raise DataError(f"{data.name}, line {line}: {problem}")
        values.append(_plain(role, value))
    return values


def _plain(role: str, value: Any) -> int | float | str:
    """Return a rating as a float and an id such as 17.0, as pandas writes it, as an integer."""
    if role == "rating":
        return float(value)
    plain: int | float | str = value
    return int(value) if role != "timestamp" and isinstance(value, float) else plain


def _problem(role: str, value: Any) -> str | None:
    """Say what is wrong with a value in a role, or None."""
    if value is None or value == "":
        return f"the {_NOUNS[role]} is missing."
    if role == "rating":
        return rating_problem(value)
    with_floats = role == "timestamp" or (isinstance(value, float) and value.is_integer())
    kinds = (int, str, float) if with_floats else (int, str)
    if isinstance(value, bool) or not isinstance(value, kinds):
        return f"{_NOUNS[role]} {json.dumps(value)[:40]} is neither integer nor string."
    return None


def _series(role: str, values: tuple[Any, ...]) -> pl.Series:
    """Return values as one column: as they are if of one type, else ids and times as strings."""
    if role == "rating":
        return pl.Series(role, values, dtype=pl.Float64)
    if len({type(value) for value in values}) > 1:
        return pl.Series(role, [str(value) for value in values])
    try:
        return pl.Series(role, values)
    except (OverflowError, TypeError):
        return pl.Series(role, [str(value) for value in values])
