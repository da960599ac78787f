"""Routes of the service: the answers of the library, and problems with its sentences."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from serving import Application

from recsys import Ratings, Recommender
from recsys.cli.main import cli
from recsys.errors import DataError
from recsys.serve import create_app
from recsys.serve.schemas import ProblemBody
from recsys.serve.service import variant_of
from recsys.serve.settings import Limits

KNOWN = 105


@pytest.fixture(scope="module")
def service(
    saved: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    log = tmp_path_factory.mktemp("log") / "requests.jsonl"
    app = create_app(str(saved["als"]), index=str(saved["index"]), log=str(log))
    with Application(app) as found:
        yield found.ready()


@pytest.fixture(scope="module")
def recommender(saved: dict[str, Path]) -> Recommender:
    return Recommender.load(saved["als"])


def items_of(answer: Any) -> list[int]:
    """Return the items of a list as numbers; in the answer, they are text."""
    assert all(type(row["item"]) is str for row in answer["items"])
    return [int(row["item"]) for row in answer["items"]]


def problem(reply: Any, status: int, kind: str) -> str:
    """Return the detail of a problem document, which must be complete."""
    assert (reply.status, reply.headers["content-type"]) == (
        status,
        "application/problem+json",
    )
    found = ProblemBody.model_validate_json(reply.body)
    assert (found.type, found.status) == (f"/docs#{kind}", status)
    return found.detail


def test_lists_equal_the_library(service, recommender):
    expected = recommender.recommend(KNOWN, n=5)
    for target in (
        f"/v1/recommend/{KNOWN}?n=5",
        f"/v1/recommend/{KNOWN}?n=5&where=year>0",
    ):
        answer = service.get(target).json
        assert items_of(answer) == expected["item"].to_list()
        assert [row["title"] for row in answer["items"]] == expected["title"].to_list()
        assert [row["new"] for row in answer["items"]] == expected["new"].to_list()
        scores = [row["score"] for row in answer["items"]]
        np.testing.assert_allclose(scores, expected["score"], rtol=1e-6)
        assert (answer["user"], answer["policy"]) == (str(KNOWN), "personal")


def test_bodies_say_that_they_are_json(service):
    form = {"content-type": "application/x-www-form-urlencoded"}  # as of `curl -d`
    for body in ({"history": [{"item": 3}]}, {"users": [KNOWN]}):
        reply = service.post("/v1/recommend", body, form)
        assert "send the header `Content-Type: application/json`" in problem(
            reply, 400, "invalid-request"
        )


def test_requests_that_arrive_together_are_answered_as_alone(service):
    targets = [
        f"/v1/recommend/{user}?n={n}" for n in (3, 7) for user in range(100, 160)
    ]
    together = service.together(*targets)
    assert [each.body for each in together] == [
        service.get(target).body for target in targets
    ]


def test_options_limit_a_list(service, recommender):
    answer = service.get(
        "/v1/recommend/105?where=genre='Horror'&exclude=2,3&exclude=5&n=40"
    ).json
    found = {*items_of(answer)}
    seen = set(recommender.ratings.to_frame().filter(pl.col("user") == KNOWN)["item"])
    assert found
    assert not found & ({2, 3, 5} | seen)
    assert all(item % 3 == 0 for item in found)
    everything = service.get("/v1/recommend/105?n=1000&include_seen=true").json["items"]
    assert len(everything) == 41


def test_reasons_are_the_largest_terms_of_the_score(service, recommender):
    answer = service.get(f"/v1/recommend/{KNOWN}?n=2&explain=true").json
    for row in answer["items"]:
        explained = recommender.explain(KNOWN, row["item"], n=3)
        expected = explained.filter(pl.col("part").is_in(["item", "feature"]))[
            "contribution"
        ]
        assert [each["contribution"] for each in row["because"]] == pytest.approx(
            expected.to_list()
        )
    full = service.get(f"/v1/explain/{KNOWN}/{answer['items'][0]['item']}?n=4").json
    total = full["base"] + full["popularity"] + full["others"]
    total += sum(each["contribution"] for each in full["because"])
    assert full["popularity"] < 0
    assert total == pytest.approx(full["score"], rel=1e-5)


def test_unknown_users_are_a_problem_or_get_popular_items(service, recommender):
    detail = problem(service.get("/v1/recommend/7?n=3"), 404, "unknown-id")
    assert detail == "Unknown user 7; the nearest ids are 100, 101, 102."
    answer = service.get("/v1/recommend/7?n=3&unknown=popular").json
    expected = recommender.recommend([7], n=3, cold_start="popular")
    assert items_of(answer) == expected["item"].to_list()
    assert answer["policy"] == "popular"


def test_several_users_keep_their_order(service):
    body = {"users": [120, 7, "105"], "n": 2, "unknown": "popular"}
    results = service.post("/v1/recommend", body).json["results"]
    assert [each["user"] for each in results] == ["120", "7", "105"]
    assert [each["policy"] for each in results] == ["personal", "popular", "personal"]
    assert results[2]["items"] == service.get("/v1/recommend/105?n=2").json["items"]


@pytest.mark.parametrize(
    "user", ["visitor-17", "007", "1.0", "9223372036854775808", "null"]
)
def test_users_with_ids_of_another_type_are_unknown_users(user, service):
    popular = service.get("/v1/recommend/7?n=3&unknown=popular").json
    for options in ("", "&where=year>0", "&explain=true"):
        answer = service.get(f"/v1/recommend/{user}?n=3&unknown=popular{options}").json
        assert (answer["user"], answer["policy"]) == (user, "popular")
        if options != "&where=year>0":
            assert answer["items"] == popular["items"]
    problem(service.get(f"/v1/recommend/{user}?n=3"), 404, "unknown-id")
    problem(service.get(f"/v1/users/{user}"), 404, "unknown-id")


def test_an_id_of_another_type_in_a_batch_is_one_unknown_user(service):
    users = [105, "visitor-17", 2**63, "120", "007"]
    body = {"users": users, "n": 2, "unknown": "popular"}
    results = service.post("/v1/recommend", body).json["results"]
    assert [result["user"] for result in results] == [str(user) for user in users]
    alone = [
        service.get(f"/v1/recommend/{user}?n=2&unknown=popular").json for user in users
    ]
    assert results == alone
    assert [result["policy"] for result in results] == [
        *("personal", "popular", "popular", "personal", "popular")
    ]
    problem(service.post("/v1/recommend", {"users": users}), 404, "unknown-id")


def test_pairs_may_have_ids_of_several_types(service):
    pairs = [(105, 4), ("visitor-17", 4), ("105", "x"), (2**63, "4"), ("105", "4")]
    body = {
        "pairs": [{"user": user, "item": item} for user, item in pairs],
        "unknown": "bias",
    }
    rows = service.post("/v1/predict", body).json["predictions"]
    assert [(row["user"], row["item"]) for row in rows] == [
        (str(u), str(i)) for u, i in pairs
    ]
    assert rows[0] == rows[-1]


def test_an_unknown_user_is_described_by_a_history(service, recommender):
    body = {
        "history": [{"item": 3, "value": 5}, {"item": 9}],
        "n": 4,
        "user": "visitor-1",
    }
    answer = service.post("/v1/recommend", body).json
    expected = recommender.recommend(
        history={3: 5, 9: 5}, n=4
    )  # without a value it is the best
    assert items_of(answer) == expected["item"].to_list()
    assert (answer["user"], answer["policy"]) == ("visitor-1", "history")
    assert (
        service.post("/v1/recommend", {"history": [], "n": 2}).json["policy"]
        == "popular"
    )


def test_unknown_users_and_items_in_a_batch_are_answered_as_alone(service, recommender):
    items = [f"/v1/similar/{item}?n=4" for item in range(1, 41)]
    assert [each.body for each in service.together(*items)] == [
        service.get(target).body for target in items
    ]
    for item in (1, 17, 41):
        expected = recommender.similar_items(item, n=4)["similar"].to_list()
        assert items_of(service.get(f"/v1/similar/{item}?n=4").json) == expected
    for history in ({3: 5.0}, {1: 2.0, 30: 4.5, 8: 1.0}, {41: 3.0}, {5: 3.0, "5": 4.0}):
        given = [{"item": item, "value": value} for item, value in history.items()]
        quick = service.post("/v1/recommend", {"history": given, "n": 5}).json
        slow = service.post(
            "/v1/recommend", {"history": given, "n": 5, "explain": True}
        ).json
        rows = [
            {k: v for k, v in row.items() if k != "because"} for row in slow["items"]
        ]
        assert quick["items"] == rows
        assert (quick["user"], quick["policy"]) == (None, "history")


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (
            {},
            "The body must have either users, or a history or features of a new user.",
        ),
        (
            {"users": [105], "history": []},
            "The body must have either users, or a history",
        ),
        ({"users": []}, "A request must have 1 to 1,000 users; got 0."),
        (
            {"history": [{"item": 3}], "n": 1001},
            "n must be between 1 and 1,000; got 1001.",
        ),
        ({"users": [105], "where": "price < 3"}, "where: 'price < 3' cannot be used"),
        ({"users": [True]}, "users.0"),
        ({"users": [105], "surprise": 1}, "surprise: Extra inputs are not permitted."),
        (
            {"features": {"age": 3}},
            "The als model was fitted without features of users",
        ),
        (b"{", "The body is not JSON (character 1: expecting property name"),
        ({"history": [{"item": 3, "value": 9}]}, "Rating 9 is outside of the range"),
        (
            {"history": [{"item": 3, "value": 0}], "n": 2},
            "the model's ratings, 1 to 5.",
        ),
    ],
)
def test_bodies_that_cannot_be_used(service, body, detail):
    assert detail in problem(
        service.post("/v1/recommend", body), 400, "invalid-request"
    )


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ('{"history": [{"item": 1}], "n": 3, "n": 5}', "the key 'n' twice"),
        ('{"history": [{"item": 1, "item": 2}]}', "the key 'item' twice"),
        ('{"history": [{"item": 1, "value": 2, "value": 5}]}', "the key 'value' twice"),
        ('{"history": [{"item": 1, "\\u0069tem": 2}]}', "the key 'item' twice"),
        ('{"history": [{"item": 1, "value": null, "value": 5}]}', "'value' twice"),
        ('{"history": [{"item": 1}], "explain": true, "explain": false}', "'explain'"),
        ('{"user": 1, "user": 2}', "the key 'user' twice"),
        ('{"user": 105, "features": {"age": 20, "age": 40}}', "the key 'age' twice"),
        ('{"history": [{"item": 1, "value": NaN}]}', "the value NaN"),
        ('{"history": [{"item": 1, "value": -Infinity}]}', "the value -Infinity"),
    ],
)
@pytest.mark.parametrize("path", ["recommend", "predict", "events"])
def test_a_body_is_strict_json(service, path, body, detail):
    reply = service.post(f"/v1/{path}", body.encode())
    assert detail in problem(reply, 400, "invalid-request")


def test_names_of_keys_may_be_ids(service, recommender):
    history = [{"item": KNOWN, "value": 4.0}, {"item": "value"}, {"item": "item"}]
    reply = service.post("/v1/recommend", {"history": history})
    assert "Unknown items" in problem(reply, 404, "unknown-id")


def test_similar_items(service, recommender):
    answer = service.get("/v1/similar/4?n=3").json
    expected = recommender.similar_items(4, n=3)
    assert items_of(answer) == expected["similar"].to_list()
    assert (answer["item"], answer["title"]) == ("4", "The Film 4")


def test_predictions(service, recommender):
    body = {"pairs": [{"user": 105, "item": 4}, {"user": 110, "item": 41}]}
    answer = service.post("/v1/predict", body).json["predictions"]
    expected = recommender.predict([(105, 4), (110, 41)])["prediction"].to_list()
    assert [each["prediction"] for each in answer] == pytest.approx(expected, rel=1e-6)
    detail = problem(
        service.post("/v1/predict", body | {"confidence": 0.9}), 400, "invalid-request"
    )
    assert "cannot give intervals" in detail


def test_intervals_stay_within_the_range_of_the_ratings(tmp_path):
    pairs = pl.DataFrame(
        {"user": [n // 9 for n in range(180)], "item": [n % 9 for n in range(180)]}
    )
    ratings = pairs.with_columns(rating=pl.Series([1.0, 5.0] * 90))
    Recommender("bayes", factors=2).fit(Ratings.from_frame(ratings)).save(
        tmp_path / "model"
    )
    with Application(create_app(str(tmp_path / "model"))) as bayes:
        body = {
            "pairs": [{"user": 0, "item": 0}, {"user": 0, "item": 1}],
            "confidence": 0.99,
        }
        rows = bayes.ready().post("/v1/predict", body).json["predictions"]
    assert all(
        1 <= each["low"] <= each["prediction"] <= each["high"] <= 5 for each in rows
    )
    assert {1, 5} & {end for each in rows for end in (each["low"], each["high"])}


def test_items_are_found_by_title_and_id(service, recommender):
    found = service.get("/v1/items?q=film 1&n=100").json
    assert found["total"] == 13  # with those that have the words elsewhere
    assert {*items_of(found)[:11]} == {1, *range(10, 20)}
    assert items_of(service.get("/v1/items?q=A New").json)[0] == 41
    assert items_of(service.get("/v1/items?q=17").json)[0] == 17
    most = service.get("/v1/items?n=1").json["items"][0]
    counts = recommender.ratings.to_frame()["item"].value_counts()
    assert most["count"] == counts["count"].max()


def test_shows_the_columns_of_items_and_users(service, recommender):
    item = service.get("/v1/items/4").json
    frame = recommender.ratings.to_frame()
    rated = frame.filter(pl.col("item") == 4)["rating"]
    assert (item["count"], item["mean"]) == (
        len(rated),
        pytest.approx(rated.mean(), rel=1e-6),
    )
    assert item["features"] == {"title": "The Film 4", "genre": "Drama", "year": 1983}
    new = service.get("/v1/items/41").json
    assert (new["count"], new["mean"]) == (0, None)
    user = service.get("/v1/users/105").json
    own = frame.filter(pl.col("user") == KNOWN)
    assert {int(row["item"]): row["value"] for row in user["history"]} == dict(
        own.select("item", "rating").iter_rows()
    )
    assert len(service.get("/v1/users?n=5").json["users"]) == 5


def test_the_model_says_what_it_can(service, recommender):
    model = service.get("/v1/model").json
    expected = {"similar", "explain", "history", "map", "spectrum", "search"}
    assert set(model["abilities"]) == expected
    assert model["fingerprint"].startswith("sha256:")
    assert model["model"] == service.get("/v1/recommend/105").json["model"]
    assert model["parameters"]["factors"] == 4
    assert service.get("/v1/spectrum").json["rank"] == 4
    assert len(service.get("/v1/map?n=12").json["items"]) == 12


def test_an_index_is_searched(service):
    found = service.get("/v1/search?q=nurses and a doctor xyz&n=2").json
    assert {row["document"] for row in found["documents"]} == {"0", "1"}
    assert "xyz" in found["notes"][0]
    assert "No word" in problem(service.get("/v1/search?q=xyz"), 400, "invalid-request")


def test_an_index_is_not_served_next_to_others_in_the_place_of_a_model(saved):
    for others in ({"index": str(saved["index"])}, {"model_b": str(saved["als"])}):
        with pytest.raises(
            DataError, match="is an index of documents, served alone; leave out"
        ):
            create_app(str(saved["index"]), **others)


def test_settings_that_cannot_work_are_errors_at_the_start(saved, tmp_path):
    model, index = str(saved["als"]), str(saved["index"])
    for settings, message in [
        (
            {"index": str(saved["ials"])},
            "ials is a model, not an index of `recsys lsi index`",
        ),
        ({"model_b": index}, "index is an index of documents, not a model"),
        (
            {"events": str(tmp_path / "no" / "x.jsonl")},
            "cannot be written: there is no directory",
        ),
        ({"log": str(tmp_path)}, "cannot be written: it is a directory"),
        (
            {"cors": ("shop.example",)},
            "such as https://shop.example, with a scheme and without",
        ),
        (
            {"cors": ("https://shop.example/",)},
            "without a path; got 'https://shop.example/'",
        ),
    ]:
        with pytest.raises(DataError, match=message):
            create_app(model, **settings)


def test_a_share_needs_a_second_model_on_the_command_line(saved):
    result = CliRunner().invoke(cli, ["serve", str(saved["als"]), "--share", "0.3"])
    assert result.exit_code == 2
    assert "--share is the share of users of --model-b; give both." in result.output


def test_an_index_alone_has_no_recommendations(saved):
    with Application(create_app(str(saved["index"]))) as service:
        service.ready()
        assert service.get("/v1/search?q=doctor").status == 200
        problem(service.get("/v1/recommend/105"), 404, "not-available")
        problem(service.get("/v1/model"), 404, "not-available")


def test_ids_in_paths_may_have_any_character(tmp_path):
    names = ["a/b", "50%", "ä?&", "a b", "..", "x#y"]
    pairs = [(user, item) for user in names for item in names if user != item]
    frame = pl.DataFrame(pairs, schema=["user", "item"], orient="row")
    Recommender("popular").fit(Ratings.from_frame(frame)).save(tmp_path / "model")
    from urllib.parse import quote

    with Application(create_app(str(tmp_path / "model"))) as service:
        service.ready()
        for name in names:
            escaped = quote(name, safe="")
            assert service.get(f"/v1/recommend/{escaped}?n=1").json["user"] == name
            assert service.get(f"/v1/items/{escaped}").json["item"] == name
            answer = service.get(
                f"/v1/explain/{escaped}/{quote(names[0], safe='')}"
            ).json
            assert (answer["user"], answer["item"]) == (name, "a/b")


def test_paths_and_methods_that_do_not_exist(service):
    problem(service.get("/v1/nothing"), 404, "not-found")
    problem(service.call("DELETE", "/v1/model"), 405, "wrong-method")


def test_the_page_and_the_documentation_are_in_the_package(service):
    for target, kind in (
        ("/", "text/html"),
        ("/docs", "text/html"),
        ("/page/style.css", "text/css"),
    ):
        reply = service.get(target)
        assert reply.status == 200
        assert reply.headers["content-type"].startswith(kind)
        assert b"https://" not in reply.body.replace(b"https://www.w3.org", b"")


def test_metrics_count_requests_by_route_and_status(service):
    service.get("/v1/recommend/105")
    service.get("/v1/recommend/8")
    page = service.get("/metrics").body.decode()
    assert (
        'recsys_request_seconds_count{route="/v1/recommend/{user}",status="200"}'
        in page
    )
    assert (
        'recsys_request_seconds_count{route="/v1/recommend/{user}",status="404"}'
        in page
    )
    assert 'recsys_model_age_seconds{slot="model_a"}' in page
    lost = next(
        line
        for line in page.splitlines()
        if line.startswith("recsys_unknown_users_total")
    )
    assert float(lost.split()[1]) >= 1


def test_an_api_key_guards_answers_and_not_health(saved):
    with Application(create_app(str(saved["als"]), api_key="s3cret")) as service:
        service.ready()
        for headers in ({}, {"authorization": "Bearer nope"}, {"x-api-key": "s3cre"}):
            reply = service.get("/v1/recommend/105", headers)
            problem(reply, 401, "unauthorized")
            assert reply.headers["www-authenticate"] == "Bearer"
        problem(service.get("/metrics"), 401, "unauthorized")
        for headers in ({"authorization": "Bearer s3cret"}, {"x-api-key": "s3cret"}):
            assert service.get("/v1/recommend/105", headers).status == 200
        assert service.get("/").status == 200
        for escaped in ("/%6detrics", "/%76%31/model", "/v1%2Fmodel"):
            assert service.get(escaped).status in (401, 404)


def test_other_sites_may_ask_only_if_named(saved):
    origin = {"origin": "https://shop.example"}
    with Application(create_app(str(saved["als"]))) as closed:
        assert (
            "access-control-allow-origin"
            not in closed.get("/health/live", origin).headers
        )
    with Application(
        create_app(str(saved["als"]), cors=("https://shop.example",))
    ) as service:
        found = service.ready().get("/v1/recommend/105", origin)
        assert found.headers["access-control-allow-origin"] == "https://shop.example"


def test_limits(saved):
    limits = Limits(body=200, items=20, batch=3)
    with Application(create_app(str(saved["als"]), limits=limits)) as service:
        service.ready()
        long = {"users": [105], "where": "year > 0" + " " * 200}
        problem(service.post("/v1/recommend", long), 413, "too-large")
        problem(service.get("/v1/recommend/105?n=21"), 400, "invalid-request")
        detail = problem(
            service.post("/v1/recommend", {"users": [1] * 4}), 400, "invalid-request"
        )
        assert detail == "A request must have 1 to 3 users; got 4."


def test_a_request_has_a_limit_of_all_its_items(service):
    detail = problem(
        service.post("/v1/recommend", {"users": [105] * 200, "n": 1000}),
        400,
        "invalid-request",
    )
    assert (
        detail
        == "A request must be for at most 100,000 items in total; got 200 times 1,000."
    )


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b'{"history":' + b"[" * 100_000, b'{"a":' * 100_000]
)
def test_deeply_nested_bodies_are_a_problem(service, text):
    problem(service.post("/v1/recommend", text), 400, "invalid-request")
    problem(service.post("/v1/predict", text), 400, "invalid-request")


def test_an_answer_that_takes_too_long_is_a_problem(saved, monkeypatch):
    from recsys.serve.catalogue import Catalogue

    answered = threading.Event()
    monkeypatch.setattr(Catalogue, "items", lambda *_: answered.wait())
    limits = Limits(seconds=0.05, waiting=2)
    with Application(create_app(str(saved["als"]), limits=limits)) as service:
        service.ready()
        replies = service.together(*["/v1/items"] * 4)
        answered.set()
        kinds = sorted(each.json["type"] for each in replies)
        assert kinds == ["/docs#busy"] * 2 + ["/docs#timeout"] * 2


def test_variants_are_shared_out_by_a_hash_of_the_user(saved, tmp_path):
    log = tmp_path / "requests.jsonl"
    settings: dict[str, Any] = {
        "model_b": str(saved["ials"]),
        "share": 0.3,
        "log": str(log),
    }
    with Application(create_app(str(saved["als"]), **settings)) as service:
        service.ready()
        answers = [
            service.get(f"/v1/recommend/{user}?n=2").json for user in range(100, 160)
        ]
        for answer in answers:
            assert answer["variant"] == variant_of(answer["user"], 0.3)
            assert answer["model"].startswith(
                {"a": "als@", "b": "ials@"}[answer["variant"]]
            )
        assert 5 < sum(each["variant"] == "b" for each in answers) < 35
        forced = service.get("/v1/recommend/100?variant=b&n=2").json
        assert forced["variant"] == "b"
        many = service.post(
            "/v1/recommend", {"users": [*range(100, 160)], "n": 2}
        ).json["results"]
        assert many == answers
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == 121
    assert {"time", "user", "variant", "model", "items", "policy"} <= lines[0].keys()
    # An item of both models at a rank is shown there in any case.
    models = {
        "a": Recommender.load(saved["als"]),
        "b": Recommender.load(saved["ials"]),
    }
    for line in lines[:60]:
        listed = {
            name: model.recommend(int(line["user"]), 2)["item"]
            .cast(pl.String)
            .to_list()
            for name, model in models.items()
        }
        share = {"a": 0.7, "b": 0.3}[line["variant"]]
        pairs = zip(listed["a"], listed["b"], strict=True)
        expected = [1.0 if one == other else share for one, other in pairs]
        assert line["probabilities"] == pytest.approx(expected)
    assert "probabilities" not in lines[60]  # the variant was requested


def test_a_variant_needs_a_second_model(service):
    detail = problem(service.get("/v1/recommend/105?variant=b"), 400, "invalid-request")
    assert detail == "The service has one model, and no variant b."


def test_a_misspelt_parameter_is_an_error(service):
    detail = problem(service.get("/v1/recommend/105?wher=new"), 400, "invalid-request")
    assert detail.startswith("There is no parameter 'wher' here; it has n, where, ")


def test_lists_may_be_empty_and_conditions_may_not_be_expensive(service):
    assert service.get("/v1/recommend/105?where=year=1").json["items"] == []
    several = service.post(
        "/v1/recommend", {"users": [105, 106], "where": "year = 1"}
    ).json
    assert [each["items"] for each in several["results"]] == [[], []]
    target = "/v1/recommend/105?where=LPAD(title, 999999999, 'x') = ''"
    detail = problem(service.get(target), 400, "invalid-request")
    assert detail.startswith("where: LPAD is not allowed in a condition")


@pytest.mark.parametrize(
    "options", ["n=3&n=5", "explain=true&explain=false", "where=year>1990&where=true"]
)
def test_an_option_that_is_given_twice_is_an_error(options, service):
    reply = service.get(f"/v1/recommend/105?{options}")
    name = options.partition("=")[0]
    assert reply.status == 400
    assert reply.json["detail"] == f"{name} has one value; the request has 2."


def test_options_with_several_values_may_be_repeated(service):
    reply = service.get("/v1/recommend/105?n=40&items=1&items=2,3&exclude=3&exclude=4")
    assert {row["item"] for row in reply.json["items"]} <= {"1", "2"}


def test_a_user_who_is_named_as_text_and_number_has_one_list(service):
    reply = service.post("/v1/recommend", {"users": [105, "105", "106"], "n": 1})
    assert [result["user"] for result in reply.json["results"]] == ["105", "106"]


def test_unknown_items_of_a_history_are_ignored_on_request(service):
    known = [{"item": "3", "value": 5}, {"item": 9}]
    unknown = [{"item": "fresh"}, {"item": 77_000}, {"item": "fresh"}]
    expected = service.post("/v1/recommend", {"history": known, "n": 4}).json
    body = {"history": [*unknown, *known], "n": 4}
    assert service.post("/v1/recommend", body).status == 404
    answer = service.post("/v1/recommend", {**body, "unknown": "popular"}).json
    assert answer.pop("ignored") == ["fresh", "77000"]
    assert answer == expected
    body = {"history": unknown, "n": 4, "unknown": "popular"}
    assert service.post("/v1/recommend", body).json["policy"] == "popular"


def test_an_error_for_a_long_id_has_the_limit(service):
    reply = service.get(f"/v1/recommend/{'9' * 501}")
    expected = "user: an id is text of at most 500 characters."
    assert problem(reply, 400, "invalid-request") == expected
