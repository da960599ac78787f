"""Parts of models: records of fitted arrays, and the reading of arrays with checks.

A model declares a part as it declares an array::

    time_biases: TimeBiases | None = part(TimeBiases)

A part has all of its arrays or is None. In files, its arrays have the name of the part before their
own. The axes of arrays may be named "n_{side}s": a part named `users` or `items` sets the side of
its arrays (see `Sides`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, dataclass_transform

import numpy as np

from recsys.data.arrays import AnyFloats as AnyFloats
from recsys.data.arrays import Array as Array
from recsys.data.arrays import Doubles as Doubles
from recsys.data.arrays import Floats as Floats
from recsys.data.arrays import Ints as Ints
from recsys.data.arrays import Longs as Longs
from recsys.data.arrays import Mask as Mask
from recsys.errors import DataError

Indices = Longs

SIDES = {"users": "user", "items": "item"}  # sides of parts, by the name of the part
OTHER = {"user": "item", "item": "user", "": ""}
# Dtypes of arrays and dtype kinds of scalars, by annotation.
_DTYPES = {
    "Floats": "float32",
    "Doubles": "float64",
    "Ints": "int32",
    "Longs": "int64",
    "Indices": "int64",
}
_KINDS = {"bool": "b", "int": "iu", "float": "fiu"}
# Sides of the axes along which users or items are indexed. Links have the rows of the other side.
_SIDE_OF_AXIS = {
    "n_users": "user",
    "linked_users": "user",
    "n_items": "item",
    "linked_items": "item",
}


class Declares(Protocol):
    """A model or a part, which declares its fitted arrays and parts as fields."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


def saved(*axes: str, **options: Any) -> Any:
    """Declare an array of a part by the names of its axes; with ``default=None`` it is optional."""
    return field(metadata={"axes": axes}, **options)


def part(kind: type[Part]) -> Any:
    """Declare a part of a model; it is None unless a fit sets it."""
    return field(
        init=False,
        repr=False,
        default=None,
        metadata={"part": kind},
    )


def side_part(kind: type[Part]) -> Any:
    """Declare a part of a part, by default None."""
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

    def __init__(self, model: str, arrays: Mapping[str, Array]) -> None:
        self._model = model
        self._arrays = arrays
        self.sizes: dict[str, int] = {}  # of the axes, by name

    def fields(
        self,
        owner: Declares | type[Declares],
        prefix: str = "",
        side: str = "",
    ) -> Iterator[tuple[str, Any]]:
        """Yield the names and values of the arrays and parts that a model or part declares."""
        for declared in fields(owner):
            name = prefix + declared.name
            if (kind := declared.metadata.get("part")) is not None:
                part_side = SIDES.get(declared.name, side)
                yield (
                    declared.name,
                    kind.from_arrays(
                        self,
                        f"{name}_",
                        part_side,
                    ),
                )
            elif is_set(owner, declared) and (
                declared.default is not None or name in self._arrays
            ):
                axes = axes_of(declared, side)
                yield (
                    declared.name,
                    self._read(
                        name,
                        axes,
                        str(declared.type),
                    ),
                )

    def has(self, prefix: str) -> bool:
        """Return whether there is an array whose name starts with `prefix`."""
        return any(name.startswith(prefix) for name in self._arrays)

    def _read(
        self,
        name: str,
        axes: tuple[str, ...],
        annotation: str,
    ) -> Any:
        """Return an array after checking its shape and type, or a number if it has no axes."""
        if name not in self._arrays:
            raise missing_array(self._model, name)
        values = self._arrays[name]
        expected: tuple[int, ...] = ()
        for axis, size in zip(axes, values.shape, strict=False):
            # An axis such as "n_users + 1" is longer than another one.
            base, _, surplus = axis.partition(" + ")
            length = self.sizes.setdefault(base, size - int(surplus or 0))
            expected += (length + int(surplus or 0),)
        if len(axes) != values.ndim or expected != values.shape:
            raise DataError(
                f"The array {name!r} must have shape ({', '.join(axes)}), in agreement "
                f"with the other arrays; got {values.shape}."
            )
        annotation = annotation.removesuffix(" | None")
        dtype = _DTYPES.get(annotation)
        # A number may be saved in any precision; an array has the dtype of the kernels.
        if annotation in _KINDS:
            is_valid = values.dtype.kind in _KINDS[annotation]
        else:  # the dtypes differ in a non-native byte order
            is_valid = dtype is None or values.dtype == np.dtype(dtype)
        if not is_valid:
            raise DataError(
                f"The array {name!r} must be of type {dtype or annotation}; "
                f"got {values.dtype.str}."
            )
        return values if axes else values.item()


def missing_array(model: str, name: str) -> DataError:
    """Return the error for an array that a saved model lacks."""
    return DataError(f"The {model} model needs an array {name!r}, which is missing.")


