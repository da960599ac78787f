"""The application: routes, the page, problems, limits; and /docs, the OpenAPI document as HTML."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse, HTMLResponse, PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from lowrank.errors import LowRankError
from recsys import __version__
from recsys.errors import RecsysError
from recsys.serve.bodies import ProblemBody
from recsys.serve.gate import Gate
from recsys.serve.problems import KINDS, MEDIA_TYPE, ProblemError, problem_of
from recsys.serve.routes import Answer, health, metrics, routes
from recsys.serve.service import Service
from recsys.serve.settings import Settings

Json = dict[str, Any]

PAGE = Path(str(files("recsys.serve"))) / "page"
# The page runs its own scripts, talks to this service, and loads nothing from anywhere else.
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}

_HEADERS = ("authorization", "content-type", "x-api-key")
_STATUS = {404: "not-found", 405: "wrong-method"}
_PLAIN: Json = {"integer": 1, "number": 0.5, "boolean": False, "string": "text", "object": {}}


class _Application(FastAPI):
    """Routes behind a gate, which answers most requests without them."""

    entry: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.entry(scope, receive, send)


def create_app(model: str | Settings, **settings: Any) -> FastAPI:
    """Return the ASGI application that serves a saved model.

    Parameters
    ----------
    model : str or Settings
        Path of a saved model, of a link to one, or of a saved index.
    **settings
        Fields of `Settings`, such as ``model_b``.

    Raises
    ------
    DataError
        If a setting is not as it should be.

    Examples
    --------
    ``uvicorn --factory my_service:app`` runs this one::

        from recsys.serve import create_app

        def app():
            return create_app("models/latest", index="documents")
    """
    chosen = model if isinstance(model, Settings) else Settings(str(model), **settings)
    service = Service(chosen)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.stop()

    app = _Application(
        title="recsys",
        version=__version__,
        description="Recommendations from a saved model.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.openapi = partial(_described, app)  # type: ignore[method-assign]
    app.state.service = service
    app.entry = app.state.gate = Gate(super(_Application, app).__call__, service)
    if chosen.cors:
        app.entry = CORSMiddleware(app.entry, allow_origins=chosen.cors, allow_headers=_HEADERS)
    app.include_router(routes)
    app.include_router(health)
    app.add_api_route("/metrics", metrics, response_class=PlainTextResponse, tags=["health"])
    app.mount("/page", StaticFiles(directory=PAGE, check_dir=False), name="page")
    app.add_api_route("/", _index, include_in_schema=False)
    app.add_api_route("/docs", _docs, include_in_schema=False, response_class=HTMLResponse)
    for kind in (RecsysError, LowRankError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _problem)
    return app


def _described(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, with problems for what is invalid."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        schemas = document["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):  # of FastAPI's own answers
            schemas.pop(name, None)
        schemas["ProblemBody"] = ProblemBody.model_json_schema()
        for methods in document["paths"].values():
            for operation in methods.values():
                operation["responses"].pop("422", None)
        if app.state.service.settings.api_key is not None:
            scheme = {"key": {"type": "http", "scheme": "bearer"}}
            document["components"]["securitySchemes"] = scheme
            document["security"] = [{"key": []}]
        app.openapi_schema = document
    return app.openapi_schema


async def _index() -> FileResponse:
    return FileResponse(PAGE / "index.html", headers=_PAGE_HEADERS)


async def _docs(request: Request) -> HTMLResponse:
    return HTMLResponse(reference_page(request.app.openapi()))


async def _problem(request: Request, error: Exception) -> Answer:
    """Answer an error with its problem document."""
    if isinstance(error, RequestValidationError):
        problem = ProblemError("invalid-request", _sentence(error))
    elif isinstance(error, HTTPException):
        kind = _STATUS.get(error.status_code, "invalid-request")
        problem = ProblemError(kind, f"{error.detail}: {request.method} {request.url.path}.")
    else:
        problem = problem_of(error)
    if problem.kind == "unknown-id" and str(problem).startswith("Unknown user"):
        request.app.state.service.counters.unknown_users.inc()
    headers = getattr(error, "headers", None)
    return Answer(problem.document(), problem.status, headers, media_type=MEDIA_TYPE)


def _sentence(error: RequestValidationError) -> str:
    """Return the first thing that is wrong with a request as a sentence."""
    first = error.errors()[0]
    if "ctx" in first and isinstance(own := first["ctx"].get("error"), ValueError):
        return f"{own}."
    place = ".".join(str(each) for each in first["loc"][1:]) or str(first["loc"][0])
    return f"{place}: {first['msg']}."


def reference_page(document: Json) -> str:
    """Return the page of an OpenAPI document."""
    routes = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    by_tag: dict[str, list[tuple[str, str, Json]]] = {}
    for route in routes:
        by_tag.setdefault(route[2].get("tags", ["other"])[0], []).append(route)
    schemas = document["components"]["schemas"]
    sections = "".join(
        f"<h2>{escape(tag.capitalize())}</h2>{''.join(_route(*each, schemas) for each in found)}"
        for tag, found in by_tag.items()
    )
    links = "".join(
        f'<li><a href="#{_anchor(method, path)}"><code>{method} {escape(path)}</code></a></li>'
        for method, path, _ in routes
    )
    problems = "".join(
        f'<tr id="{name}"><td><code>/docs#{name}</code><td>{kind.status}<td>{escape(kind.meaning)}'
        for name, kind in KINDS.items()
    )
    title = f"{escape(document['info']['title'])} {escape(document['info']['version'])}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title}: HTTP API</title><link rel="icon" href="data:,">'
        '<link rel="stylesheet" href="page/reference.css">'
        '<script defer src="page/reference.js"></script></head><body>'
        f"<h1>{title}: HTTP API</h1><p>{escape(document['info']['description'])} "
        'For programs: <a href="openapi.json">openapi.json</a>. '
        f'<a href="./">Explore the model</a>.</p><nav><ul>{links}</ul></nav>{sections}'
        "<h2>Problems</h2><p>An error is a document of the type <code>application/problem+json"
        "</code> (RFC 9457). Its <code>detail</code> is a sentence to show, its <code>type</code> "
        "is for programs:</p>"
        f"<table><tr><th>type<th>status<th>meaning{problems}</table></body></html>"
    )


def _anchor(method: str, path: str) -> str:
    return escape(f"{method}{path}".replace("/", "-").replace("{", "").replace("}", "").lower())


def _route(method: str, path: str, operation: Json, schemas: Json) -> str:
    """Return the description of one route, with its example as a form to send."""
    target = path.removeprefix("/")
    parameters = operation.get("parameters", [])
    for each in parameters:
        shown = example(each["schema"] | {k: each[k] for k in ("examples",) if k in each}, schemas)
        target = target.replace(f"{{{each['name']}}}", str(shown))
        if each["in"] == "query" and each.get("required"):
            target += f"?{each['name']}={shown}"
    rows = "".join(
        f"<tr><td><code>{escape(each['name'])}</code><td>{escape(_kind(each['schema']))}"
        f"<td>{escape(each.get('description', ''))}"
        for each in parameters
    )
    table = f"<table><tr><th>parameter<th>type<th>meaning{rows}</table>" if rows else ""
    body = ""
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        text = json.dumps(example(schema, schemas), indent=1)
        body = f'<textarea name="body" rows="8" aria-label="Body">{escape(text)}</textarea>'
    paragraphs = escape(operation.get("description", "")).replace("\n\n", "</p><p>")
    return (
        f'<section><h3 id="{_anchor(method, path)}"><b>{method}</b>{escape(path)}</h3>'
        f"<p>{paragraphs}</p>{table}<form><input type='hidden' name='method' value='{method}'>"
        f'<p><input name="target" aria-label="Address" value="{escape(target)}"> '
        f"<button>Send</button></p>{body}<pre hidden></pre></form>"
        f"{_answer(operation, schemas)}</section>"
    )


def _answer(operation: Json, schemas: Json) -> str:
    """Return the example of an answer, folded."""
    for status in ("200", "201"):
        content = operation["responses"].get(status, {}).get("content", {})
        schema = content.get("application/json", {}).get("schema")
        if schema:
            text = json.dumps(example(schema, schemas), indent=1, ensure_ascii=False)
            return f"<details><summary>Answer</summary><pre>{escape(text)}</pre></details>"
    return ""


def _kind(schema: Json) -> str:
    """Return the type of a parameter in words."""
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"] if each.get("type") != "null")
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"{_kind(schema['items'])}, repeatable"
    default = schema.get("default")
    usual = "" if default in (None, "") else f", by default {default}"
    return f"{schema.get('type', 'any')}{usual}"


def example(schema: Json, schemas: Json) -> Any:
    """Return an example of what a schema describes.

    Examples
    --------
    >>> pair = {"properties": {"a": {"type": "integer"}, "b": {"examples": [[1]]}}}
    >>> example({"type": "array", "items": {"$ref": "#/components/schemas/Pair"}}, {"Pair": pair})
    [{'a': 1, 'b': [1]}]
    """
    if "$ref" in schema:
        return example(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    for name in ("examples", "enum"):
        if schema.get(name):
            return schema[name][0]
    if "default" in schema:
        return schema["default"]
    if "anyOf" in schema:
        return example(schema["anyOf"][0], schemas)
    if "properties" in schema:
        return {name: example(each, schemas) for name, each in schema["properties"].items()}
    if schema.get("type") == "array":
        return [example(schema["items"], schemas)]
    return _PLAIN.get(schema.get("type", ""))
