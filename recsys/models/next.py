"""Next: ridge regressions from the latest items of a history to the item after them."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowrank import kernels
from lowrank.kernels import CsrArrays
from lowrank.kernels.retrieval import sparse_rows
from recsys.errors import DataError
from recsys.models.base import Model, Progress, check_indices
from recsys.models.factor_form import FactorForm
from recsys.models.habits import habit_parameter, habits
from recsys.models.histories import Explanation, Histories, csr_rows
from recsys.models.item_item import AxisProfiles, Profiles, fitted_axis
from recsys.models.linear_filter import power_parameter
from recsys.models.neighbors import TrainingUsers
from recsys.models.new_items import NewItems
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
    Sequences,
    order_of_time,
    recency,
    sequences_of_events,
)
from recsys.models.shares import LEAST_SIZE, best_shares
from recsys.models.transitions import (
    Regression,
    direction_weights,
    main_directions,
    unordered_weights,
)
from recsys.saving.arrays import DamageError, check_rows, check_sorted_rows

if TYPE_CHECKING:
    from lowrank.completion.feature_ridge import GroupedFeatures
    from recsys.data.ratings import Ratings
    from recsys.models.sequences import Sparse

_DECAYS = (1.0, 3.0, 8.0)  # items: the last one, a sitting, a phase of a user
# In the place of a decay: the whole history, in which all items count alike.
_UNORDERED = 0.0
_SITTING = 3.0  # decay of the items whose directions come next
_MOST_WEIGHTS = 2**26  # stored weights of all regressions: 512 MB
_DIRECTIONS = 64  # columns of the vectors of items
# Neighbours with long histories take long: of large data, only short ones count.
_LONG = 50  # mean length of histories
_LARGE = 2**21  # items in histories
_BACKOFF = 0.1  # of an item's chance in any history, next to its chance in this one
_CACHES = ("_new_items", "_stacked_weights", "_training_users", "_vectors")
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

    A disliked item with the confidence c adds ``-c`` times z_u to its column of S'T: it does not
    come next after the latest items of the user. Impressions are left out.

    One more regression has the whole history without order: the weights of `ease`, between
    frequent items. Another matrix of weights brings items of similar histories and, as often
    as items come again, the latest items themselves (see
    `recsys.models.transitions.direction_weights`).

    Neighbours are training users with the same latest items. They add the mean of their
    histories, weighted by the square of what they share. In a history, the item j places
    from the latest shared one counts :math:`e^{-j / 2}`. Users with the same items are left
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
        Decay of each matrix of weights in items, and its share in the scores. A decay of 0
        stands for the whole history without order.
    neighbor_share : float
        Share of the neighbours in the scores.
    item_chances : float32 ndarray of shape (n_items,)
        Share of each item in all interactions, times a small constant: the score for a user
        without a history.
    weight_indptr, weight_items, weight_values : int64, int32 and float32 ndarrays
        The matrices of weights below one another as CSR arrays: their largest weights, as many of
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
    "Evaluation of session-based recommendation algorithms", for neighbours. Garg et al.
    (2019), "Sequence and time aware neighborhood for session-based recommendations", for
    distances in their histories.
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
        check_sorted_rows(
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
        self.decays = np.array([*decays, _UNORDERED, _SITTING], np.float32)
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
            n_users = ratings.counts("item")
            axis = fitted_axis(ratings.item_features, n_users, self.item_vectors())
            self.features = Profiles(users=None, items=axis)

    def _add_habits(self) -> None:
        """Give habits their share of scores whose mean maximum is 1, as for habits."""
        self.habit_share = 0.0
        has_items = np.diff(self.history_indptr) > 0
        judges = self._judges(has_items)
        best = self._factor_form(judges).scores().max(axis=1)
        size = max(float(best.mean()), LEAST_SIZE)
        of_others = np.float32((1 - self.habit) / size)
        self.shares = self.shares * of_others
        self.neighbor_share *= float(of_others)
        self.item_chances = self.item_chances * of_others
        starts = self.history_indptr[:-1][has_items]
        strongest = np.maximum.reduceat(self.history_habits, starts)
        size = max(float(strongest.mean()), LEAST_SIZE)
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

        regression = Regression.of(sequences, self.n_items, self.item_power, dislikes)
        weights = [
            regression.weights(gamma, self.regularization, self._n_kept)
            for gamma in self._gammas[:-2]
        ]
        histories = self._binary_histories
        weights.append(unordered_weights(histories, self._n_kept))
        # The share of the events whose item comes again.
        repeats = 1 - histories.nnz / max(1, len(sequences.items))
        weights.append(direction_weights(histories, repeats, self._n_kept))
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
        trial._set_histories(earlier.latest_of_each())
        trial._set_weights(earlier, dislikes)
        judges = self._judges(has_several)
        histories = trial._histories.take(judges)
        weights = trial._stacked_weights
        parts = []
        for share_of_decay in np.eye(len(self.decays)):
            latest = trial._latest(histories, share_of_decay, histories.indptr)
            parts.append(sparse_rows(kernels.csr_arrays(latest), weights, self.n_items))
        n_interactions = len(sequences.items)
        is_fast = n_interactions <= max(_LARGE, _LONG * sequences.n_users)
        if self.neighbors and is_fast:
            of_neighbors = trial._neighbors.scores(histories, self.neighbors)
            parts.append(of_neighbors.toarray())
        is_seen = trial._binary_histories[judges].toarray() > 0
        last_items = sequences.items[sequences.indptr[judges + 1] - 1]
        shares = best_shares(parts, is_seen, last_items)
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
        sequences = Sequences(histories.indptr, histories.indices[order], weights)
        self._set_histories(sequences)
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

    @property
    def _histories(self) -> Sequences:
        """The histories of all users."""
        return Sequences(self.history_indptr, self.history_items, self.history_weights)

    def _factor_form(self, users: ArrayLike) -> FactorForm:
        """Return the scores as sums over the latest items, the neighbours and habits."""
        u = check_indices(users, self.n_users, "user")
        histories = self._histories.take(u)
        neighbors = profiles = None
        if self.neighbor_share:
            neighbors = self._neighbors.scores(histories, self.neighbors)
            features = self._source._new_items
            if features is not None:
                profiles = neighbors @ features.axis.loadings
        own = None
        if self.habit:
            places, _ = kernels.row_places(self.history_indptr, u)
            own = self.history_habits[places]
        return self._form(histories, histories.indptr, neighbors, profiles, own)

    def _form(
        self,
        histories: Sequences,
        indptr: Indices,
        neighbors: Sparse | None,
        neighbor_profiles: Floats | None,
        own: Floats | None,
    ) -> FactorForm:
        """Return the scores of rows of items in histories, with the rows of the other parts.

        `neighbor_profiles` are the products of `neighbors` with the loadings of new items.
        """
        from scipy.sparse import csr_array, hstack

        latest = self._latest(histories, self.shares, indptr)
        parts = [latest]
        if neighbors is not None:
            parts.append(neighbors * np.float32(self.neighbor_share))
        if own is not None:
            values = own * np.float32(self.habit_share)
            shape = (len(indptr) - 1, self.n_items)
            parts.append(csr_array((values, histories.items, indptr), shape=shape))
        history = hstack(parts, format="csr")
        weights = self._source._stacked_weights
        sparse = kernels.SparsePart(kernels.csr_arrays(history), weights)
        offset = np.zeros(len(indptr) - 1, np.float32)
        form = FactorForm.of_biases(self.item_chances, offset)._replace(sparse=sparse)
        features = self._source._new_items
        if features is None:
            return form
        # Features predict the columns of new items, and their rows.
        profiles = latest @ features.columns + features.chances
        if neighbor_profiles is not None:
            profiles += neighbor_profiles * np.float32(self.neighbor_share)
        rows: Floats = (latest @ features.row_positions).toarray()
        profiles += rows @ features.corner
        return form._replace(
            users=np.hstack([profiles, rows]),
            items=features.items,
        )

    def _latest(
        self,
        histories: Sequences,
        shares: NDArray[np.floating],
        indptr: Indices,
    ) -> Sparse:
        """Return rows of the latest items of histories for each decay, times its share."""
        from scipy.sparse import hstack

        latest = []
        for gamma, share in zip(self._gammas, shares, strict=True):
            # Without a share, a decay has no entries.
            weights = recency(histories, gamma) * np.float32(share)
            of_share = Sequences(indptr, histories.items, weights)
            latest.append(of_share.matrix(self.n_items))
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
    def _new_items(self) -> NewItems | None:
        """Predictions by features for items without users; None if all have some."""
        axis = self._features_of("item")
        if axis is None or not axis.has_cold_rows:
            return None
        return NewItems.of(axis, self._weights, self.item_chances)

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
        """The weights of all regressions, and ones for neighbours and habits.

        Neighbours and habits have a score for each item already.
        """
        from scipy.sparse import eye_array, vstack

        if not self.neighbor_share and not self.habit:
            return CsrArrays(self.weight_indptr, self.weight_items, self.weight_values)
        blocks = [self._weights]
        same_item = eye_array(self.n_items, dtype=np.float32, format="csr")
        if self.neighbor_share:
            blocks.append(same_item)
        if self.habit:
            blocks.append(same_item)
        return kernels.csr_arrays(vstack(blocks, format="csr"))

    @property
    def _ordered_histories(self) -> Sparse:
        """The histories as a matrix of ones, in the order of time."""
        ones = np.ones(len(self.history_items), np.float32)
        return self._histories._replace(weights=ones).matrix(self.n_items)

    @property
    def _binary_histories(self) -> Sparse:
        """The histories as a matrix of ones, in the order of the items, as products need it."""
        histories: Sparse = self._ordered_histories.sorted_indices()
        return histories

    @property
    def _neighbors(self) -> TrainingUsers:
        """The users among whom neighbours are sought."""
        return self._source._training_users

    @cached_property
    def _training_users(self) -> TrainingUsers:
        return TrainingUsers.of(self._ordered_histories, self.history_ranks)

    def item_vectors(self) -> Floats:
        """Return vectors whose cosine is the similarity of two items, shape (n_items, k).

        They are the main directions of the histories without order.
        """
        return self._source._vectors

    @cached_property
    def _vectors(self) -> Floats:
        directions = main_directions(self._binary_histories, _DIRECTIONS)
        return (directions.vectors * directions.values).astype(np.float32)

    def contributions(
        self,
        history: Histories,
        items: ArrayLike,
        fitted: Ratings | None = None,
    ) -> Explanation:
        """Return the scores of `items` as sums over the items of the history."""
        from scipy.sparse import csr_array, vstack

        columns = check_indices(items, self.n_items, "item")
        order = order_of_time(history)
        user = self.with_users(history)
        rated = user._histories
        n_rated = len(rated.items)
        # A row for each item, and one without items: the score without a history.
        indptr = np.append(np.arange(n_rated + 1), n_rated)
        neighbors = profiles = None
        if self.neighbor_share:
            pairs = user._neighbors.pairs(rated, self.neighbors)
            without_items = csr_array((1, self.n_items), dtype=np.float32)
            of_items = pairs.terms(rated.items, np.unique(columns))
            neighbors = vstack([of_items, without_items], format="csr")
            features = self._source._new_items
            # The positions of items with users are zero.
            if features is not None and features.axis.positions[columns].any():
                products = pairs.products(rated.items, features.axis.loadings)
                profiles = np.pad(products, ((0, 1), (0, 0)))
        own = user.history_habits if self.habit else None
        form = user._form(rated, indptr, neighbors, profiles, own)
        shape = (n_rated + 1, len(columns))
        rows, places = np.indices(shape).reshape(2, -1)
        scores = form.pairs(rows, columns[places]).reshape(shape)
        base = scores[-1]
        terms = scores[:-1] - base
        in_given_order = np.empty_like(terms)
        in_given_order[order] = terms
        return Explanation(base, np.ascontiguousarray(in_given_order.T))


def _ranks(indptr: Indices, times: NDArray[Any]) -> Indices:
    """Return the place of each user in the order of the last times."""
    has_items = np.diff(indptr) > 0
    latest = np.full(len(indptr) - 1, -np.inf)
    latest[has_items] = times[indptr[1:][has_items] - 1]
    order = np.argsort(latest, kind="stable")
    return np.argsort(order)
