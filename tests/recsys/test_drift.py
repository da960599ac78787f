"""Drift: the stability index and what chance gives."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys import Ratings, Recommender
from recsys.drift import latest, popularity_stability, rating_stability, stability
from recsys.errors import DataError
from recsys.evaluation import monitor

counts = st.lists(st.integers(1, 500), min_size=2, max_size=8)


@given(counts, st.integers(1, 9))
def test_the_index_is_zero_for_the_same_shares_and_symmetric(before, factor):
    same = stability(before, [factor * each for each in before])
    assert same.index == pytest.approx(0, abs=1e-12)
    assert not same.is_shift
    there, back = (
        stability(*pair) for pair in ((before, before[::-1]), (before[::-1], before))
    )
    assert there.index == pytest.approx(back.index)
    assert there.index >= 0


def test_chance_is_that_of_samples_of_one_distribution():
    rng = np.random.default_rng(0)
    shares = np.array([0.4, 0.3, 0.2, 0.1])
    pairs = [
        stability(rng.multinomial(2000, shares), rng.multinomial(300, shares))
        for _ in range(2000)
    ]
    above = np.mean([each.index > each.chance for each in pairs])
    assert 0.005 < above < 0.02  # one of a hundred


def test_counts_must_be_of_the_same_groups():
    with pytest.raises(DataError, match="must be of the same groups"):
        stability([1, 2], [1, 2, 3])
    with pytest.raises(DataError, match="a sample is empty"):
        stability([1, 2], [0, 0])


def frame(n, seed, high=6.0, items=50, start=0):
    rng = np.random.default_rng(seed)
    places = np.minimum(rng.geometric(0.08, n), items)
    values = rng.choice(np.arange(1.0, high), n)
    rows = {"user": rng.integers(0, 200, n), "item": places, "rating": values}
    return pl.DataFrame({**rows, "timestamp": start + np.arange(n)})


def test_ratings_of_the_same_kind_have_not_shifted_and_others_have():
    known = Ratings.from_frame(frame(8000, 0))
    same = Ratings.from_frame(frame(2000, 1))
    assert not rating_stability(known, same).is_shift
    assert not popularity_stability(known, same).is_shift
    low = Ratings.from_frame(frame(500, 2, high=4.0))
    assert rating_stability(known, low).is_shift
    assert rating_stability(known, low).verdict == "a shift (0.25 or more is a shift)"
    assert rating_stability(known, same).verdict.startswith(
        "no more than by chance (0.25"
    )
    assert rating_stability(known, low).groups == ("1", "2", "3", "4", "5")
    turned = frame(500, 3).with_columns(item=51 - pl.col("item"))
    assert popularity_stability(known, Ratings.from_frame(turned)).is_shift


def test_many_values_are_compared_in_tenths():
    rng = np.random.default_rng(0)
    known = frame(3000, 0).with_columns(rating=pl.Series(rng.normal(0, 1, 3000)))
    same = frame(900, 1).with_columns(rating=pl.Series(rng.normal(0, 1, 900)))
    known, same = Ratings.from_frame(known), Ratings.from_frame(same)
    found = rating_stability(known, same)
    assert len(found.groups) == 10
    assert found.before == pytest.approx(np.full(10, 0.1), abs=0.01)
    assert not found.is_shift
    assert rating_stability(known, same.with_values(same.values + 2)).is_shift


def test_what_cannot_be_compared_is_none():
    known = Ratings.from_frame(frame(500, 0))
    other = Ratings.from_frame(frame(50, 1).with_columns(item=pl.col("item") + 1000))
    assert popularity_stability(known, other) is None
    assert (
        rating_stability(known, Ratings.from_frame(frame(9, 1).drop("rating"))) is None
    )


def test_the_newest_ratings_are_the_reference():
    once = frame(30_000, 0).with_columns(user=pl.int_range(30_000))
    known = Ratings.from_frame(once)
    places = latest(known, 5)
    assert len(places) == 10_000
    assert known.timestamps[places].min() >= np.sort(known.timestamps)[-10_000]
    assert latest(known, 10_000) is None


def test_monitoring_without_anything_known_has_no_metrics():
    known = Recommender("bias").fit(Ratings.from_frame(frame(300, 0)))
    moved = frame(20, 1).with_columns(pl.col("user", "item") + 10_000)
    found = monitor(known, Ratings.from_frame(moved), resamples=0)
    assert found.evaluation is None
    assert found.values["unknown_users"] == found.values["unknown_items"] == 1.0
    assert set(found.groups["drift"]) == {"ratings"}
    with pytest.raises(DataError, match="the new data have none"):
        monitor(known, Ratings.from_frame(moved.drop("rating")))


def test_repeated_pairs_are_counted_and_not_measured():
    known = Ratings.from_frame(frame(300, 0))
    found = monitor(Recommender("bias").fit(known), known, resamples=0)
    assert found.values["repeated_ratings"] == 1.0
    assert found.evaluation is None
