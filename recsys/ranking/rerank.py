"""Filters and re-ranking of recommendations: allowed items, diversity and groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lowrank import kernels
from lowrank.kernels.topk import Ties
from recsys.data.frames import listed
from recsys.data.ids import Ids, IdsLike, id_hashes, query_series
from recsys.data.ratings import Ratings
from recsys.errors import DataError, check_share, check_whole
from recsys.messages import absent
from recsys.models import abilities
from recsys.models.base import Model
from recsys.models.baselines import Popular
from recsys.models.parts import Floats, Indices, Mask
from recsys.ranking.completion import FullLists, Search, parsed_slots
from recsys.ranking.filters import (
    blocked_pairs,
    candidate_mask,
    rows_where,
    seen_pairs,
    with_blocked,
)
from recsys.ranking.lists import ListOptions
from recsys.ranking.topn import CsrPairs, Scorer, TopN, check_n, inverse_lengths, top_n

_POOL, _LEAST_POOL = 10, 200  # candidates per place of a list, and their minimum number
_DEEPER = 4  # factor for the number of candidates if groups leave a list short
_WORK = 2**22  # numbers in the work arrays of a block of users: 16 MB
_RESULTS = 2**20  # results of a block with unknown users


def prepare_lists(
    model: Model,
    ratings: Ratings,
    users: IdsLike | None,
    n: int,
    options: ListOptions,
    new: Mask | None,
    popular: Callable[[], Popular],
    listed_items: Mask | None,
) -> tuple[pl.Series, Iterator[TopN], Mask | None]:
    """Return the ids of users, blocks of their best items, and which items are new.

    `new` marks the items without ratings, if there are any. Lists have only `listed_items`, by
    default all. Users without any data get the items of `popular`, which also completes lists;
    unknown users get them or raise an error.
    """
    indices, labels, unknown = _queried(
        ratings.users, users, only_known=options.cold_start == "error"
    )
    if options.where_user is not None:
        meets = rows_where(options.where_user, ratings, "user")
        none_of_unknown = np.zeros(len(unknown), np.bool_)
        meets = np.append(meets, none_of_unknown)[indices]
        indices = indices[meets]
        labels = labels.filter(pl.Series(meets))
    exclude = seen_pairs(ratings, indices, options, new)
    if len(unknown):
        # Unknown users have rows without ratings, after all others.
        empty_rows = np.full(len(unknown), len(exclude.indices))
        exclude = replace(exclude, indptr=np.append(exclude.indptr, empty_rows))
    block, pairs = blocked_pairs(options.block)
    if pairs is not None:
        exclude = with_blocked(exclude, pairs, ratings, unknown)
    allowed = candidate_mask(ratings, block, options, new, listed_items)
    ties = Ties(ratings.items.hashes)
    without_data = users_without_data(model, ratings, indices)
    everyone = None
    if len(without_data) or (options.fill == "popular" and len(indices)):
        everyone = popular()._with(n_users=int(indices.max()) + 1)

    def search_by(scorer: Scorer, among: Mask | None) -> Search:
        return partial(top_n, scorer, exclude=exclude, allowed=among, ties=ties)

    def search_among(among: Mask | None) -> Search:
        search = search_by(model, among)
        if everyone is None or not len(without_data):
            return search
        return with_others(search, search_by(everyone, among), without_data)

    fill = None
    if everyone is not None and options.fill == "popular":
        fill = search_by(everyone, allowed)
    searches = _Searches(search_among, fill, allowed)
    blocks = searches.blocks(indices, labels, n, model, ratings, options, new)
    return labels.alias("user"), blocks, new if model.uses_features else None


@dataclass(frozen=True, slots=True)
class _Searches:
    """Searches among the `allowed` items, and for the popular items that complete lists."""

    among: Callable[[Mask | None], Search]
    fill: Search | None
    allowed: Mask | None

    def blocks(
        self,
        queries: Indices,
        labels: pl.Series,
        n: int,
        model: Model,
        ratings: Ratings,
        options: ListOptions,
        new: Mask | None,
    ) -> Iterator[TopN]:
        """Return the lists of queries with some ids, with all options."""

        def search(some: Indices, n: int) -> Iterator[TopN]:
            among = self.among(self.allowed)
            return best_items(among, some, n, ratings, options, model)

        if not options.slots and self.fill is None:
            return search(queries, n)
        check_n(n)
        reserved = []
        for slot in parsed_slots(options.slots, n):
            met = rows_where(slot.condition, ratings, new=new, label="slots")
            among = met if self.allowed is None else met & self.allowed
            reserved.append((slot.count, self.among(among)))
        lists = FullLists(search, reserved, self.fill, ratings.items.hashes)
        return lists.blocks(queries, id_hashes(labels), int(n))


def similar_lists(
    scorer: Scorer,
    queries: Indices,
    labels: pl.Series,
    n: int,
    model: Model,
    ratings: Ratings,
    options: ListOptions,
    new: Mask | None,
    popular: Callable[[], Popular],
    listed_items: Mask | None,
    exclude: CsrPairs | None = None,
) -> Iterator[TopN]:
    """Return blocks of the items that a scorer of similarities finds for each query.

    `labels` are the queries' ids or texts; `new`, `popular` and `listed_items` are as in
    `prepare_lists`.

    Raises
    ------
    DataError
        If an option cannot be used, or is for lists of users.
    """
    block, pairs = blocked_pairs(options.of_items().block)
    if pairs is not None:
        raise DataError(
            "Lists of similar items have no users: block takes items, not pairs of user and item."
        )
    allowed = candidate_mask(ratings, block, options, new, listed_items)
    ties = Ties(ratings.items.hashes)

    def search_by(scorer: Scorer, among: Mask | None) -> Search:
        return partial(top_n, scorer, exclude=exclude, allowed=among, ties=ties)

    fill = None
    if options.fill == "popular" and len(queries):
        everyone = popular()._with(n_users=int(queries.max()) + 1)
        fill = search_by(everyone, allowed)
    searches = _Searches(partial(search_by, scorer), fill, allowed)
    return searches.blocks(queries, labels, n, model, ratings, options, new)


def _queried(
    ids: Ids,
    users: IdsLike | None,
    *,
    only_known: bool,
) -> tuple[Indices, pl.Series, Ids]:
    """Return the indices of users, their ids, and the unknown ids, with indices from ``len(ids)``.

    By default, these are all users. An unknown user raises an error if `only_known`.
    """
    no_ids = Ids([], "user")
    if users is None:
        return np.arange(len(ids)), ids.values, no_ids
    queries = listed(users)
    if only_known:
        indices = ids.index(queries)
        return indices, ids.take(indices), no_ids
    indices = ids.find(queries)
    labels = _labels_of(ids, queries, indices)
    is_unknown = indices < 0
    unknown = Ids(labels.filter(pl.Series(is_unknown)), "user")
    new_indices = len(ids) + unknown.find(labels)
    indices = np.where(is_unknown, new_indices, indices)
    return indices, labels, unknown


def _labels_of(
    ids: Ids,
    queries: IdsLike,
    indices: Indices,
) -> pl.Series:
    """Return the requested ids in the dtype of `ids`; an unknown one has the index -1.

    All are texts if one of them cannot be of the dtype, such as "visitor-17" among integers.
    """
    labels = ids.values.gather(np.maximum(indices, 0))
    unknown = np.flatnonzero(indices < 0)
    if not len(unknown):
        return labels
    requested_ids = query_series(queries, ids.kind).gather(unknown)
    typed = ids.like(requested_ids)
    if typed.null_count():
        texts = requested_ids.cast(pl.String)
        labels = labels.cast(pl.String)
        return labels.scatter(unknown, texts)
    return labels.scatter(unknown, typed)


def users_without_data(
    model: Model,
    ratings: Ratings,
    users: Indices,
) -> Indices:
    """Return the users who are unknown, or whose scores would all be zero.

    A model that predicts ratings has the quality of the items for users without any.
    """
    is_unknown = users >= model.n_users
    if not model.predicts_ratings and ratings.user_features is None:
        rows = users[~is_unknown]
        is_unknown[~is_unknown] = ratings.indptr[rows] == ratings.indptr[rows + 1]
    return users[is_unknown]


def with_others(
    search: Search,
    of_others: Search,
    others: Indices,
) -> Search:
    """Return a search that is `of_others` for some users."""

    def joined(users: Indices, n: int) -> Iterator[TopN]:
        block_size = max(1, _RESULTS // n)
        for part in kernels.pieces(len(users), block_size):
            is_other = np.isin(users[part], others)
            parts: list[TopN] = []
            for is_searched, search_some in (
                (~is_other, search),
                (is_other, of_others),
            ):
                rows = part.start + np.flatnonzero(is_searched)
                tops = search_some(users[rows], n)
                parts += [top.with_rows(rows[top.rows]) for top in tops]
            yield TopN.joined(parts).by_row()

    return joined


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of items, such as genres.

    `codes`, of shape (n_items, width), has the groups of each item, numbered from 0. Empty places
    have the value `count`, the number of groups.
    """

    codes: NDArray[np.int32]
    count: int

    @classmethod
    def of(cls, ratings: Ratings, column: str) -> Groups:
        """Return the groups in a column of the item table; a list is several groups.

        The case of its name does not matter.

        Raises
        ------
        DataError
            If there is no such column.
        """
        values = column_of_items(ratings, column).alias("group")
        pairs = values.to_frame().with_row_index("item")
        if values.dtype == pl.List:
            pairs = pairs.explode("group")
        pairs = pairs.drop_nulls()
        pairs = pairs.unique(maintain_order=True)
        ranks = pairs["group"].rank("dense").to_numpy()
        groups = ranks.astype(np.int64) - 1
        items = pairs["item"].to_numpy().astype(np.int64)
        counts = np.bincount(items, minlength=len(values))
        # The pairs of an item follow one another.
        starts = np.cumsum(counts) - counts
        position = np.arange(len(items)) - np.repeat(starts, counts)
        count = int(groups.max(initial=-1)) + 1
        width = int(counts.max(initial=1))
        codes = np.full((len(values), width), count, np.int32)
        codes[items, position] = groups
        return cls(codes, count)


