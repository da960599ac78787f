"""Lists of users or items, and histories of new users, from files."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

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
from recsys.readers import read_raw
from recsys.readers.delimited import Layout, read_carefully, read_fast
from recsys.readers.formats import json_objects, parquet_columns, reading_parquet
from recsys.readers.sources import DataFile, NoRowsError, open_data


def read_ids(path: str, kind: str, column: str | None = None) -> list[int] | list[str]:
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
    """Read items to block for all users, or with a column user pairs to block; perhaps none."""
    with suppress(NoRowsError), open_data(path, request.encoding) as data:
        names = _first_row(data.parts[0] if data.parts else data)[0].names
        user = _column_of(names, "user", request.user) or _column_of(names, "user")
        item = _column_of(names, "item", request.item) or _column_of(names, "item")
        if len(names) > 1 and user and item:
            pairs = read_raw(
                data, replace(request, user=user, item=item, implicit=True)
            )
            return pl.DataFrame(
                [pairs.plain().columns[kind].alias(kind) for kind in ("user", "item")]
            )
        return pl.Series("item", _listed_ids(data, "item", request.item)).to_frame()
    return pl.DataFrame(schema={"item": pl.String})


def _listed_ids(data: DataFile, kind: str, requested: str | None) -> list[Any]:
    """Return the ids in all files."""
    ids = [
        listed_id
        for part in data.parts or (data,)
        for listed_id in _ids_of(part, kind, requested)
    ]
    if not ids:
        raise NoRowsError(f"{data.name} lists no {kind}s; one id per line is expected.")
    return ids


def _ids_of(data: DataFile, kind: str, requested: str | None) -> list[Any]:
    """Return the ids in one file."""
    layout, line = _first_row(data)
    if layout.kind == "delimited" and line.startswith("{"):
        return _ids_of_objects(data, kind, requested)
    names = layout.names
    column = _column_of(names, kind, requested) or _column_of(names, kind)
    if layout.kind == "parquet":
        column = column or (names[0] if len(names) == 1 else None)
        if column is None:
            raise DataError(
                f"{data.name} has no column {kind}; it has {', '.join(names)}."
            )
        with reading_parquet(data.name):
            ids = pl.read_parquet(data.path, columns=[column])[column]
        if ids.dtype.is_float():
            ids = ids.fill_nan(None)
        return as_id_series(ids.drop_nulls(), kind).to_list()
    if column is None:
        lines = [line.strip() for line in data.lines()]
        with suppress(ValueError, RecursionError):
            array = (
                json.loads(" ".join(lines))
                if lines and lines[0].startswith("[")
                else None
            )
            if isinstance(array, list):
                return as_id_series(array, kind).to_list()
        return _listed_texts(pl.Series(lines, dtype=pl.String), data, kind)
    roles = {kind: names.index(column)}
    rows = read_fast(data, layout, roles) or Rows(read_carefully(data, layout, roles))
    ids = rows.spread().columns[kind]
    if ids.dtype.is_integer():
        return ids.drop_nulls().to_list()
    return _listed_texts(ids.cast(pl.String), data, kind)


def _listed_texts(texts: pl.Series, data: DataFile, kind: str) -> list[Any]:
    """Return texts as ids, as integers if all are whole numbers; missing ones are left out."""
    ids = texts.filter(~texts.is_in(MISSING_IDS).fill_null(True))
    bad = is_bad_id(ids)
    if bad.any():
        raise DataError(f"{data.name}: {id_problem(ids.filter(bad)[0], kind)}")
    return integers_if_whole(ids).to_list()


def _ids_of_objects(data: DataFile, kind: str, requested: str | None) -> list[Any]:
    """Return the ids in a file of JSON objects, one per line."""
    objects = [fields for _, fields in json_objects(data)]
    names = list(dict.fromkeys(name for fields in objects for name in fields))
    column = _column_of(names, kind, requested) or _column_of(names, kind)
    if column is None and len(names) == 1:
        column = names[0]
    if column is None:
        raise DataError(f"{data.name} has no key {kind}; it has {', '.join(names)}.")
    values = [fields[column] for fields in objects if fields.get(column) is not None]
    return as_id_series(values, kind).to_list()


def read_history(path: str, request: Request, items: Ids) -> pl.DataFrame:
    """Read interactions of new users as columns item, optionally rating, and user.

    A list of items, or a table without a column of users, is the history of one user, and the
    result has no column user. A first line that is one of the known `items` is not a header.
    """
    with open_data(path, request.encoding) as data:
        files = data.parts or (data,)
        layout, line = _first_row(files[0])
        names = layout.names
        if line.startswith("{"):
            with suppress(ValueError, RecursionError):
                names = tuple(json.loads(line))
        absent = [
            role for role in request.optional if getattr(request, role) not in names
        ]
        request = replace(request, **cast(Any, dict.fromkeys(absent)))
        has_items = _column_of(names, "item", request.item) is not None
        is_table = has_items and _column_of(names, "user") is None
        lines = [",".join(names), *filter(None, [line])]
        is_word = len(names) == 1 and re.search(r"[\s;|:]", lines[0]) is None
        is_list = not is_table and (is_word or bool((items.find(lines) >= 0).any()))
        if request.user is not None or not (is_list or is_table):
            raw = read_raw(data, request).plain()
        elif is_table and len(names) > 1:
            raw = read_raw(data, request, ("item",)).plain()
            raw.columns.pop("user", None)
        else:
            check_as_of(request.rules, ())
            return pl.DataFrame({"item": _listed_ids(data, "item", request.item)})
        columns = raw.columns
        if (
            request.rules.has_as_of or request.rules != RowRules()
        ):  # merge repeated pairs, with summed weights
            has_users = "user" in columns
            if not has_users:
                columns["user"] = pl.Series(["new"]).new_from_index(
                    0, len(columns["item"])
                )
            table = build_ratings(
                prepared(raw, request.rules), None, data.name
            ).to_frame()
            columns = table.select(
                pl.all() if has_users else pl.exclude("user")
            ).to_dict()
            columns.pop("timestamp", None)
        elif request.weight is not None and "rating" in columns:
            columns["value"] = columns.pop("rating")
    columns.pop("event_id", None)
    return pl.DataFrame([column.alias(role) for role, column in columns.items()])


def _first_row(data: DataFile) -> tuple[Layout, str]:
    """Return the first row of a list that is not blank, preceded by the layout it implies."""
    if data.is_parquet:
        return Layout("parquet", names=tuple(parquet_columns(data))), ""
    lines = enumerate(data.lines(), 1)
    number, line = next(
        ((number, line) for number, line in lines if line.strip()), (1, "")
    )
    separator = next((mark for mark in "\t;" if mark in line), ",")
    names = map(str.strip, next(csv.reader([line], delimiter=separator), []))
    return Layout("delimited", separator, tuple(names), skip=number), line.strip()


def _column_of(
    names: Sequence[str], kind: str, requested: str | None = None
) -> str | None:
    """Find the column of "user" or "item" ids, as requested or else by usual names.

    A single name is a header only if it is one of the most usual names, because it may also be the
    first id of a list.
    """
    if requested is not None:
        return requested if requested in names else None
    if len(names) == 1:
        usual_names = {kind, f"{kind}id", f"{kind}_id"} | (
            {"movieid"} if kind == "item" else set()
        )
        return names[0] if names[0].strip().lower() in usual_names else None
    position = usual_column(names, kind, "the list")
    return None if position is None else names[position]
