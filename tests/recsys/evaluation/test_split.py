"""Splits: nothing lost, nothing in both, indices that agree."""

from dataclasses import dataclass, replace
from datetime import date, datetime

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.ratings import Ratings, restricted
from recsys.errors import DataError
from recsys.evaluation import (
    Split,
    evaluate,
    fingerprint,
    held_out_cold_users,
    held_out_items,
    held_out_users,
    k_fold,
    leave_last_split,
    per_user_split,
    random_split,
    split_from_pair,
    time_split,
)
from recsys.evaluation.splits import default_split


@dataclass
class Blocks:
    """Features of items."""

    matrix: sp.csr_array
    groups: dict[str, slice]


@pytest.fixture
def ratings():
    matrix = sp.random_array((30, 20), density=0.3, rng=np.random.default_rng(0))
    return Ratings.from_matrix(matrix)


@pytest.fixture
def timed(ratings):
    times = np.random.default_rng(5).permutation(ratings.n_ratings)
    return replace(ratings, seconds=times.astype(np.int64))


def pairs(ratings):
    return set(ratings.to_frame().select("user", "item").iter_rows())


def frame(rows, **options):
    return Ratings.from_frame(
        pl.DataFrame(rows, schema=["user", "item", "rating"], orient="row"), **options
    )


def frame_with_times(rows):
    columns = ["user", "item", "rating", "timestamp"]
    return Ratings.from_frame(pl.DataFrame(rows, schema=columns, orient="row"))


def assert_parted(ratings, split):
    """Nothing is lost, nothing is in both parts, and indices agree."""
    assert split.train.n_ratings + split.test.n_ratings == ratings.n_ratings
    assert pairs(split.train) | pairs(split.test) == pairs(ratings)
    assert split.train.users is split.test.users
    assert split.train.items is split.test.items


@given(st.floats(0.01, 0.99), st.integers(0, 10))
def test_random_split_parts_the_ratings(fraction, seed):
    matrix = sp.random_array((30, 20), density=0.3, rng=np.random.default_rng(1))
    ratings = Ratings.from_matrix(matrix)
    train, test = random_split(ratings, fraction, seed)
    assert test.n_ratings == round(ratings.n_ratings * fraction)
    assert pairs(train) | pairs(test) == pairs(ratings)
    assert train.n_ratings + test.n_ratings == ratings.n_ratings
    assert train.users is test.users is ratings.users
    assert train.items is test.items is ratings.items


def test_random_split_is_the_documented_permutation(ratings):
    split = random_split(ratings, test_fraction=0.2, random_state=7)
    n = ratings.n_ratings
    chosen = np.sort(np.random.default_rng(7).permutation(n)[: round(n * 0.2)])
    np.testing.assert_array_equal(split.test.values, ratings.values[chosen])
    np.testing.assert_array_equal(split.test.indices, ratings.indices[chosen])


def test_random_split_depends_on_the_seed_alone(ratings):
    first, again, other = (
        random_split(ratings, random_state=seed) for seed in (1, 1, 2)
    )
    assert pairs(first.test) == pairs(again.test) != pairs(other.test)


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, 1e-9, 1 - 1e-9, float("nan")])
def test_empty_parts_raise(ratings, fraction):
    with pytest.raises(
        DataError, match=f"leave both parts non-empty; got {fraction} of 180 ratings"
    ):
        random_split(ratings, fraction)


def test_a_pair_keeps_new_ids_and_counts_them():
    train = frame([("1", "x", 5.0), ("2", "y", 4.0), ("3", "z", 3.0)])
    test = frame(
        [
            (3, "y", 1.0),
            (1, "z", 2.0),
            (9, "x", 3.0),
            (1, "new", 4.0),
            (8, "old", 5.0),
            (3, "x", 2.5),
        ]
    )
    split = split_from_pair(train, test)
    assert (split.new_users, split.new_items, split.new_ratings) == (2, 2, 3)
    assert split.train.users is split.test.users
    assert split.train.to_frame().equals(train.to_frame())
    assert pairs(split.test) == {(str(user), item) for user, item in pairs(test)}
    known = split.without_new()
    assert known.train.to_frame().equals(train.to_frame())
    assert known.train.shape == known.test.shape == (3, 3)
    assert known.test.to_frame().rows() == [
        ("1", "z", 2.0),
        ("3", "x", 2.5),
        ("3", "y", 1.0),
    ]
    assert known.new_ratings == 0


