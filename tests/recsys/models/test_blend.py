"""Blends: weights that rank held-out interactions best, and sums of what the models do."""

import numpy as np
import polars as pl
import pytest

from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.models import holdout
from recsys.models.base import Progress
from recsys.models.histories import Histories
from recsys.models.holdout import HeldOut, Lists, best_weights, growing_blends
from recsys.models.registry import make_model
from recsys.recommender import Recommender

pytestmark = pytest.mark.usefixtures("one_fold")


def interactions(n_users=60, n_items=40, seed=0):
    """Interactions of users of two tastes, in which some items are popular."""
    rng = np.random.default_rng(seed)
    taste = np.arange(n_users)[:, None] % 2 == np.arange(n_items) % 2
    chance = np.where(taste, 0.4, 0.05) * np.linspace(1, 0.3, n_items)
    table = np.where(rng.random((n_users, n_items)) < chance, 1.0, np.nan)
    return Ratings.from_matrix(table, implicit=True)


def everyone(model):
    return model.scores(np.arange(model.n_users))


def test_scores_are_the_weighted_sum_of_standardised_scores():
    ratings = interactions()
    blend = make_model("blend", members="popular,ease", weights="1,3").fit(ratings)
    parts = [make_model(name).fit(ratings) for name in ("popular", "ease")]
    np.testing.assert_allclose(blend.shares, [0.25, 0.75])
    expected = sum(
        share * everyone(part) / np.sqrt(everyone(part).var(axis=1).mean())
        for share, part in zip(blend.shares, parts, strict=True)
    )
    np.testing.assert_allclose(everyone(blend), expected, rtol=1e-4, atol=1e-5)


def test_a_model_of_noise_gets_no_weight():
    blend = make_model("blend", members="random,spectral").fit(interactions(300, 60))
    np.testing.assert_array_equal(blend.shares, [0, 1])
    assert [part.name for part in blend.parts] == ["spectral"]


def test_the_order_of_members_does_not_matter_for_the_sum():
    ratings = interactions()
    one, other = (
        make_model("blend", members=members, weights=weights).fit(ratings)
        for members, weights in (("popular,ials", "1,2"), ("ials,popular", "2,1"))
    )
    np.testing.assert_allclose(everyone(one), everyone(other), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "members",
    [
        "ials,spectral",
        "implicit-als,ials",
        "als,bias",
        "ease,ials",
        "spectral,implicit-knn",
    ],
)
def test_a_user_gets_the_same_list_alone_and_with_others(members):
    ratings = interactions()
    if members == "als,bias":
        table = ratings.matrix.toarray() * (1 + np.arange(40) % 5)
        ratings = Ratings.from_matrix(np.where(table > 0, table, np.nan))
    recommender = Recommender("blend", members=members, weights="1,1").fit(ratings)
    frame = recommender.recommend(n=7)
    alone = pl.concat([recommender.recommend(user, n=7) for user in (0, 17, 59)])
    assert frame.filter(pl.col("user").is_in([0, 17, 59])).equals(alone)
    pairs = frame.select("user", "item")
    predicted = recommender.model.predict(
        pairs["user"].to_numpy(), pairs["item"].to_numpy()
    )
    np.testing.assert_array_equal(predicted, frame["score"].to_numpy())


def test_products_are_searched_by_the_factors_of_all_models():
    blend = make_model("blend", members="ials,implicit-als", weights="1,1").fit(
        interactions()
    )
    users = np.array([3, 5])
    form = blend._factor_form(users)
    products = form.users @ form.items.T + form.offset[:, None] + form.bias
    np.testing.assert_allclose(products, blend.scores(users), rtol=1e-4, atol=1e-5)


def test_folded_in_users_get_the_scores_of_their_histories():
    ratings = interactions()
    blend = make_model("blend", weights="1,1").fit(ratings)
    again = blend.with_users(Histories.of(ratings).take(np.array([4, 9])))
    np.testing.assert_allclose(
        again.scores([0, 1]), blend.scores([4, 9]), rtol=1e-4, atol=1e-5
    )
    items = Histories(
        *(getattr(ratings.matrix.T.tocsr(), a) for a in ("indptr", "indices", "data"))
    )
    assert blend.with_items(items.take(np.array([7]))).scores([0]).shape == (1, 1)


def test_an_explanation_adds_up_over_the_models():
    recommender = Recommender("blend", members="ials,ease,spectral", weights="1,1,2")
    recommender.fit(interactions())
    item = recommender.recommend(3, n=1)["item"][0]
    explained = recommender.explain(3, item)
    score = recommender.recommend(3, n=1)["score"][0]
    assert explained["contribution"].sum() == pytest.approx(score, rel=1e-4)


def test_similar_items_are_similar_to_all_models():
    recommender = Recommender("blend", members="ials,spectral", weights="1,1").fit(
        interactions()
    )
    parts = [Recommender(part) for part in recommender.model.parts]
    cosines = [
        part._restored(recommender.ratings, recommender.training).similar_items(5, n=39)
        for part in parts
    ]
    mean = (
        cosines[0]
        .join(cosines[1], on="similar")
        .select("similar", mean=(pl.col("score") + pl.col("score_right")) / 2)
    )
    found = recommender.similar_items(5, n=39).join(mean, on="similar")
    np.testing.assert_allclose(found["score"], found["mean"], atol=1e-5)


