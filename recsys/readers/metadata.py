"""Metadata: tables of items and users, named or next to the ratings, in any format."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import polars as pl

from recsys.data.columns import Request, id_column, quoted
from recsys.data.features import Features, TableLike
from recsys.data.frames import to_polars
from recsys.data.ids import Ids
from recsys.data.ratings import table_of
from recsys.errors import DataError
from recsys.messages import counted
from recsys.readers.layout import detect
from recsys.readers.lines import json_objects
from recsys.readers.movielens import movielens_table
from recsys.readers.sources import DataFile, data_suffix, open_data, plain_name, table_member
from recsys.readers.table import read_texts, reading_parquet

__all__ = ["TableSource", "neighbouring_table", "read_table"]

TableSource: TypeAlias = "str | os.PathLike[str] | TableLike"
"""Path of a table of items or users, or a frame."""

_BLOCK = 1 << 22
_COMMA_NUMBER = r"^[-+]?\d+(?:,\d+)?$"  # with the semicolons of spreadsheets
_YEAR = r"\((\d{4})\)\s*$"


def read_table(source: TableSource, ids: Ids, request: Request) -> tuple[Features, str]:
    """Read what is known of items or users, and say in a few words what that is.

    The column of ids is the one of `request`, if the table has it, or is found by its usual names;
    or it is the only one whose values are ids of the ratings.

    Parameters
    ----------
    source : path, frame or Features
        A file in any format that ratings are read from, and those of MovieLens without a header.
    ids : Ids
        Of the items or users of the ratings.
    request : Request
        Names of columns of the ratings, and an encoding for a file that is not in UTF-8.

    Raises
    ------
    DataError
        If the file cannot be read, the column of ids is missing, or none of `ids` is in it.
    """
    if not isinstance(source, str | os.PathLike):
        features = source
        if not isinstance(source, Features):
            features = _features(to_polars(source), ids, request, "The table", untyped=False)
        return _described(table_of(features, ids), ids, "The table")
    with open_data(source) as data, _in_utf8(data, request.encoding) as decoded:
        return _described(_read(decoded, ids, request), ids, data.name)


def neighbouring_table(data: DataFile, ids: Ids, request: Request) -> tuple[Features | None, str]:
    """Read the table of items or users next to a file of ratings, if there is one.

    Returns
    -------
    table : Features or None
    remark : str
        What it is, or why it is not used; empty if there is none.
    """
    name = None if data.folder is None else table_member(data.folder.names(), ids.kind)
    if data.folder is None or name is None or name == data.name.rpartition("/")[2]:
        return None, ""
    try:
        with open_data(data.folder.fetch(name)) as found:
            named = replace(found, name=name, suffix=data_suffix(name))
            with _in_utf8(named, request.encoding) as decoded:
                features = _read(decoded, ids, request)
        if not (features.rows_of(ids) >= 0).any():
            return None, f"{name} not used (other ids)"
    except DataError as error:
        return None, f"{name} not used: {str(error).removeprefix(f'{name} ').rstrip('.')}"
    return _described(features, ids, name)


def _read(data: DataFile, ids: Ids, request: Request) -> Features:
    """Return the typed table in a file, with the years that its titles end in."""
    read = [_frame(part, getattr(request, ids.kind)) for part in data.parts or (data,)]
    frame = pl.concat([part for part, _ in read], how="diagonal_relaxed")
    untyped = all(each for _, each in read)
    features = _features(frame, ids, request, data.name, untyped=untyped)
    title = features.title
    if title is None or "year" in map(str.lower, features.kinds):
        return features
    year = features.frame[title].str.extract(_YEAR).cast(pl.Int64)
    if 2 * year.null_count() > len(year):
        return features
    frame = features.frame.with_columns(year.alias("year"))
    return Features(frame, {**features.kinds, "year": "number"})


def _frame(data: DataFile, column: str | None) -> tuple[pl.DataFrame, bool]:
    """Return all columns of a file, and whether they are of strings that may be anything."""
    known = movielens_table(plain_name(data.name), data.path)
    if known is not None:
        return known, True
    layout = detect(data, Request(item=column))
    if layout.kind == "parquet":
        with reading_parquet(data.name):
            return pl.read_parquet(data.path, glob=False), False
    if layout.kind == "jsonl":
        rows = [fields for _, fields in json_objects(data)]
        try:
            return pl.DataFrame(rows, infer_schema_length=None, strict=False), False
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise DataError(f"{data.name} is not a table: {reason}.") from None
    if layout.kind == "lightgcn" or not layout.has_header:
        raise DataError(f"{data.name} has no header; its columns need names.")
    frame = read_texts(data, layout)
    if layout.separator == ";":
        decimals = [name for name in frame.columns if frame[name].str.contains(_COMMA_NUMBER).all()]
        frame = frame.with_columns(pl.col(decimals).str.replace(",", ".", literal=True))
    return frame, True


def _features(
    frame: pl.DataFrame, ids: Ids, request: Request, where: str, *, untyped: bool
) -> Features:
    """Tell the kinds of the columns; rows without an id are left out."""
    column = id_column(frame.columns, ids.kind, getattr(request, ids.kind), where)
    if column is None:
        fitting = [name for name in frame.columns if _has_ids(frame[name], ids)]
        if len(fitting) != 1:
            option = f"--{ids.kind}-col ({ids.kind}=)"
            raise DataError(
                f"{where} has no column of {ids.kind}s; its columns are {quoted(frame.columns)}. "
                f"Name it as in the ratings, or say with {option} what it is called in both."
            )
        column = fitting[0]
    rows = frame.filter(pl.col(column).is_not_null())
    features = Features.of(rows, ids.kind, column=column, untyped=untyped)
    found = table_of(features, ids)
    assert found is not None
    return found


def _has_ids(values: pl.Series, ids: Ids) -> bool:
    """Return whether values of a column are distinct, and half of them, or of `ids`, are ids."""
    if values.dtype != pl.String and not values.dtype.is_integer():
        return False
    known = values.drop_nulls()
    if not len(known) or not known.is_unique().all():
        return False
    return 2 * int((ids.find(known) >= 0).sum()) >= min(len(known), len(ids))


def _described(features: Features | None, ids: Ids, name: str) -> tuple[Features, str]:
    """Return the table, and a remark with its columns and the ids that it lacks or has more."""
    assert features is not None
    noun, n_known = f"{ids.kind}s", int((features.rows_of(ids) >= 0).sum())
    if not n_known:
        raise DataError(
            f"{name} has none of the {noun} of the ratings: its ids look like "
            f"{next(iter(features.frame[ids.kind]), None)!r}, theirs like {ids.values[0]!r}."
        )
    remarks = []
    if n_known < len(ids):
        remarks.append(f"lacks {len(ids) - n_known:,} of {counted(len(ids), ids.kind)}")
    if n_known < len(features):
        remarks.append(f"has {len(features) - n_known:,} without ratings")
    aside = f" ({', '.join(remarks)})" if remarks else ""
    return features, f"{name}{aside}: {features if features.kinds else 'ids only'}"


@contextmanager
def _in_utf8(data: DataFile, encoding: str | None) -> Iterator[DataFile]:
    """Yield a file in UTF-8: itself, or a copy if it is in UTF-16, in `encoding` or in Latin-1."""
    if data.is_parquet or (source := _encoding(data.path, encoding)) == "utf-8":
        yield data
        return
    with TemporaryDirectory(prefix="recsys-") as folder:
        copy = Path(folder) / "table"
        try:
            with data.path.open(encoding=source, newline="") as texts, copy.open("wb") as sink:
                while block := texts.read(_BLOCK):
                    sink.write(block.encode())
        except (UnicodeError, LookupError) as error:
            raise DataError(f"{data.name} is not in the encoding {source}: {error}.") from None
        yield replace(data, path=copy)


def _encoding(path: Path, encoding: str | None) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as stream:
        block = stream.read(_BLOCK)
        if block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        try:
            while block:
                decoder.decode(block)
                block = stream.read(_BLOCK)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return encoding or "latin-1"  # as the older MovieLens sets
    return "utf-8"
