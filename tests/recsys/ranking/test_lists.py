"""Options of lists: each is declared once, and appears in Python, the command and the service."""

from __future__ import annotations

import inspect

import numpy as np
import polars as pl
import pytest

from recsys import Ratings, Recommender
from recsys.cli.recommend import recommend, similar
from recsys.errors import DataError
from recsys.ranking.lists import DEFAULTS, ListOptions, declarations


def test_each_option_is_a_keyword_of_recommend():
    keywords = inspect.signature(Recommender.recommend).parameters
    defaults = {name: keywords[name].default for name in DEFAULTS}
    assert defaults == DEFAULTS


def test_each_option_is_one_of_the_command():
    in_command = {parameter.name for parameter in recommend.params}
    assert declarations().keys() <= in_command


def test_each_option_for_the_service_is_in_its_request():
    pytest.importorskip("pydantic")
    from recsys.serve.schemas import RecommendRequest

    names = {option.service for option in declarations().values()} - {""}
    assert names <= RecommendRequest.model_fields.keys()


def test_each_option_that_is_not_of_users_is_one_of_similar():
    in_command = {parameter.name for parameter in similar.params}
    of_items = {name for name, option in declarations().items() if not option.of_users}
    assert in_command & declarations().keys() == of_items


def test_similar_items_take_the_options_of_lists():
    rng = np.random.default_rng(0)
    users, items = np.nonzero(rng.random((40, 20)) < 0.4)
    table = pl.DataFrame({"item": range(20), "stock": [n % 3 for n in range(20)]})
    ratings = Ratings.from_frame(
        pl.DataFrame({"user": users, "item": items}), item_table=table
    )
    recommender = Recommender("ials", factors=4, iterations=2).fit(ratings)
    everything = recommender.similar_items(0, n=19)
    assert len(everything) == 19
    some = recommender.similar_items(0, n=19, where="stock > 0", block=[1])
    expected = everything.filter((pl.col("similar") % 3 > 0) & (pl.col("similar") != 1))
    assert some["similar"].to_list() == expected["similar"].to_list()
    few = recommender.similar_items(0, n=19, at_most=1, per="stock")
    assert sorted(few["similar"].to_list(), key=lambda item: item % 3) == sorted(
        everything.unique(pl.col("similar") % 3, keep="first")["similar"].to_list(),
        key=lambda item: item % 3,
    )
    with pytest.raises(DataError, match="cold_start is for lists of users"):
        recommender.similar_items(0, cold_start="popular")
    with pytest.raises(DataError, match="block takes items, not pairs"):
        recommender.similar_items(0, block={1: [2]})


@pytest.mark.parametrize(
    "options",
    [
        {"items": np.array([1, 2])},
        {"block": pl.Series([1])},
        {"where": pl.col("year") > 1},
        {"exclude_seen": False},
        {"diversity": 0.5},
    ],
)
def test_an_option_differs_from_its_default(options):
    assert ListOptions().are_defaults()
    assert not ListOptions(**options).are_defaults()


def test_an_unknown_option_is_a_type_error():
    with pytest.raises(TypeError, match=r"the options items, block, .*; got colour"):
        ListOptions.from_keywords({"colour": "red"})
