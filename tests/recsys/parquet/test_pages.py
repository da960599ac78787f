"""The sizes of pages, against what PyArrow says of the files it has written."""

from __future__ import annotations

import base64
import io
import struct
from contextlib import suppress
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.parquet.arrow_schema import check_arrow_schema
from recsys.parquet.deltas import DeltaPage, check_deltas
from recsys.parquet.pages import (
    Pages,
    _check_metadata,
    _Chunk,
    _delta_page,
    _Leaf,
    _Page,
    _pages_of,
    read_pages,
)
from recsys.parquet.size import check_pages, columns_of, pages_of
from recsys.parquet.thrift import CompactReader, ThriftError

N = 3000
RNG = np.random.default_rng(0)
TABLE = pa.table(
    {
        "id": pa.array(RNG.integers(0, 99, N)),
        "small": pa.array(RNG.integers(0, 99, N), pa.int8()),
        "real": pa.array(RNG.random(N).astype(np.float32)),
        "flag": pa.array(RNG.random(N) < 0.5, mask=RNG.random(N) < 0.1),
        "word": pa.array([f"word {i % 50}" for i in range(N)]),
        "text": pa.array([f"a text that is like no other, {i}" * 3 for i in range(N)]),
        "list": pa.array([[f"{i}", "x"] * (i % 4) for i in range(N)]),
        "pair": pa.array([{"a": i, "b": str(i)} for i in range(N)]),
        "fixed": pa.array([b"0123456789"] * N, pa.binary(10)),
    }
)
TEXTS = {"word", "text"}


def written(table: pa.Table = TABLE, **settings: Any) -> io.BytesIO:
    sink = io.BytesIO()
    pq.write_table(table, sink, **settings)
    return sink


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip"])
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_all_pages_are_found(compression, dictionary, version):
    file = written(
        compression=compression,
        use_dictionary=dictionary,
        data_page_version=version,
        row_group_size=1100,
        data_page_size=2000,
        write_batch_size=100,
    )
    told = pq.ParquetFile(file).metadata
    for group in range(told.num_row_groups):
        for place in range(told.num_columns):
            column = told.row_group(group).column(place)
            start = column.dictionary_page_offset or column.data_page_offset
            chunk = _Chunk(start, column.total_compressed_size, column.num_values)
            pages = list(_pages_of(file, chunk))
            assert sum(page.values for page in pages) == column.num_values
            saved = sum(page.unpacked - page.packed for page in pages)
            assert saved == column.total_uncompressed_size - column.total_compressed_size
    pages = read_pages(file, TABLE.column_names)
    assert pages.rows == N
    assert 1_000 < pages.largest < 120_000
    assert not pages.unbounded


def unpacked(file: io.BytesIO, name: str) -> int:
    """Bytes of a column and of the headers of its pages, as PyArrow has noted them."""
    told = pq.ParquetFile(file).metadata
    columns = [
        told.row_group(group).column(place)
        for group in range(told.num_row_groups)
        for place in range(told.num_columns)
    ]
    return sum(c.total_uncompressed_size for c in columns if c.path_in_schema.split(".")[0] == name)


@pytest.mark.parametrize(
    ("name", "least"),
    [("id", 8 * N), ("small", 4 * N), ("real", 4 * N), ("flag", N), ("fixed", 26 * N)],
)
def test_numbers_take_what_they_are_wide(name, least):
    for settings in ({}, {"use_dictionary": False, "compression": "none"}):
        file = written(row_group_size=1000, **settings)
        assert least <= read_pages(file, [name]).memory <= 1.4 * least + 1000


@pytest.mark.parametrize("name", ["word", "text"])
def test_texts_take_their_pages_twice_and_a_view_each(name):
    """And so do those of a dictionary."""
    file = written(row_group_size=1000, compression="zstd")
    told = unpacked(file, name)
    memory = read_pages(file, [name]).memory
    assert 2 * (told - 1000) + 16 * N < memory < 2 * told + 32 * N


