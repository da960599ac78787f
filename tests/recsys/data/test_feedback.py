"""Grades or counts: the decision on the values of a column."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from recsys.auto import choose_model
from recsys.data.feedback import judge, judge_values, named_kind, usual_range
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.models.registry import make_model
from recsys.recommender import Recommender

RNG = np.random.default_rng(0)
PLAYS = np.round(RNG.lognormal(2, 1.3, 2000)).clip(1)
ORDERS = RNG.geometric(0.88, 2500).clip(1, 10)
STARS = RNG.choice([1, 2, 3, 4, 5], 1000, p=[0.05, 0.1, 0.25, 0.35, 0.25])


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (PLAYS, "counts"),
        (ORDERS, "counts"),
        (RNG.lognormal(3, 0.8, 5000), "counts"),
        (RNG.zipf(2, 3000), "counts"),
        (STARS, "grades"),
        (STARS / 2, "grades"),
        (STARS * 2, "grades"),
        (RNG.uniform(-10, 10, 1000), "grades"),
        (RNG.uniform(0, 100, 1000), "grades"),
        (RNG.beta(5, 2, 1000) * 100, "grades"),
        (RNG.choice([1, 5], 1000), "grades"),
        (RNG.choice([-1, 1], 1000), "grades"),
        (RNG.choice([0, 1], 1000), "grades"),
        (np.full(500, 5), "equal"),
        (np.full(500, 1), "equal"),
    ],
)
def test_a_few_rows_do_not_change_the_decision(values, kind):
    assert judge_values(values.astype(float)).kind == kind
    for odd in ([0], [-1], [1], [5], [10], [11], [500], [-3, 0, 99], [1e6, 1e6, 1e6]):
        changed = np.append(values, odd).astype(float)
        assert judge_values(changed).kind == kind, odd


@pytest.mark.parametrize(
    "name",
    [
        "count",
        "count(*)",
        "n_plays",
        "Quantity",
        "qty",
        "weight",
        "n",
        "Preis",
        "unitPrice",
    ],
)
def test_names_of_counts_decide_where_values_could_be_grades(name):
    assert named_kind(name) == "counts"
    found = judge_values(RNG.integers(1, 6, 500), name)
    assert found.kind == "counts"
    assert not found.is_sure
    assert "unsure, the values could be grades" in found.remark


@pytest.mark.parametrize(
    "name", ["rating", "stars", "Score", "grade", "number_of_stars"]
)
def test_names_of_grades_decide_over_small_counts_only(name):
    small = judge_values(ORDERS, name)
    assert small.kind == "grades"
    assert "although the values look like counts (unsure; --weight-col" in small.remark
    assert judge_values(PLAYS, name).kind == "counts"


def frame(values, name="count"):
    n = len(values)
    return pl.DataFrame(
        {"user": np.arange(n) % 50, "item": np.arange(n) // 50, name: values}
    )


def test_says_that_counts_of_a_frame_are_interactions():
    ratings = Ratings.from_frame(frame(ORDERS))
    assert ratings.implicit
    assert ratings.weighted
    assert ratings.as_interactions().values.tolist() == [1] * 2500
    said = str(ratings.source)
    assert (
        f"look like counts or amounts, from 1 to {ORDERS.max()}: implicit feedback"
        in said
    )
    assert (
        "(sure, by name and values; --weight-col count (weight=) reads weights, --scale"
        in said
    )
    assert choose_model(ratings).ratings.values.tolist() == [1] * 2500


def test_models_do_not_use_counts_that_are_not_named_as_weights():
    counts, ones = Ratings.from_frame(frame(PLAYS)), frame(PLAYS).drop("count")
    expected = make_model("ease").fit(Ratings.from_frame(ones)).scores([0])
    np.testing.assert_array_equal(make_model("ease").fit(counts).scores([0]), expected)
    weights = Ratings.from_frame(frame(PLAYS), weight="count")
    assert not np.array_equal(make_model("ease").fit(weights).scores([0]), expected)


def test_a_scale_makes_grades_of_counts():
    ratings = Ratings.from_frame(frame(ORDERS), scale=(1, 10))
    assert not ratings.implicit
    assert ratings.scale == (1, 10)
    assert choose_model(ratings).candidates[0].model == "als"
    with pytest.raises(
        DataError, match=r"The als model needs .* these are counts of interactions"
    ):
        make_model("als").fit(Ratings.from_frame(frame(ORDERS)))


def test_values_off_a_scale_are_bad_rows():
    odd = frame([1.0, 5.0, 7.0, 0.5, 3.0, *[4.0] * 95], "rating")
    with pytest.raises(
        DataError, match=r"Row 3: rating 7 is outside of the scale, 1 to 5\."
    ):
        Ratings.from_frame(odd, scale=(1, 5))
    ratings = Ratings.from_frame(odd, scale=(1, 5), bad_rows=0.05)
    assert ratings.nnz == 98
    assert "2 bad rows left out" in str(ratings.source)
    problem = "rating 7 is outside of the scale, 1 to 5."
    assert ratings.source.skipped == (f"2 rows, the first Row 3: {problem}",)
    kept = Ratings.from_frame(odd, scale=(1, 5), missing=7, bad_rows=0.05)
    assert kept.nnz == 98


@pytest.mark.parametrize("scale", [(5, 1), (1,), "15", (1, np.nan), (1, np.inf), 5])
def test_a_scale_has_two_ends(scale):
    with pytest.raises(
        DataError, match="scale must be the lowest and the highest grade"
    ):
        Ratings.from_frame(frame(STARS, "rating"), scale=scale)


def sums(ratings):
    return {row[:2]: row[2] for row in ratings.to_frame().rows()}


RETURNS = pl.DataFrame(
    {
        "user": ["a", "a", "a", "b", "b", "c"],
        "item": ["x", "x", "y", "x", "x", "y"],
        "qty": [3, 1, 2, 2, -2, -1],
        "event": ["buy", "view", "buy", "buy", "buy", "buy"],
        "time": ["2025-10-01"] * 2 + ["2025-10-03"] * 4,
    }
)


def test_returns_are_subtracted_and_pairs_without_a_rest_left_out():
    ratings = Ratings.from_frame(RETURNS, weight="qty")
    assert ratings.implicit
    assert sums(ratings) == {("a", "x"): 4, ("a", "y"): 2}
    assert "2 pairs left out whose weights add up to zero or less" in str(
        ratings.source
    )
    assert "weight = qty" in str(ratings.source)


@pytest.mark.parametrize(
    "name", ["quantity", "Qty", "count", "plays", "n_clicks", "weight"]
)
def test_a_column_of_counts_is_read_as_interactions_and_as_weights_if_named(name):
    frame = pl.DataFrame(
        {
            "user": [1, 1, 2, 2],
            "item": [1, 2, 1, 2],
            name: [3, 1, 2, 1],
            "time": [0, 1, 1, 0],
        }
    ).with_columns(pl.col("time") * 86400 + 1_700_000_000)
    ratings = Ratings.from_frame(frame)
    assert ratings.implicit
    assert ratings.values.tolist() == [3.0, 1.0, 2.0, 1.0]
    aged = Ratings.from_frame(frame, half_life="1d")
    assert aged.values.tolist() == [0.5, 1.0, 1.0, 0.5]
    weighed = Ratings.from_frame(frame, weight=name, half_life="1d")
    assert weighed.values.tolist() == [1.5, 1.0, 2.0, 0.5]
    assert not Ratings.from_frame(frame, implicit=True).weighted


def test_weights_are_quantity_times_kind_times_age():
    options = {
        "weight": "qty",
        "event_weights": {"buy": 5, "view": 1},
        "half_life": "1d",
    }
    ratings = Ratings.from_frame(RETURNS, **options)
    assert sums(ratings) == {("a", "x"): 4, ("a", "y"): 10}


def test_a_return_of_an_old_purchase_takes_it_back_whatever_the_rounding():
    rng = np.random.default_rng(0)
    parts = rng.random(20).astype(np.float32)
    quantities = np.append(parts, -parts.sum(dtype=np.float64)).tolist()
    whole = pl.DataFrame({"user": ["a"] * 21, "item": ["x"] * 21, "qty": quantities})
    both = pl.concat(
        [whole, pl.DataFrame({"user": ["b"], "item": ["x"], "qty": [1.0]})]
    )
    assert Ratings.from_frame(both, weight="qty").to_frame().rows() == [("b", "x", 1)]


def test_without_a_positive_weight_nothing_is_left():
    ratings = Ratings.from_frame(RETURNS.tail(1), weight="qty")
    with pytest.raises(
        DataError, match="There are no ratings to fit a model to: 1 pair left out"
    ):
        Recommender("popular").fit(ratings)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"rating": "qty", "event_weights": {"*": 1}},
            "event_weights is for interactions",
        ),
        ({"rating": "qty", "half_life": "30d"}, "half_life is for interactions"),
        ({"rating": "qty", "implicit": True}, "implicit is for interactions"),
        ({"rating": "qty", "weight": "qty"}, "weight='qty' is for interactions"),
        (
            {"rating": "qty", "event": "event", "scale": (-2, 3)},
            "kinds of events have no effect",
        ),
        ({"weight": "amount"}, "has no column 'amount'"),
        ({"weight": "event"}, "weight 'buy' is not a number"),
        ({"scale": (1, 5), "implicit": True}, "scale applies to ratings"),
    ],
)
def test_a_named_column_is_used_or_is_an_error(options, expected):
    with pytest.raises(DataError, match=expected):
        Ratings.from_frame(RETURNS, **options)


def test_a_number_for_no_rating_does_not_make_counts_of_ratings():
    values = [1.0] * 90 + [2.0] * 100 + [3.0] * 200 + [4.0] * 200 + [5.0] * 112
    frame = pl.DataFrame({"rating": values + [99.0] * 18})
    pairs = pl.int_range(len(frame), eager=True)
    frame = frame.with_columns(user=pairs, item=pairs % 7)
    ratings = Ratings.from_frame(frame)
    assert not ratings.implicit
    assert "18 rows left out whose rating is 99 (not rated)" in str(ratings.source)
    assert Ratings.from_frame(frame.rename({"rating": "plays"})).implicit


def test_one_odd_value_does_not_make_grades_of_likes():
    levels = np.array([0.0, 1, 2])
    likes = judge(levels, np.array([30, 29, 1]), "liked")
    assert likes.kind == "likes"
    assert likes.remark.startswith("liked is above 0 for a like")
    assert judge(levels, np.array([30, 29, 25]), "liked").kind == "grades"
    both = judge(np.array([-1.0, 1]), np.array([20, 40]), "liked")
    assert (
        both.remark == "liked has other values than 0 and 1, which are taken as grades"
    )


def test_a_mark_of_many_rows_does_not_make_counts_of_grades():
    levels = np.array([1.0, 2, 3, 4, 5, 9999])
    n_rows = np.array([10, 10, 10, 10, 10, 40])
    assert judge(levels, n_rows, "score").kind == "grades"
    assert usual_range(levels, n_rows) == (1, 5)
