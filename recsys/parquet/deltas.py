"""Pages of Parquet files whose values are differences, and how many values these say they have.

Equal differences take no room, and polars makes room for as many values as the differences tell of,
whatever the header of the page says: a page of a hundred bytes could fill any memory. They are
within the page, which is mostly compressed. So polars is asked to unpack it as if it were a single
value, plain bytes: in a file of that page alone.

The encodings DELTA_BINARY_PACKED and DELTA_LENGTH_BYTE_ARRAY are those of parquet-format,
Encodings.md; DELTA_BYTE_ARRAY polars takes value by value.
"""

from __future__ import annotations

import io
from typing import BinaryIO, NamedTuple

import polars as pl

from recsys.parquet.thrift import CompactReader, ThriftError, zigzag

__all__ = ["DELTAS", "DeltaPage", "check_deltas"]

DELTAS = (5, 6)  # the encodings


class DeltaPage(NamedTuple):
    """Where such a page lies, and how it is to be unpacked.

    Attributes
    ----------
    start, packed, unpacked : int
        Place and size of what is compressed, and what it will be.
    codec : int
        Number of the compression.
    levels : int
        How many lists of levels come before the values.
    values : int
        As the header of the page says.
    """

    start: int
    packed: int
    unpacked: int
    codec: int
    levels: int
    values: int


def check_deltas(file: BinaryIO, page: DeltaPage) -> None:
    """Refuse a page with more differences than values.

    Raises
    ------
    ThriftError
        If it has, or is damaged.
    polars.exceptions.PolarsError
        If it cannot be unpacked.
    """
    file.seek(page.start)
    body = io.BytesIO(_unpacked(file.read(page.packed), page))
    for _ in range(page.levels):
        body.seek(int.from_bytes(body.read(4), "little"), io.SEEK_CUR)
    differences = body.read()
    if not differences:  # all values are missing
        return
    reader = CompactReader(io.BytesIO(differences))
    _, _, count = reader.unsigned(), reader.unsigned(), reader.unsigned()  # of a block, its parts
    if count > page.values:
        raise ThriftError("a page has more differences than values")


def _unpacked(body: bytes, page: DeltaPage) -> bytes:
    if page.codec == 0 or page.unpacked == 0:
        return body
    unpacked: bytes = pl.read_parquet(_alone(body, page.unpacked, page.codec))["x"][0]
    return unpacked


def _alone(body: bytes, size: int, codec: int) -> bytes:
    """Return a Parquet file of one row and the column x, of a fixed number of bytes."""
    header = b"\x15\0\x15" + zigzag(size) + b"\x15" + zigzag(len(body))  # a data page: its sizes,
    header += b"\x2c\x15\x02\x15\0\x15\x06\x15\x06\0\0"  # one value, plain
    length = zigzag(len(header) + len(body))
    root = b"\x48\x01r\x15\x02\0"
    leaf = b"\x15\x0e\x15" + zigzag(size) + b"\x15\0\x18\x01x\0"  # fixed length, required
    chunk = b"\x15\x0e\x19\x15\0\x19\x18\x01x\x15" + zigzag(codec)
    chunk += b"\x16\x02\x16" + length + b"\x16" + length + b"\x26" + zigzag(4) + b"\0"
    group = b"\x19\x1c\x26" + zigzag(4) + b"\x1c" + chunk + b"\0\x16" + length + b"\x16\x02\0"
    footer = b"\x15\x02\x19\x2c" + root + leaf + b"\x16\x02\x19\x1c" + group + b"\0"
    return b"PAR1" + header + body + footer + len(footer).to_bytes(4, "little") + b"PAR1"
