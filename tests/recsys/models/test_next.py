"""The model of the next item: its regressions, neighbours, order of histories, and explanations."""

import dataclasses

import numpy as np
import polars as pl
import pytest
from scipy.sparse import csr_array

from lowrank import kernels
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.models.ease import default_penalty
from recsys.models.histories import Histories
from recsys.models.next import Next
from recsys.models.registry import make_model
from recsys.models.sequences import (
    Sequences,
    reach,
    sequences_of_events,
    sources,
)
from recsys.models.shares import best_shares
from recsys.models.transitions import Regression, direction_weights, gram
from recsys.recommender import Recommender
from recsys.saving.arrays import DamageError


def make_events(n_users=40, n_items=12, seed=0, length=9):
    """Random sequences in which an item comes again now and then."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, length, n_users)
    users = np.repeat(np.arange(n_users), lengths)
    return pl.DataFrame(
        {
            "user": users,
            "item": rng.integers(0, n_items, len(users)),
            "timestamp": 1.5e9 + np.arange(len(users)),
        }
    )


def make_ratings(**options):
    return Ratings.from_frame(make_events(**options), implicit=True)


def pairs_by_hand(sequences, n_items, gamma):
    """Source and target of each position, as dense rows."""
    all_sources, targets = [], []
    for start, stop in zip(sequences.indptr, sequences.indptr[1:], strict=False):
        source = np.zeros(n_items)
        for position in range(start, stop):
            target = np.zeros(n_items)
            target[sequences.items[position]] = sequences.weights[position]
            all_sources.append(source)
            targets.append(target)
            source = gamma * (source + target)
    return np.array(all_sources), np.array(targets)


def weights_by_hand(sequences, n_items, gamma, penalty, item_power):
    S, T = pairs_by_hand(sequences, n_items, gamma)
    counts = np.bincount(sequences.items, minlength=n_items)
    D = np.diag(np.maximum(counts, 1.0) ** -item_power)
    gram = D @ S.T @ S @ D + penalty * np.eye(n_items)
    return D @ np.linalg.solve(gram, D @ S.T @ T)


def first_weights(model):
    """The weights of the first decay."""
    return model._weights.toarray()[: model.n_items]


@pytest.mark.parametrize("decay", [0.5, 1.0])
def test_weights_are_the_ridge_regression_of_targets_on_sources(decay):
    # Shorter sequences than the reach of a decay: nothing is left out.
    ratings = make_ratings(length=reach(np.exp(-1 / decay)) + 1)
    model = Next(decay=decay, regularization=2.0).fit(ratings)
    sequences = sequences_of_events(ratings)
    gamma = np.exp(-1 / decay)
    expected = weights_by_hand(sequences, ratings.n_items, gamma, 2.0, 0.25)
    np.testing.assert_allclose(first_weights(model), expected, rtol=0, atol=2e-6)


def test_weights_of_interactions_count_as_sources_and_targets():
    frame = make_events(length=4)
    weights = np.random.default_rng(1).uniform(0.5, 3, len(frame))
    frame = frame.with_columns(weight=pl.Series(weights))
    ratings = Ratings.from_frame(frame, weight="weight", implicit=True)
    model = Next(decay=1.0, regularization=2.0).fit(ratings)
    sequences = sequences_of_events(ratings)
    assert sequences.weights.mean() == pytest.approx(1, abs=1e-6)
    assert sequences.weights.std() > 0.1
    expected = weights_by_hand(sequences, ratings.n_items, np.exp(-1), 2.0, 0.25)
    np.testing.assert_allclose(first_weights(model), expected, rtol=0, atol=2e-6)


def test_items_beyond_the_dense_ones_have_the_diagonal_of_the_gram_matrix(monkeypatch):
    monkeypatch.setattr("recsys.models.transitions._DENSE", 5)
    ratings = make_ratings(length=4)
    model = Next(decay=1.0, regularization=2.0, item_power=0.0).fit(ratings)
    sequences = sequences_of_events(ratings)
    S, T = pairs_by_hand(sequences, ratings.n_items, np.exp(-1))
    counts = np.bincount(sequences.items, minlength=ratings.n_items)
    rare = np.argsort(-counts, kind="stable")[5:]
    expected = (S.T @ T)[rare] / (np.square(S).sum(axis=0)[rare, None] + 2.0)
    weights = first_weights(model)[rare]
    np.testing.assert_allclose(weights, expected, rtol=0, atol=2e-6)


def test_sums_over_pairs_have_the_weights_of_their_lags():
    sequences = Sequences(
        np.array([0, 3, 4]), np.array([0, 1, 0, 2], np.int32), np.ones(4, np.float32)
    )
    pairs = Regression.of(sequences, 3, 0.0).sums(np.arange(3), 0.5, 3)
    np.testing.assert_allclose(
        pairs.toarray(), [[0.25, 0.5, 0], [0.5, 0, 0], [0, 0, 0]]
    )
    latest = sources(sequences, 3, 0.5).toarray()
    np.testing.assert_allclose(latest, [[0.5 + 0.125, 0.25, 0], [0, 0, 0.5]])


def test_weights_are_the_same_on_any_number_of_threads():
    ratings = make_ratings(n_users=300, n_items=400, length=60)
    fits = []
    for threads in (1, 3):
        with kernels.at_most(threads):
            fits.append(Next().fit(ratings))
    alone, shared = fits
    np.testing.assert_array_equal(shared.weight_items, alone.weight_items)
    np.testing.assert_array_equal(shared.weight_values, alone.weight_values)
    np.testing.assert_array_equal(shared.shares, alone.shares)
    ones = alone._histories._replace(weights=np.ones_like(alone.history_weights))
    X = ones.matrix(alone.n_items).toarray()
    np.testing.assert_array_equal(gram(alone._binary_histories), X.T @ X)


def test_planted_transitions_are_recovered():
    rng = np.random.default_rng(0)
    cycle = rng.permutation(50)
    after = dict(zip(cycle, np.roll(cycle, -1), strict=True))
    rows = []
    for user in range(400):
        item = rng.integers(50)
        for position in range(6):
            rows.append((user, item, 1.5e9 + position))
            item = after[item] if rng.random() < 0.8 else rng.integers(50)
    frame = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
    recommender = Recommender("next").fit(frame)
    for item in range(50):
        top = recommender.recommend(history=[item], n=1)
        assert top["item"].to_list() == [after[item]]


def test_the_order_of_a_new_history_counts():
    recommender = Recommender("next").fit(make_events(seed=3))
    one = recommender.recommend(history=[1, 5], n=5)
    other = recommender.recommend(history=[5, 1], n=5)
    assert one["score"].to_list() != other["score"].to_list()
    timed = pl.DataFrame({"item": [5, 1], "timestamp": [1.5e9 + 9, 1.5e9]})
    assert recommender.recommend(history=timed, n=5).equals(one)


def test_new_users_with_the_history_of_a_known_one_have_its_scores():
    ratings = make_ratings(seed=4)
    model = Next().fit(ratings)
    folded = model.with_users(Histories.of(ratings))
    users = np.arange(ratings.n_users)
    np.testing.assert_array_equal(folded.scores(users), model.scores(users))


def test_a_user_is_not_a_neighbour_of_itself():
    frame = pl.DataFrame(
        {
            "user": ["a", "a", "b", "b", "c", "c", "c"],
            "item": [0, 1, 0, 2, 0, 1, 3],
            "timestamp": 1.5e9 + np.arange(7),
        }
    )
    ratings = Ratings.from_frame(frame, implicit=True)
    model = Next().fit(ratings)
    scores = model._neighbors.scores(
        model._histories.take(np.array([0])), 100
    ).toarray()[0]
    # b shares the first item of a, c shares both, and the last counts most.
    of_b, of_c = np.exp(-2.0) ** 2, (np.exp(-1.0) + np.exp(-2.0)) ** 2
    # Items one place from the latest shared one count less.
    near = np.exp(-0.5)
    expected = np.array([of_b + near * of_c, of_c, near * of_b, near * of_c])
    expected /= of_b + of_c
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


def test_of_users_who_share_as_much_the_newest_are_neighbours():
    n = 400
    # The first item of all users is shared, and the second is their own.
    frame = pl.DataFrame(
        {
            "user": np.repeat(np.arange(n), 2),
            "item": np.stack([np.zeros(n, int), 1 + np.arange(n)], axis=1).ravel(),
            "timestamp": 1.5e9 + np.arange(2 * n),
        }
    )
    model = Next().fit(Ratings.from_frame(frame, implicit=True))
    history = Sequences(np.array([0, 1]), np.zeros(1, np.int32), np.ones(1, np.float32))
    scores = model._neighbors.scores(history, 3).toarray()[0]
    assert np.flatnonzero(scores).tolist() == [0, n - 2, n - 1, n]


def test_users_without_neighbours_have_scores_of_zero_by_them():
    frame = pl.DataFrame(
        {"user": [0, 0, 1, 1], "item": [0, 1, 2, 3], "timestamp": 1.5e9 + np.arange(4)}
    )
    model = Next().fit(Ratings.from_frame(frame, implicit=True))
    scores = model._neighbors.scores(model._histories, 100)
    assert scores.shape == (2, 4)
    assert not scores.nnz
    assert np.isfinite(model.scores(np.arange(2))).all()


@pytest.mark.parametrize("seed", range(5))
def test_explanations_add_up_to_the_scores(seed):
    ratings = make_ratings(seed=seed)
    model = Next().fit(ratings)
    assert model.neighbor_share >= 0
    model.neighbor_share = 0.7
    histories = Histories.of(ratings)
    items = np.arange(ratings.n_items)
    for user in range(10):
        history = histories.take(np.array([user]))
        folded = model.with_users(history)
        explanation = model.contributions(history, items)
        assert explanation.terms.shape == (len(items), len(history.indices))
        total = explanation.base + explanation.terms.sum(axis=1)
        np.testing.assert_allclose(total, folded.scores([0])[0], rtol=1e-5)


def test_two_events_of_one_item_in_the_same_second_are_one():
    frame = make_events()
    twice = pl.concat([frame, frame[::2]]).sort("timestamp")
    ratings = [Ratings.from_frame(f, implicit=True) for f in (frame, twice)]
    one, other = (sequences_of_events(r) for r in ratings)
    np.testing.assert_array_equal(one.items, other.items)


def test_ties_of_rows_without_order_are_shuffled_and_others_are_not():
    start = 1_500_000_000
    visits = ((1, start), (2, start), (3, start + 60))
    rows = [(user, *visit) for user in range(200) for visit in visits]
    in_order = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
    ratings = Ratings.from_frame(in_order, implicit=True)
    first = sequences_of_events(ratings).items[::3]
    assert (first == 0).all()
    reversed_rows = Ratings.from_frame(in_order[::-1], implicit=True)
    shuffled = sequences_of_events(reversed_rows)
    assert 60 < np.count_nonzero(shuffled.items[::3] == 0) < 140
    assert (shuffled.items[2::3] == 2).all()


def test_without_times_the_error_names_the_option_and_another_model():
    frame = make_events().drop("timestamp")
    with pytest.raises(DataError, match=r"no timestamps; name their column .*ease"):
        Recommender("next").fit(frame)


def test_one_decay_replaces_the_three():
    ratings = make_ratings()
    assert Next().fit(ratings).decays.tolist() == [1, 3, 8, 0, 3]
    assert Next(decay=2.5).fit(ratings).decays.tolist() == [2.5, 0, 3]


def test_weights_without_order_are_the_weights_of_ease():
    ratings = make_ratings(seed=6)
    n = ratings.n_items
    model = Next().fit(ratings)
    X = (ratings.matrix.toarray() > 0).astype(float)
    penalty = default_penalty(X.sum(axis=0))
    P = np.linalg.inv(X.T @ X + penalty * np.eye(n))
    expected = np.eye(n) - P / np.diag(P)
    weights = model._weights.toarray()[3 * n : 4 * n]
    np.testing.assert_allclose(weights, expected, rtol=0, atol=2e-6)


def test_the_last_weights_are_the_root_of_the_gram_matrix_and_the_share_of_repeats():
    ratings = make_ratings(seed=6)
    n = ratings.n_items
    model = Next().fit(ratings)
    X = (ratings.matrix.toarray() > 0).astype(float)
    scaled = X / np.sqrt(X.sum(axis=1)[:, None] * X.sum(axis=0))
    values, vectors = np.linalg.eigh(scaled.T @ scaled)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    np.fill_diagonal(root, 1 - X.sum() / len(ratings.log))
    weights = model._weights.toarray()[4 * n :]
    np.testing.assert_allclose(weights, root, rtol=0, atol=1e-4)


def test_weights_of_few_items_have_the_small_directions_too():
    X = (np.random.default_rng(25).random((9, 8)) < 0.6).astype(np.float32)
    # The users of the last item are the ones of the first, but for one.
    X[:, 7] = X[:, 0]
    X[0, 7] = 1 - X[0, 0]
    weights = direction_weights(csr_array(X), 0.0, 8).toarray()
    scaled = X / np.sqrt(X.sum(axis=1)[:, None] * X.sum(axis=0))
    values, vectors = np.linalg.eigh(scaled.T.astype(float) @ scaled)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    np.fill_diagonal(root, 0)
    np.testing.assert_allclose(weights, root, rtol=0, atol=1e-6)


def test_directions_bring_items_of_similar_histories_without_a_common_user():
    # No user has both the first and the last item, but both are with the two others.
    middle = [(1, 2), (2, 1)]
    rows = [
        (f"{user}{end}", item, 1.5e9 + place)
        for user in range(20)
        for end in (0, 3)
        for place, item in enumerate([end, *middle[user % 2]])
    ]
    rows += [(f"other{user}", 4 + user % 2, 1.5e9) for user in range(20)]
    frame = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
    ratings = Ratings.from_frame(frame, implicit=True)
    weights = direction_weights(Next().fit(ratings)._binary_histories, 0.2, 6).toarray()
    assert weights[0, 3] != 0
    np.testing.assert_allclose(weights[0, 4:], 0, atol=1e-6)
    np.testing.assert_allclose(weights.diagonal(), 0.2)


def test_items_that_never_come_again_have_no_weight_for_themselves():
    frame = make_events().unique(["user", "item"], maintain_order=True)
    model = Next().fit(Ratings.from_frame(frame, implicit=True))
    n = model.n_items
    assert not model._weights.toarray()[4 * n :].diagonal().any()


def test_shares_rank_the_last_items_at_least_as_well_as_equal_shares():
    ratings = make_ratings(n_users=200, n_items=30, seed=7)
    model = make_model("next").fit(ratings)
    assert (model.shares >= 0).all()
    assert model.shares.max() > 0
    again = dataclasses.replace(ratings)
    np.testing.assert_array_equal(make_model("next").fit(again).shares, model.shares)


def test_shares_are_chosen_by_a_fit_without_the_last_items():
    frame = make_events(n_users=60)
    n_events = pl.len().over("user")
    is_last = pl.int_range(pl.len()).over("user") == n_events - 1
    last = frame.filter(is_last & (n_events > 1))
    before = frame.join(last, on=["user", "timestamp"], how="anti")
    earlier = Ratings.from_frame(before, implicit=True)
    trial = Next(neighbors=0).fit(earlier)
    trial.item_chances = np.zeros_like(trial.item_chances)
    judges = earlier.users.index(last["user"])
    parts = []
    for shares in np.eye(len(trial.shares), dtype=np.float32):
        trial.shares = shares
        parts.append(trial._factor_form(judges).scores())
    is_seen = earlier.matrix.toarray()[judges] > 0
    targets = earlier.items.index(last["item"])
    model = Next(neighbors=0).fit(Ratings.from_frame(frame, implicit=True))
    np.testing.assert_allclose(model.shares, best_shares(parts, is_seen, targets))


def test_shares_are_for_lists_with_and_without_seen_items():
    n_users = 100
    is_seen = np.zeros((n_users, 3), np.bool_)
    is_seen[:, 0] = True
    # One user in ten takes the seen item again.
    targets = np.ones(n_users, np.int32)
    targets[:10] = 0
    new_item = np.tile(np.float32([0, 1, 0]), (n_users, 1))
    seen_item = np.tile(np.float32([1, 0, 0]), (n_users, 1))
    shares = best_shares([new_item, seen_item], is_seen, targets)
    assert shares[0] > shares[1]


@pytest.mark.parametrize("bad", [-1.0, np.nan])
def test_rejects_decays_of_a_damaged_model(bad):
    model = Next().fit(make_ratings())
    arrays = {**model._arrays(), "decays": np.array([bad, 3, 8, 0, 3], np.float32)}
    with pytest.raises(DamageError, match="decays has values"):
        Next._from_arrays(model.get_params(), arrays)


def test_what_was_returned_is_not_the_latest_item():
    frame = pl.DataFrame(
        {
            "user": ["u", "u", "u", "v"],
            "item": ["a", "b", "a", "a"],
            "quantity": [3.0, 2.0, -1.0, 1.0],
            "timestamp": [1_700_000_000 + 86_400 * day for day in range(4)],
        }
    )
    ratings = Ratings.from_frame(frame, weight="quantity")
    history = Next(neighbors=0).fit(ratings).history_items[:2]
    assert list(ratings.items.values[history]) == ["a", "b"]
