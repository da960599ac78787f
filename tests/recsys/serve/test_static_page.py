"""The page as one file: what is in it, what is kept out, and for which models there is one."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from datetime import date
from typing import Any

import numpy as np
import polars as pl
import pytest
from page_arithmetic import form_scores

from recsys import Recommender
from recsys.data.ratings import Ratings
from recsys.errors import DataError, UnknownIdError
from recsys.serve import static_page as pages
from recsys.serve.browser_model import browser_model
from recsys.serve.catalogue import Catalogue, numbers, short
from recsys.serve.problems import ProblemError
from recsys.serve.static_page import static_page

DAY = date(2026, 1, 31)
HOSTILE = "</script/x><svg/onload=alert(1)>"  # which is no tag by the rules of titles


def ratings_of(n_items: int = 12, *, implicit: bool = False) -> Ratings:
    rng = np.random.default_rng(0)
    users, items = np.nonzero(rng.random((30, n_items)) < 0.5)
    values = 1.0 + (users + items) % 5
    titles = [HOSTILE, *map(str, range(1, n_items))]
    table = pl.DataFrame(
        {"item": range(n_items), "title": titles, "price": np.nan, "day": DAY}
    )
    frame = pl.DataFrame({"user": users, "item": items, "rating": values})
    frame = frame.with_columns(timestamp=1_000_000 * (users * 7 % 11) + 3600 * items)
    return Ratings.from_frame(frame, implicit=implicit, item_table=table)


@pytest.fixture(scope="module")
def ratings() -> Ratings:
    return ratings_of()


@pytest.fixture(scope="module")
def als(ratings: Ratings) -> Recommender:
    return Recommender("als", factors=3).fit(ratings)


def contents(html: str) -> dict[str, Any]:
    """Return the data of a page, without the arrays."""
    packed = re.search('id="data">([A-Za-z0-9+/=]*)</script>', html)[1]
    whole = gzip.decompress(base64.b64decode(packed))
    found: dict[str, Any] = json.loads(
        whole[8 : 8 + int.from_bytes(whole[:8], "little")]
    )
    return found


def test_the_page_names_no_other_file_and_allows_its_own_scripts_only(als):
    html = static_page(als).html
    assert HOSTILE not in html
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', html)
    policy = re.search('Content-Security-Policy" content="([^"]*)"', html)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    for script in re.findall("<script>(.*?)</script>", html, re.DOTALL):
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "service.js" not in html
    assert "v1/recommend" not in html


def test_the_same_model_gives_the_same_page(als):
    assert static_page(als).html == static_page(als).html


def test_users_and_items_can_be_left_out(als, ratings):
    page = static_page(als, n_items=5, n_users=0, title="Films & more")
    found = contents(page.html)
    assert (page.n_items, page.n_users) == (5, 0)
    assert found["users"]["ids"] == []
    counts = np.bincount(ratings.indices, minlength=12)
    best = np.sort(np.argsort(-counts, kind="stable")[:5])
    assert found["items"]["ids"] == [str(item) for item in ratings.items.take(best)]
    assert {row["item"] for row in found["models"]["a"]["map"]["items"]} == {
        *found["items"]["ids"]
    }
    assert found["card"]["title"] == "Films & more"
    assert found["items"]["features"][0]["day"] == "2026-01-31"
    assert found["card"]["remark"] == "5 items in this page"


def test_a_second_model_may_have_its_items_in_another_order(als, ratings):
    wider = ratings.to_frame().with_columns(pl.col("item") - 5)  # other ids, but some
    with pytest.raises(UnknownIdError, match="Unknown item"):
        static_page(als, Recommender("bias").fit(Ratings.from_frame(wider)))
    both = contents(static_page(als, Recommender("popular").fit(ratings)).html)
    assert [both["card"]["models"][each]["name"] for each in "ab"] == ["als", "popular"]
    assert both["models"]["b"]["similar"] is None
    assert both["models"]["b"]["map"] is None


@pytest.mark.parametrize("name", ["random", "softimpute"])
def test_other_models_have_lists_computed_in_advance(name, ratings):
    recommender = Recommender(name).fit(ratings)
    data = contents(static_page(recommender, n_users=2).html)["models"]["a"]
    assert data["form"] is None
    assert data["lists"]["places"]["shape"] == [2, 100]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("als", {"factors": 3}),
        ("als", {"factors": 3, "linked": True}),
        ("als", {"factors": 5, "nonnegative": True}),
        ("bayes", {"factors": 3, "iterations": 4}),
        ("bias", {}),
        ("popular", {}),
        ("ials", {"factors": 3, "regularization": 0.1, "unobserved_weight": 0.1}),
        (
            "ials",
            {
                "factors": 5,
                "regularization": 0.1,
                "unobserved_weight": 0.1,
                "nonnegative": True,
            },
        ),
        ("ease", {"regularization": 5.0}),
        ("sparse-ease", {"regularization": 5.0, "factors": 5}),
        ("spectral", {"factors": 3}),
        ("implicit-knn", {"neighbors": 4}),
    ],
)
def test_the_arithmetic_of_a_page_is_that_of_the_model(name, parameters, ratings):
    recommender = Recommender(name, **parameters).fit(ratings)
    everything = np.arange(ratings.n_items)
    form = browser_model(recommender.model, ratings, everything, np.arange(2))
    history = {3: 5.0, 7: 1.0, 11: 4.0}
    new = recommender.fold_in(history)
    found = form_scores(
        form, np.array([*history]), np.array([*history.values()], np.float32)
    )
    np.testing.assert_allclose(found, new.model.scores([0])[0], rtol=2e-4, atol=1e-4)


def test_too_many_items_are_an_error_that_says_how_many_fit(monkeypatch):
    ease = Recommender("ease", regularization=5.0).fit(ratings_of(40, implicit=True))
    monkeypatch.setattr(pages, "_MAX_BYTES", 4 * 30**2)
    with pytest.raises(
        DataError, match=r"with 40 items of the ease model .*n_items=30 \(--items\)"
    ):
        static_page(ease)
    assert static_page(ease, n_items=30).n_items == 30


@pytest.mark.parametrize("name", ["als", "softimpute", "spectral", "ease", "bayes"])
def test_the_map_places_the_most_rated_items(name, ratings):
    fitted = Recommender(
        name, **({} if name in ("softimpute", "ease") else {"factors": 3})
    ).fit(ratings)
    found = Catalogue(fitted, name).map(5)
    assert len(found["items"]) == 5
    counts = [row["count"] for row in found["items"]]
    assert counts == sorted(np.bincount(ratings.indices).tolist(), reverse=True)[:5]
    assert all(-1 <= row[axis] <= 1 for row in found["items"] for axis in "xy")
    assert 0 < found["share"] <= 1
    left = min(found["items"], key=lambda row: row["x"])
    assert found["axes"][0]["low"][0] == left["title"]


@pytest.mark.parametrize("name", ["als", "ease"])
def test_a_model_of_one_item_has_a_page_without_warnings(name):
    frame = pl.DataFrame(
        {"user": range(20), "item": 7, "rating": [1.0, 2.0, 4.0, 5.0] * 5}
    )
    only = Recommender(name).fit(Ratings.from_frame(frame))
    assert static_page(only).n_items == 1  # warnings are errors
    if name == "ease":
        with pytest.raises(
            ProblemError, match="ease model do not differ, and so there is no map"
        ):
            Catalogue(only, name).map(5)


def test_the_spectrum_is_that_of_the_scores_without_biases(als):
    model = als.model
    scores = model.user_factors.astype(float) @ model.item_factors.astype(float).T
    found = Catalogue(als, "als").spectrum()
    np.testing.assert_allclose(found["values"], np.linalg.svd(scores)[1][:3], rtol=1e-5)
    assert found["rank"] == 3
    with pytest.raises(ProblemError, match="popular model has no factors"):
        Catalogue(Recommender("popular").fit(als.ratings), "popular").spectrum()


def test_many_numbers_are_rounded_like_single_ones():
    generator = np.random.default_rng(0)
    values = generator.normal(size=100) * 10.0 ** generator.integers(-9, 9, 100)
    assert numbers(values) == [short(value) for value in values.tolist()]
