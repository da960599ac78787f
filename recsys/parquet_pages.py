"""How large the pages of a Parquet file are, from its footer and the header of each page.

The sizes in the footer are only told, those in the headers bind: a reader unpacks a page into as
many bytes as its header says. No library tells them without reading the pages.

The format is that of Apache's parquet-format, README.md and src/main/thrift/parquet.thrift; fields
are named here as there.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

from recsys.thrift import CompactReader, ThriftError

__all__ = ["Pages", "read_pages"]

_TAIL = 8  # bytes: the length of the footer, and PAR1
_BYTE_ARRAY, _FIXED_LENGTH = 6, 7  # physical types
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}  # in bytes, of the others
_VIEW = 16  # bytes of a text that lies elsewhere
_DELTA_BYTE_ARRAY = 7  # the encoding: each text as what differs from the one before
_COPIES = 2  # of a text while it is read: in its page, and in the column


@dataclass(slots=True)
class Pages:
    """What the pages of some columns come to.

    Attributes
    ----------
    rows : int
        Of the file.
    memory : int
        Bytes that the columns take while they are read, save for texts without a bound.
    largest : int
        Bytes of the largest page, unpacked.
    unbounded : set of str
        Columns with texts that may be longer than their pages (DELTA_BYTE_ARRAY).
    """

    rows: int = 0
    memory: int = 0
    largest: int = 0
    unbounded: set[str] = field(default_factory=set)


class _Leaf(NamedTuple):
    """A column of the file, one of several if what it belongs to is nested."""

    column: str
    is_text: bool
    width: int


class _Chunk(NamedTuple):
    """Where the pages of a leaf in one group of rows lie, and how many values they have."""

    start: int
    length: int
    values: int


class _Page(NamedTuple):
    packed: int
    unpacked: int
    values: int
    encoding: int


def read_pages(file: BinaryIO, columns: Collection[str]) -> Pages:
    """Add up the pages of some columns of a Parquet file, without unpacking them.

    Parameters
    ----------
    file : binary file
    columns : collection of str
        Names of columns; of nested ones, all that belongs to them counts.

    Raises
    ------
    ThriftError
        If the file is damaged.
    """
    pages = Pages()
    chunks: list[tuple[_Leaf, _Chunk]] = []
    reader = _at_footer(file)
    leaves: list[_Leaf] = []
    for number, kind in reader.fields():
        if number == 2:  # schema
            leaves = list(_leaves(reader))
        elif number == 4:  # row_groups
            for _ in range(reader.list_length()):
                pages.rows += _read_group(reader, leaves, columns, chunks)
        else:
            reader.skip(kind)
    size = file.seek(0, os.SEEK_END)
    if sum(chunk.length for _, chunk in chunks) > size:
        raise ThriftError("its columns are longer than the file")
    for leaf, chunk in chunks:
        _add(pages, leaf, _pages_of(file, chunk))
    return pages


def _at_footer(file: BinaryIO) -> CompactReader:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL))
    length = int.from_bytes(file.read(4), "little")
    if length > size - _TAIL:
        raise ThriftError("its footer is longer than the file")
    file.seek(size - _TAIL - length)
    return CompactReader(file)


def _leaves(reader: CompactReader) -> Iterator[_Leaf]:
    """Read the schema: a tree, each group before its children, the root first."""
    following = 0  # elements of the column that are still to come
    column = ""
    for place in range(reader.list_length()):
        name, physical, length, children = "", -1, 0, 0
        for number, kind in reader.fields():
            if number == 1:  # type
                physical = reader.integer()
            elif number == 2:  # type_length
                length = reader.integer()
            elif number == 4:  # name
                name = reader.binary().decode(errors="replace")
            elif number == 5:  # num_children
                children = reader.integer()
            else:
                reader.skip(kind)
        if place == 0:
            continue
        column, following = (name, 1) if following == 0 else (column, following)
        following += children - 1
        if children == 0:
            width = length if physical == _FIXED_LENGTH else _WIDTHS.get(physical, _VIEW)
            yield _Leaf(column, physical == _BYTE_ARRAY, max(0, width))


def _read_group(
    reader: CompactReader,
    leaves: list[_Leaf],
    columns: Collection[str],
    chunks: list[tuple[_Leaf, _Chunk]],
) -> int:
    """Append the chunks of a group of rows that count, and return how many rows it has."""
    rows = 0
    for number, kind in reader.fields():
        if number == 1:  # columns
            for place in range(reader.list_length()):
                chunk = _read_chunk(reader)
                if chunk is None or place >= len(leaves):
                    raise ThriftError("its footer does not say where a column lies")
                if leaves[place].column in columns:
                    chunks.append((leaves[place], chunk))
        elif number == 3:  # num_rows
            rows = reader.integer()
        else:
            reader.skip(kind)
    return max(0, rows)


def _read_chunk(reader: CompactReader) -> _Chunk | None:
    chunk = None
    for number, kind in reader.fields():
        if number == 3:  # meta_data
            chunk = _read_chunk_metadata(reader)
        else:
            reader.skip(kind)
    return chunk


def _read_chunk_metadata(reader: CompactReader) -> _Chunk:
    values = length = data = dictionary = 0
    for number, kind in reader.fields():
        if number == 5:  # num_values
            values = reader.integer()
        elif number == 7:  # total_compressed_size
            length = reader.integer()
        elif number == 9:  # data_page_offset
            data = reader.integer()
        elif number == 11:  # dictionary_page_offset
            dictionary = reader.integer()
        else:
            reader.skip(kind)
    start = dictionary or data
    if start < 0 or length < 0:
        raise ThriftError("its footer has a column at a negative place")
    return _Chunk(start, length, values)


def _pages_of(file: BinaryIO, chunk: _Chunk) -> Iterator[_Page]:
    place, end, values = chunk.start, chunk.start + chunk.length, 0
    while place < end:
        file.seek(place)
        try:
            page = _read_page(CompactReader(file))
        except ThriftError:
            if values >= chunk.values:  # some writers leave bytes after the last page
                return
            raise
        yield page
        values += page.values
        place = file.tell() + page.packed


def _read_page(reader: CompactReader) -> _Page:
    unpacked = packed = values = 0
    encoding = -1
    for number, kind in reader.fields():
        if number == 2:  # uncompressed_page_size
            unpacked = reader.integer()
        elif number == 3:  # compressed_page_size
            packed = reader.integer()
        elif number == 5:  # data_page_header: num_values, encoding
            values, encoding = _read_data_header(reader, 1, 2)
        elif number == 8:  # data_page_header_v2: num_values, num_nulls, num_rows, encoding
            values, encoding = _read_data_header(reader, 1, 4)
        else:
            reader.skip(kind)
    if unpacked < 0 or packed < 0 or values < 0:
        raise ThriftError("a page has a negative size")
    return _Page(packed, unpacked, values, encoding)


def _read_data_header(reader: CompactReader, count: int, encoding: int) -> tuple[int, int]:
    found = {count: 0, encoding: -1}
    for number, kind in reader.fields():
        if number in found:
            found[number] = reader.integer()
        else:
            reader.skip(kind)
    return found[count], found[encoding]


def _add(total: Pages, leaf: _Leaf, pages: Iterator[_Page]) -> None:
    values = unpacked = 0
    for page in pages:
        values += page.values
        unpacked += page.unpacked
        total.largest = max(total.largest, page.unpacked)
        if page.encoding == _DELTA_BYTE_ARRAY:
            total.unbounded.add(leaf.column)
    if leaf.is_text:
        total.memory += _VIEW * values + _COPIES * unpacked
    else:
        total.memory += max(leaf.width * values, unpacked)
