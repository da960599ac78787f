"""Bodies of requests and responses, as the OpenAPI document describes them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    create_model,
    field_validator,
    model_validator,
)

from recsys.ranking.lists import DEFAULTS, ListOptions, declarations
from recsys.reasons import Language
from recsys.serve.settings import LENGTH

# A browser sends what it has received, which is text; programs may send integers.
IdBody = Annotated[
    StrictInt | Annotated[StrictStr, Field(max_length=500)],
    Field(description="Id of a user or an item: text, or an integer.", examples=["42"]),
]
"""Id in a request."""
IdText = Annotated[
    str,
    Field(description="Id as text, also if the data have integers.", examples=["42"]),
]
"""Id in an answer; a browser would round large numbers."""
Finite = Annotated[float, Field(allow_inf_nan=False)]


def _not_a_truth(value: Any) -> Any:
    """Reject true and false, which would be the grades 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("a value is a number, not true or false")
    return value


Value = Annotated[
    float, Field(allow_inf_nan=False), BeforeValidator(_not_a_truth, float)
]
"""Rating or weight in a request."""
Place = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]


class _Body(BaseModel):
    """Body with the declared fields only."""

    # A misspelled option is an error, and fields may be called `model`.
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


# Made by `ProblemError.document`; declared here for the OpenAPI document.
class ProblemBody(_Body):
    """Problem document (RFC 9457)."""

    type: str = Field(examples=["/docs#unknown-id"])
    title: str = Field(examples=["Unknown id"])
    status: int = Field(examples=[404])
    detail: str = Field(
        examples=["Unknown user 7000; the nearest ids are 2000, 1999, 1998."]
    )


class NamedItem(_Body):
    """Item with its title, if titles are known."""

    item: IdText
    title: str | None = Field(examples=["Nosferatu"])


class ReasonBody(_Body):
    """Rating of the user, or feature, and its contribution to the score."""

    item: IdText | None = None
    title: str | None = None
    value: Finite | None = None
    feature: str | None = None
    contribution: Finite


class ShareBody(_Body):
    """Reason for an item with its share of all that speaks for it."""

    item: IdText | None = None
    title: str | None = None
    value: Finite | None = None
    kind: str | None = Field(
        None,
        description="What the user has done: a kind of event, rating or interaction.",
    )
    feature: str | None = None
    other: bool | None = Field(
        None,
        description="True for the sum of shares below a tenth, and of stock and prices.",
    )
    share: Finite


class RankedItem(NamedItem):
    """Entry of a list."""

    rank: Place
    score: Finite
    chance: Finite | None = Field(
        None, description="Probability that the item is taken, with `chance`."
    )
    new: bool | None = Field(None, description="True if the item has no ratings.")
    source: Literal["model", "fill", "slot"] | None = Field(
        None, description="Reason for the item in a list with `fill` or `slots`."
    )
    # Absent, not null, unless the request has `explain`.
    because: list[ReasonBody] | None = Field(
        None, description="Largest contributions to the score."
    )
    reasons: list[ShareBody] | None = None
    text: str | None = Field(None, description="The reasons in words.")


class ListBody(_Body):
    """Recommendations to a user."""

    user: IdText | None = Field(
        description="Id of the user; null for a new user without a name."
    )
    items: list[RankedItem]
    model: str = Field(
        examples=["als@3f2a9c1b"], description="Name and checksum of the model."
    )
    policy: Literal["personal", "history", "features", "popular"] = Field(
        description="Basis of the list: ratings of the user in the model, the history or features "
        "in the request, or the popularity of items."
    )
    variant: Literal["a", "b"] | None = Field(None, description="Model of an A/B test.")
    ignored: list[IdText] | None = Field(
        None, description="Unknown items of the history, with `unknown` = `popular`."
    )


# An object, so that fields can be added without a new version.
class ListsBody(_Body):
    """Recommendations to several users."""

    results: list[ListBody]


class SimilarBody(NamedItem):
    """Items similar to an item."""

    items: list[RankedItem]
    model: str