def test_users_and_items_without_training_ratings_are_dropped_from_both_parts():
    whole = Ratings.from_matrix(np.array([[1, np.nan, 2], [np.nan, 3, np.nan]]))
    held_out = np.array([False, True, True])
    split = Split(whole.take(~held_out), whole.take(held_out))
    assert (split.new_users, split.new_items, split.new_ratings) == (1, 2, 2)
    known = split.without_new()
    assert known.train.shape == known.test.shape == (1, 1)
    assert known.test.n_ratings == 0
    assert known.without_new().train is known.train


def test_indices_agree_though_text_sorts_otherwise_than_numbers():
    train = frame([("9", "9", 5.0), ("10", "10", 4.0)])
    test = frame([(9, 10, 1.0), (10, 9, 2.0)])
    aligned = split_from_pair(train, test).test
    assert aligned.to_frame().rows() == [("10", "9", 2.0), ("9", "10", 1.0)]
    numbers = split_from_pair(
        frame([(9, 9, 5.0), (10, 10, 4.0)]), frame([("9", "10", 1.0)])
    )
    assert numbers.test.to_frame().rows() == [(9, 10, 1.0)]
    train = frame([(9, 9, 5.0), (10, 10, 4.0)])
    mixed = split_from_pair(train, frame([("x", "9", 1.0), ("9", "10", 2.0)]))
    assert mixed.train.to_frame().rows() == [("10", 10, 4.0), ("9", 9, 5.0)]


def test_times_and_kind_of_feedback_come_along():
    train = frame([(1, 7, 5.0), (2, 8, 4.0)])
    test = Ratings.from_frame(
        pl.DataFrame({"user": [2, 1], "item": [7, 8], "timestamp": [50, 60]})
    )
    aligned = split_from_pair(train, test).test
    assert aligned.timestamps.tolist() == [60, 50]
    assert aligned.implicit


def test_pairs_of_the_training_part_are_left_out_of_the_test_part_and_counted():
    train = frame([("ann", "x", 5.0), ("bob", "y", 4.0), ("cy", "z", 3.0)])
    test = frame([("bob", "y", 1.0), ("cy", "z", 2.0), ("ann", "y", 2.0)])
    split = split_from_pair(train, test)
    assert (pairs(split.test), split.n_known) == ({("ann", "y")}, 2)
    both = split_from_pair(train, test, repeats="keep")
    assert (both.test.n_ratings, both.n_known) == (3, 0)
    both.check()
    with pytest.raises(
        DataError, match="training part has all 2 pairs of the test part"
    ):
        split_from_pair(train, frame([("bob", "y", 1.0), ("cy", "z", 2.0)]))
    with pytest.raises(DataError, match="repeats must be"):
        split_from_pair(train, test, repeats="both")


