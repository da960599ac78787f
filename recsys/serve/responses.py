"""Responses of a model as JSON objects: recommendations with reasons, similar items, predictions.

The HTTP service and the page of `recsys explore` give the same answers. The most common one, the
best items of known users, is computed without data frames: factors, a top-k search, ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property, lru_cache, partial
from itertools import compress
from statistics import NormalDist
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
import polars as pl

from lowrank.kernels import pieces
from lowrank.kernels.arrays import Floats32, Int32s, Int64s, Masks
from recsys.data.csr import event_keys
from recsys.errors import DataError
from recsys.models import abilities
from recsys.models.base import FactorModel, Model
from recsys.models.histories import Explanation, Histories
from recsys.predictions import clip_to_range, user_contributions, user_history
from recsys.ranking.filters import (
    blocked_pairs,
    candidate_mask,
    left_out,
    rows_where,
)
from recsys.ranking.lists import ListOptions
from recsys.ranking.rerank import (
    Groups,
    check_groups,
)
from recsys.ranking.topn import SOURCES, CsrPairs, KnownUsers, TopN, top_n
from recsys.reasons import (
    in_words,
    is_of_the_shop,
    kinds_of_history,
    reasons_of_scores,
)
from recsys.recommender import Recommender
from recsys.serve.catalogue import Catalogue, Id, Json, id_texts, numbers, short
from recsys.serve.deadline import check_time
from recsys.serve.visitors import RecentEvents

Told: TypeAlias = Literal["", "en", "de"]
"""Language in which reasons are also told in words; empty for none."""

ReasonsOf: TypeAlias = Callable[[Sequence[int], Sequence[Int64s]], list[list[Json]]]
"""Function that returns the reasons of the items in some lists, given by their numbers."""

HistoryOf: TypeAlias = Callable[[int], Histories]
"""Function that returns the history of a user, given by index."""

History: TypeAlias = tuple[Int32s, Floats32]
"""Int64s of items in ascending order, and their ratings."""

NO_CONDITIONS: Mapping[str, str] = MappingProxyType({})
_PIECE = 2**25  # scores of the users that are ranked together: some 0.3 s
_N_REASONS = 3  # of a recommendation
_LISTS = 2**10  # lists of known users whose reasons are kept, some 10 MB
_TOGETHER = 32  # lists that are explained together
_SHORT = 20  # items of such a list
_grade = lru_cache(2**10)(short)  # grades are few
_FIRST = 10  # places of the list in which an item should be
_DESCRIBED = ("created", "source", "fingerprint", "package_version")
_OF_FORMAT = {
    "format",
    "format_version",
    "files",
    "columns",
    "features",
    "checksum",
    "model",
}


class Responses:
    """Responses of one fitted model, which never changes.

    They contain the `name` of the model. The `manifest` is the contents of its model.json. The
    `conditions` are SQL on its items, by name.

    Attributes
    ----------
    unusable : dict of str to str
        Conditions that the items do not fit, as if a column is missing, and the reasons.
    """

    def __init__(
        self,
        recommender: Recommender,
        name: str,
        manifest: Json | None = None,
        conditions: Mapping[str, str] = NO_CONDITIONS,
    ) -> None:
        self.recommender = recommender
        self.name = name
        self.manifest = manifest or {}
        self.catalogue = Catalogue(recommender, name)
        self.ratings = recommender.ratings
        self._liked_value = recommender.training["rating_max"] or 1.0
        # A pass over all ratings.
        self._uses_values = self.ratings.weighted or not self.ratings.implicit
        self._seen = left_out(self.ratings)
        self._is_new: Masks | None = None
        if recommender.model.uses_features:  # items without ratings have scores, too
            self._is_new = recommender._new
        # A kernel cannot be stopped, so that long work is done in pieces.
        self._piece = max(1, _PIECE // self.ratings.n_items)
        self.conditions = conditions
        self.unusable: dict[str, str] = {}
        # A page that is opened again must not solve for its user again.
        self._kept_reasons: dict[tuple[int, bytes, Told], list[Json]] = {}
        self._searches: dict[str | None, KnownUsers] = {None: recommender._known_users}
        for condition, sql in conditions.items():
            try:
                met = rows_where(
                    sql, self.ratings, new=recommender._new, label=condition
                )
            except DataError as error:
                self.unusable[condition] = f"condition {error}"
                continue
            allowed = recommender._listed
            allowed = met if allowed is None else met & allowed
            self._searches[condition] = recommender._searched(allowed)
        for search in self._searches.values():
            search.prepare()

    def has_search(self, condition: str | None) -> bool:
        """Return whether lists of items that meet a named condition can be searched for."""
        return condition in self._searches

    def condition(self, names: Iterable[str]) -> str | None:
        """Return the SQL of all named conditions together; None without any.

        Raises
        ------
        DataError
            If there is no such condition.
        """
        parts = []
        for name in dict.fromkeys(names):
            if name not in self.conditions:
                listed = ", ".join(self.conditions) or "none"
                raise DataError(
                    f"There is no condition {name!r} (--condition); there are {listed}."
                )
            parts.append(f"({self.conditions[name]})")
        return " AND ".join(parts) or None

    def check_conditions(self, earlier: Responses | None) -> None:
        """Check that the conditions that earlier responses could use are still usable.

        Raises
        ------
        DataError
            If one is not.
        """
        for name, reason in self.unusable.items():
            if earlier is not None and name not in earlier.unusable:
                raise DataError(reason)

    def warm(self) -> None:
        """Compute one list of each kind, which fills caches before the first request."""
        self.best([0][: self.ratings.n_users], 1)
        first_items = self.ratings.items.values.head(1)
        history = self.history([(item, None) for item in first_items])
        if history is not None:
            self.best_of_histories([history], 1)
        with suppress(DataError):  # a model without similarities
            self.neighbours([0][: self.ratings.n_items], 1)

    def recommend(
        self,
        users: Sequence[Id],
        n: int,
        options: ListOptions,
        explain: Told | None = None,
    ) -> list[Json]:
        """Return n recommendations for each user."""
        return self._choose(self.recommender, users, n, options, explain)

    def best(
        self,
        users: Sequence[int],
        n: int,
        condition: str | None = None,
        explain: Told | None = None,
    ) -> list[Json]:
        """Return the n best unrated items of known users, given by index.

        They meet a named `condition`, and have reasons, if requested.
        """
        indices = np.asarray(users, np.int64)
        model = self.recommender.model
        history_of = partial(user_history, model, self.ratings)
        # No frames: they would take longer than the search.
        lists = self._search(
            model, indices, n, self._seen, condition, history_of, explain
        )
        labels = id_texts(self.ratings.users, indices)
        pairs = zip(labels, lists, strict=True)
        return [self._list(label, rows, "personal") for label, rows in pairs]

    def history(self, rated: Iterable[tuple[Id, float | None]]) -> History | None:
        """Return the ratings of a new user as arrays; None if only `recommend_new` can use them.

        The last rating of a repeated item is used. A rating of None means a liked item.
        """
        # Other models have popular items for new users, and arrays have no order.
        model = self.recommender.model
        if not isinstance(model, abilities.FoldsInUsers) or model.uses_order:
            return None
        values: dict[int, float] = {}
        for item, value in rated:
            index = self.ratings.items.place(item)
            values[index] = self._liked_value if value is None else value
        if not values or -1 in values:
            return None
        low, high = self.catalogue.plausible
        if not all(low <= value <= high for value in values.values()):
            return None
        # Interactions without a positive weight are left out.
        if self.ratings.implicit and self._uses_values and min(values.values()) <= 0:
            return None
        indices = sorted(values)
        weights = np.ones(len(indices), np.float32)
        if self._uses_values:
            weights[:] = [values[index] for index in indices]
        return np.array(indices, np.int32), weights

    def unknown_items(self, history: Sequence[Any]) -> list[Id]:
        """Return the items of a history that the model does not know."""
        items = dict.fromkeys(rating.item for rating in history)
        return [item for item in items if self.ratings.items.place(item) < 0]

    def events_of(self, history: Sequence[Any]) -> pl.DataFrame:
        """Return the events of a new user as a frame, to be weighted like the model's.

        Raises
        ------
        DataError
            If the model has grades, on which kinds and ages have no effect.
        """
        columns: dict[str, Any] = {"item": [str(event.item) for event in history]}
        times = [event.timestamp for event in history]
        # Ages and orders count only if all are known.
        if all(time is not None for time in times):
            columns["timestamp"] = [time.timestamp() for time in times]
        has_kinds = any(event.event is not None for event in history)
        has_grades = not (self.ratings.implicit or self.ratings.rule.graded)
        if has_grades and (has_kinds or not self.recommender.model.uses_order):
            raise DataError(
                "The model has grades, which kinds and times of events do not weight."
            )
        reading = self.recommender.provenance.reading
        if has_grades:
            liked = self._liked_value
            values = [event.value for event in history]
            columns["rating"] = [liked if value is None else value for value in values]
        if reading.get("weight") is not None:
            values = [event.value for event in history]
            columns["value"] = [1.0 if value is None else value for value in values]
        if self.ratings.rule.kinds:
            columns["event"] = [event.event for event in history]
        return pl.DataFrame(columns, strict=False)

    def best_of_histories(
        self,
        histories: Sequence[History],
        n: int,
        condition: str | None = None,
        explain: Told | None = None,
    ) -> list[Json]:
        """Return the n best items of new users, given as results of `history`."""
        indices, values = zip(*histories, strict=True)
        ends = np.cumsum([0, *map(len, indices)])
        items = np.concatenate(indices)
        new = Histories(ends, items, np.concatenate(values))
        folded = abilities.fold(self.recommender.model, "user", new)
        users = np.arange(len(histories))
        rated_pairs = CsrPairs(ends, items)
        lists = self._search(folded, users, n, rated_pairs, condition, new.row, explain)
        return [self._list(None, rows, "history") for rows in lists]

    def neighbours(
        self,
        items: Sequence[int],
        n: int,
        condition: str | None = None,
    ) -> list[Json]:
        """Return the n items most similar to each of some items, given by index."""
        indices = np.asarray(items, np.int64)
        search = self._searches[condition]
        blocks = top_n(
            self.recommender._item_similarity,
            indices,
            n,
            exclude=CsrPairs.diagonal(self.ratings.n_items),
            allowed=search.allowed,
            ties=search.ties,
        )
        return self._similar(indices, blocks)

    def recommend_new(
        self,
        history: Mapping[Id, float | None] | pl.DataFrame,
        n: int,
        options: ListOptions,
        explain: Told | None = None,
        features: Mapping[str, Any] | None = None,
        user: Id | None = None,
    ) -> Json:
        """Return recommendations for a user described by ratings, features or both.

        A rating of None means a liked item. A frame has events, as `events_of` returns.
        """
        policy = "history"
        ratings: Any = history
        # A frame has values and weights already.
        if isinstance(history, Mapping):
            ratings = {
                item: self._liked_value if value is None else value
                for item, value in history.items()
            }
            if not ratings:
                policy = "popular" if features is None else "features"
                ratings = ratings if features is None else None
        # Checks the history as a reader would, with the same messages.
        folded = self.recommender.fold_in(ratings, user_features=features)
        new_users = folded.ratings.users.values.to_list()
        answer = self._choose(folded, new_users, n, options, explain, policy)[0]
        answer["user"] = None if user is None else str(user)
        return answer

    def recommend_visitor(
        self,
        visitors: RecentEvents,
        visitor: Id,
        user: Id | None,
        n: int,
        options: ListOptions,
        explain: Told | None = None,
    ) -> Json:
        """Return recommendations by the latest events of a visitor.

        What the model knows of the user, by default of the visitor, counts, too. Without events, it
        is the list of the user, or the popular items.
        """
        name = visitor if user is None else user
        index = self.ratings.users.place(name)
        events = [
            event
            for event in visitors.of(visitor)
            if self.ratings.items.place(event.item) >= 0
        ]
        if index >= 0:
            # After an update, the model knows some of the events.
            events = self._later(events, index)
        if not events and (index >= 0 or user is not None):
            return self.recommend([name], n, options, explain)[0]
        session = self._session(events)
        if index >= 0:
            known_events = self._known_events(index)
            if known_events is not None:
                # Their times count only if the model has times, too.
                newer = session.select(known_events.columns)
                session = pl.concat([known_events, newer], how="vertical_relaxed")
            else:
                session = self._continued(index, self._history_of(session))
        return self.recommend_new(session, n, options, explain, user=name)

    def _later(self, events: Sequence[Any], user: int) -> list[Any]:
        """Return the events that are later than what the model knows of a user and their item.

        Without times, they are the events whose ids the model does not know.
        """
        ratings = self.ratings
        if ratings.seconds is None:
            log = ratings.log
            if log.keys is None:
                return list(events)
            known_keys = log.keys[log.indptr[user] : log.indptr[user + 1]]
            event_ids = [event.event_id for event in events]
            keys = event_keys(pl.Series(event_ids, dtype=pl.String))
            is_new = (keys == 0) | ~np.isin(keys, known_keys)
            return [*compress(events, is_new)]
        part = slice(ratings.indptr[user], ratings.indptr[user + 1])
        items = id_texts(ratings.items, ratings.indices[part])
        known = dict(zip(items, ratings.seconds[part].tolist(), strict=True))
        return [
            event
            for event in events
            if event.timestamp.timestamp() > known.get(str(event.item), -np.inf)
        ]

    def _known_events(self, user: int) -> pl.DataFrame | None:
        """Return the events of a user in the model; None if it does not keep their kinds."""
        log = self.ratings.log
        if log.kinds is None or not self.ratings.implicit:
            return None
        part = slice(log.indptr[user], log.indptr[user + 1])
        kinds = self.ratings.rule.kinds
        columns: dict[str, Any] = {
            "item": id_texts(self.ratings.items, log.items[part]),
            "event": [kinds[code] for code in log.kinds[part]],
        }
        if log.seconds is not None:
            columns["timestamp"] = log.seconds[part].astype(np.float64)
        if self.recommender.provenance.reading.get("weight") is not None:
            values = log.values
            columns["value"] = 1.0 if values is None else values.at(part)
        return pl.DataFrame(columns)

    def _continued(
        self,
        user: int,
        newer: Mapping[Id, float | None],
    ) -> dict[Id, float | None]:
        """Return the history of a user in the model, continued as by an update."""
        history = self._known_history(user)
        adds_weights = self.ratings.implicit and self._uses_values
        for item, value in newer.items():
            # An item that comes again is the latest one.
            earlier = history.pop(item, None)
            if adds_weights:
                value = (value or 0) + (earlier or 0)
            history[item] = value
        return history

    def _session(self, events: Sequence[Any]) -> Any:
        """Return events as a history: a frame with kinds and times, or ratings by item."""
        if events and self.ratings.implicit:
            return self.events_of(events)
        return {event.item: event.value for event in events}

    def _history_of(self, session: Any) -> dict[Id, float | None]:
        """Return the ratings, or the weights, of new events by the ids of the model."""
        if isinstance(session, Mapping):
            places = [self.ratings.items.place(item) for item in session]
            items = self.ratings.items.take(np.array(places, np.int64))
            return dict(zip(items, session.values(), strict=True))
        folded = self.recommender.fold_in(session).ratings
        return dict(zip(folded.items.take(folded.indices), folded.values, strict=True))

    def _known_history(self, user: int) -> dict[Id, float | None]:
        """Return the ratings of a user in the model, the oldest first."""
        ratings = self.ratings
        part = slice(ratings.indptr[user], ratings.indptr[user + 1])
        order = np.arange(part.start, part.stop)
        if ratings.seconds is not None:
            order = order[np.argsort(ratings.seconds[part], kind="stable")]
        items = ratings.items.take(ratings.indices[order])
        values = ratings.values_at(order).tolist()
        return dict(zip(items, values, strict=True))

    def _search(
        self,
        model: Model,
        users: Int64s,
        n: int,
        rated_pairs: CsrPairs,
        condition: str | None,
        history_of: HistoryOf,
        explain: Told | None,
    ) -> list[list[Json]]:
        """Return the n best items of users of a model, without `rated_pairs`."""
        lists: list[list[Json]] = []
        options = self._searches[condition].options
        for part in pieces(len(users), self._piece):
            check_time()
            few = users[part]
            blocks = top_n(model, few, n, exclude=rated_pairs, **options)
            reasons_of = self._reasons_of(model, history_of, few, explain)
            lists += self._fill(blocks, len(few), reasons_of=reasons_of)
        return lists

    def _choose(
        self,
        recommender: Recommender,
        users: Sequence[Id],
        n: int,
        options: ListOptions,
        explain: Told | None,
        policy: str = "personal",
    ) -> list[Json]:
        """Return recommendations with all options of `Recommender.recommend`."""
        lists: list[Json] = []
        indices = recommender.ratings.users.find(users)
        model = recommender.model
        history_of = partial(user_history, model, recommender.ratings)
        for part in pieces(len(users), self._piece):
            check_time()
            ids = list(users[part])
            labels, blocks, _ = recommender._lists(ids, n, options)
            chances = None
            if options.shows_chance:
                chances = partial(recommender._chances_of, labels=labels)
            reasons_of = self._reasons_of(model, history_of, indices[part], explain)
            filled = self._fill(blocks, len(ids), chances, reasons_of)
            lists_of_part = zip(indices[part].tolist(), labels, filled, strict=True)
            for index, label, rows in lists_of_part:
                is_known = index >= 0 and recommender._has_data_of(index)
                kind = policy if is_known or policy == "features" else "popular"
                lists.append(self._list(str(label), rows, kind))
        return lists

    def similar(
        self,
        item: Id,
        n: int,
        options: ListOptions,
        next: bool,
    ) -> Json:
        """Return the n items most similar to an item, or `next` after it."""
        indices = np.array([self.catalogue.place(item)])
        recommender = self.recommender
        scorer = recommender._followers if next else recommender._item_similarity
        labels = self.ratings.items.take(indices)
        blocks = recommender._similar_blocks(scorer, labels, n, options, indices)
        return self._similar(indices, blocks)[0]

    def popular_items(self, n: int, options: ListOptions) -> list[Json]:
        """Return the n most popular items that options of lists allow, to complete a list."""
        popular = self.recommend_new({}, n, replace(options, fill="none"))
        return [{"item": row["item"], "source": "fill"} for row in popular["items"]]

    def selected(self, rows: list[Json], options: ListOptions) -> list[Json]:
        """Return the rows of items that options of lists allow, in their order.

        The items may be unknown to the model, unless the options need their data.
        """
        ratings = self.ratings
        recommender = self.recommender
        block, _ = blocked_pairs(options.block)
        allowed = candidate_mask(
            ratings, block, options, recommender._new, recommender._listed
        )
        if allowed is not None:
            indices = [ratings.items.place(row["item"]) for row in rows]
            pairs = zip(rows, indices, strict=True)
            rows = [row for row, index in pairs if index >= 0 and allowed[index]]
        if options.at_most is None and options.per is None:
            return rows
        return self._limited(rows, options)

    def _limited(self, rows: list[Json], options: ListOptions) -> list[Json]:
        """Return the rows with at most so many items of each group."""
        check_groups(options)
        groups = Groups.of(self.ratings, str(options.per))
        room = np.full(groups.count + 1, options.at_most)
        room[groups.count] = len(rows)  # of items without a group
        no_groups = np.zeros(0, np.int32)
        chosen = []
        for row in rows:
            index = self.ratings.items.place(row["item"])
            codes = np.unique(groups.codes[index]) if index >= 0 else no_groups
            if (room[codes] > 0).all():
                room[codes] -= 1
                chosen.append(row)
        return chosen

    def _similar(self, indices: Int64s, blocks: Iterable[TopN]) -> list[Json]:
        """Return the lists of items that are similar to items of some indices."""
        answers = self.catalogue.names(indices)
        lists = self._fill(blocks, len(indices))
        for answer, rows in zip(answers, lists, strict=True):
            answer["items"] = rows
            answer["model"] = self.name
        return answers

    def explain(
        self,
        user: Id,
        item: Id,
        n: int,
        told: Told = "",
    ) -> Json:
        """Return the score of an item for a user as a sum over ratings and features."""
        (row,) = self.ratings.users.index([user]).tolist()
        index = self.catalogue.place(item)
        items = np.array([index])
        model = self.recommender.model
        history = user_history(model, self.ratings, row)
        ((terms, sums),) = self._terms(model, [history], [items])
        of_item = terms.values[0]
        (told_reasons,) = terms.told(n, told)
        reasons = told_reasons["because"]
        base = float(sums.base[0])
        popularity = 0.0
        if sums.popularity is not None:
            popularity = float(sums.popularity[0])
        total = float(of_item.sum(dtype=np.float64))
        remainder = 0.0
        if len(reasons) < np.count_nonzero(of_item):
            remainder = total - sum(reason["contribution"] for reason in reasons)
        return {
            "user": str(self.ratings.users.values[row]),
            **self.catalogue.named(index),
            "score": short(base + popularity + total),
            "base": short(base),
            "popularity": short(popularity),
            **told_reasons,
            "others": short(remainder),
            "model": self.name,
        }

    def placement(
        self,
        user: Id,
        item: Id,
        options: ListOptions,
        where: str | None = None,
        conditions: Sequence[str] = (),
    ) -> Json:
        """Tell why an item is not among the first ten in the list of a user with some options.

        Named `conditions`, and the condition of the request, are told separately.
        """
        index = self.catalogue.place(item)
        chosen = {
            option.name: getattr(options, option.name) for option in fields(options)
        }
        place = self.recommender.placement(user, item, _FIRST, **chosen)
        told = {f"condition: {name}": self.conditions[name] for name in conditions}
        if where is not None:
            told["where"] = where
        reasons: list[str] = []
        for reason in place.reasons:
            if reason != "where":
                reasons.append("exclude" if reason == "block" else reason)
                continue
            for name, sql in told.items():
                if not rows_where(sql, self.ratings, new=self.recommender._new)[index]:
                    reasons.append(name)
        lacks = place.lacks.to_dicts()
        for row in lacks:
            row["item"] = None if row.get("item") is None else str(row["item"])
            row["contribution"] = short(row["contribution"])
            row["of_first"] = short(row["of_first"])
        return {
            "rank": place.rank,
            "n_ranked": place.n_ranked,
            "reasons": reasons,
            "lacks": lacks,
        }

    def predict(
        self,
        pairs: Sequence[tuple[Id, Id]],
        unknown: Literal["error", "bias", "popular"] = "error",
        confidence: float | None = None,
    ) -> Json:
        """Return predictions for pairs of user and item, with standard deviations if known.

        Given a confidence, also the bounds of intervals of a normal distribution, within the
        range of the ratings as the predictions are.

        Raises
        ------
        UnknownIdError
            If a user or an item is unknown, and `unknown` is "error".
        DataError
            If the model has no standard deviations for the intervals.
        """
        model = self.recommender.model
        is_uncertain = isinstance(model, abilities.HasUncertainty)
        if confidence is not None and not is_uncertain:
            raise abilities.unsupported(
                model, abilities.HasUncertainty, "give intervals"
            )
        # As texts, the ids are of one type.
        texts = [(str(user), str(item)) for user, item in pairs]
        frame = self.recommender.predict(texts, cold_start=unknown, std=is_uncertain)
        stds = frame["std"] if is_uncertain else [None] * len(texts)
        # Half of what the interval leaves out is above it.
        probability = (1 + (confidence or 0)) / 2
        half = NormalDist().inv_cdf(probability)
        predictions: list[Json] = []
        rows = zip(texts, frame["prediction"], stds, strict=True)
        for (user, item), value, std in rows:
            centre = short(value)
            prediction: Json = {
                "user": user,
                "item": item,
                "prediction": centre,
            }
            if is_uncertain:
                prediction["std"] = None if std is None else short(std)
            if confidence is not None and std is not None:
                width = half * prediction["std"]
                ends = np.array([centre - width, centre + width])
                low, high = clip_to_range(ends, self.recommender.training)
                prediction["low"] = short(low)
                prediction["high"] = short(high)
            predictions.append(prediction)
        return {"predictions": predictions, "model": self.name}

    def describe(self) -> Json:
        """Return facts about the model: parameters, data, metrics, abilities."""
        model = self.recommender.model
        # What a saved model has, without the list of its files.
        facts: Json = {name: self.manifest.get(name) for name in _DESCRIBED}
        facts["parameters"] = model.get_params()
        facts["training"] = self.recommender.training
        left_out = facts.keys() | _OF_FORMAT
        facts["more"] = {
            name: value for name, value in self.manifest.items() if name not in left_out
        }
        facts["model"] = self.name
        facts["name"] = model.name
        facts["abilities"] = self._abilities()
        facts["rates"] = model.predicts_ratings and not self.ratings.implicit
        return facts

    def _abilities(self) -> list[str]:
        """Return what the model can answer besides lists for its users."""
        model = self.recommender.model
        has_vectors = isinstance(model, abilities.HasItemVectors)
        has_factors = isinstance(model, FactorModel)
        encoder = getattr(self.ratings.user_features, "encoder", None)
        is_able = {
            "similar": has_vectors or isinstance(model, abilities.HasItemSimilarity),
            "explain": isinstance(model, abilities.Explains),
            "next": model.uses_order and isinstance(model, abilities.FoldsInUsers),
            "history": isinstance(model, abilities.FoldsInUsers),
            "features": encoder is not None,
            "std": isinstance(model, abilities.HasUncertainty),
            "map": has_vectors,
            "spectrum": has_factors or hasattr(model, "singular_values"),
        }
        return [name for name in is_able if is_able[name]]

    def _reasons_of(
        self,
        model: Model,
        history_of: HistoryOf,
        users: Int64s,
        explain: Told | None,
    ) -> ReasonsOf | None:
        """Return a function of the reasons in the lists of users, -1 for users without data."""
        if explain is None:
            return None

        is_own = model is self.recommender.model

        def reasons_of(
            rows: Sequence[int], lists: Sequence[Int64s]
        ) -> list[list[Json]]:
            answers: list[list[Json]] = [[{}] * len(items) for items in lists]
            missing = []
            for number, user in enumerate(users[rows].tolist()):
                key = user, lists[number].tobytes(), explain
                if is_own and key in self._kept_reasons:
                    answers[number] = self._kept_reasons[key]
                elif user >= 0:
                    missing.append((number, key))
            for part in pieces(len(missing), _TOGETHER):
                check_time()
                keys = missing[part]
                histories = [history_of(key[0]) for _, key in keys]
                explained = [lists[number] for number, _ in keys]
                terms_of_lists = self._terms(model, histories, explained)
                for (number, key), (terms, _) in zip(keys, terms_of_lists, strict=True):
                    answers[number] = terms.told(_N_REASONS, explain)
                    if is_own and len(lists[number]) <= _SHORT:
                        self._keep(key, answers[number])
            return answers

        return reasons_of

    def _keep(self, key: tuple[int, bytes, Told], reasons: list[Json]) -> None:
        """Keep the reasons of a list of a known user."""
        if len(self._kept_reasons) >= _LISTS:
            self._kept_reasons = {}  # other threads may read the earlier ones
        self._kept_reasons[key] = reasons

    def _terms(
        self,
        model: Model,
        histories: Sequence[Histories],
        lists: Sequence[Int64s],
    ) -> list[tuple[_Terms, Explanation]]:
        """Return the terms of the scores of a list for each user, and all parts of the scores."""
        answers = []
        explanations = user_contributions(model, histories, lists, self.ratings)
        for history, sums in zip(histories, explanations, strict=True):
            parts = [sums.terms]
            features: list[str] = []
            hidden: list[int] = []
            for side, of_side in (
                ("item", sums.item_features),
                ("user", sums.user_features),
            ):
                if of_side is not None:
                    names, positions = self._feature_names[side]
                    hidden += [len(features) + position for position in positions]
                    features += names
                    parts.append(of_side)
            values = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
            terms = _Terms(self.catalogue, history, features, values, hidden)
            answers.append((terms, sums))
        return answers

    @cached_property
    def _feature_names(self) -> dict[str, tuple[list[str], list[int]]]:
        """Names of the features of items and of users, and the positions of stock and prices."""
        of_items = getattr(self.ratings.item_features, "names", ())
        of_users = getattr(self.ratings.user_features, "names", ())
        names = {"item": [*of_items], "user": [f"user: {name}" for name in of_users]}
        return {
            side: (
                of_side,
                [at for at, name in enumerate(of_side) if is_of_the_shop(name)],
            )
            for side, of_side in names.items()
        }

    def _fill(
        self,
        blocks: Iterable[TopN],
        n_lists: int,
        chances_of: Callable[[TopN], Floats32] | None = None,
        reasons_of: ReasonsOf | None = None,
    ) -> list[list[Json]]:
        """Return the lists of a search."""
        lists: list[list[Json]] = [[] for _ in range(n_lists)]
        for top in blocks:
            columns = (
                id_texts(self.ratings.items, top.items),
                top.ranks.tolist(),
                numbers(top.scores),
                self.catalogue.titles(top.items),
            )
            entries = [
                {
                    "item": id,
                    "rank": rank,
                    "score": score,
                    "title": title,
                }
                for id, rank, score, title in zip(*columns, strict=True)
            ]
            if self._is_new is not None:
                flags = self._is_new[top.items].tolist()
                for entry, is_new in zip(entries, flags, strict=True):
                    entry["new"] = is_new
            if chances_of is not None:
                chances = chances_of(top).tolist()
                for entry, chance in zip(entries, chances, strict=True):
                    # NaN, of an item that is not there by its score, is not JSON.
                    entry["chance"] = short(chance) if chance == chance else None
            if top.sources is not None:
                for entry, source in zip(entries, top.sources, strict=True):
                    entry["source"] = SOURCES[source]
            rows = top.rows.tolist()
            for row, entry in zip(rows, entries, strict=True):
                lists[row].append(entry)
            if reasons_of is not None:
                _add_reasons(top, entries, reasons_of)
        return lists

    def _list(
        self,
        user: str | None,
        items: list[Json],
        policy: str,
    ) -> Json:
        return {
            "user": user,
            "items": items,
            "model": self.name,
            "policy": policy,
        }


@dataclass(frozen=True, slots=True)
class _Terms:
    """Terms of the scores of items: the items of a history, and then features by name.

    `values` have a row for each item of a list. The `hidden` features are stock or price, and no
    reasons.
    """

    catalogue: Catalogue
    history: Histories
    features: Sequence[str]
    values: Floats32
    hidden: Sequence[int]

    def told(self, n: int, language: Told) -> list[Json]:
        """Return the n largest terms of each item, also in words if a language is requested."""
        # The items of a list often have the same reasons.
        names: dict[int, Json] = {}
        answers: list[Json] = [{"because": []} for _ in self.values]
        hidden = [len(self.history.indices) + feature for feature in self.hidden]
        rows, columns, contributions = _largest(self.values, n, hidden)
        for row, term, value in zip(rows, columns, contributions, strict=True):
            if value:
                if term not in names:
                    names[term] = self.name(term)
                reason = {**names[term], "contribution": value}
                answers[row]["because"].append(reason)
        if not language:
            return answers
        kinds = kinds_of_history(self.history, self.catalogue.ratings.implicit)
        n_history = len(kinds)

        def with_kind(term: int) -> Json:
            if term < n_history:
                return {**self.name(term), "kind": kinds[term]}
            return self.name(term)

        lists = reasons_of_scores(cache(with_kind), self.values)
        for answer, reasons in zip(answers, lists, strict=True):
            answer["reasons"] = reasons
            answer["text"] = in_words(reasons, language)
        return answers

    def name(self, term: int) -> Json:
        """Return the name of a term; few of many terms are told."""
        n_history = len(self.history.indices)
        if term >= n_history:
            return {"feature": self.features[term - n_history]}
        name = self.catalogue.named(self.history.indices.item(term))
        name["value"] = None
        if not self.catalogue.ratings.implicit:
            name["value"] = _grade(self.history.values.item(term))
        return name


def _add_reasons(top: TopN, entries: list[Json], reasons_of: ReasonsOf) -> None:
    """Add reasons to the entries of a search, list by list."""
    positions: dict[int, list[int]] = {}
    for position, row in enumerate(top.rows.tolist()):
        positions.setdefault(row, []).append(position)
    lists = [top.items[of_list] for of_list in positions.values()]
    reasons_of_lists = reasons_of([*positions], lists)
    for of_list, reasons in zip(positions.values(), reasons_of_lists, strict=True):
        for position, reasons_of_item in zip(of_list, reasons, strict=True):
            entries[position] |= reasons_of_item


def _largest(
    terms: Floats32, n: int, hidden: Sequence[int]
) -> tuple[list[int], list[int], list[float]]:
    """Return rows, columns and values of the n largest terms of each row, in order.

    Terms against an item count, too. Those in `hidden` columns have the value 0.
    """
    if hidden:
        terms = terms.copy()
        terms[:, hidden] = 0
    sizes = np.abs(terms)
    rows = np.arange(len(terms))
    columns = np.empty((min(n, terms.shape[1]), len(terms)), np.int64)
    for column in columns:
        # For few terms, a partition would take longer.
        sizes.argmax(axis=1, out=column)
        sizes[rows, column] = -1
    values = numbers(terms[rows, columns].ravel())
    return rows.tolist() * len(columns), columns.ravel().tolist(), values