def test_nested_columns_count_with_all_that_belongs_to_them():
    file = written(compression="none")
    values = sum(2 * (i % 4) or 1 for i in range(N))
    listed, pair = (read_pages(file, [name]) for name in ("list", "pair"))
    assert 16 * values < listed.memory < 32 * values + 2 * unpacked(file, "list")
    assert 8 * N + 16 * N < pair.memory < 40 * N + 2 * unpacked(file, "pair")
    assert read_pages(file, ["b", "element", "nowhere"]) == Pages(N)
    assert read_pages(file, ["list", "pair"]).memory == listed.memory + pair.memory


def test_the_values_of_a_list_are_counted():
    """Of one row, so that rows don't tell."""
    sink = io.BytesIO()
    frame = pl.DataFrame({"list": [[7] * 1_000_000]})
    frame.write_parquet(sink, data_page_size=2**40)
    assert len(sink.getvalue()) < 10_000
    assert read_pages(sink, ["list"]).rows == 1
    assert 8_000_000 <= read_pages(sink, ["list"]).memory < 8_001_000


def test_texts_that_are_written_as_differences_are_named():
    file = written(use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"})
    assert read_pages(file, TABLE.column_names).unbounded == {"text"}
    v2 = written(
        use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"}, data_page_version="2.0"
    )
    assert read_pages(v2, TABLE.column_names).unbounded == {"text"}
    assert read_pages(v2, ["word"]).unbounded == set()


def test_what_polars_writes():
    frame = pl.DataFrame({"user": range(N), "item": ["a"] * N})
    sink = io.BytesIO()
    frame.write_parquet(sink, row_group_size=700)
    assert 8 * N <= read_pages(sink, ["user"]).memory < 10 * N
    assert 16 * N < read_pages(sink, ["item"]).memory < 17 * N
    empty = io.BytesIO()
    frame.head(0).write_parquet(empty)
    assert read_pages(empty, ["user", "item"]).rows == 0


SMALL = written(TABLE.slice(0, 50).select(["id", "text"]), compression="zstd").getvalue()


@given(st.data())
def test_damaged_files_are_read_or_refused(data):
    content = bytearray(SMALL)
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 9))] = data.draw(st.integers(0, 255))
    with suppress(ThriftError):
        read_pages(io.BytesIO(bytes(content)), ["id", "text"])


@given(st.integers(0, len(SMALL)))
def test_cut_files_are_read_or_refused(length):
    with suppress(ThriftError):
        read_pages(io.BytesIO(SMALL[:length]), ["id", "text"])


# Structs of the format, by hand: fields of 32 and 64 bits, lists of structs, and structs.


def number(step: int, value: int) -> bytes:
    folded, out = (value << 1) ^ (value >> 63), bytearray([step << 4 | 6])
    while folded > 127:
        out.append(folded & 127 | 128)
        folded >>= 7
    return bytes([*out, folded])


def page(unpacked: int, packed: int, values: int) -> bytes:
    """Return the header of a data page (of version 1, plain) without a body."""
    header = b"\x2c" + number(1, values) + number(1, 0) + b"\x00"
    return number(2, unpacked) + number(1, packed) + header + b"\x00"


def file_of(body: bytes, metadata: bytes | None, leaves: int = 1, groups: int = 1) -> io.BytesIO:
    """Return a file with a column x of bytes, whose chunk has some metadata, in groups of rows."""
    root = b"\x48\x04root" + number(1, leaves) + b"\x00"
    leaf = number(1, 6) + b"\x38\x01x\x00"
    schema = b"\x29" + bytes([1 + leaves << 4 | 12]) + root + leaf * leaves
    chunk = b"" if metadata is None else b"\x3c" + metadata + b"\x00"
    group = b"\x19\x1c" + chunk + b"\x00" + number(2, 10) + b"\x00"
    footer = schema + b"\x29" + bytes([groups << 4 | 12]) + group * groups + b"\x00"
    return io.BytesIO(body + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def metadata(values: int, length: int, start: int) -> bytes:
    return number(5, values) + number(2, length) + number(2, start)


def test_files_by_hand():
    body = page(500, 0, 10)
    file = file_of(body, metadata(10, len(body), 0))
    assert read_pages(file, ["x"]) == Pages(10, 2 * 500 + 16 * 10, 500)


@pytest.mark.parametrize("trailing", [b"\xff" * 20, b"\x1d"])
def test_bytes_after_the_last_page_are_no_damage(trailing):
    body = page(500, 0, 10) + trailing
    assert read_pages(file_of(body, metadata(10, len(body), 0)), ["x"]).largest == 500
    with pytest.raises(ThriftError):
        read_pages(file_of(body, metadata(11, len(body), 0)), ["x"])


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (file_of(b"", None), "its footer does not say where a column lies"),
        (file_of(b"", metadata(1, 1, 0), leaves=0), "its footer does not say where a column lies"),
        (file_of(b"", metadata(1, 10**9, 0)), "its columns are longer than the file"),
        (file_of(b"", metadata(1, -1, 0)), "its footer has a column at a negative place"),
        (file_of(b"", metadata(1, 1, -1)), "its footer has a column at a negative place"),
        (file_of(page(-1, 0, 1), metadata(1, 5, 0)), "a page has a negative size"),
        (file_of(page(1, -9, 1), metadata(1, 5, 0)), "a page has a negative size"),
        (io.BytesIO(b"PAR1\xff\xff\xff\x7fPAR1"), "its footer is longer than the file"),
        (io.BytesIO(b""), "its footer is longer than the file"),
    ],
)
def test_what_is_damaged_is_said(file, message):
    with pytest.raises(ThriftError, match=f"^{message}$"):
        read_pages(file, ["x"])


