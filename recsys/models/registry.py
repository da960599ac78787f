"""Names of the models, and the classes behind them.

`MODELS` names where each class lives, so that only the model in use is imported, with NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from recsys.errors import DataError
from recsys.messages import close_matches

if TYPE_CHECKING:
    from recsys.models.base import Model
    from recsys.models.parameters import Parameter

MODELS: dict[str, str] = {
    "als": "recsys.models.als:ALS",
    "bayes": "recsys.models.bayes:Bayes",
    "bias": "recsys.models.baselines:Bias",
    "blend": "recsys.models.blend:Blend",
    "clusters": "recsys.models.baselines:Clusters",
    "ease": "recsys.models.ease:EASE",
    "ials": "recsys.models.ials:IALS",
    "implicit-als": "recsys.models.implicit_models:ImplicitALS",
    "implicit-bpr": "recsys.models.implicit_models:ImplicitBPR",
    "implicit-knn": "recsys.models.implicit_models:ImplicitKNN",
    "implicit-lmf": "recsys.models.implicit_models:ImplicitLMF",
    "popular": "recsys.models.baselines:Popular",
    "random": "recsys.models.baselines:Random",
    "softimpute": "recsys.models.softimpute:SoftImpute",
    "sparse-ease": "recsys.models.ease:SparseEASE",
    "spectral": "recsys.models.linear_filter:Spectral",
}

_CHOICE = {"auto": "recsys.auto:Auto"}  # of one of them, which is what is saved


def model_class(name: str) -> type[Model]:
    """Return the class of a model.

    Raises
    ------
    DataError
        If there is no such model; the message names the closest one.
    """
    if name not in MODELS | _CHOICE:
        close = similar_names(str(name))
        hint = f"did you mean {' or '.join(close)}? The" if close else "the"
        raise DataError(f"There is no model {name!r}; {hint} models are {', '.join(MODELS)}.")
    module, _, attribute = (MODELS | _CHOICE)[name].partition(":")
    found: type[Model] = getattr(import_module(module), attribute)
    return found


def similar_names(name: str) -> list[str]:
    """Return the models that may be meant by a name that no model has."""
    text = name.lower()
    if text in ("svd", "svd++", "funksvd", "mf", "nmf"):  # what `als` is called elsewhere
        return ["als"]
    parts = [each for each in MODELS if text in each] if text else []
    return parts or close_matches(text, MODELS, 3)


def parameters(name: str) -> tuple[Parameter, ...]:
    """Return the parameters of a model, in their order.

    Examples
    --------
    >>> [(p.name, p.default, p.description) for p in parameters("popular")]
    [('damping', 10.0, 'Ratings at the global mean added to each item.')]
    """
    return model_class(name).parameters()


def make_model(name: str, **params: Any) -> Model:
    """Return an unfitted model of a name in `MODELS`, with defaults for other parameters.

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
    return model_class(name)().set_params(**params)
