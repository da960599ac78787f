"""Route for the most frequent requests: the list of an id or of a history.

It answers requests without options but `n`, one named condition and `explain`, from the bytes of a
request to the bytes of the list. Requests that arrive together share one search. The routes of
`routes.py` answer all others, and what is wrong in one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import msgspec

from recsys.reasons import preferred_language
from recsys.serve.access import Headers
from recsys.serve.batching import Batches, Search
from recsys.serve.responses import Told
from recsys.serve.service import Service, Variant
from recsys.serve.settings import LENGTH

if TYPE_CHECKING:
    from starlette.types import Scope

_SIMILAR = b"/v1/similar"
_FEW_OPTIONS = re.compile(
    rb"(?:n=(?P<n>[1-9][0-9]{0,8}))?(?:&?condition=(?P<condition>\w+))?"
    rb"(?P<explain>&?explain=true)?"
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


class _Item(msgspec.Struct, frozen=True):
    item: int | str


class _Items(msgspec.Struct):
    """Items of a list."""

    items: list[_Item]


_ITEMS = msgspec.json.Decoder(_Items)
# Pydantic would take as long as the search itself.
_HISTORY = msgspec.json.Decoder(_History)


def told_language(headers: Headers) -> Told:
    """Return the language in which reasons are told in words, by the header of a request."""
    accepted = [value for name, value in headers if name == b"accept-language"]
    return preferred_language(b",".join(accepted).decode("latin-1")) or ""


class Lists:
    """Route for lists; its methods return None for requests that it does not answer."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._batches = Batches(service.run)

    def of_id(self, scope: Scope) -> PendingList | None:
        """Return the list of a known user or an item."""
        path: bytes = scope["raw_path"]
        query: bytes = scope["query_string"]
        options = _FEW_OPTIONS.fullmatch(query)
        if options is None or not (self._service.models and self._service.is_ready):
            return None
        n = int(options["n"] or LENGTH)
        condition = options["condition"]
        if n > self._service.limits.items:
            return None
        # The last part of a path is an id, with escapes.
        prefix, _, escaped = path.rpartition(b"/")
        id = unquote(escaped.decode("latin-1"))
        name = None if condition is None else condition.decode()
        told = None
        if options["explain"]:
            level = scope["state"]["level"]
            # The routes say why reasons are data of users.
            if self._service.access.objection(level, scope) is not None:
                return None
            told = told_language(scope["headers"])
        if prefix == RECOMMEND:
            return self._best(id, n, name, told)
        if prefix == _SIMILAR and told is None:
            return self._similar(id, n, name)
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
        # By the name, since a replaced model has other times.
        name = f"best {responses.name}"
        search: Search = responses.best
        query: Any = index
        if told is not None:
            name = f"explained {name}"
            search = responses.explained
            query = index, told
        text = self._batches.ask(search, name, query, n, condition)
        pending = PendingList("/v1/recommend/{user}", text)
        if variant is None and self._service.log is None:
            return pending
        other_text = None
        if variant is not None and self._service.log is not None:
            other = self._service.answers("a" if variant == "b" else "b")
            place = other.ratings.users.place(user)
            if place >= 0 and other.has_search(condition):
                name = f"best {other.name}"
                other_text = self._batches.ask(other.best, name, place, n, condition)
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
        if not responses.recommender._has_data_of(index):
            return None
        name = f"similar {responses.name}"
        text = self._batches.ask(responses.neighbours, name, index, n, condition)
        return PendingList("/v1/similar/{item}", text)

    def of_history(self, content: bytes) -> PendingList | None:
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
        search = responses.best_of_histories
        name = f"history {responses.name}"
        text = self._batches.ask(search, name, history, body.n, condition)
        return PendingList("/v1/recommend", text)
