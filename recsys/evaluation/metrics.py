"""Metrics of predicted ratings and of recommendations, and their registry.

Ranking metrics are functions of arrays: the `lists` of recommended items, the `hits` among them,
`n_relevant` (at least 1), and others that `Metric` describes. They return one float64 value per
user, shape (n_users,), or NaN where a metric is undefined: some need at least one recommendation,
diversity needs two. Users without relevant test items have no ranking metrics, and are left out of
the means. ``p_i`` is the share of users who have rated item i in the training part.

Items with equal scores are in a random order, which differs between users.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, signature
from typing import Any, Literal, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from lowrank import truncated_svd
from recsys.accuracy import errors
from recsys.accuracy import ndcg as ndcg  # re-exported by the package
from recsys.accuracy import rmse as rmse
from recsys.data.arrays import AnyFloats, Doubles, Ints, Longs, Mask, positions_of
from recsys.data.ratings import Ratings, has_ratings, pair_keys
from recsys.errors import DataError, check_choice
from recsys.evaluation.splits import has_pairs

Counts = NDArray[np.integer[Any]]
Lists = Ints
"""Recommended items, shape (n_users, N), best first; -1 where a list is shorter than N."""

RANK = 32
"""Rank of the approximation of the binary matrix of ratings that defines item similarity."""

CORRECTED = "_ips"
"""Suffix of metrics that are corrected for exposure (see `recsys.evaluation.propensity`)."""

_TOL = 1e-3  # residual of its singular vectors; smaller ones change no printed digit


@dataclass(frozen=True)
class Metric:
    """A metric: its function, its definition in words, and its direction.

    Attributes
    ----------
    function : callable
        Function that returns one value per user. Its parameters are selected by name:

        - ``lists``, int32 ndarray of shape (n_users, N): indices of the recommended items, best
          first, padded with -1,
        - ``hits``, bool ndarray of the same shape: True for relevant items,
        - ``n_relevant``, int ndarray of shape (n_users,): number of relevant items,
        - ``grades``, float64 ndarray of the same shape as ``lists``: test ratings of the relevant
          items among the recommended ones, 0 elsewhere; for interactions, their weights,
        - ``ideal``, of the same shape: the user's highest test ratings in descending order,
          padded with 0,
        - ``highest``, float: the highest rating of the training part,
        - ``users``, int ndarray of shape (n_users,): indices of the users,
        - ``train``, the training `Ratings`, with ids and tables of users and items,
        - ``profile``, ``popularity``, ``information`` and ``vectors``: see `Catalogue`.

        In the registry, rmse and mae take predicted and actual ratings, and coverage and gini take
        the number of times that each item is recommended; these functions return a number.
    direction : {1, -1, 0}
        1 if higher values are better, -1 if lower ones are, 0 if it depends on the application.
    is_usual : bool
        Whether `evaluate` includes the metric by default.
    influence : callable, optional
        For a function of such counts: a function of lists and counts that returns the change of the
        metric when each user is left out, shape (n_users,), for the jackknife interval.
    """

    name: str
    function: Callable[..., Any]
    definition: str
    direction: int = 1
    influence: Callable[[Lists, Counts], Doubles] | None = None
    is_usual: bool = True

    def __post_init__(self) -> None:
        if self.direction not in (1, -1, 0):
            raise DataError(
                f"The direction of the metric {self.name} must be 1 if higher values are better, "
                f"-1 if lower ones are, or 0; got {self.direction!r}."
            )

    @cached_property  # looked up hundreds of times in an evaluation
    def needs(self) -> tuple[str, ...]:
        """Names of the parameters of the function that have no default."""
        arguments = signature(self.function).parameters.values()
        return tuple(
            argument.name
            for argument in arguments
            if argument.default is argument.empty
        )

    def _of_users(self, arrays: Mapping[str, Any]) -> Any:
        """Return the value of each user; `arrays` maps parameter names to arguments."""
        parameters = signature(self.function).parameters
        by_name = {name: _read_only(arrays[name]) for name in self.needs}
        by_place = [
            by_name.pop(name)
            for name in self.needs
            if parameters[name].kind is Parameter.POSITIONAL_ONLY
        ]
        return self.function(*by_place, **by_name)

    @property
    def scope(self) -> Literal["ratings", "exposure", "catalogue", "user"]:
        """Scope of the metric: ratings, the test items, all recommendations, or single users."""
        if "predicted" in self.needs:
            return "ratings"
        if "inverse_propensities" in self.needs:
            return "exposure"
        return "user" if self.influence is None else "catalogue"

    @property
    def uses_catalogue(self) -> bool:
        """True if the metric needs a `Catalogue` of the training ratings."""
        return not _OF_CATALOGUE.isdisjoint(self.needs)

    @property
    def is_sliced(self) -> bool:
        """True if the metric is of the list and the relevant items of a user alone."""
        is_plain = not self.name.endswith(CORRECTED)
        return is_plain and self.scope == "user" and not self.uses_catalogue

    @property
    def uses_grades(self) -> bool:
        """True if the metric needs the test ratings, or the users and their tables."""
        return not _OF_GRADES.isdisjoint(self.needs)


def _read_only(argument: Any) -> Any:
    """Return a view of an array that cannot be written: the next metric has the same array."""
    if isinstance(argument, np.ndarray):
        argument = argument.view()
        argument.flags.writeable = False
    return argument


_OF_CATALOGUE = {"profile", "popularity", "information", "vectors"}
_OF_LISTS = {"lists", "hits", "n_relevant"}
_OF_GRADES = {"grades", "ideal", "highest", "users", "train"}
_PERSISTENCE = 0.8  # probability that a user looks at the next item of a list
METRICS: dict[str, Metric] = {}
"""All metrics by name."""

_F = TypeVar("_F", bound=Callable[..., Any])


def _metric(
    name: str,
    definition: str,
    direction: int = 1,
    influence: Any = None,
    *,
    is_usual: bool = True,
) -> Callable[[_F], _F]:
    """Enter a function in `METRICS`."""

    def register(function: _F) -> _F:
        METRICS[name] = Metric(
            name, function, definition, direction, influence, is_usual
        )
        return function

    return register


MetricLike = str | Metric | Callable[..., Doubles]
"""Name in `METRICS`, `Metric`, or function as `Metric` describes it (higher is better)."""


def resolve_metrics(metrics: Sequence[MetricLike] | None) -> tuple[Metric, ...]:
    """Return metrics in the order of the registry, custom ones last; None returns the usual ones.

    Raises
    ------
    DataError
        If a metric is unknown, or a custom one has the name of another metric or a parameter that
        `Metric` does not list.
    """
    if metrics is None:
        return tuple(metric for metric in METRICS.values() if metric.is_usual)
    names: set[str] = set()
    custom: dict[str, Metric] = {}
    for requested in [metrics] if isinstance(metrics, str | Metric) else metrics:
        if isinstance(requested, str):
            check_choice("metric", requested, METRICS)
            names.add(requested)
            continue
        if not isinstance(requested, Metric):
            if not callable(requested):
                raise DataError(
                    f"A metric must be a name, a function or a Metric; got {requested!r}."
                )
            name = getattr(requested, "__name__", type(requested).__name__)
            text = getattr(requested, "__doc__", None) or "custom metric"
            requested = Metric(name, requested, text.strip().partition("\n")[0])
        is_new = requested.name not in {*METRICS, *custom}
        if not (is_new and requested.name.isidentifier()):
            hint = ""
            if requested.name == "<lambda>":
                hint = ": define it with def, or make it a Metric"
            raise DataError(
                f"A custom metric must have a new name; got {requested.name!r}{hint}."
            )
        available = _OF_LISTS | _OF_GRADES | _OF_CATALOGUE
        unknown = set(requested.needs) - available
        if unknown:
            raise DataError(
                f"The parameters of the metric {requested.name} must be among "
                f"{', '.join(sorted(available))}; got {', '.join(sorted(unknown))}."
            )
        custom[requested.name] = requested
    registered = (metric for name, metric in METRICS.items() if name in names)
    return (*registered, *custom.values())


_metric(
    "rmse",
    "square root of the mean squared difference of predicted and actual rating",
    -1,
)(rmse)


@_metric("mae", "mean absolute difference of predicted and actual rating", -1)
def mae(predicted: AnyFloats, actual: AnyFloats) -> float:
    """Return the mean absolute error over all ratings, ``mean(|p - x|)``."""
    return float(np.mean(np.abs(errors(predicted, actual))))


_metric(
    "rmse_warm", "rmse over test ratings of users and items with training ratings", -1
)(rmse)
_metric(
    "rmse_cold", "rmse over test ratings of users or items without training ratings", -1
)(rmse)


def hit_matrix(
    lists: Lists,
    users: Counts,
    relevant: Ratings,
) -> Mask:
    """Mark the recommendations that are relevant to their users, shape (n_users, N).

    Examples
    --------
    >>> relevant = Ratings.from_matrix(np.array([[np.nan, 1, 1], [1, np.nan, np.nan]]))
    >>> hit_matrix(np.array([[2, 0], [0, -1]], dtype=np.int32), np.array([0, 1]), relevant)
    array([[ True, False],
           [ True, False]])
    """
    # Padding of -1 makes the key of the last item of the user before: it is masked.
    keys = users[:, None] * np.int64(relevant.n_items) + lists
    return has_pairs(relevant, keys) & (lists >= 0)


def grades_of(
    lists: Lists,
    users: Counts,
    relevant: Ratings,
) -> Doubles:
    """Return the ratings of the recommended items that are relevant, and 0 for the others.

    Examples
    --------
    >>> relevant = Ratings.from_matrix(np.array([[np.nan, 2, 5], [1, np.nan, np.nan]]))
    >>> grades_of(np.array([[2, 0], [0, -1]], dtype=np.int32), np.array([0, 1]), relevant)
    array([[5., 0.],
           [1., 0.]])
    """
    keys = users[:, None] * np.int64(relevant.n_items) + lists
    positions = positions_of(keys, pair_keys(relevant))
    grades = relevant.values[positions].astype(np.float64)
    # Padding of -1 makes the key of the last item of the user before: it is masked.
    return np.where((positions >= 0) & (lists >= 0), grades, 0.0)


def highest_grades(
    n: int,
    users: Counts,
    relevant: Ratings,
) -> Doubles:
    """Return the n highest ratings of each user, descending, padded with 0.

    Examples
    --------
    >>> relevant = Ratings.from_matrix(np.array([[np.nan, 2, 5], [1, np.nan, np.nan]]))
    >>> highest_grades(2, np.array([0, 1]), relevant)
    array([[5., 2.],
           [1., 0.]])
    """
    rows = relevant.user_index_of_nonzeros()
    # Sorting within rows keeps the places of the rows.
    order = np.lexsort((-relevant.values, rows))
    ranks = np.arange(len(rows)) - relevant.indptr[rows]
    is_listed = ranks < n
    grades = np.zeros((relevant.n_users, n))
    grades[rows[is_listed], ranks[is_listed]] = relevant.values[order][is_listed]
    return np.asarray(grades[users])


@_metric("precision", "relevant items among the N recommended, divided by N")
def precision(hits: Mask) -> Doubles:
    """Return the precision at N, ``hits / N``, even if fewer are recommended or relevant."""
    return np.asarray(hits.sum(axis=1) / hits.shape[1])


@_metric(
    "recall",
    "relevant items among the N recommended, divided by the user's relevant items",
)
def recall(hits: Mask, n_relevant: Counts) -> Doubles:
    """Return the recall at N, ``hits / n_relevant``; below 1 if more than N are relevant."""
    return np.asarray(hits.sum(axis=1) / n_relevant)


@_metric("hit_rate", "1 if any of the N recommended items is relevant, else 0")
def hit_rate(hits: Mask) -> Doubles:
    """Return the hit rate at N, 0 or 1."""
    return np.asarray(hits.any(axis=1), dtype=np.float64)


@_metric(
    "map",
    "sum of the precision at the rank of each relevant recommended item, divided by "
    "min(N, number of the user's relevant items)",
)
def average_precision(hits: Mask, n_relevant: Counts) -> Doubles:
    """Return the average precision at N; its mean over users is MAP.

    ``sum over hits of precision at the hit's rank / min(N, n_relevant)``: 1 if the first
    ``min(N, n_relevant)`` items are hits. (trec_eval and ranx always divide by n_relevant.)

    Examples
    --------
    >>> average_precision(np.array([[True, False, True, False]]), np.array([2]))
    array([0.83333333])
    """
    n = hits.shape[1]
    # precision at rank r = (number of hits at ranks 1 to r) / r
    precisions = np.cumsum(hits, axis=1) / np.arange(1, n + 1)
    return np.asarray(
        np.where(hits, precisions, 0.0).sum(axis=1) / np.minimum(n, n_relevant)
    )


@_metric(
    "mrr",
    "1 / rank of the first relevant item among the N recommended, 0 if there is none",
)
def reciprocal_rank(hits: Mask) -> Doubles:
    """Return the reciprocal rank at N, ``1 / rank`` or 0; its mean over users is MRR."""
    # `argmax` finds the first hit, and 0 if there is none, hence the condition.
    return np.asarray(np.where(hits.any(axis=1), 1 / (1.0 + hits.argmax(axis=1)), 0.0))


_metric(
    "ndcg",
    "sum of 1 / log2(rank + 1) over relevant recommended items, divided by that sum over "
    "the ranks 1 to min(N, number of the user's relevant items)",
)(ndcg)


@_metric(
    "graded_ndcg",
    "sum of rating / log2(rank + 1) over relevant recommended items, divided by that sum over "
    "the user's N highest test ratings",
    is_usual=False,
)
def graded_ndcg(grades: Doubles, ideal: Doubles) -> Doubles:
    """Return the NDCG at N with ratings as gains; negative ratings count as 0.

    Järvelin and Kekäläinen (2002), "Cumulated gain-based evaluation of IR techniques".

    Examples
    --------
    >>> graded_ndcg(np.array([[0.0, 5.0]]), np.array([[5.0, 0.0]])).round(4)
    array([0.6309])
    """
    discounts = 1 / np.log2(np.arange(2, grades.shape[1] + 2))
    gain = np.maximum(grades, 0) @ discounts
    highest_gain = np.maximum(ideal, 0) @ discounts
    ratio = np.zeros(len(gain))
    return np.divide(gain, highest_gain, out=ratio, where=highest_gain > 0)


@_metric(
    "err",
    "expected 1 / rank of the item that satisfies a user who looks down the list: an item with "
    "rating g does with probability (2^g - 1) / 2^(highest rating)",
    is_usual=False,
)
def expected_reciprocal_rank(grades: Doubles, highest: float) -> Doubles:
    """Return the expected reciprocal rank at N.

    Chapelle et al. (2009), "Expected reciprocal rank for graded relevance".

    Examples
    --------
    >>> expected_reciprocal_rank(np.array([[1.0, 0.0], [0.0, 1.0]]), 1.0)
    array([0.5 , 0.25])
    """
    satisfies = np.exp2(np.maximum(grades, 0) - highest) - np.exp2(-highest)
    satisfies = np.clip(satisfies, 0, 1)
    goes_on = np.cumprod(1 - satisfies, axis=1)
    reaches = np.hstack([np.ones_like(goes_on[:, :1]), goes_on[:, :-1]])
    ranks = np.arange(1, grades.shape[1] + 1)
    return np.asarray((reaches * satisfies / ranks).sum(axis=1))


@_metric(
    "rbp",
    "sum of 0.2 x 0.8^(rank - 1) over relevant recommended items",
    is_usual=False,
)
def rank_biased_precision(hits: Mask) -> Doubles:
    """Return the rank-biased precision at N, for users who look at the next item with 80%.

    Moffat and Zobel (2008), "Rank-biased precision for measurement of retrieval
    effectiveness".

    Examples
    --------
    >>> rank_biased_precision(np.array([[True, False], [False, True]]))
    array([0.2 , 0.16])
    """
    weights = (1 - _PERSISTENCE) * _PERSISTENCE ** np.arange(hits.shape[1])
    return np.asarray(hits @ weights)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Statistics of the items in the training ratings.

    `popularity` is the share of the users with training ratings who have rated each item.
    `information` is its ``-log2``; items without ratings are treated as having one. Both have shape
    (n_items,). `vectors` are the `cooccurrence_vectors`.
    """

    popularity: Doubles
    information: Doubles
    vectors: Doubles

    @classmethod
    def of(cls, train: Ratings) -> Catalogue:
        """Compute the statistics of the training ratings."""
        counts = train.counts("item")
        n_users = max(1, int(np.count_nonzero(has_ratings(train))))
        # -log2(count / n_users)
        information = np.log2(n_users / np.maximum(counts, 1))
        return cls(counts / n_users, information, cooccurrence_vectors(train))

    def profile(self, seen: Ratings, users: Counts) -> Doubles:
        """Return the mean popularity of each user's rated items, or of all ratings if none."""
        rows = seen.user_index_of_nonzeros()
        sums = np.bincount(rows, self.popularity[seen.indices], seen.n_users)
        counts = seen.counts("user")
        everybody = float(sums.sum() / max(1, seen.n_ratings))
        means = np.full(seen.n_users, everybody)
        np.divide(sums, counts, out=means, where=counts > 0)
        return np.asarray(means[users])


