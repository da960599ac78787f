"""Evaluation of models: fit to the training part of a split, measure on its test part."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lowrank.kernels import pieces
from lowrank.kernels.topk import Ties
from recsys.data.identity import fingerprint
from recsys.data.ratings import Ratings, has_items, has_ratings, restricted
from recsys.errors import DataError, check_choice, check_whole
from recsys.evaluation.metrics import (
    CORRECTED,
    METRICS,
    Catalogue,
    Doubles,
    Lists,
    Metric,
    MetricLike,
    grades_of,
    highest_grades,
    hit_matrix,
    recommended_counts,
    resolve_metrics,
)
from recsys.evaluation.positions import Positions
from recsys.evaluation.propensity import (
    SAMPLE_SIZE,
    Propensity,
    corrected,
    corrected_values,
    effective_sample_size,
    inverse_propensities,
)
from recsys.evaluation.reliability import reliability
from recsys.evaluation.results import (
    Evaluation,
    Measurement,
    claimed,
    fold_values,
    joined,
    summarize,
    value_names,
)
from recsys.evaluation.settings import Settings, SplitInfo
from recsys.evaluation.slices import Grouping, groupings
from recsys.evaluation.splits import (
    COLD,
    NOTHING_KNOWN,
    Repeats,
    Split,
    default_split,
)
from recsys.evaluation.staleness import stale_values
from recsys.models.abilities import FoldsInUsers
from recsys.models.base import Model, Step, predicted_ratings
from recsys.models.factor_form import FactorForm
from recsys.models.histories import Histories
from recsys.models.parts import Floats, Indices
from recsys.models.registry import MODELS, make_model, model_class
from recsys.predictions import clip_to_range
from recsys.ranking.filters import left_out
from recsys.ranking.lists import ListOptions
from recsys.ranking.rerank import best_items
from recsys.ranking.topn import (
    CsrPairs,
    Scorer,
    TopN,
    check_n,
    checked_scores,
    top_n,
    user_ties,
)
from recsys.recommender import Recommender

NO_FEATURES = ":no-features"
"""Suffix of a model name: fit the model without the features of the ratings."""


@dataclass(frozen=True, slots=True)
class WithoutFeatures:
    """Model to fit without the features of the ratings, for a comparison with the same one."""

    model: Model

    @property
    def name(self) -> str:
        """Name of the model with the suffix ``:no-features``."""
        return self.model.name + NO_FEATURES


ModelLike = Model | Recommender | WithoutFeatures | str
_BLOCK = 2**20  # recommendations measured together
_MOST_LISTS = 20_000  # for the reliability of chances
_BINS = 40  # bins of the histogram of residuals
OTHER_RATINGS = (
    "The training part of the split must be the ratings of the fitted recommender; "
    "shared_test({label: recommender.ratings}, test) makes such a split."
)
_OF_POSITIONS = ("hit_rate", "mrr", "ndcg")
# The order of equal scores has another seed: else candidates would precede the relevant items.
_OF_CANDIDATES = 0x5EED


def evaluate(
    models: Mapping[str, ModelLike] | Iterable[ModelLike] | ModelLike,
    split: Split | Ratings | Mapping[str, Split] | Iterable[Split],
    n: int | Sequence[int] = 10,
    *,
    relevant_from: float | None = None,
    candidates: int | None = None,
    new: Literal["drop", "keep"] = "drop",
    diversity: float = 0.0,
    positions: bool = False,
    repeats: Repeats | None = None,
    metrics: Sequence[MetricLike] | None = None,
    by: Sequence[str] = (),
    by_user: Sequence[str] = (),
    propensity: Propensity | None = None,
    features: bool | Sequence[str] = True,
    resamples: int = 1000,
    confidence: float = 0.95,
    random_state: int = 0,
    on_step: Callable[[str, Step], None] | None = None,
) -> Evaluation:
    """Fit each model to the training part and measure it on the test part.

    Predict a rating for every test pair, clipped to the range of the training ratings. Recommend
    items to every user with relevant test items, among all items that the user has not rated in
    the training part, or among all if the split keeps repeated pairs. If the split holds out whole
    items, recommend only these. Items with equal scores are in a random order, which differs
    between users.

    Parameters
    ----------
    models : mapping of label to model, iterable of models, or model
        Names; model objects, which are fitted in place; or a fitted `Recommender`, which is not
        fitted again: its ratings must be the training part. ``"als:no-features"`` and
        `WithoutFeatures` are fitted without the features of the training part.
    split : Split, Ratings, iterable of Split, or mapping of label to Split
        Ratings are split as the command does: the newest tenth is tested, or a random one
        without timestamps. Several splits are folds: a user's metrics are means over the folds
        that test the user. `time_cuts` makes some that show how fast models go stale. A mapping
        gives each model its own split, all with the same test ratings (see `shared_test`).
    n : int or sequence of int
        Lengths of the recommendations.
    relevant_from : float, optional
        Minimum rating of a relevant test item. By default, all test items are relevant.
    candidates : int, optional
        Number of random items among which each user's relevant items are ranked, by default all.
        Sampled metrics differ from those over all items (see `sample_candidates`).
    new : {"drop", "keep"}
        Whether to keep test ratings of users and items without training ratings. "drop" ignores
        them and never recommends such items; "keep" measures models on them, too.
    diversity : float
        Weight of diversity in the recommendations, from 0 to 1 (see `Recommender.recommend`).
    positions : bool
        Predict each event of each test history from what comes before it. Test users are
        folded in, so that they need no training ratings. With ``new="drop"``, items without
        training ratings are never recommended, and count as misses. A metric is a mean over
        positions; its interval and tests are over users. Always done if the split holds out
        whole sessions (see `sessions_split`).
    repeats : {"drop", "keep"}, optional
        Of `positions`: whether to leave out items that came before in the history, in the
        lists and as events to predict; by default as in the split.
    metrics : sequence of str, Metric or function, optional
        Names in `METRICS`, by default all (of positions, hit_rate, mrr and ndcg), and custom
        metrics: a `Metric`, or a function as it describes, such as ``first_hit`` below, whose
        higher values are better.
    by, by_user : sequence of str
        Columns of the table of items (or "popularity"), and of the table of users (or
        "activity"), by whose groups the metrics are listed in `Evaluation.slices`.
    propensity : str, Ratings or frame, optional
        Probability that a relevant test item was seen: ``"popularity:0.5"`` (that power of the
        number of training ratings, relative to the most popular item), a column of the table of
        items, or probabilities of pairs: `Ratings`, or a frame with the columns user, item and
        propensity. Adds ndcg_ips and others, as if all items had been shown equally often (see
        `recsys.evaluation.propensity`), and effective_sample_size, below 50 of which they have no
        value (see `Evaluation.remark`).
    features : bool or sequence of str
        Whether models that can use the tables of items and users of the training part, or the
        columns to use, as in `Recommender.fit`.
    resamples : int
        Number of bootstrap samples. With 0, intervals and tests are left out.
    confidence : float
        Confidence level of the intervals.
    random_state : int
        Seed of the candidates, the order of equal scores, the bootstrap and the tests.
    on_step : callable, optional
        Called with the label of the model and a `Step` after each iteration.

    Raises
    ------
    DataError
        If an argument is outside its range, two models have the same label, training and test
        ratings overlap or contradict the split's cut in time, no test item is relevant, or a model
        cannot use the ratings.

    Examples
    --------
    >>> import recsys
    >>> ratings = recsys.read_ratings(recsys.sample_path())
    >>> split = recsys.random_split(ratings, random_state=1)
    >>> def first_hit(hits):
    ...     return hits[:, 0]
    >>> found = evaluate(["popular", "random"], split, n=[5, 10], metrics=["ndcg", first_hit])
    >>> found.table.columns[:5]
    ['model', 'ndcg@5', 'ndcg@10', 'first_hit@5', 'first_hit@10']
    >>> found.comparisons["adjusted"].to_list()[:2]
    [0.0001, 0.0001]
    """
    labelled = _labelled(models)
    if isinstance(split, Ratings):
        split = default_split(split, random_state=random_state)
    several = isinstance(split, Iterable) and not isinstance(split, Split | Mapping)
    folds: Iterable[Any] = split if several else [split]
    if repeats is not None:
        check_choice("repeats", repeats, get_args(Repeats))
    first = split[0] if isinstance(split, list | tuple) and split else split
    if isinstance(first, Split) and first.method == "sessions":
        positions = True
    if positions:
        metrics = metrics or _OF_POSITIONS
    measured = resolve_metrics(metrics)
    if positions:
        _check_positions(measured, candidates)
        if by or by_user or propensity is not None:
            raise DataError(
                "Groups and propensities are of users' lists; leave out positions."
            )
    elif repeats is not None:
        raise DataError(
            "repeats needs positions=True; otherwise the split says what is left out."
        )
    ns = [n] if isinstance(n, str) or not isinstance(n, Iterable) else list(n)
    for length in ns:
        check_n(length)
    settings = Settings(
        ns=tuple(sorted({int(length) for length in ns})),
        relevant_from=relevant_from,
        candidates=candidates,
        new=new,
        resamples=resamples,
        confidence=confidence,
        random_state=random_state,
        diversity=diversity,
        positions=positions,
        propensity=None if propensity is None else _described(propensity),
    )
    ages = candidates is None and not positions and METRICS["ndcg"] in measured
    of_first_cut: dict[str, tuple[Model, RankingTask]] = {}
    runs: dict[str, list[Measurement]] = {label: [] for label in labelled}
    infos: list[SplitInfo] = []
    mark = ""
    first_label = next(iter(labelled))
    groups: list[Grouping] = []
    for fold in folds:
        # Models often share a split, which is then prepared once.
        prepared: dict[tuple[int, int], RankingTask] = {}
        for label, model in labelled.items():
            fold_split = fold.get(label) if isinstance(fold, Mapping) else fold
            if not isinstance(fold_split, Split):
                raise DataError(
                    f"split must be a Split or several; got {type(fold_split).__name__} for "
                    f"{label!r}. Make one from Ratings by random_split and others, or from "
                    "training and test ratings by split_from_pair."
                )
            # By position, a fitted model has the items of its own training ratings.
            fitted = None
            if positions and isinstance(model, Recommender):
                fitted = model.ratings
            key = id(fold_split), id(fitted)
            task = prepared.get(key)
            if task is None:
                # Training parts of fitted models keep their users and items.
                as_is = isinstance(fold, Mapping) or any(
                    isinstance(other, Recommender)
                    and other.ratings.shape == fold_split.train.shape
                    for other in labelled.values()
                )
                featured = _with_features(fold_split, labelled.values(), features)
                if positions:
                    task, info = prepare_positions(featured, settings, repeats, fitted)
                else:
                    task, info = _prepare(featured, settings, measured, as_is=as_is)
                if propensity is not None:
                    seen = inverse_propensities(
                        propensity, task.split.train, task.relevant
                    )
                    task = replace(task, inverse=seen)
                if not prepared:
                    infos.append(info)
                mark = mark or fingerprint(*fold_split.parts)
                prepared[key] = task
            listen = None if on_step is None else partial(on_step, label)
            train = task.split.train
            # All models have the groups of the first one, so that tests are paired.
            if label == first_label:
                groups = groupings(train, by, by_user, groups)
            aligned = [group.aligned(train.axis(group.side).ids) for group in groups]
            run, last = _measure(
                model,
                task,
                settings.ns,
                measured,
                listen,
                aligned,
                0.0 if runs[label] else confidence,
            )
            if label in of_first_cut:
                stale = _stale(*of_first_cut[label], task, settings.ns)
                stale = stale.join(run.values, on="user", suffix=" refit")
                run = replace(run, stale=stale)
            elif ages and "windows" in fold_split.parameters:
                # Another fit sets other arrays, and leaves those of the copy.
                of_first_cut[label] = copy.copy(last), task
            runs[label].append(run)
    if not infos:
        raise DataError("split must hold at least one Split; got none.")
    if infos[0].method in COLD:  # these splits test new users or items
        settings = replace(settings, new="keep")
    if propensity is not None:
        measured = (*measured, *corrected(measured), SAMPLE_SIZE)
    of_folds = {
        label: claimed(joined(measurements, weighted=positions))
        for label, measurements in runs.items()
    }
    pairs = {
        label: [run.stale for run in measurements]
        for label, measurements in runs.items()
    }
    frames = summarize(of_folds, measured, settings)
    # Without a value, a corrected metric has no row.
    kinds = {*frames["metrics"]["kind"]}
    described = [
        metric
        for metric in measured
        if metric.name in kinds or not metric.name.endswith(CORRECTED)
    ]
    return Evaluation(
        **frames,
        folds=fold_values(
            {
                label: [claimed(run) for run in of_model]
                for label, of_model in runs.items()
            },
            measured,
            settings,
        ),
        staleness=stale_values(pairs, infos, settings),
        steps={label: run.steps for label, run in of_folds.items()},
        measured={metric.name: metric for metric in described},
        settings=settings,
        splits=tuple(infos),
        counts={
            name: sum(info.counts[name] for info in infos) for name in infos[0].counts
        },
        fingerprint=mark,
        parameters={label: run.parameters for label, run in of_folds.items()},
        timed=tuple(label for label, run in of_folds.items() if run.timed),
    )


def _described(propensity: Propensity) -> str:
    """Return the propensity as text, for the settings of an evaluation."""
    return propensity if isinstance(propensity, str) else "of pairs"


def _check_positions(metrics: Sequence[Metric], candidates: int | None) -> None:
    """Check that the metrics of positions are of single lists."""
    if candidates is not None:
        raise DataError("positions are ranked among all items; leave out candidates.")
    for metric in metrics:
        if metric.scope != "user" or metric.uses_catalogue or metric.uses_grades:
            raise DataError(
                f"{metric.name} does not apply to positions; {', '.join(_OF_POSITIONS)} do, "
                "and functions of lists, hits and n_relevant."
            )


def _labelled(
    models: Mapping[str, ModelLike] | Iterable[ModelLike] | ModelLike,
) -> dict[str, ModelLike]:
    labelled: dict[str, Any] = {}
    if isinstance(models, Mapping):
        labelled = dict(models)
    else:
        several = isinstance(models, Iterable) and not isinstance(models, str)
        listed: Any = models if several else [models]
        for model in listed:
            named = model.model if isinstance(model, Recommender) else model
            label = named if isinstance(named, str) else getattr(named, "name", None)
            if label is None or isinstance(model, type):
                raise DataError(
                    f"A model must be a name or a model object; got {model!r}."
                )
            if label in labelled:
                raise DataError(
                    f"Two models are named {label!r}; pass a mapping with a label for each."
                )
            labelled[label] = model
    if not labelled:
        raise DataError("models must hold at least one model; got none.")
    return labelled


@dataclass(frozen=True)
class RankingTask:
    """Task of recommending n items to each user with relevant test items.

    `relevant` holds the relevant test ratings, and `users` the users who have any. Without
    `candidates`, the items to rank are the `allowed` ones that the user has not rated in the
    training part. If the split holds out whole items or users, only their ratings are relevant; if
    it holds out items, only these are allowed. Items with equal scores are in a random order, which
    differs between users; `random_state` is its seed. With `positions`, there is a list for each
    of them instead of each user.
    """

    split: Split
    relevant: Ratings
    users: Indices
    n: int
    candidates: CsrPairs | None = None
    catalogue: Catalogue | None = None
    allowed: NDArray[np.bool_] | None = None
    diversity: float = 0.0
    random_state: int = 0
    positions: Positions | None = None
    inverse: Ratings | None = None  # 1 / propensity of the relevant test ratings

    @classmethod
    def of(
        cls,
        split: Split,
        n: int,
        relevant_from: float | None = None,
        candidates: int | None = None,
        random_state: int = 0,
        *,
        catalogue: bool = False,
        only_rated: bool = False,
        diversity: float = 0.0,
    ) -> RankingTask:
        """Make the task of a split; arguments as in `evaluate`.

        With `only_rated`, items without training ratings are not recommended.

        Raises
        ------
        DataError
            If no test rating is relevant, or `candidates` is not a whole number from 1.
        """
        relevant = split.test
        if not relevant.n_ratings:
            raise DataError("There are no test ratings to evaluate models on.")
        if split.method in COLD:
            # The other ratings are held out for the comparison of errors only.
            relevant = relevant.take(split.is_new)
        if relevant_from is not None:
            relevant = relevant.take(relevant.values >= relevant_from)
        users = np.flatnonzero(relevant.counts("user"))
        if not len(users):
            raise DataError(
                f"No test rating is {relevant_from} or more, so no item is relevant."
            )
        allowed = None
        rated = has_items(split.train)
        if split.method == "items":
            allowed = ~rated
        elif only_rated and not rated.all():
            allowed = rated
        drawn = None
        if candidates is not None:
            drawn = sample_candidates(
                split, relevant, candidates, random_state, allowed
            )
        return cls(
            split,
            relevant,
            users,
            n,
            candidates=drawn,
            catalogue=Catalogue.of(split.train) if catalogue else None,
            allowed=allowed,
            diversity=diversity,
            random_state=random_state,
        )

    @property
    def n_lists(self) -> int:
        """Number of lists: of the users, or of the positions."""
        return len(self.users) if self.positions is None else len(self.positions)

    @property
    def n_relevant(self) -> NDArray[np.int64]:
        """Number of relevant items of each list, shape (n_lists,)."""
        if self.positions is not None:
            return np.ones(self.n_lists, np.int64)
        return self.relevant.counts("user")[self.users]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of relevant items of each test user, or of positions."""
        if self.positions is not None:
            return self.positions.counts
        return self.relevant.counts("user")

    def hits(self, rows: slice, lists: Lists) -> NDArray[np.bool_]:
        """Mark the relevant items in some of the lists."""
        if self.positions is None:
            return hit_matrix(lists, self.users[rows], self.relevant)
        # Padding is -1, as an unknown target is, and never a hit.
        targets = self.positions.targets[rows]
        return np.equal(lists, targets[:, None]) & (lists >= 0)

    def of_users(self, values: Doubles) -> Doubles:
        """Return a value of each list by test user, NaN for users without lists."""
        if self.positions is not None:
            return self.positions.means(values)
        of_users = np.full(self.split.test.n_users, np.nan)
        of_users[self.users] = values
        return of_users

    def recommend(self, model: Model) -> Lists:
        """Return the n best items of each list, padded with -1, shape (n_lists, n).

        The model has the test users, or with `positions`, folds in the history at each.
        """
        return self.scored_lists(model)[0]

    def scored_lists(self, model: Model) -> tuple[Lists, Floats]:
        """Return lists as `recommend`, and the scores of their items, padded with NaN."""
        lists = np.full((self.n_lists, self.n), -1, dtype=np.int32)
        scores = np.full(lists.shape, np.nan, np.float32)
        hashes = self.split.test.users.hashes
        drops = self.split.repeats == "drop"
        if self.positions is None:
            seen_pairs = None
            if self.candidates is None and drops:
                seen_pairs = left_out(self.split.seen)
            of_users = hashes[self.users]
            self._fill(lists, scores, model, self.users, seen_pairs, of_users)
            return lists, scores
        folding: Any = model  # as `check_folding` has checked
        places = self.positions.places - self.positions.starts
        hashes = hashes[self.positions.users] ^ places.astype(np.uint64)
        for block in self.positions.blocks():
            histories = self.positions.histories(block)
            served = folding.with_users(histories)
            seen_pairs = None
            if drops:
                seen_pairs = CsrPairs(histories.indptr, histories.indices)
            users = np.arange(histories.n_rows)
            self._fill(
                lists[block], scores[block], served, users, seen_pairs, hashes[block]
            )
        return lists, scores

    def _fill(
        self,
        lists: Lists,
        scores: Floats,
        model: Model,
        users: Indices,
        exclude: CsrPairs | None,
        hashes: NDArray[np.uint64],
    ) -> None:
        """Fill lists with the best items of users of a model; `hashes` order equal scores."""
        scorer: Scorer = model
        if self.candidates is not None:
            scorer = _Among(model, self.candidates)
        ties = user_ties(self.split.test.items.hashes, hashes, self.random_state)

        def search(queries: Indices, n: int) -> Iterator[TopN]:
            return top_n(
                scorer,
                users[queries],
                n,
                exclude=exclude,
                allowed=self.allowed,
                ties=ties.take(queries),
            )

        queries = np.arange(len(users))
        options = ListOptions(diversity=self.diversity)
        train = self.split.train
        for top in best_items(search, queries, self.n, train, options, model):
            lists[top.rows, top.ranks - 1] = top.items
            scores[top.rows, top.ranks - 1] = top.scores


