"""The application: routes, the pages, problems, limits."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from lowrank.errors import LowRankError
from recsys import __version__
from recsys.errors import DataError, RecsysError
from recsys.serve.live_table import check_conditions
from recsys.serve.metrics import Metrics
from recsys.serve.middleware import Middleware
from recsys.serve.problems import (
    KINDS,
    MEDIA_TYPE,
    ProblemError,
    names_user,
    problem_of,
    without_hint,
)
from recsys.serve.routes import (
    Answer,
    depends_on,
    health,
    metrics,
    models,
    routes,
    unknown_model,
    with_a_key,
    with_the_api_key,
)
from recsys.serve.schemas import ModelsBody, ProblemBody
from recsys.serve.service import Service
from recsys.serve.settings import Settings

PAGE = Path(str(files("recsys.serve"))) / "page"
# The page may run its own scripts and send requests to this service only.
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}

_NAME = re.compile(r"[\w-]+", re.ASCII)
_OF_MODEL = re.compile(rb"/v1/models/(?P<name>[\w-]+)/(?P<path>.*)")
_HEADERS = ("authorization", "content-type", "x-api-key")
_STATUS = {404: "not-found", 405: "wrong-method"}


class _Application(FastAPI):
    """Routes behind a middleware, which answers the most frequent requests itself."""

    entry: ASGIApp

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        await self.entry(scope, receive, send)


def create_app(
    model: str | Settings | Mapping[str, str | Settings], **settings: Any
) -> FastAPI:
    """Return the ASGI application that serves a saved model, or several.

    Parameters
    ----------
    model : str, Settings or mapping
        Path of a saved model, of a link to one, or of a saved index; or a mapping of names to
        models, which answer below ``/v1/models/NAME/``.
    **settings
        Fields of `Settings`, such as ``model_b``, of models that are given by path. Several models
        have the keys and limits of the first one.

    Raises
    ------
    DataError
        If a setting is invalid, the items of no model fit a named condition, or the name of a model
        has other characters than letters, digits, underscores and hyphens.

    Examples
    --------
    Run the following module by ``uvicorn --factory my_service:app``::

        from recsys.serve import create_app

        def app():
            return create_app("models/latest", index="documents")
    """
    named = model if isinstance(model, Mapping) else {"": model}
    settings_of = {name: _settings(part, settings) for name, part in named.items()}
    check_conditions([*settings_of.values()])
    return application_of(settings_of)


def application_of(settings: Mapping[str, Settings]) -> FastAPI:
    """Return the application of models by their names; the name of a single one is empty."""
    if "" in settings:
        return _application(Service(settings[""]))
    shared_metrics = Metrics(has_names=True)
    group: dict[str, Service] = {}
    for name, of_model in settings.items():
        if not _NAME.fullmatch(name):
            raise DataError(
                "The name of a model must be of letters, digits, underscores and hyphens; got "
                f"{name!r}."
            )
        group[name] = Service(of_model, shared_metrics, name)
    if not group:
        raise DataError("There is no model to serve; name one.")
    # Keys and limits are those of the first model.
    first = next(iter(group.values())).settings
    shared = replace(
        first,
        model_b=None,
        index=None,
        together=None,
        item_table=None,
        events=None,
        log=None,
    )
    front = _application(Service(shared, shared_metrics, group=group))
    entries = {name: _application(service).entry for name, service in group.items()}
    front.add_api_route(
        "/v1/models",
        models,
        response_model=ModelsBody,
        tags=["model"],
        dependencies=[depends_on(with_a_key)],
    )
    front.add_api_route(
        "/v1/models/{name}/{path:path}",
        unknown_model,
        methods=["GET", "POST"],
        dependencies=[depends_on(with_a_key)],
        include_in_schema=False,
    )
    front.entry = _ByName(front.entry, entries)
    return front


class _ByName:
    """ASGI application of several models, by their names in the path."""

    def __init__(self, front: ASGIApp, entries: Mapping[str, ASGIApp]) -> None:
        self._front = front
        self._entries = entries

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        entry = self._front
        if scope["type"] == "http":
            match = _OF_MODEL.fullmatch(scope["raw_path"])
            name = "" if match is None else match["name"].decode()
            if match is not None and name in self._entries:
                entry = self._entries[name]
                is_health = match["path"].startswith(b"health/")
                raw_path = (b"/" if is_health else b"/v1/") + match["path"]
                path = unquote(raw_path.decode("latin-1"))
                scope = {**scope, "raw_path": raw_path, "path": path}
        await entry(scope, receive, send)


def _settings(model: str | Settings, settings: Mapping[str, Any]) -> Settings:
    """Return settings as they are, or the settings of a model at a path."""
    return model if isinstance(model, Settings) else Settings(str(model), **settings)


def _application(service: Service) -> _Application:
    """Return the application of one service."""
    chosen = service.settings

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.stop()

    # A function for each page, because FastAPI calls it for each request.
    def shown(page: str) -> Callable[[], FileResponse]:
        return lambda: FileResponse(PAGE / page, headers=_PAGE_HEADERS)

    app = _Application(
        title="recsys",
        version=__version__,
        description="Recommendations from a saved model.",
        lifespan=lifespan,
        openapi_url=None,  # which would encode the document for each request
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    # FastAPI's own has answers that this service never gives.
    app.openapi = partial(_described, app)  # type: ignore[method-assign]
    app.state.service = service
    app.entry = Middleware(super(_Application, app).__call__, service)
    # Outside of everything, since rejections need its headers, too.
    if chosen.cors:
        app.entry = CORSMiddleware(
            app.entry,
            allow_origins=chosen.cors,
            allow_methods=("GET", "POST"),
            allow_headers=_HEADERS,
            # `navigator.sendBeacon`, which sends events while a page is left, needs it.
            allow_credentials="*" not in chosen.cors,
        )
    # `include_router` would analyse each route again, for each application.
    app.router.routes += [*routes.routes, *health.routes]
    app.add_api_route(
        "/metrics",
        metrics,
        response_class=PlainTextResponse,
        tags=["health"],
        dependencies=[depends_on(with_the_api_key)],
    )
    app.mount("/page", StaticFiles(directory=PAGE, check_dir=False), name="page")
    app.add_api_route("/openapi.json", _description, include_in_schema=False)
    app.add_api_route("/", shown("index.html"), include_in_schema=False)
    app.add_api_route("/docs", shown("reference.html"), include_in_schema=False)
    for kind in (
        RecsysError,
        LowRankError,
        RequestValidationError,
        HTTPException,
        Exception,
    ):
        app.add_exception_handler(kind, _problem)
    return app


async def _description(request: Request) -> Response:
    """Return the bytes of the OpenAPI document, which are made once."""
    app = request.app
    if not hasattr(app.state, "description"):
        app.state.description = msgspec.json.encode(app.openapi())
    return Response(app.state.description, media_type="application/json")


def _described(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, in which invalid requests are answered by problems."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
        )
        schemas = document["components"]["schemas"]
        for name in (
            "HTTPValidationError",
            "ValidationError",
        ):  # schemas of FastAPI's answers
            schemas.pop(name, None)
        schemas["ProblemBody"] = ProblemBody.model_json_schema()
        group = app.state.service.group
        if group:
            document["paths"] = _of_models(document["paths"], [*group])
        document["info"]["x-problems"] = {
            name: asdict(kind) for name, kind in KINDS.items()
        }
        for methods in document["paths"].values():
            for operation in methods.values():
                operation["responses"].pop("422", None)
        settings = app.state.service.settings
        if settings.api_key or settings.list_key:
            scheme = {"key": {"type": "http", "scheme": "bearer"}}
            document["components"]["securitySchemes"] = scheme
            document["security"] = [{"key": []}]
        app.openapi_schema = document
    return app.openapi_schema


def _of_models(paths: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """Return the paths of a document, in which routes of models have a name."""
    parameter = {
        "name": "name",
        "in": "path",
        "required": True,
        "schema": {"enum": names},
    }
    named = {}
    for path, methods in paths.items():
        if not path.startswith("/v1/") or path == "/v1/models":
            named[path] = methods
            continue
        for operation in methods.values():
            operation.setdefault("parameters", []).insert(0, parameter)
        named[f"/v1/models/{{name}}{path.removeprefix('/v1')}"] = methods
    return named


async def _problem(request: Request, error: Exception) -> Answer:
    """Answer an error with its problem document."""
    if isinstance(error, RequestValidationError):
        # FastAPI would answer with a list of all faults, as JSON.
        problem = ProblemError("invalid-request", _sentence(error))
    elif isinstance(error, HTTPException):
        kind = _STATUS.get(error.status_code, "invalid-request")
        problem = ProblemError(
            kind, f"{error.detail}: {request.method} {request.url.path}."
        )
    else:
        problem = problem_of(error)
    service = request.app.state.service
    # Monitoring compares their share with that of other days.
    if names_user(problem):
        service.counters.unknown_users.inc()
    unhinted = without_hint(problem)  # hints name ids and values of other users
    if unhinted is not problem:
        level = request.state.level
        if level is None or service.access.objection(level, request.scope) is not None:
            problem = unhinted
    headers = getattr(error, "headers", None)
    return Answer(problem.document(), problem.status, headers, media_type=MEDIA_TYPE)


def _sentence(error: RequestValidationError) -> str:
    """Return a sentence on the first fault of a request."""
    first = error.errors()[0]
    path = ".".join(map(str, first["loc"][1:])) or first["loc"][0]
    message = first["msg"]
    reason = first.get("ctx", {}).get("error")
    if first["type"] == "json_invalid":
        return f"The body is not JSON (character {path}: {reason.lower()})."
    if isinstance(reason, ValueError):
        is_nested = len(first["loc"]) > 2  # such as a value of one of several events
        return f"{path}: {reason}." if is_nested else f"{reason}."
    if first["type"] == "too_long" and isinstance(first["input"], str):  # in a path
        message = "an id is text of at most 500 characters"
    if path.endswith(".int"):  # the last of the types of an id
        path = path.removesuffix(".int")
        message = "an id is text of at most 500 characters, or an integer"
    return f"{path}: {message}."