class PairedItem(NamedItem):
    """Item that is bought together with another."""

    rank: Place
    # Absent in a popular item that completes the list.
    both: Place | None = Field(None, description="Number of baskets with both items.")
    lift: Finite | None = Field(
        None, description="This number, relative to the one by chance."
    )
    low: Finite | None = Field(
        None,
        description="Lower limit of an interval for the lift; above 1, the items are bought "
        "together more often than by chance.",
    )
    high: Finite | None = None
    source: Literal["model", "fill"] | None = Field(
        None, description="Reason for the item in a list with `fill`."
    )


class TogetherBody(NamedItem):
    """Items that are bought together with an item."""

    items: list[PairedItem]
    model: str


class LackBody(_Body):
    """Part of scores of which the first items have more: a rated item, a feature or another."""

    part: str
    item: IdText | None = None
    title: str | None = None
    feature: str | None = None
    contribution: Finite
    of_first: Finite = Field(description="Mean contribution to the first ten scores.")


class PlacementBody(_Body):
    """Place of an item among all items that the user can get, or what leaves it out."""

    rank: int | None = Field(description="None if the item cannot be in the list.")
    n_ranked: int
    reasons: list[str] = Field(
        description="What leaves it out: seen, items, exclude, where, condition: NAME, not offered "
        "or no data."
    )
    lacks: list[LackBody] = Field(
        description="What the first ten items have more of, the largest difference first."
    )


class ExplanationBody(NamedItem):
    """Score as a sum: base, popularity, the terms in `because`, and the sum of the others."""

    user: IdText
    score: Finite
    base: Finite
    popularity: Finite = Field(
        description="Discount for an item with few ratings; at most 0."
    )
    because: list[ReasonBody]
    reasons: list[ShareBody] | None = None
    text: str | None = Field(None, description="The reasons in words.")
    others: Finite
    placement: PlacementBody
    model: str


class PredictionBody(_Body):
    """Predicted rating, with standard deviation and interval if the model has them."""

    user: IdText
    item: IdText
    prediction: Finite
    std: Finite | None = None
    low: Finite | None = None
    high: Finite | None = None


class PredictionsBody(_Body):
    """Predictions in the order of the pairs."""

    predictions: list[PredictionBody]
    model: str


class CountedItem(NamedItem):
    """Item with the number of its ratings."""

    count: Count


class ItemsBody(_Body):
    """Items found by a search, the best first, and the number of all matches."""

    items: list[CountedItem]
    total: Count
    model: str


class ItemBody(CountedItem):
    """Catalogue about an item."""

    # Interactions have no mean.
    mean: Finite | None = Field(
        None, description="Mean of the ratings; null without ratings."
    )
    # Columns of the user's own table, of any name.
    features: dict[str, Any] = Field(examples=[{"year": 1922, "genres": ["Horror"]}])
    model: str


class RatedItem(NamedItem):
    """Item of a history with its rating."""

    value: Finite


class UsersBody(_Body):
    """Users with the most ratings, and the number of all users."""

    users: list[IdText]
    total: Count
    model: str


class UserBody(_Body):
    """Catalogue about a user; the history has the highest ratings first."""

    user: IdText
    count: Count
    history: list[RatedItem]
    features: dict[str, Any]
    model: str


class MapItem(CountedItem):
    """Item on the map, with coordinates between -1 and 1."""

    x: Finite
    y: Finite


class AxisBody(_Body):
    """Axis of the map: titles of the items at its ends, the outermost first."""

    low: list[str]
    high: list[str]


class MapBody(_Body):
    """Items with the most ratings, on the first two principal components of the item vectors."""

    items: list[MapItem]
    axes: list[AxisBody]
    share: Finite = Field(
        description="Share of the variance of the vectors that the map shows."
    )
    model: str


class TopicItem(NamedItem):
    """Item of a topic."""

    weight: Finite = Field(
        description="Mean contribution of the topic to the scores of the item, damped for items "
        "with few ratings."
    )


