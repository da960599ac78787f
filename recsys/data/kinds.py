"""Words for data that saved models repeat: kinds of columns, treatment of repeated pairs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

FeatureKind: TypeAlias = Literal[
    "number", "boolean", "date", "category", "list", "text"
]
"""Kind of a column: the meaning of its values, independent of the type that stores them."""

ReadAs: TypeAlias = Literal["string", "text"]
"""Form of a column in its source: strings, or the texts of a file without types."""

Policy: TypeAlias = Literal["last", "first", "mean", "sum", "error"]
"""Treatment of repeated pairs of a user and an item."""


IMPRESSION = 0.1
"""Confidence of an item that was shown to a user who did nothing with it."""


@dataclass(frozen=True, slots=True)
class FeatureRequest:
    """Request to encode the tables of ratings, with the arguments of `with_features`."""

    columns: tuple[str, ...] | None = None
    texts: Literal["auto", "terms", "vectors"] = "auto"
    unrated: bool = False
    random_state: int = 0


@dataclass(frozen=True, slots=True)
class EventRule:
    """Rule by which the events of a pair of user and item become its rating.

    Attributes
    ----------
    policy : {"last", "first", "mean", "sum", "error"}
        Rating of a pair with several events.
    half_life : float or None
        Age, in seconds before the newest event, at which the weight of an event is
        halved.
    kinds : tuple of str
        Kinds of events. A code of `Events.kinds` is a position in it.
    weights : tuple of float
        Weight of each kind. A negative one is of dislikes, and 0 of impressions, which only
        show an item.
    above : float or None
        If given, pairs with a larger rating are interactions of weight 1, and others
        are left out. The events keep their values, so that a refit can judge them
        again.
    graded : bool
        Whether the rating of a pair is 1 if its weights add up to more than 0, and else 0,
        for models of grades.
    weighted : bool
        Whether a named column has the weights of interactions.
    """

    policy: Policy = "last"
    half_life: float | None = None
    kinds: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    above: float | None = None
    graded: bool = False
    weighted: bool = False

    @property
    def has_zeros(self) -> bool:
        """True if some kinds are dislikes or impressions."""
        return min(self.weights, default=1.0) <= 0

    @property
    def has_weights(self) -> bool:
        """True if interactions have weights, even while these all happen to be 1."""
        if self.above is not None:
            return False
        if self.weighted or self.policy == "sum" or self.half_life is not None:
            return True
        return any(weight != 1 for weight in self.weights)

    def without_events(self) -> EventRule:
        """Return the rule of ratings that have lost the events behind them."""
        if self.above is not None:
            return EventRule()
        return EventRule(self.policy, weighted=self.weighted)

    def without_age(self) -> EventRule:
        """Return the rule by which an event counts the same at any age."""
        return replace(self, half_life=None)
