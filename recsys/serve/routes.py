"""Routes of the service, with their parameters and answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, TypeVar, cast, get_origin
from urllib.parse import unquote

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import AfterValidator

from recsys.data.ids import Ids
from recsys.errors import DataError
from recsys.ranking.filters import check_modest
from recsys.ranking.lists import DEFAULTS, ListOptions, declarations
from recsys.reasons import Language
from recsys.serve import schemas
from recsys.serve.catalogue import Id, Json
from recsys.serve.events import checked_events, event_records
from recsys.serve.lists import told_language
from recsys.serve.metrics import MEDIA_TYPE as MEDIA_TYPE_OF_METRICS
from recsys.serve.problems import KINDS, MEDIA_TYPE, ProblemError, unauthorized
from recsys.serve.responses import Responses, Told
from recsys.serve.service import Service, Variant
from recsys.serve.settings import LENGTH

T = TypeVar("T")
Handler = TypeVar("Handler", bound=Callable[..., Any])


class Answer(Response):
    """Response with a JSON body."""

    # msgspec takes a fraction of the time of FastAPI's encoder.
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the bytes of the body."""
        return msgspec.json.encode(content)


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def depends_on(check: Callable[[Request], T]) -> Any:
    """Return a dependency on a quick check, for which FastAPI would use a thread."""

    async def dependency(request: Request) -> T:
        return check(request)

    return Depends(dependency)


