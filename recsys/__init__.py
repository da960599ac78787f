"""Recommendations from ratings: read, fit, recommend, evaluate.

::

    from recsys import Recommender, read_ratings

    ratings = read_ratings("ratings.csv")
    recommender = Recommender("als", factors=32).fit(ratings)
    recommender.recommend(42, n=10)

The public names are listed in ``__init__.pyi``, and imported when first used.
"""

from typing import Any

import lazy_loader

_import, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Return a public name, or the version of the installed distribution."""
    if name != "__version__":
        return _import(name)
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("lowrank-recsys")
    except PackageNotFoundError:  # a source tree that is not installed
        return "0+unknown"