def test_a_member_without_an_ability_is_named():
    blend = Recommender("blend", members="ials,random", weights="1,1").fit(
        interactions()
    )
    with pytest.raises(
        DataError, match="cannot fold in new users, because random cannot"
    ):
        blend.recommend(history={3: 1.0, 4: 1.0})


def test_an_update_keeps_the_weights_and_starts_from_the_factors():
    ratings = interactions()
    recommender = Recommender("blend").fit(ratings)
    new = pl.DataFrame({"user": [0, 99], "item": [39, 1]})
    updated = recommender.update(Ratings.from_frame(new))
    np.testing.assert_array_equal(updated.model.shares, recommender.model.shares)
    assert updated.ratings.n_users == 61
    assert len(updated.recommend(99, n=3)) == 3


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"members": "als,als"}, "names of different models"),
        ({"members": "blend,als"}, "names of different models"),
        ({"members": ""}, "names of different models"),
        ({"members": "alss,bias"}, "There is no model 'alss'"),
        ({"members": "popular,ease", "weights": "1"}, "weights must be 2 numbers"),
        ({"members": "popular,ease", "weights": "1,-1"}, "weights must be 2 numbers"),
        ({"members": "popular,ease", "weights": "a,b"}, "weights must be 2 numbers"),
    ],
)
def test_members_and_weights_are_checked(params, message):
    with pytest.raises(DataError, match=message):
        make_model("blend", **params).fit(interactions())


def test_weights_move_to_models_that_agree_with_held_out_items():
    relevant = np.zeros((50, 30), np.bool_)
    relevant[:, :3] = True
    rng = np.random.default_rng(0)
    signal = np.where(relevant, 1.0, 0.0) + rng.normal(0, 0.5, (3, 50, 30))
    noise = rng.normal(0, 1, (1, 50, 30))
    scores = np.concatenate([signal, noise]).astype(np.float32)
    lists = Lists(scores, relevant, relevant.sum(axis=1), 5)
    weights, heights = best_weights([lists])
    assert weights.sum() == pytest.approx(1)
    assert (weights[:3] > 0.15).all()
    assert weights[3] <= 0.05
    assert heights.shape == (50,)
    assert heights.mean() > max(lists.ndcg(each).mean() for each in np.eye(4))


def test_of_members_that_are_as_good_the_first_is_added():
    relevant = np.zeros((200, 30), np.bool_)
    relevant[:, :3] = True
    scores = relevant + np.random.default_rng(0).normal(0, 1, (3, 200, 30))
    scores[2] = scores[1]
    scores[2, 0] += np.where(relevant[0], 5, 0)  # one list is better
    lists = Lists(scores.astype(np.float32), relevant, relevant.sum(axis=1), 5)
    members, _, heights = next(growing_blends([lists], 0))
    assert members == [0, 1]
    assert heights.mean() > lists.ndcg(np.eye(3)[0]).mean()


def test_of_many_users_some_are_ranked_without_what_they_have(monkeypatch):
    monkeypatch.setattr(holdout, "_USERS", 30)
    (fold, *_) = HeldOut.folds(interactions(90, 40), 0)
    parts = [
        make_model("spectral").fit(fold.train),
        make_model("popular").fit(fold.train),
    ]
    lists = fold.lists(parts)
    assert 20 <= len(lists.relevant) <= 30
    left = 40 - np.diff(fold.train.indptr)[fold._users[:: -(-len(fold._users) // 30)]]
    np.testing.assert_array_equal((lists.scores[0] > -1e29).sum(axis=1), left)
    assert (lists.relevant.sum(axis=1) == lists.counts).all()


def test_holds_out_a_tenth_and_loses_nothing():
    ratings = interactions(200, 100)
    train, test = HeldOut.of(ratings, 1)
    assert train.n_ratings + test.n_ratings == ratings.n_ratings
    assert 0.07 < test.n_ratings / ratings.n_ratings < 0.13
    assert not (train.matrix * test.matrix).nnz


def test_of_few_ratings_three_fifths_are_held_out_in_turn():
    ratings = interactions(200, 100)
    folds = [fold.test for fold in HeldOut.folds(ratings, 1)]
    shares = [test.n_ratings / ratings.n_ratings for test in folds]
    assert shares == pytest.approx([0.2] * 3, abs=0.04)
    assert sum(test.matrix for test in folds).max() == 1


def test_penalties_found_on_the_first_fold_count_for_the_others():
    folds = HeldOut.folds(interactions(200, 100), 1)
    told = []

    def begin(fold, model):
        told.append((fold, model))
        return Progress()

    trials = list(HeldOut.trials(folds, [make_model("ials", factors=4)], begin))
    assert [fold for fold, _ in trials] == folds
    assert told == [(0, 0), (1, 0), (2, 0)]
    (first,), (second,), (third,) = (models for _, models in trials)
    assert first.regularization is None
    found = {"unobserved_weight": first.pair_weight, "regularization": first.penalty}
    assert second.get_params() == third.get_params() == first.get_params() | found


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("shares", [np.nan, 1], "'shares' must have 2 non-negative numbers"),
        ("shares", [0, 0], "non-negative numbers, not all 0"),
        ("scales", [0, 1], "must be positive"),
        ("scales", [np.inf, 1], "must be positive"),
    ],
)
def test_damaged_weights_are_rejected(name, array, message):
    blend = make_model("blend", members="popular,random", weights="1,1").fit(
        interactions()
    )
    arrays = blend._arrays() | {name: np.array(array, np.float32)}
    with pytest.raises(DataError, match=message):
        type(blend)._from_arrays(blend.get_params(), arrays)
