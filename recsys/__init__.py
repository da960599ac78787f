"""Recommendations from ratings: read, fit, recommend, evaluate.

::

    from recsys import Recommender, read_ratings

    ratings = read_ratings("ratings.csv")
    recommender = Recommender("als", factors=32).fit(ratings)
    recommender.recommend(42, n=10)

Everything here is imported when it is first used, so that ``import recsys`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recsys.data.ids import Ids
    from recsys.data.ratings import Ratings
    from recsys.errors import (
        DataError,
        ModelFileError,
        NotFittedError,
        RecsysError,
        UnknownIdError,
    )
    from recsys.evaluation import (
        Evaluation,
        Split,
        evaluate,
        held_out_users,
        html_report,
        k_fold,
        leave_last_split,
        per_user_split,
        random_split,
        read_split,
        save_split,
        split_from_pair,
        time_split,
        tune,
    )
    from recsys.lsi import LSI
    from recsys.models.als import ALS
    from recsys.models.baselines import Bias, Popular, Random
    from recsys.models.registry import MODELS
    from recsys.readers import read_ratings, sample_path
    from recsys.recommender import Recommender

    __version__: str

__all__ = [
    "ALS",
    "LSI",
    "MODELS",
    "Bias",
    "DataError",
    "Evaluation",
    "Ids",
    "ModelFileError",
    "NotFittedError",
    "Popular",
    "Random",
    "Ratings",
    "Recommender",
    "RecsysError",
    "Split",
    "UnknownIdError",
    "__version__",
    "evaluate",
    "held_out_users",
    "html_report",
    "k_fold",
    "leave_last_split",
    "per_user_split",
    "random_split",
    "read_ratings",
    "read_split",
    "sample_path",
    "save_split",
    "split_from_pair",
    "time_split",
    "tune",
]

_HOMES = {
    "recsys.errors": (
        "DataError",
        "ModelFileError",
        "NotFittedError",
        "RecsysError",
        "UnknownIdError",
    ),
    "recsys.evaluation": (
        "Evaluation",
        "Split",
        "evaluate",
        "held_out_users",
        "html_report",
        "k_fold",
        "leave_last_split",
        "per_user_split",
        "random_split",
        "read_split",
        "save_split",
        "split_from_pair",
        "time_split",
        "tune",
    ),
    "recsys.data.ids": ("Ids",),
    "recsys.lsi": ("LSI",),
    "recsys.models.registry": ("MODELS",),
    "recsys.models.als": ("ALS",),
    "recsys.models.baselines": ("Bias", "Popular", "Random"),
    "recsys.data.ratings": ("Ratings",),
    "recsys.readers": ("read_ratings", "sample_path"),
    "recsys.recommender": ("Recommender",),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name == "__version__":
        return _version()
    for module, names in _HOMES.items():
        if name in names:
            from importlib import import_module

            value = getattr(import_module(module), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))


def _version() -> str:
    """Return the version of the installed distribution."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("lowrank-recsys")
    except PackageNotFoundError:  # a source tree that is not installed
        return "0+unknown"