def sample_candidates(
    split: Split,
    relevant: Ratings,
    n: int,
    random_state: int = 0,
    allowed: NDArray[np.bool_] | None = None,
) -> CsrPairs:
    """Draw candidates: each user's relevant items, and n others that the user has not rated.

    The others are drawn without replacement from the `allowed` items, a bool ndarray of shape
    (n_items,), by default all. A user with fewer than n unrated items gets all of them. The draw
    depends on the ids of the user and the items and on `random_state`, not on the order of ids, so
    that a saved model and a new one rank the same candidates.

    Sampled metrics differ from those over all items, and may order models differently: they measure
    how well a model separates relevant items from random ones.

    Raises
    ------
    DataError
        If n is not a whole number, or below 1.

    References
    ----------
    Krichene and Rendle (2020), "On sampled metrics for item recommendation".
    """
    check_whole("candidates", n, 1)

    def items_of(ratings: Ratings, user: int) -> NDArray[np.int32]:
        part = slice(ratings.indptr[user], ratings.indptr[user + 1])
        return np.asarray(ratings.indices[part])

    item_hashes = split.test.items.hashes
    user_hashes = split.test.users.hashes
    draws = user_ties(item_hashes, user_hashes, random_state + _OF_CANDIDATES)
    rows = [relevant.indices[:0]] * relevant.n_users
    for user in np.flatnonzero(relevant.counts("user")).tolist():
        eligible = np.ones(relevant.n_items, np.bool_)
        if allowed is not None:
            eligible = allowed.copy()
        # Also test items that are not relevant: the user has rated them.
        eligible[items_of(split.test, user)] = False
        if split.repeats == "drop":
            eligible[items_of(split.seen, user)] = False
        drawn = draw_items(draws, user, np.flatnonzero(eligible), n)
        rows[user] = np.concatenate([items_of(relevant, user), drawn])
    indptr = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return CsrPairs(indptr, np.concatenate(rows))


