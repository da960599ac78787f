"""recsys split: training and test files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recsys.cli.options import ReaderOptions, bundle, command, option, reader_options, seed_option
from recsys.cli.progress import note
from recsys.messages import counted

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings
    from recsys.evaluation import Split

__all__ = [
    "METHODS",
    "SplitOptions",
    "check_split_options",
    "load_splits",
    "make_splits",
    "split",
    "split_options",
]

METHODS = ("time", "random", "per-user", "leave-last", "k-fold", "users")
_FRACTION = 0.1
_LAST = 1
_FOLDS = 5
_APPLIES = {
    "test_fraction": ("time", "random", "per-user", "users"),
    "last": ("leave-last",),
    "folds": ("k-fold",),
}


@dataclass(frozen=True)
class SplitOptions:
    """How ratings are split; None means that the data decide, or the default."""

    method: str | None = None
    test_fraction: float | None = None
    last: int | None = None
    folds: int | None = None

    @property
    def asked(self) -> list[str]:
        """The options that were set, as on the command line."""
        values = {"method": self.method, **{name: getattr(self, name) for name in _APPLIES}}
        names = (name for name, value in values.items() if value is not None)
        return [f"--{name.replace('_', '-')}" for name in names]


def split_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options on how ratings are split; the verb is given `splitting`."""
    section = "Splitting"
    options = [
        option(
            "--method",
            type=click.Choice(METHODS),
            show_default="time where there are times, else random",
            section=section,
            help="What is held out: the newest ratings; a random part of all, or of each user's; "
            "each user's last ones; each of several folds in turn; or users, folded in from a "
            "part of their ratings.",
        ),
        option(
            "--test-fraction",
            metavar="FRACTION",
            type=click.FloatRange(0, 1, min_open=True, max_open=True),
            show_default=str(_FRACTION),
            section=section,
            help="Share of the ratings (users: of the users) that is held out.",
        ),
        option(
            "--last",
            metavar="K",
            type=click.IntRange(min=1),
            show_default=str(_LAST),
            section=section,
            help="How many ratings of each user leave-last holds out.",
        ),
        option(
            "--folds",
            metavar="K",
            type=click.IntRange(min=2),
            show_default=str(_FOLDS),
            section=section,
            help="Number of folds.",
        ),
    ]
    return bundle(function, options, SplitOptions, "splitting")


def check_split_options(splitting: SplitOptions) -> None:
    """Refuse options of another method than the one that was named."""
    for name, methods in _APPLIES.items():
        if getattr(splitting, name) is None or splitting.method in methods:
            continue
        if splitting.method is None and name == "test_fraction":
            continue
        flag = f"--{name.replace('_', '-')}"
        raise click.UsageError(f"{flag} applies to --method {' or '.join(methods)}.")


def make_splits(ratings: Ratings, splitting: SplitOptions, seed: int) -> Split | Sequence[Split]:
    """Split ratings as asked; without a method, by time where they have times."""
    from recsys import evaluation
    from recsys.evaluation.splits import default_split

    check_split_options(splitting)
    fraction = splitting.test_fraction or _FRACTION
    method = splitting.method
    if method is None:
        return default_split(ratings, fraction, seed)
    if method == "time":
        return evaluation.time_split(ratings, fraction)
    if method == "per-user":
        return evaluation.per_user_split(ratings, fraction, seed)
    if method == "leave-last":
        return evaluation.leave_last_split(ratings, splitting.last or _LAST)
    if method == "k-fold":
        return evaluation.k_fold(ratings, splitting.folds or _FOLDS, seed)
    if method == "users":
        return evaluation.held_out_users(ratings, fraction, random_state=seed)
    return evaluation.random_split(ratings, fraction, seed)