def cooccurrence_vectors(train: Ratings, k: int = RANK) -> Doubles:
    """Return unit vectors of items, with high cosines between items that the same users rated.

    The vectors are the columns, scaled to unit length, of the best rank-k approximation of the
    binary matrix of ratings. The approximation suppresses chance co-occurrences. Items without
    ratings have zero vectors. The shape is (n_items, min(k, n_users, n_items)).
    """
    ones = np.ones(train.n_ratings, dtype=np.float32)
    rated_by = sp.csr_array((ones, train.indices, train.indptr), shape=train.shape)
    svd = truncated_svd(rated_by, min(k, *train.shape), tol=_TOL, random_state=0)
    # Column i of U S V' is U (S v_i): U keeps lengths and angles, so S v_i will do.
    vectors = svd.Vt.T.astype(np.float64) * svd.s
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    is_rated = train.counts("item") > 0
    where = (lengths > 0) & is_rated[:, None]
    units = np.zeros_like(vectors)
    return np.asarray(np.divide(vectors, lengths, out=units, where=where))


def recommended_counts(lists: Lists, n_items: int) -> Longs:
    """Count how often each item is recommended, shape (n_items,)."""
    return np.bincount(lists[lists >= 0], minlength=n_items)


def coverage_influence(lists: Lists, counts: Counts) -> Doubles:
    """Return minus the share of items recommended only to each user, shape (n_users,)."""
    # Padding of -1 would index the last item.
    is_only_list = (counts == 1)[lists] & (lists >= 0)
    return np.asarray(-np.count_nonzero(is_only_list, axis=1) / len(counts))