def draw_items(
    draws: Ties,
    user: int,
    eligible: Indices,
    n: int,
) -> NDArray[np.int32]:
    """Draw n of the eligible items, or all if they are fewer: the first in the user's order."""
    ranks = draws.places(np.full(len(eligible), user), eligible)
    if n < len(eligible):
        eligible = eligible[np.argpartition(ranks, n)[:n]]
    return eligible.astype(np.int32)


class _Among:
    """`Scorer` of each user's candidates."""

    def __init__(self, model: Scorer, candidates: CsrPairs) -> None:
        self._model, self._candidates = model, candidates
        self.n_items = model.n_items
        self.pair_scores, self._score_error = model.pair_scores, model._score_error

    def scores(self, users: Indices) -> NDArray[np.floating[Any]]:
        """Return the scores of all items, minus infinity for items other than candidates."""
        scores = checked_scores(self._model, users)
        excluded = np.ones(scores.shape, np.bool_)
        excluded[self._candidates(users)] = False
        scores[excluded] = -np.inf
        return scores

    def _factor_form(self, users: Indices) -> FactorForm | None:
        return None  # the compiled search has the same candidates for all users


def _prepare(
    split: Split,
    settings: Settings,
    metrics: Sequence[Metric],
    *,
    as_is: bool = False,
) -> tuple[RankingTask, SplitInfo]:
    """Check the split, apply the policy on new users and items, and count ratings and users."""
    split.check()
    drops = settings.new == "drop" and split.method not in COLD
    used = split
    if drops and as_is:
        history = split.history
        if history is not None:
            history = history.take(has_items(split.train)[history.indices])
        used = replace(split, test=split.test.take(~split.is_new), history=history)
    elif drops:
        used = split.without_new()
    if split.test.n_ratings and not used.test.n_ratings:
        raise DataError(NOTHING_KNOWN)
    task = RankingTask.of(
        used,
        settings.ns[-1],
        settings.relevant_from,
        settings.candidates,
        settings.random_state,
        catalogue=any(metric.uses_catalogue for metric in metrics),
        only_rated=drops,
        diversity=settings.diversity,
    )
    counts = {
        "train_ratings": used.train.n_ratings,
        "test_ratings": used.test.n_ratings,
        "users_evaluated": len(task.users),
        "users_without_test_items": used.seen.n_users - len(task.users),
    }
    return task, _info(split, counts)


