"""Errors that recsys raises: one tree, each also the builtin that fits.

::

    RecsysError
    ├── DataError         (also ValueError)   ratings or files that cannot be used
    ├── UnknownIdError    (also LookupError)  a user or item that is not in the data
    ├── ModelFileError    (also ValueError)   a saved model that is damaged, foreign or too new
    ├── NotFittedError    (also ValueError)   a model that is used before `fit`
    └── EngineError       (also RuntimeError) a cluster that is missing, out of reach or failed

Each message is one sentence: what was wrong, where, and what would be right.
"""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral


class RecsysError(Exception):
    """Base class of the errors that `recsys` raises on purpose."""


class DataError(RecsysError, ValueError):
    """Ratings, files or arrays that cannot be used as they are."""


class UnknownIdError(RecsysError, LookupError):
    """A user or item id that the data do not contain."""


class ModelFileError(RecsysError, ValueError):
    """A saved model that is damaged, foreign, too new, or in the way."""


class NotFittedError(RecsysError, ValueError):
    """A model that is used before `fit`."""


class EngineError(RecsysError, RuntimeError):
    """A cluster engine that is not installed, cannot be reached, or failed at its work."""


def check_whole(name: str, value: object, least: int) -> None:
    """Check an option that takes a whole number of at least `least`.

    Raises
    ------
    DataError
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise DataError(f"{name} must be a whole number; got {value!r}.")
    if value < least:
        raise DataError(f"{name} must be at least {least}; got {value}.")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Check an option that takes one of some words.

    Raises
    ------
    DataError
    """
    if value not in (words := [*choices]):
        raise DataError(f"{name} must be one of {', '.join(words)}; got {value!r}.")