@_metric(
    "coverage",
    "share of the eligible items that are recommended to at least one user",
    0,
    coverage_influence,
)
def coverage(counts: Counts) -> float:
    """Return the catalogue coverage, the share of items recommended to at least one user."""
    return float(np.count_nonzero(counts) / len(counts))


@_metric(
    "novelty",
    "mean of -log2(share of users who have rated the item in the training part) over the "
    "recommended items",
    0,
)
def novelty(lists: Lists, information: Doubles) -> Doubles:
    """Return the mean self-information of each user's recommendations, ``mean(-log2 p_i)``.

    References
    ----------
    Zhou et al. (2010), "Solving the apparent diversity-accuracy dilemma of recommender systems".
    """
    lengths = np.count_nonzero(lists >= 0, axis=1)
    sums = _list_sums(lists, information[:, None])[:, 0]
    out = np.full(len(lists), np.nan)
    return np.asarray(np.divide(sums, lengths, out=out, where=lengths > 0))


@_metric(
    "diversity",
    "mean of 1 - cosine over the pairs of recommended items, between their columns in the best "
    f"rank-{RANK} approximation of the binary matrix of training ratings",
    0,
)
def diversity(lists: Lists, vectors: Doubles) -> Doubles:
    """Return the intra-list diversity: the mean of ``1 - cosine`` over pairs of recommended items.

    For a list of m items, ``sum over i != j of (1 - cos(v_i, v_j)) / (m (m - 1))``. It is computed
    from ``|sum v|^2 - sum |v|^2``, without a loop over pairs.

    References
    ----------
    Ziegler et al. (2005), "Improving recommendation lists through topic diversification".
    """
    lengths = np.count_nonzero(lists >= 0, axis=1)
    squares = np.square(vectors).sum(axis=1, keepdims=True)
    sums = _list_sums(lists, vectors)
    similarity = np.square(sums).sum(axis=1) - _list_sums(lists, squares)[:, 0]
    pairs = lengths * (lengths - 1)
    means = np.full(len(lists), np.nan)
    np.divide(similarity, pairs, out=means, where=pairs > 0)
    return np.asarray(1 - means)