def test_pages_that_groups_of_rows_share_are_refused():
    """A page of a megabyte, named a thousand times, would be a gigabyte."""
    body = page(500, 400, 10) + bytes(400)
    assert read_pages(file_of(body, metadata(10, len(body), 0)), ["x"]).rows == 10
    with pytest.raises(ThriftError, match=r"^its columns are longer than the file$"):
        read_pages(file_of(body, metadata(10, len(body), 0), groups=2), ["x"])


def dictionary(values: int, content: bytes) -> bytes:
    """Return a page with a dictionary."""
    header = b"\x4c" + number(1, values) + number(1, 0) + b"\x00"
    size = number(1, len(content))
    return number(1, 2) + size + size + header + b"\x00" + content


def test_a_dictionary_has_no_more_values_than_bytes():
    """polars would make room for two billion texts."""
    for values in (2, 2**31 - 1):
        body = dictionary(values, b"\x00\x00\x00\x00" * 2) + page(9, 0, 1)
        file = file_of(body, metadata(1, len(body), 0))
        if values == 2:
            assert read_pages(file, ["x"]) == Pages(10, 2 * (9 + 8) + 16 * (1 + 2), 9)
            continue
        with pytest.raises(ThriftError, match=r"^a page has more values than bytes$"):
            read_pages(file, ["x"])


def nested(depth: int) -> io.BytesIO:
    group = b"\x48\x01x" + number(1, 1) + b"\x00"
    schema = b"\x29\xfc" + bytes([depth + 2 & 127 | 128, depth + 2 >> 7])
    schema += group * (depth + 1) + number(1, 6) + b"\x38\x01x\x00"
    footer = schema + b"\x00"
    return io.BytesIO(footer + len(footer).to_bytes(4, "little") + b"PAR1")


def test_columns_in_columns_are_refused_where_polars_would_crash():
    assert read_pages(nested(40), ["x"]) == Pages()
    for depth in (60, 3000):
        with pytest.raises(ThriftError, match=r"^more than 50 columns lie in each other$"):
            read_pages(nested(depth), ["x"])


def arrow(depth: int) -> bytes:
    kind = pa.int64()
    for _ in range(depth):
        kind = pa.list_(kind)
    schema = pa.schema([("user", pa.int64()), ("x", kind), ("pair", pa.struct([("a", kind)]))])
    return base64.b64encode(schema.serialize().to_pybytes())


def test_arrow_schemas_that_are_too_deep_are_refused():
    check_arrow_schema(arrow(10), 12)
    for depth in (11, 1000):
        with pytest.raises(ThriftError, match="deeper than 12 columns"):
            check_arrow_schema(arrow(depth), 12)
    text = arrow(900)
    length = bytes([len(text) & 127 | 128, len(text) >> 7 & 127 | 128, len(text) >> 14])
    pair = b"\x18\x0cARROW:schema\x18" + length + text + b"\x00"
    body = page(500, 0, 10)
    content = (
        file_of(body, metadata(10, len(body), 0)).getvalue()[:-9] + b"\x19\x1c" + pair + b"\x00"
    )
    content += (len(content) - len(body)).to_bytes(4, "little") + b"PAR1"
    with pytest.raises(pl.exceptions.ComputeError, match="Arrow schema is damaged or deeper"):
        columns_of(content)