def column_of_items(ratings: Ratings, column: str) -> pl.Series:
    """Return a column of the item table, in the order of the items.

    Raises
    ------
    DataError
        If there is no such column.
    """
    table = ratings.item_table
    names = [] if table is None else [*table.kinds]
    if column not in names:
        by_lower_case = {name.lower(): name for name in reversed(names)}
        column = by_lower_case.get(column.lower(), column)
    values = ratings.axis("item").column(column)
    if values is None:
        raise DataError(absent("column", column, "items", names))
    return values


@dataclass(frozen=True, slots=True)
class Reranking:
    """Greedy choice of n items from a larger number of candidates.

    The next item is the one with the largest ``(1 - diversity) relevance - diversity similarity``
    (maximal marginal relevance) that leaves no group with more than `at_most` items. Relevance is
    the score, scaled to 0 for the worst and 1 for the best candidate. Similarity is the largest
    cosine with an item chosen before.

    If `diversity` is 0, the scores give the order; if it is 1, they only determine the first
    item. The `vectors` of the items have length 1.

    References
    ----------
    Carbonell and Goldstein (1998), "The use of MMR, diversity-based reranking for reordering
    documents and producing summaries".
    """

    diversity: float
    vectors: Floats
    at_most: int
    groups: Groups

    def blocks(
        self,
        search: Search,
        users: Indices,
        n: int,
        n_items: int,
        pool: int | None = None,
    ) -> Iterator[TopN]:
        """Yield the lists of `users`, in blocks.

        The candidates are the `pool` best of `n_items` items, and more for users with fewer than n
        items because of the groups.
        """
        if pool is None:
            pool = max(_POOL * n, _LEAST_POOL)
        pool = min(n_items, pool)
        for top in search(users, pool):
            chosen = self._choose(top, n, pool)
            n_users = len(users)
            n_chosen = np.bincount(chosen.rows, minlength=n_users)
            n_candidates = np.bincount(top.rows, minlength=n_users)
            is_short = (n_chosen < n) & (n_candidates == pool)
            short = np.flatnonzero(is_short)
            # Lists that groups leave short get more candidates.
            if pool == n_items or not len(short):
                yield chosen
                continue
            is_complete = ~np.isin(chosen.rows, short)
            parts = [chosen.take(is_complete)]
            deeper_pool = _DEEPER * pool
            deeper = self.blocks(search, users[short], n, n_items, deeper_pool)
            parts += [block.with_rows(short[block.rows]) for block in deeper]
            yield TopN.joined(parts).by_row()

    def _choose(
        self,
        top: TopN,
        n: int,
        pool: int,
    ) -> TopN:
        """Choose n of each user's candidates (at most `pool`)."""
        users, rows = np.unique(top.rows, return_inverse=True)
        shape = len(users), pool
        items = np.full(shape, -1, np.int64)
        scores = np.zeros(shape, np.float32)
        items[rows, top.ranks - 1] = top.items
        scores[rows, top.ranks - 1] = top.scores
        groups_of_item = self.groups.codes.shape[1]
        width = pool * groups_of_item + self.groups.count
        size = max(1, _WORK // max(1, width))
        order = np.zeros((len(items), n), np.int64)
        for part in kernels.pieces(len(items), size):
            order[part] = self._order(items[part], scores[part], n)
        row, rank = np.nonzero(order >= 0)
        candidate = order[row, rank]
        return TopN(
            rows=users[row],
            items=items[row, candidate],
            ranks=(rank + 1).astype(np.int32),
            scores=scores[row, candidate],
        )

    def _order(
        self,
        items: Indices,
        scores: Floats,
        n: int,
    ) -> Indices:
        """Return the positions of the chosen candidates, shape (n_users, n), padded with -1."""
        users = np.arange(len(items))
        is_free = items >= 0
        items = np.maximum(items, 0)
        relevance = _relevance(scores, is_free)
        relevance *= np.float32(1 - self.diversity)
        similarity = np.full(items.shape, -1, np.float32)
        codes = self.groups.codes[items]
        is_padding = codes == self.groups.count
        n_users, n_candidates = items.shape
        counts = np.zeros((n_users, self.groups.count + 1), np.int32)
        order = np.full((n_users, n), -1, np.int64)
        weight = np.float32(self.diversity)
        for rank in range(min(n, n_candidates)):
            value = relevance
            if self.diversity and rank:
                value = relevance - weight * similarity
            counts_of_groups = counts[users[:, None, None], codes]
            has_room = counts_of_groups < self.at_most
            is_allowed = is_free & (has_room | is_padding).all(axis=2)
            value = np.where(is_allowed, value, -np.inf)
            pick = value.argmax(axis=1)
            is_filled = is_allowed[users, pick]
            order[is_filled, rank] = pick[is_filled]
            is_free[users, pick] = False
            filled = users[is_filled]
            groups = codes[filled, pick[is_filled]]
            np.add.at(counts, (filled[:, None], groups), 1)
            if self.diversity:
                self._raise_similarity(similarity, items, items[users, pick])
        return order

    def _raise_similarity(
        self,
        similarity: Floats,
        items: Indices,
        picked: Indices,
    ) -> None:
        """Raise the largest cosine of each candidate with an item chosen before."""
        last = np.repeat(picked, items.shape[1])
        vectors = self.vectors
        cosines = kernels.pair_dots(vectors, vectors, last, items.ravel())
        cosines = cosines.reshape(items.shape)
        np.maximum(similarity, cosines, out=similarity)


def _relevance(scores: Floats, is_given: Mask) -> Floats:
    """Return scores scaled to 0 for the worst and 1 for the best candidate of each user."""
    best = scores[:, :1]
    worst: Floats = scores.min(
        axis=1,
        keepdims=True,
        initial=np.inf,
        where=is_given,
    )
    span: Floats = best - worst
    span[~(best > worst)] = 1
    relevance: Floats = (scores - worst) / span
    return relevance


def check_groups(options: ListOptions) -> None:
    """Check the options for the number of items of a group.

    Raises
    ------
    DataError
        If one of the two is missing, or the number is not a whole number above 0.
    """
    if (options.at_most is None) != (options.per is None):
        raise DataError("at_most and per go together: at_most=2, per='genres'.")
    if options.at_most is not None:
        check_whole("at_most", options.at_most, 1)


def best_items(
    search: Search,
    users: Indices,
    n: int,
    ratings: Ratings,
    options: ListOptions,
    model: Model | None = None,
) -> Iterator[TopN]:
    """Check the options, and yield the n best items of each user, re-ranked if requested.

    Raises
    ------
    DataError
        If an option is out of range or needs another one, or the model has no item vectors.
    """
    diversity = options.diversity
    check_share("diversity", diversity)
    check_groups(options)
    check_n(n)
    if options.at_most is None and not diversity:
        return search(users, n)
    # By default, all items are in no group: the code is the number of groups.
    codes = np.zeros((ratings.n_items, 1), np.int32)
    groups = Groups(codes, 0)
    if options.at_most is not None and options.per is not None:
        groups = Groups.of(ratings, options.per)
    vectors = np.zeros((0, 0), np.float32)
    if diversity and model is not None:
        if not isinstance(model, abilities.HasItemVectors):
            raise abilities.unsupported(
                model, abilities.HasItemVectors, "diversify lists"
            )
        vectors = abilities.vectors_of(model, "item")
        scale = np.nan_to_num(inverse_lengths(vectors))
        vectors = vectors * scale[:, None]
    rule = Reranking(float(diversity), vectors, options.at_most or 0, groups)
    return rule.blocks(search, users, int(n), ratings.n_items)
