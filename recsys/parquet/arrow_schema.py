"""The schema that writers add to a Parquet file in Arrow's form, of which only the depth is read.

A reader follows columns in columns by calling itself, and a schema too deep ends the process. The
form is a flatbuffer: Apache's arrow/format/Message.fbs and Schema.fbs, whose slots these are.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterator

from recsys.parquet.thrift import ThriftError

__all__ = ["check_arrow_schema"]

_CONTINUED = b"\xff\xff\xff\xff"  # before the length of a message, in all but the oldest
_HEADER, _FIELDS, _CHILDREN = 2, 1, 5  # slots of Message, Schema and Field
_FIELD = 12  # bytes of a field, at the least
_LENGTH = struct.Struct("<I")
_BACK = struct.Struct("<i")
_SHORT = struct.Struct("<H")


def check_arrow_schema(text: bytes, deepest: int) -> None:
    """Refuse a schema whose columns lie too deep in each other, or come again and again.

    Parameters
    ----------
    text : bytes
        In base 64, as Parquet files have it.
    deepest : int
        How many columns may lie in each other.

    Raises
    ------
    ThriftError
        If they lie deeper, or the schema is damaged.
    """
    try:
        message = base64.b64decode(text)
        message = message[8:] if message.startswith(_CONTINUED) else message[4:]
        _check(message, deepest)
    except (binascii.Error, struct.error):
        raise ThriftError("its Arrow schema is damaged") from None


def _check(message: bytes, deepest: int) -> None:
    header = _place(message, _follow(message, 0), _HEADER)
    fields = [] if header is None else list(_listed(message, _follow(message, header), _FIELDS))
    seen = depth = 0
    while fields:
        seen, depth = seen + len(fields), depth + 1
        if depth > deepest or seen * _FIELD > len(message):  # more: fields that several have
            raise ThriftError(f"its Arrow schema is damaged or deeper than {deepest} columns")
        fields = [child for field in fields for child in _listed(message, field, _CHILDREN)]


def _listed(message: bytes, table: int, slot: int) -> Iterator[int]:
    """Yield the places of the tables in a list."""
    place = _place(message, table, slot)
    if place is None:
        return
    start = _follow(message, place)
    for number in range(_LENGTH.unpack_from(message, start)[0]):
        yield _follow(message, start + 4 + 4 * number)


def _place(message: bytes, table: int, slot: int) -> int | None:
    """Return where a slot of a table is, None if it is empty."""
    slots = table - int(_BACK.unpack_from(message, table)[0])
    if slots < 0:
        raise struct.error
    offset = 4 + 2 * slot
    if offset + 2 > _SHORT.unpack_from(message, slots)[0]:
        return None
    step = int(_SHORT.unpack_from(message, slots + offset)[0])
    return table + step if step else None


def _follow(message: bytes, place: int) -> int:
    return place + int(_LENGTH.unpack_from(message, place)[0])