class TopicBody(_Body):
    """Topic, a factor of a model with non-negative factors, with its first items."""

    topic: Place
    items: list[TopicItem]


class SpectrumBody(_Body):
    """Singular values of the model, in descending order, and their number."""

    values: list[Finite]
    rank: Count
    model: str
    topics: list[TopicBody] | None = Field(
        None, description="Topics of a model with non-negative factors."
    )


class ModelBody(_Body):
    """Catalogue about the model: parameters, data, metrics."""

    model: str
    name: str = Field(examples=["als"])
    # Text, since an answer repeats what model.json has.
    created: str = Field(examples=["2026-01-31T12:00:00+00:00"])
    parameters: dict[str, Any]
    training: dict[str, Any]
    source: str | None
    fingerprint: str | None = Field(description="SHA-256 of the ratings.")
    package_version: str
    abilities: list[str] = Field(
        description="Kinds of requests that the service can answer."
    )
    rates: bool = Field(description="True if scores are ratings.")
    variants: dict[str, str] = Field({}, description="Models of an A/B test.")
    more: dict[str, Any] = Field({}, description="Further entries of model.json.")


class FoundDocument(_Body):
    """Document that matches a query."""

    document: IdText
    rank: Place
    score: Finite
    title: str | None = None
    snippet: str | None = None


class SearchBody(_Body):
    """Documents that match a query, the best first."""

    query: str
    documents: list[FoundDocument]
    notes: list[str] = Field(
        description="Remarks, such as words that no document contains."
    )
    model: str


class RatingBody(_Body):
    """Item that a new user has rated, or likes."""

    item: IdBody
    value: Value | None = Field(
        None, description="Rating; by default the best one, or 1 for implicit feedback."
    )
    event: str | None = Field(
        None,
        max_length=100,
        description="Kind of event, with the weight that the model gives it.",
    )
    timestamp: datetime | None = Field(
        None, description="Time of the event, for weights that depend on the age."
    )


def list_fields(names: Collection[str] = DEFAULTS) -> dict[str, tuple[Any, Any, Any]]:
    """Return type, default and limits of the options of lists that the service has, by name.

    The `names` of options are as in Python.
    """
    # From the declarations, so that an option is added in one place.
    declared: dict[str, Any] = {}
    for name, option in declarations().items():
        if not option.service or name not in names:
            continue
        default = DEFAULTS[name]
        # By default, an option is a text; its limits go into the OpenAPI document.
        kind: Any = str | None
        limits: dict[str, Any] = {"description": option.help}
        if option.kind == "flag":
            kind = bool
            default = False
        elif option.kind == "choice":
            kind = Literal[option.choices]
        elif option.kind == "share":
            kind = float
            limits |= {"ge": 0, "le": 1}
        elif option.kind == "count":
            kind = int | None
            limits |= {"ge": 1}
        elif option.kind == "ids":
            kind = list[IdBody]
            default = []
            limits["description"] = option.help.replace("File of", "Ids of")
        elif option.kind == "texts":
            kind = list[Annotated[str, Field(max_length=option.max_length)]]
            default = []
            limits["max_length"] = 10
        elif option.max_length is not None:
            limits["max_length"] = option.max_length
        declared[option.service] = kind, default, limits
    description = "Names of conditions of the service (--condition), all of which hold."
    limits = {"description": description, "max_length": 100}
    declared["condition"] = list[str], [], limits
    return declared


