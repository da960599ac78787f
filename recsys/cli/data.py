"""`recsys data`: look into ratings files, and get the sample."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recsys.atomic import unfinished_directory
from recsys.cli.errors import CommandError
from recsys.cli.group import Group
from recsys.cli.options import (
    ReaderOptions,
    command,
    common_options,
    option,
    output_options,
    reader_options,
)
from recsys.cli.output import Output
from recsys.cli.progress import note

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from recsys.data.ratings import Ratings

__all__ = ["data"]

_QUANTILES = {
    "minimum": 0.0,
    "lower quarter": 0.25,
    "median": 0.5,
    "upper quarter": 0.75,
    "maximum": 1.0,
}
_TOP = 10
_VALUES = 20


@click.group(
    "data",
    cls=Group,
    examples=[
        "recsys data sample",
        "recsys data inspect ratings.csv",
    ],
)
@common_options
def data() -> None:
    """Look into data files, and get sample data."""


@command(
    "inspect",
    examples=[
        "recsys data inspect ratings.csv",
        'recsys data inspect ratings.dat --sep "::" --json',
    ],
)
@click.argument("ratings", type=click.Path(allow_dash=True))
@output_options
@reader_options
def inspect(ratings: str, output: Output, reader: ReaderOptions) -> None:
    """Show what a ratings file holds and how it is read.

    Counts, dates, the distribution of the ratings, how many of them users and items have, and the
    items rated most.
    """
    from recsys.cli.inputs import read_path
    from recsys.cli.output import write_facts

    found = read_path(ratings, reader)
    note(str(found.source))
    facts = describe(found)
    document = {"command": "data inspect", "read_as": str(found.source), **facts}
    write_facts(facts, output, document)


@command(
    "sample",
    examples=[
        "recsys data sample",
        "recsys data sample --out films",
    ],
)
@option(
    "--out",
    metavar="DIR",
    type=click.Path(),
    default="recsys-sample",
    show_default=True,
    help="Directory for the files.",
)
@option("--force", is_flag=True, help="Replace the sample files that are there.")
def sample(out: str, force: bool) -> None:
    """Copy the sample data to a directory.

    Real films with synthetic ratings; a README beside them says how they were made.
    """
    from recsys.data import sample_path

    target = Path(out)
    if target.exists() and not force:
        raise CommandError(f"{out} exists already; choose another --out, or replace it by --force.")
    if target.is_file():
        raise CommandError(f"{out} is a file; --out needs the name of a directory.")
    files = [each for each in sorted(sample_path().iterdir()) if each.suffix in {".csv", ".md"}]
    try:
        _copy(files, Path(os.path.realpath(target)))
    except OSError as error:
        raise CommandError(f"The sample cannot be copied to {out}: {error.strerror}.") from error
    note(f"The sample data lie in {out}. Try:")
    user = _some_user(target / "ratings.csv")
    note(f"  recsys recommend {shlex.quote(out)} --user {user}")


data.add_command(inspect)
data.add_command(sample)


def describe(ratings: Ratings) -> dict[str, dict[str, Any]]:
    """Facts about ratings: counts, dates, values, activity, popularity."""
    import numpy as np

    per_user = np.diff(ratings.indptr)
    per_item = np.bincount(ratings.indices, minlength=ratings.n_items)
    facts = {
        "ratings": _counts(ratings),
        "values": {} if ratings.implicit else _values(ratings),
        "ratings per user": _quantiles(per_user),
        "ratings per item": _quantiles(per_item),
        "most rated items": _most_rated(ratings, per_item),
    }
    return {section: values for section, values in facts.items() if values}


def _counts(ratings: Ratings) -> dict[str, Any]:
    counts: dict[str, Any] = {
        "kind": "implicit" if ratings.implicit else "explicit",
        "users": ratings.n_users,
        "items": ratings.n_items,
        "ratings": ratings.n_ratings,
        "share filled": ratings.density,
        "duplicates": ratings.n_duplicates,
    }
    if ratings.timestamps is not None:
        counts["first"] = _date(int(ratings.timestamps.min()))
        counts["last"] = _date(int(ratings.timestamps.max()))
    return counts


def _date(seconds: int) -> str:
    from datetime import UTC, datetime, timedelta

    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).date().isoformat()
    except OverflowError:
        return f"{seconds} s after 1970"


def _values(ratings: Ratings) -> dict[str, Any]:
    """Mean and deviation, and the count of each value, or quantiles where there are many."""
    import numpy as np

    values = ratings.values
    facts: dict[str, Any] = {
        "mean": float(values.mean(dtype=np.float64)),
        "standard deviation": float(values.std(dtype=np.float64)),
    }
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) > _VALUES:
        return facts | _quantiles(values)
    return facts | {f"{value:g}": int(n) for value, n in zip(distinct, counts, strict=True)}


def _quantiles(values: npt.NDArray[Any]) -> dict[str, float]:
    import numpy as np

    found = np.quantile(values, list(_QUANTILES.values()))
    return {name: float(value) for name, value in zip(_QUANTILES, found, strict=True)}


def _most_rated(ratings: Ratings, per_item: npt.NDArray[np.int64]) -> dict[str, int]:
    import numpy as np

    best = np.argsort(-per_item, kind="stable")[:_TOP]
    names = ratings.items.take(best).cast(str).to_list()
    if ratings.titles is not None:
        titles = ratings.titles.gather(best).to_list()
        names = [f"{name} {title or ''}".strip() for name, title in zip(names, titles, strict=True)]
    return {name: int(n) for name, n in zip(names, per_item[best], strict=True)}


def _copy(files: list[Path], target: Path) -> None:
    """Copy files into `target`, each complete or not at all; a new directory likewise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with unfinished_directory(target) as beside:
        for each in files:
            shutil.copyfile(each, beside / each.name)
        if not target.exists():
            beside.rename(target)
            return
        for each in files:
            (beside / each.name).replace(target / each.name)


def _some_user(path: Path) -> str:
    """Return the user of the first rating, for an example that works."""
    with path.open(encoding="utf-8") as lines:
        next(lines)
        return next(lines).split(",")[0]
