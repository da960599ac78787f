"""What a Parquet file would take in memory, from its own account, before it is read.

Equal values are stored once, with how often they come, and texts are packed: a file of a kilobyte
can hold a billion rows, or a text of a gigabyte. So it is not the ratio of sizes that counts, which
is as high in honest files, but memory.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import polars as pl

from recsys.data.ids import as_strings
from recsys.memory import absurd, available_memory, gibibytes, over_memory
from recsys.parquet.deltas import check_deltas
from recsys.parquet.pages import Pages, read_pages
from recsys.parquet.thrift import ThriftError

__all__ = ["check_pages", "columns_of", "pages_of", "too_large", "unpacked_size"]

_SHARE = 4  # the part of the free memory that may be used to look at texts is 1 over this
_MOST_LOOKS = 10_000


def columns_of(source: Path | bytes) -> list[str]:
    """Return the names of the columns of a Parquet file.

    This comes before everything else: polars crashes at a schema that is too deep.

    Raises
    ------
    polars.exceptions.ComputeError
        If the file is damaged.

    Examples
    --------
    >>> file = io.BytesIO()
    >>> pl.DataFrame({"user": [1], "item": [2]}).write_parquet(file)
    >>> columns_of(file.getvalue())
    ['user', 'item']
    """
    with _opened(source) as file:
        read_pages(file, ())
    return pl.scan_parquet(source, glob=False).collect_schema().names()


def too_large(source: Path | bytes, columns: Collection[str], beside: int = 0) -> str | None:
    """Say why some columns of a Parquet file don't fit into memory, or return None if they may.

    Parameters
    ----------
    source : Path or bytes
        The file, or what is in it.
    columns : collection of str
        Those that are to be read.
    beside : int
        Bytes per row that are held besides, at the least, while the columns are worked on.

    Returns
    -------
    str or None
        The end of a sentence that begins with the name of the file.

    Raises
    ------
    polars.exceptions.ComputeError
        If the file is damaged.

    Examples
    --------
    >>> file = io.BytesIO()
    >>> pl.DataFrame({"user": [1, 2]}).write_parquet(file)
    >>> too_large(file.getvalue(), ["user"]) is None
    True
    """
    pages, free = pages_of(source, columns), available_memory()
    needed = pages.rows * beside + pages.memory
    reason = over_memory(pages.rows, needed, free) or absurd(pages.largest, _size_of(source))
    if reason is not None:
        return reason
    check_pages(source, pages)
    if free is None or not pages.unbounded:
        return None
    texts = _unbounded_texts(source, pages, free)
    if texts is None:
        names = ", ".join(sorted(pages.unbounded))
        return (
            f"has texts in the encoding DELTA_BYTE_ARRAY ({names}), which may need more than the "
            f"{gibibytes(free)} of memory that are free; write it in another encoding."
        )
    return over_memory(pages.rows, needed + texts, free)


def check_pages(source: Path | bytes, pages: Pages) -> None:
    """Look into the pages that may hold more than they say, of which each must fit into memory.

    Raises
    ------
    polars.exceptions.PolarsError
        If one does, or is damaged.
    """
    with _opened(source) as file:
        for page in pages.deltas:
            check_deltas(file, page)


def pages_of(source: Path | bytes, columns: Collection[str]) -> Pages:
    """Return what the pages of some columns come to; see `recsys.parquet.pages.read_pages`.

    Raises
    ------
    polars.exceptions.ComputeError
        If the file is damaged.
    """
    with _opened(source) as file:
        return read_pages(file, columns)


@contextmanager
def _opened(source: Path | bytes) -> Iterator[BinaryIO]:
    """Open a file, or what is in it, and say it as polars does if it is damaged."""
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
            yield file
    except ThriftError as error:
        raise pl.exceptions.ComputeError(str(error)) from None


def _size_of(source: Path | bytes) -> int:
    return len(source) if isinstance(source, bytes) else source.stat().st_size


def unpacked_size(frame: pl.DataFrame) -> int:
    """Return the bytes of a frame if equal texts were not held once, but each by itself.

    Examples
    --------
    >>> unpacked_size(pl.DataFrame({"user": ["a" * 100] * 50})) >= 50 * 100
    True
    """
    size = 0
    for column in frame:
        categories = column.dtype in (pl.Categorical, pl.Enum)
        size += int((as_strings(column.drop_nulls()) if categories else column).estimated_size())
    return size


def _unbounded_texts(source: Path | bytes, pages: Pages, free: int) -> int | None:
    """Add up the bytes of texts that may be longer than their pages; None if that takes too long.

    Each is at most as long as its page, so a few rows at a time can be looked at.
    """
    if pages.rows * pages.largest <= free // _SHARE:
        return 0
    scan = pl.scan_parquet(source, glob=False).select(sorted(pages.unbounded))
    step = max(1, free // (_SHARE * pages.largest))
    if pages.rows > _MOST_LOOKS * step or set(scan.collect_schema().dtypes()) != {pl.String}:
        return None
    lengths = pl.all().str.len_bytes().cast(pl.UInt64)  # whose sum overflows as it is
    found = 0
    for start in range(0, pages.rows, step):
        frame = scan.slice(start, step).select(lengths.sum()).collect()
        found += sum(frame.row(0))
        if found > free:
            break
    return found