class _RecommendRequest(_Body):
    """Users, or the history or features (or both) of a new user; and options of the lists."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"users": ["42", "43"], "n": 3},
                {
                    "history": [{"item": "3", "value": 5}, {"item": "9"}],
                    "n": 3,
                    "explain": True,
                },
            ]
        },
    )

    users: list[IdBody] | None = None
    history: list[RatingBody] | None = None
    features: dict[str, Any] | None = Field(
        None, description="Features of the new user."
    )
    user: IdBody | None = Field(
        None, description="Name of the new user, for A/B tests and logs."
    )
    n: int = Field(LENGTH, ge=1)
    explain: bool = False
    language: Language | None = Field(
        None, description="Language of a text, if not that of Accept-Language."
    )

    @field_validator("features")
    @classmethod
    def _in_unicode(cls, features: dict[str, Any] | None) -> dict[str, Any] | None:
        """Check texts of any depth, as Pydantic checks all other texts."""
        try:
            # JSON can have single surrogates, which no text can.
            json.dumps(features, ensure_ascii=False).encode()
        except (UnicodeEncodeError, RecursionError):
            raise ValueError(
                "features must have values that are text or numbers"
            ) from None
        return features

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        is_new = self.history is not None or self.features is not None
        if (self.users is None) != is_new:
            raise ValueError(
                "The body must have either users, or a history or features of a new user"
            )
        return self


# mypy does not know models that are made at run time.
if TYPE_CHECKING:
    RecommendRequest = _RecommendRequest
else:
    RecommendRequest = create_model(
        "RecommendRequest",
        __base__=_RecommendRequest,
        __doc__=_RecommendRequest.__doc__,
        **{
            name: (kind, Field(default, **limits))
            for name, (kind, default, limits) in list_fields().items()
        },
    )


def service_options(values: Mapping[str, Any], condition: str | None) -> ListOptions:
    """Return the options of lists in the parameters of a request.

    Items have to meet the `condition` of the service, too.
    """
    chosen: dict[str, Any] = {}
    for name, option in declarations().items():
        if option.service not in values:
            continue
        value = values[option.service]
        if option.kind == "flag":
            value = value != DEFAULTS[name]  # a flag turns a default of True off
        if option.kind == "ids":
            value = [*value] or None
        if option.kind == "texts":
            value = tuple(value)
        chosen[name] = value
    where = chosen.get("where")
    if condition is not None:
        chosen["where"] = condition if where is None else f"({where}) AND {condition}"
    return ListOptions(**chosen)


class PairBody(_Body):
    """Pair of user and item."""

    user: IdBody
    item: IdBody


class PredictRequest(_Body):
    """Pairs to predict ratings of."""

    pairs: list[PairBody] = Field(examples=[[{"user": "42", "item": "3"}]])
    unknown: Literal["error", "bias", "popular"] = "error"
    confidence: float | None = Field(
        None, gt=0, lt=1, description="Also return intervals of this coverage."
    )


class EventBody(_Body):
    """Event of a user with an item."""

    user: IdBody
    item: IdBody
    value: Value | None = None
    event: str | None = Field(None, max_length=100, examples=["purchase"])
    timestamp: datetime | None = Field(
        None, description="Time of the event, by default of its arrival."
    )
    id: StrictInt | Annotated[StrictStr, Field(max_length=128)] | None = Field(
        None,
        description="Id of the event, by default a new one.",
        examples=["order-17-3"],
    )


class EventsBody(_Body):
    """Events to store."""

    events: list[EventBody]


class StoredBody(_Body):
    """Number of events written to disk."""

    stored: Count


class ModelsBody(_Body):
    """Models of a service of several, by their names in paths."""

    models: dict[str, str | None] = Field(
        description="Name and checksum of each model; null if it is not loaded.",
        examples=[{"films": "als@3f2a9c1b"}],
    )


class TableBody(_Body):
    """State of a table of items: rows, seconds since it was read, what is left out or wrong."""

    rows: Count | None
    age: Finite | None
    rejected: str | None
    remarks: list[str]


class ReadyBody(_Body):
    """Readiness, with the names of the models."""

    status: Literal["ready", "loading"]
    models: dict[str, str | None]
    rejected: dict[str, str] = Field(
        {}, description="Reasons for which newer models are not served."
    )
    tables: dict[str, TableBody] | None = Field(
        None, description="Tables of items that are read again and again."
    )
    unusable_conditions: dict[str, list[str]] | None = Field(
        None,
        description="Named conditions that the items do not fit; the log has the reasons.",
    )
