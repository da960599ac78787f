"""Thrift's compact protocol, as far as the metadata of Parquet files use it.

Written down in THRIFT's doc/specs/thrift-compact-protocol.md. Nothing is kept that the caller
does not ask for, so that a file cannot make much out of little.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

__all__ = ["CompactReader", "ThriftError", "zigzag"]

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_INTEGERS = (4, 5, 6)  # of 16, 32 and 64 bits
_BITS = 64
_DEPTH = 32  # of values in values; Parquet's metadata need 6


class ThriftError(ValueError):
    """What is no Thrift, or ends too early."""


class CompactReader:
    """Reads values one after another from a file, from where it stands.

    Parameters
    ----------
    file : binary file
        That can be sought in.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        here = file.tell()
        self._end = file.seek(0, os.SEEK_END)
        file.seek(here)

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and type of each field of a struct; its value must be read or skipped.

        Numbers must rise, as everyone writes them: nothing can be said twice.
        """
        number = 0
        while head := self._byte():
            following = number + (head >> 4) if head >> 4 else self.integer()
            if following <= number:
                raise ThriftError(f"field {following} comes after field {number}")
            number = following
            yield number, head & 15

    def integer(self) -> int:
        """Read an integer of 16, 32 or 64 bits."""
        folded = self._varint()
        return (folded >> 1) ^ -(folded & 1)

    def unsigned(self) -> int:
        """Read an integer without a sign, as Parquet has them within its pages."""
        return self._varint()

    @staticmethod
    def is_integer(kind: int) -> bool:
        """Whether the value of a field of this type is an integer of 16, 32 or 64 bits."""
        return kind in _INTEGERS

    def binary(self) -> bytes:
        """Read a text, or other bytes."""
        return self._file.read(self._length())

    def list_length(self) -> int:
        """Read the head of a list, and return how many values follow."""
        return self._list_head()[0]

    def skip(self, kind: int) -> None:
        """Pass over the value of a field."""
        if kind not in (_TRUE, _FALSE):  # whose type is their value
            self._skip(kind, 0)

    def _skip(self, kind: int, depth: int) -> None:
        if depth > _DEPTH:
            raise ThriftError(f"values lie deeper than {_DEPTH} in each other")
        if kind in (_TRUE, _FALSE, _BYTE):
            self._byte()
        elif kind in _INTEGERS:
            self._varint()
        elif kind == _DOUBLE:
            self._pass(8)
        elif kind == _BINARY:
            self._pass(self._length())
        elif kind in (_LIST, _SET):
            length, inner = self._list_head()
            for _ in range(length):
                self._skip(inner, depth + 1)
        elif kind == _MAP:
            self._skip_map(depth)
        elif kind == _STRUCT:
            for _, inner in self.fields():
                if inner not in (_TRUE, _FALSE):
                    self._skip(inner, depth + 1)
        else:
            raise ThriftError(f"there is no type {kind}")

    def _skip_map(self, depth: int) -> None:
        length = self._varint()
        kinds = self._byte() if length else 0
        for _ in range(length):
            self._skip(kinds >> 4, depth + 1)
            self._skip(kinds & 15, depth + 1)

    def _list_head(self) -> tuple[int, int]:
        head = self._byte()
        short = head >> 4
        return (short if short < 15 else self._varint()), head & 15

    def _length(self) -> int:
        length = self._varint()
        if length > self._end - self._file.tell():
            raise ThriftError("it ends too early")
        return length

    def _pass(self, length: int) -> None:
        self._file.seek(length, os.SEEK_CUR)

    def _varint(self) -> int:
        value = 0
        for shift in range(0, _BITS, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ThriftError("a number has more than 64 bits")

    def _byte(self) -> int:
        found = self._file.read(1)
        if not found:
            raise ThriftError("it ends too early")
        return found[0]


def zigzag(number: int) -> bytes:
    """Write an integer that is not negative.

    Examples
    --------
    >>> import io
    >>> CompactReader(io.BytesIO(zigzag(1000))).integer()
    1000
    """
    folded, out = number << 1, bytearray()
    while folded > 127:
        out.append(folded & 127 | 128)
        folded >>= 7
    return bytes([*out, folded])