def is_set(owner: Declares | type[Declares], declared: Field[Any]) -> bool:
    """Return whether a field is an array that a fit with these parameters sets."""
    condition = declared.metadata.get("when")
    is_array = "axes" in declared.metadata
    return is_array and (condition is None or getattr(owner, condition))


def values_of(owner: Declares) -> Iterator[tuple[Field[Any], Any]]:
    """Yield the declarations and values of the arrays and parts of a model or part, if set."""
    for declared in fields(owner):
        if "part" in declared.metadata or is_set(owner, declared):
            value = getattr(owner, declared.name)
            if value is not None:
                yield declared, value


def arrays_of(owner: Declares, prefix: str = "") -> dict[str, Array]:
    """Return the arrays by name without copying them; scalars have shape ()."""
    arrays: dict[str, Array] = {}
    for declared, value in values_of(owner):
        name = prefix + declared.name
        if isinstance(value, Part):
            arrays |= arrays_of(value, f"{name}_")
        else:
            arrays[name] = np.asarray(value)
    return arrays


def rows_taken(
    owner: Declares,
    rows: Mapping[str, Indices],
    side: str = "",
) -> dict[str, Any]:
    """Return arrays and parts with only the given rows of `user` or `item`.

    A row of index -1 is zero. Arrays that change are copied.
    """
    changes: dict[str, Any] = {}
    for declared, value in values_of(owner):
        # A part renumbers its own arrays, as it may hold other indices.
        if isinstance(value, Part):
            part_side = SIDES.get(declared.name, side)
            changes[declared.name] = value.rearranged(rows, part_side)
            continue
        for number, axis in enumerate(axes_of(declared, side)):
            indices = rows.get(_SIDE_OF_AXIS.get(axis, ""))
            if indices is not None:
                value = value.take(indices, number)
                np.moveaxis(value, number, 0)[indices < 0] = 0
        changes[declared.name] = value
    return changes


def put_rows(
    owner: Declares,
    other: Declares,
    side: str,
    rows: Indices,
    part_side: str = "",
) -> dict[str, Any]:
    """Take the rows of some users (or items) of arrays from `other`; return what changes."""
    changes: dict[str, Any] = {}
    axis = f"n_{side}s"
    for declared, value in values_of(owner):
        replacement = getattr(other, declared.name)
        if isinstance(value, Part):
            side_of_part = SIDES.get(declared.name, part_side)
            changes[declared.name] = value.replaced(
                replacement,
                side,
                rows,
                side_of_part,
            )
        elif axis in (axes := axes_of(declared, part_side)):
            number = axes.index(axis)
            np.moveaxis(value, number, 0)[rows] = np.moveaxis(
                replacement,
                number,
                0,
            )
            # Another object: results cached for the earlier rows are not taken for it.
            changes[declared.name] = value.view()
    return changes


@record
class Part:
    """Fitted arrays that a model has together, or not at all."""

    @classmethod
    def from_arrays(
        cls,
        reader: ArrayReader,
        prefix: str,
        side: str = "",
    ) -> Self | None:
        """Return the part made of arrays whose names start with `prefix`, if any."""
        if not reader.has(prefix):
            return None
        return cls(**dict(reader.fields(cls, prefix, side)))

    def rearranged(self, rows: Mapping[str, Indices], side: str = "") -> Self:
        """Return the part with only the given rows of `user` or `item`; see `rows_taken`."""
        return replace(self, **rows_taken(self, rows, side))

    def replaced(
        self,
        other: Self,
        side: str,
        rows: Indices,
        own_side: str = "",
    ) -> Self:
        """Return the part with the rows of some users (or items) of another one.

        Arrays are changed in place where their length stays.
        """
        return replace(self, **put_rows(self, other, side, rows, own_side))


A = TypeVar("A")


@record
class Sides(Part, Generic[A]):
    """The parts of users and of items, of class `kind`; one that is missing is None."""

    kind: ClassVar[type[Part]]
    users: A = side_part(Part)
    items: A = side_part(Part)

    @classmethod
    def from_arrays(
        cls,
        reader: ArrayReader,
        prefix: str,
        side: str = "",
    ) -> Self | None:
        """Return the parts made of arrays whose names start with `prefix`, if any."""
        if not reader.has(prefix):
            return None
        parts: dict[str, Any] = {
            name: cls.kind.from_arrays(
                reader,
                f"{prefix}{name}_",
                side_of_part,
            )
            for name, side_of_part in SIDES.items()
        }
        return cls(**parts)

    def of(self, side: str) -> A:
        """Return the part of one side, "user" or "item"."""
        return self.users if side == "user" else self.items

    def with_side(self, side: str, axis: A) -> Self:
        """Return the parts with another one of one side."""
        if side == "user":
            return replace(self, users=axis)
        return replace(self, items=axis)


def axes_of(declared: Field[Any], side: str = "") -> tuple[str, ...]:
    """Return the names of the axes of an array, for a side of the model."""
    axes: tuple[str, ...] = declared.metadata["axes"]
    return tuple(axis.format(side=side, other=OTHER[side]) for axis in axes)
