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

from recsys.parquet.arrow_schema import check_arrow_schema
from recsys.parquet.deltas import DELTAS, DeltaPage
from recsys.parquet.thrift import CompactReader, ThriftError

__all__ = ["Pages", "read_pages"]

_TAIL = 8  # bytes: the length of the footer, and PAR1
_BYTE_ARRAY, _FIXED_LENGTH = 6, 7  # physical types
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}  # in bytes, of the others
_VIEW = 16  # bytes of a text that lies elsewhere
_DELTA_BYTE_ARRAY = 7  # the encoding: each text as what differs from the one before
_OPTIONAL, _REPEATED = 1, 2  # what need not be there, and what may be there more than once
_DEEPEST = 50  # columns in each other; polars follows a few hundred before it crashes
_TRUE = 1  # the type of a field, which is its value
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
    deltas : list of DeltaPage
        Pages that may tell of more values than they have.
    """

    rows: int = 0
    memory: int = 0
    largest: int = 0
    unbounded: set[str] = field(default_factory=set)
    deltas: list[DeltaPage] = field(default_factory=list)


class _Leaf(NamedTuple):
    """A column of the file, one of several if what it belongs to is nested."""

    column: str
    is_text: bool
    width: int
    levels: int


@dataclass(slots=True)
class _Element:
    """An entry of the schema: a leaf, or a group of what follows."""

    name: str = ""
    physical: int = -1
    length: int = 0
    repetition: int = 0
    children: int = 0


class _Chunk(NamedTuple):
    """Where the pages of a leaf in one group of rows lie, and how many values they have."""

    start: int
    length: int
    values: int
    codec: int = 0


class _Page(NamedTuple):
    """What the header of a page says, and where the page begins behind it.

    `dictionary` are the values of a dictionary, `levels` the length of lists of levels that are not
    compressed, None if they are.
    """

    start: int
    packed: int
    unpacked: int
    values: int
    encoding: int
    dictionary: int
    levels: int | None
    is_compressed: bool


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
        elif number == 5:  # key_value_metadata
            for _ in range(reader.list_length()):
                _check_metadata(reader)
        else:
            reader.skip(kind)
    size = file.seek(0, os.SEEK_END)
    if sum(chunk.length for _, chunk in chunks) > size:
        raise ThriftError("its columns are longer than the file")
    for leaf, chunk in chunks:
        _add(pages, leaf, chunk, _pages_of(file, chunk))
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
    column = ""
    around: list[_Element] = []  # the groups that what follows is in, without the root
    for place in range(reader.list_length()):
        element = _read_element(reader)
        if place == 0:
            continue
        while around and around[-1].children == 0:
            around.pop()
        if around:
            around[-1].children -= 1
        else:
            column = element.name
        around.append(element)
        if len(around) > _DEEPEST:
            raise ThriftError(f"more than {_DEEPEST} columns lie in each other")
        if element.children <= 0:
            yield _leaf(column, around)
            around.pop()


def _read_element(reader: CompactReader) -> _Element:
    element = _Element()
    for number, kind in reader.fields():
        if number == 1:  # type
            element.physical = reader.integer()
        elif number == 2:  # type_length
            element.length = reader.integer()
        elif number == 3:  # repetition_type
            element.repetition = reader.integer()
        elif number == 4:  # name
            element.name = reader.binary().decode(errors="replace")
        elif number == 5:  # num_children
            element.children = reader.integer()
        else:
            reader.skip(kind)
    return element


def _leaf(column: str, branch: list[_Element]) -> _Leaf:
    """Return a leaf by its entry in the schema, the last one, and those that it is in."""
    physical, length = branch[-1].physical, branch[-1].length
    width = length + _VIEW if physical == _FIXED_LENGTH else _WIDTHS.get(physical, _VIEW)
    kinds = {element.repetition for element in branch}
    levels = bool(kinds & {_OPTIONAL, _REPEATED}) + (_REPEATED in kinds)
    return _Leaf(column, physical == _BYTE_ARRAY, max(0, width), levels)


def _check_metadata(reader: CompactReader) -> None:
    key = value = b""
    for number, kind in reader.fields():
        if number == 1:  # key
            key = reader.binary()
        elif number == 2:  # value
            value = reader.binary()
        else:
            reader.skip(kind)
    if key == b"ARROW:schema":
        check_arrow_schema(value, _DEEPEST)


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
    codec = values = length = data = dictionary = 0
    for number, kind in reader.fields():
        if number == 4:  # codec
            codec = reader.integer()
        elif number == 5:  # num_values
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
    return _Chunk(start, length, values, codec)


def _pages_of(file: BinaryIO, chunk: _Chunk) -> Iterator[_Page]:
    place, end, values = chunk.start, chunk.start + chunk.length, 0
    while place < end:
        file.seek(place)
        try:
            page = _read_page(file)
        except ThriftError:
            if values >= chunk.values:  # some writers leave bytes after the last page
                return
            raise
        yield page
        values += page.values
        place = page.start + page.packed


def _read_page(file: BinaryIO) -> _Page:
    reader = CompactReader(file)
    unpacked = packed = values = dictionary = 0
    encoding, levels, is_compressed = -1, None, True
    headers = 0
    for number, kind in reader.fields():
        headers += number in (5, 8)
        if number == 2:  # uncompressed_page_size
            unpacked = reader.integer()
        elif number == 3:  # compressed_page_size
            packed = reader.integer()
        elif number == 5:  # data_page_header: num_values, encoding
            found = _read_header(reader)
            values, encoding = found.get(1, 0), found.get(2, -1)
        elif number == 7:  # dictionary_page_header: num_values
            dictionary = _read_header(reader).get(1, 0)
        elif number == 8:  # data_page_header_v2
            found = _read_header(reader)
            values, encoding = found.get(1, 0), found.get(4, -1)
            levels = found.get(5, 0) + found.get(6, 0)
            is_compressed = bool(found.get(7, True))
        else:
            reader.skip(kind)
    if min(unpacked, packed, values, dictionary, levels or 0) < 0:
        raise ThriftError("a page has a negative size")
    if headers > 1:  # of which polars takes the one that the type of the page names
        raise ThriftError("a page has two headers")
    if dictionary > unpacked:  # polars makes room for as many
        raise ThriftError("a page has more values than bytes")
    return _Page(file.tell(), packed, unpacked, values, encoding, dictionary, levels, is_compressed)


def _read_header(reader: CompactReader) -> dict[int, int]:
    """Return the numbers and flags of the header of a page of some kind, by their fields."""
    found = {}
    for number, kind in reader.fields():
        if reader.is_integer(kind):
            found[number] = reader.integer()
        else:
            found[number] = kind == _TRUE
            reader.skip(kind)
    return found


def _add(total: Pages, leaf: _Leaf, chunk: _Chunk, pages: Iterator[_Page]) -> None:
    values = entries = unpacked = 0
    for page in pages:
        values += page.values
        entries += page.dictionary
        unpacked += page.unpacked
        total.largest = max(total.largest, page.unpacked)
        if page.encoding == _DELTA_BYTE_ARRAY:
            total.unbounded.add(leaf.column)
        elif page.encoding in DELTAS:
            total.deltas.append(_delta_page(page, leaf, chunk))
    if leaf.is_text:
        total.memory += _VIEW * (values + entries) + _COPIES * unpacked
    else:
        total.memory += max(leaf.width * values, unpacked)


def _delta_page(page: _Page, leaf: _Leaf, chunk: _Chunk) -> DeltaPage:
    plain = page.levels or 0
    if plain > min(page.packed, page.unpacked):
        raise ThriftError("a page is shorter than its levels")
    return DeltaPage(
        start=page.start + plain,
        packed=page.packed - plain,
        unpacked=page.unpacked - plain,
        codec=chunk.codec if page.is_compressed else 0,
        levels=leaf.levels if page.levels is None else 0,
        values=page.values,
    )