def test_a_planted_overlap_is_rejected_where_models_are_measured(ratings):
    test = random_split(ratings).test
    leaky = np.zeros(ratings.n_ratings, bool)
    leaky[: ratings.n_ratings // 2] = True
    with pytest.raises(DataError, match="contains 8 of the test ratings"):
        evaluate(["popular"], Split(ratings.take(leaky), test))


def test_nothing_in_common_raises():
    with pytest.raises(DataError, match="2 is one of theirs, 1 one of the training"):
        split_from_pair(frame([(1, 1, 5.0)]), frame([(1, 2, 5.0)]))
    message = "No test rating has both a user and an item with training"
    # New users may be folded in, but not by default.
    split = split_from_pair(frame([(1, 1, 5.0)]), frame([(2, 1, 5.0), (1, 2, 5.0)]))
    with pytest.raises(DataError, match=message):
        evaluate(["popular"], split)


def test_parts_with_different_indices_raise(ratings):
    with pytest.raises(
        DataError, match=r"got \(30, 20\) and \(1, 1\) of them. split_from_pair"
    ):
        Split(ratings, frame([(1, 1, 5.0)]))


# per user


@given(st.floats(0.05, 0.95), st.integers(0, 5))
def test_a_share_of_each_users_ratings(fraction, seed):
    matrix = sp.random_array((30, 20), density=0.3, rng=np.random.default_rng(1))
    ratings = Ratings.from_matrix(matrix)
    split = per_user_split(ratings, fraction, seed)
    counts, held = np.diff(ratings.indptr), np.diff(split.test.indptr)
    wanted = np.minimum(np.floor(counts * fraction + 0.5), counts - 1)
    np.testing.assert_array_equal(held, np.maximum(wanted, 0))
    assert_parted(ratings, split)
    assert pairs(per_user_split(ratings, fraction, seed).test) == pairs(split.test)


def test_another_seed_holds_out_other_ratings_of_the_same_number(ratings):
    one, other = (per_user_split(ratings, 0.3, seed) for seed in (1, 2))
    assert pairs(one.test) != pairs(other.test)
    assert one.test.n_ratings == other.test.n_ratings


# by time


def test_the_last_ratings_of_each_user(timed):
    split = leave_last_split(timed, k=2)
    assert (
        split.description == "each user's last 2 events whose item is new to the user"
    )
    assert (
        leave_last_split(timed, repeats="keep").description == "each user's last event"
    )
    assert_parted(timed, split)
    for user, rows in timed.to_frame().group_by("user"):
        last = rows.sort("timestamp").tail(min(2, len(rows) - 1))["item"].to_list()
        assert split.test.to_frame().filter(user=user[0])[
            "item"
        ].sort().to_list() == sorted(last)


def test_rows_in_the_order_of_time_decide_between_equal_times():
    rows = [(1, 7, 1.0, 4), (1, 9, 1.0, 5), (1, 8, 1.0, 5), (2, 7, 1.0, 5)]
    for seed in range(5):
        split = leave_last_split(frame_with_times(rows), random_state=seed)
        assert pairs(split.test) == {(1, 8)}


def test_chance_decides_between_equal_times_if_rows_are_in_another_order():
    rows = [(1, 9, 1.0, 5), (1, 7, 1.0, 4), (1, 8, 1.0, 5), (2, 7, 1.0, 5)]
    draws = [
        leave_last_split(frame_with_times(rows), random_state=seed)
        for seed in range(40)
    ]
    items = [item for split in draws for _, item in pairs(split.test)]
    assert {*items} == {8, 9}
    assert 10 <= items.count(9) <= 30
    again = leave_last_split(frame_with_times(rows), random_state=3)
    assert pairs(again.test) == pairs(draws[3].test)


def test_the_last_new_item_is_held_out_and_what_follows_is_not_trained_on():
    rows = [(1, 7, 1), (1, 8, 2), (1, 9, 3), (1, 7, 4), (2, 5, 1), (2, 5, 9)]
    events = interactions(rows)
    split = leave_last_split(events)
    assert split.train.to_frame().rows() == [(1, 7, 1), (1, 8, 2), (2, 5, 9)]
    assert split.test.to_frame().rows() == [(1, 9, 3)]
    kept = leave_last_split(events, repeats="keep")
    assert kept.train.to_frame().rows() == [(1, 7, 1), (1, 8, 2), (1, 9, 3), (2, 5, 1)]
    assert kept.test.to_frame().rows() == [(1, 7, 4), (2, 5, 9)]


def interactions(rows, **options):
    frame = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
    return Ratings.from_frame(frame, **options)


@pytest.mark.parametrize("policy", ["last", "first", "mean", "sum"])
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 4), st.integers(0, 4), st.integers(1, 5), st.integers(0, 30)
        ),
        min_size=2,
        unique_by=lambda row: (row[0], row[1], row[3]),
    ),
    cut=st.integers(1, 29),
)
def test_a_split_by_time_is_that_of_two_readings(policy, rows, cut):
    names = ["user", "item", "rating", "timestamp"]
    parts = [[row for row in rows if (row[3] < cut) is side] for side in (True, False)]
    known = {row[:2] for row in parts[0]}
    if not parts[0] or not {row[:2] for row in parts[1]} - known:
        return
    frames = [pl.DataFrame(part, schema=names, orient="row") for part in (rows, *parts)]
    whole, train, test = (
        Ratings.from_frame(each, duplicates=policy) for each in frames
    )
    split = time_split(whole, cut=cut)
    assert split.train.to_frame().rows() == train.to_frame().rows()
    fresh = [row for row in test.to_frame().rows() if row[:2] not in known]
    assert split.test.to_frame().rows() == fresh
    assert split.n_known == test.n_ratings - len(fresh)
    kept = time_split(whole, cut=cut, repeats="keep")
    assert kept.test.to_frame().rows() == test.to_frame().rows()


