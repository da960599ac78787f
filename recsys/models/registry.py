"""The models, by name.

`MODELS` names where each class lives, so that only the model in use is imported.
"""

from __future__ import annotations

from dataclasses import fields
from numbers import Integral, Real
from typing import Any

import numpy as np

from recsys.errors import DataError
from recsys.models.base import BaseModel, BiasedModel, FactorModel, Model, Step

__all__ = [
    "MODELS",
    "BaseModel",
    "BiasedModel",
    "FactorModel",
    "Model",
    "Step",
    "make_model",
    "model_class",
]

MODELS: dict[str, str] = {
    "als": "recsys.models.als:ALS",
    "bayes": "recsys.models.bayes:Bayes",
    "bias": "recsys.models.baselines:Bias",
    "clusters": "recsys.models.clusters:Clusters",
    "ease": "recsys.models.ease:EASE",
    "implicit-als": "recsys.models.implicit_factors:ImplicitALS",
    "implicit-bpr": "recsys.models.implicit_factors:ImplicitBPR",
    "implicit-knn": "recsys.models.implicit_knn:ImplicitKNN",
    "implicit-lmf": "recsys.models.implicit_factors:ImplicitLMF",
    "popular": "recsys.models.baselines:Popular",
    "random": "recsys.models.baselines:Random",
    "softimpute": "recsys.models.softimpute:SoftImpute",
    "spectral": "recsys.models.spectral:Spectral",
}

_TYPES: dict[str, tuple[Any, str]] = {
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "bool": (bool | np.bool_, "True or False"),
    "str": (str, "text"),
}


def model_class(name: str) -> type[Model]:
    """Return the class of the model called `name`.

    Raises
    ------
    DataError
        If there is no such model; the message gives the nearest name.

    Examples
    --------
    >>> model_class("popular").__name__
    'Popular'
    """
    if name not in MODELS:
        raise DataError(_unknown(name))
    from importlib import import_module

    module, _, attribute = MODELS[name].partition(":")
    found: type[Model] = getattr(import_module(module), attribute)
    return found


def make_model(name: str, **params: Any) -> Model:
    """Make the model called `name` with some of its parameters set.

    Raises
    ------
    DataError
        If there is no such model, it has no such parameter, or a value is of another type or out of
        range.

    Examples
    --------
    >>> make_model("popular", damping=5)
    Popular(damping=5)
    """
    cls = model_class(name)
    known = cls().params()
    for param in params:
        if param not in known:
            listed = ", ".join(known) or "none"
            raise DataError(f"The {name} model has no parameter {param!r}; it has {listed}.")
    _check_types(cls, params)
    return cls(**params)


def _check_types(cls: Any, params: dict[str, Any]) -> None:
    """Refuse a value of another type than is declared; the model itself knows its range."""
    for each in fields(cls):
        kind, *optional = str(each.type).split(" | ")
        value = params.get(each.name)
        if kind not in _TYPES or each.name not in params or (optional and value is None):
            continue
        accepted, noun = _TYPES[kind]
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind != "bool"):
            raise DataError(f"{each.name} must be {noun}; got {value!r}.")


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(str(name), MODELS, n=1)
    hint = f"did you mean {near[0]!r}? The" if near else "the"
    return f"There is no model {name!r}; {hint} models are {', '.join(sorted(MODELS))}."
