"""What a Parquet file would take in memory, from its own account, before it is read.

Equal values are stored once, with how often they come: a file of a kilobyte can hold a billion
rows. So it is not the ratio of sizes that counts, which is as high in honest files, but memory.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from recsys.memory import available_memory, gibibytes

__all__ = ["too_large"]

_POLARS_LIMIT = "maximum allowed pow(2, 32)-1 rows"
_VIEW = 16  # bytes of a text that lies elsewhere, and at most of a number
_WIDTHS = {
    pl.Boolean: 1,
    pl.Int8: 1,
    pl.UInt8: 1,
    pl.Int16: 2,
    pl.UInt16: 2,
    pl.Int32: 4,
    pl.UInt32: 4,
    pl.Float32: 4,
    pl.Date: 4,
    pl.Int64: 8,
    pl.UInt64: 8,
    pl.Float64: 8,
}


def too_large(scan: pl.LazyFrame, columns: Iterable[str], beside: int = 0) -> str | None:
    """Say why some columns of a Parquet file don't fit into memory, or return None if they may.

    Parameters
    ----------
    scan : LazyFrame
        The file; no more than its metadata is read.
    columns : iterable of str
        Those that are to be read.
    beside : int
        Bytes per row that are held besides, at the least, while the columns are worked on.

    Returns
    -------
    str or None
        The end of a sentence that begins with the name of the file.

    Examples
    --------
    >>> too_large(pl.LazyFrame({"user": [1, 2]}), ["user"]) is None
    True
    """
    try:
        rows = scan.select(pl.len()).collect().item()
    except pl.exceptions.ComputeError as error:
        if _POLARS_LIMIT not in str(error):
            raise
        return f"has more than the {2**32 - 1:,} rows that can be read of one file."
    schema = scan.collect_schema()
    per_row = beside + sum(_WIDTHS.get(schema[name].base_type(), _VIEW) for name in columns)
    needed, free = rows * per_row, available_memory()
    if free is None or needed <= free:
        return None
    return (
        f"has {rows:,} rows, which take at least {gibibytes(needed)} in memory, and "
        f"{gibibytes(free)} are free; split the file, or work on a part of it."
    )