def test_training_weights_age_from_the_newest_training_event():
    rows = [(1, 7, 0), (1, 8, 100), (1, 9, 200), (1, 7, 300)]
    split = time_split(interactions(rows, half_life=100), cut=150)
    assert split.train.to_frame().rows() == [(1, 7, 0.5, 0), (1, 8, 1.0, 100)]
    assert split.test.to_frame().rows() == [(1, 9, 200)]


def test_training_data_are_older_than_test_data(timed):
    split = time_split(timed, 0.2)
    assert_parted(timed, split)
    assert split.test.n_ratings >= round(0.2 * timed.n_ratings)
    assert (
        split.train.timestamps.max()
        < split.parameters["cut"]
        == split.test.timestamps.min()
    )
    assert (
        time_split(timed, cut=split.parameters["cut"]).test.n_ratings
        == split.test.n_ratings
    )
    assert split.description.startswith("the ratings since 1970-01-01 00:")


@pytest.mark.parametrize(
    "cut", ["2015-01-01", date(2015, 1, 1), datetime(2015, 1, 1), 1420070400]
)
def test_a_cut_may_be_a_date(cut):
    rows = [(1, 7, 1.0, 1420070399), (1, 8, 1.0, 1420070400)]
    split = time_split(frame_with_times(rows), cut=cut)
    assert pairs(split.test) == {(1, 8)}
    assert split.parameters["cut"] == 1420070400


def test_ratings_at_the_time_of_the_cut_are_all_tested():
    rows = [(1, 7, 1.0, 1), (1, 8, 1.0, 5), (1, 9, 1.0, 5), (2, 7, 1.0, 5)]
    assert time_split(frame_with_times(rows), 0.25).test.n_ratings == 3


def test_where_most_ratings_have_the_oldest_time_the_others_are_tested():
    rows = [(1, item, 1.0, 0) for item in range(9)] + [(1, 9, 1.0, 5), (1, 10, 1.0, 6)]
    for split in (
        time_split(frame_with_times(rows), 0.5),
        default_split(frame_with_times(rows), 0.5),
    ):
        assert split.test.n_ratings == 2
        assert split.parameters["cut"] == 5


def test_a_cut_before_the_year_1_has_a_description():
    split = time_split(
        frame_with_times([(1, 7, 1.0, -(10**11)), (1, 8, 1.0, -(10**11) + 5)]), 0.5
    )
    assert split.description == "the ratings since -99999999995 s after 1970"
    assert time_split(
        frame_with_times([(1, 7, 1.0, -9), (1, 8, 1.0, -5)]), 0.5
    ).description == ("the ratings since 1969-12-31 23:59:55 UTC")


def test_planted_future_ratings_are_caught(timed):
    split = time_split(timed, 0.2)
    split.check()
    train = split.train.timestamps.copy()
    train[3] = split.parameters["cut"] + 7
    leaky = replace(split, train=replace(split.train, seconds=train))
    message = (
        rf"^The training part has 1 rating on the wrong side of the cut at "
        rf"{split.parameters['cut']}, the first at {train[3]}; they must be older"
    )
    with pytest.raises(DataError, match=message):
        leaky.check()
    with pytest.raises(DataError, match=message):
        evaluate(["popular"], leaky)
    test = split.test.timestamps.copy()
    test[0] = 0
    with pytest.raises(DataError, match="The test part has 1 rating on the wrong side"):
        replace(split, test=replace(split.test, seconds=test)).check()