def prepare_positions(
    split: Split,
    settings: Settings,
    repeats: Repeats | None = None,
    fitted: Ratings | None = None,
) -> tuple[RankingTask, SplitInfo]:
    """Check the split, take the positions of its test part, and count them.

    `fitted` has the training ratings of a fitted model; other models are fitted as they are
    served, to the users and items that have training ratings.
    """
    split.check()
    drops = settings.new == "drop"
    is_trained = has_items(split.train)
    if drops and not is_trained[split.test.indices].any():
        raise DataError(NOTHING_KNOWN)
    train = split.train
    if fitted is not None:
        train = fitted
        if fingerprint(fitted) != fingerprint(split.train):
            raise DataError(OTHER_RATINGS)
    elif drops:
        train = restricted(train, has_ratings(train), is_trained)
    item_indices = train.items.find(split.test.items.values)
    if drops:
        item_indices[~is_trained] = -1
    has_item = item_indices >= 0
    test, seen = (
        part.take(has_item[part.indices]).renumbered(part.users, train.items)
        for part in (split.test, split.seen)
    )
    rated = has_items(train)
    allowed = rated if drops and not rated.all() else None
    used = replace(
        split, train=train, test=test, history=seen, repeats=repeats or split.repeats
    )
    positions = Positions.of(
        split,
        item_indices,
        train.n_items,
        used.repeats,
        settings.relevant_from,
        settings.random_state,
    )
    users = np.flatnonzero(positions.counts)
    counts = {
        "train_ratings": train.n_ratings,
        "test_ratings": split.test.n_ratings,
        "positions": len(positions),
        "new_targets": int(np.count_nonzero(positions.targets < 0)),
        "users_evaluated": len(users),
        "users_without_test_items": split.seen.n_users - len(users),
    }
    task = RankingTask(
        used,
        test,
        users,
        settings.ns[-1],
        allowed=allowed,
        diversity=settings.diversity,
        random_state=settings.random_state,
        positions=positions,
    )
    return task, replace(_info(split, counts), repeats=used.repeats)


