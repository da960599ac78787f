"""Options of reading ratings, for Python, the command and saved models.

An option is declared once, here, and all of them are passed on whole. The keywords of
`recsys.read_ratings` and `Ratings.from_frame`, the options of the command and what a saved model
keeps for its updates are made from the declarations. `Request` carries them to the readers.
"""

# Without the import of annotations, so that the declarations are objects, not texts.
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypedDict, get_args

from recsys.data.kinds import Policy
from recsys.declarations import Declaration
from recsys.errors import check_flags
from recsys.messages import close_matches, did_you_mean

if TYPE_CHECKING:
    from os import PathLike

    import polars as pl

    from recsys.data.frames import FrameLike
    from recsys.data.times import Moment

EventWeights = Mapping[str, float]
Column = str | int | None


class Table(Protocol):
    """Table of items or users, such as `Features`."""

    @property
    def kind(self) -> str:
        """Kind of the rows, "item" or "user"."""

    @property
    def frame(self) -> "pl.DataFrame":
        """The rows."""


def _column(
    content: str,
    flag: str,
    details: str = "",
) -> Declaration:
    return Declaration(
        "text",
        f"Column of the {content}.",
        metavar="NAME",
        flag=flag,
        details=details,
        is_saved=True,
    )


class FrameOptions(TypedDict, total=False):
    """Options of `Ratings.from_frame`."""

    user: Annotated[
        Column,
        _column(
            "users",
            "user_col",
            "Ids are integers or strings. By default, this and the other columns are found by "
            "their usual names (user_id, movieId, stars, time, ...); see `Ratings.source`. In a "
            "file without header, columns are numbers from 1.",
        ),
    ]
    item: Annotated[Column, _column("items", "item_col")]
    rating: Annotated[
        Column,
        _column(
            "ratings",
            "rating_col",
            "Without one the rows are implicit feedback. In a Boolean column, true rows are "
            "interactions and false rows are left out. So are counts: each pair with a positive "
            "count is an interaction. `recsys.data.feedback.judge` tells counts from grades by the "
            "name of the column and the bulk of the values; `scale` and `weight` decide it.",
        ),
    ]
    timestamp: Annotated[
        Column,
        _column(
            "timestamps",
            "timestamp_col",
            "They may have any form that `recsys.data.times.unix_seconds` reads.",
        ),
    ]
    duplicates: Annotated[
        Policy | None,
        Declaration(
            "choice",
            "Rating to keep for a repeated user-item pair; last and first by timestamp, if known.",
            choices=get_args(Policy),
            shown_default="last; sum of weights",
            details="Ties are resolved by the order of the rows.",
            is_saved=True,
        ),
    ]
    implicit: Annotated[
        bool,
        Declaration(
            "flag",
            "Ignore the rating column and treat every row as implicit feedback.",
        ),
    ]
    weight: Annotated[
        Column,
        Declaration(
            "text",
            "Column of quantities, which weight interactions; a negative one is a return.",
            metavar="NAME",
            flag="weight_col",
            details="Pairs whose weights add up to 0 or less are left out. Weights are used only "
            "if they are named, or the file is a part of a split of weighted interactions.",
            is_saved=True,
        ),
    ]
    scale: Annotated[
        tuple[float, float] | None,
        Declaration(
            "scale",
            "Lowest and highest grade, such as 1,5; by default those of the data.",
            metavar="LOW,HIGH",
            details="Other ratings are bad rows.",
            is_saved=True,
        ),
    ]
    event: Annotated[
        Column,
        _column(
            "kinds of events",
            "event_col",
            "Kinds of a named column are kept without weights, too; then all count the same.",
        ),
    ]
    event_id: Annotated[
        Column,
        _column(
            "ids of events",
            "event_id_col",
            "Of several rows with the same id, the first one counts. Rows without an id are known "
            "by their user, item, time, kind and value.",
        ),
    ]
    event_weights: Annotated[
        EventWeights | None,
        Declaration(
            "weights",
            "Weights by kind of event, such as purchase=5,dislike=-1; 0 drops a kind, * is any "
            "other.",
            metavar="KIND=W,...",
            flag="event_weight",
            details="In Python a mapping. The rating column is not read. A pair with weights of 0 "
            "or less in all is disliked if one of its kinds has a negative weight: its item is not "
            "recommended to the user, and models fit a score of 0 if they can.",
            is_saved=True,
        ),
    ]
    impressions: Annotated[
        str | None,
        Declaration(
            "text",
            "Kind of event that only shows an item: without another one, a weak dislike.",
            metavar="KIND",
            details="Other kinds weigh 1 unless they have weights. The item may be recommended.",
            is_saved=True,
        ),
    ]
    half_life: Annotated[
        str | float | None,
        Declaration(
            "text",
            "Age at which a weight is halved, such as 30d (s, h, d, w, y).",
            metavar="TIME",
            details="A number is of seconds. Ages count from the last interaction.",
            is_saved=True,
        ),
    ]
    since: Annotated[
        "Moment | None",
        Declaration("text", "First date or time to use.", metavar="DATE"),
    ]
    until: Annotated[
        "Moment | None",
        Declaration("text", "Date or time before which to use rows.", metavar="DATE"),
    ]
    time_format: Annotated[
        str | None,
        Declaration(
            "text",
            "Format of the timestamps: s, ms, us, ns, min, h, d, excel, ticks, filetime, or a "
            "pattern such as %m/%d/%Y.",
            metavar="FORMAT",
            details="Units are of numbers: min, h and d are minutes, hours and days since 1970, "
            "ticks are of .NET and filetime of Windows. By default the size of each number tells "
            "it; two units are an error.",
            is_saved=True,
        ),
    ]
    as_of: Annotated[
        "Moment | None",
        Declaration(
            "text",
            "Present time, by default of the clock; later rows are left out.",
            metavar="DATE",
            details="Rows up to a day later count. Ages count from the newest of them. It is kept "
            "for a repetition of the fit.",
        ),
    ]
    missing: Annotated[
        float | None,
        Declaration(
            "number",
            "Value that marks a missing rating, such as 0 or 99.",
            metavar="N",
            is_saved=True,
        ),
    ]
    bad_rows: Annotated[
        str | float | None,
        Declaration(
            "text",
            "Treatment of bad rows: an error, or skipping up to 1% (skip) or N% of the rows.",
            metavar="error|skip|N%",
            shown_default="error",
            details="A row is bad if an id is missing, or a rating or time cannot be read. In "
            "Python the share may also be a float. `Ratings.source.skipped` describes the first "
            "bad rows.",
        ),
    ]


