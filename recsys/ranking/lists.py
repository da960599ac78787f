"""Options of lists of recommendations, for Python, the command and the service.

An option is declared once, here. `Recommender.recommend` has a keyword for each; the
command and the service make theirs from the declarations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from recsys.declarations import Declaration, Kind
from recsys.errors import DataError, check_flags

if TYPE_CHECKING:
    import polars as pl

    from recsys.data.frames import FrameLike
    from recsys.data.ids import IdsLike

BlockLike: TypeAlias = "IdsLike | FrameLike | Mapping[Any, IdsLike]"
"""Items to block for everyone; or for each user, as a frame of users and items or a mapping."""

ColdUser = Literal["error", "popular"]
Fill = Literal["none", "popular"]


def _declared(
    default: Any,
    kind: Kind,
    help: str,
    **details: Any,
) -> Any:
    declaration = Declaration(kind, help, **details)
    return field(default=default, metadata={"declaration": declaration})


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """Options of a list of recommendations; see `Recommender.recommend`."""

    items: IdsLike | None = _declared(
        None,
        "ids",
        "File of items to choose from.",
        metavar="FILE",
        service="items",
    )
    block: BlockLike | None = _declared(
        None,
        "ids",
        "File of items never to recommend, or of pairs of user and item.",
        metavar="FILE",
        service="exclude",
    )
    exclude_seen: bool = _declared(
        True,
        "flag",
        "Also recommend items the user has rated.",
        flag="include_seen",
        service="include_seen",
        of_users=True,
    )
    seen: str | Sequence[str] | None = _declared(
        None,
        "text",
        "Kinds of events that count as seen.",
        metavar="KIND,...",
        service="seen",
        max_length=1000,
        of_users=True,
    )
    repeat_where: str | pl.Expr | None = _declared(
        None,
        "text",
        "SQL condition on seen items to list again.",
        metavar="CONDITION",
        service="repeat_where",
        max_length=1000,
        of_users=True,
    )
    cold_start: ColdUser = _declared(
        "error",
        "choice",
        "Response to unknown users: an error, or the most popular items.",
        choices=("error", "popular"),
        service="unknown",
        of_users=True,
    )
    where: str | pl.Expr | None = _declared(
        None,
        "text",
        'SQL condition on items, such as "price < 30" or "new".',
        metavar="CONDITION",
        service="where",
        max_length=1000,
    )
    where_user: str | pl.Expr | None = _declared(
        None,
        "text",
        'SQL condition on users, such as "age < 30"; others get no recommendations.',
        metavar="CONDITION",
        of_users=True,
    )
    diversity: float = _declared(
        0.0,
        "share",
        "Weight of diversity against score, from 0 to 1.",
        metavar="X",
        service="diversity",
    )
    at_most: int | None = _declared(
        None,
        "count",
        "Maximum number of items with the same value of --per.",
        metavar="N",
        service="at_most",
    )
    per: str | None = _declared(
        None,
        "text",
        "Column of the item table for --at-most, such as genres.",
        metavar="COLUMN",
        service="per",
        max_length=200,
    )

    fill: Fill = _declared(
        "none",
        "choice",
        "Items that complete a short list: none, or the most popular ones.",
        choices=("none", "popular"),
        service="fill",
    )
    slots: str | Sequence[str] = _declared(
        (),
        "texts",
        'Last places of a list for items that meet a condition, such as "2:new"; repeatable.',
        metavar="N:CONDITION",
        service="slots",
        max_length=1000,
    )

    chance: bool = _declared(
        False,
        "flag",
        "Add the chance that the item is taken.",
        service="chance",
        of_users=True,
    )
    at_least: float = _declared(
        0.0,
        "share",
        "Lowest chance of a listed item.",
        metavar="X",
        service="at_least",
        of_users=True,
    )

    def __post_init__(self) -> None:
        check_flags(exclude_seen=self.exclude_seen, chance=self.chance)

    @property
    def shows_chance(self) -> bool:
        """True if lists have the chances of their items."""
        return self.chance or self.at_least > 0

    def are_defaults(self) -> bool:
        """Return whether no option differs from its default."""
        return not any(map(self._is_set, DEFAULTS))

    def of_items(self) -> ListOptions:
        """Return the options after a check that lists of similar items have them.

        Raises
        ------
        DataError
            If an option of lists for users differs from its default.
        """
        for name, option in declarations().items():
            if option.of_users and self._is_set(name):
                raise DataError(f"{name} is for lists of users; leave it out.")
        return self

    def _is_set(self, name: str) -> bool:
        """Return whether an option differs from its default."""
        value = getattr(self, name)
        default = DEFAULTS[name]
        # Conditions and ids may be arrays or expressions, which do not compare.
        return value is not default and (default is None or bool(value != default))

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any]) -> ListOptions:
        """Return the options in keywords.

        Raises
        ------
        TypeError
            If an option does not exist.
        """
        unknown = keywords.keys() - DEFAULTS.keys()
        if unknown:
            raise TypeError(
                f"recommend has the options {', '.join(DEFAULTS)}; "
                f"got {', '.join(sorted(unknown))}."
            )
        return cls(**keywords)


DEFAULTS: dict[str, Any] = {
    option.name: option.default for option in fields(ListOptions)
}
"""Default of each option, by its name in Python."""


def declarations() -> dict[str, Declaration]:
    """Return the declaration of each option, by its name in Python."""
    return {
        option.name: option.metadata["declaration"] for option in fields(ListOptions)
    }
