"""Parquet files."""

from __future__ import annotations

import polars as pl

from recsys.errors import DataError
from recsys.ids import as_strings
from recsys.panics import reading_parquet
from recsys.parquet.size import columns_of, too_large
from recsys.readers.columns import Request, choose_columns
from recsys.readers.raw import RawRatings, describe_roles, without_foreign_time
from recsys.readers.sources import DataFile

__all__ = ["read_parquet"]

_SAMPLE = 100
_WORK = 32  # bytes per row: two indices, a key and its place for sorting, the matrix


def read_parquet(data: DataFile, request: Request) -> RawRatings:
    """Read a Parquet file; only the columns that play a role are read.

    Raises
    ------
    DataError
        If the file is damaged, has no rows or more than memory could hold, or columns are missing
        or ambiguous.
    """
    with reading_parquet(data.name):
        names = columns_of(data.path)
        roles = choose_columns(names, request, data.name)
        reason = too_large(data.path, [names[place] for _, place in roles.items()], _WORK)
        if reason is not None:
            raise DataError(f"{data.name} {reason}")
        scan = pl.scan_parquet(data.path, glob=False)
        times = [] if roles.time is None else _head(scan, names[roles.time])
        roles, remarks = without_foreign_time(roles, names, times, request)
        chosen = {role: names[place] for role, place in roles.items()}
        frame = scan.select(pl.col(name).alias(role) for role, name in chosen.items())
        read = frame.collect(engine="streaming")
    if not len(read):
        raise DataError(f"{data.name} has no rows.")
    said = ["Parquet", describe_roles(roles, names, remarks)]

    def place(row: int) -> str:
        return f"{data.name}, row {row + 1}"

    return RawRatings({role: read[role] for role in chosen}, ", ".join(said), place)


def _head(scan: pl.LazyFrame, name: str) -> list[object]:
    head = scan.select(name).head(_SAMPLE).collect()[name]
    if head.dtype in (pl.String, pl.Categorical, pl.Enum):
        # Equal texts are held once in a column, and each by itself in a list.
        head = as_strings(head.drop_nulls()).str.head(_SAMPLE)
    elif head.dtype == pl.Date or isinstance(head.dtype, pl.Datetime):
        head = head.dt.epoch("s")  # of years, too, that Python does not know
    elif not head.dtype.is_numeric():
        return [str(head.dtype)]
    return head.to_list()