def _info(split: Split, counts: dict[str, int]) -> SplitInfo:
    """Return the description of a split, with more counts."""
    counts |= {
        "new_users": split.new_users,
        "new_items": split.new_items,
        "new_ratings": split.new_ratings,
        "known_pairs": split.n_known,
    }
    return SplitInfo(
        split.method,
        split.parameters,
        split.description,
        counts,
        split.repeats,
        split.train.implicit,
    )


def _with_features(
    split: Split,
    models: Iterable[ModelLike],
    features: bool | Sequence[str],
) -> Split:
    """Return the split with features of the training part, if a model to fit uses them."""
    train = split.train
    if features is False or (train.item_table is None and train.user_table is None):
        return split
    for model in models:
        if isinstance(model, str) and not model.endswith(NO_FEATURES):
            model = make_model(model)
        if isinstance(model, Model) and model.uses_features:
            from recsys.features.selection import with_usual_features  # slow import

            train = with_usual_features(train, features, unrated=False)
            return replace(split, train=train)
    return split


def check_folding(model: Model, split: Split) -> None:
    """Check that a model can fold in the users of a split's history, if there is one.

    Raises
    ------
    DataError
        If it cannot; the message lists the models that can.
    """
    has_new_users = split.history is not None or split.method == "sessions"
    if not has_new_users or isinstance(model, FoldsInUsers):
        return
    names = ", ".join(
        sorted(m for m in MODELS if hasattr(model_class(m), "with_users"))
    )
    raise DataError(
        f"The {model.name} model cannot fold in new users, as a split by users or an evaluation "
        f"by position requires; these models can: {names}."
    )


