"""Events that the service receives: checked by the rules of reading, and written as JSON lines.

Whatever is stored, `recsys update` can add later: one event that it could not read would stop every
update from the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

from recsys.changes import plausible_range, usual_scale
from recsys.data.age import event_time_problem
from recsys.data.ids import Ids, id_problem
from recsys.data.rows import ANY_EVENT, NO_EVENT, rating_problem
from recsys.errors import DataError
from recsys.serve.catalogue import Id, Json

_MOST_TIMES = 1_000_000  # a value may be so many times the largest one of the model

if TYPE_CHECKING:
    from recsys.recommender import Recommender
    from recsys.serve.schemas import EventBody


def event_records(bodies: Sequence[EventBody]) -> list[Json]:
    """Return events as they are stored, with a time each.

    `recsys update` knows an event again that a client has sent twice: by its id, or by its time. An
    event that a client sends without both gets a new id, since others may arrive at the same time.

    Raises
    ------
    DataError
        If an event cannot have its time or its id.
    """
    now = datetime.now(UTC)
    events = []
    for number, body in enumerate(bodies, start=1):
        # A time without a zone is one of UTC, as in files.
        time = body.timestamp or now
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        problem = None
        # Each line has the key, since readers look at the first lines.
        event_id = None
        if body.id is not None:
            event_id = str(body.id)
            problem = id_problem(event_id, "event")
        elif body.timestamp is None:
            event_id = uuid4().hex
        try:
            time = time.astimezone(UTC)
        except OverflowError:
            problem = problem or f"the time {body.timestamp} is out of range."
        problem = problem or event_time_problem(time.timestamp(), now.timestamp())
        if problem is not None:
            raise DataError(f"Event {number}: {problem}")
        text = time.isoformat(timespec="seconds")
        events.append(
            {
                "user": body.user,
                "item": body.item,
                "value": body.value,
                "event": body.event,
                "timestamp": text.replace("+00:00", "Z"),
                "event_id": event_id,
            }
        )
    return events


def checked_events(events: Sequence[Json], recommender: Recommender) -> list[Json]:
    """Check that `recsys update` can add events to a model; return them with ids of its type.

    Raises
    ------
    DataError
        If an id cannot be one of the model's, the event is of a kind without a weight, or a value
        is missing, out of range, or not a number of single precision.
    """
    users = _typed(recommender.ratings.users, [event["user"] for event in events])
    items = _typed(recommender.ratings.items, [event["item"] for event in events])
    weights = recommender.provenance.reading.get("event_weights")
    shown = recommender.provenance.reading.get("impressions")
    if weights is not None and shown is not None:
        weights = {**weights, shown: 0.0}
    ends = plausible_range(recommender.ratings)
    largest = max(map(abs, recommender.ratings.value_range()))
    checked = []
    rows = zip(events, users, items, strict=True)
    for number, (event, user, item) in enumerate(rows, start=1):
        value = event["value"]
        problem = _kind_problem(event["event"], weights)
        problem = problem or _value_problem(value, recommender, ends)
        # Larger values would spoil the sums of a fit.
        if abs(value or 0.0) > _MOST_TIMES * max(1.0, largest):
            limit = f"{_MOST_TIMES:,} times the largest one of the model, {largest:g}"
            problem = problem or f"the value {value:g} is more than {limit}."
        if problem is not None:
            raise DataError(f"Event {number}: {problem}")
        checked.append({**event, "user": user, "item": item})
    return checked


def _typed(ids: Ids, values: list[Id]) -> list[Id]:
    """Return ids in the type of the ids of a model."""
    # Otherwise "1" and 1 would become two users in the file.
    typed: list[Id | None] = ids.like(values).to_list()
    converted: list[Id] = []
    for number, (value, id) in enumerate(zip(values, typed, strict=True), start=1):
        if id is None:
            raise DataError(
                f"Event {number}: the model has integer {ids.kind} ids; {value!r} cannot be "
                "among them (fit a model with text ids to have others)."
            )
        problem = id_problem(id, ids.kind)
        if problem is not None:
            raise DataError(f"Event {number}: {problem}")
        converted.append(id)
    return converted


def _kind_problem(kind: str | None, weights: Mapping[str, float] | None) -> str | None:
    """Return a sentence on why an event of a kind has no weight, or None if it has one."""
    name = NO_EVENT if kind is None else kind
    if weights is None or {name, ANY_EVENT} & weights.keys():
        return None
    return f"the model has weights of {', '.join(weights)}; the event is {name!r}."


def _value_problem(
    value: float | None,
    recommender: Recommender,
    ends: tuple[float, float],
) -> str | None:
    """Return a sentence on why a value cannot be a rating of a model, or None if it can.

    A rating between the `ends` is plausible.
    """
    ratings, reading = recommender.ratings, recommender.provenance.reading
    # With a column of quantities, an update multiplies by the value.
    if value is None and reading.get("weight") is not None:
        return "the model needs a quantity, as the value."
    if value is None:
        has_kinds = ratings.implicit or ratings.rule.graded
        return None if has_kinds else "the model needs a rating, as the value."
    if not ends[0] <= value <= ends[1]:
        low, high = usual_scale(ratings)
        return f"the value must be between {low:g} and {high:g}; got {value:g}."
    if not ratings.implicit and value == reading.get("missing"):
        return f"the value {value:g} marks a missing rating (--missing)."
    if value <= 0 and reading.get("feedback") == "likes":
        return (
            f"the value must be above 0, since the model has likes only; got {value:g}."
        )
    return rating_problem(value)
