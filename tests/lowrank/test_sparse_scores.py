"""Scores with a sparse part, and item-item weights, on every instruction set of this machine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowrank import kernels
from lowrank.kernels import CsrArrays, Seen, SparsePart
from lowrank.kernels import topk as ordering
from lowrank.kernels.retrieval import (
    gram_rows,
    pair_rows,
    sparse_pairs,
    sparse_rows,
    top_k,
)
from lowrank.kernels.topk import product_stops

COMPILED = kernels.supported()[1:]


@pytest.fixture(autouse=True)
def _restore_kernels(monkeypatch):
    monkeypatch.setattr(
        ordering, "_FEW_QUERIES", 2
    )  # so that small searches prune, too
    active = kernels.backend()
    yield
    kernels.use(active.instruction_set or "reference")


def sparse(rng, n, m, share, integer=False):
    """Return a random matrix, dense and as CSR arrays."""
    values = rng.integers(-3, 4, (n, m)) if integer else rng.normal(size=(n, m))
    dense = np.where(rng.random((n, m)) < share, values, 0).astype(np.float32)
    rows, columns = np.nonzero(dense)
    indptr = np.searchsorted(rows, np.arange(n + 1)).astype(np.int64)
    return dense, CsrArrays(indptr, columns.astype(np.int32), dense[rows, columns])


def problem(n_users, n_items, k, seed, integer=False):
    """Return users, items and a sparse part whose columns are in an order of their own."""
    rng = np.random.default_rng(seed)
    users, items = (
        (rng.integers(-2, 3, (n, k)) if integer else rng.normal(size=(n, k))).astype(
            np.float32
        )
        for n in (n_users, n_items)
    )
    h, history = sparse(rng, n_users, 30, 0.2, integer)
    S, weights = sparse(rng, 30, n_items, 0.3, integer)
    order = rng.permutation(n_items).astype(np.int32)
    part = np.empty((n_users, n_items), np.float32)
    part[:, order] = h @ S
    return users, items, SparsePart(history, weights, order), part


def by_sorting(scores, n):
    return np.argsort(-scores, axis=1, kind="stable")[:, :n]


@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(kernels.supported()),
    shape=st.tuples(
        st.integers(1, 40), st.integers(1, 200), st.sampled_from([0, 3, 40])
    ),
    n=st.integers(1, 30),
)
def test_factors_and_sparse_part_add_up(seed, name, shape, n):
    users, items, part, expected = problem(*shape, seed, integer=True)
    allowed = np.random.default_rng(seed).random(len(items)) < 0.7
    kernels.use(name)
    found = top_k(users, items, n, sparse=part, allowed=allowed)
    scores = expected + users @ items.T
    scores[:, ~allowed] = -np.inf
    best = by_sorting(scores, min(n, allowed.sum()))
    np.testing.assert_array_equal(found.items, best)
    np.testing.assert_array_equal(
        found.scores, np.take_along_axis(scores, best, axis=1)
    )


@pytest.mark.parametrize("name", kernels.supported())
@pytest.mark.parametrize("k", [0, 50, 300])
def test_scores_equal_the_pairs_in_every_bit(name, k):
    users, items, part, _ = problem(37, 400, k, seed=k)
    kernels.use(name)
    place = np.argsort(part.order)
    rows, columns = np.divmod(np.arange(37 * 400), 400)
    scores = kernels.pair_dots(users, items, rows, columns)
    scores += sparse_pairs(part.history, part.weights, rows, place[columns])
    scores = scores.reshape(37, 400)
    together = sparse_rows(part.history, part.weights, 400)[:, place]
    alone = sparse_pairs(part.history, part.weights, rows, place[columns])
    np.testing.assert_array_equal(together, alone.reshape(37, 400))
    for prune in (True, False):
        found = top_k(users, items, 9, sparse=part, prune=prune)
        np.testing.assert_array_equal(found.items, by_sorting(scores, 9))
        np.testing.assert_array_equal(
            found.scores, np.take_along_axis(scores, by_sorting(scores, 9), axis=1)
        )


@pytest.mark.parametrize("name", COMPILED)
def test_same_bits_alone_and_on_any_number_of_threads(name):
    # So many items that their sums take several tiles.
    users, items, part, _ = problem(120, 30_000, 130, seed=3)
    seen = Seen(np.arange(120), np.arange(121), np.arange(120, dtype=np.int32))
    kernels.use(name)
    together = top_k(users, items, 7, sparse=part, seen=seen, threads=1)
    for threads in (2, 3):
        found = top_k(users, items, 7, sparse=part, seen=seen, threads=threads)
        for one, other in zip(found, together, strict=True):
            np.testing.assert_array_equal(one, other)
    for user in (0, 71, 119):
        one = slice(user, user + 1)
        mine = slice(*part.history.indptr[user : user + 2])
        history = CsrArrays(
            np.array([0, mine.stop - mine.start]),
            part.history.indices[mine],
            part.history.data[mine],
        )
        alone = top_k(
            users[one],
            items,
            7,
            sparse=part._replace(history=history),
            seen=seen._replace(rows=seen.rows[one]),
        )
        np.testing.assert_array_equal(alone.items[0], together.items[user])
        np.testing.assert_array_equal(alone.scores[0], together.scores[user])


@pytest.mark.parametrize("k", [128, 200, 520])
def test_the_stops_bound_the_rest_of_the_products(k):
    rng = np.random.default_rng(k)
    users, items = (
        np.float32(rng.normal(size=(n, k)) * rng.random(k) ** 4) for n in (30, 90)
    )
    order = rng.permutation(90).astype(np.int32)
    stops = product_stops(users, items, order)
    assert stops.at[0] == 64
    assert stops.at[-1] <= k / 2
    for at, user_rest, item_rest in zip(*stops, strict=True):
        rest = np.abs(users[:, at:].astype(float) @ items[order, at:].T)
        bound = user_rest[:, None].astype(float) * item_rest
        assert (bound >= rest).all()
        assert np.median(bound / np.abs(rest)) < 60


@pytest.mark.parametrize("name", COMPILED)
def test_items_that_reach_the_cut_only_after_the_last_stop_are_found(name):
    users, items = np.ones((40, 256), np.float32), np.zeros((500, 256), np.float32)
    items[:, 0] = np.linspace(2, 1, 500)
    items[490:, -1] = 1.5
    kernels.use(name)
    for part in (None, problem(40, 500, 1, seed=1)[2]):
        found = top_k(users, items, 12, sparse=part)
        exact = top_k(users, items, 12, sparse=part, prune=False)
        np.testing.assert_array_equal(found.items, exact.items)
        assert part is not None or set(range(490, 500)) <= set(found.items[0].tolist())


@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(kernels.supported()),
    most=st.integers(1, 60),
    share=st.sampled_from([0.02, 0.5]),
)
def test_gram_rows_are_the_largest_entries(seed, name, most, share):
    rng = np.random.default_rng(seed)
    X, rows = sparse(rng, 20, 45, share, integer=True)
    C, _ = sparse(rng, 20, 11, share, integer=True)
    _, columns = sparse_of(C.T)
    weight, scale, out = (
        rng.integers(1, 4, n).astype(np.float32) for n in (20, 11, 45)
    )
    kernels.use(name)
    found = gram_rows(
        rows, columns, slice(2, 9), most, weight=weight, scale=scale, out=out
    )
    whole = (C.T * weight) @ X * scale[:, None] * out
    for row in range(7):
        entries = slice(*found.indptr[row : row + 2])
        best = np.argsort(-np.abs(whole[2 + row]), kind="stable")[:most]
        best = np.sort(best[whole[2 + row, best] != 0])
        np.testing.assert_array_equal(found.indices[entries], best)
        np.testing.assert_array_equal(found.data[entries], whole[2 + row, best])


@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(kernels.supported()),
    most=st.integers(1, 15),
    reach=st.integers(0, 6),
)
def test_pair_rows_are_the_largest_sums_over_pairs_of_a_sequence(
    seed, name, most, reach
):
    rng = np.random.default_rng(seed)
    n_items, n_places = 12, int(rng.integers(1, 40))
    items = rng.integers(0, n_items, n_places).astype(np.int32)
    weights = rng.integers(1, 4, n_places).astype(np.float32)
    ends = np.append(np.sort(rng.integers(0, n_places, 5)), n_places)
    places = np.arange(n_places)
    lags = ends[np.searchsorted(ends, places, "right")] - places
    decay = rng.integers(1, 5, reach + 1).astype(np.float32)
    expected = np.zeros((n_items, n_items), np.float32)
    for place in places:
        for lag in range(1, min(lags[place], reach + 1)):
            pair = items[place], items[place + lag]
            expected[pair] += weights[place] * weights[place + lag] * decay[lag]
    by_place = CsrArrays(np.arange(n_places + 1), items, weights)
    rows = rng.permutation(n_items)[:7]
    kernels.use(name)
    largest = pair_rows(
        items,
        weights,
        lags.astype(np.int32),
        decay,
        kernels.transposed(by_place, n_items),
        rows,
        most,
    )
    for at, row in enumerate(rows):
        entries = slice(*largest.indptr[at : at + 2])
        best = np.argsort(-expected[row], kind="stable")[:most]
        best = np.sort(best[expected[row, best] != 0])
        np.testing.assert_array_equal(largest.indices[entries], best)
        np.testing.assert_array_equal(largest.data[entries], expected[row, best])


def sparse_of(dense):
    rows, columns = np.nonzero(dense)
    indptr = np.searchsorted(rows, np.arange(len(dense) + 1)).astype(np.int64)
    return dense, CsrArrays(indptr, columns.astype(np.int32), dense[rows, columns])


@pytest.mark.skipif(not COMPILED, reason="no compiled kernels in this installation")
def test_indices_are_checked_before_memory_is_touched():
    users, items, part, _ = problem(3, 50, 2, seed=1)
    kernels.use(COMPILED[-1])
    history, weights = part.history, part.weights
    spoiled = history._replace(indices=history.indices + 30)
    with pytest.raises(ValueError, match="indices must be those of columns"):
        top_k(users, items, 2, sparse=part._replace(history=spoiled))
    falling = weights._replace(
        indptr=np.r_[0, weights.indptr[:0:-1]][: len(weights.indptr)]
    )
    falling.indptr[-1] = weights.indptr[-1]
    with pytest.raises(ValueError, match="indptr must not fall"):
        top_k(users, items, 2, sparse=part._replace(weights=falling))
    with pytest.raises(ValueError, match="indices must be those of columns"):
        sparse_rows(history, weights._replace(indices=weights.indices - 60), 50)
    wild = weights._replace(
        indices=weights.indices[::-1] * 1000
    )  # neither sorted nor in range
    top_k(users, items, 2, sparse=part._replace(weights=wild))
    sparse_pairs(history, wild, np.array([0]), np.array([7]))
