"""Parts of models: records of fitted arrays, and the reading of arrays with checks.

A model declares a part as it declares an array::

    time_biases: TimeBiases | None = part(TimeBiases)

A part has all of its arrays or is None. In files, its arrays have the name of the part before their
own. The axes of arrays may be named "n_{side}s": a part named `users` or `items` sets the side of
its arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, Self, TypeVar, dataclass_transform

import numpy as np
from numpy.typing import NDArray

from recsys.errors import DataError

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]

SIDES = {"users": "user", "items": "item"}  # sides of parts, by the name of the part
OTHER = {"user": "item", "item": "user", "": ""}
# Dtypes of arrays and dtype kinds of scalars, by annotation.
_DTYPES = {"Floats": "float32"} | {
    f"NDArray[np.{name}]": name for name in ("float64", "int32", "int64")
}
_KINDS = {"bool": "b", "int": "iu", "float": "fiu"}
# Sides of the axes along which users or items are indexed. Links have the rows of the other side.
_SIDE_OF_AXIS = {
    "n_users": "user",
    "linked_users": "user",
    "n_items": "item",
    "linked_items": "item",
}


def saved(*axes: str, **options: Any) -> Any:
    """Declare an array of a part by the names of its axes; with ``default=None`` it is optional."""
    return field(metadata={"axes": axes}, **options)


def part(kind: type[Part]) -> Any:
    """Declare a part of a model, or of another part; it is None unless a fit sets it."""
    return field(init=False, repr=False, default=None, metadata={"part": kind})


def side_part(kind: type[Part]) -> Any:
    """Declare a part of a part."""
    return field(default=None, metadata={"part": kind})


P = TypeVar("P")


@dataclass_transform(
    kw_only_default=True,
    eq_default=False,
    frozen_default=True,
    field_specifiers=(saved, side_part),
)
def record(cls: type[P]) -> type[P]:
    """Make a part a frozen dataclass with keyword-only fields."""
    return dataclass(frozen=True, kw_only=True, eq=False)(cls)


class ArrayReader:
    """The arrays of a saved model, which are checked as they are read."""

    def __init__(self, model: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._model = model
        self._arrays = arrays
        self._sizes: dict[str, int] = {}  # of the axes, by name

    def has(self, name: str) -> bool:
        """Return whether there is an array of this name."""
        return name in self._arrays

    def has_some(self, prefix: str) -> bool:
        """Return whether there is an array whose name starts with `prefix`."""
        return any(name.startswith(prefix) for name in self._arrays)

    def read(self, name: str, axes: tuple[str, ...], annotation: str) -> Any:
        """Return an array after checking its shape and type, or a number if it has no axes.

        Raises
        ------
        DataError
            If the array is missing, or disagrees with its declaration or the other arrays.
        """
        if name not in self._arrays:
            raise DataError(
                f"The {self._model} model needs an array {name!r}, which is missing."
            )
        values = self._arrays[name]
        expected: tuple[int, ...] = ()
        for axis, size in zip(axes, values.shape, strict=False):
            # An axis such as "n_users + 1" is longer than another one.
            base, _, surplus = axis.partition(" + ")
            surplus_length = int(surplus or 0)
            expected += (
                self._sizes.setdefault(base, size - surplus_length) + surplus_length,
            )
        if len(axes) != values.ndim or expected != values.shape:
            raise DataError(
                f"The array {name!r} must have shape ({', '.join(axes)}), in agreement "
                f"with the other arrays; got {values.shape}."
            )
        annotation = annotation.removesuffix(" | None")
        if annotation in _KINDS:
            is_valid = values.dtype.kind in _KINDS[annotation]
        else:  # the dtypes differ in a non-native byte order
            is_valid = values.dtype == np.dtype(_DTYPES.get(annotation, values.dtype))
        if not is_valid:
            raise DataError(
                f"The array {name!r} must be of type {_DTYPES.get(annotation, annotation)}; "
                f"got {values.dtype.str}."
            )
        return values if axes else values.item()


def rows_taken(
    values: NDArray[Any], axes: tuple[str, ...], rows: Mapping[str, Indices]
) -> NDArray[Any]:
    """Return an array with only the given rows of users or items, copied if it changes.

    A row of index -1 is zero.
    """
    for number, axis in enumerate(axes):
        indices = rows.get(_SIDE_OF_AXIS.get(axis, ""))
        if indices is not None:
            values = values.take(indices, number)
            np.moveaxis(values, number, 0)[indices < 0] = 0
    return values


def put_rows(
    values: NDArray[Any],
    others: NDArray[Any],
    axes: tuple[str, ...],
    side: str,
    rows: Indices,
) -> None:
    """Take the rows of some users (or items) of an array from another array."""
    if f"n_{side}s" in axes:
        number = axes.index(f"n_{side}s")
        np.moveaxis(values, number, 0)[rows] = np.moveaxis(others, number, 0)


@record
class Part:
    """Fitted arrays that a model has together, or not at all."""

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Return the arrays by name without copying them; scalars have shape ()."""
        arrays: dict[str, NDArray[Any]] = {}
        for declared in fields(self):
            value = getattr(self, declared.name)
            name = prefix + declared.name
            if isinstance(value, Part):
                arrays |= value.arrays(f"{name}_")
            elif value is not None:
                arrays[name] = np.asarray(value)
        return arrays

    @classmethod
    def from_arrays(
        cls, reader: ArrayReader, prefix: str, side: str = ""
    ) -> Self | None:
        """Return the part made of arrays whose names start with `prefix`, if any."""
        if not reader.has_some(prefix):
            return None
        values: dict[str, Any] = {}
        for declared in fields(cls):
            name = prefix + declared.name
            if "part" in declared.metadata:
                kind: type[Part] = declared.metadata["part"]
                own_side = SIDES.get(declared.name, side)
                values[declared.name] = kind.from_arrays(reader, f"{name}_", own_side)
            elif declared.default is not None or reader.has(name):
                axes = axes_of(declared, side)
                values[declared.name] = reader.read(name, axes, str(declared.type))
        return cls(**values)

    def rearranged(self, rows: Mapping[str, Indices], side: str = "") -> Self:
        """Return the part with only the given rows of `user` or `item`; see `rows_taken`."""
        changed: dict[str, Any] = {}
        for declared in fields(self):
            value = getattr(self, declared.name)
            if isinstance(value, Part):
                changed[declared.name] = value.rearranged(
                    rows, SIDES.get(declared.name, side)
                )
            elif isinstance(value, np.ndarray):
                changed[declared.name] = rows_taken(
                    value, axes_of(declared, side), rows
                )
        return replace(self, **changed)

    def replaced(
        self, other: Self, side: str, rows: Indices, own_side: str = ""
    ) -> Self:
        """Return the part with the rows of some users (or items) of another one.

        Arrays are changed in place where their length stays.
        """
        changed: dict[str, Any] = {}
        for declared in fields(self):
            value = getattr(self, declared.name)
            other_value = getattr(other, declared.name)
            if isinstance(value, Part):
                part_side = SIDES.get(declared.name, own_side)
                changed[declared.name] = value.replaced(
                    other_value, side, rows, part_side
                )
            elif isinstance(value, np.ndarray):
                put_rows(value, other_value, axes_of(declared, own_side), side, rows)
        return replace(self, **changed)


def axes_of(declared: Field[Any], side: str = "") -> tuple[str, ...]:
    """Return the names of the axes of an array, for a side of the model."""
    axes: tuple[str, ...] = declared.metadata["axes"]
    return tuple(axis.format(side=side, other=OTHER[side]) for axis in axes)
