"""The state of a recommender: a model, the ratings it was fitted to, and a summary of the fit."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import polars as pl

from recsys.errors import DataError, NotFittedError
from recsys.models.base import Model, Step
from recsys.models.baselines import Popular
from recsys.models.registry import make_model
from recsys.training import require_finite, summarise

if TYPE_CHECKING:
    from pathlib import Path

    from recsys.data.ratings import Ratings

__all__ = ["Fitted", "check_ratings"]


def check_ratings(given: object, name: str = "ratings") -> None:
    """Refuse what is no `Ratings`, and say how such are made.

    Raises
    ------
    DataError
        If it is something else, such as a frame or a path.
    """
    from recsys.data.ratings import Ratings

    if not isinstance(given, Ratings):
        raise DataError(
            f"{name} must be Ratings; got {type(given).__name__}. Ratings.from_frame makes them "
            "of a frame, Ratings.from_matrix of a sparse matrix, read_ratings of a file."
        )


class Fitted:
    """What every recommender is made of; see `recsys.recommender.Recommender`."""

    def __init__(self, model: Model | str = "als", **params: Any) -> None:
        if params and not isinstance(model, str):
            raise DataError(f"A model object has its parameters already; got {', '.join(params)}.")
        self.model: Model = make_model(model, **params) if isinstance(model, str) else model
        if isinstance(self.model, type) or not hasattr(self.model, "fit"):
            raise DataError(f"model must be a name or a model with its parameters; got {model!r}.")
        self.training: dict[str, Any] = {}
        self._ratings: Ratings | None = None
        self._counts_from: dict[str, Ratings] = {}

    def __repr__(self) -> str:
        known = "not fitted" if self._ratings is None else f"{self._ratings}"
        return f"<{type(self).__name__}: {self.model.name}, {known}>"

    @property
    def ratings(self) -> Ratings:
        """The ratings the model was fitted to; after folding in, those that were folded in.

        Raises
        ------
        NotFittedError
            Before `fit`.
        """
        if self._ratings is None:
            raise NotFittedError("The recommender is not fitted yet; call fit(ratings) first.")
        return self._ratings

    def fit(
        self,
        ratings: Ratings,
        *,
        on_step: Callable[[Step], None] | None = None,
        validation: Ratings | None = None,
    ) -> Self:
        """Fit the model and keep `ratings` (not a copy) for ids and for what users have seen.

        Parameters
        ----------
        ratings : Ratings
        on_step : callable, optional
            Called with a `Step` after each sweep of an iterative model.
        validation : Ratings, optional
            Held-out ratings with the same users and items (as `random_split` makes them), for
            the error in each `Step`.

        Raises
        ------
        DataError
            If `ratings` is something else, such as a frame, or holds none, if the model cannot use
            them (implicit feedback given to a model of rating values), if its parameters lead to
            numbers that are not finite, or `validation` has other users or items.
        """
        check_ratings(ratings)
        if validation is not None:
            check_ratings(validation, "validation")
        if validation is not None and validation.shape != ratings.shape:
            raise DataError(
                f"validation must have the users and items of the ratings, {ratings.shape}; "
                f"got {validation.shape}."
            )
        return self._fit(ratings, on_step, validation=validation)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Save model, ids, item metadata and training ratings in a new directory.

        Times of ratings are not saved. Nothing half-written is ever at `path`.

        Parameters
        ----------
        path : str or Path
        overwrite : bool
            Replace a saved model there; never anything else.

        Raises
        ------
        ModelFileError
            If something is at `path` already, or it cannot be written.
        DataError
            If users or items were folded in: `update` adds them to the model for good.
        NotFittedError
            Before `fit`.
        """
        from recsys.storage import Saved, save_model

        if self._counts_from:
            raise DataError(
                "A recommender with folded-in users or items cannot be saved; "
                "update(ratings) adds them to the model itself."
            )
        save_model(Saved(self.model, self.ratings, self.training), path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = False) -> Self:
        """Load a saved model; its arrays are mapped from the files, not read.

        Parameters
        ----------
        path : str or Path
        verify : bool
            Check the checksum of every file, also where the model is larger than the 64 MB up
            to which that is done anyway.

        Raises
        ------
        ModelFileError
            If there is no saved model at `path`, or it is damaged or too new.
        """
        from recsys.storage import load_model

        saved = load_model(path, verify=verify)
        recommender = cls(saved.model)
        recommender._restore(saved.ratings, saved.training)
        return recommender

    def _fit(
        self, ratings: Ratings, on_step: Callable[[Step], None] | None, **settings: Any
    ) -> Self:
        """Fit the model with whatever else its `fit` takes."""
        if not ratings.n_ratings:
            raise DataError("There are no ratings to fit a model to.")
        last: list[Step] = []

        def each(step: Step) -> None:
            last[:] = [step]
            if on_step is not None:
                on_step(step)

        start = time.perf_counter()
        self.model.fit(ratings, on_step=each, **settings)
        seconds = time.perf_counter() - start
        require_finite(self.model)
        self._restore(ratings, summarise(ratings, seconds, last[0] if last else None))
        return self

    def _restore(
        self,
        ratings: Ratings,
        training: dict[str, Any],
        counts_from: dict[str, Ratings] | None = None,
    ) -> None:
        """Take the state of a fit; what was derived from an earlier one goes.

        `counts_from` says, after folding in, from which ratings users and items are counted.
        """
        self._ratings, self.training = ratings, training
        self._counts_from = counts_from or {}
        for derived in ("_popular", "_titles", "_item_likeness", "_user_likeness"):
            self.__dict__.pop(derived, None)

    @cached_property
    def _popular(self) -> Popular:
        return Popular().fit(self._counts_from.get("item", self.ratings))

    @cached_property
    def _titles(self) -> pl.Series | None:
        return self.ratings.titles
