r"""Next: ridge regressions from the latest items of a history to the item after them."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowrank import kernels
from lowrank.kernels import CsrArrays
from lowrank.kernels.retrieval import sparse_rows
from lowrank.subspace import leading_directions
from recsys.errors import DataError
from recsys.models.base import Model, Progress, check_indices
from recsys.models.ease import default_penalty, invert
from recsys.models.factor_form import FactorForm
from recsys.models.habits import habit_parameter, habits
from recsys.models.histories import Explanation, Histories, csr_rows
from recsys.models.item_item import AxisProfiles, Profiles, fitted_axis
from recsys.models.linear_filter import power, power_parameter
from recsys.models.parameters import fitted, model, parameter
from recsys.models.parts import (
    Floats,
    Indices,
    Ints,
    missing_array,
    part,
    rows_taken,
)
from recsys.models.sequences import (
    PairSums,
    Sequences,
    gram,
    latest_places,
    order_of_time,
    recency,
    sequences_of_events,
    sources,
)
from recsys.saving.arrays import DamageError, check_rows

if TYPE_CHECKING:
    from lowrank.completion.feature_ridge import GroupedFeatures
    from recsys.data.ratings import Ratings
    from recsys.models.sequences import Sparse

_DECAYS = (1.0, 3.0, 8.0)  # items: the last one, a sitting, a phase of a user
_UNORDERED = (
    0.0  # in the place of a decay: the whole history, in which all items count alike
)
_DENSE = 4096  # items with an exact Gram matrix; of the others, only its diagonal
_MOST_SOLVED = 2**27  # entries of the solution of a regression: 512 MB
_MOST_WEIGHTS = 2**26  # stored weights of all regressions: 512 MB
_NEIGHBOR_GAMMA = math.exp(-1)  # neighbours share the latest items, not any
_LEAST_SIZE = 1e-9  # of scores that are scaled to a mean maximum of 1
_DIRECTIONS = 64  # columns of the vectors of items
_VECTOR_POWER = 0.5  # by which long histories and frequent items count less in them
_ROUNDING = 1e-5  # of sums of weights
_NEWNESS = 1e-6  # far below the differences between sums of weights
_SEARCHED = 2048  # users whose neighbours are sought at a time
_ROWS = 256  # rows of items with all other items at a time
_CANDIDATES = 500  # newest users of an item that may be neighbours
_LONG = (
    50  # mean length of histories above which all users share some of the latest items
)
_BACKOFF = 0.1  # of an item's chance in any history, next to its chance in this one
_CHANGES = (0.0, 0.25, 0.5, 2.0, 4.0)  # of a part's share, tried in turn
_ROUNDS = 2
_CACHES = ("_new_items", "_stacked_weights", "_training_histories", "_vectors")
_LENGTH = 20  # of the lists in which shares are judged
_JUDGES = 2000  # users whose last items choose the shares
_JUDGED_SCORES = 2**25  # scores of a part while shares are chosen: 128 MB


@model
class Next(Model):
    r"""Score the items that may come next after the latest items of a user.

    Before position p of a sequence, the source s_p is the sum of the items so far, in which
    the item j places back has the weight :math:`\gamma^j` with :math:`\gamma = e^{-1/d}`;
    the target t_p is the item at p. The weights of a decay d minimise
    :math:`\sum_p |t_p - s_p B|^2 + \lambda |B|^2`:

    .. math:: B_d = (S'S + \lambda I)^{-1} S'T.

    Sources follow :math:`s_{p+1} = \gamma (s_p + t_p)`. Therefore their Gram matrix needs
    no source but the one after the last item of each user, z_u:

    .. math:: (1 - \gamma^2) S'S = \gamma^2 (S'T + T'S + T'T) - \sum_u z_u' z_u.

    A disliked item i adds :math:`c (z_u B_{d,i})^2` with its confidence c: it does not come next
    after the latest items of the user. Impressions are left out.

    One more regression has the whole history without order: the weights of `ease`, between
    frequent items.

    Neighbours are training users with the same latest items. They add the mean of their
    histories, weighted by the square of what they share. Users with the same items are left
    out, as they tell nothing new. The shares of all parts in a score are chosen to rank the
    last items of the training users best, after fits without these items.

    With `habit`, the score is ``habit * own + (1 - habit) * others``, on scales fixed at the
    fit: `own` is the share of the user's baskets that have the item, late ones counting more
    (see `recsys.models.habits`). It is for lists with seen items.

    Attributes
    ----------
    weighted : bool
        Whether interactions have weights other than 1.
    unit : float
        The mean weight, which counts as 1 in a history.
    decays, shares : float32 ndarrays of shape (n_decays,)
        Decay of each regression in items, and its share in the scores. The last decay is 0,
        which stands for the whole history without order.
    neighbor_share : float
        Share of the neighbours in the scores.
    item_chances : float32 ndarray of shape (n_items,)
        Share of each item in all interactions, times a small constant: the score for a user
        without a history.
    weight_indptr, weight_items, weight_values : int64, int32 and float32 ndarrays
        The matrices B_d below one another as CSR arrays: their largest weights, as many of
        each item as fit in 512 MB.
    history_indptr, history_items, history_weights : int64, int32 and float32 ndarrays
        Items of each user in the order of their latest times.
    history_ranks : int64 ndarray of shape (n_users,)
        Place of each user in the order of the latest times.
    habit_share : float
        Share of the user's own habits in the scores, if `habit` is above 0.
    history_habits : float32 ndarray of shape (n_interactions,)
        Share of a user's baskets that have the item, if `habit` is above 0.

    Notes
    -----
    The Gram matrix of the 4,096 items with the most interactions is exact. Of the others
    only its diagonal is used, so that time and memory are linear in the interactions.

    References
    ----------
    Choi et al. (2021), "Session-aware linear item-item models for session-based
    recommendation", for regressions on items in order. Ludewig and Jannach (2018),
    "Evaluation of session-based recommendation algorithms", for neighbours.
    """

    name = "next"
    summary = "What comes next: the order of the latest items counts."
    predicts_ratings: ClassVar[bool] = False
    uses_zeros = True
    uses_features: ClassVar[bool] = True
    uses_order = True

    decay: float | None = parameter(
        None,
        "Places after which an earlier item counts a third; by default 1, 3 and 8 together.",
    )
    regularization: float = parameter(
        20.0,
        "Ridge penalty of the weights, in interactions.",
        low=1.0,
        high=200.0,
        log=True,
    )
    item_power: float = power_parameter("item", 0.25)
    neighbors: int = parameter(
        100,
        "Number of training users with the same latest items in a score; 0 for none.",
        minimum=0,
    )
    habit: float = habit_parameter()

    n_items: int = fitted()
    weighted: bool = fitted()
    unit: float = fitted()
    item_chances: Floats = fitted("n_items")
    decays: Floats = fitted("n_decays")
    shares: Floats = fitted("n_decays")
    neighbor_share: float = fitted()
    weight_indptr: Indices = fitted("n_sources + 1")
    weight_items: Ints = fitted("n_weights")
    weight_values: Floats = fitted("n_weights")
    history_indptr: Indices = fitted("n_users + 1")
    history_items: Ints = fitted("n_interactions")
    history_weights: Floats = fitted("n_interactions")
    history_ranks: Indices = fitted("n_users")
    habit_share: float = fitted(when="habit")
    history_habits: Floats = fitted("n_interactions", when="habit")
    features: Profiles | None = part(Profiles)

    @property
    def n_users(self) -> int:
        """Number of users."""
        return len(self.history_indptr) - 1

    def _check_arrays(self) -> None:
        n_items = self.n_items
        # A decay that is not a number would have no reach.
        if not (self.decays >= 0).all():
            raise DamageError("decays has values that are negative or no numbers")
        check_rows("history", self.history_indptr, self.history_items, n_items)
        check_rows(
            "weights",
            self.weight_indptr,
            self.weight_items,
            n_items,
            n_items * len(self.decays),
        )
        axis = self._features_of("item")
        if axis is not None and axis.similarity is None:
            raise missing_array(self.name, "features_items_similarity_weights")

    def _fit(self, ratings: Ratings, progress: Progress) -> None:
        if ratings.seconds is None:
            raise DataError(
                "The next model needs the order of the interactions, but these have no "
                "timestamps; name their column (--timestamp-col), or use a model that needs "
                "none, such as ease."
            )
        self.n_items = ratings.n_items
        decays = _DECAYS if self.decay is None else (self.decay,)
        self.decays = np.array([*decays, _UNORDERED], np.float32)
        self.weighted = ratings.implicit and ratings.weighted
        self.unit = 1.0
        if self.weighted:
            self.unit = float(ratings.values.mean(dtype=np.float64))
        self._take_histories(Histories.of(ratings))
        sequences = sequences_of_events(ratings)
        counts = np.bincount(sequences.items, sequences.weights, self.n_items)
        chances = _BACKOFF * counts / max(float(counts.sum()), 1.0)
        self.item_chances = chances.astype(np.float32)
        dislikes = self._dislikes(ratings)
        self._choose_shares(sequences, dislikes)
        self._set_weights(sequences, dislikes)
        if self.habit:
            self._add_habits()
        if ratings.item_features is not None:
            counts = ratings.counts("item")
            axis = fitted_axis(ratings.item_features, counts, self.item_vectors())
            self.features = Profiles(users=None, items=axis)

    def _add_habits(self) -> None:
        """Give habits their share of scores whose mean maximum is 1, as for habits."""
        self.habit_share = 0.0
        has_items = np.diff(self.history_indptr) > 0
        judges = self._judges(has_items)
        best = self._factor_form(judges).scores().max(axis=1)
        size = max(float(best.mean()), _LEAST_SIZE)
        of_others = np.float32((1 - self.habit) / size)
        self.shares = self.shares * of_others
        self.neighbor_share *= float(of_others)
        self.item_chances = self.item_chances * of_others
        starts = self.history_indptr[:-1][has_items]
        strongest = np.maximum.reduceat(self.history_habits, starts)
        size = max(float(strongest.mean()), _LEAST_SIZE)
        self.habit_share = self.habit / size

    def _judges(self, which: NDArray[np.bool_]) -> Indices:
        """Return users at equal distances, as many as have scores in memory together."""
        users = np.flatnonzero(which)
        most = min(_JUDGES, _JUDGED_SCORES // self.n_items + 1)
        step = -(-len(users) // most)
        return users[::step]

    def _dislikes(self, ratings: Ratings) -> Sparse | None:
        """Return the confidences of disliked items, with the items as rows."""
        from scipy.sparse import csr_array

        disliked = ratings.disliked
        if disliked is None or not ratings.implicit or not len(disliked.indices):
            return None
        confidence = disliked.values.at() / np.float32(self.unit)
        arrays = (confidence, disliked.indices, disliked.indptr)
        return csr_array(arrays, shape=disliked.shape).T.tocsr()

    def _set_weights(self, sequences: Sequences, dislikes: Sparse | None) -> None:
        """Solve the regression of each decay, and store the largest weights of each item."""
        from scipy.sparse import vstack

        pairs = PairSums.of(sequences, self.n_items)
        weights = []
        for gamma in self._gammas[:-1]:
            regression = _Regression(pairs, gamma, self.item_power, dislikes)
            weights.append(regression.weights(self.regularization, self._n_kept))
        weights.append(_unordered_weights(self._binary_histories, self._n_kept))
        stacked = kernels.csr_arrays(vstack(weights, format="csr"))
        self.weight_indptr, self.weight_items, self.weight_values = stacked

    @property
    def _gammas(self) -> NDArray[np.float64]:
        """Weight of an item one place back, of each decay; 1 without order."""
        decays = self.decays.astype(np.float64)
        gammas = np.ones(len(decays))
        has_order = decays != _UNORDERED
        gammas[has_order] = np.exp(-1 / decays[has_order])
        return gammas

    @property
    def _n_kept(self) -> int:
        """Number of weights of each item that fit in memory."""
        n_sources = len(self.decays) * self.n_items
        return max(1, _MOST_WEIGHTS // max(1, n_sources))

    def _choose_shares(self, sequences: Sequences, dislikes: Sparse | None) -> None:
        """Choose the shares by a fit to all but the last item of each user."""
        self.shares = np.ones(len(self.decays), np.float32)
        self.neighbor_share = 0.0
        has_several = sequences.lengths > 1
        if not has_several.any():
            return
        trial = copy.copy(self)
        earlier = sequences.without_last(has_several)
        trial._set_histories(_latest_of_each(earlier))
        trial._set_weights(earlier, dislikes)
        judges = self._judges(has_several)
        weights = trial._stacked_weights
        parts = []
        for share_of_decay in np.eye(len(self.decays)):
            latest = kernels.csr_arrays(trial._latest(judges, share_of_decay))
            parts.append(sparse_rows(latest, weights, self.n_items))
        if self.neighbors and sequences.lengths.mean() <= _LONG:
            parts.append(trial._neighborhood(judges).scores())
        is_seen = trial._binary_histories[judges].toarray() > 0
        last_items = sequences.items[sequences.indptr[judges + 1] - 1]
        shares = _best_shares(parts, is_seen, last_items)
        n_decays = len(self.decays)
        self.shares = np.array(shares[:n_decays], np.float32)
        if len(parts) > n_decays:
            self.neighbor_share = shares[-1]

    def with_users(self, histories: Histories) -> Self:
        """Return the model with these users instead of its own.

        The order is given by the times; without times, items are taken as they come.
        """
        check_indices(histories.indices, self.n_items, "item")
        result = copy.copy(self)
        vars(result)["_source_model"] = self._source
        result._take_histories(histories)
        return result

    def _take_histories(self, histories: Histories) -> None:
        order = order_of_time(histories)
        weights = np.ones(len(order), np.float32)
        if self.weighted:
            weights = histories.values[order] / np.float32(self.unit)
        self._set_histories(
            Sequences(histories.indptr, histories.indices[order], weights)
        )
        if self.habit:
            self.history_habits = habits(histories, weighted=self.weighted)[order]
        times: NDArray[Any] = np.arange(len(order))
        if histories.times is not None:
            times = histories.times[order]
        self.history_ranks = _ranks(histories.indptr, times)

    def _set_histories(self, sequences: Sequences) -> None:
        self.history_indptr, self.history_items, self.history_weights = sequences
        # A copy with other histories has the caches of its model.
        for name in _CACHES:
            vars(self).pop(name, None)

    def _histories(self, users: Indices) -> Sequences:
        """Return the histories of some users."""
        places, indptr = kernels.row_places(self.history_indptr, users)
        return Sequences(
            indptr, self.history_items[places], self.history_weights[places]
        )

    def _factor_form(self, users: ArrayLike) -> FactorForm:
        """Return the scores as sums over the latest items and the neighbours."""
        from scipy.sparse import hstack

        u = check_indices(users, self.n_users, "user")
        latest = self._latest(u, self.shares)
        parts = [latest]
        if self.neighbor_share:
            neighbors = self._neighborhood(u).shares
            neighbors.data *= np.float32(self.neighbor_share)
            parts.append(neighbors)
        if self.habit:
            parts.append(self._own_habits(u))
        history = hstack(parts, format="csr")
        weights = self._source._stacked_weights
        sparse = kernels.SparsePart(kernels.csr_arrays(history), weights)
        offset = np.zeros(len(u), np.float32)
        form = FactorForm.of_biases(self.item_chances, offset)._replace(sparse=sparse)
        features = self._source._new_items
        if features is None:
            return form
        # Features predict the columns of new items, and their rows.
        profiles = latest @ features.columns + features.chances
        if self.neighbor_share:
            of_neighbors = neighbors @ self._source._training_histories[0]
            profiles += of_neighbors @ features.axis.loadings
        rows: Floats = (latest @ features.row_positions).toarray()
        profiles += rows @ features.corner
        return form._replace(
            users=np.hstack([profiles, rows]),
            items=np.hstack([features.axis.positions, features.rows]),
        )

    def _own_habits(self, users: Indices) -> Sparse:
        """Return the habits of some users, times their share."""
        from scipy.sparse import csr_array

        places, indptr = kernels.row_places(self.history_indptr, users)
        values = self.history_habits[places] * np.float32(self.habit_share)
        shape = (len(users), self.n_items)
        return csr_array((values, self.history_items[places], indptr), shape=shape)

    def _latest(self, users: Indices, shares: NDArray[np.floating]) -> Sparse:
        """Return the latest items of some users for each decay, times its share."""
        from scipy.sparse import hstack

        histories = self._histories(users)
        latest = []
        for gamma, share in zip(self._gammas, shares, strict=True):
            # Without a share, a decay has no entries.
            weights = histories.weights * np.float32(share)
            of_share = histories._replace(weights=weights)
            latest.append(sources(of_share, self.n_items, gamma))
        history: Sparse = hstack(latest, format="csr")
        return history

    @property
    def _weights(self) -> Sparse:
        """The weights of all regressions, shape (n_decays * n_items, n_items)."""
        from scipy.sparse import csr_array

        arrays = (self.weight_values, self.weight_items, self.weight_indptr)
        shape = (len(self.weight_indptr) - 1, self.n_items)
        return csr_array(arrays, shape=shape)

    @cached_property
    def _new_items(self) -> _NewItems | None:
        """Predictions by features for items without users; None if all have some."""
        axis = self._features_of("item")
        if axis is None or not axis.has_cold_rows:
            return None
        return _NewItems.of(axis, self._weights, self.item_chances)

    def comparable(self, side: str) -> tuple[Floats, Floats]:
        """Return centred vectors of items, and the reliability of their features."""
        axis: AxisProfiles = self._features_of(side)
        assert axis.similarity is not None
        return axis.similarity.comparable(self.item_vectors(), axis.positions)

    def widened(
        self,
        side: str,
        order: Indices,
        features: GroupedFeatures,
    ) -> Self:
        """Return the model with additional items without users, sorted by `order`."""
        n_new = features.matrix.shape[0]
        new_index = np.argsort(order)
        rows = np.where(order < len(order) - n_new, order, -1)
        changes = rows_taken(self, {side: rows})
        lengths = np.diff(self.weight_indptr)
        of_decays = lengths.reshape(len(self.decays), -1)
        of_decays = of_decays[:, rows]
        of_decays[:, rows < 0] = 0
        changes["n_items"] = len(order)
        changes["weight_indptr"] = np.append(0, np.cumsum(of_decays))
        changes["weight_items"] = new_index[self.weight_items].astype(np.int32)
        changes["history_items"] = new_index[self.history_items].astype(np.int32)
        result = self._with(**changes)
        axis = result._features_of(side)
        positions = axis.all_positions(csr_rows(features), n_new)
        axis.positions[new_index[-n_new:]] = positions
        return result

    @cached_property
    def _stacked_weights(self) -> CsrArrays:
        """The weights of all regressions, neighbours and habits below one another.

        The weights of neighbours are their histories. A habit of an item is for this item.
        """
        from scipy.sparse import eye_array, vstack

        if not self.neighbor_share and not self.habit:
            return CsrArrays(self.weight_indptr, self.weight_items, self.weight_values)
        blocks = [self._weights]
        if self.neighbor_share:
            blocks.append(self._training_histories[0])
        if self.habit:
            same_item = eye_array(self.n_items, dtype=np.float32, format="csr")
            blocks.append(same_item)
        return kernels.csr_arrays(vstack(blocks, format="csr"))

    @property
    def _binary_histories(self) -> Sparse:
        """The histories as a matrix of ones."""
        from scipy.sparse import csr_array

        ones = np.ones(len(self.history_items), np.float32)
        shape = (self.n_users, self.n_items)
        return csr_array((ones, self.history_items, self.history_indptr), shape=shape)

    @cached_property
    def _training_histories(self) -> tuple[Sparse, Sparse]:
        """The histories, and the newest users of each item."""
        histories = self._binary_histories.copy()
        histories.sort_indices()
        return histories, _newest_users(histories, self.history_ranks)

    def _neighborhood(self, users: Indices) -> _Neighborhood:
        """Return the neighbours of some users among the training users."""
        from scipy.sparse import vstack

        histories, newest = self._source._training_histories
        latest = sources(self._histories(users), self.n_items, _NEIGHBOR_GAMMA)
        lengths = np.diff(self.history_indptr)[users]
        common = [
            self._nearest(latest[rows], lengths[rows], newest)
            for rows in kernels.pieces(max(1, len(users)), _SEARCHED)
        ]
        return _Neighborhood(latest, vstack(common, format="csr"), histories)

    def _nearest(
        self,
        latest: Sparse,
        lengths: Indices,
        newest: Sparse,
    ) -> Sparse:
        """Return what the nearest training users share with some users."""
        from scipy.sparse import csr_array

        source = self._source
        common = (latest @ newest).tocsr()
        rows = _row_of_entry(common)
        # Who has the same items, such as the user in the training data, tells nothing new.
        lengths_of_source = np.diff(source.history_indptr)
        of_neighbors = lengths_of_source[common.indices]
        totals: Floats = latest.sum(axis=1)
        is_other = of_neighbors != lengths[rows]
        is_other |= common.data < (1 - _ROUNDING) * totals[rows]
        # Of users who share as much, the newest are nearer.
        nearness = common.data.astype(np.float64)
        newness = source.history_ranks[common.indices] / source.n_users
        nearness += _NEWNESS * newness
        nearness[~is_other] = 0
        n_candidates = np.diff(common.indptr)
        width = max(self.neighbors, int(n_candidates.max(initial=0)))
        padded = np.zeros((len(lengths), width))
        starts = np.repeat(common.indptr[:-1], n_candidates)
        padded[rows, np.arange(len(rows)) - starts] = nearness
        last = -self.neighbors
        cuts = np.partition(padded, last, axis=1)[:, last]
        is_near = is_other & (nearness >= cuts[rows])
        counts = np.bincount(rows[is_near], minlength=len(lengths))
        indptr = np.append(0, np.cumsum(counts))
        arrays = (common.data[is_near], common.indices[is_near], indptr)
        return csr_array(arrays, shape=common.shape)

    def item_vectors(self) -> Floats:
        """Return vectors whose cosine is the similarity of two items, shape (n_items, k).

        They are the main directions of the histories without order.
        """
        return self._source._vectors

    @cached_property
    def _vectors(self) -> Floats:
        histories = self._binary_histories
        counts = np.bincount(histories.indices, minlength=self.n_items)
        scaled = power(counts, -_VECTOR_POWER)[histories.indices]
        lengths = np.diff(self.history_indptr)
        scaled *= np.repeat(power(lengths, -_VECTOR_POWER), lengths)
        k = min(_DIRECTIONS, *histories.shape)
        rows = kernels.csr_arrays(histories)._replace(data=scaled)
        vectors, values = leading_directions(rows, self.n_items, k)
        return (vectors * values).astype(np.float32)

    def contributions(
        self,
        history: Histories,
        items: ArrayLike,
        fitted: Ratings | None = None,
    ) -> Explanation:
        """Return the scores of `items` as sums over the items of the history."""
        columns = check_indices(items, self.n_items, "item")
        order = order_of_time(history)
        user = self.with_users(history)
        one = np.zeros(1, np.int64)
        rated = user._histories(one)
        features = self._source._new_items
        # Columns of new items are sums over those of all items.
        summed = columns if features is None else np.arange(self.n_items)
        terms = np.zeros((len(order), len(summed)), np.float32)
        # The score of a user without a history.
        base = self.item_chances[columns]
        for at, gamma in enumerate(self._gammas):
            sources_of_decay = at * self.n_items + rated.items
            weights = self._weights[sources_of_decay][:, summed].toarray()
            if features is not None:
                weights += features.rows_of(at, rated.items)
            share = self.shares[at] * recency(rated, gamma)
            terms += weights * share[:, None]
        if self.neighbor_share:
            neighborhood = user._neighborhood(one)
            terms += np.float32(self.neighbor_share) * neighborhood.terms(
                rated.items, summed
            )
        if features is not None:
            positions = features.axis.positions[columns].T
            of_new = terms @ features.axis.loadings @ positions
            terms = terms[:, columns] + of_new.astype(np.float32)
            base = base + features.chances @ positions
        if self.habit:
            # An item adds to its own score alone.
            own = user.history_habits * np.float32(self.habit_share)
            rows, places = np.nonzero(rated.items[:, None] == columns)
            terms[rows, places] += own[rows]
        in_given_order = np.empty_like(terms)
        in_given_order[order] = terms
        return Explanation(base, np.ascontiguousarray(in_given_order.T))


class _NewItems(NamedTuple):
    """Predictions by features for items without users.

    A new item at position t has the column ``B Z t`` of weights B, and the row ``t' Z' B``, with Z
    as in `recsys.models.item_item`.

    Attributes
    ----------
    axis : AxisProfiles
        Positions t of the new items, and Z as `loadings`.
    columns : float32 ndarray of shape (n_decays * n_items, w)
        B Z, one below the other.
    rows : float32 ndarray of shape (n_items, n_decays * w)
        B'Z, next to one another.
    corner : float32 ndarray of shape (n_decays * w, w)
        Z'B Z, for new items after new items.
    chances : float32 ndarray of shape (w,)
        The product of `item_chances` and Z.
    row_positions : csr_array of shape (n_decays * n_items, n_decays * w)
        Positions of new items as sources of each decay.
    """

    axis: AxisProfiles
    columns: Floats
    rows: Floats
    corner: Floats
    chances: Floats
    row_positions: Sparse

    @classmethod
    def of(
        cls,
        axis: AxisProfiles,
        weights: Sparse,
        chances: Floats,
    ) -> _NewItems:
        """Multiply the weights of all decays by Z."""
        from scipy.sparse import block_diag, csr_array

        Z = axis.loadings
        n_items = len(Z)
        columns: Floats = weights @ Z
        starts = range(0, weights.shape[0], n_items)
        blocks = [slice(start, start + n_items) for start in starts]
        rows = [weights[block].T @ Z for block in blocks]
        corner = [Z.T @ columns[block] for block in blocks]
        of_each_decay = [csr_array(axis.positions) for _ in blocks]
        positions = block_diag(of_each_decay, format="csr")
        return cls(
            axis=axis,
            columns=columns,
            rows=np.hstack(rows),
            corner=np.vstack(corner),
            chances=chances @ Z,
            row_positions=positions,
        )

    def rows_of(self, decay: int, items: Ints) -> Floats:
        """Return the weights of new items as sources, and zeros for other items."""
        width = self.axis.positions.shape[1]
        rows = self.rows[:, decay * width : (decay + 1) * width]
        weights: Floats = self.axis.positions[items] @ rows.T
        return weights


class _Regression(NamedTuple):
    """The ridge regression of one decay.

    Attributes
    ----------
    pairs : PairSums
        The sums S'T over pairs of an item and a later one.
    gamma : float
        Weight of an item one place back.
    item_power : float
        Exponent by which frequent items are weighted down as sources.
    dislikes : csr_array of shape (n_items, n_users), or None
        Confidences of dislikes.
    """

    pairs: PairSums
    gamma: float
    item_power: float
    dislikes: Sparse | None = None

    def weights(self, penalty: float, n_kept: int) -> Sparse:
        """Return the n_kept largest weights of each item with the items after it."""
        from scipy.sparse import vstack

        n_items = self.pairs.n_items
        counts = np.diff(self.pairs.places.indptr)
        scale = power(counts, -self.item_power)
        n_dense = min(_DENSE, _MOST_SOLVED // max(1, n_items) + 1)
        by_count = np.argsort(-counts, kind="stable")
        frequent = np.sort(by_count[:n_dense])
        rare = np.sort(by_count[n_dense:])
        latest = sources(self.pairs.sequences, n_items, self.gamma)
        solved = self._solved(frequent, latest, scale[frequent], penalty)
        quotients = self._quotients(rare, latest, scale[rare], penalty, n_kept)
        largest = _largest(solved, n_kept)
        if not len(rare):
            return largest
        order = np.argsort(np.concatenate([frequent, rare]))
        return vstack([largest, quotients], format="csr")[order]

    def _solved(
        self,
        items: Indices,
        latest: Sparse,
        scale: Floats,
        penalty: float,
    ) -> Floats:
        """Solve (D S'S D + penalty I) X = D S'T for the sources `items`; return D X.

        `latest` has the source after the last item of each user.
        """
        from scipy.linalg import blas, lapack

        n_items = self.pairs.n_items
        targets = np.empty((len(items), n_items), np.float32)
        for rows in kernels.pieces(len(items), _ROWS):
            pairs = self.pairs.rows(items[rows], self.gamma, n_items)
            pairs.toarray(out=targets[rows])
        square = self.gamma**2
        system = targets[:, items]
        system = square * (system + system.T)
        system -= gram(latest[:, items])
        system[np.diag_indices_from(system)] += square * self._target_squares[items]
        system *= scale[:, None] * (scale / (1 - square))
        system[np.diag_indices_from(system)] += penalty
        system = system.astype(np.float32, copy=False)
        factor, failed = lapack.spotrf(system.T, overwrite_a=True, clean=False)
        if failed:
            raise DataError(
                "The Gram matrix of the items is singular in single precision; try a larger "
                "regularization."
            )
        targets *= scale[:, None]
        # X' U'U = T'D, in the memory of the targets.
        for transposed in (0, 1):
            blas.strsm(
                1.0, factor, targets.T, side=1, trans_a=transposed, overwrite_b=True
            )
        if self.dislikes is not None:
            disliked_sources = latest[:, items].multiply(scale).tocsr()
            _with_dislikes(targets, factor, disliked_sources, self.dislikes)
        targets *= scale[:, None]
        return targets

    def _quotients(
        self,
        items: Indices,
        latest: Sparse,
        scale: Floats,
        penalty: float,
        n_kept: int,
    ) -> Sparse:
        """Return the weights of sources whose Gram matrix is taken to be diagonal."""
        square = self.gamma**2
        pairs = self.pairs.rows(items, self.gamma, n_kept)
        rows = np.arange(len(items))
        repeats = np.asarray(pairs[rows, items]).ravel()
        squares = latest.data**2
        ends = np.bincount(latest.indices, squares, latest.shape[1])
        sums = 2 * repeats + self._target_squares[items]
        diagonal = (square * sums - ends[items]) / (1 - square)
        quotient = scale**2 / (diagonal * scale**2 + penalty)
        of_entries = quotient[_row_of_entry(pairs)]
        pairs.data *= of_entries.astype(np.float32)
        return pairs

    @property
    def _target_squares(self) -> NDArray[np.float64]:
        """The diagonal of T'T."""
        sequences = self.pairs.sequences
        squares = sequences.weights.astype(np.float64) ** 2
        sums = np.bincount(sequences.items, squares, self.pairs.n_items)
        return sums.astype(np.float64)


def _with_dislikes(
    solution: Floats,
    factor: Floats,
    latest: Sparse,
    dislikes: Sparse,
) -> None:
    """Add ``C = diag(c)`` times squared scores of users to the system of each disliked item.

    With the sources Z of the users who dislike the item and the system A = U'U, Woodbury's identity
    has one equation for each dislike: x - A^-1 Z' (C^-1 + Z A^-1 Z')^-1 Z x.
    """
    from scipy.linalg import cho_solve

    for item in np.flatnonzero(np.diff(dislikes.indptr)):
        of_item = slice(dislikes.indptr[item], dislikes.indptr[item + 1])
        Z = latest[dislikes.indices[of_item]].toarray()
        # Users without a source say nothing.
        has_source = Z.any(axis=1)
        Z = Z[has_source]
        confidence = dislikes.data[of_item][has_source]
        inverse = cho_solve((factor, False), Z.T)
        small = Z @ inverse
        small[np.diag_indices_from(small)] += 1 / confidence
        errors = np.linalg.solve(small, Z @ solution[:, item])
        solution[:, item] -= inverse @ errors


def _unordered_weights(histories: Sparse, n_kept: int) -> Sparse:
    """Return the weights of EASE between the most frequent items; others have none."""
    from scipy.sparse import csr_array

    n_items = histories.shape[1]
    counts = np.bincount(histories.indices, minlength=n_items)
    by_count = np.argsort(-counts, kind="stable")
    items = np.sort(by_count[:_DENSE])
    P = gram(histories[:, items])
    P[np.diag_indices_from(P)] += np.float32(default_penalty(counts))
    invert(P)
    P /= -np.diagonal(P).copy()
    np.fill_diagonal(P, 0)
    largest = _largest(P, n_kept)
    lengths = np.zeros(n_items, np.int64)
    lengths[items] = np.diff(largest.indptr)
    indptr = np.append(0, np.cumsum(lengths))
    arrays = (largest.data, items[largest.indices], indptr)
    return csr_array(arrays, shape=(n_items, n_items))


class _Neighborhood(NamedTuple):
    """Training users that share the latest items of some users.

    Attributes
    ----------
    latest : csr_array of shape (n_users, n_items)
        The latest items of the users, by which neighbours are sought.
    common : csr_array of shape (n_users, n_training_users)
        Sums of the weights in `latest` over the items that neighbours have, too.
    histories : csr_array of shape (n_training_users, n_items)
    """

    latest: Sparse
    common: Sparse
    histories: Sparse

    @property
    def shares(self) -> Sparse:
        """Shares of the neighbours in a score: the squares of what they share, of sum 1."""
        shares = self.common.copy()
        shares.data **= 2
        shares.data /= self._totals()[_row_of_entry(shares)]
        return shares

    def scores(self) -> Floats:
        """Return the mean of the histories of the neighbours, weighted by squares."""
        histories = kernels.csr_arrays(self.histories)
        shares = kernels.csr_arrays(self.shares)
        return sparse_rows(shares, histories, self.histories.shape[1])

    def terms(self, rated: NDArray[np.int32], items: Indices) -> Floats:
        """Return the contributions of rated items of a single user to the scores of items.

        A square is the common sum times the weights of the rated items in it.
        """
        common = self.common.toarray()[0]
        neighbors = np.flatnonzero(common)
        have = self.histories[neighbors]
        shared = have[:, rated].toarray()
        shared *= common[neighbors][:, None]
        terms: Floats = shared.T @ have[:, items].toarray()
        weights = self.latest.toarray()[0, rated] / self._totals()
        terms *= weights[:, None]
        return terms

    def _totals(self) -> Floats:
        """Return the total weight of the neighbours of each user, or 1 without any."""
        squares = np.square(self.common.data, dtype=np.float64)
        rows = _row_of_entry(self.common)
        totals = np.bincount(rows, squares, self.common.shape[0])
        return np.where(totals > 0, totals, 1).astype(np.float32)


def _row_of_entry(matrix: Sparse) -> Indices:
    """Return the row of each stored entry."""
    rows = np.arange(matrix.shape[0])
    return np.repeat(rows, np.diff(matrix.indptr))


def _newest_users(histories: Sparse, ranks: Indices) -> Sparse:
    """Return the newest users of each item, as a matrix of shape (n_items, n_users)."""
    from scipy.sparse import csr_array

    # With the newest users first, so are the users of each item.
    newest_first = np.argsort(-ranks)
    by_item = histories[newest_first].T.tocsr()
    starts = by_item.indptr[:-1][_row_of_entry(by_item)]
    places = np.arange(by_item.nnz) - starts
    is_new = places < _CANDIDATES
    users = newest_first[by_item.indices[is_new]]
    counts = np.minimum(np.diff(by_item.indptr), _CANDIDATES)
    indptr = np.append(0, np.cumsum(counts))
    ones = np.ones(len(users), np.float32)
    return csr_array((ones, users, indptr), shape=by_item.shape)


def _largest(matrix: Floats, n: int) -> Sparse:
    """Return the n entries of each row that are largest in size."""
    from scipy.sparse import csr_array

    n_rows, n_columns = matrix.shape
    n = min(n, n_columns)
    columns = np.empty((n_rows, n), np.int32)
    columns[:] = np.arange(n)
    values = matrix
    if n < n_columns:
        for rows in kernels.pieces(n_rows, _ROWS):
            sizes = np.abs(matrix[rows])
            order = np.argpartition(-sizes, n, axis=1)
            columns[rows] = np.sort(order[:, :n], axis=1)
        values = np.take_along_axis(matrix, columns, axis=1)
    indptr = np.arange(n_rows + 1) * n
    arrays = (values.ravel(), columns.ravel(), indptr)
    return csr_array(arrays, shape=matrix.shape)


def _ranks(indptr: Indices, times: NDArray[Any]) -> Indices:
    """Return the place of each user in the order of the last times."""
    has_items = np.diff(indptr) > 0
    latest = np.full(len(indptr) - 1, -np.inf)
    latest[has_items] = times[indptr[1:][has_items] - 1]
    order = np.argsort(latest, kind="stable")
    return np.argsort(order)


def _latest_of_each(sequences: Sequences) -> Sequences:
    """Return the latest occurrence of each item of a user."""
    latest = np.sort(latest_places(sequences))
    lengths = np.bincount(sequences.users[latest], minlength=sequences.n_users)
    indptr = np.append(0, np.cumsum(lengths))
    return Sequences(indptr, sequences.items[latest], sequences.weights[latest])


def _best_shares(
    parts: Sequence[Floats],
    is_seen: NDArray[np.bool_],
    targets: NDArray[np.int32],
) -> list[float]:
    """Return the shares of parts that rank the targets best, changed one at a time.

    A target competes with the items that are not in the history, and with all items if it
    is in the history itself.
    """
    users = np.arange(len(targets))
    is_seen = is_seen & ~is_seen[users, targets][:, None]

    def gain(shares: Sequence[float]) -> float:
        """Return the mean discounted gain of the targets in lists of 20."""
        scores = np.zeros_like(parts[0])
        for share, of_part in zip(shares, parts, strict=True):
            scores += np.float32(share) * of_part
        scores[is_seen] = -np.inf
        of_targets = scores[users, targets][:, None]
        n_better = np.count_nonzero(scores > of_targets, axis=1)
        n_equal = np.count_nonzero(scores == of_targets, axis=1) - 1
        ranks = n_better + n_equal / 2
        gains = 1 / np.log2(2 + ranks)
        gains[ranks >= _LENGTH] = 0
        return float(gains.mean())

    # The parts have other scales: the regressions estimate chances, and EASE does not.
    sizes = [float(part.max(axis=1).mean()) for part in parts]
    best = [1 / max(size, _LEAST_SIZE) for size in sizes]
    best_gain = gain(best)
    for _ in range(_ROUNDS):
        for at in range(len(parts)):
            present = best[at]
            for change in _CHANGES:
                tried = best.copy()
                tried[at] = present * change
                tried_gain = gain(tried) if any(tried) else 0.0
                if tried_gain > best_gain:
                    best = tried
                    best_gain = tried_gain
    return best
