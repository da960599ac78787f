"""Responses of a model as JSON objects: recommendations with reasons, similar items, predictions.

The HTTP service and the page of `recsys explore` give the same answers. The most common one, the
best items of known users, is computed without data frames: factors, a top-k search, ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import NormalDist
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lowrank.kernels import pieces
from recsys.errors import DataError
from recsys.models import abilities
from recsys.models.base import FactorModel, Model
from recsys.models.histories import Histories
from recsys.models.parts import Floats, Indices
from recsys.predictions import clip_to_range, unsupported, user_contributions
from recsys.ranking.lists import ListOptions
from recsys.recommender import Recommender
from recsys.serve.catalogue import Catalogue, Id, Json, id_texts, numbers, short
from recsys.serve.deadline import check_time
from recsys.topn import Cosine, CsrPairs, TopN, top_n

History: TypeAlias = tuple[NDArray[np.int32], Floats]
"""Indices of items in ascending order, and their ratings."""

_PIECE = 2**25  # scores of the users that are ranked together: some 0.3 s
_REASONS = 3  # number of reasons of a recommendation
_DESCRIBED = ("created", "source", "fingerprint", "package_version")
_FORMAT = (
    "format",
    "format_version",
    "files",
    "columns",
    "features",
    "checksum",
    "model",
)


class Responses:
    """Responses of one fitted model, which never changes.

    The answers contain the `name` of the model. The `manifest` is the contents of its model.json.
    """

    def __init__(
        self, recommender: Recommender, name: str, manifest: Json | None = None
    ) -> None:
        self.recommender = recommender
        self.name = name
        self.manifest = manifest or {}
        self.catalogue = Catalogue(recommender, name)
        self.ratings = ratings = recommender.ratings
        self._best = recommender.training["rating_max"] or 1.0  # rating of a liked item
        self._seen = CsrPairs(ratings.indptr, ratings.indices)
        # items without ratings have scores, too
        marks = recommender.model.uses_features
        self._new = recommender._new if marks else None
        # A kernel cannot be stopped, so that long work is done in pieces.
        self._piece = max(1, _PIECE // self.ratings.n_items)
        recommender._known_users.prepare()

    def warm(self) -> None:
        """Compute one answer of each kind, to fill caches once for all processes."""
        self.best([0][: self.ratings.n_users], 1)
        if history := self.history(
            [(item, None) for item in self.ratings.items.values.head(1)]
        ):
            self.best_of_histories([history], 1)
        with suppress(DataError):  # a model without similarities
            self.neighbours([0][: self.ratings.n_items], 1)

    def recommend(
        self, users: Sequence[Id], n: int, options: ListOptions, explain: bool = False
    ) -> list[Json]:
        """Return n recommendations for each user."""
        if _is_plain(options):
            ids = self.ratings.users
            found = ids.find(users)
            if (found >= 0).all():
                return self.best(found, n, explain=explain)
            if options.cold_start == "error":
                ids.index(users)  # raises
        return self._listed(self.recommender, users, n, options, explain, "personal")

    def best(
        self, users: Sequence[int] | Indices, n: int, *, explain: bool = False
    ) -> list[Json]:
        """Return the n best unrated items of known users, given by index."""
        places = np.asarray(users, np.int64)
        shown = self.recommender if explain else None
        lists = self._lists(self.recommender.model, places, n, self._seen, shown)
        ids = id_texts(self.ratings.users, places)
        return [
            self._answer(user, rows, "personal")
            for user, rows in zip(ids, lists, strict=True)
        ]

    def history(self, rated: Iterable[tuple[Id, float | None]]) -> History | None:
        """Return the ratings of a new user as arrays; None if only `recommend_new` can use them.

        The last rating of a repeated item is used. A rating of None is replaced by the best one.
        """
        if not isinstance(self.recommender.model, abilities.FoldsInUsers):
            return None
        places = self.ratings.items.place
        values = {
            places(item): self._best if value is None else value
            for item, value in rated
        }
        if not values or -1 in values:
            return None
        low, high = self.catalogue.plausible
        if not all(low <= each <= high for each in values.values()):
            return None
        indices = np.array(sorted(values), np.int32)
        counts = self.ratings.weighted or not self.ratings.implicit
        return indices, np.array(
            [values[at] if counts else 1.0 for at in indices], np.float32
        )

    def events_of(self, history: Sequence[Any]) -> pl.DataFrame:
        """Return the events of a new user as a frame, to be weighted as those of the model.

        Raises
        ------
        DataError
            If the model has grades, on which kinds and ages have no effect.
        """
        if not self.ratings.implicit:
            raise DataError(
                "The model has grades, which kinds and times of events do not weight."
            )
        reading = self.recommender.provenance.reading
        columns: dict[str, Any] = {"item": [each.item for each in history]}
        if reading.get("weight") is not None:
            columns["value"] = [
                1.0 if each.value is None else each.value for each in history
            ]
        if reading.get("event_weights") is not None:
            columns["event"] = [each.event for each in history]
        times = [each.timestamp for each in history]
        if all(time is not None for time in times):
            columns["timestamp"] = [time.timestamp() for time in times]
        return pl.DataFrame(columns, strict=False)

    def best_of_histories(self, histories: Sequence[History], n: int) -> list[Json]:
        """Return the n best items of new users, given as results of `history`."""
        ends = np.cumsum([0, *(len(indices) for indices, _ in histories)])
        indices, values = (
            np.concatenate(each) for each in zip(*histories, strict=True)
        )
        model = cast(abilities.FoldsInUsers, self.recommender.model)
        folded = model.with_users(Histories(ends, indices, values))
        users = np.arange(len(histories))
        lists = self._lists(folded, users, n, CsrPairs(ends, indices), None)
        return [self._answer(None, rows, "history") for rows in lists]

    def neighbours(self, items: Sequence[int], n: int) -> list[Json]:
        """Return the n items most similar to each of some items, given by index."""
        places = np.asarray(items, np.int64)
        lists: list[list[Json]] = [[] for _ in items]
        scorer, itself = self.recommender._item_similarity, Cosine.exclude_itself
        ties = self.recommender._known_users.ties
        for top in top_n(scorer, places, n, exclude=itself, ties=ties):
            self._append(top, lists)
        named = zip(self.catalogue.names(places), lists, strict=True)
        return [name | {"items": rows, "model": self.name} for name, rows in named]

    def _lists(
        self,
        model: Model,
        users: Indices,
        n: int,
        seen: CsrPairs,
        shown: Recommender | None,
    ) -> list[list[Json]]:
        """Return the n best items of users of a model of the same items, without `seen` pairs.

        With `shown`, a recommender of these users, add the reasons of each item.
        """
        lists: list[list[Json]] = [[] for _ in users]
        options = self.recommender._known_users.options
        for part in pieces(len(users), self._piece):
            check_time()
            for top in top_n(model, users[part], n, exclude=seen, **options):
                self._append(top, lists[part])
                if shown is None:
                    continue
                for row in np.unique(top.rows):
                    check_time()
                    items = top.items[top.rows == row]
                    self._explain(shown, users[part][row], lists[part][row], items)
        return lists

    def _append(self, top: TopN, lists: list[list[Json]]) -> None:
        """Append the entries of a search to the lists of its rows."""
        rows = self._rows(top.items, top.ranks, top.scores)
        for at, row in zip(top.rows.tolist(), rows, strict=True):
            lists[at].append(row)

    def recommend_new(
        self,
        history: Mapping[Id, float | None] | pl.DataFrame,
        n: int,
        options: ListOptions,
        explain: bool = False,
        features: Mapping[str, Any] | None = None,
        user: Id | None = None,
    ) -> Json:
        """Return recommendations for a user described by ratings, features or both.

        A rating of None is replaced by the best one. A frame has events, as `events_of` returns.
        """
        label = None if user is None else str(user)
        if isinstance(history, pl.DataFrame):
            folded = self.recommender.fold_in(history, user_features=features)
            known = folded.ratings.users.values.to_list()
            answers = self._listed(folded, known, n, options, explain, "history")
            return answers[0] | {"user": label}
        if _is_plain(options) and not explain and features is None:
            rated_items = self.history(history.items())
            if rated_items is not None:
                return self.best_of_histories([rated_items], n)[0] | {"user": label}
        rated = {
            item: self._best if value is None else value
            for item, value in history.items()
        }
        folded = self.recommender.fold_in(
            rated if rated or features is None else None, user_features=features
        )
        policy = "history" if rated else "popular" if features is None else "features"
        known = folded.ratings.users.values.to_list()
        return self._listed(folded, known, n, options, explain, policy)[0] | {
            "user": label
        }

    def similar(self, item: Id, n: int) -> Json:
        """Return the n items most similar to an item."""
        return self.neighbours([self.catalogue.place(item)], n)[0]

    def explain(self, user: Id, item: Id, n: int) -> Json:
        """Return the score of an item for a user as a sum over ratings and features."""
        row = int(self.ratings.users.index([user])[0])
        place = self.catalogue.place(item)
        found, terms, reasons = self._reasons(
            self.recommender, row, np.array([place]), n
        )[0]
        base, popularity = found
        shown = sum(reason["contribution"] for reason in reasons)
        total = float(terms.sum(dtype=np.float64))
        return {
            "user": str(self.ratings.users.values[row]),
            **self.catalogue.named(place),
            "score": short(base + popularity + total),
            "base": short(base),
            "popularity": short(popularity),
            "because": reasons,
            "others": short(total - shown)
            if len(reasons) < np.count_nonzero(terms)
            else 0.0,
            "model": self.name,
        }

    def predict(
        self,
        pairs: Sequence[tuple[Id, Id]],
        unknown: Literal["error", "bias", "popular"] = "error",
        confidence: float | None = None,
    ) -> Json:
        """Return predictions for pairs of user and item, with standard deviations if known.

        Given a confidence, also the bounds of intervals: those of a normal distribution, within the
        range of the ratings as the predictions are.

        Raises
        ------
        UnknownIdError
            If a user or an item is unknown, and `unknown` is "error".
        DataError
            If the model has no standard deviations for the intervals.
        """
        model = self.recommender.model
        uncertain = isinstance(model, abilities.HasUncertainty)
        if confidence is not None and not uncertain:
            raise unsupported(model, abilities.HasUncertainty, "give intervals")
        texts = [
            (str(user), str(item)) for user, item in pairs
        ]  # of one type, unlike the ids
        frame = self.recommender.predict(texts, cold_start=unknown, std=uncertain)
        predictions: list[Json] = [
            {"user": user, "item": item, "prediction": short(value)}
            for (user, item), value in zip(texts, frame["prediction"], strict=True)
        ]
        if uncertain:
            half = NormalDist().inv_cdf((1 + (confidence or 0)) / 2)
            for each, std in zip(predictions, frame["std"], strict=True):
                each["std"] = None if std is None else short(std)
                if confidence is not None and std is not None:
                    ends = each["prediction"] + np.array([-half, half]) * std
                    low, high = clip_to_range(ends, self.recommender.training)
                    each |= {"low": short(low), "high": short(high)}
        return {"predictions": predictions, "model": self.name}

    def describe(self) -> Json:
        """Return facts about the model: parameters, data, metrics, abilities."""
        model = self.recommender.model
        known: Json = {name: self.manifest.get(name) for name in _DESCRIBED}
        known |= {
            "parameters": model.get_params(),
            "training": self.recommender.training,
        }
        others = {
            k: v
            for k, v in self.manifest.items()
            if k not in known and k not in _FORMAT
        }
        able = {  # all models recommend to known users
            "similar": isinstance(
                model, abilities.HasItemVectors | abilities.HasItemSimilarity
            ),
            "explain": isinstance(model, abilities.Explains),
            "history": isinstance(model, abilities.FoldsInUsers),
            "features": getattr(self.ratings.user_features, "encoder", None)
            is not None,
            "std": isinstance(model, abilities.HasUncertainty),
            "map": isinstance(model, abilities.HasItemVectors),
            "spectrum": isinstance(model, FactorModel)
            or hasattr(model, "singular_values"),
        }
        known |= {"model": self.name, "name": model.name}
        known["abilities"] = [name for name, is_able in able.items() if is_able]
        known["rates"] = model.predicts_ratings and not self.ratings.implicit
        return known | {"more": others}

    def _listed(
        self,
        recommender: Recommender,
        users: Sequence[Id],
        n: int,
        options: ListOptions,
        explain: bool,
        policy: str,
    ) -> list[Json]:
        """Return recommendations with all options of `Recommender.recommend`."""
        frames: list[pl.DataFrame] = []
        for part in pieces(len(users), self._piece):
            check_time()
            frames += recommender.list_batches(list(users[part]), n, options)
        frame = pl.concat(frames, how="vertical_relaxed")  # ids may be text in one
        ids, items = recommender.ratings.users, self.ratings.items
        known = ids.find(users)
        places = items.find(frame["item"])
        rows = self._rows(places, frame["rank"].to_numpy(), frame["score"].to_numpy())
        starts = np.flatnonzero(frame["rank"].to_numpy() == 1)
        labels = map(
            str, frame["user"].gather(starts)
        )  # an unknown id may be of either type
        ends = np.append(starts, len(rows))[1:]
        blocks = dict(
            zip(labels, zip(starts.tolist(), ends.tolist(), strict=True), strict=True)
        )
        answers = []
        for user, row in zip(users, known.tolist(), strict=True):
            label = str(user if row < 0 else ids.values[row])
            start, end = blocks.get(label, (0, 0))
            own = rows[start:end]
            if explain and row >= 0:
                check_time()
                self._explain(recommender, row, own, places[start:end])
            answers.append(self._answer(label, own, policy if row >= 0 else "popular"))
        return answers

    def _explain(
        self, recommender: Recommender, user: int, rows: list[Json], items: Indices
    ) -> None:
        """Add reasons to each row of a list."""
        reasons = self._reasons(recommender, user, items, _REASONS)
        for row, (_, _, because) in zip(rows, reasons, strict=True):
            row["because"] = because

    def _reasons(
        self, recommender: Recommender, user: int, items: Indices, n: int
    ) -> list[tuple[tuple[float, float], Floats, list[Json]]]:
        """Return for each score: base and popularity, all terms, and the n largest as reasons."""
        history, found = user_contributions(
            recommender.model, recommender.ratings, user, items, self.ratings
        )
        names = self.catalogue.names(history.indices)
        values = [None if self.ratings.implicit else v for v in numbers(history.values)]
        described: list[Json] = [
            named | {"value": value} for named, value in zip(names, values, strict=True)
        ]
        parts = [found.terms]
        for side in ("item", "user"):
            of_side = getattr(found, f"{side}_features")
            if of_side is not None:
                own = getattr(self.ratings, f"{side}_features").names
                described += [
                    {"feature": name if side == "item" else f"user: {name}"}
                    for name in own
                ]
                parts.append(of_side)
        terms = np.concatenate(parts, axis=1)
        answers = []
        popularity = (
            np.zeros(len(items)) if found.popularity is None else found.popularity
        )
        for base, discount, row in zip(found.base, popularity, terms, strict=True):
            order = np.argsort(-np.abs(row), kind="stable")[:n]
            reasons = [
                described[at] | {"contribution": short(row[at])}
                for at in order
                if row[at] != 0
            ]
            answers.append(((float(base), float(discount)), row, reasons))
        return answers

    def _rows(self, items: Indices, ranks: NDArray[Any], scores: Floats) -> list[Json]:
        ids = id_texts(self.ratings.items, items)
        columns: Json = {"item": ids, "rank": ranks.tolist(), "score": numbers(scores)}
        columns["title"] = self.catalogue.titles(items)
        if self._new is not None:
            columns["new"] = self._new[items].tolist()
        return [
            dict(zip(columns, row, strict=True))
            for row in zip(*columns.values(), strict=True)
        ]

    def _answer(self, user: str | None, items: list[Json], policy: str) -> Json:
        return {"user": user, "items": items, "model": self.name, "policy": policy}


def _is_plain(options: ListOptions) -> bool:
    """Return whether options choose nothing for known users."""
    return replace(options, cold_start="error").are_defaults()
