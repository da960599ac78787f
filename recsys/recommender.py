"""Recommender: ids in, data frames out, around a model that knows indices only.

Its methods live in four classes, each on top of the one before, so that each file is about one
thing: `recsys.fitted` (fit, save, load), `recsys.learning` (fold_in, fold_in_items, update),
`recsys.predicting` (predict, impute, explain), and here what gives the best of all items.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.cold_start import WithNewUser, labels_of
from recsys.data.frames import listed
from recsys.data.ids import Ids
from recsys.errors import DataError
from recsys.models.abilities import HasItemSimilarity, HasItemVectors, HasUserVectors
from recsys.predicting import ColdPair, Predictor, check_choice
from recsys.topn import Cosine, Scorer, TopN, csr_exclusion, top_n

__all__ = ["ColdPair", "ColdUser", "Recommender"]

_SUPPORT = 10  # ratings at which likeness to an item or user counts half

ColdUser = Literal["error", "popular"]


class Recommender(Predictor):
    """A model with the ratings it was fitted to: recommends, predicts, explains.

    Parameters
    ----------
    model : str or Model
        A name in `recsys.models.registry.MODELS`, or a model with its parameters set.
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
    >>> from recsys.data.ratings import Ratings
    >>> pairs = {"user": ["ann", "ann", "bob", "cy"], "item": ["tea", "oat", "tea", "rye"]}
    >>> recommender = Recommender("popular").fit(Ratings.from_frame(pl.DataFrame(pairs)))
    >>> recommender.recommend("bob", n=2).rows()
    [('bob', 'oat', 1, 1.0), ('bob', 'rye', 2, 1.0)]

    New users are described by what they know, and scores taken apart:

    >>> recommender.recommend(history={"tea": 1, "oat": 1}).rows()
    [('new', 'rye', 1, 1.0)]
    >>> recommender.explain("bob", "oat").rows()
    [('base', None, 1.0), ('item', 'tea', 0.0)]
    """

    def recommend(
        self,
        users: Any = None,
        n: int = 10,
        *,
        history: Any = None,
        exclude_seen: bool = True,
        allow: Any = None,
        block: Any = None,
        where: str | None = None,
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
        history : frame, or mapping of item id to rating, optional
            What new users have rated; recommend to these users (see `fold_in`).
        exclude_seen : bool
            Leave out the items that the user has rated.
        allow : sequence of item ids, optional
            Recommend these only.
        block : sequence of item ids, optional
            Never recommend these; also if they are in `allow`.
        where : str, optional
            Recommend only items that meet this condition on what is known of them, a Boolean SQL
            expression such as ``"year >= 1990 AND genres LIKE '%Comedy%'"``
            (see `recsys.filters.items_where`).
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
            If n is below 1, `where` is no condition on the columns there are, or the model cannot
            fold in the users of `history`.
        NotFittedError
            Before `fit`.
        """
        asked = self if history is None else self.fold_in(history)
        frames = asked.recommend_batches(
            users,
            n,
            exclude_seen=exclude_seen,
            allow=allow,
            block=block,
            where=where,
            cold_start=cold_start,
        )
        return asked._joined(frames, "user", asked.ratings.users.values, asked.ratings.items)

    def recommend_batches(
        self,
        users: Any = None,
        n: int = 10,
        *,
        history: Any = None,
        exclude_seen: bool = True,
        allow: Any = None,
        block: Any = None,
        where: str | None = None,
        cold_start: ColdUser = "error",
    ) -> Iterator[pl.DataFrame]:
        """Recommend as `recommend`, in frames of at most about a million rows.

        Arguments are checked at once, before the first frame is asked for.

        Yields
        ------
        polars DataFrame
            The rows of some users, complete for each.
        """
        check_choice("cold_start", cold_start, ("error", "popular"))
        if history is not None:
            return self.fold_in(history).recommend_batches(
                users,
                n,
                exclude_seen=exclude_seen,
                allow=allow,
                block=block,
                where=where,
                cold_start=cold_start,
            )
        ratings = self.ratings
        scorer: Scorer = self.model
        indptr = ratings.indptr
        if users is None:
            asked, labels = np.arange(ratings.n_users), ratings.users.values
        elif cold_start == "error":
            asked = ratings.users.index(listed(users))
            labels = ratings.users.take(asked)
        else:
            queries = listed(users)
            found = ratings.users.find(queries)
            labels = labels_of(ratings.users, queries, found)
            asked = np.where(found < 0, ratings.n_users, found)
            indptr, scorer = np.append(indptr, indptr[-1]), WithNewUser(self.model, self._popular)
        blocks = top_n(
            scorer,
            asked,
            n,
            exclude=csr_exclusion(indptr, ratings.indices) if exclude_seen else None,
            allowed=self._allowed(allow, block, where),
        )
        return (self._frame("user", labels, ratings.items, top) for top in blocks)

    def similar_items(self, items: Any, n: int = 10) -> pl.DataFrame:
        """Find the n items most like each item.

        Likeness is the cosine of the model's item vectors (for `implicit-knn`, what it knows of
        the item's neighbours), times n_j / (n_j + 10) for a found item with n_j ratings: the vector
        of an item that few have rated points anywhere.

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
        return self._similar(self.ratings.items, items, n, self._item_likeness)

    def similar_users(self, users: Any, n: int = 10) -> pl.DataFrame:
        """Find the n users most like each user.

        Likeness is the cosine of the model's user vectors, times n_v / (n_v + 10) for a found
        user with n_v ratings.

        Parameters
        ----------
        users : id or sequence of ids
        n : int
            The most users for each; the user itself is not among them.

        Returns
        -------
        polars DataFrame
            Columns user, similar, rank (Int32, from 1), score (Float32, the likeness). A user
            whose vector is zero, as one without ratings, is like nobody and has no rows.

        Raises
        ------
        UnknownIdError
            If a user is unknown.
        DataError
            If n is below 1, or the model has no user vectors.
        NotFittedError
            Before `fit`.
        """
        return self._similar(self.ratings.users, users, n, self._user_likeness)

    @cached_property
    def _item_likeness(self) -> Scorer:
        if isinstance(self.model, HasItemSimilarity):
            return self.model.item_similarity(_confidence(self._counts("item")))
        if not isinstance(self.model, HasItemVectors):
            raise DataError(
                f"The {self.model.name} model has no item vectors to compare; "
                "fit a factor model such as 'als' to find similar items."
            )
        return Cosine(self.model.item_vectors(), confidence=_confidence(self._counts("item")))

    @cached_property
    def _user_likeness(self) -> Cosine:
        if not isinstance(self.model, HasUserVectors):
            raise DataError(
                f"The {self.model.name} model has no user vectors to compare; "
                "fit a factor model such as 'als' to find similar users."
            )
        return Cosine(self.model.user_vectors(), confidence=_confidence(self._counts("user")))

    def _similar(self, ids: Ids, queries: Any, n: int, likeness: Scorer) -> pl.DataFrame:
        asked = ids.index(listed(queries))
        blocks = top_n(likeness, asked, n, exclude=Cosine.exclude_itself)
        labels = ids.take(asked)
        frames = (self._frame(ids.kind, labels, ids, top, "similar") for top in blocks)
        return self._joined(frames, ids.kind, labels, ids, "similar")

    def _allowed(self, allow: Any, block: Any, where: str | None) -> NDArray[np.bool_] | None:
        """Return the mask of the items that may be recommended, None for all."""
        if allow is None and block is None and where is None:
            return None
        items = self.ratings.items
        mask = np.full(len(items), allow is None)
        if allow is not None:
            mask[items.index(listed(allow))] = True
        if block is not None:
            mask[items.index(listed(block))] = False
        if where is not None:
            from recsys.filters import items_where

            mask &= items_where(where, self.ratings)
        return mask

    def _frame(
        self,
        kind: str,
        labels: pl.Series,
        answers: Ids,
        top: TopN | None = None,
        name: str | None = None,
    ) -> pl.DataFrame:
        """Make the frame of some results, or without any.

        `labels` are the ids that were asked about, `answers` those among which was searched.
        """
        top = TopN.empty() if top is None else top
        columns = [
            labels[top.rows].alias(kind),
            answers.take(top.items).alias(name or answers.kind),
            pl.Series("rank", top.ranks),
            pl.Series("score", top.scores),
        ]
        if self._titles is not None and answers.kind == "item":
            columns.append(self._titles[top.items].alias("title"))
        return pl.DataFrame(columns)

    def _joined(
        self,
        frames: Iterable[pl.DataFrame],
        kind: str,
        labels: pl.Series,
        answers: Ids,
        name: str | None = None,
    ) -> pl.DataFrame:
        """Join frames into one; a single one, which all small queries give, as it is."""
        found = list(frames)
        if not found:
            return self._frame(kind, labels, answers, name=name)
        return found[0] if len(found) == 1 else pl.concat(found)


def _confidence(counts: NDArray[np.int64]) -> NDArray[np.float32]:
    return (counts / (counts + _SUPPORT)).astype(np.float32)