def _list_sums(lists: Lists, values: Doubles) -> Doubles:
    """Sum the rows of `values` over each list, shape (n_users, k)."""
    is_item = lists >= 0
    lengths = np.count_nonzero(is_item, axis=1)
    indptr = np.append(0, np.cumsum(lengths))
    items = lists[is_item]
    shape = (len(lists), len(values))
    indicators = sp.csr_array((np.ones(len(items)), items, indptr), shape=shape)
    return np.asarray(indicators @ values)


def gini_influence(lists: Lists, counts: Counts) -> Doubles:
    """Return the change of the Gini index when each user is left out, shape (n_users,).

    Without a user, the counts of the user's items are lower by one. Let t items of the list share a
    count, and let a be the first rank of this count among the sorted counts. These items then take
    the ranks a, ..., a + t - 1, and the weighted sum decreases by ``a + (a + 1) + ... +
    (a + t - 1)``.
    """
    n_items = len(counts)
    ascending = np.sort(counts)
    # gini = (2 sum_i i c_i - (n + 1) sum_i c_i) / (n sum_i c_i), for ascending c_i
    weighted = float(np.arange(1, n_items + 1) @ ascending)
    is_item = lists >= 0
    rank_of = (np.searchsorted(ascending, counts) + 1).astype(np.int32)
    first = rank_of[lists]
    # Ranks begin at 1, so that 0 marks the padding of a list.
    first *= is_item
    first.sort(axis=1)
    is_first = np.ones(first.shape, dtype=np.bool_)
    # Equal counts are neighbours now: their ranks count on from the first of them.
    is_first[:, 1:] = first[:, 1:] != first[:, :-1]
    columns = np.arange(first.shape[1], dtype=np.int32)
    start_of_equals = np.maximum.accumulate(is_first * columns, axis=1)
    removed = (first + (columns - start_of_equals)) * (first > 0)
    total = ascending.sum() - np.count_nonzero(is_item, axis=1)
    numerator = 2 * (weighted - removed.sum(axis=1)) - (n_items + 1) * total
    after = np.divide(
        numerator, n_items * total, out=np.zeros(len(lists)), where=total > 0
    )
    return np.asarray(after - gini(counts))


