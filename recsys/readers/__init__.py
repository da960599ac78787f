"""Readers of ratings: files and tables in the layouts they come in, and frames."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack, cast
from urllib.parse import unquote

import polars as pl

from recsys.data.columns import Request, Roles, choose_columns, usual_column
from recsys.data.csr import check_policy
from recsys.data.features import Features
from recsys.data.frames import FrameLike
from recsys.data.ratings import Ratings, Source, build_ratings
from recsys.data.rows import RowOptions, RowRules, prepared
from recsys.data.times import seconds_or_null
from recsys.database import OnRows, parse_address
from recsys.errors import DataError
from recsys.readers.layout import detect
from recsys.readers.lines import read_jsonl, read_lightgcn
from recsys.readers.metadata import TableSource, neighbouring_table, read_table
from recsys.readers.sources import (
    DataFile,
    NoRowsError,
    SourceLike,
    is_address,
    open_data,
    sample_path,
)
from recsys.readers.table import RawRatings, joined, read_delimited, read_parquet

__all__ = ["as_ratings", "read_ratings", "read_raw", "sample_path"]

_FOLDER = re.compile(r"(?:^|/)(\w+)=([^/]+)(?=/)")  # as Hive and Spark partition tables


def read_ratings(
    source: SourceLike,
    *,
    table: str | None = None,
    query: str | None = None,
    user: str | int | None = None,
    item: str | int | None = None,
    rating: str | int | None = None,
    timestamp: str | int | None = None,
    event: str | int | None = None,
    sep: str | None = None,
    encoding: str | None = None,
    duplicates: str | None = None,
    implicit: bool = False,
    item_table: TableSource | None = None,
    user_table: TableSource | None = None,
    on_rows: OnRows | None = None,
    **rows: Unpack[RowOptions],
) -> Ratings:
    """Read ratings from files, databases, the web or standard input.

    Recognised by content: the MovieLens layouts (ratings.csv; ratings.dat with "::"; u.data),
    LightGCN lines (user item item ...), text with comma, tab, semicolon, bar or space between
    columns, JSON lines, arrays of JSON objects, Parquet and Excel; each also in gz, xz, zst or zip.
    Tables of items and users are read along, if they are next to the ratings under a usual name
    (movies.csv, items.parquet, u.item, users.csv, ...). `Ratings.source` says how the files were
    understood. Ids stay as given: a column of text is integers only if each value is written as an
    integer is printed, so "007" stays "007". Blank rows are skipped.

    Parameters
    ----------
    source : path, or sequence of paths
        A file; a directory or zip of one, or of several with the same columns (daily partitions);
        a pattern ("events/2025-*/*.parquet"); a URL ("https://..."); a database
        ("postgresql://user@host/db", "orders.db::events", "warehouse.duckdb::events"); "-" for
        standard input; or several of these, whose rows are taken together.
    table, query : str, optional
        Table (or sheet of a workbook) to read, or a query in SQL. Of a table only the columns that
        are needed are read.
    user, item, rating, timestamp, event : str or int, optional
        Names of columns, where the usual ones (userId, movieId, asin, stars, timestamp, ...) are
        not there or several are; numbers from 1 in a file without header.
    sep : str, optional
        Separator of the columns: one character, "tab" or "::".
    encoding : str, optional
        Encoding of a text file; UTF-8 if not given.
    duplicates, implicit, event_weights, half_life, since, until, time_format, bad_rows
        As in `Ratings.from_frame`. `Ratings.source.skipped` describes the first bad rows.
    item_table, user_table : path, frame or Features, optional
        What is known of items and users, from any of these sources, with a column of ids that is
        named as in the ratings or as usual; of a database also the name of another table.
    on_rows : callable, optional
        Called with the rows read so far and those expected (None if unknown).

    Raises
    ------
    DataError
        If the file is missing, empty, damaged or binary; columns are missing or ambiguous; a
        row is ragged; an id, rating or timestamp is missing or cannot be read. The message names
        line and text. Also if a database cannot be reached, or has no such table or column.
    """
    check_policy(duplicates)
    rules = RowRules.of(**rows)
    named = {"user": user, "item": item, "rating": rating, "timestamp": timestamp, "event": event}
    names = {role: str(name) for role, name in named.items() if name is not None}
    request = Request(**names, sep=sep, encoding=encoding, implicit=implicit, rules=rules)

    def pick(names: Sequence[str], where: str) -> Roles:
        return choose_columns(names, request, where)

    options = {"table": table, "query": query}
    with open_data(source, encoding, **options, pick=pick, on_rows=on_rows) as data:
        raw = read_raw(data, request)
        counted = prepared(raw.columns, rules, raw.place, raw.idle_users, raw.bad)
        origin = Source(data.name, raw.layout, skipped=tuple(raw.bad.first))
        ratings = build_ratings(counted, duplicates, source=origin)
        tables: list[Features | None] = []
        remarks: list[str] = []
        for ids, given in ((ratings.items, item_table), (ratings.users, user_table)):
            if given is None:
                known, remark = neighbouring_table(data, ids, request)
            else:
                known, remark = read_table(_in_database(given, source), ids, request)
            tables.append(known)
            remarks += [remark] if remark else []
    origin = replace(ratings.source or origin, tables="; ".join(remarks))
    return replace(ratings, item_table=tables[0], user_table=tables[1], source=origin)


def _in_database(given: TableSource, source: SourceLike) -> TableSource:
    """Return a table of the database of the ratings by its name, anything else as it is."""
    sources = [source] if isinstance(source, str | os.PathLike) else list(source)
    address = parse_address(os.fspath(sources[0])) if len(sources) == 1 else None
    if address is None or not isinstance(given, str) or is_address(given) or Path(given).exists():
        return given
    scheme = "" if "://" in address.place else f"{address.kind}:///"
    return f"{scheme}{address.place}::{given}"


def as_ratings(data: Ratings | FrameLike | SourceLike) -> Ratings:
    """Return ratings as they are, and build them from paths, or a frame with the usual columns."""
    if isinstance(data, Ratings):
        return data
    listed = data if isinstance(data, Sequence) and not isinstance(data, str) else [data]
    if listed and all(isinstance(each, str | os.PathLike) for each in listed):
        return read_ratings(cast(SourceLike, data))
    return Ratings.from_frame(cast(FrameLike, data))


def read_raw(
    data: DataFile, request: Request, required: Sequence[str] = ("user", "item")
) -> RawRatings:
    """Read the columns of an open file, as they stand in it; those `required` must be there.

    Raises
    ------
    DataError
        As `read_ratings`.
    """
    if data.parts:
        return _read_parts(data, request, required)
    dated = _date_of_folder(data.name, request)
    raw = _read_file(data, replace(request, timestamp=None) if dated else request, required)
    if dated and "timestamp" not in raw.columns:
        name, seconds = dated
        raw.columns["timestamp"] = seconds.new_from_index(0, len(raw.columns["item"]))
        raw = replace(raw, layout=f"{raw.layout}, timestamp = {name} (folder)")
    return raw


def _read_file(data: DataFile, request: Request, required: Sequence[str]) -> RawRatings:
    layout = detect(data, request)
    if layout.kind == "lightgcn":
        return read_lightgcn(data, request)
    if layout.kind == "delimited":
        return read_delimited(data, layout, request, required)
    return (read_parquet if layout.kind == "parquet" else read_jsonl)(data, request, required)


def _date_of_folder(path: str, request: Request) -> tuple[str, pl.Series] | None:
    """Return name and time of a folder such as date=2025-06-09, if it is requested or usual."""
    folders = {name: unquote(value) for name, value in _FOLDER.findall(path)}
    name = request.timestamp
    if name is None and (place := usual_column([*folders], "timestamp", path)) is not None:
        name = [*folders][place]
    if name is None or name not in folders:
        return None
    seconds = seconds_or_null(pl.Series([folders[name]]), request.rules.time_format)
    return None if seconds.null_count() else (name, seconds)


def _read_parts(data: DataFile, request: Request, required: Sequence[str]) -> RawRatings:
    """Read several files as one table; some may have no rows."""
    parts, empty = [], None
    for part in data.parts:
        try:
            parts.append((part.name, read_raw(part, request, required)))
        except NoRowsError as error:
            empty = error
    if not parts:
        raise DataError(f"{data.name}: no file has rows.") from empty
    return joined(parts)
