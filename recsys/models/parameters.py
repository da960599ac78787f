"""Declarations of model parameters and fitted arrays, with valid values and tuning ranges."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

import numpy as np

from recsys.errors import DataError

if TYPE_CHECKING:
    from recsys.models.base import Model


@dataclass(frozen=True, slots=True)
class Range:
    """Range of a numeric parameter from `low` to `high`, both included.

    Attributes
    ----------
    low, high : int or float
        The values are integers if both ends are.
    log : bool
        Whether values are spaced by equal ratios instead of equal differences.

    Raises
    ------
    DataError
        If `low` is not below `high`, an end is not finite, or a logarithmic range does not start
        above 0.

    Examples
    --------
    >>> Range(4, 64, log=True).grid(3), 3 in Range(4, 64)
    ((4, 16, 64), False)
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise DataError(
                f"low must be below high, both finite; got {self.low} to {self.high}."
            )
        if self.log and self.low <= 0:
            raise DataError(
                f"low must be above 0 in a logarithmic range; got {self.low}."
            )

    @property
    def integer(self) -> bool:
        """Return whether the values are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def __contains__(self, value: float | None) -> bool:
        return value is not None and self.low <= value <= self.high

    def rounded(self, value: float) -> float:
        """Return the nearest value of the range with 4 significant digits."""
        short = round(value) if self.integer else float(f"{value:.4g}")
        return min(max(short, self.low), self.high)

    def grid(self, n: int) -> tuple[float, ...]:
        """Return n equally spaced values from `low` to `high`, fewer if rounded values coincide."""
        shares = (i / max(1, n - 1) for i in range(n))
        if self.log:
            values = [self.low * (self.high / self.low) ** share for share in shares]
        else:
            values = [self.low + (self.high - self.low) * share for share in shares]
        return tuple(dict.fromkeys(map(self.rounded, values)))


_TYPES: dict[type, tuple[Any, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    bool: (bool | np.bool_, "True or False"),
    str: (str, "text"),
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """Declaration of a model parameter.

    A default of None means that the value is chosen from the data (for ``threads``: all cores).
    Tuning searches from `low` to `high`, if given, on a logarithmic scale if `log`. `choices` are
    the valid texts. `minimum` is the smallest valid number; by default numbers must be positive.
    """

    name: str
    type: type
    default: Any
    description: str = ""
    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: tuple[str, ...] = ()
    minimum: float | None = None

    @property
    def range(self) -> Range | None:
        """The range that tuning searches, if any."""
        if self.low is None or self.high is None:
            return None
        return Range(self.low, self.high, log=self.log)

    def check(self, value: object) -> None:
        """Check the type and range of a value.

        Raises
        ------
        DataError
            If the value is of another type or out of range.
        """
        if (value is None and self.default is None) or not self.description:
            return
        accepted, expected = _TYPES[self.type]
        is_bool = isinstance(value, bool | np.bool_)
        valid = isinstance(value, accepted) and is_bool == (self.type is bool)
        if valid and self.choices:
            valid, expected = value in self.choices, f"one of {', '.join(self.choices)}"
        elif valid and self.type in (int, float):
            number: Any = value
            least = 1 if self.type is int and self.minimum is None else self.minimum
            expected = "positive" if least is None else f"at least {least}"
            valid = (
                number > 0 if least is None else least <= number
            ) and number < math.inf
        if not valid:
            raise DataError(f"{self.name} must be {expected}; got {value!r}.")


def parameter(default: object, description: str, **options: Any) -> Any:
    """Declare a parameter by fields of `Parameter`; 0 is valid if its range starts at 0."""
    least = {"minimum": 0} if options.get("low") == 0 else {}
    return field(
        default=default, metadata={"description": description, **options, **least}
    )


def random_state_parameter() -> Any:
    """Declare the parameter `random_state`."""
    return parameter(0, "Seed: the same seed gives the same result.", minimum=0)


def threads_parameter() -> Any:
    """Declare the parameter `threads`, which does not change results."""
    return parameter(None, "Number of threads; all available cores by default.")


def fitted(*axes: str, when: str | None = None, group: str | None = None) -> Any:
    """Declare an array that `fit` sets, by the names of its axes.

    If `when` is given, the array is set only if the attribute of that name is true. The arrays of a
    `group` are optional: a fit sets all of them or none.
    """
    return field(
        init=False, repr=False, metadata={"axes": axes, "when": when, "group": group}
    )


M = TypeVar("M", bound="Model")


@dataclass_transform(kw_only_default=True, eq_default=False)
def model(cls: type[M]) -> type[M]:
    """Make a class a dataclass with keyword-only parameters, and add them to its docstring."""
    cls = dataclass(kw_only=True, eq=False)(cls)
    types = {"int": int, "float": float, "bool": bool, "str": str}
    own = sorted(
        fields(cls), key=lambda f: f.name not in cls.__annotations__
    )  # own before base
    cls._parameters = tuple(
        Parameter(
            f.name,
            types.get(str(f.type).split(" ")[0], object),
            f.default,
            **f.metadata,
        )
        for f in own
        if f.init
    )
    if cls.__doc__ and cls._parameters:
        section = "\n\nParameters\n----------"
        for p in cls._parameters:
            kind = (
                "{" + ", ".join(map(repr, p.choices)) + "}"
                if p.choices
                else p.type.__name__
            )
            default = "optional" if p.default is None else f"default {p.default!r}"
            section += f"\n{p.name} : {kind}, {default}\n    {p.description}"
        text = inspect.cleandoc(cls.__doc__)
        first, *rest = re.split(
            r"(?=\n\n(?:Attributes|Notes|References)\n---)", text, maxsplit=1
        )
        cls.__doc__ = first + section + "".join(rest)
    return cls


def breakdown(model: Model, *names: str) -> DataError:
    """Return the error for a diverging fit, with the parameters that may be the cause."""
    own = " and ".join(f"{name} {getattr(model, name):g}" for name in names)
    usual = " and ".join(f"{getattr(type(model), name):g}" for name in names)
    is_usual = all(getattr(model, name) == getattr(type(model), name) for name in names)
    advice = "scale the ratings" if is_usual else f"choose values nearer to {usual}"
    return DataError(
        f"The fit of {model.name} overflows single precision with {own}; {advice}."
    )
