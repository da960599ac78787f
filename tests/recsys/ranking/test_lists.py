"""Options of lists: each is declared once, and appears in Python, the command and the service."""

from __future__ import annotations

import inspect

import numpy as np
import polars as pl
import pytest

from recsys import Recommender
from recsys.cli.recommend import recommend
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
