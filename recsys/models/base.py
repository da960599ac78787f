"""What every model is: parameters, fitted arrays, and scores from indices.

A model is a dataclass. Its init fields are its parameters; what `fit` learns are fields with
``init=False`` and the names of their axes as metadata. Saving, loading, shape checks and "not
fitted yet" follow from those declarations, so a new model writes none of them::

    @model
    class Constant(BaseModel):
        name = "constant"
        summary = "Testing."
        value: float = parameter(3.0, "Rating that is predicted.", low=1.0, high=5.0)
        n_users: int = fitted()
        n_items: int = fitted()

`recsys tune` searches the parameters with a range (`low`, `high`). A model that can already score
when it calls ``on_step`` sets ``scores_between_sweeps``, so that hopeless trials are pruned.

Models know integer indices only. `recsys.Recommender` translates ids.

Some models can do more than score, by having a method for it (`recsys.models.protocols`):

``with_users(histories)``
    The same items, but the users are these n ones (index 0..n-1), folded in with the items fixed.
    Every other method then works on them. A training user folded in gets its fitted factors, so
    an alternating fit ends with its users.
``with_items(histories)``
    The same users, but the items are these n new ones, given by rows of users and values.
``contributions(history, items)``
    The scores of `items` for the one user of `history`, as an `Explanation`: base plus one term
    per rating of the history, which add up to the score (before clipping) to rounding.
``item_vectors()``, ``user_vectors()``
    Vectors whose cosine says how alike two items or two users are.
``item_likeness(confidence)``
    A `recsys.topn.Scorer` of items for items, of a model that has no such vectors.
``predict_std(users, items)``
    The standard deviation of each prediction.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, dataclass_transform

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowrank import kernels
from recsys.errors import DataError, NotFittedError
from recsys.models.protocols import (
    Explanation,
    FactorForm,
    Floats,
    Histories,
    Indices,
    Model,
    Step,
)

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings

__all__ = [
    "BaseModel",
    "BiasedModel",
    "Explanation",
    "FactorForm",
    "FactorModel",
    "Floats",
    "Histories",
    "Indices",
    "Model",
    "Parameter",
    "Range",
    "Step",
    "check_indices",
    "fitted",
    "model",
    "pair_dots",
    "parameter",
    "random_state_parameter",
    "threads_parameter",
]


@dataclass(frozen=True, slots=True)
class Range:
    """The values of one numeric parameter from `low` to `high`, both included.

    Attributes
    ----------
    low, high : int or float
        If both are integers, so are the values.
    log : bool
        Equal ratios, not equal differences, count as equally far.

    Raises
    ------
    DataError
        If `low` is not below `high`, an end is not finite, or a logarithmic range begins at 0 or
        below.

    Examples
    --------
    >>> Range(4, 64, log=True).at(0.5), Range(0.0, 1.0).grid(3)
    (16, (0.0, 0.5, 1.0))
    >>> 3 in Range(4, 64)
    False
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise DataError(f"A range goes from low to high; got {self.low} to {self.high}.")
        if self.log and self.low <= 0:
            raise DataError(f"A logarithmic range must begin above 0; got {self.low}.")

    @property
    def integer(self) -> bool:
        """Whether the values are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def __contains__(self, value: float | None) -> bool:
        return value is not None and self.low <= value <= self.high

    def at(self, share: float) -> float:
        """Return the value at a share between 0 and 1 of the way from `low` to `high`."""
        if self.log:
            return self.rounded(self.low * (self.high / self.low) ** share)
        return self.rounded(self.low + (self.high - self.low) * share)

    def rounded(self, value: float) -> float:
        """Return the nearest value that is short to write, within the range."""
        short = round(value) if self.integer else float(f"{value:.4g}")
        return min(max(short, self.low), self.high)

    def grid(self, n: int) -> tuple[float, ...]:
        """Return about n values from `low` to `high`: equally far, fewer where integers run out."""
        return tuple(dict.fromkeys(self.at(i / max(1, n - 1)) for i in range(n)))


M = TypeVar("M", bound="BaseModel")

_TYPES: dict[type, tuple[Any, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    bool: (bool | np.bool_, "True or False"),
    str: (str, "text"),
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a model, as its class declares it.

    Attributes
    ----------
    name : str
    type : type
        int, float, bool or str.
    default : object
        None means that the value is chosen from the data (of ``threads``: all cores).
    description : str
        One or two sentences.
    low, high : int or float, optional
        The range in which tuning looks for a better value; None if it leaves the parameter alone.
    log : bool
        Whether that range is logarithmic.
    choices : tuple of str
        The only values of a text; empty if it may be any.
    minimum : int or float, optional
        The smallest valid number; None if it must be positive.
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
        """The range in which tuning looks for a better value, if it does."""
        if self.low is None or self.high is None:
            return None
        return Range(self.low, self.high, log=self.log)

    def check(self, value: Any) -> None:
        """Check a value of the parameter.

        Raises
        ------
        DataError
            If the value is of another type or out of range.
        """
        if (value is None and self.default is None) or not self.description:
            return
        accepted, expected = _TYPES[self.type]
        valid = isinstance(value, accepted) and (
            self.type is bool or not isinstance(value, bool | np.bool_)
        )
        if valid and self.choices:
            valid, expected = value in self.choices, f"one of {', '.join(self.choices)}"
        elif valid and self.type in (int, float):
            least = 1 if self.type is int and self.minimum is None else self.minimum
            expected = "positive" if least is None else f"at least {least}"
            valid = (value > 0 if least is None else least <= value) and value < math.inf
        if not valid:
            raise DataError(f"{self.name} must be {expected}; got {value!r}.")


def parameter(
    default: Any,
    description: str,
    *,
    low: float | None = None,
    high: float | None = None,
    log: bool = False,
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
) -> Any:
    """Declare a parameter of a model; for the arguments see `Parameter`."""
    metadata = {
        "description": description,
        "low": low,
        "high": high,
        "log": log,
        "choices": choices,
        "minimum": minimum,
    }
    return field(default=default, metadata=metadata)


def random_state_parameter() -> Any:
    """Declare the seed of a model."""
    return parameter(0, "Seed: the same seed gives the same result.", minimum=0)


def threads_parameter() -> Any:
    """Declare the number of threads, which does not change the result."""
    return parameter(None, "Number of threads; all available cores by default.")


def fitted(*axes: str) -> Any:
    """Declare an array that `fit` sets, by the names of its axes; none for a scalar."""
    return field(init=False, repr=False, metadata={"axes": axes})


@dataclass_transform(kw_only_default=True, eq_default=False)
def model(cls: type[M]) -> type[M]:
    """Make a class of declared parameters and fitted arrays a model.

    The class becomes a dataclass with keyword-only parameters; its docstring lists them.
    """
    cls = dataclass(kw_only=True, eq=False)(cls)
    if cls.__doc__ and (declared := cls.parameters()):
        section = "\n\nParameters\n----------"
        for p in declared:
            default = f"default {p.default!r}" if p.default is not None else "optional"
            kind = "{" + ", ".join(map(repr, p.choices)) + "}" if p.choices else p.type.__name__
            section += f"\n{p.name} : {kind}, {default}\n    {p.description}"
        text = inspect.cleandoc(cls.__doc__)
        head = re.split(r"(?=\n\n(?:Attributes|Notes|References|Examples)\n---)", text, maxsplit=1)
        cls.__doc__ = head[0] + section + "".join(head[1:])
    return cls


def check_indices(indices: ArrayLike, size: int, what: str) -> Indices:
    """Return `indices` as a one-dimensional int64 array, or say which one is out of range.

    Raises
    ------
    IndexError
        If an index is negative (nothing wraps around here) or not below `size`.
    """
    array = np.atleast_1d(np.asarray(indices))
    if array.size == 0:
        return np.zeros(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(
            f"{what} indices must be a one-dimensional array of integers; "
            f"got {array.dtype} of shape {array.shape}."
        )
    bad = (array < 0) | (array >= size)
    if bad.any():
        raise IndexError(
            f"{what} indices must be between 0 and {size - 1}; got {array[bad.argmax()]}."
        )
    return array.astype(np.int64, copy=False)


_DTYPES = {
    "Floats": "float32",
    "NDArray[np.float64]": "float64",
    "NDArray[np.int32]": "int32",
    "NDArray[np.int64]": "int64",
}
_KINDS = {"bool": "b", "int": "iu", "float": "fiu"}  # of scalars


def _check_type(declared: Field[Any], array: NDArray[Any]) -> None:
    """Refuse an array that is not of the declared type, as the kernels would later."""
    name = str(declared.type)
    if name in _DTYPES:
        fits = array.dtype == np.dtype(_DTYPES[name])  # equal only in native byte order
    else:
        fits = array.dtype.kind in _KINDS.get(name, array.dtype.kind)
    if not fits:
        raise DataError(
            f"The array {declared.name!r} must be of type {_DTYPES.get(name, name)}; "
            f"got {array.dtype.str}."
        )


@dataclass(kw_only=True, eq=False)
class BaseModel:
    """Saving, loading and "not fitted yet" for models declared as dataclasses."""

    name: ClassVar[str]
    needs_values: ClassVar[bool] = False
    predicts_ratings: ClassVar[bool] = True
    summary: ClassVar[str] = ""
    scores_between_sweeps: ClassVar[bool] = False

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Explain a fitted field that is not there yet; anything else is missing as usual."""
            if any(name == f.name for f in _fitted(type(self))):
                raise NotFittedError(f"The {self.name} model is not fitted yet; call fit first.")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def keeps_best_sweep(self) -> bool:
        """False: `fit` ends with the last sweep also where validation ratings are given."""
        return False

    def score_error(self, users: ArrayLike) -> Floats | None:
        """Return None: the scores of a user are the same bits in any block."""
        return None

    def factor_form(self, users: ArrayLike) -> FactorForm | None:
        """Return None: the scores are not products of factors."""
        return None

    def __post_init__(self) -> None:
        for declared in self.parameters():
            declared.check(getattr(self, declared.name))

    @classmethod
    def parameters(cls) -> tuple[Parameter, ...]:
        """Return the parameters that the model declares, in their order."""
        types = {"int": int, "float": float, "bool": bool, "str": str}
        return tuple(
            Parameter(f.name, types.get(str(f.type).split(" ")[0], object), f.default, **f.metadata)
            for f in fields(cls)
            if f.init
        )

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the values of the parameters by name; `deep` is scikit-learn's and unused."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init}

    def set_params(self, **params: Any) -> Self:
        """Set some of the parameters, for the next `fit`.

        Raises
        ------
        DataError
            If there is no such parameter, or a value is of another type or out of range.
        """
        known = {declared.name: declared for declared in self.parameters()}
        for name, value in params.items():
            if name not in known:
                raise DataError(self._no_parameter(name))
            known[name].check(value)
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what was fitted, by name, without a copy; scalars have shape ().

        Raises
        ------
        NotFittedError
            Before `fit`.
        """
        return {f.name: np.asarray(getattr(self, f.name)) for f in _fitted(type(self))}

    @classmethod
    def from_arrays(cls, params: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Rebuild a fitted model, sharing memory with `arrays`.

        Raises
        ------
        DataError
            If an array is missing, of another type than is declared, or its shape does not agree
            with the others.
        """
        model = cls(**params)
        sizes: dict[str, int] = {}
        for f in _fitted(cls):
            if f.name not in arrays:
                raise DataError(f"The {cls.name} model needs an array {f.name!r}; there is none.")
            array = arrays[f.name]
            names: tuple[str, ...] = f.metadata["axes"]
            expected = tuple(
                sizes.setdefault(a, n) for a, n in zip(names, array.shape, strict=False)
            )
            if len(names) != array.ndim or expected != array.shape:
                raise DataError(
                    f"The array {f.name!r} must have shape ({', '.join(names)}), in agreement "
                    f"with the other arrays; got {array.shape}."
                )
            _check_type(f, array)
            setattr(model, f.name, array if names else array.item())
        return model

    def with_arrays(self, **changed: Any) -> Self:
        """Return a model like this one in which some fitted arrays are others.

        Raises
        ------
        DataError
            If the shapes of the arrays no longer agree.
        """
        arrays = self.arrays() | {name: np.asarray(value) for name, value in changed.items()}
        return type(self).from_arrays(self.get_params(), arrays)

    @classmethod
    def _no_parameter(cls, name: str) -> str:
        listed = ", ".join(declared.name for declared in cls.parameters()) or "none"
        return f"The {cls.name} model has no parameter {name!r}; it has {listed}."

    def require_values(self, ratings: Ratings) -> None:
        """Refuse implicit feedback; for models with ``needs_values``, at the start of `fit`.

        Raises
        ------
        DataError
            If `ratings` are implicit; the message names the models that take them.
        """
        if not ratings.implicit:
            return
        from recsys.models.registry import MODELS, model_class

        others = ", ".join(sorted(m for m in MODELS if not model_class(m).needs_values))
        raise DataError(
            f"The {self.name} model needs ratings with values, but these have no rating column "
            f"(implicit feedback); use one of these models: {others}."
        )


