"""Learning after the fit: new users and items folded in, and new ratings added for good."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from recsys.data.frames import known_rows
from recsys.errors import DataError
from recsys.fitted import Fitted, check_ratings
from recsys.folding import new_items, new_users
from recsys.models.abilities import FoldsInItems, FoldsInUsers
from recsys.models.base import Histories, Step
from recsys.models.registry import MODELS, model_class

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings
    from recsys.models.base import Model

__all__ = ["Learner", "inability"]


class Learner(Fitted):
    """A recommender that takes in what came after the fit."""

    def fold_in(self, histories: Any) -> Self:
        """Return a recommender for new users, from what they have rated; nothing is refitted.

        The items stay as they are. A user of the training ratings, folded in with the same
        ratings, gets the same recommendations.

        Parameters
        ----------
        histories : frame, or mapping of item id to rating
            A frame has the columns user, item and, unless the model needs none, rating; a pair
            that is there twice counts once, with its last rating. A mapping is the history of a
            single user, who is called "new". Ratings given to a model of implicit feedback that
            learned from mere contacts count as contacts.

        Returns
        -------
        Recommender
            Its users are those of `histories`, who have seen what is in there.

        Raises
        ------
        UnknownIdError
            If an item is unknown.
        DataError
            If the model cannot fold in users, a rating is not a finite number, or there is none
            and the model needs one.
        NotFittedError
            Before `fit`.
        """
        ratings = self.ratings
        if not isinstance(self.model, FoldsInUsers):
            raise inability(self.model, FoldsInUsers, "fold in new users")
        new = new_users(histories, ratings, needs_values=self.model._needs_values)
        model = self.model.with_users(Histories.of(new))
        return self._folded(model, new, {"item": self._counts_from.get("item", ratings)})

    def fold_in_items(self, histories: Any, *, item_info: Any = None) -> Self:
        """Return a recommender of new items, from who has rated them; nothing is refitted.

        Parameters
        ----------
        histories : frame
            Columns user, item and, unless the model needs none, rating.
        item_info : frame, optional
            Column item, and what else is known of the items, such as title.

        Returns
        -------
        Recommender
            It has the same users, and the items of `histories` alone: its scores can be compared
            with those of the other items. `update` puts old and new items into one model.

        Raises
        ------
        UnknownIdError
            If a user is unknown.
        DataError
            If the model cannot fold in items, a rating is not a finite number, or there is none
            and the model needs one.
        NotFittedError
            Before `fit`.
        """
        ratings = self.ratings
        if not isinstance(self.model, FoldsInItems):
            raise inability(self.model, FoldsInItems, "fold in new items")
        new, rows = new_items(histories, ratings, needs_values=self.model._needs_values)
        if item_info is not None:
            new = replace(new, item_info=known_rows(item_info, new.items))
        model = self.model.with_items(rows)
        return self._folded(model, new, {"user": self._counts_from.get("user", ratings)})

    def update(self, ratings: Ratings, *, on_step: Callable[[Step], None] | None = None) -> Self:
        """Return a recommender fitted to the old ratings and the new ones together.

        A rating of a pair that was rated before replaces the old one; new users and items are
        added. The model has the same parameters. It is what a fit to all ratings would give,
        except that an iterative model that can (`als`) starts from what it knows, so that it needs
        fewer sweeps and ends near, not at, what a fresh fit would find.

        Parameters
        ----------
        ratings : Ratings
            What is new: explicit or implicit as the old ratings.
        on_step : callable, optional
            Called with a `Step` after each sweep of an iterative model.

        Raises
        ------
        DataError
            If one set of ratings is explicit and the other implicit, or the ids are of two kinds.
        NotFittedError
            Before `fit`.
        """
        from recsys.folding import merged, spread, takes_start

        check_ratings(ratings)
        whole = merged(self.ratings, ratings)
        model = type(self.model)(**self.model.get_params())
        updated = type(self)(model)
        if not takes_start(model):
            return updated._fit(whole, on_step)
        users = whole.users.find(self.ratings.users.values)
        items = whole.items.find(self.ratings.items.values)
        return updated._fit(whole, on_step, start=spread(self.model, users, items, whole.shape))

    def _folded(self, model: Model, ratings: Ratings, counts_from: dict[str, Ratings]) -> Self:
        folded = type(self)(model)
        folded._restore(ratings, self.training, counts_from)
        return folded

    def _counts(self, kind: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the number of ratings of each user or item that its vector was learnt from."""
        ratings = self._counts_from.get(kind, self.ratings)
        if kind == "user":
            return np.diff(ratings.indptr)
        return np.bincount(ratings.indices, minlength=ratings.n_items).astype(np.int64)


def inability(model: Model, ability: Any, what: str) -> DataError:
    """Return the error that `model` cannot do `what`, naming the models that can."""
    able = ", ".join(name for name in sorted(MODELS) if issubclass(model_class(name), ability))
    return DataError(f"The {model.name} model cannot {what}; these models can: {able or 'none'}.")
