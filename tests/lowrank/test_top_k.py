"""The top-k search against sorting all scores, on every instruction set of this machine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lowrank import kernels
from lowrank.kernels import Seen
from lowrank.kernels import topk as ordering
from lowrank.kernels.retrieval import hash_texts, top_k
from lowrank.kernels.topk import Ties, mixed, search_plan

COMPILED = kernels.supported()[1:]
FUSED = [name for name in COMPILED if name.startswith("avx")]
WHOLE_PANELS = 240  # a multiple of the items that any instruction set scores together
# Small integers make every sum exact, so that all kernels agree in every bit; and ties.
EXACT = st.integers(-2, 2)
AWKWARD = st.sampled_from(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.1,
        1e-45,
        -1e-42,
        1e-23,
        3e19,
        -3e38,
        np.inf,
        -np.inf,
        np.nan,
    ]
)


@pytest.fixture(autouse=True)
def _restore_kernels(monkeypatch):
    monkeypatch.setattr(
        ordering, "_FEW_QUERIES", 2
    )  # so that small searches prune, too
    active = kernels.backend()
    yield
    kernels.use(active.instruction_set or "reference")


def all_scores(users, items, offset, bias):
    """Scores as the active kernel rounds them."""
    rows, others = np.divmod(np.arange(len(users) * len(items)), max(1, len(items)))
    dots = kernels.pair_dots(users, items, rows, others).reshape(len(users), len(items))
    with np.errstate(invalid="ignore", over="ignore"):
        return (offset[:, None] + bias) + dots


def by_sorting(scores, n):
    """Items and scores of each row, best first, without NaN and minus infinity."""
    answers = []
    for row in scores:
        good = np.flatnonzero(row > -np.inf)
        best = good[np.lexsort((good, -row[good]))][:n]
        answers.append((best.tolist(), row[best].tolist()))
    return answers


def listed(found):
    return [
        (items[:count].tolist(), scores[:count].tolist())
        for items, scores, count in zip(*found, strict=True)
    ]


def problem(n_users, n_items, k, seed, spread=0.0):
    """Users, items, offset, bias; item lengths are log-normal with `spread`."""
    rng = np.random.default_rng(seed)
    items = rng.normal(size=(n_items, k)) * rng.lognormal(
        sigma=spread, size=(n_items, 1)
    )
    arrays = rng.normal(size=(n_users, k)), items, rng.normal(size=n_users)
    return [np.float32(a) for a in (*arrays, rng.normal(size=n_items))]


def random_seen(n_users, n_items, share, seed):
    """Return a mask, and the same as `Seen` with rows in an order of their own."""
    rng = np.random.default_rng(seed)
    mask = rng.random((n_users, n_items)) < share
    rows = rng.permutation(n_users)
    stored = np.empty_like(mask)
    stored[rows] = mask
    indptr = np.concatenate([[0], np.cumsum(stored.sum(axis=1))])
    return mask, Seen(rows, indptr, np.nonzero(stored)[1].astype(np.int32))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), name=st.sampled_from(kernels.supported()), prune=st.booleans())
def test_exact_scores_with_ties_give_the_reference_result(data, name, prune):
    k, n_users = (
        data.draw(st.integers(0, 19)),
        data.draw(st.sampled_from([1, 3, 17, 40])),
    )
    n_items, n = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 75))
    users, items, offset, bias = (
        data.draw(hnp.arrays(np.float32, shape, elements=EXACT, fill=EXACT))
        for shape in ((n_users, k), (n_items, k), n_users, n_items)
    )
    mask, seen = random_seen(n_users, n_items, 0.2, k)
    allowed = np.random.default_rng(n).random(n_items) < 0.8
    kernels.use(name)
    found = top_k(
        users,
        items,
        n,
        offset=offset,
        bias=bias,
        seen=seen,
        allowed=allowed,
        prune=prune,
    )
    scores = (offset[:, None] + bias) + users @ items.T
    scores[mask] = scores[:, ~allowed] = -np.inf
    assert listed(found) == by_sorting(scores, n)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), prune=st.booleans(), by_query=st.booleans())
def test_ties_are_in_the_order_of_their_hashes_on_every_kernel(data, prune, by_query):
    k, n_users = (
        data.draw(st.integers(0, 3)),
        data.draw(st.sampled_from([1, 3, 17, 40])),
    )
    n_items, n = data.draw(st.integers(1, 300)), data.draw(st.integers(1, 30))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    users, items = (
        rng.integers(-1, 2, (m, k)).astype(np.float32) for m in (n_users, n_items)
    )
    bias = rng.integers(-1, 2, n_items).astype(np.float32)
    mask, seen = random_seen(n_users, n_items, 0.2, k)
    hashes = [rng.integers(0, 2**64, m, np.uint64) for m in (n_items, n_users)]
    ties = Ties(hashes[0], hashes[1] if by_query else None)
    scores = bias + users @ items.T
    scores[mask] = -np.inf
    expected = []
    for user, row in enumerate(scores):
        own = mixed(hashes[0] ^ hashes[1][user]) if by_query else mixed(hashes[0])
        candidates = sorted((-row[i], own[i], i) for i in np.flatnonzero(row > -np.inf))
        best = [item for *_, item in candidates[:n]]
        expected.append((best, row[best].tolist()))
    for name in kernels.supported():
        kernels.use(name)
        for threads in (1, 2):
            options = {"bias": bias, "seen": seen, "ties": ties, "prune": prune}
            assert (
                listed(top_k(users, items, n, threads=threads, **options)) == expected
            )


@pytest.mark.parametrize("name", kernels.supported())
def test_the_order_of_ties_is_another_for_each_query_and_uniform(name):
    """Of two equal items, each is first for half of the queries."""
    kernels.use(name)
    hashes = mixed(np.arange(4000, dtype=np.uint64))
    ties = Ties(hashes[:2], hashes)
    found = top_k(
        np.zeros((4000, 1), np.float32), np.zeros((2, 1), np.float32), 1, ties=ties
    )
    assert abs(found.items.mean() - 0.5) < 0.03


@pytest.mark.parametrize("name", kernels.supported())
def test_hashes_depend_on_the_text_only(name):
    kernels.use(name)
    texts = [
        "",
        "a",
        "b",
        "ab",
        "ba",
        "12345678",
        "123456789",
        "a\0",
        "é" * 20,
        "1" * 1000,
    ]
    together = hash_texts(*bytes_of(texts))
    assert len(set(together.tolist())) == len(texts)
    assert together[[1, 8]].tolist() == [0x5E025F9ADE9EAF3E, 0xBC918FA39ACAF564]
    for text, hash in zip(texts, together, strict=True):
        assert hash_texts(*bytes_of(["other", text]))[1] == hash


def bytes_of(texts):
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), offsets


@settings(max_examples=60, deadline=None)
@given(data=st.data(), name=st.sampled_from(kernels.supported()), prune=st.booleans())
def test_awkward_numbers(data, name, prune):
    """Infinity, NaN, minus zero, overflow and underflow: as the scores say, pair by pair."""
    k, n_users = data.draw(st.integers(1, 5)), data.draw(st.sampled_from([2, 20]))
    n_items, n = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 20))
    users, items, offset, bias = (
        data.draw(hnp.arrays(np.float32, shape, elements=AWKWARD, fill=AWKWARD))
        for shape in ((n_users, k), (n_items, k), n_users, n_items)
    )
    kernels.use(name)
    with np.errstate(all="ignore"):
        expected = by_sorting(all_scores(users, items, offset, bias), n)
        found = top_k(users, items, n, offset=offset, bias=bias, prune=prune)
    assert listed(found) == expected


@pytest.mark.parametrize("name", kernels.supported())
@pytest.mark.parametrize("k", [1, 7, 16, 33, 130])
def test_scores_equal_the_pairs_in_every_bit(name, k):
    users, items, offset, bias = problem(45, 200, k, seed=k, spread=1.5)
    kernels.use(name)
    expected = by_sorting(all_scores(users, items, offset, bias), 9)
    for prune in (True, False):
        found = top_k(users, items, 9, offset=offset, bias=bias, prune=prune)
        assert listed(found) == expected


@pytest.mark.parametrize("name", kernels.supported())
@pytest.mark.parametrize("prune", [True, False])
def test_weights_make_cosines_of_the_products(name, prune):
    users, items, _, _ = problem(45, 200, 9, seed=8, spread=1)
    items[::20] = items[1]  # cosines of one, or of one and a bit before the clipping
    users[:5] = items[1]
    users[7] = 0
    with np.errstate(divide="ignore"):
        offset, bias = (
            1 / np.linalg.norm(vectors, axis=1) for vectors in (users, items)
        )
    offset[7] = np.nan
    weight = np.random.default_rng(1).random(200).astype(np.float32)
    weight[[3, 80]] = np.nan, 0
    kernels.use(name)
    rows, others = np.divmod(np.arange(45 * 200), 200)
    dots = kernels.pair_dots(users, items, rows, others).reshape(45, 200)
    expected = by_sorting(np.clip(dots * (offset[:, None] * bias), -1, 1) * weight, 30)
    found = top_k(
        users, items, 30, offset=offset, bias=bias, weight=weight, prune=prune
    )
    assert listed(found) == expected
    assert found.counts[7] == 0


@pytest.mark.parametrize("name", kernels.supported())
def test_pair_dots_are_products(name):
    users, items, _, _ = problem(30, 50, 21, seed=4)
    rows, others = np.divmod(np.arange(1500), 50)
    kernels.use(name)
    dots = kernels.pair_dots(users, items, rows, others)
    np.testing.assert_allclose(dots.reshape(30, 50), users @ items.T, atol=1e-5)
    few = kernels.pair_dots(users, items, rows[77:80], others[77:80])
    np.testing.assert_array_equal(few, dots[77:80])


@pytest.mark.skipif(
    len(FUSED) < 2, reason="one instruction set with fused multiply-add, or none"
)
def test_instruction_sets_with_fused_multiply_add_give_the_same_bits():
    users, items, offset, bias = problem(60, 500, 50, seed=2, spread=1)
    results = []
    for name in FUSED:
        kernels.use(name)
        results.append(listed(top_k(users, items, 20, offset=offset, bias=bias)))
    assert results[0] == results[1]


@pytest.mark.parametrize("name", COMPILED)
def test_same_bits_alone_and_on_any_number_of_threads(name):
    users, items, offset, bias = problem(300, 400, 12, seed=3, spread=1)
    _, seen = random_seen(300, 400, 0.05, 1)
    kernels.use(name)
    together = top_k(users, items, 15, offset=offset, bias=bias, seen=seen, threads=1)
    for threads in (2, 3, 8):
        found = top_k(
            users, items, 15, offset=offset, bias=bias, seen=seen, threads=threads
        )
        assert listed(found) == listed(together)
    for user in (0, 150, 299):
        one = slice(user, user + 1)
        alone = top_k(
            users[one],
            items,
            15,
            offset=offset[one],
            bias=bias,
            seen=seen._replace(rows=seen.rows[one]),
        )
        assert listed(alone) == listed(together)[one]


def test_the_order_of_the_search_bounds_later_scores():
    users, items, _, bias = problem(40, 300, 30, seed=6, spread=2)
    order, _ = search_plan(users, items, bias, None, None, None, 10)
    reach = np.einsum("uk,ik->ui", users, items, dtype=np.float64)[:, order.items]
    latest = np.maximum.accumulate(reach[:, ::-1], axis=1)[:, ::-1]
    assert (order.user_size[:, None] * order.size >= latest).all()
    assert (order.lift >= bias[order.items]).all()
    assert order.size[200] < order.size[0] / 5


@pytest.mark.parametrize("name", kernels.supported())
def test_minus_zero_ties_with_zero(name):
    users = np.full((2, 1), -1e-30, np.float32)
    items = np.full((3, 1), 1e-30, np.float32)  # products underflow to minus zero
    offset, bias = np.full(2, -0.0, np.float32), np.float32([-0.0, 0.0, -0.0])
    kernels.use(name)
    found = top_k(users, items, 3, offset=offset, bias=bias)
    assert found.items.tolist() == [[0, 1, 2]] * 2
    assert not np.signbit(found.scores).any()


@pytest.mark.parametrize("name", kernels.supported())
def test_ties_at_the_cut_go_to_the_lower_item_which_may_come_later(name):
    """Item 2 is longest and so comes first; items 0 and 1 score the same."""
    users = np.tile(np.float32([1, 0]), (3, 1))
    items = np.zeros((20, 2), np.float32)
    items[:3] = [[1, 0], [1, 0], [1, 5]]
    kernels.use(name)
    for n, expected in [(1, [0]), (2, [0, 1])]:
        assert top_k(users, items, n).items.tolist() == [expected] * 3


@pytest.mark.parametrize("name", kernels.supported())
@pytest.mark.parametrize("better", [0.97, 0.951])
def test_short_vectors_that_point_the_right_way_are_found(name, better):
    """They come last in the search, when the n-th best is just below what they can reach."""
    users = np.tile(np.float32([1, 0]), (3, 1))
    items = np.tile(np.float32([0.95, 10]), (WHOLE_PANELS + 5, 1))
    items[WHOLE_PANELS:] = better, 0
    kernels.use(name)
    found = top_k(users, items, 6)
    assert found.items.tolist() == [[240, 241, 242, 243, 244, 0]] * 3


@pytest.mark.parametrize("name", kernels.supported())
def test_items_that_just_reach_the_cut_are_not_pruned(name):
    users = np.tile(np.float32([1, 0]), (3, 1))
    n = 2 * WHOLE_PANELS
    items = np.zeros((n, 2), np.float32)
    items[WHOLE_PANELS:, 1] = (
        3  # first in the search, and no better than those of length zero
    )
    kernels.use(name)
    found = top_k(users, items, 4, bias=np.ones(n, np.float32))
    assert found.items.tolist() == [[0, 1, 2, 3]] * 3
    weight = np.repeat(np.float32([0.5, 1]), WHOLE_PANELS)
    scales = {"offset": np.ones(3, np.float32), "bias": np.ones(n, np.float32)}
    items[:WHOLE_PANELS], items[WHOLE_PANELS:] = [1, 0], [0.5, 1]
    found = top_k(users, items, 4, **scales, weight=weight)
    assert found.items.tolist() == [[0, 1, 2, 3]] * 3


def test_rows_with_fewer_items_say_so():
    one = np.ones((1, 1), np.float32)
    items = np.float32([[1], [np.nan], [2]])
    found = top_k(one, items, 3)
    assert found.counts.tolist() == [2]
    assert found.items.tolist() == [[2, 0, -1]]
    assert found.scores.tolist() == [[2, 1, -np.inf]]


def test_more_answers_than_are_kept_for_a_block_of_users():
    n = 2**20 + 1
    items = np.arange(n, dtype=np.float32)[:, None]
    found = top_k(np.ones((1, 1), np.float32), items, n)
    assert found.counts.tolist() == [n]
    np.testing.assert_array_equal(found.items[0], np.arange(n)[::-1])


def test_no_items_to_choose_from():
    users, items, _, _ = problem(3, 5, 2, seed=1)
    found = top_k(users, items, 4, allowed=np.zeros(5, bool))
    assert found.items.shape == (3, 0)
    assert found.counts.tolist() == [0, 0, 0]


def test_n_below_one_raises():
    users, items, _, _ = problem(3, 5, 2, seed=1)
    with pytest.raises(ValueError, match="n must be at least 1; got 0"):
        top_k(users, items, 0)


def test_a_mask_of_other_items_raises():
    users, items, _, _ = problem(3, 5, 2, seed=1)
    with pytest.raises(ValueError, match=r"allowed must have shape \(5,\); got \(4,\)"):
        top_k(users, items, 2, allowed=np.ones(4, bool))


@pytest.mark.skipif(not COMPILED, reason="no compiled kernels in this installation")
def test_shapes_and_indices_are_checked_before_memory_is_touched():
    users, items, offset, bias = problem(3, 5, 2, seed=1)
    seen = Seen(np.array([0, 1, 2]), np.array([0, 1, 2, 3]), np.zeros(3, np.int32))
    kernels.use(COMPILED[-1])
    with pytest.raises(
        ValueError, match="users and items must have the same number of columns"
    ):
        top_k(users, items[:, :1], 2)
    with pytest.raises(
        ValueError, match="offset and counts must have one entry per user"
    ):
        top_k(users, items, 2, offset=offset[:2])
    with pytest.raises(
        ValueError, match="bias and weight must have one entry per item"
    ):
        top_k(users, items, 2, bias=bias[:2])
    with pytest.raises(ValueError, match="seen_rows must hold indices of rows"):
        top_k(users, items, 2, seen=seen._replace(rows=np.array([0, -1, 2])))
    with pytest.raises(ValueError, match="seen_indptr must ascend from 0"):
        top_k(users, items, 2, seen=seen._replace(indptr=np.array([0, 1, 2, 4])))
    hashes = np.zeros(5, np.uint64)
    with pytest.raises(ValueError, match="ties must have one entry per item"):
        top_k(users, items, 2, ties=Ties(hashes[:4]))
    with pytest.raises(ValueError, match="ties must have one entry per user"):
        top_k(users, items, 2, ties=Ties(hashes, hashes))
    with pytest.raises(ValueError, match="offsets must ascend"):
        hash_texts(np.zeros(3, np.uint8), np.array([0, 2, 1]))
    with pytest.raises(ValueError, match="rows and others must hold indices"):
        kernels.pair_dots(users, items, np.array([0]), np.array([5]))
