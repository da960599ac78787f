"""Exceptions of recsys: one tree, in which each class is also a builtin exception.

::

    RecsysError
    ├── DataError         (also ValueError)   invalid ratings, files or options
    ├── UnknownIdError    (also LookupError)  a user or item that is not in the data
    ├── ModelFileError    (also ValueError)   a saved model that is damaged, foreign or too new
    ├── NotFittedError    (also ValueError)   a model that is used before `fit`
    └── EngineError       (also RuntimeError) a cluster that is missing, unreachable or failed

Each message is one sentence with the problem, its place and a correction.
"""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral, Real
from typing import TypeGuard


class RecsysError(Exception):
    """Base class of the exceptions of `recsys`."""


class DataError(RecsysError, ValueError):
    """Invalid ratings, files, arrays or options."""


class UnknownIdError(RecsysError, LookupError):
    """A user or item id that is not in the data."""


class ModelFileError(RecsysError, ValueError):
    """A saved model that is damaged, foreign or too new, or that would be overwritten."""


class NotFittedError(RecsysError, ValueError):
    """A model that is used before `fit`."""


class EngineError(RecsysError, RuntimeError):
    """A cluster engine that is not installed, cannot be reached, or failed."""


def check_whole(
    name: str,
    value: object,
    least: int,
) -> int:
    """Check an option that takes a whole number of at least `least`, and return it as an int.

    Raises
    ------
    DataError
    """
    if not is_integer(value):
        raise DataError(f"{name} must be a whole number; got {value!r}.")
    if value < least:
        raise DataError(f"{name} must be at least {least}; got {value}.")
    return int(value)


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether a value is an integer, of Python or of NumPy, and not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number, of Python or of NumPy, and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_share(name: str, value: object) -> None:
    """Check that an argument is a number from 0 to 1.

    Raises
    ------
    DataError
    """
    if not is_number(value) or not 0 <= value <= 1:
        raise DataError(f"{name} must be a number from 0 to 1; got {value!r}.")


def check_flags(**flags: object) -> None:
    """Check that arguments are True or False, of Python or of NumPy; a text such as "no" is true.

    Raises
    ------
    DataError
    """
    for name, value in flags.items():
        if type(value).__name__ not in ("bool", "bool_"):  # bool_ before NumPy 2
            raise DataError(f"{name} must be True or False; got {value!r}.")


def check_choice(
    name: str,
    value: object,
    choices: Iterable[str],
) -> None:
    """Check that the value of an option is one of some choices.

    Raises
    ------
    DataError
    """
    if value not in (words := [*choices]):
        raise DataError(f"{name} must be one of {', '.join(words)}; got {value!r}.")