def with_history(model: Model, history: Ratings | None) -> Model:
    """Return the model with the test users folded in from their histories, if there are any."""
    if history is None or not isinstance(model, FoldsInUsers):
        return model
    return model.with_users(Histories.of(history))


def _fitted(
    model: ModelLike,
    split: Split,
    on_step: Callable[[Step], None] | None,
) -> tuple[Recommender, tuple[Step, ...]]:
    """Return the model, fitted to the training part unless it is fitted, and its iterations."""
    train = split.train
    if isinstance(model, str) and model.endswith(NO_FEATURES):
        model = WithoutFeatures(make_model(model.removesuffix(NO_FEATURES)))
    if isinstance(model, WithoutFeatures):
        model = model.model
        train = replace(train, item_features=None, user_features=None)
    recommender = model if isinstance(model, Recommender) else Recommender(model)
    check_folding(recommender.model, split)
    steps: list[Step] = []

    def listen(step: Step) -> None:
        steps.append(step)
        if on_step is not None:
            on_step(step)

    if recommender is not model:
        recommender.fit(train, features=False, on_step=listen)
    elif not (
        recommender.ratings.shape == train.shape
        and np.array_equal(recommender.ratings.indptr, train.indptr)
        and np.array_equal(recommender.ratings.indices, train.indices)
        and np.array_equal(recommender.ratings.values, train.values)
    ):
        raise DataError(OTHER_RATINGS)
    return recommender, tuple(steps)