def load_splits(
    source: str | None,
    pair: tuple[str | None, str | None],
    splitting: SplitOptions,
    seed: int,
    reader: ReaderOptions,
) -> Split | Sequence[Split]:
    """Read what is to be evaluated on: RATINGS that are split, a folder with a split, or a pair."""
    from recsys.cli.inputs import load_ratings, require_path
    from recsys.evaluation import Split
    from recsys.evaluation.storing import is_split, read_pair, read_split

    def read(path: Path) -> Ratings:
        return load_ratings(str(path), reader)

    _check_choice(source, pair, splitting)
    if source is None:
        train, test = (str(path) for path in pair)
        for path in (train, test):
            require_path(path)
        return _dated(read_pair(train, test, read))
    if source == "-" or not is_split(source):
        return make_splits(read(Path(source)), splitting, seed)
    if splitting.asked:
        raise click.UsageError(
            f"{source} is split already, into {' and '.join(_names(source))}; leave out "
            f"{' and '.join(splitting.asked)}."
        )
    note(f"{source} is a split: its parts are taken as they are")
    found = read_split(source, read)
    return _dated(found) if isinstance(found, Split) else found


def _dated(split: Split) -> Split:
    """Say of parts that came from elsewhere if something is learnt that is newer than a test."""
    train, test = split.train.timestamps, split.test.timestamps
    if split.method == "given" and train is not None and test is not None and len(test):
        newer = int((train > test.min()).sum())
        if newer:
            verb = "is" if newer == 1 else "are"
            note(
                f"{counted(newer, 'training rating')} {verb} newer than the oldest test rating, so "
                "this is no split by time"
            )
    return split


def _names(source: str) -> list[str]:
    from recsys.evaluation.storing import split_files

    files = split_files(source)
    return ["folds"] if files is None else [files["train"].name, files["test"].name]


def _check_choice(
    source: str | None, pair: tuple[str | None, str | None], splitting: SplitOptions
) -> None:
    given = sum(path is not None for path in pair)
    if (source is not None) + (given > 0) != 1 or given == 1:
        raise click.UsageError("Give either RATINGS, or both --train FILE and --test FILE.")
    if given and splitting.asked:
        raise click.UsageError(
            f"{splitting.asked[0]} applies to RATINGS, not to --train and --test."
        )


@command(
    "split",
    examples=[
        "recsys split ratings.csv --out parts",
        "recsys split ratings.csv --method leave-last --last 2 --out parts",
        "recsys evaluate --train parts/train.csv --test parts/test.csv",
    ],
)
@click.argument("ratings", type=click.Path(allow_dash=True))
@option(
    "--out",
    "-o",
    metavar="DIR",
    required=True,
    type=click.Path(),
    help="Folder for the parts.",
)
@option("--force", is_flag=True, help="Replace the split that is there.")
@option(
    "--format",
    "form",
    type=click.Choice(["csv", "parquet"]),
    default="csv",
    show_default=True,
    help="Format of the parts.",
)
@split_options
@seed_option("Splitting")
@reader_options
def split(
    ratings: str,
    out: str,
    force: bool,
    form: str,
    splitting: SplitOptions,
    seed: int,
    reader: ReaderOptions,
) -> None:
    """Split ratings into files to learn from and to test on.

    DIR gets train.csv and test.csv (and history.csv: what else the users have rated that --method
    users holds out), and split.json: how they were made, a fingerprint, and counts. With --method
    k-fold it gets a folder for each fold. The folder is written beside its place and renamed when
    it is complete. `recsys evaluate DIR` takes it.
    """
    from recsys.cli.inputs import load_ratings
    from recsys.cli.progress import note
    from recsys.evaluation.storing import check_target, save_split

    check_split_options(splitting)
    check_target(Path(os.path.realpath(out)), overwrite=force)
    parts = make_splits(load_ratings(ratings, reader), splitting, seed)
    save_split(parts, out, form="parquet" if form == "parquet" else "csv", overwrite=force)
    note(_summary(parts))
    note(f"saved in {out}")


def _summary(parts: Split | Sequence[Split]) -> str:
    from recsys.evaluation import Split

    first = parts if isinstance(parts, Split) else parts[0]
    sizes = f"{first.train.n_ratings:,} to learn from, {first.test.n_ratings:,} to test on"
    if first.history is not None:
        sizes += f", {first.history.n_ratings:,} to fold test users in from"
    if first.new_ratings:
        sizes += (
            f" ({first.new_ratings:,} of them of {counted(first.new_users, 'user')} and "
            f"{counted(first.new_items, 'item')} without training ratings)"
        )
    return f"held out: {first.description}; {sizes}"