def _fitted(cls: type[BaseModel]) -> Iterator[Field[Any]]:
    return (f for f in fields(cls) if not f.init)


@model
class BiasedModel(BaseModel):
    """A model with ``global_mean``, ``user_bias`` and ``item_bias``.

    Attributes
    ----------
    global_mean : float
    user_bias : float32 ndarray of shape (n_users,)
    item_bias : float32 ndarray of shape (n_items,)
    """

    needs_values: ClassVar[bool] = True

    global_mean: float = fitted()
    user_bias: Floats = fitted("n_users")
    item_bias: Floats = fitted("n_items")

    @property
    def n_users(self) -> int:
        """Number of users of the training ratings."""
        return len(self.user_bias)

    @property
    def n_items(self) -> int:
        """Number of items of the training ratings."""
        return len(self.item_bias)

    def predict(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Predicted ratings ``global_mean + user_bias + item_bias``, shape (n_pairs,)."""
        u = check_indices(users, self.n_users, "user")
        i = check_indices(items, self.n_items, "item")
        return self.user_bias[u] + self.global_mean + self.item_bias[i]

    def scores(self, users: ArrayLike) -> Floats:
        """Predicted ratings of all items for each user, shape (n_block, n_items)."""
        u = check_indices(users, self.n_users, "user")
        return (self.user_bias[u] + self.global_mean)[:, None] + self.item_bias

    def predict_partly_known(self, users: Indices, items: Indices) -> Floats:
        """Predict from the biases alone, where -1 stands for an unknown user or item.

        Returns
        -------
        float32 ndarray of shape (n_pairs,)
            ``global_mean`` plus the bias of each side that is known.
        """
        user_bias: Floats = np.where(users >= 0, self.user_bias[users], np.float32(0))
        item_bias: Floats = np.where(items >= 0, self.item_bias[items], np.float32(0))
        return user_bias + self.global_mean + item_bias


@model
class FactorModel(BiasedModel):
    """A model whose prediction is ``mu + b_u + c_i + a_u . m_i``.

    Attributes
    ----------
    user_factors : float32 ndarray of shape (n_users, k)
    item_factors : float32 ndarray of shape (n_items, k)
    """

    user_factors: Floats = fitted("n_users", "k")
    item_factors: Floats = fitted("n_items", "k")

    def item_vectors(self) -> Floats:
        """Return the vectors whose cosine says how alike two items are, shape (n_items, k)."""
        return self.item_factors

    def user_vectors(self) -> Floats:
        """Return the vectors whose cosine says how alike two users are, shape (n_users, k)."""
        return self.user_factors

    def predict(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Predicted ratings of pairs, shape (n_pairs,); the same bits for a pair in any company."""
        u = check_indices(users, self.n_users, "user")
        i = check_indices(items, self.n_items, "item")
        predicted = super().predict(u, i)
        predicted += pair_dots(self.user_factors, self.item_factors, u, i)
        return predicted

    def scores(self, users: ArrayLike) -> Floats:
        """Predicted ratings of all items for each user, shape (n_block, n_items).

        One matrix product. Its last bits depend on the other users in the block; `score_error`
        bounds the difference.
        """
        u = check_indices(users, self.n_users, "user")
        block: Floats = self.user_factors[u] @ self.item_factors.T
        block += self.item_bias
        block += (self.user_bias[u] + self.global_mean)[:, None]
        return block

    def score_error(self, users: ArrayLike) -> Floats:
        """Bound on ``|scores - predict|`` for each user, shape (n_block,).

        Two sums of k + 3 terms, in any order, each differ from the exact one by at most
        ``(k + 3) u`` times the sum of the terms' sizes (u = 2^-24, Higham 2002, section 3.1),
        which Cauchy and Schwarz bound.
        """
        u = check_indices(users, self.n_users, "user")
        size = _lengths(self.user_factors[u]) * _largest(_lengths(self.item_factors))
        size += np.abs(self.user_bias[u]) + abs(self.global_mean)
        size += _largest(np.abs(self.item_bias))
        terms = self.item_factors.shape[1] + 3
        return size * np.float32(2 * terms * np.finfo(np.float32).eps)

    def factor_form(self, users: ArrayLike) -> FactorForm | None:
        """Return what top-N needs to rank without `scores`; its scores are those of `predict`.

        A model that changes `predict` must change this too, or return None.
        """
        u = check_indices(users, self.n_users, "user")
        offset = self.user_bias[u] + self.global_mean
        return FactorForm(self.user_factors[u], offset, self.item_factors, self.item_bias)


def pair_dots(left: Floats, right: Floats, rows: Indices, others: Indices) -> Floats:
    """Dot products of ``left[rows]`` with ``right[others]``, shape (n_pairs,).

    Each is summed in the same order whatever else is asked for, unlike in a matrix product.
    """
    return kernels.pair_dots(left, right, rows, others)


def _lengths(rows: Floats) -> Floats:
    lengths: Floats = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return lengths


def _largest(values: Floats) -> float:
    return float(values.max(initial=0))