class ReadOptions(FrameOptions, total=False):
    """Options of `recsys.read_ratings`."""

    sep: Annotated[
        str | None,
        Declaration(
            "text",
            "Separator of the columns.",
            metavar="TEXT",
            details='One character, "tab" or "::".',
        ),
    ]
    encoding: Annotated[
        str | None,
        Declaration(
            "text",
            "Text encoding.",
            metavar="NAME",
            details="UTF-8 if not given.",
            is_saved=True,
        ),
    ]
    table: Annotated[
        str | None,
        Declaration(
            "text",
            "Table of a database, or sheet of a workbook.",
            metavar="NAME",
            details="Only the needed columns are read.",
            is_saved=True,
        ),
    ]
    query: Annotated[
        str | None,
        Declaration("place", "SQL query to read from a database.", metavar="SQL"),
    ]
    item_table: Annotated[
        "str | PathLike[str] | FrameLike | Table | None",
        Declaration(
            "place",
            "Table of items with titles, prices, genres, ...",
            metavar="TABLE",
            details="A path, a frame or Features; for ratings in a database, also the name of "
            "another table in it. The column of ids has its usual name or the same name as in the "
            "ratings.",
            is_saved=True,
        ),
    ]
    user_table: Annotated[
        "str | PathLike[str] | FrameLike | Table | None",
        Declaration(
            "place",
            "Table of users with ages, countries, ...",
            metavar="TABLE",
            is_saved=True,
        ),
    ]


def declarations(options: type = ReadOptions) -> dict[str, Declaration]:
    """Return the declaration of each option, by its name in Python."""
    # A TypedDict has the annotations of its bases, too.
    hints: dict[str, Any] = options.__annotations__
    return {name: hint.__metadata__[0] for name, hint in hints.items()}


# Each option is described once, for Python, the command and its reference.
for _options in (FrameOptions, ReadOptions):
    _entries = [
        f"{name}\n    {entry.help} {entry.details}".rstrip()
        for name, entry in declarations(_options).items()
    ]
    _options.__doc__ = "\n".join([f"{_options.__doc__}\n", *_entries])

OF_FILES = declarations().keys() - declarations(FrameOptions).keys()
"""Options that frames do not have."""
ROLES = ("user", "item", "rating", "timestamp", "event", "weight", "event_id")
"""Roles that columns may have."""
SAVED = (
    *(name for name, entry in declarations().items() if entry.is_saved),
    "feedback",
    "common",
)
"""Options that are saved with a model for its updates, and decisions of the reading."""


def set_options(
    options: Mapping[str, Any], allowed: type = ReadOptions
) -> dict[str, Any]:
    """Return the options that are set.

    Raises
    ------
    TypeError
        If an option does not exist.
    DataError
        If a flag is neither True nor False.
    """
    names = declarations(allowed)
    for name in options:
        if name not in names:
            close = close_matches(name, names, 1)
            raise TypeError(
                f"There is no option {name!r} for reading.{did_you_mean(close)}"
            )
        if names[name].kind == "flag" and options[name] is not None:
            check_flags(**{name: options[name]})
    return {
        name: value
        for name, value in options.items()
        # Not "if value": 0 is a valid `missing`.
        if value is not None and value is not False
    }


def completed(options: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of reading, completed by earlier options that still apply."""
    superseded = set[str]()
    # Ratings are not weighted, and a named column counts.
    if "rating" in options:
        superseded = {"weight", "feedback"}
        if "event" not in options:
            superseded |= {"event_weights", "impressions"}
    if "weight" in options:
        superseded.add("feedback")
    remaining = {
        name: value
        for name, value in earlier.items()
        if name in SAVED and value is not None and name not in superseded
    }
    return {**remaining, **options}
