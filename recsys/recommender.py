"""Recommender: ids in, data frames out, around a model that knows indices only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.errors import DataError, NotFittedError
from recsys.fallback import WithNewUser, labels_of, predict_cold
from recsys.frames import column, to_polars
from recsys.models import make_model
from recsys.models.base import Model, Step
from recsys.models.baselines import Popular
from recsys.topn import Cosine, Scorer, TopN, csr_exclusion, top_n
from recsys.training import clip_to_range, summarise

if TYPE_CHECKING:
    from pathlib import Path

    from recsys.ratings import Ratings

__all__ = ["Recommender"]

_SUPPORT = 10  # ratings at which likeness to an item counts half

ColdUser = Literal["error", "popular"]
ColdPair = Literal["error", "bias", "popular"]


class Recommender:
    """A model with the ratings it was fitted to: recommends, predicts, finds similar items.

    Parameters
    ----------
    model : str or Model
        A name in `recsys.models.MODELS`, or a model with its parameters set.
    **params
        Parameters of the model, if it is given by name.

    Attributes
    ----------
    model : Model
    training : dict
        Counts, range of the ratings, seconds and error of the fit.

    Raises
    ------
    DataError
        If there is no such model, or it has no such parameter or value.

    Examples
    --------
    >>> from recsys.ratings import Ratings
    >>> pairs = {"user": ["ann", "ann", "bob", "cy"], "item": ["tea", "oat", "tea", "rye"]}
    >>> recommender = Recommender("popular").fit(Ratings.from_frame(pl.DataFrame(pairs)))
    >>> recommender.recommend("bob", n=2).rows()
    [('bob', 'oat', 1, 1.0), ('bob', 'rye', 2, 1.0)]
    """

    def __init__(self, model: Model | str = "als", **params: Any) -> None:
        if params and not isinstance(model, str):
            raise DataError(f"A model object has its parameters already; got {', '.join(params)}.")
        self.model: Model = make_model(model, **params) if isinstance(model, str) else model
        self.training: dict[str, Any] = {}
        self._ratings: Ratings | None = None

    @property
    def ratings(self) -> Ratings:
        """The ratings the model was fitted to.

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
            If there are no ratings, the model cannot use them (implicit feedback given to a model
            of rating values), or `validation` has other users or items.
        """
        if not ratings.n_ratings:
            raise DataError("There are no ratings to fit a model to.")
        if validation is not None and validation.shape != ratings.shape:
            raise DataError(
                f"validation must have the users and items of the ratings, {ratings.shape}; "
                f"got {validation.shape}."
            )
        last: list[Step] = []

        def each(step: Step) -> None:
            last[:] = [step]
            if on_step is not None:
                on_step(step)

        start = time.perf_counter()
        self.model.fit(ratings, on_step=each, validation=validation)
        seconds = time.perf_counter() - start
        self._restore(ratings, summarise(ratings, seconds, last[0] if last else None))
        return self

    def recommend(
        self,
        users: Any = None,
        n: int = 10,
        *,
        exclude_seen: bool = True,
        allow: Any = None,
        block: Any = None,
        cold_start: ColdUser = "error",
    ) -> pl.DataFrame:
        """Recommend the n best items to each user.

        Parameters
        ----------
        users : id or sequence of ids, optional
            All users, in index order, if not given; for many users `recommend_batches` needs
            less memory.
        n : int
            The most items per user. A user gets fewer where fewer are left, and no rows where
            none are: nothing is padded.
        exclude_seen : bool
            Leave out the items that the user has rated.
        allow : sequence of item ids, optional
            Recommend these only.
        block : sequence of item ids, optional
            Never recommend these; also if they are in `allow`.
        cold_start : {"error", "popular"}
            What unknown users get: an error, or the most rated items, with the number of ratings
            as score.

        Returns
        -------
        polars DataFrame
            Columns user, item, rank (Int32, from 1), score (Float32), and title where titles are
            known. Scores are not clipped to the range of the ratings, so that they order items
            beyond its ends. Equal scores go by the order of the item ids.

        Raises
        ------
        UnknownIdError
            If a user is unknown, or an item of `allow` or `block`.
        DataError
            If n is below 1.
        NotFittedError
            Before `fit`.
        """
        frames = self.recommend_batches(
            users, n, exclude_seen=exclude_seen, allow=allow, block=block, cold_start=cold_start
        )
        return pl.concat([self._frame("user", self.ratings.users.values, TopN.empty()), *frames])

    def recommend_batches(
        self,
        users: Any = None,
        n: int = 10,
        *,
        exclude_seen: bool = True,
        allow: Any = None,
        block: Any = None,
        cold_start: ColdUser = "error",
    ) -> Iterator[pl.DataFrame]:
        """Recommend as `recommend`, in frames of at most about a million rows.

        Arguments are checked at once, before the first frame is asked for.

        Yields
        ------
        polars DataFrame
            The rows of some users, complete for each.
        """
        _check_choice("cold_start", cold_start, ("error", "popular"))
        ratings = self.ratings
        indptr, scorer = ratings.indptr, self._scorer
        if users is None:
            asked, labels = np.arange(ratings.n_users), ratings.users.values
        elif cold_start == "error":
            asked = ratings.users.index(_listed(users))
            labels = ratings.users.take(asked)
        else:
            queries = _listed(users)
            found = ratings.users.find(queries)
            labels = labels_of(ratings.users, queries, found)
            asked = np.where(found < 0, ratings.n_users, found)
            indptr, scorer = np.append(indptr, indptr[-1]), WithNewUser(self.model, self._popular)
        blocks = top_n(
            scorer,
            asked,
            n,
            exclude=csr_exclusion(indptr, ratings.indices) if exclude_seen else None,
            allowed=self._allowed(allow, block),
        )
        return (self._frame("user", labels, top) for top in blocks)

    def similar_items(self, items: Any, n: int = 10) -> pl.DataFrame:
        """Find the n items most like each item.

        Likeness is the cosine of the model's item vectors, times n_j / (n_j + 10) for a found
        item with n_j ratings: the vector of an item that few have rated points anywhere.

        Parameters
        ----------
        items : id or sequence of ids
        n : int
            The most items for each; the item itself is not among them.

        Returns
        -------
        polars DataFrame
            Columns item, similar, rank (Int32, from 1), score (Float32, the likeness), and the
            title of `similar` where titles are known. An item whose vector is zero, as one that
            nobody has rated, is like nothing and has no rows.

        Raises
        ------
        UnknownIdError
            If an item is unknown.
        DataError
            If n is below 1, or the model has no item vectors.
        NotFittedError
            Before `fit`.
        """
        asked = self.ratings.items.index(_listed(items))
        labels = self.ratings.items.take(asked)
        blocks = top_n(self._likeness, asked, n, exclude=Cosine.exclude_itself)
        frames = (self._frame("item", labels, top, "similar") for top in blocks)
        return pl.concat([self._frame("item", labels, TopN.empty(), "similar"), *frames])

    def predict(self, pairs: Any, *, cold_start: ColdPair = "error") -> pl.DataFrame:
        """Predict the rating of each pair of a user and an item.

        Parameters
        ----------
        pairs : polars or pandas frame, or an object with the Arrow C stream interface
            Columns user and item; others are ignored.
        cold_start : {"error", "bias", "popular"}
            What pairs get whose user or item is unknown: an error; the global mean plus the bias
            of the side that is known; or the damped mean rating of the item (see `Popular`), and
            the mean of all ratings for an unknown item.

        Returns
        -------
        polars DataFrame
            Columns user and item as they were given, in their order, and prediction (Float32),
            clipped to the range of the training ratings unless these were implicit.

        Raises
        ------
        UnknownIdError
            If a user or item is unknown and `cold_start` is "error".
        DataError
            If a column is missing, an id is null, or `cold_start` is "bias" and the model has
            no biases.
        NotFittedError
            Before `fit`.
        """
        _check_choice("cold_start", cold_start, ("error", "bias", "popular"))
        ratings = self.ratings
        frame = to_polars(pairs)
        user, item = column(frame, "user"), column(frame, "item")
        if cold_start == "error":
            predicted = self.model.predict(ratings.users.index(user), ratings.items.index(item))
        else:
            users, items = ratings.users.find(user), ratings.items.find(item)
            popular = self._popular if cold_start == "popular" else None
            predicted = predict_cold(self.model, popular, users, items)
        clipped = clip_to_range(predicted, self.training)
        return pl.DataFrame(
            [user.alias("user"), item.alias("item"), pl.Series("prediction", clipped)]
        )

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
        NotFittedError
            Before `fit`.
        """
        from recsys.storage import Saved, save_model

        save_model(Saved(self.model, self.ratings, self.training), path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = False) -> Recommender:
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

    def _restore(self, ratings: Ratings, training: dict[str, Any]) -> None:
        """Take the state of a fit; what was derived from an earlier one goes."""
        self._ratings, self.training = ratings, training
        for derived in ("_popular", "_likeness", "_titles"):
            self.__dict__.pop(derived, None)

    @property
    def _scorer(self) -> Scorer:
        return self.model

    @cached_property
    def _popular(self) -> Popular:
        return Popular().fit(self.ratings)

    @cached_property
    def _titles(self) -> pl.Series | None:
        return self.ratings.titles

    @cached_property
    def _likeness(self) -> Cosine:
        vectors = getattr(self.model, "item_vectors", None)
        if vectors is None:
            raise DataError(
                f"The {self.model.name} model has no item vectors to compare; "
                "fit a factor model such as 'als' to find similar items."
            )
        counts = np.bincount(self.ratings.indices, minlength=self.ratings.n_items)
        return Cosine(vectors(), (counts / (counts + _SUPPORT)).astype(np.float32))

    def _allowed(self, allow: Any, block: Any) -> NDArray[np.bool_] | None:
        """Return the mask of the items that may be recommended, None for all."""
        if allow is None and block is None:
            return None
        items = self.ratings.items
        mask = np.full(len(items), allow is None)
        if allow is not None:
            mask[items.index(_listed(allow))] = True
        if block is not None:
            mask[items.index(_listed(block))] = False
        return mask

    def _frame(self, kind: str, labels: pl.Series, top: TopN, found: str = "item") -> pl.DataFrame:
        """Make the frame of some results; `labels` are the ids that were asked about."""
        columns = [
            labels.gather(top.rows).alias(kind),
            self.ratings.items.take(top.items).alias(found),
            pl.Series("rank", top.ranks),
            pl.Series("score", top.scores),
        ]
        if self._titles is not None:
            columns.append(self._titles.gather(top.items).alias("title"))
        return pl.DataFrame(columns)


def _listed(ids: Any) -> Any:
    """Return a single id as a list of one."""
    single = isinstance(ids, str | int | np.integer | float)
    return [ids] if single else ids if isinstance(ids, pl.Series | np.ndarray) else list(ids)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise DataError(f"{name} must be one of {', '.join(choices)}; got {value!r}.")
