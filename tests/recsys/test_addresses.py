"""Addresses: what of them is shown, and which database they name."""

from __future__ import annotations

import copy
import json
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from addresses import FORMS, SECRET
from hypothesis import example, given
from hypothesis import strategies as st

import recsys
from recsys import Recommender, read_ratings, write_table
from recsys.addresses import Location, located, parse_server, shown, whole
from recsys.errors import RecsysError
from recsys.lsi import Documents


@pytest.mark.parametrize("form", FORMS)
def test_a_password_is_not_shown(form: str) -> None:
    location = located(form)
    texts = [
        shown(form),
        f"{location}",
        repr(location),
        str(Path(location)),
        location + "x",
    ]
    texts += [json.dumps([location]), pickle.dumps(location).decode("latin-1")]
    texts += [copy.deepcopy(location)]
    assert not any(SECRET in text for text in texts)
    assert whole(location) == form
    assert located(location) is location


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "postgresql://ann:pw@db.example:5433/orders::events",
            "//db.example:5433/orders::events",
        ),
        ("postgresql://ann@localhost/orders", "postgresql://localhost/orders"),
        ("POSTGRES://ann:p%40w@localhost", "postgresql://localhost"),
        ("postgresql://[::1]:5432/orders::t", "postgresql://[::1]:5432/orders::t"),
        (
            "postgresql:///orders?host=/run/pg&port=5433",
            "postgresql://%2Frun%2Fpg:5433/orders",
        ),
        ("postgresql://a:1,b:2/orders?dbname=other", "postgresql://a:1,b:2/other"),
        ("postgresql://a:pw@b@c/orders", "postgresql:..."),
        (
            "https://ann:pw@example.org:8080/a/b.csv?key=1",
            "https://example.org:8080/a/b.csv",
        ),
        ("mysql://ann:pw@h/d", "mysql://h/d"),
        ("abfs://box@account.dfs.example/x.csv", "abfs://account.dfs.example/x.csv"),
        ("ann:pw@h/d", "(address)"),
    ],
)
def test_host_and_database_are_shown(source: str, text: str) -> None:
    assert shown(source).endswith(text)


@pytest.mark.parametrize(
    "source",
    [
        *(
            "-",
            "ratings.csv",
            "data/a@b.csv",
            "a:b.csv",
            "C:/data/a@b.csv",
            "events/*.parquet",
        ),
        *(
            "orders.db::events",
            "sqlite:///orders.db::events",
            "duckdb:///w.duckdb",
            "x=1/y.csv",
        ),
        *(
            "s3://lake/date=2025-06-09/*.parquet",
            "https://example.org/r.csv",
            "models/10:30@x",
        ),
        *(
            "postgresql://localhost/orders",
            "postgresql://localhost:5433/orders::a.events",
        ),
    ],
)
def test_other_texts_are_shown_whole(source: str) -> None:
    assert located(source) is source


def test_a_file_is_not_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a:b@c").write_text("user,item\n1,2\n")
    assert located("a:b@c") == "a:b@c"
    assert read_ratings("a:b@c").n_ratings == 1


LETTERS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)


@given(LETTERS, LETTERS)
@example("a'\\", "b@/?#%")
def test_parameters_of_a_connection_are_decoded(user: str, password: str) -> None:
    from urllib.parse import quote

    pair = f"{quote(user, safe='')}:{quote(password, safe='')}"
    server = parse_server(f"postgresql://{pair}@localhost/orders?sslmode=require")
    assert server is not None
    expected = {
        "user": user,
        "password": password,
        "host": "localhost",
        "dbname": "orders",
    }
    assert dict(server.settings) == expected | {"sslmode": "require"}
    assert str(server) == "postgresql://localhost/orders"


def doors(form: str, ratings: Any) -> list[Callable[[], object]]:
    """Functions of Python that take an address."""
    popular = Recommender("popular")
    return [
        lambda: read_ratings(form),
        lambda: read_ratings(form, table="t"),
        lambda: read_ratings(form, query="SELECT 1"),
        lambda: read_ratings(["r.csv", form]),
        lambda: read_ratings("r.csv", item_table=form),
        lambda: popular.fit(form),
        lambda: Recommender("popular").fit(ratings).save(form),
        lambda: Recommender.load(form),
        lambda: Recommender("popular").fit(ratings).update(form),
        lambda: write_table(form, ratings.to_frame(), table="t"),
        lambda: list(Documents(form)),
        lambda: recsys.lsi.Index.load(form),
    ]


@pytest.mark.parametrize("form", FORMS)
def test_python_shows_no_password(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.csv").write_text("user,item\n1,2\n1,3\n")
    ratings = read_ratings("r.csv")
    for number, door in enumerate(doors(form, ratings)):
        with pytest.raises(RecsysError) as caught:
            door()
        text = "".join(traceback.format_exception(caught.value))
        own = [line for line in text.splitlines() if "File " not in line]
        assert SECRET not in "\n".join(own), (number, text)
    assert {path.name for path in tmp_path.rglob("*")} == {"r.csv"}


def test_a_location_opens_what_it_hides() -> None:
    assert isinstance(located("postgresql://ann:pw@h/d"), Location)
    with pytest.raises(
        RecsysError, match=r"^postgresql://127\.0\.0\.1:1/d cannot be opened: no s"
    ):
        read_ratings("postgresql://u:s3cret@127.0.0.1:1/d")
