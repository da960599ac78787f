"""Hostile requests: whatever arrives, an answer or a problem as the OpenAPI document says it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import polars as pl
import psutil
import pytest
from fastapi.routing import APIRoute
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from serving import Application

from recsys import Ratings, Recommender
from recsys.lsi import LSI
from recsys.serve import create_app
from recsys.serve.schemas import ProblemBody
from recsys.serve.settings import Limits

# In MB; hypothesis keeps each of its examples, some 10 KB for one.
MOST_MEMORY = 200
IDS = st.sampled_from(
    [100, 101, "105", 1, 2, "3", 41, 7_000, -1, 2**63, 10**30, "a/b", "", "Ω"]
)
ODD = st.sampled_from(
    [
        *(
            "0",
            "-1",
            "1e3",
            "nan",
            "inf",
            "99999999999999999999",
            "null",
            "true",
            "[]",
            "{}",
            "\x00",
        ),
        *(
            "'",
            '"',
            "a' OR '1'='1",
            "../../etc/passwd",
            "%00",
            "%2e%2e%2f",
            "%ff",
            "%zz",
            "\ud800",
        ),
        *(
            "year > 1990",
            "new",
            "title LIKE '%'",
            "((((",
            "1=1;--",
            "title || title || title = 1",
            "select 1",
            "year/0 > 1",
        ),
        *("CASE WHEN year > 1 THEN true END", "genre IN ('a', 'b')"),
        *(
            "REPEAT(title, 99999999) = ''",
            "LPAD(title, 999999999, 'x') = ''",
            "POW(9e9, 99) > 1",
        ),
        *(
            "CAST(title AS INT) = 1",
            "regexp_like(title, '(a*)*b')",
            "x" * 3000,
            "(" * 500,
        ),
    ]
)
TEXT = st.one_of(ODD, st.text(max_size=40), IDS.map(str))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    folder: Path = tmp_path_factory.mktemp("hostile")
    rng = np.random.default_rng(0)
    users, items = np.divmod(rng.permutation(600)[:200], 20)
    stars = rng.integers(1, 6, 200).astype(float)
    table = pl.DataFrame(
        {
            "item": range(21),
            "title": [f"Film {n}" for n in range(21)],
            "genre": ["a", "b", "c"] * 7,
            "year": range(1980, 2001),
        }
    )
    frame = pl.DataFrame({"user": users + 100, "item": items, "rating": stars})
    ratings = Ratings.from_frame(frame, item_table=table)
    Recommender("als", factors=4, iterations=2).fit(ratings).save(folder / "a")
    Recommender("bayes", factors=4, iterations=3).fit(ratings).save(folder / "b")
    LSI(2).fit(["one film", "another film of one", "nothing else"]).save(
        folder / "index"
    )
    app = create_app(
        str(folder / "a"),
        model_b=str(folder / "b"),
        index=str(folder / "index"),
        events=str(folder / "events"),
        log=str(folder / "log"),
        limits=Limits(body=20_000, items=50, batch=10),
    )
    with Application(app) as found:
        yield found.ready()


def value(schema: dict[str, Any], schemas: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values as a schema wants them, more or less."""
    if "$ref" in schema:
        return value(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "anyOf" in schema:
        return st.one_of(*(value(each, schemas) for each in schema["anyOf"]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "properties" in schema:
        fields = {
            name: value(each, schemas) for name, each in schema["properties"].items()
        }
        needed = {name: fields.pop(name) for name in schema.get("required", [])}
        return st.fixed_dictionaries(needed, optional=fields)
    kinds = {
        "array": lambda: st.lists(value(schema["items"], schemas), max_size=12),
        "integer": lambda: (
            IDS.filter(lambda each: isinstance(each, int)) | st.integers(0, 60)
        ),
        "number": lambda: st.floats() | st.integers(0, 6),
        "boolean": st.booleans,
        "object": lambda: st.dictionaries(TEXT, JSON, max_size=3),
        "null": st.none,
    }
    return kinds.get(schema.get("type", ""), lambda: TEXT)()


@st.composite
def requests(draw: Any, document: dict[str, Any]) -> tuple[str, str, str, bytes]:
    """Method, path in the document, target and body of a request."""
    schemas = document["components"]["schemas"]
    path = draw(st.sampled_from(sorted(document["paths"])))
    method = draw(st.sampled_from(sorted(document["paths"][path])))
    operation = document["paths"][path][method]
    target, query = path, []
    for each in operation.get("parameters", []):
        wanted = (
            value(each["schema"], schemas).map(str) if draw(st.booleans()) else TEXT
        )
        if each["in"] == "path":
            text = draw(IDS.map(str) | wanted)
            target = target.replace(
                f"{{{each['name']}}}", quote(text, "", errors="replace")
            )
        elif draw(st.integers(0, 3)) == 0:
            text = draw(wanted)
            query.append(f"{each['name']}={quote(text, '', errors='replace')}")
    if draw(st.integers(0, 9)) == 0:
        query.append(
            draw(st.text(st.characters(exclude_characters="\ud800"), max_size=20))
        )
    body = b""
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        content = draw(st.one_of(value(schema, schemas), value(schema, schemas), JSON))
        text = json.dumps(content).encode()
        body = draw(
            st.just(text) | st.binary(max_size=60) | st.just(text[: len(text) // 2])
        )
    return (
        method.upper(),
        path,
        "?".join([target, "&".join(query)][: 1 + bool(query)]),
        body,
    )


def test_hostile_requests(service, budget, fuzz_count):
    document = service.get("/openapi.json").json
    memory = psutil.Process()
    sizes: list[int] = []
    routes = [each for each in _routes(service.app) if isinstance(each, APIRoute)]
    models = {
        (method, route.path): TypeAdapter(route.response_model)
        for route in routes
        for method in route.methods
        if route.response_model is not None
    }

    @budget(130)
    @given(request=requests(document))
    def answered(request: tuple[str, str, str, bytes]) -> None:
        method, path, target, body = request
        reply = service.call(method, target, body, {"content-type": "application/json"})
        fuzz_count[str(reply.status)] += 1
        sizes.append(memory.memory_info().rss)
        operation = document["paths"][path][method.lower()]
        assert reply.status in {404, *map(int, operation["responses"])}, reply.body
        if reply.status >= 400:
            assert reply.headers["content-type"] == "application/problem+json"
            ProblemBody.model_validate_json(reply.body)
        elif (method, path) in models:
            models[method, path].validate_json(reply.body)

    answered()
    # After the first tenth, everything has been imported and kept once.
    growth = (sizes[-1] - sizes[len(sizes) // 10]) / 2**20
    print(f"\n{len(sizes):,} requests took {growth:.0f} MB")
    assert growth < MOST_MEMORY
    assert service.get("/v1/recommend/105").status in (200, 404)


def _routes(app: Any) -> Iterator[Any]:
    """All routes of an application, also those that were included with a prefix."""
    from recsys.serve.routes import health, routes

    yield from app.routes
    yield from health.routes
    yield from routes.routes
