"""Imputing whole tables, explaining scores, and the uncertainty of predictions."""

import numpy as np
import polars as pl
import pytest

import recsys.predictions
from recsys.data.ratings import Ratings
from recsys.errors import DataError, UnknownIdError
from recsys.models.baselines import Bias
from recsys.recommender import Recommender

FRAME = pl.DataFrame(
    {
        "user": [1, 1, 2, 2, 3, 3, 3],
        "item": ["a", "b", "a", "c", "b", "c", "d"],
        "rating": [5.0, 1.0, 4.0, 2.0, 3.0, 5.0, 2.0],
    }
)
TITLES = pl.DataFrame({"item": ["a", "b", "c", "d"], "title": ["A", "B", None, "D"]})


@pytest.fixture(scope="module")
def recommender():
    return Recommender("als", factors=2).fit(
        Ratings.from_frame(FRAME, item_table=TITLES)
    )


class Sure(Bias):
    """Biases that know how sure they are."""

    def predict_std(self, users, items):
        return (np.asarray(users) + 10 * np.asarray(items)).astype(np.float32)


# impute


def test_imputes_missing_ratings(recommender):
    found = pl.concat(recommender.impute())
    missing = [(1, "c"), (1, "d"), (2, "b"), (2, "d"), (3, "a")]
    assert found.select("user", "item").rows() == missing
    assert found.equals(recommender.predict(found))
    assert found["prediction"].is_between(1, 5).all()


def test_imputes_all_pairs_on_request(recommender):
    found = pl.concat(recommender.impute(missing_only=False))
    assert len(found) == 12
    assert found.equals(recommender.predict(found))


def test_imputes_for_some_users_and_items_in_the_order_asked(recommender):
    found = pl.concat(recommender.impute([3, 1, 3], ["d", "a", "d"]))
    assert found.select("user", "item").rows() == [(3, "a"), (1, "d")]
    found = pl.concat(recommender.impute(3, "a", missing_only=False))
    assert found.select("user", "item").rows() == [(3, "a")]


def test_imputes_in_blocks(recommender, monkeypatch):
    whole = pl.concat(recommender.impute())
    monkeypatch.setattr(recsys.predictions, "_BLOCK_PAIRS", 5)
    pieces = list(recommender.impute())
    assert [len(piece) for piece in pieces] == [2, 2, 1]
    assert pl.concat(pieces).equals(whole)


def test_no_users_to_impute_for_give_an_empty_frame(recommender):
    found = pl.concat(recommender.impute([]))
    assert found.is_empty()
    assert found.schema == pl.concat(recommender.impute()).schema


def test_impute_rejects_at_once(recommender):
    with pytest.raises(UnknownIdError, match="Unknown user 4"):
        recommender.impute([4])
    with pytest.raises(UnknownIdError, match="Unknown item 'e'"):
        recommender.impute(items=["e"])
    implicit = Recommender("popular").fit(Ratings.from_frame(FRAME.drop("rating")))
    with pytest.raises(
        DataError, match="the data are implicit feedback; fit a model such as"
    ):
        implicit.impute()
    chance = Recommender("random").fit(Ratings.from_frame(FRAME))
    with pytest.raises(
        DataError,
        match="the scores of the random model are not ratings; fit a model such as 'als'",
    ):
        chance.impute()


# explain


def test_an_explanation_has_base_items_and_the_rest(recommender):
    whole = recommender.explain(3, "a")
    assert whole.columns == ["part", "item", "rating", "contribution", "title"]
    assert whole["part"].to_list() == ["base", "popularity", "item", "item", "item"]
    assert set(whole["item"]) == {None, "b", "c", "d"}
    ratings = dict(zip(whole["item"], whole["rating"], strict=True))
    assert ratings == {None: None, "b": 3, "c": 5, "d": 2}
    titles = dict(zip(whole["item"], whole["title"], strict=True))
    assert titles == {None: None, "b": "B", "c": None, "d": "D"}
    sizes = whole["contribution"][2:].abs()
    assert sizes.to_list() == sorted(sizes, reverse=True)
    model = recommender.model
    base = model.global_mean + model.item_bias[0]
    assert whole["contribution"][0] == pytest.approx(base, rel=1e-6)
    assert whole["contribution"].sum() == pytest.approx(
        model.pair_scores([2], [0])[0], rel=1e-5
    )
    of_prediction = whole.filter(pl.col("part") != "popularity")["contribution"].sum()
    assert of_prediction == pytest.approx(model.predict([2], [0])[0], rel=1e-5)
    assert whole["contribution"][1] == -model.popularity * model.item_obscurity[0]


def test_a_short_explanation_sums_up_the_others(recommender):
    whole, short = recommender.explain(3, "a"), recommender.explain(3, "a", n=1)
    assert short["part"].to_list() == ["base", "popularity", "item", "others"]
    assert short[:3].equals(whole[:3])
    assert short["contribution"][3] == pytest.approx(
        whole["contribution"][3:].sum(), rel=1e-5
    )
    assert recommender.explain(3, "a", n=3).equals(whole)


def test_an_explanation_of_contacts_has_no_ratings():
    implicit = Recommender("popular").fit(Ratings.from_frame(FRAME.drop("rating")))
    frame = implicit.explain(1, "c")
    assert frame.columns == ["part", "item", "contribution"]
    assert frame["contribution"].to_list() == [2.0, 0.0, 0.0]


def test_explain_rejects(recommender):
    with pytest.raises(UnknownIdError, match="Unknown user 4"):
        recommender.explain(4, "a")
    with pytest.raises(UnknownIdError, match="Unknown item 'e'"):
        recommender.explain(1, "e")
    with pytest.raises(DataError, match="n must be at least 1; got 0"):
        recommender.explain(1, "a", n=0)


# std


def test_the_uncertainty_stands_beside_the_prediction():
    sure = Recommender(Sure()).fit(Ratings.from_frame(FRAME))
    pairs = pl.DataFrame({"user": [1, 3, 9], "item": ["b", "a", "a"]})
    found = sure.predict(pairs, cold_start="bias", std=True)
    assert found["std"].to_list() == [10.0, 2.0, None]
    assert found.drop("std").equals(sure.predict(pairs, cold_start="bias"))
    assert sure.predict([[1, "b"]], std=True).equals(found[:1])
    assert sure.predict(1, "b", std=True).equals(found[:1])


def test_predicts_one_pair(recommender):
    [expected] = recommender.predict(FRAME.head(1))["prediction"]
    assert recommender.predict(1, "a") == expected
    assert recommender.predict([(1, "a")])["prediction"].to_list() == [expected]
    with pytest.raises(DataError, match=r"or a list of \(user, item\) pairs"):
        recommender.predict([(1, "a", 3)])
    array = np.array([(1, "a")], dtype=object)
    assert recommender.predict(array)["prediction"].to_list() == [expected]
    assert recommender.predict([]).columns == ["user", "item", "prediction"]
    with pytest.raises(DataError, match=r"or a list of \(user, item\) pairs"):
        recommender.predict([1, 2], ["a", "b"])
    assert isinstance(recommender.predict(9, "a", cold_start="bias"), float)
    with pytest.raises(UnknownIdError, match="Unknown user 9"):
        recommender.predict(9, "a")
