"""Exceptions of lowrank: one tree, in which each class is also a built-in exception."""

import numbers
import operator
import sys
from collections.abc import Collection
from typing import Any


class LowRankError(Exception):
    """Base class of the exceptions that lowrank raises."""


class ArgumentError(LowRankError, ValueError):
    """An argument has the right type, but an invalid value."""


class ArgumentTypeError(LowRankError, TypeError):
    """An argument has the wrong type."""


def check_choice(
    value: object,
    allowed: Collection[str],
    name: str = "method",
) -> None:
    """Check that an argument is one of some names.

    Raises
    ------
    ArgumentError
    """
    if not isinstance(value, str) or value not in allowed:
        names = ", ".join(map(repr, allowed))
        raise ArgumentError(f"{name} must be one of {names}; got {value!r}.")


def check_positive(
    value: float,
    name: str,
    *,
    or_zero: bool = False,
) -> None:
    """Check that an argument is a finite, positive number, or zero with `or_zero`.

    Raises
    ------
    TypeError, ValueError
    """
    check_number(value, name)
    # Integers may be larger than any float.
    if not 0 <= value <= sys.float_info.max or not (value or or_zero):
        expected = "finite and not negative" if or_zero else "positive and finite"
        raise ArgumentError(f"{name} must be {expected}; got {value}.")


def check_number(value: object, name: str) -> None:
    """Check that an argument is a number, and not a bool.

    Raises
    ------
    ArgumentTypeError
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ArgumentTypeError(f"{name} must be a number; got {value!r}.")


def check_range(
    largest: float,
    dtype: Any,
    noun: str = "Singular values",
) -> None:
    """Check that the largest number of a result can be stored in a dtype.

    Raises
    ------
    ArgumentError
    """
    # `recsys --help` imports this module, and not NumPy.
    from numpy import finfo

    limit = float(finfo(dtype).max)
    if largest > limit:
        raise ArgumentError(
            f"{noun} must be within the range of {dtype}, up to {limit:.4g}; got a larger one: "
            "multiply the matrix by a number."
        )


def check_share(value: float, name: str) -> None:
    """Check that an argument is a number from 0 to 1.

    Raises
    ------
    TypeError, ValueError
    """
    check_number(value, name)
    if not 0 <= value <= 1:
        raise ArgumentError(f"{name} must be between 0 and 1; got {value}.")


def checked_integer(
    value: Any,
    name: str,
    kind: str = "an integer",
    *,
    least: int | None = None,
) -> int:
    """Return an integer of any type except bool as an int; `kind` describes it in the message.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If it is not an integer, or is below `least`.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        integer = operator.index(value)
    except TypeError:
        raise ArgumentTypeError(f"{name} must be {kind}; got {value!r}.") from None
    if least is not None and integer < least:
        raise ArgumentError(f"{name} must be at least {least}; got {integer}.")
    return integer


def real_matrix(
    dtype: Any,
    shape: tuple[int, ...],
    name: str,
) -> str:
    """Check that a matrix is real and two-dimensional; return the dtype to work in.

    Raises
    ------
    ArgumentTypeError
        If its numbers are not real.
    ArgumentError
        If it is not two-dimensional.
    """
    if dtype.kind not in "fiub":
        raise ArgumentTypeError(f"{name} must hold real numbers; got dtype {dtype}.")
    if len(shape) != 2:
        hint = ": use A.reshape(-1, 1) for one column or A.reshape(1, -1) for one row"
        hint *= len(shape) == 1 and name == "A"
        raise ArgumentError(f"{name} must be two-dimensional; got shape {shape}{hint}.")
    return "float32" if dtype.kind == "f" and dtype.itemsize <= 4 else "float64"


def missing_extra(library: str, extra: str) -> str:
    """Return the predicate of a sentence about an optional library that is not installed.

    Examples
    --------
    >>> print("Plotting", missing_extra("matplotlib", "plot"))
    Plotting needs matplotlib; install it with pip install 'lowrank-recsys[plot]' (in a clone:
    pip install -e '.[plot]').
    """
    return (
        f"needs {library}; install it with pip install 'lowrank-recsys[{extra}]' "
        f"(in a clone: pip install -e '.[{extra}]')."
    )
