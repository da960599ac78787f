"""top-N against sorting everything, and the same bits in any company."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import recsys.ranking.topn
from lowrank import kernels
from lowrank.kernels.topk import Ties
from recsys.errors import DataError
from recsys.models.base import FactorModel
from recsys.ranking.topn import Cosine, CsrPairs, select, top_n

# Few distinct values, so that ties are everywhere, and what must never be returned.
SCORES = st.sampled_from([-np.inf, np.nan, -2.0, -0.0, 0.0, 0.5, 1.0, 3.0, np.inf])
BLOCKS = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=12), elements=SCORES
)


def sorted_top(scores, n):
    """The n best of each row, by sorting: (row, item, rank, score)."""
    found = []
    for row, values in enumerate(scores):
        candidates = [
            (-v, item)
            for item, v in enumerate(values)
            if not np.isnan(v) and v > -np.inf
        ]
        best = sorted(candidates)[:n]
        found += [(row, item, rank, -v) for rank, (v, item) in enumerate(best, start=1)]
    return found


def tuples(top):
    return list(zip(top.rows, top.items, top.ranks, top.scores, strict=True))


def collect(tops):
    return [entry for top in tops for entry in tuples(top)]


def factor_model(user_factors, item_factors, *, item_bias=None):
    users, items = np.float32(user_factors), np.float32(item_factors)
    bias = (
        np.zeros(len(items), np.float32) if item_bias is None else np.float32(item_bias)
    )
    return FactorModel._from_arrays(
        {},
        {
            "global_mean": np.array(0.25),
            "user_bias": np.linspace(-1, 1, len(users), dtype=np.float32),
            "item_bias": bias,
            "user_factors": users,
            "item_factors": items,
        },
    )


def exact_scores(model):
    users, items = np.divmod(np.arange(model.n_users * model.n_items), model.n_items)
    return model.predict(users, items).reshape(model.n_users, model.n_items)


@pytest.fixture
def random_model():
    rng = np.random.default_rng(1)
    return factor_model(rng.normal(size=(70, 9)), rng.normal(size=(240, 9)))


class ByScores(FactorModel):
    """The same model, searched without the kernel."""

    def _factor_form(self, users):
        return None

    def scores(self, users):
        return super()._factor_form(users).scores()

    def _score_error(self, users):
        return super()._factor_form(users).error()


def by_scores(model):
    return ByScores._from_arrays({}, model._arrays())


@given(BLOCKS, st.integers(1, 15))
def test_select_equals_sorting_with_ties_masks_and_nan(scores, n):
    expected = sorted_top(scores, n)
    assert tuples(select(scores.copy(), n)) == expected


@given(BLOCKS, st.integers(1, 15), st.integers(0, 2**32 - 1))
def test_select_takes_the_exact_scores_within_the_error(scores, n, seed):
    finite = np.isfinite(scores)
    error = np.float32(0.3)
    noise = (
        np.random.default_rng(seed)
        .uniform(-error, error, scores.shape)
        .astype(np.float32)
    )
    approximate = np.where(finite, scores + noise, -np.inf).astype(np.float32)
    exact = np.where(finite, scores, -np.inf)
    top = select(
        approximate,
        n,
        error=np.full(len(scores), error),
        exact=lambda rows, items: exact[rows, items],
    )
    assert tuples(top) == sorted_top(exact, n)


@given(BLOCKS, st.integers(1, 15), st.integers(0, 2**32 - 1))
def test_selected_ties_are_in_the_order_of_their_hashes(scores, n, seed):
    rng = np.random.default_rng(seed)
    many = np.tile(scores, 40)  # so many that rows are reduced before they are sorted
    for block in (scores, many):
        ties = Ties(
            *(rng.integers(0, 2**64, size, np.uint64) for size in block.shape[::-1])
        )
        rows, items = np.divmod(np.arange(block.size), block.shape[1])
        places = ties.places(rows, items).reshape(block.shape)
        expected = []
        for row, values in enumerate(block):
            good = np.flatnonzero(values > -np.inf)
            best = good[np.lexsort((places[row, good], -values[good]))][:n]
            expected += [
                (row, item, rank, values[item]) for rank, item in enumerate(best, 1)
            ]
        assert tuples(select(block.copy(), n, ties=ties)) == expected


def test_nan_is_worse_than_anything_at_the_cut_too():
    top = select(np.float32([[np.nan, np.nan, 1, -5]]), 3)
    assert tuples(top) == [(0, 2, 1, 1), (0, 3, 2, -5)]


def test_ties_at_the_cut_go_to_the_lower_item():
    top = select(np.float32([[1, 5, 5, 5, 0]]), 2)
    assert top.items.tolist() == [1, 2]


def test_results_have_the_documented_types():
    top = select(np.ones((2, 3), np.float32), 2)
    assert [a.dtype.name for a in (top.rows, top.items, top.ranks, top.scores)] == [
        "int64",
        "int64",
        "int32",
        "float32",
    ]
    assert len(top) == 4


@given(
    hnp.arrays(np.float32, (6, 2), elements=st.integers(-2, 2)),
    hnp.arrays(np.float32, (9, 2), elements=st.integers(-2, 2)),
    st.integers(1, 11),
    st.randoms(use_true_random=False),
)
def test_top_n_equals_sorting_with_seen_and_barred_items(users, items, n, random):
    model = factor_model(users, items)
    seen = np.array([[random.random() < 0.3 for _ in range(9)] for _ in range(6)])
    allowed = np.array([random.random() < 0.7 for _ in range(9)])
    indptr = np.concatenate([[0], np.cumsum(seen.sum(axis=1))])
    exclude = CsrPairs(indptr, np.nonzero(seen)[1].astype(np.int32))
    scores = np.where(seen | ~allowed, -np.inf, exact_scores(model))
    expected = sorted_top(scores, n)
    for scorer in (model, by_scores(model)):
        found = collect(
            top_n(scorer, np.arange(6), n, exclude=exclude, allowed=allowed)
        )
        assert found == expected


@given(
    n_users=st.integers(1, 40),
    n_items=st.integers(0, 120),
    k=st.integers(0, 20),
    n=st.integers(1, 130),
    seed=st.integers(0, 2**32 - 1),
)
def test_both_ways_give_the_same_bits(n_users, n_items, k, n, seed):
    rng = np.random.default_rng(seed)
    lengths = rng.lognormal(sigma=2, size=(n_items, 1))
    model = factor_model(
        rng.normal(size=(n_users, k)),
        lengths * rng.normal(size=(n_items, k)),
        item_bias=rng.normal(size=n_items),
    )
    users = rng.integers(n_users, size=50)

    exclude = None
    if n_items:
        blocked = np.arange(n_users, dtype=np.int32) % n_items
        exclude = CsrPairs(np.arange(n_users + 1), blocked)
    found = collect(top_n(model, users, n, exclude=exclude))
    assert found == collect(top_n(by_scores(model), users, n, exclude=exclude))


@pytest.mark.parametrize("name", kernels.supported())
def test_a_user_gets_the_same_bits_alone_or_among_many(random_model, name):
    before = kernels.backend()
    kernels.use(name)
    try:
        everyone = collect(top_n(random_model, np.arange(70), 20))
        alone = [
            (user, *entry[1:])
            for user in range(70)
            for entry in collect(top_n(random_model, np.array([user]), 20))
        ]
        assert everyone == alone
        assert everyone == sorted_top(exact_scores(random_model), 20)
    finally:
        kernels.use(before.instruction_set or "reference")


@pytest.mark.parametrize("block_scores", [1, 500, 5_000])
def test_the_size_of_the_blocks_changes_nothing(
    random_model, monkeypatch, block_scores
):
    everyone = collect(top_n(random_model, np.arange(70), 20))
    monkeypatch.setattr(recsys.ranking.topn, "_BLOCK_SCORES", block_scores)
    tops = list(top_n(by_scores(random_model), np.arange(70), 20))
    assert len(tops) == -(-70 // max(1, block_scores // 240))
    assert collect(tops) == everyone


@pytest.mark.skipif(kernels.backend().name != "compiled", reason="the kernel's blocks")
def test_the_blocks_of_the_kernel_change_nothing(random_model, monkeypatch):
    everyone = collect(top_n(random_model, np.arange(70), 20))
    monkeypatch.setattr(recsys.ranking.topn, "_BLOCK_SCORES", 500)
    monkeypatch.setattr(recsys.ranking.topn, "_BLOCK_FACTORS", 90)
    tops = list(top_n(random_model, np.arange(70), 20))
    assert len(tops) == 7
    assert collect(tops) == everyone


def test_blocks_are_bounded_by_results_too(random_model, monkeypatch):
    monkeypatch.setattr(recsys.ranking.topn, "_BLOCK_RESULTS", 100)
    for scorer in (random_model, by_scores(random_model)):
        tops = list(top_n(scorer, np.arange(70), 20))
        assert {len(top) for top in tops} == {100}


def test_items_closer_than_rounding_are_ordered_by_their_exact_scores():
    rng = np.random.default_rng(5)
    base = rng.normal(size=33)
    items = np.float32(base + rng.normal(scale=3e-7, size=(400, 33)))
    model = factor_model(rng.normal(size=(30, 33)), items)
    assert collect(top_n(model, np.arange(30), 25)) == sorted_top(
        exact_scores(model), 25
    )


def test_the_error_bound_holds_and_is_not_idle():
    rng = np.random.default_rng(2)
    # Long enough that BLAS cuts the sums up; a short one it may add in the order of the kernel.
    model = factor_model(rng.normal(size=(64, 2000)), 30 * rng.normal(size=(300, 2000)))
    off = np.abs(model.scores(np.arange(64)) - exact_scores(model)).max(axis=1)
    assert (off <= model._score_error(np.arange(64))).all()
    assert off.max() > 0


def test_repeated_users_are_answered_each_time(random_model):
    top = next(top_n(random_model, np.array([3, 3]), 2))
    assert top.rows.tolist() == [0, 0, 1, 1]
    assert top.items[:2].tolist() == top.items[2:].tolist()


def test_no_users_one_empty_block(random_model):
    assert [len(top) for top in top_n(random_model, np.zeros(0, np.int64), 3)] == [0]


@pytest.mark.parametrize("n", [0, -1])
def test_n_below_one_is_rejected_at_once(random_model, n):
    with pytest.raises(DataError, match=f"n must be at least 1; got {n}"):
        top_n(random_model, np.arange(3), n)


def test_cosine_equals_the_formula():
    vectors = np.random.default_rng(3).normal(size=(40, 5)).astype(np.float32)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    found = collect(
        top_n(Cosine(vectors), np.arange(40), 4, exclude=CsrPairs.diagonal(40))
    )
    expected = sorted_top(cosines, 4)
    assert [entry[:3] for entry in found] == [entry[:3] for entry in expected]
    assert [entry[3] for entry in found] == pytest.approx(
        [e[3] for e in expected], abs=1e-6
    )


def test_both_ways_give_the_same_cosines(monkeypatch):
    rng = np.random.default_rng(9)
    vectors = rng.normal(size=(150, 7)).astype(np.float32)
    vectors[[3, 60]], vectors[100:110] = 0, 3 * vectors[1]
    cosine = Cosine(vectors, confidence=rng.random(150).astype(np.float32))
    found = collect(top_n(cosine, np.arange(150), 12, exclude=CsrPairs.diagonal(150)))
    monkeypatch.setattr(Cosine, "_factor_form", lambda self, users: None)
    assert found == collect(
        top_n(cosine, np.arange(150), 12, exclude=CsrPairs.diagonal(150))
    )
    assert len(found) == 148 * 12


def test_cosine_of_a_zero_vector_is_like_nothing():
    cosine = Cosine(np.float32([[1, 0], [0, 0], [2, 0], [-1, 0]]))
    found = collect(top_n(cosine, np.arange(4), 9, exclude=CsrPairs.diagonal(4)))
    assert found == [
        (0, 2, 1, 1),
        (0, 3, 2, -1),
        (2, 0, 1, 1),
        (2, 3, 2, -1),
        (3, 0, 1, -1),
        (3, 2, 2, -1),
    ]


def test_cosine_never_exceeds_one():
    vectors = np.repeat(
        np.random.default_rng(4).normal(size=(1, 97)), 30, axis=0
    ).astype(np.float32)
    found = collect(
        top_n(Cosine(vectors), np.arange(30), 29, exclude=CsrPairs.diagonal(30))
    )
    assert max(entry[3] for entry in found) <= 1
    assert [entry[1] for entry in found[:3]] == [1, 2, 3]
