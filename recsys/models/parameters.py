"""Declarations of model parameters and fitted arrays, with valid values and tuning ranges."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import Field, dataclass, field, fields
from numbers import Integral, Real
from types import NoneType
from typing import Any, ClassVar, Protocol, TypeVar, dataclass_transform, get_args

import numpy as np

from recsys.errors import DataError


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
        # Logarithmic steps have endless digits, which nobody wants to read or type.
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
    Valid numbers are smaller than `below`.
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
    below: float = math.inf

    @property
    def range(self) -> Range | None:
        """The range that tuning searches, if any."""
        if self.low is None or self.high is None:
            return None
        return Range(self.low, self.high, log=self.log)

    def checked(self, value: object) -> object:
        """Check the type and range of a value, and return it as a value of Python.

        Raises
        ------
        DataError
            If the value is of another type or out of range.
        """
        if (value is None and self.default is None) or not self.description:
            return value
        accepted, expected = _TYPES[self.type]
        # A bool is an int in Python, but not a number for a user.
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
            ) and number < self.below
            if self.below < math.inf:
                expected += f" and below {self.below:g}"
        if not valid:
            raise DataError(f"{self.name} must be {expected}; got {value!r}.")
        return value.item() if isinstance(value, np.generic) else value


def parameter(
    default: object,
    description: str,
    **options: Any,
) -> Any:
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


def fitted(*axes: str, when: str | None = None) -> Any:
    """Declare an array that `fit` sets, by the names of its axes.

    If `when` is given, the array is set only if the attribute of that name is true.
    """
    return field(init=False, repr=False, metadata={"axes": axes, "when": when})


class _Named(Protocol):
    """A class of models, or one of its instances."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    name: ClassVar[str]
    _parameters: ClassVar[tuple[Parameter, ...]]


M = TypeVar("M", bound=_Named)

DEFINED: dict[str, type[Any]] = {}
"""Classes of models that this process has defined with a name, by their names."""


@dataclass_transform(kw_only_default=True, eq_default=False)
def model(cls: type[M]) -> type[M]:
    """Make a class a dataclass with keyword-only parameters, and add them to its docstring.

    Raises
    ------
    TypeError
        If a parameter has another type than int, float, bool or str, or None besides.
    """
    decorated = dataclass(kw_only=True, eq=False)(cls)
    # Parameters of the class come before those of its bases.
    declared = sorted(
        fields(decorated), key=lambda f: f.name not in decorated.__annotations__
    )
    parameters = []
    for f in declared:
        if f.init:
            kind = _type_of(f.type)
            if kind is object and "description" in f.metadata:
                raise TypeError(
                    f"The parameter {f.name} of {cls.__name__} must be annotated with int, float, "
                    f"bool or str, or one of them and None (int | None); got {f.type}."
                )
            parameters.append(Parameter(f.name, kind, f.default, **f.metadata))
    decorated._parameters = tuple(parameters)
    if decorated.__doc__ and parameters:
        decorated.__doc__ = _with_parameters(decorated.__doc__, parameters)
    if "name" in vars(cls):
        DEFINED[cls.name] = decorated
    return decorated


def _type_of(annotation: Any) -> type:
    """Return the type of a parameter, without None; object for a type that is not valid.

    Annotations are texts after ``from __future__ import annotations``.
    """
    if isinstance(annotation, str):
        # Names behind TYPE_CHECKING cannot be resolved, so the text is read.
        words = re.findall(r"\w+", annotation)
        names = [word for word in words if word not in ("None", "Optional", "typing")]
    else:
        options = get_args(annotation) or (annotation,)
        names = [
            getattr(option, "__name__", "")
            for option in options
            if option is not NoneType
        ]
    types = {option.__name__: option for option in _TYPES}
    return types.get(names[0], object) if len(names) == 1 else object


def _with_parameters(docstring: str, parameters: list[Parameter]) -> str:
    """Return a docstring with a section of parameters before its other sections."""
    section = "\n\nParameters\n----------"
    for p in parameters:
        kind = (
            "{" + ", ".join(map(repr, p.choices)) + "}"
            if p.choices
            else p.type.__name__
        )
        default = "optional" if p.default is None else f"default {p.default!r}"
        section += f"\n{p.name} : {kind}, {default}\n    {p.description}"
    text = inspect.cleandoc(docstring)
    first, *sections = re.split(
        r"(?=\n\n(?:Attributes|Notes|References)\n---)", text, maxsplit=1
    )
    return first + section + "".join(sections)


def overflow_error(model: _Named, *names: str) -> DataError:
    """Return the error for a diverging fit, with the parameters that may be the cause."""
    values = {name: getattr(model, name) for name in names}
    defaults = {name: getattr(type(model), name) for name in names}
    if values == defaults:
        # With the defaults, only huge ratings overflow.
        advice = "scale the ratings"
    else:
        usual = " and ".join(f"{value:g}" for value in defaults.values())
        advice = f"choose values nearer to {usual}"
    causes = " and ".join(f"{name} {value:g}" for name, value in values.items())
    return DataError(
        f"The fit of {model.name} overflows single precision with {causes}; {advice}."
    )
