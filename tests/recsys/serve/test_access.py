"""Access: keys, lists without data of users, and requests that other sites send by a browser."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner
from fastapi import FastAPI
from serving import Application, Command, Reply

from recsys import Ratings, Recommender, with_features
from recsys.cli.main import cli
from recsys.errors import DataError
from recsys.serve import create_app

Requests = list[tuple[str, Any]]

USERS, VISITOR = {"users": [105, 106], "n": 2}, {"history": [{"item": 3}], "n": 2}
OF_USERS: Requests = [
    ("/v1/users", None),
    ("/v1/users/105", None),
    ("/v1/explain/105/4", None),
    ("/v1/recommend/105?explain=true", None),
    ("/v1/recommend/105?include_seen=true", None),
    ("/v1/recommend/7?unknown=popular&explain=true", None),
    ("/v1/recommend", USERS | {"explain": True}),
    ("/v1/recommend", USERS | {"include_seen": True}),
    # Conditions are for trusted clients, too.
    ("/v1/recommend/105?where=year>0", None),
    ("/v1/similar/4?where=year>0", None),
    ("/v1/recommend", VISITOR | {"where": "year > 0"}),
]
LISTS: Requests = [
    ("/v1/recommend/105", None),
    ("/v1/recommend", USERS),
    ("/v1/recommend", VISITOR),
    ("/v1/recommend", VISITOR | {"explain": True}),
    ("/v1/similar/4", None),
    ("/v1/items?q=film", None),
]
EVENT = {"user": 105, "item": 4, "value": 3}
OTHERS: Requests = [
    ("/v1/items/4", None),
    ("/v1/model", None),
    ("/v1/map", None),
    ("/v1/spectrum", None),
    ("/v1/predict", {"pairs": [{"user": 105, "item": 4}]}),
    ("/v1/events", {"events": [EVENT]}),
    ("/metrics", None),
]


def ask(
    service: Any, request: tuple[str, Any], headers: Mapping[str, str] | None = None
) -> Reply:
    target, body = request
    reply: Reply
    if body is None:
        reply = service.get(target, headers)
    else:
        reply = service.post(target, body, headers)
    return reply


def statuses(
    service: Any, requests: Requests, headers: Mapping[str, str] | None = None
) -> set[int]:
    return {ask(service, request, headers).status for request in requests}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def served(saved: dict[str, Path], tmp_path: Path) -> Iterator[Any]:
    """Serve a model with some settings."""
    running: list[Application] = []

    def serve(model: Path = saved["als"], **settings: Any) -> Application:
        app = create_app(str(model), events=str(tmp_path / "events.jsonl"), **settings)
        running.append(Application(app).__enter__())
        return running[-1].ready()

    yield serve
    for service in running:
        service.__exit__()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "shop.example"])
def test_data_of_users_need_a_key_where_others_can_connect(host, served):
    service = served(host=host)
    assert statuses(service, LISTS + OTHERS) == {200, 201}
    for request in OF_USERS:
        reply = ask(service, request)
        assert (reply.status, reply.json["type"]) == (403, "/docs#forbidden")
        assert "start the service with --api-key" in reply.json["detail"]
        assert "Film" not in reply.body.decode()


@pytest.mark.parametrize("host", [None, "127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_on_a_loopback_address_all_is_answered_without_a_key(host, served):
    service = served(host=host)
    for name in (None, "localhost:80", "127.0.0.1", "[::1]:80", "LOCALHOST"):
        headers = {} if name is None else {"host": name}
        assert statuses(service, OF_USERS + LISTS, headers) == {200}
    assert statuses(service, OTHERS) == {200, 201}


FOREIGN: list[dict[str, str]] = [
    {"host": "evil.example"},  # a name that its owner resolves to 127.0.0.1
    {"host": "evil.example:80"},
    {"host": "localhost.evil.example"},
    {"host": "127.0.0.1.evil.example"},
    {"host": "evil.example@localhost"},
    {"host": "0.0.0.0"},
    {"host": "localhost:8000"},  # a service on another port
    {"host": ""},
    {"host": "localhost", "origin": "https://evil.example"},
    {"host": "localhost", "origin": "http://localhost:3000"},
    {"host": "localhost", "origin": "null"},
    {"host": "evil.example", "origin": "http://evil.example"},
    {"host": "localhost", "sec-fetch-site": "cross-site"},
    {"host": "localhost", "sec-fetch-site": "same-site"},
]
FORWARDED: list[dict[str, str]] = [
    {"host": "localhost", "x-forwarded-for": "203.0.113.7"},
    {"host": "localhost", "forwarded": "for=203.0.113.7"},
]


@pytest.mark.parametrize("headers", FOREIGN + FORWARDED)
def test_other_sites_and_proxies_get_no_data_of_users(headers, served):
    service = served()
    assert statuses(service, OF_USERS, headers) == {403}
    assert statuses(service, LISTS, headers) == {200}


@pytest.mark.parametrize("headers", FOREIGN)
def test_other_sites_store_no_events(headers, served, tmp_path):
    service = served()
    reply = service.post("/v1/events", {"events": [EVENT]}, headers)
    assert (reply.status, reply.json["type"]) == (403, "/docs#forbidden")
    assert "events need" in reply.json["detail"] or "for events" in reply.json["detail"]
    journal = tmp_path / "events.jsonl"
    assert not journal.exists() or not journal.read_bytes()
    with_key = served(api_key="secret")
    sent = with_key.post("/v1/events", {"events": [EVENT]}, headers | bearer("secret"))
    assert sent.status == 201


def test_programs_and_pages_of_the_service_store_events(served):
    service = served(allowed_hosts=("films.local",))
    for headers in (
        {},
        {"host": "localhost", "origin": "http://localhost"},
        {"host": "films.local", "sec-fetch-site": "same-origin"},
        *FORWARDED,
    ):
        assert service.post("/v1/events", {"events": [EVENT]}, headers).status == 201


def test_pages_of_the_service_itself_get_data_of_users(served):
    service = served()
    own = [
        {
            "host": "localhost",
            "origin": "http://localhost",
            "sec-fetch-site": "same-origin",
        },
        {"host": "127.0.0.1:80", "origin": "http://127.0.0.1:80"},
        {
            "host": "localhost",
            "sec-fetch-site": "none",
        },  # typed in the bar of the browser
    ]
    for headers in own:
        assert statuses(service, OF_USERS, headers) == {200}


def test_further_names_of_the_service_are_allowed_by_a_setting(served):
    service = served(allowed_hosts=("films.local", "other.local:8080"))
    for name in ("films.local", "films.local:80", "other.local:8080"):
        assert statuses(service, OF_USERS, {"host": name}) == {200}
    assert statuses(service, OF_USERS, {"host": "other.local"}) == {403}
    assert statuses(
        service, OF_USERS, {"host": "films.local", "origin": "http://x.local"}
    ) == {403}


def test_named_sites_may_send_lists_and_events_but_get_no_data_of_users(served):
    service = served(cors=("https://shop.example",))
    site = {"host": "localhost", "origin": "https://shop.example"}
    assert statuses(service, LISTS + OTHERS, site) == {200, 201}
    assert statuses(service, OF_USERS, site) == {403}
    preflight = site | {"access-control-request-method": "POST"}
    allowed = service.call("OPTIONS", "/v1/recommend", headers=preflight)
    assert allowed.status == 200
    assert "POST" in allowed.headers["access-control-allow-methods"]
    headers = {"access-control-request-headers": "content-type,x-api-key,authorization"}
    allowed = service.call("OPTIONS", "/v1/events", headers=preflight | headers)
    assert allowed.status == 200
    # `navigator.sendBeacon` always sends credentials.
    assert allowed.headers["access-control-allow-credentials"] == "true"
    assert allowed.headers["access-control-allow-origin"] == "https://shop.example"


def test_errors_name_no_other_users(served):
    requests: Requests = [
        ("/v1/recommend/7", None),
        ("/v1/recommend", {"users": [105, 7]}),
        ("/v1/predict", {"pairs": [{"user": 7, "item": 4}]}),
    ]
    local, remote = served(), served(host="0.0.0.0")
    for request in requests:
        hint = ask(local, request)
        assert (
            hint.json["detail"] == "Unknown user 7; the nearest ids are 100, 101, 102."
        )
        reply = ask(remote, request)
        assert (reply.status, reply.json["detail"]) == (404, "Unknown user 7.")


def test_errors_name_no_values_of_users(served, tmp_path):
    n = 60
    pairs = {
        "user": [*range(n)] * 2,
        "item": [*range(1, 6)] * 24,
        "rating": [1.0, 4.0] * n,
    }
    people = pl.DataFrame(
        {"user": range(n), "job": ["nurse", "clerk", "smith"] * (n // 3)}
    )
    ratings = with_features(Ratings.from_frame(pl.DataFrame(pairs), user_table=people))
    Recommender("als", factors=2, iterations=2).fit(ratings).save(tmp_path / "jobs")
    request = ("/v1/recommend", {"features": {"job": "pilot"}})
    hint = ask(served(tmp_path / "jobs"), request).json["detail"]
    assert hint == "job: 'pilot' is unknown; known are clerk, nurse, smith."
    for service, headers in (
        (served(tmp_path / "jobs", host="0.0.0.0"), {}),
        (
            served(tmp_path / "jobs", list_key="lists", api_key="all"),
            {"x-api-key": "lists"},
        ),
    ):
        reply = ask(service, request, headers)
        assert (reply.status, reply.json["detail"]) == (400, "job: 'pilot' is unknown.")


@pytest.mark.parametrize("user", [5.0, None, True, "\ud800", "x" * 600])
def test_an_id_that_is_neither_text_nor_integer_is_one_sentence(served, user):
    reply = ask(served(), ("/v1/recommend", {"users": [user]}))
    expected = "users.0: an id is text of at most 500 characters, or an integer."
    assert (reply.status, reply.json["detail"]) == (400, expected)


@pytest.mark.parametrize("value", ["\ud800", ["\ud800"], {"\ud800": 1}])
def test_features_must_be_unicode(served, value):
    reply = ask(served(), ("/v1/recommend", {"features": {"job": value}}))
    assert reply.status == 400
    assert reply.json["detail"] == "features must have values that are text or numbers."


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_each_of_two_keys_opens_everything(host, served):
    service = served(host=host, api_key=("old", "new"))
    everything = OF_USERS + LISTS + OTHERS
    for key in ("old", "new"):
        assert statuses(service, everything, bearer(key)) == {200, 201}
        assert statuses(service, everything, {"x-api-key": key}) == {200, 201}
    for headers in (
        {},
        bearer("older"),
        bearer(""),
        bearer("old,new"),
        {"x-api-key": ""},
    ):
        assert statuses(service, everything, headers) == {401}
    assert service.get("/health/ready").status == 200
    assert service.get("/").status == 200


def test_a_key_for_lists_opens_lists_only(served):
    service = served(api_key="all", list_key=["shop", "app"])
    for key in ("shop", "app"):
        assert statuses(service, LISTS, bearer(key)) == {200}
        for request in OF_USERS + OTHERS:
            reply = ask(service, request, bearer(key))
            assert (reply.status, reply.json["type"]) == (403, "/docs#forbidden")
        assert (
            service.get("/v1/recommend/7", bearer(key)).json["detail"]
            == "Unknown user 7."
        )
        both = bearer(key) | {"x-api-key": "all"}
        assert statuses(service, OF_USERS, both) == {200}
    assert statuses(service, LISTS, {}) == {401}


def test_a_service_with_a_key_for_lists_alone_has_no_data_of_users(served):
    service = served(list_key="shop")
    assert statuses(service, LISTS, bearer("shop")) == {200}
    assert statuses(service, OF_USERS, bearer("shop")) == {403}
    assert statuses(service, OF_USERS + LISTS + OTHERS) == {401}


@pytest.mark.parametrize(
    "key", ["", " ", "a\n", " a", (), [], ["a", ""], b"a", ("a", None), "é"]
)
@pytest.mark.parametrize("name", ["api_key", "list_key"])
def test_empty_keys_are_errors(name, key, saved):
    with pytest.raises(
        DataError, match=f"{name} must be of ASCII characters, at least one"
    ):
        create_app(str(saved["als"]), **{name: key})


def test_a_key_is_of_one_kind(saved):
    with pytest.raises(DataError, match="api_key and list_key must differ"):
        create_app(str(saved["als"]), api_key=("a", "b"), list_key="b")


def test_keys_also_hold_below_a_path_of_another_application(saved):
    inner = create_app(
        str(saved["als"]), api_key="all", list_key="shop", load_first=True
    )
    outer = FastAPI(lifespan=inner.router.lifespan_context)
    outer.mount("/reco", inner)
    with Application(outer) as service:
        requests = [(f"/reco{target}", body) for target, body in OF_USERS + LISTS]
        assert statuses(service, requests) == {401}
        assert statuses(service, requests, bearer("all")) == {200}
        assert statuses(service, [("/reco/v1/users", None)], bearer("shop")) == {403}


def test_settings_do_not_show_keys(saved):
    app = create_app(str(saved["als"]), api_key="s3cret", list_key="l1st")
    shown = repr(app.state.service.settings)
    assert "s3cret" not in shown
    assert "l1st" not in shown


def test_the_command_serves_data_of_users_on_a_loopback_address_only(saved):
    with Command(saved["als"]) as service:
        assert statuses(service, OF_USERS) == {200}
        assert service.get("/v1/users", {"host": "evil.example"}).status == 403
    with Command(saved["als"], "--host", "0.0.0.0") as service:
        assert statuses(service, LISTS) == {200}
        assert statuses(service, OF_USERS) == {403}
        assert (
            "without --api-key (RECSYS_API_KEY), nobody gets data of users"
            in service.stop()[1]
        )


def test_the_command_takes_keys_from_options_files_and_the_environment(saved, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("third\n\n fourth \n")
    words = [
        "--api-key",
        f"first,second,@{keys}",
        "--api-key-env",
        "OTHER",
        "--workers",
        "2",
    ]
    environment = os.environ | {"OTHER": "fifth", "RECSYS_LIST_KEY": "shop,my app"}
    with Command(saved["als"], *words, env=environment) as service:
        for key in ("first", "second", "third", "fourth", "fifth"):
            assert service.get("/v1/users", bearer(key)).status == 200
        for key in ("shop", "my app"):
            assert service.get("/v1/users", bearer(key)).status == 403
            assert service.get("/v1/recommend/105", bearer(key)).status == 200
        for key in ("my", "app", f"@{keys}"):
            assert service.get("/v1/recommend/105", bearer(key)).status == 401


@pytest.mark.parametrize(
    ("words", "variables", "message"),
    [
        (
            [],
            {"RECSYS_API_KEY": ""},
            "The environment variable RECSYS_API_KEY has no key",
        ),
        (
            [],
            {"RECSYS_LIST_KEY": " "},
            "The environment variable RECSYS_LIST_KEY has no key",
        ),
        (["--api-key-env", "NONE"], {}, "The environment variable NONE has no key"),
        (["--api-key", ""], {}, "api_key must be of ASCII characters, at least one"),
        (
            ["--api-key", "a,,b"],
            {},
            "api_key must be of ASCII characters, at least one",
        ),
        (
            ["--api-key", "@none"],
            {},
            "keys after --api-key @ cannot be read: no such file",
        ),
        (["--list-key", "@empty"], {}, "empty has no key; write one per line."),
    ],
)
def test_keys_that_are_missing_end_the_command(
    words, variables, message, saved, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("empty").write_text("\n")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(
        cli, ["serve", str(saved["als"]), "--port", "0", *words]
    )
    assert result.exit_code == 1
    assert message in result.output


def test_a_key_that_is_taken_for_a_file_is_not_shown(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RECSYS_LIST_KEY", "@s3cret-list")
    for words in (
        [],
        ["--api-key", "@s3cret-key"],
        ["--api-key", "@" + 999 * "s3cret"],
    ):
        result = CliRunner().invoke(cli, ["serve", str(saved["als"]), *words])
        assert result.exit_code == 1
        assert "cannot be read" in result.output
        assert "s3cret" not in result.output


def test_info_hides_keys(monkeypatch):
    monkeypatch.setenv("RECSYS_API_KEY", "s3cret")
    monkeypatch.setenv("RECSYS_SHOP_KEY", "s3cret")
    result = CliRunner().invoke(cli, ["info", "--json"])
    settings = json.loads(result.stdout)["settings"]
    assert settings["serve --api-key"] == "hidden (RECSYS_API_KEY)"
    assert settings["RECSYS_SHOP_KEY"] == "hidden (sets no option)"


@pytest.mark.parametrize("name", ["api-key", "list-key"])
@pytest.mark.parametrize("value", ["[]", '""', '[""]'])
def test_settings_without_a_key_are_an_error(saved, tmp_path, monkeypatch, name, value):
    monkeypatch.chdir(tmp_path)
    Path("recsys.toml").write_text(f"[serve]\n{name} = {value}\n", encoding="utf-8")
    result = CliRunner().invoke(cli, ["serve", str(saved["als"]), "--port", "0"])
    assert result.exit_code == 1
    assert name in result.output.replace("_", "-")