@_metric(
    "gini",
    "Gini index of how often each eligible item is recommended: 0 if all equally often, near 1 "
    "if always the same few",
    0,
    gini_influence,
)
def gini(counts: Counts) -> float:
    """Return the Gini index of how often each item is recommended.

    With the counts sorted, c_1 <= ... <= c_m, zeros included::

        sum_j (2 j - m - 1) c_j / (m sum_j c_j)

    It is 0 if no item is recommended, and ``1 - 1 / m`` if only one is.

    Examples
    --------
    >>> gini(np.array([2, 0, 0, 0]))
    0.75
    """
    m, total = len(counts), int(counts.sum())
    if not total:
        return 0.0
    weights = 2 * np.arange(1, m + 1, dtype=np.int64) - m - 1
    return float(np.dot(weights, np.sort(counts)) / (m * total))


@_metric(
    "popularity_bias",
    "mean share of users who have rated the recommended items, minus the mean share for the "
    "items that the user has rated in the training part",
    0,
)
def popularity_bias(
    lists: Lists,
    popularity: Doubles,
    profile: Doubles,
) -> Doubles:
    """Return the excess popularity of recommendations over the items that the user has rated.

    ``mean over recommended items of p_i - mean over the user's training items of p_i``: 0 without
    a bias; 0.1 if recommended items have on average been rated by 10% more of all users.

    References
    ----------
    Abdollahpouri et al. (2019), "The unfairness of popularity bias in recommendation", section 3,
    who divide by the second mean instead of subtracting it. With the difference, users of rarely
    rated items do not dominate.
    """
    return novelty(lists, popularity) - profile
