"""Weights of interactions: models of implicit feedback use them, or say that they do not."""

import numpy as np
import polars as pl
import pytest

from recsys.data.ratings import Ratings
from recsys.models.registry import MODELS, make_model, model_class
from recsys.recommender import Recommender

pytestmark = pytest.mark.usefixtures("one_fold")
FEW = {"implicit-als": {"factors": 8}, "implicit-bpr": {"factors": 8, "iterations": 5}}
FEW |= {"implicit-lmf": {"factors": 4, "iterations": 5}, "spectral": {"factors": 6}}
IMPLICIT = sorted(name for name in MODELS if not model_class(name)._needs_values)


def events(seed=0, n=600):
    """Return ratings with weights of 0.5 to 8 and the same with ones."""
    rng = np.random.default_rng(seed)
    pairs = rng.choice(40 * 30, n, replace=False)
    frame = pl.DataFrame({"user": pairs // 30, "item": pairs % 30})
    frame = frame.with_row_index("timestamp", 1_500_000_000)
    ones = Ratings.from_frame(frame)
    weights = rng.choice([0.5, 1, 3, 8], ones.nnz).astype(np.float32)
    return ones.with_values(weights), ones


@pytest.mark.parametrize("name", IMPLICIT)
def test_models_use_weights_or_say_that_they_do_not(name):
    users = np.arange(40)
    params = FEW.get(name, {})
    found, equal = (
        make_model(name, **params).fit(data).scores(users) for data in events()
    )
    assert model_class(name).uses_weights == (not np.array_equal(found, equal))


@pytest.mark.parametrize(
    "name", [name for name in IMPLICIT if model_class(name).uses_weights]
)
def test_a_heavy_interaction_lifts_what_goes_with_it(name):
    """Item 0 goes with item 1 by heavy events, and with item 2 by as many light ones."""
    rows = []
    for user in range(30):
        liked, weight = (1, 6.0) if user % 2 else (2, 0.5)
        rows += [(user, 0, weight), (user, liked, weight), (user, 3 + user % 7, 1.0)]
    rows += [(30, 0, 1.0), (30, 9, 1.0)]
    frame = pl.DataFrame(rows, schema=["user", "item", "kind"], orient="row")
    frame = frame.with_row_index("timestamp", 1_500_000_000)
    kinds = frame.with_columns(pl.col("kind").cast(pl.String))
    weights = {"6.0": 6, "0.5": 0.5, "1.0": 1}
    data = Ratings.from_frame(kinds, event="kind", event_weights=weights)
    params = FEW.get(name, {}) | ({"iterations": 30} if name == "implicit-lmf" else {})
    scores = make_model(name, **params).fit(data).scores(np.array([30]))[0]
    assert scores[1] > scores[2]


def test_popular_counts_weights_and_ease_weighs_its_gram_matrix():
    weighted, _ = events()
    W = weighted.matrix.toarray().astype(float)
    popular = make_model("popular").fit(weighted)
    np.testing.assert_allclose(popular.scores([0])[0], W.sum(axis=0), rtol=1e-6)
    ease = make_model("ease", user_power=0, item_power=0).fit(weighted)
    X = W / weighted.values.mean()
    P = np.linalg.inv(X.T @ X + ease.penalty * np.eye(30))
    B = np.eye(30) - P / np.diag(P)
    np.testing.assert_allclose(ease.scores(np.arange(40)), X @ B, atol=1e-4)


def test_weights_go_through_updates_and_new_histories():
    weighted, _ = events()
    old = weighted.to_frame().head(400)
    new = weighted.to_frame().tail(200)
    columns = {"event": pl.col("rating").cast(pl.String)}
    kinds = {"0.5": 0.5, "1.0": 1, "3.0": 3, "8.0": 8}
    before, after = (
        Ratings.from_frame(each.select("user", "item", **columns), event_weights=kinds)
        for each in (old, new)
    )
    recommender = Recommender("ease").fit(before).update(after)
    assert recommender.ratings.matrix.sum() == pytest.approx(weighted.matrix.sum())
    history = weighted.to_frame().filter(pl.col("user") == 7)
    theirs = recommender.recommend(
        history=history.drop("user").with_columns(user=pl.lit("x"))
    )
    assert theirs["item"].to_list() == recommender.recommend(7)["item"].to_list()
