"""Bodies of requests and responses, as the OpenAPI document describes them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, model_validator

from recsys.serve.settings import LENGTH

IdBody = Annotated[
    StrictInt | Annotated[StrictStr, Field(max_length=500)],
    Field(description="Id of a user or an item: an integer, or text.", examples=[42]),
]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Place = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]


class _Body(BaseModel):
    """Fields as declared, and no others."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class ProblemBody(_Body):
    """Why there is no answer (RFC 9457)."""

    type: str = Field(examples=["/docs#unknown-id"])
    title: str = Field(examples=["Unknown id"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["Unknown user 7000; the nearest ids are 2000, 1999, 1998."])


class NamedItem(_Body):
    """An item with its title, if the model knows titles."""

    item: IdBody
    title: str | None = Field(examples=["Nosferatu"])


class ReasonBody(_Body):
    """A rating of the user, or a feature, and what it adds to the score."""

    item: IdBody | None = None
    title: str | None = None
    value: Finite | None = None
    feature: str | None = None
    contribution: Finite


class RankedItem(NamedItem):
    """One place of a list."""

    rank: Place
    score: Finite
    new: bool | None = Field(None, description="Whether nobody has rated the item.")
    because: list[ReasonBody] | None = Field(None, description="The largest reasons.")


class ListBody(_Body):
    """Recommendations to a user."""

    user: IdBody | None = Field(description="The user; null for one who is described.")
    items: list[RankedItem]
    model: str = Field(examples=["als@3f2a9c1b"], description="Name and checksum of the model.")
    policy: Literal["personal", "history", "features", "popular"] = Field(
        description="What the list is made from: the user's own ratings in the model, the history "
        "or features of the request, or the popularity of items."
    )
    variant: Literal["a", "b"] | None = Field(None, description="Model of an A/B test.")


class ListsBody(_Body):
    """Recommendations to several users."""

    results: list[ListBody]


class SimilarBody(NamedItem):
    """Items similar to one."""

    items: list[RankedItem]
    model: str


class ExplanationBody(NamedItem):
    """A score as a sum: base, popularity, what is named in `because`, and others."""

    user: IdBody
    score: Finite
    base: Finite
    popularity: Finite = Field(description="What few ratings take off; at most 0.")
    because: list[ReasonBody]
    others: Finite
    model: str


class PredictionBody(_Body):
    """A predicted rating, and its standard deviation and interval if the model knows them."""

    user: IdBody
    item: IdBody
    prediction: Finite
    std: Finite | None = None
    low: Finite | None = None
    high: Finite | None = None


class PredictionsBody(_Body):
    """Predictions in the order of the pairs."""

    predictions: list[PredictionBody]
    model: str


class CountedItem(NamedItem):
    """An item and the number of its ratings."""

    count: Count


class ItemsBody(_Body):
    """Items that a search found, the best first, and how many there are."""

    items: list[CountedItem]
    total: Count
    model: str


class ItemBody(CountedItem):
    """Facts about an item."""

    mean: Finite | None = Field(None, description="Mean of the ratings; null without any.")
    features: dict[str, Any] = Field(examples=[{"year": 1922, "genres": ["Horror"]}])
    model: str


class RatedItem(NamedItem):
    """An item of a history."""

    value: Finite


class UsersBody(_Body):
    """Users with most ratings, and the number of all."""

    users: list[IdBody]
    total: Count
    model: str


class UserBody(_Body):
    """Facts about a user; the history has the highest ratings first."""

    user: IdBody
    count: Count
    history: list[RatedItem]
    features: dict[str, Any]
    model: str


class MapItem(CountedItem):
    """An item on the map, between -1 and 1."""

    x: Finite
    y: Finite


class AxisBody(_Body):
    """A direction: titles of the items at its ends, the outermost first."""

    low: list[str]
    high: list[str]


class MapBody(_Body):
    """The items with most ratings in the first two directions of the item vectors."""

    items: list[MapItem]
    axes: list[AxisBody]
    share: Finite = Field(description="Share of the variance of the vectors that the map shows.")
    model: str


class SpectrumBody(_Body):
    """Singular values of the model's scores, the largest first, and their number."""

    values: list[Finite]
    rank: Count
    model: str


class ModelBody(_Body):
    """Facts about the model: parameters, data, measured values."""

    model: str
    name: str = Field(examples=["als"])
    created: str = Field(examples=["2026-01-31T12:00:00+00:00"])
    parameters: dict[str, Any]
    training: dict[str, Any]
    source: str | None
    fingerprint: str | None = Field(description="SHA-256 of the ratings.")
    package_version: str
    abilities: list[str] = Field(description="Paths that the model has answers for.")
    rates: bool = Field(description="Whether scores are ratings.")
    variants: dict[str, str] = Field({}, description="Models of an A/B test.")
    more: dict[str, Any] = Field({}, description="Further entries of model.json.")


class FoundDocument(_Body):
    """A document that matches a query."""

    document: IdBody
    rank: Place
    score: Finite
    title: str | None = None
    snippet: str | None = None


class SearchBody(_Body):
    """Documents by meaning, the best first."""

    query: str
    documents: list[FoundDocument]
    notes: list[str] = Field(description="Such as words that are in no document.")
    model: str


class RatingBody(_Body):
    """An item that a new user has rated, or likes."""

    item: IdBody
    value: Finite | None = Field(
        None, description="The rating; by default the best one, or 1 for implicit feedback."
    )


class RecommendRequest(_Body):
    """Users, or a new user's history, features or both; and what the lists may contain."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"users": [42, 43], "n": 3},
                {"history": [{"item": 3, "value": 5}, {"item": 9}], "n": 3, "explain": True},
            ]
        },
    )

    users: list[IdBody] | None = None
    history: list[RatingBody] | None = None
    features: dict[str, Any] | None = Field(None, description="Features of the new user.")
    user: IdBody | None = Field(None, description="Name of the new user, for A/B tests and logs.")
    n: int = Field(LENGTH, ge=1)
    where: str | None = Field(None, max_length=1000, examples=["year >= 1990"])
    exclude: list[IdBody] = []
    explain: bool = False
    unknown: Literal["error", "popular"] = "error"
    include_seen: bool = False
    diversity: float = Field(0.0, ge=0, le=1)
    at_most: int | None = Field(None, ge=1)
    per: str | None = Field(None, max_length=200)

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.users is None) == (self.history is None and self.features is None):
            raise ValueError("The body has either users, or a history or features of a new user")
        return self


class PairBody(_Body):
    """A user and an item."""

    user: IdBody
    item: IdBody


class PredictRequest(_Body):
    """Pairs to predict ratings of."""

    pairs: list[PairBody] = Field(examples=[[{"user": 42, "item": 3}]])
    unknown: Literal["error", "bias", "popular"] = "error"
    confidence: float | None = Field(
        None, gt=0, lt=1, description="Also return intervals of this coverage."
    )


class EventBody(_Body):
    """Something that a user did with an item."""

    user: IdBody
    item: IdBody
    value: Finite | None = None
    event: str | None = Field(None, max_length=100, examples=["purchase"])
    timestamp: datetime | None = Field(None, description="By default the time of arrival.")


class EventsBody(_Body):
    """Events to store."""

    events: list[EventBody]


class StoredBody(_Body):
    """Number of events that are on the disk."""

    stored: Count


class ReadyBody(_Body):
    """Readiness, with the names of the models."""

    status: Literal["ready", "loading"]
    models: dict[str, str | None]
    rejected: dict[str, str] = Field({}, description="Why a newer model was not taken.")
