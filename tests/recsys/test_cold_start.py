"""Searches for known users and for others, who get popular items."""

from functools import partial

import numpy as np
import polars as pl
import pytest

from recsys import Recommender
from recsys.data.ratings import Ratings
from recsys.models.base import FactorModel
from recsys.models.baselines import Popular
from recsys.ranking.rerank import with_others
from recsys.ranking.topn import CsrPairs, TopN, top_n

N_USERS, N_ITEMS = 5, 60


@pytest.fixture
def popular():
    ratings = np.random.default_rng(0).integers(1, 6, (N_USERS, N_ITEMS))
    return Popular().fit(Ratings.from_matrix(ratings))


@pytest.fixture
def factors():
    """Items closer than the rounding of a matrix product."""
    rng = np.random.default_rng(1)
    items = rng.normal(size=33) + rng.normal(scale=3e-7, size=(N_ITEMS, 33))
    arrays = {
        "global_mean": np.array(3.0),
        "user_bias": np.zeros(N_USERS, np.float32),
        "item_bias": np.zeros(N_ITEMS, np.float32),
        "user_factors": rng.normal(size=(N_USERS, 33)).astype(np.float32),
        "item_factors": items.astype(np.float32),
    }
    return FactorModel._from_arrays({}, arrays)


def search_by(scorer, **limits):
    return partial(top_n, scorer, **limits)


def entries(tops):
    top = TopN.joined(tops)
    return list(zip(top.rows, top.items, top.ranks, top.scores, strict=True))


@pytest.mark.parametrize("results", [1, 20, 2**20])
def test_known_users_get_what_the_model_gives(factors, popular, results, monkeypatch):
    monkeypatch.setattr("recsys.ranking.rerank._RESULTS", results)
    users = np.array([N_USERS, 3, N_USERS + 1, 1])
    of_unknown = search_by(popular._with(n_users=N_USERS + 2))
    search = with_others(search_by(factors), of_unknown, users[[0, 2]])
    among_new = entries(search(users, 7))
    assert [row for row, *_ in among_new] == sorted(row for row, *_ in among_new)
    for row in (1, 3):
        alone = entries(top_n(factors, users[[row]], 7))
        assert [each[1:] for each in among_new if each[0] == row] == [
            e[1:] for e in alone
        ]


def test_unknown_users_get_popular_items_that_are_allowed(factors, popular):
    """All items are rated by N_USERS."""
    indptr = np.array([0] * (N_USERS + 2) + [2])
    blocked = CsrPairs(indptr, np.array([0, 2], np.int32))
    unknown = np.array([N_USERS, N_USERS + 1])
    search = with_others(
        search_by(factors, exclude=blocked),
        search_by(popular._with(n_users=N_USERS + 2), exclude=blocked),
        unknown,
    )
    found = entries(search(unknown, 7))
    assert [item for row, item, *_ in found if not row] == list(range(7))
    assert [item for row, item, *_ in found if row] == [1, *range(3, 9)]
    assert {score for *_, score in found} == {N_USERS}


@pytest.mark.parametrize("name", ["spectral", "ials", "ease", "next", "popular"])
def test_users_without_any_data_get_popular_items(name):
    """Their scores are zero, so that the order of the items would be random."""
    rng = np.random.default_rng(1)
    users = np.repeat(np.arange(40), 6)
    frame = pl.DataFrame(
        {
            "user": users,
            "item": [f"i{n}" for n in rng.zipf(1.5, len(users)) % 30],
            "timestamp": np.arange(len(users)),
        }
    )
    recommender = Recommender(name).fit(Ratings.from_frame(frame))
    counts = recommender.ratings.counts("item")
    lists = recommender.recommend(history=[], n=5)
    listed = recommender.ratings.items.index(lists["item"])
    assert counts[listed].tolist() == sorted(counts, reverse=True)[:5]
    assert lists["score"].to_list() == counts[listed].tolist()
