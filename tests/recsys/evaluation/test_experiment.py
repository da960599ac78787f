"""evaluate: models on the same split, against doing it slowly by hand."""

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp

import recsys.topn
from recsys.errors import DataError
from recsys.evaluation import Split, evaluate, random_split, split_from_pair
from recsys.models.baselines import Bias, Popular, Random
from recsys.ratings import Ratings
from recsys.recommender import Recommender


@pytest.fixture
def split():
    rng = np.random.default_rng(3)
    matrix = sp.random_array(
        (40, 25), density=0.3, rng=rng, data_sampler=lambda size: rng.integers(1, 6, size)
    )
    return random_split(Ratings.from_matrix(matrix), 0.25, seed=1)


@pytest.fixture
def implicit_split(split):
    pairs = split.train.to_frame().select("user", "item")
    held_out = split.test.to_frame().select("user", "item")
    return split_from_pair(Ratings.from_frame(pairs), Ratings.from_frame(held_out))


def slow_ranking(model, split, n, relevant_from=None):
    """Precision, recall and NDCG per user, through frames of ids."""
    test = split.test.to_frame()
    if relevant_from is not None:
        test = test.filter(pl.col("rating") >= relevant_from)
    liked = {user: set(group["item"]) for (user,), group in test.group_by("user")}
    frame = Recommender(model).fit(split.train).recommend(sorted(liked), n)
    values = {}
    for user in sorted(liked):
        items = frame.filter(pl.col("user") == user)["item"].to_list()
        hits = [item in liked[user] for item in items]
        gain = sum(hit / np.log2(rank + 2) for rank, hit in enumerate(hits))
        ideal = sum(1 / np.log2(rank + 2) for rank in range(min(n, len(liked[user]))))
        values[user] = (sum(hits) / n, sum(hits) / len(liked[user]), gain / ideal)
    return values


def test_the_table_has_a_row_for_each_model(split):
    result = evaluate(["bias", "popular", Random(random_state=2)], split, n=5)
    assert result.table.schema == {
        "model": pl.String,
        "rmse": pl.Float64,
        "mae": pl.Float64,
        "precision@5": pl.Float64,
        "recall@5": pl.Float64,
        "ndcg@5": pl.Float64,
        "fit_seconds": pl.Float64,
        "recommend_seconds": pl.Float64,
        "users": pl.Int64,
    }
    assert result.table["model"].to_list() == ["bias", "popular", "random"]
    assert result.n == 5


def test_random_scores_are_no_predicted_ratings(split):
    table = evaluate(["random", "popular"], split).table
    assert table["rmse"].is_null().to_list() == [True, False]
    assert table["mae"].is_null().to_list() == [True, False]


@pytest.mark.parametrize("n", [1, 4, 40])
@pytest.mark.parametrize("relevant_from", [None, 4])
def test_ranking_equals_the_slow_way(split, n, relevant_from):
    result = evaluate(["popular"], split, n=n, relevant_from=relevant_from)
    expected = slow_ranking("popular", split, n, relevant_from)
    per_user = result.per_user
    assert per_user["user"].to_list() == list(expected)
    names = [f"precision@{n}", f"recall@{n}", f"ndcg@{n}"]
    np.testing.assert_allclose(per_user.select(names).to_numpy(), list(expected.values()))
    means = result.table.select(names).row(0)
    np.testing.assert_allclose(means, np.mean(list(expected.values()), axis=0))
    assert result.table["users"].to_list() == [len(expected)]


def test_rating_errors_are_those_of_the_recommender(split):
    row = evaluate(["bias"], split).table.row(0, named=True)
    test = split.test.to_frame()
    predicted = Recommender("bias").fit(split.train).predict(test)["prediction"]
    errors = (predicted - test["rating"]).to_numpy().astype(float)
    assert row["rmse"] == pytest.approx(np.sqrt(np.mean(errors**2)))
    assert row["mae"] == pytest.approx(np.mean(np.abs(errors)))