@pytest.mark.parametrize("method", [leave_last_split, time_split])
def test_times_are_needed(ratings, method):
    with pytest.raises(DataError, match=f"^{method.__name__} requires timestamps"):
        method(ratings)


def test_bad_requests_by_time_raise(timed):
    with pytest.raises(DataError, match="k must be at least 1; got 0"):
        leave_last_split(timed, 0)
    with pytest.raises(DataError, match=r"k must be a whole number; got 1\.5"):
        leave_last_split(timed, 1.5)
    with pytest.raises(
        DataError, match=r"cut must be a date or time, such as .*; got 'soon'"
    ):
        time_split(timed, cut="soon")
    with pytest.raises(DataError, match="cut must be a date or time"):
        time_split(timed, cut=True)
    with pytest.raises(DataError, match="test_fraction must be between 0 and 1"):
        time_split(timed, 1.5)
    with pytest.raises(DataError, match="A cut at 0 leaves one part empty: the times"):
        time_split(timed, cut=0)
    alone = frame_with_times([(1, 7, 1.0, 1), (2, 8, 1.0, 5)])
    with pytest.raises(DataError, match="No user has two ratings"):
        leave_last_split(alone)


# folds


@pytest.mark.parametrize("folds", [2, 7])
def test_each_rating_is_tested_in_one_fold(ratings, folds):
    splits = list(k_fold(ratings, folds, random_state=3))
    assert [split.parameters["fold"] for split in splits] == list(range(1, folds + 1))
    for split in splits:
        assert_parted(ratings, split)
    tested = [pair for split in splits for pair in pairs(split.test)]
    assert len(tested) == len(set(tested)) == ratings.n_ratings
    assert len({split.test.n_ratings for split in splits}) <= 2
    assert [
        each.parameters for each in k_fold(ratings, folds, random_state=3)[-2:]
    ] == [split.parameters for split in splits[-2:]]
    assert pairs(k_fold(ratings, folds, random_state=3)[0].test) == pairs(
        splits[0].test
    )


@pytest.mark.parametrize(
    ("folds", "message"),
    [
        (1, "at least 2; got 1"),
        (2.5, r"a whole number; got 2\.5"),
        (181, "at most the number of ratings, 180; got 181"),
    ],
)
def test_too_few_or_too_many_folds(ratings, folds, message):
    with pytest.raises(DataError, match=f"folds must be {message}"):
        k_fold(ratings, folds)


@pytest.mark.parametrize(
    "make",
    [
        random_split,
        per_user_split,
        held_out_users,
        held_out_items,
        held_out_cold_users,
        k_fold,
    ],
)
@pytest.mark.parametrize("seed", [None, 1.5, np.random.default_rng(0), -1])
def test_a_split_at_random_has_a_seed_that_can_be_saved(ratings, make, seed):
    with pytest.raises(
        DataError, match=r"^random_state must be (a whole number|at least 0); got "
    ):
        make(ratings, random_state=seed)
    make(ratings, random_state=np.int64(3))


# users


def test_held_out_users_are_not_learnt_from(ratings):
    split = held_out_users(ratings, 0.3, 0.25, random_state=2)
    learnt, tested, history = (set(part.to_frame()["user"]) for part in split.parts)
    assert not learnt & tested
    assert tested == history
    assert len(tested) == 9
    assert split.train.n_users == ratings.n_users - 9
    assert pairs(split.train) | pairs(split.test) | pairs(split.history) == pairs(
        ratings
    )
    assert not pairs(split.test) & pairs(split.history)
    assert split.seen is split.history
    split.check()
    known = split.without_new()
    assert known.history.users == known.test.users
    assert known.train.items == known.test.items


def test_held_out_users_with_training_ratings_are_caught(ratings):
    split = held_out_users(ratings, 0.3, random_state=2)
    with pytest.raises(
        DataError, match="The training part has ratings of 9 held-out users"
    ):
        replace(split, train=ratings).check()