def _problems(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """Describe the problems that a route may answer with."""
    # OpenAPI has one answer for each status, but several kinds may share one.
    by_status: dict[int | str, list[str]] = {}
    for kind in (
        "invalid-request",
        "unauthorized",
        "not-ready",
        "busy",
        "timeout",
        *kinds,
    ):
        by_status.setdefault(KINDS[kind].status, []).append(KINDS[kind].meaning)
    schema = {"$ref": "#/components/schemas/ProblemBody"}
    return {
        status: {
            "description": " ".join(meanings),
            "content": {MEDIA_TYPE: {"schema": schema}},
        }
        for status, meanings in by_status.items()
    }


# Paths reach the routes with their escapes, so that an id may contain a slash.
PathId = Annotated[str, AfterValidator(unquote), Path(max_length=500, examples=["42"])]
Served = Annotated[Service, depends_on(_service)]
N = Annotated[int, Query(ge=1, description="Number of items.")]
OfVariant = Annotated[Variant | None, Query(description="Model of an A/B test.")]
_VISITOR = Query(
    max_length=500,
    description="Id whose events in the journal, of the last hour, count.",
)
Visitor = Annotated[str, _VISITOR]
OfLanguage = Annotated[
    Language | None,
    Query(description="Language of a text, if not that of Accept-Language."),
]
OfVisitor = Annotated[str | None, _VISITOR]


def _only_known(request: Request) -> None:
    """Reject unknown and repeated parameters, which would otherwise be ignored silently."""
    parameters = request.scope["route"].dependant.query_params
    kinds = {
        parameter.alias: parameter.field_info.annotation for parameter in parameters
    }
    # FastAPI ignores what it does not know, and all but the last value.
    for name in request.query_params:
        if name not in kinds:
            listed = f"it has {', '.join(kinds)}" if kinds else "it has none"
            raise ProblemError(
                "invalid-request", f"There is no parameter {name!r} here; {listed}."
            )
        count = len(request.query_params.getlist(name))
        if count > 1 and get_origin(kinds[name]) is not list:
            raise ProblemError(
                "invalid-request", f"{name} has one value; the request has {count}."
            )


def with_a_key(request: Request) -> None:
    """Reject a request without a key, if the service has keys."""
    # The middleware has compared the keys, before it has read the body.
    if request.state.level is None:
        raise unauthorized()


def with_the_api_key(request: Request) -> None:
    """Reject a key for lists, because the route answers something else."""
    with_a_key(request)
    if request.state.level == "lists":
        reason = "This key is for lists of items only; this request needs the API key."
        raise ProblemError("forbidden", reason)


def sees_users(request: Request) -> None:
    """Reject a request that may not have data of users."""
    with_a_key(request)
    objection = _service(request).access.objection(request.state.level, request.scope)
    if objection is not None:
        raise ProblemError("forbidden", objection)


def _check_condition(request: Request, condition: str) -> None:
    """Reject a condition that is not from a trusted client, or that would be expensive."""
    access = _service(request).access
    level = request.state.level
    objection = access.objection(level, request.scope, "conditions")
    if objection is not None:
        hint = "Name the condition in the settings of the service (--condition)."
        raise ProblemError("forbidden", f"{objection} {hint}")
    # Functions of SQL could need much time and memory.
    check_modest(condition)


def _options(
    request: Request,
    answers: Responses,
    values: Mapping[str, Any],
) -> ListOptions:
    """Return the options of lists in a request, which may need the API key."""
    slots = []
    untrusted = [values["where"]]
    for text in values.get("slots", ()):
        count, mark, condition = text.partition(":")
        named = answers.conditions.get(condition.strip())
        slots.append(f"{count}{mark}{named or condition}")
        if named is None:
            untrusted.append(condition)
    repeat_where = values.get("repeat_where")
    if repeat_where is not None:
        named = answers.conditions.get(repeat_where)
        if named is None:
            untrusted.append(repeat_where)
        values = {**values, "repeat_where": named or repeat_where}
    for condition in untrusted:
        if condition is not None:
            _check_condition(request, condition)
    values = {**values, "slots": slots}
    condition = answers.condition(values["condition"])
    return schemas.service_options(values, condition)


_OF_ITEMS = [name for name, option in declarations().items() if not option.of_users]
_OF_PLACES = ("items", "block", "exclude_seen", "seen", "repeat_where", "where")
_OF_PAIRS = ("items", "block", "where", "at_most", "per", "fill")


def _with_list_options(names: Collection[str]) -> Callable[[Handler], Handler]:
    """Declare options of lists as parameters of a route, which takes them as ``**values``."""

    def decorate(handler: Handler) -> Handler:
        signature = inspect.signature(handler)
        parameters = [*signature.parameters.values()][:-1]
        options = schemas.list_fields(names)
        position = [*signature.parameters].index("n") + 1
        # Conditions come first, which are requested most.
        for name in sorted(options, key=lambda name: name == "where"):
            kind, default, limits = options[name]
            if kind == list[schemas.IdBody]:
                kind = list[str]
                limits["description"] += " They are separated by commas, or repeated."
                limits["max_length"] = 1000
            parameter = inspect.Parameter(
                name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=default,
                annotation=Annotated[kind, Query(**limits)],
            )
            parameters.insert(position, parameter)
        declared: Any = handler
        declared.__signature__ = signature.replace(parameters=parameters)
        return handler

    return decorate


def stores_events(request: Request) -> None:
    """Reject a request that may not store events."""
    with_the_api_key(request)
    access = _service(request).access
    objection = access.objection_to_events(request.state.level, request.scope)
    if objection is not None:
        raise ProblemError("forbidden", objection)


health = APIRouter(prefix="/health", tags=["health"])
routes = APIRouter(
    prefix="/v1",
    responses=_problems(),
    dependencies=[depends_on(with_a_key), depends_on(_only_known)],
)


def _route(
    method: str,
    path: str,
    body: Any,
    tag: str,
    *problems: str,
    check: Callable[[Request], None] = with_the_api_key,
    **options: Any,
) -> Callable[[Handler], Handler]:
    """Declare a route with the body of its answer, its possible problems and a check of access."""
    declared: Any = routes.api_route(
        path,
        methods=[method],
        response_model=body,
        responses=_problems("forbidden", *problems),
        tags=[tag],
        dependencies=[depends_on(check)],
        **options,
    )
    return cast(Callable[[Handler], Handler], declared)


@health.get("/live")
async def live() -> dict[str, str]:
    """Report that the process runs."""
    return {"status": "live"}


@health.get(
    "/ready",
    response_model=schemas.ReadyBody,
    responses={503: {"model": schemas.ReadyBody}},
)
async def ready(service: Served) -> Answer:
    """Report whether requests are answered, and which models were rejected."""
    return Answer(service.readiness(), 200 if service.is_ready else 503)


@_route(
    "GET",
    "/recommend/{user}",
    schemas.ListBody,
    "recommendations",
    "unknown-id",
    check=with_a_key,
    response_model_exclude_unset=True,
)
@_with_list_options(DEFAULTS)
async def recommend(
    request: Request,
    service: Served,
    user: PathId,
    n: N = LENGTH,
    explain: bool = False,
    language: OfLanguage = None,
    visitor: OfVisitor = None,
    variant: OfVariant = None,
    **values: Any,
) -> Answer:
    """Recommend items to a known user.

    Reasons (`explain`) and items of the history (`include_seen`, `seen`, `repeat_where`) are
    data of the user. The events of a `visitor` in the last hour count, too.
    """
    told = _checked_told(request, values, language, explain=explain)
    if visitor is not None:
        return await _of_visitor(
            request, service, visitor, user, n, told, variant, values
        )
    # In an A/B test, the user decides on the model.
    answers = service.answers(variant, user)
    options = _listed_options(request, answers, values)
    lists = await service.run(
        answers.recommend, [user], service.check_n(n), options, told
    )
    return Answer(service.recorded(lists, variant)[0])


@_route(
    "GET",
    "/recommend",
    schemas.ListBody,
    "recommendations",
    "not-available",
    check=with_a_key,
    response_model_exclude_unset=True,
)
@_with_list_options(DEFAULTS)
async def recommend_visitor(
    request: Request,
    service: Served,
    visitor: Visitor,
    n: N = LENGTH,
    explain: bool = False,
    language: OfLanguage = None,
    variant: OfVariant = None,
    **values: Any,
) -> Answer:
    """Recommend items to a visitor, by the events of the last hour in the journal.

    After an update with these events, the visitor is a user, whose earlier events count as well.
    Without events, the list has popular items.
    """
    told = _checked_told(request, values, language, explain=explain)
    return await _of_visitor(request, service, visitor, None, n, told, variant, values)


async def _of_visitor(
    request: Request,
    service: Service,
    visitor: str,
    user: str | None,
    n: int,
    explain: Told | None,
    variant: Variant | None,
    values: Mapping[str, Any],
) -> Answer:
    """Return the list of a visitor, who may be a known user."""
    if service.visitors is None:
        reason = "The service has no journal of events; start it with --events FILE."
        raise ProblemError("not-available", reason)
    answers = service.answers(variant, user or visitor)
    options = _listed_options(request, answers, values)
    result = await service.run(
        answers.recommend_visitor,
        service.visitors,
        visitor,
        user,
        service.check_n(n),
        options,
        explain,
    )
    return Answer(service.recorded([result], variant)[0])


def _told(request: Request, language: Language | None) -> Told:
    """Return the language in which reasons are told in words, if one is requested."""
    return told_language(request.headers.raw, language)


def _checked_told(
    request: Request,
    values: Mapping[str, Any],
    language: Language | None,
    *,
    explain: bool,
) -> Told | None:
    """Return the language of reasons, if requested; reject a request that may not have them.

    Options that tell which items a user has seen need the same right.
    """
    options = ("include_seen", "seen", "repeat_where")
    if explain or any(values[name] for name in options):
        sees_users(request)
    return _told(request, language) if explain else None


def _listed_options(
    request: Request, answers: Responses, values: Mapping[str, Any]
) -> ListOptions:
    """Return the options of lists in parameters, where ids are texts; see `_options`."""
    ids = answers.ratings.items
    listed = {name: _listed_ids(values[name], ids) for name in ("items", "exclude")}
    return _options(request, answers, {**values, **listed})


def _listed_ids(texts: list[str], ids: Ids) -> list[str]:
    """Return ids in texts that are separated by commas; an id may contain a comma."""
    listed = []
    for text in texts:
        # An id as a whole comes first: "Good, Bad" may be one film.
        parts = [text] if ids.place(text) >= 0 else text.split(",")
        listed += [part if ids.place(part) >= 0 else part.strip() for part in parts]
    return [id for id in listed if id]


@_route(
    "POST",
    "/recommend",
    schemas.ListBody | schemas.ListsBody,
    "recommendations",
    "unknown-id",
    "too-large",
    check=with_a_key,
)
async def recommend_to(
    request: Request,
    service: Served,
    body: schemas.RecommendRequest,
    variant: OfVariant = None,
) -> Answer:
    """Recommend items to several users, or to a new user.

    For `users`, the answer has `results`, one list each. For a new user, described by `history`,
    `features` or both, it is one list. With `unknown` = `popular`, unknown items of the history are
    ignored, and named in the answer.
    """
    n = service.check_n(body.n)
    values = body.model_dump()
    if body.users is not None:
        told = _checked_told(request, values, body.language, explain=body.explain)
        # Before the work, which is proportional to both numbers.
        service.check_batch(len(body.users), "users", body.n)
        # The users of each model share one search.
        groups: dict[Variant | None, list[Id]] = {}
        # A user who is named twice has one list, also as text and as number.
        users_by_text = {str(user): user for user in body.users}
        for user in users_by_text.values():
            groups.setdefault(variant or service.variant(user), []).append(user)
        results: list[Json] = []
        for users in groups.values():
            answers = service.answers(variant, users[0])
            options = _options(request, answers, values)
            results += await service.run(answers.recommend, users, n, options, told)
        # Groups have changed the order of the request.
        order = {str(user): position for position, user in enumerate(body.users)}
        results.sort(key=lambda result: order[result["user"]])
        return Answer({"results": service.recorded(results, variant)})
    told = _told(request, body.language) if body.explain else None
    # A user without ratings may be described by features alone.
    history = body.history or []
    if history:
        service.check_batch(len(history), "ratings")
    answers = service.answers(variant, body.user)
    options = _options(request, answers, values)
    unknown_items: list[Id] = []
    if options.cold_start == "popular":
        unknown_items = answers.unknown_items(history)
        history = [rating for rating in history if rating.item not in unknown_items]
    # Kinds and times of events have weights, as in the data that the model was fitted to.
    rated: Any = {}
    for rating in history:
        # An item that comes again is as late as its last occurrence.
        rated.pop(rating.item, None)
        rated[rating.item] = rating.value
    if any(
        rating.event is not None or rating.timestamp is not None for rating in history
    ):
        rated = answers.events_of(history)
    result = await service.run(
        answers.recommend_new, rated, n, options, told, body.features, body.user
    )
    if unknown_items:
        result["ignored"] = list(map(str, unknown_items))
    return Answer(service.recorded([result], variant)[0])


@_route(
    "GET",
    "/similar/{item}",
    schemas.SimilarBody,
    "items",
    "unknown-id",
    check=with_a_key,
)
@_with_list_options(_OF_ITEMS)
async def similar(
    request: Request,
    service: Served,
    item: PathId,
    n: N = LENGTH,
    next: Annotated[
        bool,
        Query(description="What comes next after the item, by a model such as next."),
    ] = False,
    variant: OfVariant = None,
    **values: Any,
) -> Answer:
    """List the items most similar to an item, or what comes next after it."""
    answers = service.answers(variant)
    options = _listed_options(request, answers, values)
    neighbours = await service.run(
        answers.similar, item, service.check_n(n), options, next
    )
    return Answer(neighbours)


@_route(
    "GET",
    "/together/{item}",
    schemas.TogetherBody,
    "items",
    "unknown-id",
    "not-available",
    check=with_a_key,
)
@_with_list_options(_OF_PAIRS)
async def together(
    request: Request,
    service: Served,
    item: PathId,
    n: N = LENGTH,
    **values: Any,
) -> Answer:
    """List the items that are bought together with an item, the surest pairs first."""
    answers = service.answers()
    options = _listed_options(request, answers, values)
    pairs = await service.run(service.together, item, service.check_n(n), options)
    return Answer(pairs)


@_route(
    "GET",
    "/explain/{user}/{item}",
    schemas.ExplanationBody,
    "recommendations",
    "unknown-id",
    check=sees_users,
)
@_with_list_options(_OF_PLACES)
async def explain(
    request: Request,
    service: Served,
    user: PathId,
    item: PathId,
    n: N = LENGTH,
    language: OfLanguage = None,
    variant: OfVariant = None,
    **values: Any,
) -> Answer:
    """Explain a score as a sum over ratings and features, and in words.

    `placement` tells why the item is not among the first ten in the list of the user with these
    options: what leaves it out, or its rank and what the first ten have more of.
    """
    answers = service.answers(variant, user)
    options = _listed_options(request, answers, values)
    service.check_n(n)
    place = await service.run(
        answers.placement, user, item, options, values["where"], values["condition"]
    )
    try:
        explanation = await service.run(
            answers.explain, user, item, n, _told(request, language)
        )
    except DataError as error:  # of a model that ranks, and cannot explain its scores
        raise DataError(f"{error} {_sentence(place)}") from None
    return Answer({**explanation, "placement": place})


def _sentence(place: Json) -> str:
    """Return where an item is in a list, or why it is not there."""
    if place["rank"] is None:
        return f"The item is not in the list: {', '.join(place['reasons'])}."
    return f"The item is number {place['rank']:,} of {place['n_ranked']:,} in the list."


@_route(
    "POST",
    "/predict",
    schemas.PredictionsBody,
    "recommendations",
    "unknown-id",
    "too-large",
)
async def predict(
    service: Served,
    body: schemas.PredictRequest,
    variant: OfVariant = None,
) -> Answer:
    """Predict ratings, with intervals if the model supports them."""
    service.check_batch(len(body.pairs), "pairs")
    pairs = [(pair.user, pair.item) for pair in body.pairs]
    answers = service.answers(variant)
    return Answer(
        await service.run(answers.predict, pairs, body.unknown, body.confidence)
    )


@_route("GET", "/items", schemas.ItemsBody, "items", check=with_a_key)
async def items(
    service: Served,
    q: Annotated[str, Query(max_length=200)] = "",
    n: N = LENGTH,
) -> Answer:
    """Search items by title or id; without a text, list those with the most ratings."""
    return Answer(
        await service.run(service.answers().catalogue.items, q, service.check_n(n))
    )


@_route("GET", "/items/{item}", schemas.ItemBody, "items", "unknown-id")
async def item(service: Served, item: PathId) -> Answer:
    """Return facts about an item."""
    return Answer(await service.run(service.answers().catalogue.item, item))


@_route("GET", "/users", schemas.UsersBody, "users", check=sees_users)
async def users(service: Served, n: N = LENGTH) -> Answer:
    """List the users with the most ratings."""
    return Answer(
        await service.run(service.answers().catalogue.users, service.check_n(n))
    )


@_route(
    "GET", "/users/{user}", schemas.UserBody, "users", "unknown-id", check=sees_users
)
async def user(
    service: Served,
    user: PathId,
    n: N = 100,
) -> Answer:
    """Return facts about a user, with the highest ratings."""
    return Answer(
        await service.run(service.answers().catalogue.user, user, service.check_n(n))
    )


@_route("GET", "/map", schemas.MapBody, "model", "not-available")
async def item_map(
    service: Served,
    n: N = 500,
    variant: OfVariant = None,
) -> Answer:
    """Return a map of the items with the most ratings."""
    return Answer(
        await service.run(service.answers(variant).catalogue.map, service.check_n(n))
    )


@_route("GET", "/spectrum", schemas.SpectrumBody, "model", "not-available")
async def spectrum(service: Served, variant: OfVariant = None) -> Answer:
    """Return the singular values of the model."""
    return Answer(await service.run(service.answers(variant).catalogue.spectrum))


@_route("GET", "/model", schemas.ModelBody, "model", "not-available")
async def model(service: Served, variant: OfVariant = None) -> Answer:
    """Describe the model: parameters, data, metrics, abilities."""
    facts = service.answers(variant).describe()
    # The page offers what is in this answer, and hides all else.
    facts["variants"] = {name: service.answers(name).name for name in service.models}
    if service.index is not None:
        facts["abilities"].append("search")
    if service.events is not None:
        facts["abilities"].append("events")
    if service.pairs is not None:
        facts["abilities"].append("together")
    return Answer(facts)


@_route(
    "GET", "/search", schemas.SearchBody, "search", "not-available", check=with_a_key
)
async def search(
    service: Served,
    q: Annotated[str, Query(max_length=2000, min_length=1)],
    n: N = LENGTH,
) -> Answer:
    """Search documents in the index."""
    return Answer(await service.run(service.search().search, q, service.check_n(n)))


@_route(
    "POST",
    "/events",
    schemas.StoredBody,
    "events",
    "not-available",
    "too-large",
    "not-stored",
    check=stores_events,
    status_code=201,
)
async def store(service: Served, body: schemas.EventsBody) -> Answer:
    """Store events for the next `recsys update`; the answer confirms that they are on disk.

    An event that is sent again with the same `id` is added once.
    """
    service.check_batch(len(body.events), "events")
    # Times and ids are given now, so that a client may repeat the request.
    events = event_records(body.events)
    # What an update could not read later is rejected at once.
    if service.models:
        events = await service.run(
            checked_events, events, service.answers().recommender
        )
    await service.store(events)
    return Answer({"stored": len(events)}, 201)


async def models(service: Served) -> Answer:
    """List the models, each of which answers below /v1/models/NAME/."""
    names: dict[str, str | None] = {}
    for name, part in service.group.items():
        # The first slot has the model, or an index that is served in its place.
        first = next(iter(part.slots.values()))
        names[name] = None if first.current is None else first.current.name
    return Answer({"models": names})


async def unknown_model(service: Served, name: str) -> Answer:
    """Reject a request for a model that is not served."""
    listed = ", ".join(service.group)
    raise ProblemError(
        "not-found", f"There is no model {unquote(name)!r}; there are {listed}."
    )


async def metrics(service: Served) -> Response:
    """Return counts of requests, models and events, for Prometheus."""
    return Response(service.counters.page(), media_type=MEDIA_TYPE_OF_METRICS)
