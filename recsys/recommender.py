"""The `Recommender`, which translates between ids and the indices of a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, cast, overload

import numpy as np
import polars as pl

from lowrank.kernels.topk import Ties
from recsys import folding, predictions
from recsys.catalogues import read_catalogue
from recsys.data.features import TableLike
from recsys.data.frames import FrameLike, listed
from recsys.data.ids import Ids, IdsLike
from recsys.data.ratings import Ratings, check_process
from recsys.data.times import Moment
from recsys.errors import (
    DataError,
    NotFittedError,
    check_choice,
    check_flags,
    check_share,
)
from recsys.folding import FeaturesLike, HistoryLike
from recsys.messages import html_table
from recsys.models.base import Model, Step
from recsys.models.baselines import Popular
from recsys.models.parts import Floats, Indices, Mask
from recsys.models.registry import make_model, name_for_loading
from recsys.placement import Placement, placement
from recsys.predictions import PairsLike, ranked
from recsys.provenance import Provenance
from recsys.ranking.chance import Chances
from recsys.ranking.filters import left_out
from recsys.ranking.lists import BlockLike, ColdUser, Fill, ListOptions
from recsys.ranking.rerank import (
    column_of_items,
    prepare_lists,
    similar_lists,
    users_without_data,
)
from recsys.ranking.topn import CsrPairs, KnownUsers, Scorer, TopN, top_n
from recsys.readers import TableSource, as_ratings
from recsys.reasons import (
    LANGUAGES,
    Language,
    in_words,
    kinds_of_history,
    shared_reasons,
)
from recsys.refit import fit_model
from recsys.saving.storage import Saved, load_model, save_model
from recsys.topics import Topics
from recsys.update import reading_of, updated
from recsys.user_columns import check_columns
from recsys.vectors import (
    METRICS,
    Metric,
    VectorTable,
    score_table,
    similarity_table,
)

ColdPair = Literal["error", "bias", "popular"]
IdLike: TypeAlias = int | str
RatingsLike: TypeAlias = "Ratings | FrameLike | str | os.PathLike[str]"

_UNSAVED = Provenance()


class Recommender:
    """A model together with the ratings it was fitted to.

    Parameters
    ----------
    model : str or Model
        A name in `recsys.MODELS`, or a model with its parameters set.
    **params
        Parameters of a model given by name.

    Attributes
    ----------
    model : Model
    training : dict
        Summary of the fit: counts, range of the ratings, duration and error.
    provenance : Provenance

    Raises
    ------
    DataError
        If the model, a parameter or a value of one does not exist. Methods also raise it if the
        model lacks an ability that they need.
    NotFittedError
        If a method that needs a fitted model is called before `fit`.
    UnknownIdError
        If a method is given an unknown id.

    Examples
    --------
    >>> users, items = ["ann", "ann", "bob", "cy", "dan"], ["tea", "oat", "tea", "rye", "oat"]
    >>> recommender = Recommender("popular").fit(pl.DataFrame({"user": users, "item": items}))
    >>> recommender.recommend("bob", n=2).rows()
    [('bob', 'oat', 1, 2.0), ('bob', 'rye', 2, 1.0)]

    New users are described by their ratings, and scores are explained:

    >>> recommender.recommend(history={"tea": 1, "oat": 1}).rows()
    [('new', 'rye', 1, 1.0)]
    >>> recommender.explain("bob", "oat").rows()
    [('base', None, 2.0), ('item', 'tea', 0.0)]
    """

    def __init__(self, model: Model | str = "als", **params: Any) -> None:
        if params and not isinstance(model, str):
            raise DataError(
                f"A model object has its parameters already; got {', '.join(params)}."
            )
        # `clone` of scikit-learn makes a recommender of a name and parameters, or of a model.
        self._is_named = isinstance(model, str)
        if isinstance(model, str):
            model = make_model(model, **params)
        if not isinstance(model, Model):
            raise DataError(
                f"model must be a name or a Model with its parameters; got {model!r}."
            )
        self.model = model
        self.training: dict[str, Any] = {}
        self.provenance = _UNSAVED
        self._ratings: Ratings | None = None
        # Training ratings, by the side ("user" or "item") that was not folded in.
        self._counts_from: dict[str, Ratings] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.model.name}, {self._ratings or 'not fitted'}>"

    def _repr_html_(self) -> str:
        facts = {"model": self.model.name, **self.model.get_params(), **self.training}
        known = {name: value for name, value in facts.items() if value is not None}
        return html_table(repr(self), known)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=False))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the model and its parameters, for scikit-learn's `clone`."""
        params = self.model.get_params()
        if self._is_named:
            return {"model": self.model.name, **params}
        nested = {f"model__{name}": params[name] for name in params} if deep else {}
        return {"model": self.model, **nested}

    def set_params(self, **params: Any) -> Self:
        """Set the model or some of its parameters, and discard the fit."""
        if self._is_named:
            if params.get("model", self.model.name) == self.model.name:
                params = self.get_params() | params
            changed = type(self)(**params)
        else:
            model = params.pop("model", self.model)
            nested = {name.removeprefix("model__"): params[name] for name in params}
            if nested:
                model = type(model)().set_params(**model.get_params() | nested)
            changed = type(self)(model)
        # The other recommender was checked, and has nothing of the fit.
        self.__dict__ = vars(changed)
        return self

    @property
    def ratings(self) -> Ratings:
        """The training ratings, or after folding in, the ratings that were folded in.

        Raises
        ------
        NotFittedError
        """
        if self._ratings is None:
            raise NotFittedError(
                "The recommender is not fitted yet; call fit(ratings) first."
            )
        check_process()
        return self._ratings

    def fit(
        self,
        ratings: RatingsLike,
        *,
        features: bool | Sequence[str] = True,
        on_step: Callable[[Step], None] | None = None,
        validation: Ratings | None = None,
    ) -> Self:
        """Fit the model, and keep the ratings for their ids and the items that users have seen.

        Parameters
        ----------
        ratings : Ratings, frame or path
        features : bool or sequence of str
            Whether a model that can uses the tables of items and users, or the columns to use. As
            in `recsys fit`, they are used by default, and items and users without ratings are known
            by them (but not with `validation`). Ratings that have features keep them.
        on_step : callable, optional
            Called with a `Step` after each iteration of an iterative model.
        validation : Ratings, optional
            Held-out ratings of the same users and items, on which each `Step` reports the error.
            Models such as als keep the best iteration. The recommender does not have these
            ratings, so a refit by `update` has all iterations, as it says.

        Raises
        ------
        DataError
            If the model cannot use the ratings, or the fit diverges with its parameters.
        """
        data = ratings if isinstance(ratings, Ratings) else as_ratings(ratings)
        if validation is not None and not isinstance(validation, Ratings):
            raise DataError(
                f"validation must be Ratings; got {type(validation).__name__}."
            )
        if validation is not None and validation.shape != data.shape:
            expected = f"have the users and items of the ratings, {data.shape}"
            raise DataError(f"validation must {expected}; got {validation.shape}.")
        if features is not False and (data.item_table or data.user_table):
            data = self._with_features(data, features, unrated=validation is None)
        fitted = fit_model(self.model, data, on_step, validation=validation)
        self.model, self.provenance = fitted.model, fitted.provenance
        return self._restored(fitted.ratings, fitted.training)

    def _with_features(
        self,
        ratings: Ratings,
        features: bool | Sequence[str],
        *,
        unrated: bool,
    ) -> Ratings:
        """Return ratings as they are fitted, with the features of their tables if these are used.

        What to fit is decided before: by the ratings, without the ids of the tables.
        """
        # `auto` may choose a model that needs no features.
        planned = self.model._plan(ratings)
        if not self.model._takes_features:
            return planned
        from recsys.features.selection import with_usual_features  # slow to import

        return with_usual_features(planned, features, unrated=unrated)

    @property
    def fitted(self) -> Saved:
        """The model with its ratings, training summary and provenance.

        Raises
        ------
        NotFittedError
        """
        return Saved(self.model, self.ratings, self.training, self.provenance)

    @classmethod
    def _of(cls, fitted: Saved, *, is_named: bool) -> Self:
        """Return a recommender with a fitted model."""
        recommender = cls(fitted.model)
        recommender._is_named = is_named
        recommender.provenance = fitted.provenance
        return recommender._restored(fitted.ratings, fitted.training)

    def _restored(
        self,
        ratings: Ratings,
        training: dict[str, Any],
        **counts_from: Ratings,
    ) -> Self:
        """Set the fitted state; `counts_from` has the training ratings if some were folded in."""
        # Threads of polars do not survive a fork.
        check_process()
        self._ratings, self.training, self._counts_from = ratings, training, counts_from
        # What was computed from the ratings before is outdated.
        for name, attribute in vars(Recommender).items():
            if isinstance(attribute, cached_property):
                self.__dict__.pop(name, None)
        return self

    def save(
        self,
        path: str | Path,
        *,
        overwrite: bool = False,
        tag: str | None = None,
        keep_columns: Sequence[str] = (),
    ) -> None:
        """Save the model, ids, metadata and training ratings in a new directory.

        Parameters
        ----------
        path : str or Path
        overwrite : bool, default False
            Whether to replace a saved model; no other directory or file is replaced.
        tag : str, optional
            Free text.
        keep_columns : sequence of str, default ()
            Columns of the table of users to save, now and after updates, in addition to the columns
            of features. Other columns of users are left out. All columns of items are saved.

        Raises
        ------
        DataError
            If users or items were folded in, or a column to keep does not exist.
        """
        # The other users or items of the model are not at hand.
        if self._counts_from:
            raise DataError(
                "A recommender with folded-in users or items cannot be saved; update(ratings) adds "
                "them to the model itself."
            )
        check_columns(self.ratings, keep_columns)
        provenance = replace(
            self.provenance,
            tag=tag or self.provenance.tag,
            keep_columns=tuple(
                dict.fromkeys((*self.provenance.keep_columns, *keep_columns))
            ),
        )
        saved = replace(self.fitted, provenance=provenance)
        save_model(saved, path, overwrite=overwrite)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        verify: bool = False,
        models: Iterable[type[Model]] = (),
    ) -> Self:
        """Load a saved model; see `recsys.saving.storage.load_model`.

        `models` are classes of your own that it may have. A class is never imported because a
        saved model names it.
        """
        check_process()
        name_for_loading(models)
        return cls._of(load_model(path, verify=verify), is_named=True)

    def with_tables(
        self,
        *,
        item_table: TableLike | None = None,
        user_table: TableLike | None = None,
    ) -> Self:
        """Return the recommender with other item and user tables, without refitting.

        The tables provide titles and the columns of conditions. A model that uses features also
        adds the unknown ids of a table as new items or users, described by their features.

        Parameters
        ----------
        item_table, user_table : frame or Features, optional
            With ids in the column "item" ("user"). A table of new ids only is added to the old one.

        Raises
        ------
        DataError
            If the column of ids is missing or has a missing id.
        """
        # A model of folded-in users has no others to which these could be added.
        tables, learns = (item_table, user_table), not self._counts_from
        model, changed = folding.with_tables(
            self.model, self.ratings, *tables, learns=learns
        )
        other = type(self)(model)
        other._is_named, other.provenance = self._is_named, self.provenance
        counts = {"users": changed.n_users, "items": changed.n_items}
        return other._restored(changed, self.training | counts, **self._counts_from)

    def with_item_table(self, source: TableSource) -> Self:
        """Return the recommender with another catalogue, without refitting.

        Titles, stock, prices and all other columns come from the new table, as by `with_tables`.
        Items without a row in it are not recommended, and items that are new are, if the model
        uses features. Histories still count the items that have left the catalogue. A saved model
        keeps its catalogue.

        Parameters
        ----------
        source : path, address of a table in a database, frame or Features

        Raises
        ------
        DataError
            If the source cannot be read, has none of the items, or a column has values of another
            type than in the table of the model.
        """
        reading = self.provenance.reading
        table, _ = read_catalogue(source, self.ratings, reading)
        return self.with_tables(item_table=table)

    def fold_in(
        self,
        histories: HistoryLike | None = None,
        *,
        user_table: TableLike | None = None,
        user_features: FeaturesLike | None = None,
    ) -> Self:
        """Return a recommender for new users from their ratings or features, without refitting.

        Parameters
        ----------
        histories : frame, mapping of item id to rating, or list of item ids, optional
            A frame has the columns user, item, rating (unless the model needs none) and optionally
            timestamp, for models that use times. The last rating of a repeated pair is used. Of a
            model whose interactions have weights, a frame may have the columns of the kinds, times
            and quantities of events instead, which then weigh as in the model. A
            mapping, a list (for implicit feedback) or a frame without user is one user's history,
            and the user's id is "new".
        user_table : frame or Features, optional
            Features of the users, with ids in the column "user"; by default the training table.
        user_features : str or mapping, optional
            Features of a single new user, with or without histories: ``"age=30, job=student"`` or
            ``{"age": 30}``.

        Raises
        ------
        DataError
            If both ratings and features are missing, or the model cannot use them.
        """
        ratings = self.ratings
        reading = self.provenance.reading
        model, new = folding.folded_users(
            self.model, ratings, histories, user_table, user_features, reading
        )
        counts_from = self._counts_from.get("item", ratings)
        return self._folded(model, new, item=counts_from)

    def fold_in_items(
        self, histories: FrameLike, *, item_table: TableLike | None = None
    ) -> Self:
        """Return a recommender of new items from their ratings, without refitting.

        It has the same users, but only the new items. `update` adds new items to the old ones.

        Parameters
        ----------
        histories : frame as in `fold_in`
        item_table : frame or Features, optional
            Features and titles of the items, as `user_table` in `fold_in`.

        Raises
        ------
        DataError
        """
        ratings = self.ratings
        model, new = folding.folded_items(self.model, ratings, histories, item_table)
        counts_from = self._counts_from.get("user", ratings)
        return self._folded(model, new, user=counts_from)

    def _folded(
        self,
        model: Model,
        ratings: Ratings,
        **counts_from: Ratings,
    ) -> Self:
        """Return a recommender with folded-in users or items, and the same chances."""
        folded = type(self)(model)._restored(ratings, self.training, **counts_from)
        folded.provenance = replace(_UNSAVED, chances=self.provenance.chances)
        return folded

    def update(
        self,
        ratings: RatingsLike | None = None,
        *,
        window: str | float | None = None,
        forget: IdsLike | None = None,
        refit: bool | None = None,
        as_of: Moment | None = None,
        on_step: Callable[[Step], None] | None = None,
    ) -> Self:
        """Return a recommender with ratings added, old ratings dropped or users removed.

        A new rating of a pair replaces the old one; weights of interactions are added. Changes are
        folded in. The model is refitted instead if a fifth of the ratings is newer than the last
        fit, if the ratings have drifted, or if it cannot fold in: see ``training["update"]``.

        Parameters
        ----------
        ratings : Ratings, frame or path, optional
            New ratings: explicit or implicit as the old ones. A wider range of grades is taken by a
            refit, unless the scale was given when the old ones were read.
        window : str or float, optional
            Maximum age of a rating, relative to the last one, such as "180d".
        forget : id or sequence of ids, optional
            Users to remove with all their data.
        refit : bool, optional
            True always refits, as if no fit had come before, and without validation ratings; False
            never does. By default as described above.
        as_of : str, date, datetime or int, optional
            Present time, if not the time of the clock. Ratings later than a day after it are
            left out, and ages count from the newest of the others.

        Raises
        ------
        DataError
            If the ratings are not of this kind, timestamps are missing, a fit is needed, or a few
            ratings far from the others would decide that the window drops the others.
        """
        if refit is not None:
            check_flags(refit=refit)
        new = None
        if ratings is not None:
            new = as_ratings(ratings, reading_of(self.fitted), as_of=as_of)
        fitted = updated(
            self.fitted,
            new,
            window=window,
            forget=forget,
            refit=refit,
            as_of=as_of,
            on_step=on_step,
        )
        return self._of(fitted, is_named=self._is_named)

    def recommend(
        self,
        users: IdsLike | None = None,
        n: int = 10,
        *,
        history: HistoryLike | None = None,
        user_features: FeaturesLike | None = None,
        exclude_seen: bool = True,
        seen: str | Sequence[str] | None = None,
        repeat_where: str | pl.Expr | None = None,
        items: IdsLike | None = None,
        block: BlockLike | None = None,
        where: str | pl.Expr | None = None,
        where_user: str | pl.Expr | None = None,
        cold_start: ColdUser = "error",
        diversity: float = 0.0,
        at_most: int | None = None,
        per: str | None = None,
        fill: Fill = "none",
        slots: str | Sequence[str] = (),
        chance: bool = False,
        at_least: float = 0.0,
    ) -> pl.DataFrame:
        """Recommend the n best items to each user.

        Parameters
        ----------
        users : id or sequence of ids, optional
            By default all users, in index order; `recommend_batches` needs less memory.
        n : int
        history : frame, mapping of item id to rating, or list of item ids, optional
            Ratings of new users to recommend to (see `fold_in`).
        user_features : str or mapping, optional
            Features of a new user to recommend to, with or without a history (see `fold_in`).
        exclude_seen : bool
            Leave out the items that the user has rated.
        seen : str or sequence of str, optional
            Kinds of events that count as seen, such as ``"purchase,cart"``; items with other events
            may be recommended. By default, all events count. The kinds are known if their column
            was named in the reading (``event``), or they have weights (``event_weights``).
        repeat_where : str or polars expression, optional
            Condition, as `where`, on seen items that may be recommended again.
        items : sequence of item ids, optional
            Recommend only these.
        block : sequence of item ids, frame or mapping, optional
            Items never to recommend. A frame with the columns user and item, or a mapping of users
            to items, blocks each item for that user only; its unknown ids are ignored.
        where : str or polars expression, optional
            Recommend only items that meet this condition on the columns of their table: Boolean SQL
            such as ``"year >= 1990 AND genres LIKE '%Comedy%'"``, or ``pl.col("year") >= 1990``.
            The Boolean column ``"new"`` marks items without ratings.
        where_user : str or polars expression, optional
            Recommend only to users that meet this condition, such as ``"age < 30"``.
        cold_start : {"error", "popular"}
            For unknown users: an error, or the most rated items, scored by their rating counts.
        diversity : float
            Weight between 0 and 1 of the difference from items higher in the list, relative to the
            score (maximal marginal relevance with the cosine of item vectors).
        at_most, per : int and str, optional
            Maximum number of items per list with the same value in a column of the item table, such
            as ``at_most=2, per="genres"``. In a column of lists, each element is a value.
        fill : {"none", "popular"}
            Items that complete a list with fewer than n, because of `at_most` or because the model
            has no scores for others: the most rated ones that the other options allow, with their
            rating counts as scores. `at_most` does not hold for them.
        slots : str or sequence of str
            Places reserved at the end of a list, as a number and a condition, such as ``"2:new"``
            or ``["1:promoted", "2:stock > 100"]``. For each place, one of the ten best items that
            meet the condition is drawn. The draw depends on the user and the day (UTC). `at_most`
            and `diversity` do not hold for reserved places.
        chance : bool
            Add the chance that the user takes the item, in such a time as held-out ratings cover,
            if the user takes anything then; `recsys.calibrate` makes a model know it.
        at_least : float
            Lowest chance of an item, from 0 to 1: lists have fewer items, or none.

        Returns
        -------
        polars DataFrame
            Columns user, item, rank (Int32, from 1), score (Float32; for ratings, the prediction,
            not clipped, minus a discount for items with few ratings), chance (Float32, null for
            items that `fill` or `slots` add) if it is requested, title if the items have any,
            new (Boolean) if items may have no ratings, and with `fill` or `slots`, source: "model",
            "fill" or "slot". Items with equal scores are in a random
            order of their ids, which is the same for all users.
        """
        options = ListOptions(
            exclude_seen=exclude_seen,
            seen=seen,
            repeat_where=repeat_where,
            items=items,
            block=block,
            where=where,
            where_user=where_user,
            cold_start=cold_start,
            diversity=diversity,
            at_most=at_most,
            per=per,
            fill=fill,
            slots=slots,
            chance=chance,
            at_least=at_least,
        )
        # Most requests are for one known user, whose search shares its preparation.
        is_new = history is not None or user_features is not None
        if type(users) in (int, str) and not is_new and options.are_defaults():
            index = self.ratings.users.place(cast(IdLike, users))
            if index >= 0 and self._has_data_of(index):
                return self._best_of_user(index, n)
        folded = self._for_new_users(history, user_features)
        return pl.concat(folded.list_batches(users, n, options))

    def _has_data_of(self, index: int) -> bool:
        """Return whether a user gets a list of his own, not the popular items."""
        indices = np.array([index])
        return not len(users_without_data(self.model, self.ratings, indices))

    def _best_of_user(self, index: int, n: int) -> pl.DataFrame:
        (top,) = self._known_users.best(np.array([index]), n)
        label = self.ratings.users.values.slice(index, 1).alias("user")
        new = self._new if self.model.uses_features else None
        return ranked(top, label, self.ratings.items, titles=self._titles, new=new)

    def recommend_batches(
        self,
        users: IdsLike | None = None,
        n: int = 10,
        *,
        history: HistoryLike | None = None,
        user_features: FeaturesLike | None = None,
        **options: Any,
    ) -> Iterator[pl.DataFrame]:
        """Recommend as `recommend`, in frames of about a million rows; no user is split over two.

        Raises
        ------
        TypeError
            If an option does not exist.
        """
        list_options = ListOptions.from_keywords(options)
        folded = self._for_new_users(history, user_features)
        return folded.list_batches(users, n, list_options)

    def _for_new_users(
        self, history: HistoryLike | None, user_features: FeaturesLike | None
    ) -> Self:
        if history is None and user_features is None:
            return self
        return self.fold_in(history, user_features=user_features)

    def list_batches(
        self,
        users: IdsLike | None,
        n: int,
        options: ListOptions,
    ) -> Iterator[pl.DataFrame]:
        """Recommend as `recommend_batches`, with all options in one record."""
        labels, blocks, new = self._lists(users, n, options)
        items = self.ratings.items
        titles = self._titles

        def frame(top: TopN) -> pl.DataFrame:
            chances = None
            if options.shows_chance:
                chances = self._chances_of(top, labels)
            return ranked(top, labels, items, titles=titles, new=new, chances=chances)

        return map(frame, blocks)

    def _lists(
        self,
        users: IdsLike | None,
        n: int,
        options: ListOptions,
    ) -> tuple[pl.Series, Iterator[TopN], Mask | None]:
        """Return the ids of users, blocks of their lists, and which items are new."""
        check_choice("cold_start", options.cold_start, ("error", "popular"))
        check_choice("fill", options.fill, ("none", "popular"))
        labels, blocks, new = prepare_lists(
            self.model,
            self.ratings,
            users,
            n,
            options,
            self._new,
            lambda: self._popular,
            self._listed,
        )
        check_share("at_least", options.at_least)
        if options.shows_chance and self.chances is not None and options.at_least:
            blocks = (
                top.take(self._chances_of(top, labels) >= options.at_least).renumbered()
                for top in blocks
            )
        return labels, blocks, new

    def _chances_of(self, top: TopN, labels: pl.Series) -> Floats:
        """Return the chance of each entry of lists to users; NaN for unknown users."""
        chances = self.chances.of(top)
        # The scores of their lists are counts.
        is_unknown = self.ratings.users.find(labels) < 0
        chances[is_unknown[top.rows]] = np.nan
        return chances

    @property
    def chances(self) -> Chances:
        """Chances of items in lists.

        Raises
        ------
        DataError
            If they were not calibrated.
        """
        if self.provenance.chances is None:
            raise DataError(
                "The model does not know the chances of its items; `recsys fit --chance` fits one "
                "that does, and in Python, calibrate(recommender)."
            )
        return self.provenance.chances

    def similar_items(
        self,
        queries: IdsLike | None = None,
        n: int = 10,
        *,
        text: str | Sequence[str] | None = None,
        next: bool = False,
        **options: Any,
    ) -> pl.DataFrame:
        """Find the n items most similar to each item, or to each text, or next after each item.

        Similarity is the cosine of the model's item vectors (for `implicit-knn`, its own
        similarity). It is multiplied by n_j / (n_j + 10) for a result with n_j ratings, since few
        ratings do not determine a vector well. The reduction is smaller if features predict it.

        Similarity with a text, such as "space opera with robots", is the cosine in the space of
        latent semantic indexing of the item texts.

        With `next`, the items are those that a model such as `next` recommends after each item
        alone, with its scores.

        The columns are item (or text), similar, rank (from 1), score, the title of `similar`, and
        new if `similar` may have no ratings. An item whose vector is zero has no rows.

        Parameters
        ----------
        queries : id or sequence of ids, optional
            Items; `similar_batches` without any takes all.
        n : int
        text : str or sequence of str, optional
        next : bool
            Whether to find what comes next after the items.
        **options
            Options of lists, as in `recommend`: items (to choose from), block, where, diversity,
            at_most, per, fill and slots.

        Raises
        ------
        DataError
            If not exactly one of items and texts is given; if the model has no texts, or they
            contain none of the words; if the order of items does not count in the model; if the
            recommender has a single, folded-in item; if an option cannot be used.
        TypeError
            If an option does not exist.

        Warns
        -----
        UnknownTermWarning
            If the item texts do not contain some of the words.
        """
        list_options = ListOptions.from_keywords(options)
        if (queries is None) == (text is None):
            raise DataError("similar_items needs either items or a text.")
        if text is None:
            blocks = self.similar_batches(queries, n, list_options, next=next)
            return pl.concat(blocks)
        if next:
            raise DataError("next needs items; got a text.")
        texts = [text] if isinstance(text, str) else list(text)
        return pl.concat(self.similar_to_texts(texts, n, list_options))

    def similar_to_texts(
        self,
        texts: Sequence[str],
        n: int,
        options: ListOptions,
    ) -> Iterator[pl.DataFrame]:
        """Find items similar to texts as `similar_items`, with all options in one record."""
        scorer = predictions.text_similarity(self.ratings, texts)
        labels = pl.Series("text", texts, dtype=pl.String)
        blocks = self._similar_blocks(scorer, labels, n, options)
        return self._joined(blocks, labels, self.ratings.items)

    def similar_batches(
        self,
        queries: IdsLike | None,
        n: int,
        options: ListOptions,
        *,
        next: bool = False,
    ) -> Iterator[pl.DataFrame]:
        """Find items as `similar_items`, by default for all items, in frames of a million rows.

        All options are in one record.
        """
        check_flags(next=next)
        if "user" in self._counts_from and self.ratings.n_items == 1:
            raise DataError(
                "The folded-in item is the only one to compare; update(ratings) adds it to all."
            )
        ids = self.ratings.items
        indices = np.arange(len(ids))
        if queries is not None:
            indices = ids.index(listed(queries))
        scorer = self._followers if next else self._item_similarity
        labels = ids.take(indices)
        blocks = self._similar_blocks(scorer, labels, n, options, indices)
        return self._joined(blocks, labels, ids)

    def _similar_blocks(
        self,
        scorer: Scorer,
        labels: pl.Series,
        n: int,
        options: ListOptions,
        indices: Indices | None = None,
    ) -> Iterator[TopN]:
        """Return blocks of the items similar to items of some indices, or to texts."""
        check_choice("fill", options.fill, ("none", "popular"))
        # Each item is most similar to itself.
        itself = CsrPairs.diagonal(self.ratings.n_items)
        return similar_lists(
            scorer,
            np.arange(len(labels)) if indices is None else indices,
            labels,
            n,
            self.model,
            self.ratings,
            options,
            self._new,
            lambda: self._popular,
            self._listed,
            None if indices is None else itself,
        )

    def similar_users(self, users: IdsLike, n: int = 10) -> pl.DataFrame:
        """Find the n users most similar to each user, as `similar_items` does for items."""
        ids = self.ratings.users
        indices = ids.index(listed(users))
        # Each user is most similar to himself.
        itself = CsrPairs.diagonal(len(ids))
        blocks = top_n(
            self._user_similarity, indices, n, exclude=itself, ties=Ties(ids.hashes)
        )
        return pl.concat(self._joined(blocks, ids.take(indices), ids))

    def _joined(
        self,
        blocks: Iterator[TopN],
        labels: pl.Series,
        ids: Ids,
    ) -> Iterator[pl.DataFrame]:
        titles, new = (self._titles, self._new) if ids.kind == "item" else (None, None)
        return (
            ranked(top, labels, ids, "similar", titles=titles, new=new)
            for top in blocks
        )

    def item_vectors(
        self, *, metric: Metric = "inner-product", columns: Sequence[str] = ()
    ) -> pl.DataFrame:
        """Return the vectors of the items, for a search in a vector database.

        The inner product with a vector of `user_vectors` is the score of `recommend`, with biases
        and the discount for few ratings. Items that are never recommended, without ratings and
        features, have no row. Drifts of biases in time are left out, as in lists.

        Parameters
        ----------
        metric : {"inner-product", "cosine"}
            With "cosine", the cosine of the `query` of an item and the `vector` of another is the
            score of `similar_items`, with its damping.
        columns : sequence of str, optional
            Columns of the item table to add.

        Returns
        -------
        polars DataFrame
            Columns item, vector (Array of Float32), query (only for cosines), title if there are
            any, and `columns`.

        Raises
        ------
        DataError
            If the scores (or similarities) of the model are not products of vectors.
        """
        return pl.concat(self.vector_table("item", metric, columns).batches())

    def user_vectors(
        self,
        users: IdsLike | None = None,
        *,
        history: HistoryLike | None = None,
        user_features: FeaturesLike | None = None,
        metric: Metric = "inner-product",
    ) -> pl.DataFrame:
        """Return the vectors of users, by default of all, as `item_vectors` of items.

        `history` and `user_features` describe new users, as in `fold_in`.
        """
        folded = self._for_new_users(history, user_features)
        table = folded.vector_table("user", metric, users=users)
        return pl.concat(table.batches())

    def vector_table(
        self,
        side: Literal["item", "user"],
        metric: Metric = "inner-product",
        columns: Sequence[str] = (),
        users: IdsLike | None = None,
    ) -> VectorTable:
        """Return the rows of `item_vectors` or `user_vectors` in batches, with a manifest."""
        check_choice("metric", metric, METRICS)
        ids = self.ratings.axis(side).ids
        rows = np.arange(len(ids))
        details: list[pl.Series] = []
        if side == "item":
            rated = self._listed
            if rated is not None:
                rows = np.flatnonzero(rated)
            names = dict.fromkeys(columns)
            details = [column_of_items(self.ratings, name) for name in names]
            if self._titles is not None and "title" not in names:
                details.insert(0, self._titles)
        elif users is not None:
            rows = ids.index(listed(users))
        if metric == "inner-product":
            return score_table(self.model, ids, rows, details)
        scorer = self._item_similarity if side == "item" else self._user_similarity
        return similarity_table(scorer, self.model, ids, rows, details)

    @cached_property
    def _item_similarity(self) -> Scorer:
        counts = self._training_ratings("item").counts("item")
        return predictions.similarity(self.model, "item", counts)

    @cached_property
    def _followers(self) -> Scorer:
        return predictions.followers(self.model)

    @cached_property
    def _user_similarity(self) -> Scorer:
        counts = self._training_ratings("user").counts("user")
        return predictions.similarity(self.model, "user", counts)

    def _training_ratings(self, side: str) -> Ratings:
        """Return the ratings with which the users or items of this recommender were fitted."""
        return self._counts_from.get(side, self.ratings)

    @cached_property
    def _new(self) -> Mask | None:
        return folding.is_new(self.ratings, self._training_ratings("item"))

    @cached_property
    def _listed(self) -> Mask | None:
        """Mask of the items that lists may have; None for all."""
        offered = self.ratings.axis("item").offered
        has_data = self._has_evidence
        features = self.ratings.item_features
        if features is not None and self.model.uses_features:
            has_data = has_data | (np.diff(features.matrix.indptr) > 0)
        if has_data.all():
            return offered
        return has_data if offered is None else offered & has_data

    @property
    def _has_evidence(self) -> Mask:
        """Mask of the items that somebody has, or likes in the data of a model without ratings.

        Without, and without features, a score means nothing: as if all purchases were returned.
        """
        fitted = self._training_ratings("item")
        if self.model.predicts_ratings or not fitted.weighted:
            return fitted.counts("item") > 0
        positive = fitted.values > 0
        return np.bincount(fitted.indices, positive, fitted.n_items) > 0

    @cached_property
    def _known_users(self) -> KnownUsers:
        return self._searched(self._listed)

    def _searched(self, allowed: Mask | None) -> KnownUsers:
        """Return the search of known users among some of the items."""
        seen_pairs = left_out(self.ratings)
        ties = Ties(self.ratings.items.hashes)
        return KnownUsers(self.model, seen_pairs, allowed, ties)

    @cached_property
    def _popular(self) -> Popular:
        return Popular().fit(self._training_ratings("item"))

    @cached_property
    def _titles(self) -> pl.Series | None:
        return self.ratings.titles

    @overload
    def predict(
        self,
        pairs: PairsLike,
        /,
        *,
        cold_start: ColdPair = ...,
        std: bool = ...,
        user_features: FeaturesLike | None = ...,
    ) -> pl.DataFrame: ...
    @overload
    def predict(
        self,
        user: IdLike,
        item: IdLike,
        /,
        *,
        cold_start: ColdPair = ...,
        user_features: FeaturesLike | None = ...,
    ) -> float: ...
    def predict(
        self,
        pairs: PairsLike | IdLike,
        item: IdLike | None = None,
        /,
        *,
        cold_start: ColdPair = "error",
        std: bool = False,
        user_features: FeaturesLike | None = None,
    ) -> pl.DataFrame | float:
        """Predict the rating, or score, of one pair of a user and an item, or of many pairs.

        Parameters
        ----------
        pairs, item : frame with the columns user and item, or list of pairs; or two ids
            For a model that uses times, the frame may have a column timestamp, the time of the
            predicted rating; otherwise the drifts of biases are left out.
        cold_start : {"error", "bias", "popular"}
            For pairs with an unknown user or item: "error" raises; "bias" predicts the global mean
            plus the bias of the known user or item; "popular" predicts the damped mean rating of
            the item (see `Popular`), or the mean of all ratings if the item is unknown.
        std : bool
            Add the column std (Float32): the standard deviation of each prediction, null if the
            user or item is unknown.
        user_features : str or mapping, optional
            Features of a new user, whose id in the pairs is "new".

        Returns
        -------
        polars DataFrame, or float for one pair without `std`
            Columns user and item as given, and prediction (Float32): a rating clipped to the range
            of the training ratings, or a score if the model does not predict ratings.
        """
        check_choice("cold_start", cold_start, ("error", "bias", "popular"))
        check_flags(std=std)
        folded = (
            self if user_features is None else self.fold_in(user_features=user_features)
        )
        # One pair of ids is a list of one pair.
        all_pairs: Any = pairs if item is None else [(pairs, item)]
        popular = folded._popular if cold_start == "popular" else None
        predicted = predictions.predicted_pairs(
            folded.fitted, all_pairs, cold_start, popular, std=std
        )
        return predicted if item is None or std else float(predicted["prediction"][0])

    def impute(
        self,
        users: IdsLike | None = None,
        items: IdsLike | None = None,
        *,
        missing_only: bool = True,
    ) -> Iterator[pl.DataFrame]:
        """Predict the ratings of whole users, in frames of about a million pairs.

        The model must predict ratings, and the ratings must be explicit. By default all users and
        items are used; repeated ids are used once. `missing_only` omits rated pairs.
        """
        check_flags(missing_only=missing_only)
        return predictions.imputed(self.fitted, users, items, missing_only=missing_only)

    def topics(self, n: int = 10) -> pl.DataFrame:
        """List the n items with the largest weights in each topic.

        The topics are the factors of a model with ``nonnegative=True``. The weight of an item with
        n ratings is the mean contribution of the topic to its scores, times n / (n + 10). Topics
        are numbered from 1, the strongest one first.

        Returns
        -------
        polars DataFrame
            Columns topic, item, rank (from 1), weight (Float32), and title if there are any. Items
            of weight zero are left out.

        Raises
        ------
        DataError
            If the factors of the model may be negative.
        """
        return self._topics.frame(n)

    @cached_property
    def _topics(self) -> Topics:
        return Topics(self.model, self._training_ratings("item"))

    def explain(
        self,
        user: IdLike,
        item: IdLike,
        n: int | None = None,
        *,
        by: Literal["ratings", "topics"] = "ratings",
    ) -> pl.DataFrame:
        """Explain the score of an item for a user as a sum over the user's ratings.

        With n, only the n contributions largest in absolute value and the sum of the others remain.
        With ``by="topics"``, the score is a sum over the topics of a model with non-negative
        factors instead (see `topics`).

        Returns
        -------
        polars DataFrame
            Columns part ("base", "popularity", "item", "feature" or "others"), item, rating (not
            for implicit feedback), feature (such as "genres = Horror", if any), contribution
            (Float32), title if there are any. "base" is the score without the user's ratings,
            "popularity" the discount for few ratings. They add up to the score, not clipped. By
            topics, the columns are part ("popularity", "topic" or "others"), topic, contribution,
            and items: the first items of the topic.

        Raises
        ------
        DataError
            If the model's scores are not such sums, or items were folded in.
        """
        if "user" in self._counts_from:
            raise DataError(
                "Scores of folded-in items cannot be explained; update(ratings) adds the items."
            )
        check_choice("by", by, ("ratings", "topics"))
        if by == "topics":
            row = int(self.ratings.users.index([user])[0])
            column = int(self.ratings.items.index([item])[0])
            return self._topics.explained(row, column, n)
        return predictions.explained(
            self.model,
            self.ratings,
            self._training_ratings("item"),
            user,
            item,
            n,
            self._titles,
        )

    def reasons(
        self,
        user: IdLike,
        item: IdLike,
        language: Language = "en",
    ) -> tuple[list[dict[str, Any]], str]:
        """Return the reasons that speak for an item, with their shares, and a text of them.

        Items of the history have the kind of what the user has done ("rating", a kind of event or
        "interaction"). Shares below a tenth are summed, and so are features that are stock or
        price. The text is such as "because you looked at A and bought B".

        Raises
        ------
        DataError
            If the model's scores cannot be explained.
        """
        check_choice("language", language, LANGUAGES)
        explanation = self.explain(user, item)
        terms = explanation.filter(explanation["part"].is_in(["item", "feature"]))
        names = terms.drop("contribution", "part").to_dicts()
        (row,) = self.ratings.users.index([user]).tolist()
        history = predictions.user_history(self.model, self.ratings, row)
        kinds = kinds_of_history(history, self.ratings.implicit)
        items = self.ratings.items.take(history.indices)
        kind_of = dict(zip(items, kinds, strict=True))
        for name in names:
            if name["item"] is not None:
                name["kind"] = kind_of[name["item"]]
        reasons = shared_reasons(names.__getitem__, terms["contribution"].to_numpy())
        return reasons, in_words(reasons, language)

    def placement(
        self,
        user: IdLike,
        item: IdLike,
        n: int = 10,
        **options: Any,
    ) -> Placement:
        """Tell why an item is not among the first n in the list of a user.

        Something leaves it out (it is seen, does not meet one of the options of `recommend`, is not
        in the catalogue, or has no data), or it has a rank, and the first n have more of some
        contributions.

        Parameters
        ----------
        user, item : id
        n : int, default 10
        **options
            Of `recommend`: items, block, where, where_user, exclude_seen, seen, repeat_where.

        Raises
        ------
        TypeError
            If an option does not exist.
        UnknownIdError
        """

        def listed(chosen: ListOptions) -> pl.Series:
            batches = self.list_batches([user], self.ratings.n_items, chosen)
            return pl.concat(batch["item"] for batch in batches)

        index = self.ratings.items.index([item])
        offered = self.ratings.axis("item").offered
        return placement(
            self.ratings.items.take(index)[0],
            n,
            ListOptions.from_keywords(options),
            offered is None or bool(offered[index[0]]),
            listed,
            partial(self.explain, user),
        )
