"""Route for the most frequent requests: the list of an id or of a history.

It answers requests without options but `n`, one named condition, `explain` and its language, from
the bytes of a request to the bytes of the list. Requests that arrive together share one search. The
routes of `routes.py` answer all others, and what is wrong in one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import unquote

import msgspec

from recsys.reasons import Language, preferred_language
from recsys.serve.access import Headers
from recsys.serve.batching import Batches, Search
from recsys.serve.responses import Responses, Told
from recsys.serve.service import Service, Variant
from recsys.serve.settings import LENGTH

if TYPE_CHECKING:
    from starlette.types import Scope

_SIMILAR = b"/v1/similar"
_OPTION = re.compile(
    rb"(?=n=[1-9]\d{0,8}$|condition=|explain=true$|language=(?:en|de)$)(\w+)=(\w+)"
)

RECOMMEND = b"/v1/recommend"


class PendingList(NamedTuple):
    """JSON of a list that is being computed, and the route that it belongs to."""

    route: str
    text: Awaitable[bytes]


class _Rating(msgspec.Struct, forbid_unknown_fields=True):
    item: int | str
    value: float | None = None


class _History(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a request of a new user without a name."""

    history: list[_Rating]
    n: int = LENGTH
    condition: list[str] = []
    explain: bool = False
    language: Language | None = None


class _Item(msgspec.Struct, frozen=True):
    item: int | str


class _Items(msgspec.Struct):
    """Items of a list."""

    items: list[_Item]


_ITEMS = msgspec.json.Decoder(_Items)
# Pydantic would take as long as the search itself.
_HISTORY = msgspec.json.Decoder(_History)


def _may_repeat_keys(content: bytes, body: _History) -> bool:
    """Return whether an object of a body may have a key twice; the routes know for certain."""
    # Counts are enough for most bodies, and faster than to read the JSON again.
    n_values = sum(rating.value is not None for rating in body.history)
    most = {b'"item"': len(body.history), b'"value"': n_values}
    for name in _History.__struct_fields__:
        most[f'"{name}"'.encode()] = 1
    is_repeated = any(content.count(key) > most[key] for key in most)
    return is_repeated or b"\\" in content


def told_language(headers: Headers, language: Language | None) -> Told:
    """Return the language in which reasons are told in words: an option, or by a header."""
    if language is not None:
        return language
    accepted = [value for name, value in headers if name == b"accept-language"]
    return preferred_language(b",".join(accepted).decode("latin-1")) or ""


def _few_options(query: bytes) -> dict[str, str] | None:
    """Return the options of a query; None if it has others, or one of them twice."""
    options: dict[str, str] = {}
    for part in query.split(b"&") if query else ():
        option = _OPTION.fullmatch(part)
        if option is None or option[1].decode() in options:
            return None
        options[option[1].decode()] = option[2].decode()
    return options


class Lists:
    """Route for lists; its methods return None for requests that it does not answer."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._batches = Batches(service.run)

    def of_id(self, scope: Scope) -> PendingList | None:
        """Return the list of a known user or an item."""
        path: bytes = scope["raw_path"]
        query: bytes = scope["query_string"]
        options = _few_options(query)
        if options is None or not (self._service.models and self._service.is_ready):
            return None
        n = int(options.get("n", LENGTH))
        condition = options.get("condition")
        if n > self._service.limits.items:
            return None
        # The last part of a path is an id, with escapes.
        prefix, _, escaped = path.rpartition(b"/")
        id = unquote(escaped.decode("latin-1"))
        told = None
        if "explain" in options:
            level = scope["state"]["level"]
            # The routes say why reasons are data of users.
            if self._service.access.objection(level, scope) is not None:
                return None
            language = cast("Language | None", options.get("language"))
            told = told_language(scope["headers"], language)
        if prefix == RECOMMEND:
            return self._best(id, n, condition, told)
        if prefix == _SIMILAR and not options.keys() & {"explain", "language"}:
            return self._similar(id, n, condition)
        return None

    def _best(
        self,
        user: str,
        n: int,
        condition: str | None,
        told: Told | None,
    ) -> PendingList | None:
        variant = self._service.variant(user)
        responses = self._service.answers(variant)
        index = responses.ratings.users.place(user)
        # The routes name similar ids, and the conditions.
        if index < 0 or not responses.has_search(condition):
            return None
        if not responses.recommender._has_data_of(index):
            return None
        text = self._ask(responses, responses.best, index, n, condition, told)
        pending = PendingList("/v1/recommend/{user}", text)
        if variant is None and self._service.log is None:
            return pending
        other_text = None
        if variant is not None and self._service.log is not None:
            other = self._service.answers("a" if variant == "b" else "b")
            place = other.ratings.users.place(user)
            if place >= 0 and other.has_search(condition):
                other_text = self._ask(other, other.best, place, n, condition)
        return pending._replace(text=self._logged(text, variant, other_text))

    async def _logged(
        self,
        text: asyncio.Future[bytes],
        variant: Variant | None,
        other_text: asyncio.Future[bytes] | None,
    ) -> bytes:
        """Add the variant to a list, and log it with the probabilities of its items."""
        body = await text
        if variant is not None:
            body = b'{"variant":"%s",%s' % (variant.encode(), body[1:])
        if self._service.log is None:
            return body
        logged = body
        if variant is not None and other_text is not None:
            share = self._service.settings.share
            probability = share if variant == "b" else 1 - share
            items = _ITEMS.decode(body).items
            others = _ITEMS.decode(await other_text).items
            # An item that both models have at a rank is shown there in any case.
            values = [
                1.0 if place < len(others) and item == others[place] else probability
                for place, item in enumerate(items)
            ]
            logged = b'{"probabilities":%s,%s' % (msgspec.json.encode(values), body[1:])
        self._service.log.add_with_time(logged)
        return body

    def _similar(
        self,
        item: str,
        n: int,
        condition: str | None,
    ) -> PendingList | None:
        responses = self._service.answers()
        index = responses.ratings.items.place(item)
        if index < 0 or not responses.has_search(condition):
            return None
        text = self._ask(responses, responses.neighbours, index, n, condition)
        return PendingList("/v1/similar/{item}", text)

    def of_history(self, content: bytes, headers: Headers) -> PendingList | None:
        """Return the list of a new user, described by the ratings in a body."""
        service = self._service
        # Variants and logs depend on the name of the user, which such a body lacks.
        if len(service.models) != 1 or service.log is not None or not service.is_ready:
            return None
        try:
            body = _HISTORY.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # Another option, or a fault that the routes explain.
            return None
        if _may_repeat_keys(content, body):
            return None
        if not 1 <= len(body.history) <= service.limits.batch:
            return None
        if not 1 <= body.n <= service.limits.items:
            return None
        responses = service.answers()
        condition = None
        if body.condition:
            condition = body.condition[0]
        if len(body.condition) > 1 or not responses.has_search(condition):
            return None
        rated = [(rating.item, rating.value) for rating in body.history]
        history = responses.history(rated)
        if history is None:
            return None
        told = told_language(headers, body.language) if body.explain else None
        search = responses.best_of_histories
        text = self._ask(responses, search, history, body.n, condition, told)
        return PendingList("/v1/recommend", text)

    def _ask(
        self,
        responses: Responses,
        search: Search,
        query: Any,
        *arguments: int | str | None,
    ) -> asyncio.Future[bytes]:
        """Return the JSON of a list, which is computed with others of the same kind."""
        # By a name, since a replaced model has other times.
        name = f"{search.__name__} {responses.name}"
        return self._batches.ask(search, name, query, *arguments)