@pytest.mark.parametrize(("users", "tested"), [(0, 0.2), (1, 0.2), (0.2, 0), (0.2, 1)])
def test_bad_shares_of_users_raise(ratings, users, tested):
    name = "user_fraction" if users in (0, 1) else "test_fraction"
    with pytest.raises(DataError, match=f"{name} must be between 0 and 1"):
        held_out_users(ratings, users, tested)


def test_a_fingerprint_is_of_pairs_and_values(ratings):
    everything = fingerprint(ratings)
    padded = split_from_pair(
        ratings, frame([(0, 99, 1.0), (77, 0, 1.0), (29, 0, 1.0)])
    ).train
    assert padded.shape != ratings.shape
    assert fingerprint(padded) == everything
    assert fingerprint(ratings.take(np.arange(179))) != everything
    assert fingerprint(ratings.with_values(ratings.values + 1)) != everything


def test_nothing_overlaps_with_an_empty_part(ratings):
    nothing = ratings.take(np.zeros(ratings.n_ratings, bool))
    with pytest.raises(DataError, match="No test rating has both a user and an item"):
        evaluate(["popular"], Split(nothing, ratings))


def test_frames_are_split_and_other_things_raise(ratings):
    frame = ratings.to_frame()
    assert pairs(random_split(frame).test) == pairs(random_split(ratings).test)
    with pytest.raises(DataError):
        random_split(5)


@pytest.mark.parametrize(
    ("method", "make"), [("items", held_out_items), ("users-cold", held_out_cold_users)]
)
def test_whole_items_or_users_are_held_out_and_a_share_of_the_others(method, make):
    rng = np.random.default_rng(0)
    X = sp.random_array((60, 50), density=0.3, rng=rng, format="csr")
    X.data = rng.integers(1, 6, X.nnz).astype(float)
    ratings = Ratings.from_matrix(X)
    split = make(ratings, 0.2, 0.1, random_state=3)
    split.check()
    assert split.method == method
    assert split.train.shape == split.test.shape == ratings.shape
    assert split.train.n_ratings + split.test.n_ratings == ratings.n_ratings
    new = split.new_items if method == "items" else split.new_users
    assert new == (10 if method == "items" else 12)
    warm = split.test.n_ratings - split.new_ratings
    assert warm == round(0.1 * (split.train.n_ratings + warm))
    again = make(ratings, 0.2, 0.1, random_state=3)
    np.testing.assert_array_equal(again.test.indices, split.test.indices)
    with pytest.raises(
        DataError, match="_fraction must be between 0 and 1 and leave both"
    ):
        make(ratings, 1.0)


def test_features_stay_with_their_items():
    ratings = Ratings.from_matrix(np.array([[1, np.nan, 2], [np.nan, np.nan, 3]]))
    features = Blocks(sp.csr_array(np.arange(6.0).reshape(3, 2)), {"f": slice(0, 2)})
    known = replace(ratings, item_features=features)
    kept = restricted(known, np.ones(2, bool), np.array([True, False, True]))
    np.testing.assert_array_equal(kept.item_features.matrix.toarray(), [[0, 1], [4, 5]])
    test = Ratings.from_frame(
        pl.DataFrame({"user": [1, 1], "item": [0, 7], "rating": [2.0, 3.0]})
    )
    both = split_from_pair(known, test)
    rows = both.train.item_features.matrix.toarray()
    np.testing.assert_array_equal(rows, [[0, 1], [2, 3], [4, 5], [0, 0]])


def test_coarse_times_do_not_hold_out_most_events_by_default():
    frame = pl.DataFrame({"user": range(100), "item": 7, "rating": 3.0})
    for n_old, method in ((95, "time"), (60, "time"), (20, "random")):
        years = [2024] * n_old + [2025] * (100 - n_old)
        times = pl.Series("timestamp", [datetime(year, 1, 1) for year in years])
        split = default_split(frame.with_columns(times))
        assert split.method == method
    assert split.test.n_ratings == 10
