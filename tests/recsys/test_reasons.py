"""Reasons of a recommendation in words."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from serving import Application

from recsys import DataError, Recommender, read_ratings
from recsys.cli.main import cli
from recsys.reasons import in_words, shared_reasons
from recsys.serve import create_app

WEIGHTS = {"purchase": 2.0, "view": 1.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Users who look at and buy what belongs together; u0 has looked at A and bought B."""
    folder = tmp_path_factory.mktemp("shop")
    lines = ["user,item,event"]
    for user in range(1, 40):
        items = ("A", "B", "C") if user % 2 else ("X", "Y", "Z")
        lines += [
            f"u{user},{item},{('view', 'purchase')[user % 3 == 0]}" for item in items
        ]
    lines += ["u0,A,view", "u0,B,view", "u0,B,purchase"]
    (folder / "events.csv").write_text("\n".join(lines) + "\n")
    (folder / "items.csv").write_text("item,title\nA,Tea\nB,Cup\nC,Pot\n")
    ratings = read_ratings(
        folder / "events.csv", event_weights=WEIGHTS, item_table=folder / "items.csv"
    )
    path = folder / "model"
    Recommender("implicit-knn").fit(ratings).save(path)
    return path


def test_kinds_of_events_are_the_deeds(model):
    reasons, text = Recommender.load(model).reasons("u0", "C")
    kinds = {reason["title"]: reason["kind"] for reason in reasons if "item" in reason}
    assert kinds == {"Tea": "view", "Cup": "purchase"}
    assert "bought Cup" in text
    assert "looked at Tea" in text
    assert text.startswith("because you ")
    german = Recommender.load(model).reasons("u0", "C", "de")[1]
    assert german.startswith("weil Sie ")
    assert "Cup gekauft" in german
    assert german.endswith(" haben")
    assert sum(reason["share"] for reason in reasons) == pytest.approx(1, abs=0.01)


def test_without_kinds_users_have_chosen_and_graded_items_are_rated():
    pairs = pl.DataFrame({"user": [1, 1, 2, 2, 3, 3], "item": [*"abbcac"]})
    plain = Recommender("ease", regularization=1.0).fit(pairs)
    assert "you chose " in plain.reasons(1, "c")[1]
    graded = pairs.with_columns(rating=pl.Series([5.0, 4, 3, 5, 2, 4]))
    recommender = Recommender("als", factors=2).fit(graded)
    reasons, _ = recommender.reasons(1, "c")
    assert {reason["kind"] for reason in reasons if "item" in reason} <= {"rating"}
    with pytest.raises(DataError, match="language must be"):
        plain.reasons(1, "c", "fr")


def test_small_shares_are_summed_and_stock_and_price_are_left_out():
    names = [
        {"item": str(number), "title": None, "kind": "view"} for number in range(12)
    ]
    names += [{"feature": "price near 10"}, {"feature": "in_stock = yes"}]
    names += [{"feature": "genres = Horror"}]
    terms = np.array([4.0, *[0.1] * 10, -3, 2, 2, 1.5])
    reasons = shared_reasons(names.__getitem__, terms)
    named = [reason.get("item") or reason.get("feature") for reason in reasons]
    assert named == ["0", "genres = Horror", None]
    assert [reason["share"] for reason in reasons] == [0.381, 0.143, 0.476]
    assert reasons[-1]["other"]
    text = in_words(reasons, "en")
    assert text == (
        "because you looked at 0, and because of genres: Horror, among other reasons"
    )
    assert in_words(reasons, "de") == (
        "unter anderem weil Sie 0 angesehen haben, und wegen genres: Horror"
    )


@pytest.mark.parametrize(
    "column",
    [
        *("price", "Preis", "list_price", "UVP", "VK", "stock", "Lagerbestand"),
        *("qty_available", "quantity", "Menge", "on_hand", "availability"),
        *("lieferbar", "Lieferzeit", "sold_out", "Stückzahl", "stueckzahl"),
    ],
)
def test_features_of_stock_and_price_are_left_out_in_both_languages(column):
    names = [{"feature": f"{column} near 10"}, {"feature": "quality = good"}]
    reasons = shared_reasons(names.__getitem__, np.array([2.0, 2.0]))
    assert [reason.get("feature") for reason in reasons] == ["quality = good", None]


def test_nothing_of_the_user_speaks_for_a_popular_item():
    assert shared_reasons([{"item": "1"}].__getitem__, np.array([-1.0])) == []
    assert in_words([], "en") == "because many others like it"


def test_the_service_tells_reasons_in_the_language_of_the_request(model):
    with Application(create_app(str(model))) as service:
        service.ready()
        path = "/v1/recommend/u0?n=1&explain=true"
        (row,) = service.get(path).json["items"]
        assert "text" not in row
        (row,) = service.get(f"{path}&language=en").json["items"]
        assert row["text"].startswith("because you ")
        assert {reason.get("kind") for reason in row["reasons"]} >= {"purchase"}
        german = {"accept-language": "de-DE,de;q=0.9,en;q=0.8"}
        (row,) = service.get(path, headers=german).json["items"]
        assert row["text"].startswith("weil Sie ")
        (row,) = service.get(f"{path}&language=en", headers=german).json["items"]
        assert row["text"].startswith("because you ")
        body = {"history": [{"item": "A"}], "explain": True, "language": "de", "n": 1}
        (row,) = service.post("/v1/recommend", body).json["items"]
        assert row["text"].startswith("weil Sie ")
        explained = service.get("/v1/explain/u0/C?language=de").json
        assert explained["text"].startswith("weil Sie ")
        assert service.get(f"{path}&language=fr").status == 400


def test_the_command_tells_reasons(model):
    command = ["explain", str(model), "--user", "u0", "--item", "C"]
    result = CliRunner().invoke(cli, [*command, "--language", "de"])
    assert result.exit_code == 0, result.output
    assert "weil Sie " in result.output
    document = json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout)
    assert document["text"].startswith("because you ")
    assert document["reasons"]
