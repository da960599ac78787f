"""The compact protocol, against bytes written down by its specification."""

from __future__ import annotations

import io
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.parquet.thrift import CompactReader, ThriftError

I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = 4, 5, 6, 7, 8, 9, 10, 11, 12


def reader(content: bytes) -> CompactReader:
    return CompactReader(io.BytesIO(content))


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def zigzag(number: int) -> bytes:
    return varint(number << 1 if number >= 0 else ((-number) << 1) - 1)


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers(number):
    assert reader(zigzag(number)).integer() == number


def test_fields_have_their_numbers_by_steps_or_by_themselves():
    content = b"\x15\x02" + b"\x25\x04" + b"\x05" + zigzag(100) + b"\x06" + b"\x00"
    values = reader(content)
    assert [(number, kind, values.integer()) for number, kind in values.fields()] == [
        (1, I32, 1),
        (3, I32, 2),
        (100, I32, 3),
    ]


@st.composite
def values(draw: st.DrawFn, depth: int = 3) -> tuple[int, bytes]:
    """Return the type and the bytes of any value, as it stands in a list or a map."""
    plain = [1, 3, I16, I32, I64, DOUBLE, BINARY]
    kind = draw(st.sampled_from([*plain, LIST, SET, MAP, STRUCT] if depth else plain))
    if kind in (1, 3):
        return kind, bytes([draw(st.integers(0, 255))])
    if kind in (I16, I32, I64):
        return kind, zigzag(draw(st.integers(-(2**31), 2**31)))
    if kind == DOUBLE:
        return kind, struct.pack("<d", draw(st.floats()))
    if kind == BINARY:
        text = draw(st.binary(max_size=200))
        return kind, varint(len(text)) + text
    inner, value = draw(values(depth - 1))
    count = draw(st.sampled_from([0, 1, 14, 15, 200]))
    if kind in (LIST, SET):
        head = [count << 4 | inner] if count < 15 else [15 << 4 | inner, *varint(count)]
        return kind, bytes(head) + value * count
    if kind == MAP:
        pairs = (b"\x07" + value) * count  # keys of a byte
        return kind, varint(count) + (bytes([3 << 4 | inner]) + pairs if count else b"")
    if inner == 1:  # of a field, the type is the value
        return kind, bytes([1 << 4 | draw(st.sampled_from([1, 2]))]) + b"\x00"
    return kind, bytes([1 << 4 | inner]) + value + b"\x00"


@given(values())
def test_anything_can_be_passed_over(value):
    kind, content = value
    if kind == 1:
        content = b""
    passed = reader(content + zigzag(4711))
    passed.skip(kind)
    assert passed.integer() == 4711


@given(st.binary(max_size=60), st.sampled_from(range(16)))
def test_nonsense_is_passed_over_or_refused(content, kind):
    with suppress(ThriftError):
        reader(content).skip(kind)


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        (I32, b"\xff" * 10, "a number has more than 64 bits"),
        (I32, b"\x80", "it ends too early"),
        (BINARY, b"\x05abc", "it ends too early"),
        (13, b"", "there is no type 13"),
        (STRUCT, b"\x15\x02\x05\x02\x00\x00", "field 1 comes after field 1"),
        (LIST, b"\x19" * 40, "values lie deeper than 32 in each other"),
        (STRUCT, b"\x1c" * 40, "values lie deeper than 32 in each other"),
    ],
)
def test_what_is_wrong_is_said(kind, content, message):
    with pytest.raises(ThriftError, match=f"^{message}"):
        reader(content).skip(kind)


def test_a_text_is_never_longer_than_the_file():
    with pytest.raises(ThriftError, match="ends too early"):
        reader(varint(2**60) + b"abc").binary()
    assert reader(b"\x03abcd").binary() == b"abc"