def _measure(
    model: ModelLike,
    task: RankingTask,
    ns: Sequence[int],
    metrics: Sequence[Metric],
    on_step: Callable[[Step], None] | None,
    groups: Sequence[Grouping] = (),
    confidence: float = 0.0,
) -> tuple[Measurement, Model]:
    """Fit a model to the training part, unless it is fitted, and measure it on the test part.

    The fitted model is returned, too.
    """
    split = task.split
    test = split.test
    start = time.perf_counter()
    recommender, steps = _fitted(model, split, on_step)
    fit_seconds = time.perf_counter() - start
    served = recommender.model
    if task.positions is None:
        served = with_history(served, split.history)
    lists = scores = None
    if any(metric.scope != "ratings" for metric in metrics):
        lists, scores = task.scored_lists(served)
    recommend_seconds = time.perf_counter() - start - fit_seconds

    n_users = test.n_users
    columns: dict[str, Any] = {
        "relevant": task.counts,
        "ratings": test.counts("user") if task.positions is None else task.counts,
        "squared_error": np.full(n_users, np.nan),
        "absolute_error": np.full(n_users, np.nan),
    }
    residuals = errors = None
    training = recommender.training
    timed = False
    overall: dict[str, float] = {}
    predicts = (
        not training["implicit"] and not test.implicit and served.predicts_ratings
    )
    if predicts and task.positions is None:
        timed = served.uses_times and test.seconds is not None
        rows = test.user_index_of_nonzeros()
        predicted = clip_to_range(predicted_ratings(served, test), training)
        errors = np.subtract(predicted, test.values, dtype=np.float64)
        columns["squared_error"] = np.bincount(rows, errors**2, n_users)
        columns["absolute_error"] = np.bincount(rows, np.abs(errors), n_users)
        if split.method in COLD:
            for part, mask in (("warm", ~split.is_new), ("cold", split.is_new)):
                squares = np.bincount(rows[mask], errors[mask] ** 2, n_users)
                columns[f"{part}_squared_error"] = squares
                columns[f"{part}_ratings"] = np.bincount(rows[mask], minlength=n_users)
        # The bins cover residuals of up to the range of the ratings in either direction.
        width = training["rating_max"] - training["rating_min"] or 1.0
        edges = np.linspace(-width, width, _BINS + 1)
        counts, _ = np.histogram(np.clip(errors, -width, width), edges)
        residuals = pl.DataFrame(
            {"low": edges[:-1], "high": edges[1:], "count": counts}
        )
    slices = reliable = None
    if lists is not None and scores is not None:
        # Positions and candidates have other chances than lists for users.
        if confidence and task.positions is None and task.candidates is None:
            # More lists would not make the bins more exact.
            sample = slice(None, None, -(-len(lists) // _MOST_LISTS))
            hits = task.hits(sample, lists[sample])
            reliable = reliability(scores[sample], hits, confidence)
        by_list, overall = measure_lists(lists, task, ns, metrics)
        for name, values in by_list.items():
            columns[name] = task.of_users(values)
        if task.inverse is not None:
            variants = corrected(metrics)
            by_user = corrected_values(lists, task.users, task.inverse, ns, variants)
            for name, values in by_user.items():
                columns[name] = task.of_users(values)
            weights = task.inverse.values.astype(np.float64)
            overall[SAMPLE_SIZE.name] = effective_sample_size(weights)
        if groups:
            slices = _sliced(groups, lists, task, ns, metrics, by_list, errors)
    users = np.flatnonzero(columns["ratings"])
    series = {
        name: pl.Series(of_users[users], nan_to_null=True)
        for name, of_users in columns.items()
    }
    measurement = Measurement(
        pl.DataFrame({"user": test.users.take(users), **series}),
        overall,
        residuals,
        steps,
        fit_seconds,
        recommend_seconds,
        recommender.model.get_params(),
        timed,
        slices,
        reliable,
    )
    return measurement, recommender.model


def _stale(
    model: Model,
    first: RankingTask,
    task: RankingTask,
    ns: Sequence[int],
) -> pl.DataFrame:
    """Return the NDCG in a later window of a model of the first cut, for users it knows.

    Users had the items before the window, also those since the first cut.
    """
    old, split = first.split.train, task.split
    old_users = old.users.find(split.test.users.values)
    is_known = (old_users >= 0) & has_ratings(old)[old_users]
    rows = np.flatnonzero(is_known[task.users])
    is_old_item = old.items.find(split.test.items.values) >= 0
    seen, test = (
        restricted(part, old_users >= 0, is_old_item)
        for part in (split.train, split.test)
    )
    earlier = replace(
        first,
        split=replace(split, train=seen, test=test),
        users=old_users[task.users[rows]],
    )
    lists = earlier.recommend(model)
    # Items have other indices in the later window.
    items = split.test.items.find(old.items.values)
    listed = np.where(lists >= 0, items[lists], -1).astype(np.int32)
    later = replace(task, users=task.users[rows], catalogue=None)
    values, _ = measure_lists(listed, later, ns, [METRICS["ndcg"]])
    users = split.test.users.take(later.users)
    return pl.DataFrame({"user": users, **values})


def _sliced(
    groups: Sequence[Grouping],
    lists: Lists,
    task: RankingTask,
    ns: Sequence[int],
    metrics: Sequence[Metric],
    of_all: dict[str, Doubles],
    errors: Doubles | None,
) -> pl.DataFrame:
    """Return the metrics of each user in each group of users, or for each group of items.

    For a group of items, only its items are relevant. Its share of the lists is the exposure, and
    its share of the relevant items the relevance, of each user. The `errors` of test ratings are
    summed over the ratings of the users, or of the items.
    """
    test = task.split.test
    of_ratings = {"user": test.user_index_of_nonzeros(), "item": test.indices}
    of_lists = [metric for metric in metrics if metric.is_sliced]
    names = [name for *_, name in value_names(of_lists, ns)]
    parts = []
    for group, number in ((g, at) for g in groups for at in range(len(g.names))):
        is_member = group.members[number]
        part = task
        if group.side == "user":
            rows = np.flatnonzero(is_member[task.users])
            values = {name: of_all[name][rows] for name in names}
            exposure = relevance = np.full(len(rows), np.nan)
        else:
            # The lists stay as they are: hits are counted among the items of the group.
            relevant = task.relevant.take(is_member[task.relevant.indices])
            n_relevant = relevant.counts("user")[task.users]
            rows = np.flatnonzero(n_relevant)
            part = replace(task, relevant=relevant, users=task.users[rows])
            values, _ = measure_lists(lists[rows], part, ns, of_lists)
            is_listed = lists[rows] >= 0
            n_listed = np.maximum(is_listed.sum(axis=1), 1)
            exposure = (is_listed & is_member[lists[rows]]).sum(axis=1) / n_listed
            relevance = n_relevant[rows] / task.n_relevant[rows]
        is_rated = is_member[of_ratings[group.side]]
        sums = {"ratings": is_rated.astype(np.float64)}
        if errors is not None:
            sums["squared_error"] = is_rated * errors**2
            sums["absolute_error"] = is_rated * np.abs(errors)
        of_users = {
            name: np.bincount(of_ratings["user"], values, test.n_users)
            for name, values in sums.items()
        }
        columns: dict[str, Any] = {
            "user": test.users.take(task.users[rows]),
            **{name: total[task.users[rows]] for name, total in of_users.items()},
            **{name: values[name] for name in names},
            "exposure": exposure,
            "relevance": relevance,
        }
        keys = [pl.lit(text).alias(key) for key, text in group.keys(number).items()]
        if len(rows):
            parts.append(pl.DataFrame(columns).select(*keys, pl.all()))
    if not parts:
        raise DataError("No test user is in any of the groups.")
    return pl.concat(parts)


def measure_lists(
    lists: Lists,
    task: RankingTask,
    ns: Sequence[int],
    metrics: Sequence[Metric],
) -> tuple[dict[str, Doubles], dict[str, float]]:
    """Return the metrics of each of the task's lists, and of all lists together.

    `lists` has shape (n_lists, N), and no length in `ns` exceeds N. A metric of all lists together
    refers to the allowed items; its array of users holds its change when the user is left out.

    Raises
    ------
    DataError
        If a custom metric does not return one value per user.
    """
    catalogue = task.catalogue
    n_items = task.split.train.n_items
    listed = lists
    if task.allowed is not None:  # number the allowed items only
        n_items = int(np.count_nonzero(task.allowed))
        numbers = np.append(np.cumsum(task.allowed) - 1, -1)
        listed = numbers.astype(np.int32)[lists]
    aligned: dict[str, NDArray[Any]] = {"n_relevant": task.n_relevant}
    arrays: dict[str, Any] = {}
    if catalogue is not None:
        aligned["profile"] = catalogue.profile(task.split.seen, task.users)
        arrays = {name: getattr(catalogue, name) for name in catalogue.__slots__}
    if any(metric.uses_grades for metric in metrics):
        train = task.split.train
        aligned["users"] = task.users
        arrays |= {"train": train, "highest": float(train.values.max())}
    counts = {n: recommended_counts(listed[:, :n], n_items) for n in ns}
    of_lists = [metric for metric in metrics if metric.scope != "ratings"]
    blocks: dict[str, list[Doubles]] = {
        f"{metric.name}@{n}": [] for metric in of_lists for n in ns
    }
    step = max(1, _BLOCK // lists.shape[1])  # limits temporary arrays
    for rows in pieces(len(lists), step):
        hits = task.hits(rows, lists[rows])
        arrays |= {name: values[rows] for name, values in aligned.items()}
        for metric, n in itertools.product(of_lists, ns):
            arrays |= {"lists": lists[rows, :n], "hits": hits[:, :n]}
            if metric.uses_grades:
                users = task.users[rows]
                arrays["grades"] = grades_of(lists[rows, :n], users, task.relevant)
                arrays["ideal"] = highest_grades(n, users, task.relevant)
            if metric.influence is None:
                metric_values = metric._of_users(arrays)
            else:
                metric_values = metric.influence(listed[rows, :n], counts[n])
            values = np.asarray(metric_values, dtype=np.float64)
            if values.shape != hits.shape[:1]:
                raise DataError(
                    f"The metric {metric.name} must return one value per user, shape "
                    f"{hits.shape[:1]}; got {values.shape}."
                )
            blocks[f"{metric.name}@{n}"].append(values)
    overall = {
        f"{metric.name}@{n}": float(metric.function(counts[n]))
        for metric, n in itertools.product(of_lists, ns)
        if metric.influence is not None
    }
    return {name: np.concatenate(parts) for name, parts in blocks.items()}, overall
