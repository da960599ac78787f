"""Words for data that saved models repeat: kinds of columns, treatment of repeated pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

FeatureKind: TypeAlias = Literal[
    "number", "boolean", "date", "category", "list", "text"
]
"""Kind of a column: the meaning of its values, independent of the type that stores them."""

ReadAs: TypeAlias = Literal["string", "text"]
"""Form of a column in its source: strings, or the texts of a file without types."""

Policy: TypeAlias = Literal["last", "first", "mean", "sum", "error"]
"""Treatment of repeated pairs of a user and an item."""


@dataclass(frozen=True, slots=True)
class FeatureRequest:
    """Request to encode the tables of ratings, with the arguments of `with_features`."""

    columns: tuple[str, ...] | None = None
    texts: Literal["auto", "terms", "vectors"] = "auto"
    unrated: bool = False
    random_state: int = 0
