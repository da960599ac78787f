"""Registry of models by name, and the fit of a model.

`MODELS` has import paths, so that only the model in use (and NumPy) is imported.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys.errors import DataError
from recsys.messages import absent, close_matches

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings
    from recsys.models.base import Model, OnStep, Step
    from recsys.models.parameters import Parameter
    from recsys.provenance import FitRequest

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
    "next": "recsys.models.next:Next",
    "popular": "recsys.models.baselines:Popular",
    "random": "recsys.models.baselines:Random",
    "softimpute": "recsys.models.softimpute:SoftImpute",
    "sparse-ease": "recsys.models.ease:SparseEASE",
    "spectral": "recsys.models.linear_filter:Spectral",
}

# Only a class that the caller has named is loaded: a saved model runs no code of its own.
_ADDRESSES: dict[str, str] = {}  # of the classes in files, by name
_LOADABLE: dict[str, type[Model]] = {}
MODEL_CLASSES = "RECSYS_MODEL_CLASS"
"""Variable of the environment with the classes that the caller has named, one on each line."""
_CHOICE = {"auto": "recsys.auto:Auto"}  # chooses one of MODELS, which is saved instead


def model_class(name: str) -> type[Model]:
    """Return the class of a model.

    Raises
    ------
    DataError
        If there is no such model; the message suggests the closest names.
    """
    # Import on demand: `recsys --help` lists the models without their libraries.
    if name not in MODELS | _CHOICE:
        from recsys.models.parameters import DEFINED

        if name in DEFINED:
            return DEFINED[name]
        close = similar_names(str(name))
        hint = f"did you mean {' or '.join(close)}? The" if close else "the"
        if "::" in name:
            hint = "name it by --model-class, and then by its own name; the"
        raise DataError(
            f"There is no model {name!r}; {hint} models are {', '.join(MODELS)}."
        )
    module, _, attribute = (MODELS | _CHOICE)[name].partition(":")
    loaded: type[Model] = getattr(import_module(module), attribute)
    return loaded


def class_in_file(address: str) -> type[Model]:
    """Return a class of models that a Python file defines, by ``own.py::MyModel``.

    Raises
    ------
    DataError
        If the file cannot be run, or does not define such a class.
    """
    from importlib.util import module_from_spec, spec_from_file_location

    from recsys.models.base import Model
    from recsys.models.parameters import DEFINED

    file, _, attribute = address.partition("::")
    if not Path(file).is_file():
        raise DataError(f"There is no file {file}, for the model {address}.")
    spec = spec_from_file_location(f"models_in_{Path(file).stem}", file)
    if spec is None or spec.loader is None:
        raise DataError(f"{file} must be a file of Python, such as own.py::MyModel.")
    module = module_from_spec(spec)
    sys.modules[module.__name__] = module  # where dataclasses look for it
    folder = str(Path(file).resolve().parent)
    # The file may import others next to it. At the end, they hide no installed module.
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise DataError(f"{file} cannot be run: {problem}.") from error
    classes: dict[str, type[Model]] = {}
    for name, value in vars(module).items():
        is_model = isinstance(value, type) and issubclass(value, Model)
        if is_model and value.__module__ == module.__name__:
            classes[name] = value
    defined = classes.get(attribute)
    if defined is None:
        raise DataError(absent("class of models", attribute, file, classes))
    # A class that inherits its name would be loaded in the place of its base.
    own_name = vars(defined).get("name")
    if own_name is None or DEFINED.get(own_name) is not defined or own_name in MODELS:
        raise DataError(
            f"The class {attribute} of {file} must have a name that no other model has "
            '(name = "mine"), and the decorator @model.'
        )
    _ADDRESSES[own_name] = address
    return DEFINED[own_name]


def address_of(name: str) -> str:
    """Return the name of a model as the command takes it: own.py::MyModel of a class in a file."""
    return _ADDRESSES.get(name, name)


def name_for_loading(models: Iterable[type[Model]]) -> None:
    """Let saved models of these classes be loaded, in this process.

    Raises
    ------
    DataError
        If they are not classes of models.
    """
    from recsys.models.base import Model

    classes: Iterable[Any] = [models] if isinstance(models, type) else models
    for defined in classes:
        if not (isinstance(defined, type) and issubclass(defined, Model)):
            raise DataError(
                f"models must be classes of models, as in [MyModel]; got {defined!r}."
            )
        _LOADABLE[defined.name] = defined


def class_to_load(name: str) -> type[Model] | None:
    """Return the class of a saved model; None if it is unknown or was not named by the caller."""
    if name in MODELS:
        return model_class(name)
    if name not in _LOADABLE:
        addresses = os.environ.get(MODEL_CLASSES, "").splitlines()
        name_for_loading(class_in_file(address) for address in addresses)
    return _LOADABLE.get(name)


def similar_names(name: str) -> list[str]:
    """Return the names of models that are similar to an unknown name."""
    text = name.lower()
    # Similar models of other libraries.
    if text in ("svd", "svd++", "funksvd", "mf", "nmf"):
        return ["als"]
    parts = [model for model in MODELS if text in model] if text else []
    return parts or close_matches(text, MODELS, 3)


def parameters(name: str) -> tuple[Parameter, ...]:
    """Return the parameters of a model, in their order.

    Examples
    --------
    >>> [(p.name, p.default) for p in parameters("popular")]
    [('damping', 10.0), ('habit', 0.0)]
    """
    return model_class(name).parameters()


def make_model(name: str, **params: Any) -> Model:
    """Return an unfitted model by its name in `MODELS`, with some parameters set.

    Raises
    ------
    DataError
        If the model or a parameter does not exist, or a value has another type or is out of range.

    Examples
    --------
    >>> make_model("popular", damping=5)
    Popular(damping=5, habit=0.0)
    """
    return model_class(name)().set_params(**params)


def seeded_model(
    name: str,
    random_state: int,
    threads: int | None,
    **params: Any,
) -> Model:
    """Return an unfitted model, with the seed and the threads if it has these parameters."""
    declared = {parameter.name for parameter in parameters(name)}
    shared = {"random_state": random_state, "threads": threads}
    used = {key: value for key, value in shared.items() if key in declared}
    return make_model(name, **used | params)


def is_made_by_name(model: Model) -> bool:
    """Return whether the class of a model is found by its name."""
    from recsys.models.parameters import DEFINED

    is_found = model.name in {*MODELS, *_CHOICE, *DEFINED}
    return is_found and model_class(model.name) is type(model)


def request_of(model: Model) -> FitRequest | None:
    """Return the request for a model with its parameters; None if it cannot be made by name."""
    if not is_made_by_name(model):
        return None
    return model._request


def requested_model(request: FitRequest) -> Model:
    """Return the unfitted model of a request.

    Raises
    ------
    DataError
        If the model or a parameter does not exist, or a value is out of range.
    """
    model = make_model(request.model, **request.parameters)
    return model._with_request(request)


def fitted_model(
    model: Model,
    ratings: Ratings,
    on_step: OnStep,
    **settings: Any,
) -> tuple[Model, Ratings, dict[str, Any]]:
    """Fit a model, and return it with its ratings and the training summary.

    For `auto`, the returned model and ratings are the chosen model and its training data.

    Raises
    ------
    DataError
        If there are no ratings, or the fit diverges.
    """
    if not ratings.n_ratings:
        reason = "" if ratings.source is None else ratings.source.rows
        because = f": {reason}" if reason else ""
        raise DataError(f"There are no ratings to fit a model to{because}.")
    last: Step | None = None

    def record(step: Step) -> None:
        nonlocal last
        last = step
        if on_step is not None:
            on_step(step)

    # Counts of events become weights before the clock starts.
    ratings = ratings.as_interactions()
    start = time.perf_counter()
    model.fit(ratings, on_step=record, **settings)
    seconds = round(time.perf_counter() - start, 3)
    model, ratings, findings = model._chosen(ratings)
    model._check_finite()
    # Weights of interactions have no range to which predictions are clipped.
    lowest, highest = (None, None) if ratings.implicit else ratings.grade_range()
    training: dict[str, Any] = {
        "users": ratings.n_users,
        "items": ratings.n_items,
        "ratings": ratings.n_ratings,
        "implicit": ratings.implicit,
        "rating_min": lowest,
        "rating_max": highest,
        "seconds": seconds,
        "sweeps": last.step if last else None,
        "train_rmse": last.train_rmse if last else None,
        "validation_rmse": last.validation_rmse if last else None,
    }
    if findings:
        training["choice"] = findings
    if model.remarks:
        training["remarks"] = "; ".join(model.remarks)
    return model, ratings, training
