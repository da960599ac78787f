"""Lists of users or items, and histories of new users, from files."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import polars as pl

from recsys.data.columns import Request, usual_column
from recsys.data.ids import (
    MISSING_IDS,
    Ids,
    as_id_series,
    id_problem,
    integers_if_whole,
    is_bad_id,
)
from recsys.data.ratings import build_ratings
from recsys.data.rows import RowRules, Rows, check_as_of, prepared
from recsys.errors import DataError
from recsys.readers import read_frame, read_raw
from recsys.readers.formats import parquet_columns
from recsys.readers.sources import DataFile, NoRowsError, open_data


def read_ids(
    path: str,
    kind: str,
    column: str | None = None,
) -> list[int] | list[str]:
    """Read a list of ids of "user" or "item" kind; "-" is standard input.

    The file is text with one id per line, or a JSON array of ids; CSV or TSV with a header that has
    a column for `kind`; or JSON lines, Parquet, a workbook or a table of a database with such a
    column, or a single one. The `column` is the one of this name, if it is there, else one of the
    usual names.

    Raises
    ------
    DataError
        If the file is missing or not text, or has no ids or no column for them.
    """
    with open_data(path) as data:
        return _listed_ids(data, kind, column)


def read_block(path: str, request: Request) -> pl.DataFrame:
    """Read items to block for all users, or pairs if there is a column of users."""
    requested = request.columns
    # An empty file blocks nothing, which a nightly job need not treat as an error.
    with suppress(NoRowsError), open_data(path, request.options) as data:
        names, _ = _first_row(data.parts[0] if data.parts else data)
        user = _column_of(names, "user", requested.get("user"))
        item = _column_of(names, "item", requested.get("item"))
        if len(names) > 1 and user and item:
            request = request.changed(user=user, item=item, implicit=True)
            columns = read_raw(data, request).plain().columns
            return pl.DataFrame({"user": columns["user"], "item": columns["item"]})
        ids = _listed_ids(data, "item", requested.get("item"))
        return pl.DataFrame([pl.Series("item", ids)])
    return pl.DataFrame(schema={"item": pl.String})


def _listed_ids(
    data: DataFile,
    kind: str,
    requested: str | None,
) -> list[Any]:
    """Return the ids in all files."""
    ids = []
    for part in data.parts or (data,):
        ids += _ids_of(part, kind, requested)
    if not ids:
        raise NoRowsError(f"{data.name} lists no {kind}s; one id per line is expected.")
    return ids


def _ids_of(
    data: DataFile,
    kind: str,
    requested: str | None,
) -> list[Any]:
    """Return the ids in one file, without missing ones."""
    names, line = _first_row(data)
    column = _column_of(names, kind, requested)
    # A single column may also be a list without header, which no reader of tables takes.
    is_typed = data.is_parquet or line.startswith("{")
    if is_typed or (column is not None and len(names) > 1):
        frame, *_ = read_frame(data, column)
        column = _column_of(frame.columns, kind, requested)
        if column is None and frame.width == 1:
            column = frame.columns[0]
        if column is None:
            raise DataError(
                f"{data.name} has no column {kind}; it has {', '.join(frame.columns)}."
            )
        ids = frame[column]
    else:
        lines = [text.strip() for text in data.lines()]
        if lines and lines[0].startswith("["):
            with suppress(ValueError, RecursionError):
                return as_id_series(json.loads(" ".join(lines)), kind).to_list()
        if column is not None:
            lines.remove(line)  # the header
        ids = pl.Series([text.strip('"') for text in lines], dtype=pl.String)
    if is_typed:
        # pandas stores integers with a missing one as floats, and the missing one as NaN.
        if ids.dtype.is_float():
            ids = ids.fill_nan(None)
        return as_id_series(ids.drop_nulls(), kind).to_list()
    ids = ids.filter(~ids.is_in(MISSING_IDS).fill_null(True))
    bad = is_bad_id(ids)
    if bad.any():
        raise DataError(f"{data.name}: {id_problem(ids.filter(bad)[0], kind)}")
    return integers_if_whole(ids).to_list()


def read_history(
    path: str,
    request: Request,
    items: Ids,
) -> pl.DataFrame:
    """Read interactions of new users as columns item, optionally rating, and user.

    A list of items, or a table without a column of users, is the history of one user, and the
    result has no column user. A first line that is one of the known `items` is not a header.
    """
    with open_data(path, request.options) as data:
        files = data.parts or (data,)
        names, line = _first_row(files[0])
        columns_by_role = request.columns
        # Columns of the model's data need not be in a history, unless they are named now.
        absent = [r for r in request.optional if columns_by_role[r] not in names]
        request = request.changed(**dict.fromkeys(absent))
        requested = request.columns
        item = requested.get("item") or _column_of(names, "item")
        is_table = item in names and _column_of(names, "user") is None
        if "user" in requested or not (is_table or _is_list(names, line, items)):
            raw = read_raw(data, request).plain()
        elif is_table and len(names) > 1:
            # A column of users would have been found, unless two may be it.
            raw = read_raw(data, replace(request, required=("item",))).plain()
            raw.columns.pop("user", None)
        else:
            check_as_of(request.rules, ())
            return pl.DataFrame(
                {"item": _listed_ids(data, "item", requested.get("item"))}
            )
        columns = raw.columns
        if request.rules.has_as_of or request.rules != RowRules():
            columns = _merged(raw, request.rules, data.name)
        elif "weight" in requested and "rating" in columns:
            columns["value"] = columns.pop("rating")
    columns.pop("event_id", None)
    return pl.DataFrame([column.alias(role) for role, column in columns.items()])


def _is_list(
    names: Sequence[str],
    line: str,
    items: Ids,
) -> bool:
    """Return whether the first row, or its line, is one word or one of the items."""
    joined_names = ",".join(names)
    if len(names) == 1 and re.search(r"[\s;|:]", joined_names) is None:
        return True
    texts = [text for text in (joined_names, line) if text]
    return bool((items.find(texts) >= 0).any())


def _merged(
    rows: Rows,
    rules: RowRules,
    where: str,
) -> dict[str, pl.Series]:
    """Return the columns after the rules, with summed weights of repeated pairs."""
    has_users = "user" in rows.columns
    if not has_users:
        n_rows = len(rows.columns["item"])
        rows.columns["user"] = pl.Series(["new"]).new_from_index(0, n_rows)
    ratings = build_ratings(prepared(rows, rules), None, where)
    columns = ratings.to_frame().to_dict()
    columns.pop("timestamp", None)
    if not has_users:
        del columns["user"]
    return columns


def _first_row(data: DataFile) -> tuple[Sequence[str], str]:
    """Return the fields, and the text, of the first line that is not blank."""
    if data.is_parquet:
        return list(parquet_columns(data)), ""
    line = next((line.strip() for line in data.lines() if line.strip()), "")
    if line.startswith("{"):
        with suppress(ValueError, RecursionError):
            return list(json.loads(line)), line
    separator = next((mark for mark in "\t;" if mark in line), ",")
    fields = next(csv.reader([line], delimiter=separator), [])
    return [field.strip() for field in fields], line


def _column_of(
    names: Sequence[str],
    kind: str,
    requested: str | None = None,
) -> str | None:
    """Find the column of "user" or "item" ids: the requested one, or a usual one.

    A single name is a header only if it is one of the most usual names, because it may
    also be the first id of a list.
    """
    if requested in names:
        return requested
    if len(names) == 1:
        usual_names = [kind, f"{kind}id", f"{kind}_id"]
        if kind == "item":
            usual_names.append("movieid")
        is_usual = names[0].strip().lower() in usual_names
        return names[0] if is_usual else None
    position = usual_column(names, kind, "the list")
    return None if position is None else names[position]
