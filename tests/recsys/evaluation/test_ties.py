"""Ties of scores in evaluations: chance decides, whatever the ids are."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.evaluation import (
    evaluate,
    held_out_items,
    held_out_users,
    per_user_split,
    random_split,
    shared_test,
    split_from_pair,
)
from recsys.evaluation.tasks import RankingTask
from recsys.models.base import Model
from recsys.models.baselines import Popular
from recsys.models.holdout import HeldOut
from recsys.recommender import Recommender

N_USERS, N_ITEMS = 500, 90
LABELS = {
    "published": lambda item: item,
    "reversed": lambda item: 1000 - item,
    "texts": lambda item: f"{item * 37 % N_ITEMS}-{item}",
}
SPLITS = {
    "random": lambda ratings: random_split(ratings, 0.3),
    "per user": lambda ratings: per_user_split(ratings, 0.3),
    "users": lambda ratings: held_out_users(ratings, 0.6, 0.3),
    "items": lambda ratings: held_out_items(ratings, 0.4),
}


class Nothing(Model):
    """The same score for every item."""

    name, predicts_ratings = "nothing", False
    levels = 1

    def _fit(self, ratings, progress):
        self.n_users, self.n_items = ratings.shape
        counts = np.bincount(ratings.indices, minlength=ratings.n_items)
        ranks = np.argsort(np.argsort(counts, kind="stable"))
        self.scores_of_items = np.float32(ranks * self.levels // ratings.n_items)

    def with_users(self, histories):
        folded = type(self)()
        vars(folded).update(vars(self), n_users=histories.n_rows)
        return folded

    def predict(self, users, items):
        return self.scores_of_items[np.asarray(items)]

    def scores(self, users):
        return np.tile(self.scores_of_items, (len(users), 1))


class Levels(Nothing):
    """Five levels of popularity."""

    name = "levels"
    levels = 5


def frame_of(label=LABELS["published"]):
    """Interactions in which low numbers are popular, as in many catalogues."""
    rng = np.random.default_rng(0)
    users, items = np.nonzero(
        rng.random((N_USERS, N_ITEMS)) < np.linspace(0.6, 0.02, N_ITEMS)
    )
    return pl.DataFrame(
        {"user": users, "item": [label(item) for item in items.tolist()]}
    )


@pytest.mark.covering(1)
@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("protocol", [*SPLITS, "candidates"])
def test_a_model_of_equal_scores_is_as_good_as_chance(label, protocol):
    ratings = Ratings.from_frame(frame_of(LABELS[label]))
    split = SPLITS.get(protocol, SPLITS["random"])(ratings)
    n_candidates = 30 if protocol == "candidates" else None
    options = {"metrics": ["precision"], "resamples": 0, "candidates": n_candidates}
    found = evaluate([Nothing()], split, n=1, **options)
    share = chance_of_a_hit(split, n_candidates)
    error = np.sqrt((share * (1 - share)).sum()) / len(share)
    assert abs(found.table["precision@1"][0] - share.mean()) < 3.5 * error


def chance_of_a_hit(split, candidates):
    """Return the relevant share of the items that are ranked for each user."""
    task = RankingTask.of(
        split, 1, None, candidates, only_rated=split.method != "items"
    )
    if task.candidates is not None:
        return task.n_relevant / np.diff(task.candidates.indptr)[task.users]
    allowed = np.ones(N_ITEMS, bool) if task.allowed is None else task.allowed
    seen = split.seen.matrix.toarray()[task.users] != 0
    return task.n_relevant / (allowed & ~seen).sum(axis=1)


@pytest.mark.parametrize("model", [Nothing, Levels])
def test_the_order_of_ids_does_not_matter(model):
    split = random_split(Ratings.from_frame(frame_of()), 0.3)
    parts = [part.to_frame().select("user", "item") for part in split]
    values = []
    for label in LABELS.values():
        frames = [
            pl.DataFrame(
                {"user": part["user"], "item": [label(i) for i in part["item"]]}
            )
            for part in parts
        ]
        relabelled = split_from_pair(*map(Ratings.from_frame, frames))
        found = evaluate([model()], relabelled, n=10, metrics=["ndcg"])
        low, high = found.metrics.select("low", "high").row(0)
        values.append((found.table["ndcg@10"][0], (high - low) / 2))
    means, halves = np.array(values).T
    assert np.ptp(means) < 2 * halves.max()


def test_seeds_give_other_orders_and_the_same_seed_the_same():
    split = random_split(Ratings.from_frame(frame_of()), 0.3)

    def ndcg(seed):
        options = {"metrics": ["ndcg"], "resamples": 0, "random_state": seed}
        return evaluate([Nothing()], split, n=5, **options).table["ndcg@5"][0]

    assert ndcg(1) == ndcg(1)
    assert len({ndcg(seed) for seed in range(5)}) == 5


def test_three_ways_of_evaluation_have_one_answer():
    """The parts have other indices if only their own users and items are numbered."""
    ratings = Ratings.from_frame(frame_of().sample(3000, seed=2))
    split = random_split(ratings, 0.5, random_state=1)
    train, test = (
        Ratings.from_frame(part.to_frame().select("user", "item")) for part in split
    )
    fitted = Recommender("popular").fit(train)
    ways = [
        evaluate(["popular"], split, n=[1, 10]),
        evaluate(["popular"], split_from_pair(train, test), n=[1, 10]),
        evaluate([fitted], shared_test({"popular": train}, test).splits, n=[1, 10]),
    ]
    columns = [name for name in ways[0].table.columns if "@" in name]
    assert ways[0].table.select(columns).equals(ways[1].table.select(columns))
    assert ways[0].table.select(columns).equals(ways[2].table.select(columns))


def test_ids_as_texts_and_as_integers_have_one_answer():
    frames = [frame_of(), frame_of().cast(pl.String)]
    tables = []
    for frame in frames:
        held_out = pl.Series(np.random.default_rng(0).random(len(frame)) < 0.3)
        pair = frame.filter(~held_out), frame.filter(held_out)
        split = split_from_pair(*map(Ratings.from_frame, pair))
        tables.append(
            evaluate([Levels()], split, n=5, metrics=["ndcg", "map"], resamples=0).table
        )
    assert (
        tables[0].select("ndcg@5", "map@5").equals(tables[1].select("ndcg@5", "map@5"))
    )


@pytest.mark.parametrize("label", LABELS)
def test_equal_scores_do_not_win_the_comparison_of_auto(label):
    """The candidates of another model that are good do not help a model of equal scores."""
    ratings = Ratings.from_frame(frame_of(LABELS[label]))
    fold = HeldOut.of(ratings, 0)
    models = [Nothing().fit(fold.train), Popular().fit(fold.train)]
    together = fold.lists(models)
    alone = fold.lists(models[:1])
    equal, popular = (together.ndcg(weights).mean() for weights in np.eye(2))
    assert equal == alone.ndcg(np.ones(1)).mean()
    assert equal < 0.6 * popular


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "dtype", ["int64", "int8", "uint8", "bool", "float16", "float64", "longdouble"]
)
@pytest.mark.parametrize("candidates", [None, 20])
def test_scores_may_have_any_numeric_type(dtype, candidates):
    class Typed(Levels):
        levels = 2

        def scores(self, users):
            scores = np.broadcast_to(self.scores_of_items, (len(users), self.n_items))
            return scores.astype(dtype) if dtype != "bool" else scores > 0

    class Single(Typed):
        def scores(self, users):
            return super().scores(users).astype(np.float32)

    split = random_split(Ratings.from_frame(frame_of()), 0.3)
    options = {"n": 10, "metrics": ["ndcg"], "resamples": 0, "candidates": candidates}
    found = [
        evaluate([kind()], split, **options).table["ndcg@10"][0]
        for kind in (Typed, Single)
    ]
    assert found[0] == found[1] > 0


def test_double_precision_of_scores_is_kept():
    class Fine(Nothing):
        def scores(self, users):
            return np.tile(1 - np.arange(self.n_items) * 1e-12, (len(users), 1))

    ratings = Ratings.from_frame(frame_of())
    listed = Recommender(Fine()).fit(ratings).recommend(7, n=90)
    assert listed["item"].is_sorted()
    assert listed["score"].dtype == pl.Float32


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (
            lambda n_users, n: np.zeros((n_users, 3)),
            r"shape \(500, 90\); got shape \(500, 3\)",
        ),
        (lambda n_users, n: np.zeros(n), r"shape \(500, 90\); got shape \(90,\)"),
        (lambda n_users, n: np.full((n_users, n), "x"), "be numbers; got <U1"),
        (
            lambda n_users, n: np.zeros((n_users, n), complex),
            "be numbers; got complex128",
        ),
        (
            lambda n_users, n: np.full((n_users, n), np.nan),
            "got NaN for the user of index 0",
        ),
        (
            lambda n_users, n: np.full((n_users, n), 1e39),
            r"at most 3.4e\+38 .*; got 1e\+39",
        ),
        (
            lambda n_users, n: np.full((n_users, n), -1e39),
            r"; got -1e\+39 for the user",
        ),
        (lambda n_users, n: np.full((n_users, n), np.float32(np.inf)), "; got inf for"),
    ],
)
@pytest.mark.parametrize("candidates", [None, 20])
def test_other_scores_are_one_clear_error(scores, message, candidates):
    class Wrong(Nothing):
        def scores(self, users):
            return scores(len(users), self.n_items)

    split = per_user_split(Ratings.from_frame(frame_of()), 0.3)
    with pytest.raises(
        DataError, match=f"The scores of the nothing model must .*{message}"
    ):
        evaluate([Wrong()], split, metrics=["ndcg"], candidates=candidates)