def test_predictions_are_clipped(split):
    tame, wild = evaluate({"tame": Bias(), "wild": Wild()}, split).table["rmse"]
    worst = np.abs(split.test.values[:, None] - [1, 5]).max(axis=1)
    assert tame < wild <= np.sqrt(np.mean(worst**2))


class Wild(Bias):
    def predict(self, users, items):
        return super().predict(users, items) + 1000


def test_users_without_test_items_are_left_out_and_cold_ones_counted():
    nan = np.nan
    whole = Ratings.from_matrix(np.array([[5, nan, 1], [4, 3, nan], [nan, nan, 2.0]]))
    held_out = np.array([False, True, True, False, True])
    split = Split(whole.take(~held_out), whole.take(held_out))
    result = evaluate(["popular"], split, n=1)
    assert result.counts == {
        "train_ratings": 2,
        "test_ratings": 3,
        "users_evaluated": 3,
        "users_without_test_items": 0,
        "cold_users": 1,
        "cold_items": 1,
        "unknown_users": 0,
        "unknown_items": 0,
        "unknown_ratings": 0,
    }
    liked = evaluate(["popular"], split, n=1, relevant_from=2)
    assert liked.counts["users_without_test_items"] == 1
    assert liked.per_user["user"].to_list() == [1, 2]


def test_unknown_test_ratings_are_counted():
    train = Ratings.from_frame(pl.DataFrame({"user": [1, 2], "item": [1, 2], "rating": [3.0, 4.0]}))
    test = Ratings.from_frame(pl.DataFrame({"user": [1, 9], "item": [2, 2], "rating": [3.0, 4.0]}))
    counts = evaluate(["popular"], split_from_pair(train, test)).counts
    assert (counts["unknown_users"], counts["unknown_ratings"]) == (1, 1)
    assert counts["unknown_items"] == 0


def test_implicit_feedback_is_ranked_only(implicit_split):
    row = evaluate(["popular"], implicit_split).table.row(0, named=True)
    assert row["rmse"] is row["mae"] is None
    assert row["ndcg@10"] > 0


def test_a_model_that_needs_values_says_so(implicit_split):
    with pytest.raises(DataError, match="The bias model needs ratings with values"):
        evaluate(["bias"], implicit_split)


def test_blocks_change_nothing(split, monkeypatch):
    whole = evaluate(["bias"], split).per_user
    monkeypatch.setattr(recsys.topn, "_BLOCK_SCORES", 60)
    assert evaluate(["bias"], split).per_user.equals(whole)


def test_labels_of_a_mapping(split):
    models = {"few": Popular(damping=1), "many": Popular(damping=50)}
    result = evaluate(models, split)
    assert result.table["model"].to_list() == ["few", "many"]
    assert result.per_user["model"].unique(maintain_order=True).to_list() == ["few", "many"]
    with pytest.raises(
        DataError, match="Two models are called 'popular'; give a mapping with a label"
    ):
        evaluate([Popular(), "popular"], split)


def test_steps_are_reported_with_their_model(split):
    steps = []
    evaluate(
        {"b": "bias", "p": "popular"},
        split,
        on_step=lambda label, step: steps.append((label, step.step)),
    )
    assert steps[:2] == [("b", 1), ("b", 2)]
    assert {label for label, _ in steps} == {"b"}


def test_bad_questions_are_refused(split):
    with pytest.raises(DataError, match="n must be at least 1; got 0"):
        evaluate(["popular"], split, n=0)
    with pytest.raises(DataError, match="No test rating is 6 or more, so no item is relevant"):
        evaluate(["popular"], split, relevant_from=6)
    nothing = split.test.take(np.zeros(split.test.n_ratings, bool))
    with pytest.raises(DataError, match="There are no test ratings to measure the models on"):
        evaluate(["popular"], Split(split.train, nothing))
    with pytest.raises(DataError, match="There is no model 'populer'; did you mean 'popular'"):
        evaluate(["populer"], split)