def test_fields_of_an_arrow_schema_that_all_have_the_same_children_are_refused():
    """Forty tables, each of which has the next one twice, would be 2**40 columns."""
    tables, slots = bytearray(), b"\x10\x00\x08\x00" + bytes(10) + b"\x04\x00"  # slot 5
    for _ in range(40):  # a table: back to its slots, and the place of its list, which follows
        back = 16 + len(tables)
        tables += struct.pack("<iIIII", back, 4, 2, 8, 4)
    tables += struct.pack("<iI", 16 + len(tables), 0)
    head = b"\x0a\x00\x08\x00\x00\x00\x00\x00\x04\x00" + b"\x08\x00\x08\x00\x00\x00\x04\x00"
    # message -> schema -> a list of one field, the first table
    start = 4 + len(head) + 2
    root = struct.pack("<iI", start - 4, 4) + struct.pack("<iIII", start + 8 - 14, 4, 1, 4 + 16)
    message = struct.pack("<I", start) + head + bytes(2) + root + slots + tables
    with pytest.raises(ThriftError, match="deeper than 50 columns"):
        check_arrow_schema(base64.b64encode(b"\xff\xff\xff\xff\x00\x00\x00\x00" + message), 50)


@given(st.data())
def test_damaged_arrow_schemas_are_read_or_refused(data):
    content = bytearray(base64.b64decode(arrow(3)))
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ThriftError):
        check_arrow_schema(base64.b64encode(bytes(content)), 50)


DELTAS = {
    "id": "DELTA_BINARY_PACKED",
    "text": "DELTA_LENGTH_BYTE_ARRAY",
    "few": "DELTA_BINARY_PACKED",
}


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip", "brotli", "lz4"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_differences_are_counted_whatever_they_are_packed_with(compression, version):
    few = pa.array(range(N), mask=RNG.random(N) < 0.9)
    lists = pa.array([None if i % 3 else list(range(i % 7)) for i in range(N)])
    table = TABLE.select(["id", "text"]).append_column("few", few).append_column("list", lists)
    content = written(
        table,
        compression=compression,
        data_page_version=version,
        use_dictionary=False,
        column_encoding=DELTAS | {"list.list.element": "DELTA_BINARY_PACKED"},
        data_page_size=5000,
        write_batch_size=100,
    ).getvalue()
    pages = pages_of(content, table.column_names)
    assert len(pages.deltas) >= 10
    check_pages(content, pages)
    for place, page in enumerate(pages.deltas):
        pages.deltas[place] = page._replace(values=page.values // 20)
        with pytest.raises(pl.exceptions.ComputeError, match="more differences than values"):
            check_pages(content, pages)
        pages.deltas[place] = page


def test_a_page_without_differences_is_one_of_missing_values():
    page = DeltaPage(start=0, packed=0, unpacked=0, codec=0, levels=0, values=5)
    check_deltas(io.BytesIO(), page)


def test_a_page_that_is_shorter_than_its_levels():
    short = _Page(0, 1, 9, 1, 5, 0, levels=2, is_compressed=False)
    with pytest.raises(ThriftError, match=r"^a page is shorter than its levels$"):
        _delta_page(short, _Leaf("x", False, 8, 1), _Chunk(0, 1, 1))


def test_what_else_is_noted_of_a_file_is_passed_over():
    reader = CompactReader(io.BytesIO(b"\x18\x01k\x18\x01v\x15\x02\x00" + b"\x0e"))
    _check_metadata(reader)
    assert reader.integer() == 7


def test_a_page_with_two_headers_is_refused():
    """The second says that there is one value, and polars would go by the first."""
    first = b"\x2c" + number(1, 2**31 - 1) + number(1, 0) + b"\x00"
    second = b"\x3c" + number(1, 1) + number(3, 0) + b"\x00"
    body = number(2, 9) + number(1, 0) + first + second + b"\x00"
    with pytest.raises(ThriftError, match=r"^a page has two headers$"):
        read_pages(file_of(body, metadata(1, len(body), 0)), ["x"])
