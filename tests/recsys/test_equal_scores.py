"""Items with equal scores: one random order of their ids in all lists."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from page_arithmetic import form_scores

from lowrank import kernels
from recsys import Ratings, Recommender
from recsys.cli.main import cli
from recsys.serve.browser_model import browser_model
from recsys.serve.responses import Responses
from recsys.serve.static_page import _items

N_ITEMS = 60


def frame_of(n_items=N_ITEMS):
    """Interactions of few users, so that many items have as many."""
    users, items = np.nonzero(np.random.default_rng(0).random((30, n_items)) < 0.15)
    return pl.DataFrame({"user": users, "item": items * 3 + 100})


@pytest.fixture
def popular():
    return Recommender("popular").fit(Ratings.from_frame(frame_of()))


@pytest.fixture(params=["popular", "ials"])
def recommender(request, popular):
    """A model with many equal scores: counts, or products of small whole numbers."""
    if request.param == "popular":
        return popular
    fitted = Recommender("ials", factors=2, iterations=1).fit(popular.ratings)
    rng = np.random.default_rng(0)
    for vectors in (fitted.model.user_factors, fitted.model.item_factors):
        vectors[:] = rng.integers(-1, 2, vectors.shape)
    return fitted


def lists_of(recommender, n=40, **options):
    return recommender.recommend(n=n, **options).select("user", "item", "score")


def test_the_order_is_not_that_of_the_ids(recommender):
    """Of neighbours with equal scores, the smaller id comes first in about half of the cases."""
    pairs = lists_of(recommender).with_columns(
        pl.col("item", "score").shift(-1).name.suffix("_2")
    )
    tied = pairs.filter(pl.col("score") == pl.col("score_2"))
    assert len(tied) > 100
    assert 0.3 < (tied["item"] < tied["item_2"]).mean() < 0.7


def test_all_doors_give_the_same_lists(recommender, tmp_path):
    expected = lists_of(recommender)
    users = expected["user"].unique().to_list()
    alone = pl.concat([recommender.recommend(user, 40) for user in users])
    assert alone.select(expected.columns).equals(expected)
    batches = pl.concat(recommender.recommend_batches(users, 40))
    assert batches.select(expected.columns).equals(expected)
    recommender.save(tmp_path / "model")
    assert lists_of(Recommender.load(tmp_path / "model")).equals(expected)
    arguments = [
        "recommend",
        str(tmp_path / "model"),
        "--all",
        "-n",
        "40",
        "--json",
        "--quiet",
    ]
    printed = json.loads(CliRunner().invoke(cli, arguments).stdout)["rows"]
    assert [row["item"] for row in printed] == expected["item"].to_list()
    answers = Responses(recommender, "model").best(np.arange(len(users)), 40)
    served = [row["item"] for answer in answers for row in answer["items"]]
    assert list(map(str, served)) == expected["item"].cast(pl.String).to_list()


def test_every_kernel_gives_the_same_lists(recommender):
    expected = lists_of(recommender)
    before = kernels.backend()
    try:
        for name in kernels.supported():
            kernels.use(name)
            assert lists_of(recommender)["item"].equals(expected["item"])
    finally:
        kernels.use(before.instruction_set or "reference")


def test_a_history_gets_the_list_of_the_user_who_has_it(popular):
    history = frame_of().filter(user=7)["item"].to_list()
    folded = popular.recommend(n=40, history=history)
    assert folded["item"].equals(popular.recommend(7, 40)["item"])


def test_more_items_and_users_do_not_change_the_order(popular):
    more = pl.DataFrame({"user": [-5, 999], "item": [-7, 101]})
    after = Recommender("popular").fit(
        Ratings.from_frame(pl.concat([frame_of(), more]))
    )
    kept = lists_of(after, 100, users=[3]).filter(~pl.col("item").is_in([-7, 101]))
    assert kept["item"].equals(lists_of(popular, 100, users=[3])["item"])


def test_integers_and_texts_have_the_same_order(popular):
    texts = Ratings.from_frame(frame_of().cast(pl.String))
    named = Recommender("popular").fit(texts).recommend("3", 40)
    numbers = popular.recommend(3, 40)
    assert named["item"].equals(numbers["item"].cast(pl.String))


def test_unknown_users_get_one_list(recommender):
    together = recommender.recommend([991, 992], 30, cold_start="popular")
    alone = recommender.recommend(992, 30, cold_start="popular")
    assert together["item"][:30].equals(together["item"][30:])
    assert alone["item"].equals(together["item"][30:])


def test_equally_similar_items_are_not_in_the_order_of_the_ids():
    """Items of the same users have the same vectors."""
    users, groups = np.nonzero(np.random.default_rng(1).random((40, 6)) < 0.4)
    items = np.add.outer(groups * 10, np.arange(10))
    frame = pl.DataFrame({"user": np.repeat(users, 10), "item": items.ravel()})
    ratings = Ratings.from_frame(frame)
    similar = (
        Recommender("spectral").fit(ratings).similar_items(ratings.items.values, n=8)
    )
    ascending = similar.group_by("item").agg(pl.col("similar").diff().gt(0).mean())[
        "similar"
    ]
    assert 0.3 < ascending.mean() < 0.7


@pytest.mark.parametrize("model", ["popular", "sparse-ease"])
def test_the_page_has_the_order_of_the_service(model):
    recommender = Recommender(model).fit(Ratings.from_frame(frame_of()))
    answers = Responses(recommender, "model")
    items = np.arange(recommender.ratings.n_items)
    ties = _items(answers.catalogue, items)["ties"]
    form = browser_model(
        recommender.model, recommender.ratings, items, np.zeros(0, np.int64)
    )
    history = np.array([3, 10])
    scores = form_scores(form, history, np.ones(2, np.float32)).astype(np.float32)
    order = np.lexsort((ties, -scores))
    order = order[~np.isin(order, history)]
    ids = recommender.ratings.items.take(history).to_list()
    expected = recommender.recommend(n=N_ITEMS, history=ids)
    assert recommender.ratings.items.take(order).equals(expected["item"].alias("item"))
