"""Work of lists with reasons: one system of equations for a user, and no pass over all ratings."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import polars as pl
import pytest
from serving import Application

from recsys import Ratings, Recommender
from recsys.features.selection import with_features
from recsys.models.abilities import Explains
from recsys.models.histories import Histories
from recsys.models.next import Next
from recsys.models.registry import MODELS, model_class
from recsys.ranking.lists import ListOptions
from recsys.serve import create_app
from recsys.serve.responses import Responses

EXPLAINED = [name for name in sorted(MODELS) if issubclass(model_class(name), Explains)]
N_ITEMS = 40
PARTS = {"blend": 3}  # models that have equations of their own


def events(name: str) -> Ratings:
    """Events of 60 users, with genres and prices of the items."""
    rng = np.random.default_rng(0)
    pairs = [
        (user, int(item), float(rng.integers(1, 6)), 1_600_000_000 + step)
        for user in range(60)
        for step, item in enumerate(rng.permutation(N_ITEMS)[:12])
    ]
    frame = pl.DataFrame(
        pairs, schema=["user", "item", "rating", "timestamp"], orient="row"
    )
    if not model_class(name).predicts_ratings:
        frame = frame.drop("rating")
    items = pl.DataFrame(
        {
            "item": range(N_ITEMS),
            "title": [f"Film {item}" for item in range(N_ITEMS)],
            "genre": [("war", "comedy", "crime")[item % 3] for item in range(N_ITEMS)],
            "year": [1970 + item for item in range(N_ITEMS)],
        }
    )
    ratings = Ratings.from_frame(frame, item_table=items)
    return with_features(ratings) if model_class(name).uses_features else ratings


@pytest.fixture(scope="module")
def fitted() -> Any:
    models: dict[str, Recommender] = {}

    def recommender(name: str) -> Recommender:
        if name not in models:
            models[name] = Recommender(name).fit(events(name))
        return models[name]

    return recommender


@pytest.mark.parametrize("name", EXPLAINED)
def test_reasons_need_one_system_of_equations(
    fitted: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Responses(fitted(name), name)
    # The first request fills caches.
    answers.recommend([0, 1], 10, ListOptions(), explain="")
    calls: Counter[str] = Counter()

    def counted(module: Any, function: str) -> None:
        original = getattr(module, function)

        def call(*arguments: Any, **options: Any) -> Any:
            calls[function] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(module, function, call)

    counted(np.linalg, "solve")
    counted(np.linalg, "inv")
    counted(np.linalg, "eigh")
    all_ratings = property(lambda ratings: pytest.fail("a pass over all ratings"))
    monkeypatch.setattr(Ratings, "matrix", all_ratings)
    monkeypatch.setattr(Next, "_weights", all_ratings)
    (answer,) = answers.recommend([7], 10, ListOptions(), explain="en")
    assert len(answer["items"]) == 10
    assert all(row["because"] or name == "popular" for row in answer["items"])
    assert calls.total() <= PARTS.get(name, 1), calls


def test_the_reasons_of_a_page_that_is_opened_again_are_kept(
    fitted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Responses(fitted("als"), "als")
    first = answers.best([7, 9], 5, None, "de")
    monkeypatch.setattr(
        type(fitted("als").model),
        "contributions_of_lists",
        lambda *_: pytest.fail("again"),
    )
    assert answers.best([7, 9], 5, None, "de") == first
    assert answers.recommend([9], 5, ListOptions(), "de")[0] == first[1]


def test_a_model_without_reasons_tells_where_an_item_is(tmp_path) -> None:
    Recommender("random").fit(events("random")).save(tmp_path / "model")
    with Application(create_app(str(tmp_path / "model"))) as application:
        service = application.ready()
        listed = service.get("/v1/recommend/7?n=40").json["items"]
        reply = service.get(f"/v1/explain/7/{listed[11]['item']}")
        assert reply.status == 400
        sentence = f"The item is number 12 of {len(listed)} in the list."
        assert reply.json["detail"].endswith(sentence)
        seen = set(range(N_ITEMS)) - {int(row["item"]) for row in listed}
        reply = service.get(f"/v1/explain/7/{min(seen)}")
        assert reply.json["detail"].endswith("The item is not in the list: seen.")


def test_frequent_requests_have_the_reasons_of_all_others(
    fitted: Any, tmp_path
) -> None:
    fitted("als").save(tmp_path / "model")
    with Application(create_app(str(tmp_path / "model"))) as application:
        service = application.ready()
        quick = service.get("/v1/recommend/7?n=5&explain=true").json
        # A condition in SQL is answered by the routes.
        full = service.get("/v1/recommend/7?n=5&explain=true&where=year>0").json
        assert [row["because"] for row in quick["items"]] == [
            row["because"] for row in full["items"]
        ]
        body = {"history": [{"item": 3}, {"item": 8, "value": 2}], "explain": True}
        quick = service.post("/v1/recommend", body).json
        full = service.post("/v1/recommend", {**body, "where": "year > 0"}).json
        assert quick["items"][0]["because"]
        assert quick == full
        english = service.get("/v1/recommend/7?explain=true&language=en&n=5").json
        assert (
            english == service.get("/v1/recommend/7?n=5&language=en&explain=true").json
        )
        assert english["items"][0]["text"].startswith(("because ", "among other"))
        german = {"accept-language": "de-AT, en;q=0.5"}
        text = service.get("/v1/recommend/7?explain=true", german).json["items"][0][
            "text"
        ]
        assert text.startswith(("weil ", "wegen ", "unter anderem "))


@pytest.mark.parametrize("name", EXPLAINED)
def test_an_item_has_the_same_reasons_in_a_list_and_alone(
    fitted: Any, name: str
) -> None:
    answers = Responses(fitted(name), name)
    (answer,) = answers.recommend([7], 10, ListOptions(), explain="en")
    for row in answer["items"]:
        alone = answers.explain(7, row["item"], 3, "en")
        contributions = [reason["contribution"] for reason in row["because"]]
        assert contributions == pytest.approx(
            [reason["contribution"] for reason in alone["because"]], rel=1e-4, abs=1e-6
        )
        total = sum(reason["share"] for reason in row["reasons"])
        assert total == pytest.approx(1 if row["reasons"] else 0, abs=0.01)


@pytest.mark.parametrize("name", EXPLAINED)
def test_lists_that_are_explained_together_have_the_reasons_of_single_ones(
    fitted: Any, name: str
) -> None:
    answers = Responses(fitted(name), name)
    together = answers.best([7, 3, 7, 11], 10, None, "en")
    alone = Responses(fitted(name), name)
    for user, answer in zip([7, 3, 7, 11], together, strict=True):
        (single,) = alone.best([user], 10, None, "en")
        for row, expected in zip(answer["items"], single["items"], strict=True):
            assert row["item"] == expected["item"]
            assert row["text"] == expected["text"]
            contributions = [reason["contribution"] for reason in row["because"]]
            assert contributions == pytest.approx(
                [reason["contribution"] for reason in expected["because"]], rel=1e-5
            )


def test_repeated_items_have_the_same_explanation(fitted: Any) -> None:
    recommender = fitted("implicit-knn")
    history = Histories.of(recommender.ratings).row(7)
    twice = recommender.model.contributions(history, [3, 5, 3])
    assert (twice.terms[0] == twice.terms[2]).all()
    assert twice.terms.any()


def test_stock_and_price_are_not_among_the_largest_contributions() -> None:
    rng = np.random.default_rng(0)
    pairs = [
        {"user": user, "item": int(item), "rating": 1.0 + 4 * ((item < 20) == user % 2)}
        for user in range(60)
        for item in rng.permutation(N_ITEMS)[:12]
    ]
    items = pl.DataFrame({"item": range(N_ITEMS), "genre": ["war", "crime"] * 20})
    # The price tells what half of the users like.
    items = items.with_columns(list_price=(pl.col("item") < 20) * 50.0)
    ratings = Ratings.from_frame(pl.DataFrame(pairs), item_table=items)
    answers = Responses(Recommender("als").fit(with_features(ratings)), "als")
    (answer,) = answers.recommend([7], 10, ListOptions(), explain="en")
    assert "list_price" in str(answers.ratings.item_features.names)
    for row in answer["items"]:
        assert row["because"]
        assert "list_price" not in str(row["because"] + row["reasons"])
    explained = answers.explain(7, answer["items"][0]["item"], 100)
    assert "list_price" not in str(explained["because"])
    total = sum(reason["contribution"] for reason in explained["because"])
    total += explained["base"] + explained["popularity"] + explained["others"]
    assert total == pytest.approx(explained["score"], rel=1e-5)


WITHOUT_SCIPY = """
import sys
for name in ("scipy.linalg", "scipy.linalg.lapack", "scipy.sparse.linalg"):
    sys.modules[name] = None  # as in the image of the service
from recsys import Recommender
from recsys.ranking.lists import ListOptions
from recsys.serve.responses import Responses
answers = Responses(Recommender.load(sys.argv[1]), "model")
(answer,) = answers.recommend([0], 10, ListOptions(), explain="en")
assert all(row["because"] for row in answer["items"])
"""


@pytest.mark.parametrize("name", ["als", "ials", "implicit-als", "softimpute"])
def test_long_histories_are_explained_in_the_image_of_the_service(
    name: str, tmp_path: Any
) -> None:
    rng = np.random.default_rng(0)
    pairs = [
        {"user": user, "item": int(item), "rating": float(item % 5 + 1)}
        for user in range(150)
        for item in rng.permutation(400)[:300]
    ]
    frame = pl.DataFrame(pairs)
    if not model_class(name).predicts_ratings:
        frame = frame.drop("rating")
    recommender = Recommender(name, factors=140)
    if name == "ials":
        recommender = Recommender(
            name, factors=140, regularization=0.01, unobserved_weight=0.1
        )
    recommender.fit(Ratings.from_frame(frame)).save(tmp_path / "model")
    command = [sys.executable, "-c", WITHOUT_SCIPY, str(tmp_path / "model")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr
