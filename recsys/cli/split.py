"""`recsys split`, and the options of splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recsys import evaluation  # which imports nothing yet
from recsys.cli import inputs
from recsys.cli import options as cli
from recsys.cli.output import note
from recsys.messages import counted, worded

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings
    from recsys.evaluation import Split
    from recsys.evaluation.splits import Repeats


SPLITS = {
    "time": ("time_split", "test_fraction", False),
    "random": ("random_split", "test_fraction", True),
    "per-user": ("per_user_split", "test_fraction", True),
    "leave-last": ("leave_last_split", "last", True),
    "sessions": ("sessions_split", "test_fraction", False),
    "k-fold": ("k_fold", "folds", True),
    "users": ("held_out_users", "test_fraction", True),
    "items": ("held_out_items", "test_fraction", True),
    "users-cold": ("held_out_cold_users", "test_fraction", True),
}
"""By method: a function of `recsys.evaluation`, its option, and whether it is random."""

_DEFAULTS = {"test_fraction": 0.1, "last": 1, "folds": 5}


def _number_or_folder(value: Any) -> int | str:
    """Convert a number of folds, or the path of a folder of them."""
    text = str(value)
    if not text.lstrip("-").isdecimal() or Path(text).is_dir():
        return text
    return click.IntRange(min=2).convert(value, None, None)


@dataclass(frozen=True)
class SplitOptions:
    """Options for splitting ratings; None selects a default."""

    method: str | None = cli.declared(
        "METHOD",
        "Ratings to hold out: time (the newest), random, per-user, leave-last, k-fold; users "
        "(except a history of each); or all ratings: sessions (the last), items, users-cold.",
        type=click.Choice(list(SPLITS)),
        show_default="time if there are timestamps",
    )
    test_fraction: float | None = cli.declared(
        "FRACTION",
        "Share of the ratings (of users or items, if these are held out) to hold out.",
        type=cli.INNER_SHARE,
        show_default=str(_DEFAULTS["test_fraction"]),
    )
    last: int | None = cli.declared(
        "K",
        "Number of ratings of each user to test: the last by leave-last, the next by time.",
        type=click.IntRange(min=1),
        show_default=str(_DEFAULTS["last"]),
    )
    folds: int | str | None = cli.declared(
        "K",
        "Number of folds for k-fold; or for `evaluate`, a folder of pairs of files.",
        type=_number_or_folder,
        show_default=str(_DEFAULTS["folds"]),
    )
    cuts: int | None = cli.declared(
        "K",
        "Number of cuts in time: models are fitted at each and tested until the next "
        "(time; half of the ratings, or --test-fraction, are tested).",
        type=click.IntRange(min=2),
    )
    repeats: Repeats | None = cli.declared(
        "",
        "Test pairs that the training part (or with positions, the history) has, too: leave "
        "them out or test them.",
        type=click.Choice(["drop", "keep"]),
        show_default="drop",
    )

    @property
    def given(self) -> list[str]:
        """Names of the options on the command line, except --repeats."""
        typed = cli.given_in(self, typed=True)
        return [name for name in typed if name != "--repeats"]

    def check(self) -> None:
        """Check that all options apply to the method.

        Raises
        ------
        UsageError
            If one does not.
        """
        if isinstance(self.folds, str):
            raise click.UsageError(
                f"--folds {self.folds} is for `recsys evaluate`; k-fold takes a number."
            )
        for name in (*_DEFAULTS, "cuts"):
            methods = [
                method for method, (_, option, _) in SPLITS.items() if option == name
            ]
            if name == "last":
                methods = ["leave-last", "time"]
            elif name == "cuts":
                methods = ["time"]
            # Without a method, the split is by time or at random: both take a fraction.
            by_default = self.method is None and name == "test_fraction"
            fits = self.method in methods or by_default
            if getattr(self, name) is not None and not fits and cli.is_typed(name):
                flag = f"--{name.replace('_', '-')}"
                raise click.UsageError(
                    f"{flag} applies to --method {' or '.join(methods)}."
                )
        if self.cuts is not None and self.last is not None and cli.is_typed("last"):
            raise click.UsageError("--last does not apply to --cuts.")


def split_options(details: str = "") -> cli.Decorator:
    """Add the options of splits as `splitting`; with `details`, the help only names minor ones."""
    options = cli.declared_in(
        SplitOptions, "Splitting", details, ("last", "folds", "cuts", "repeats")
    )
    return cli.bundle("splitting", SplitOptions, *options)


def make_splits(
    ratings: Ratings,
    splitting: SplitOptions,
    seed: int,
) -> Split | Sequence[Split]:
    """Split ratings by the method, by default by time if they have timestamps."""
    from recsys.evaluation.splits import OF_CUTS, default_split

    splitting.check()
    if splitting.method is None:
        fraction = splitting.test_fraction or _DEFAULTS["test_fraction"]
        return default_split(
            ratings, fraction, seed, repeats=splitting.repeats or "drop"
        )
    if splitting.cuts is not None and splitting.method == "time":
        return evaluation.time_cuts(
            ratings,
            splitting.cuts,
            splitting.test_fraction or OF_CUTS,
            repeats=splitting.repeats or "drop",
        )
    function, option, is_random = SPLITS[splitting.method]
    size = getattr(splitting, option) or _DEFAULTS[option]
    options: dict[str, Any] = {"random_state": seed} if is_random else {}
    if splitting.method == "time":
        options["k"] = splitting.last
    # Only these cut between events of one pair; others hold out whole pairs.
    if splitting.method in ("time", "leave-last", "sessions"):
        options["repeats"] = splitting.repeats or "drop"
    parts: Split | Sequence[Split] = getattr(evaluation, function)(
        ratings, size, **options
    )
    return parts


def load_splits(
    sources: Sequence[str],
    pair: tuple[str | None, str | None],
    splitting: SplitOptions,
    seed: int,
    reader: cli.ReaderOptions,
    folds: Sequence[tuple[str, str]] = (),
) -> Split | Sequence[Split]:
    """Read the splits to evaluate on: ratings to split, the folder of a split, or pairs of files.

    Raises
    ------
    UsageError
        If the sources contradict each other, or the options of a split do not apply.
    """
    from recsys.evaluation.split_files import read_pair
    from recsys.saving.splits import is_split

    read = partial(_read, reader)
    train, test = pair
    repeats = splitting.repeats or "drop"
    if folds or isinstance(splitting.folds, str):
        others = [*sources, *(name for name in pair if name is not None)]
        others += [name for name in splitting.given if name != "--folds" or folds]
        if others:
            raise click.UsageError(f"{others[0]} does not apply to folds of files.")
        pairs = folds or _pairs_in(str(splitting.folds))
        return [read_pair(a, b, read, repeats=repeats) for a, b in pairs]
    if bool(sources) == (train is not None) or (train is None) != (test is None):
        raise click.UsageError(
            "Give either RATINGS, or both --train FILE and --test FILE, or folds (--fold)."
        )
    if sources and (len(sources) > 1 or sources[0] == "-" or not is_split(sources[0])):
        return make_splits(inputs.load_ratings(sources, reader), splitting, seed)
    loaded: Split | Sequence[Split]
    if sources:
        loaded = _saved_split(sources[0], splitting, read)
    elif splitting.given:
        raise click.UsageError(
            f"{splitting.given[0]} applies to RATINGS, not to --train."
        )
    else:
        loaded = read_pair(str(train), str(test), read, repeats=repeats)
    # Files that were split elsewhere may let models learn from the future.
    if isinstance(loaded, evaluation.Split) and loaded.method == "given":
        _note_newer(loaded)
        note_doubts(loaded.train, loaded.test)
    return loaded


def _read(
    reader: cli.ReaderOptions,
    path: str | Path,
    *,
    defaults: Mapping[str, Any] | None = None,
) -> Ratings:
    return inputs.load_ratings(str(path), reader, defaults)


def _pairs_in(folder: str) -> list[tuple[Path, Path]]:
    """Return the folds in a folder, and report their files."""
    from recsys.evaluation.split_files import fold_pairs

    pairs = fold_pairs(folder)
    for number, (train, test) in enumerate(pairs, 1):
        note(f"fold {number}: {train.name} and {test.name}")
    return pairs


def _saved_split(
    source: str,
    splitting: SplitOptions,
    read: Callable[..., Ratings],
) -> Split | list[Split]:
    """Read the split in a folder, which takes no options of splits."""
    from recsys.evaluation.split_files import read_split
    from recsys.saving.splits import split_files

    if splitting.given:
        files = split_files(source)
        names = "folds"
        if files is not None:
            names = f"{files['train'].name} and {files['test'].name}"
        flags = " and ".join(splitting.given)
        raise click.UsageError(
            f"{source} is split already, into {names}; leave out {flags}."
        )
    note(f"{source} is a split; its files are used as they are")
    return read_split(source, read)


def _note_newer(split: Split) -> None:
    """Report training ratings that are newer than the oldest test rating."""
    times = split.train.timestamps
    tested = split.test.timestamps
    if times is None or tested is None or not len(tested):
        return
    newer = int((times > tested.min()).sum())
    if newer:
        are = "is" if newer == 1 else "are"
        sentence = (
            f"{counted(newer, 'training rating')} {are} newer than the oldest test rating, "
            "so this is not a split by time"
        )
        note(worded(sentence, implicit=split.test.implicit))


def note_doubts(train: Ratings, test: Ratings) -> None:
    """Say if test ratings have the ids or the scale of the training ratings in another form."""
    import numpy as np

    from recsys.changes import other_unit
    from recsys.data.new_ids import doubtful_ids

    doubt = doubtful_ids(train, test.users, test.items)
    if doubt is not None:
        note(doubt)
    unit = other_unit(test, train)
    if unit is not None:
        note(unit)
    if train.implicit or test.implicit or not (train.nnz and test.nnz):
        return
    low, high = train.grade_range()
    median = float(np.median(test.values))
    if not low <= median <= high:
        note(
            f"the test ratings are of another scale: their median is {median:g}, and the "
            f"training ratings are from {low:g} to {high:g}"
        )


@cli.command(
    "split",
    examples=[
        "recsys split ratings.csv --out parts",
        "recsys split ratings.csv --method leave-last --last 2 --out parts",
        "recsys evaluate --train parts/train.csv --test parts/test.csv",
    ],
)
@cli.ratings_argument
@split_options()
@cli.reader_options()
def split(
    ratings: tuple[str, ...],
    splitting: SplitOptions,
    reader: cli.ReaderOptions,
    out: str = cli.declared(
        "DIR", "Directory for the files.", "--out", "-o", required=True
    ),
    force: bool = cli.declared("", "Replace an existing split.", is_flag=True),
    form: str = cli.declared(
        "",
        "Format of the files.",
        "--format",
        type=click.Choice(["csv", "parquet"]),
        default="csv",
    ),
    keep_col: tuple[str, ...] = cli.declared(
        "NAME",
        "Column of users to save though it cannot be a feature; repeatable.",
        multiple=True,
        commas=True,
    ),
    seed: int = cli.seed("Splitting"),
) -> None:
    """Split ratings into training and test files.

    DIR contains train.csv and test.csv; history.csv, with the other ratings of the users that
    --method users holds out; items.parquet and users.parquet, if there are tables of items or users
    (of users, the columns that can be features); and split.json, with the method, a fingerprint,
    counts, and how the files are read: keep it next to them. With --method k-fold, it contains one
    directory for each fold. DIR is written to a temporary directory and moved into place when
    complete. To evaluate models on it, run `recsys evaluate DIR`.
    """
    from recsys.saving.splits import check_split_target, save_split
    from recsys.user_columns import check_columns, useful_columns

    splitting.check()
    # Before the reading, which may take minutes.
    check_split_target(out, overwrite=force)
    loaded = inputs.load_ratings(ratings, reader)
    check_columns(loaded, keep_col)
    features = reader.feature_names
    columns = useful_columns(loaded, features, keep_col)
    if columns is not None:
        note(str(columns))
    parts = make_splits(loaded, splitting, seed)
    save_split(
        parts,
        out,
        form="parquet" if form == "parquet" else "csv",
        overwrite=force,
        features=features,
        keep_columns=keep_col,
    )
    # Folds differ by one rating at most, so the first one stands for all.
    first = parts if isinstance(parts, evaluation.Split) else parts[0]
    sizes = (
        f"{first.train.n_ratings:,} for training, {first.test.n_ratings:,} for testing"
    )
    if first.history is not None:
        sizes += f", {first.history.n_ratings:,} as history of the test users"
    if first.new_ratings:
        new = (
            f"{counted(first.new_users, 'user')} and {counted(first.new_items, 'item')}"
        )
        sizes += f" ({first.new_ratings:,} of them of {new} without training ratings)"
    if first.n_known:
        sizes += f", {counted(first.n_known, 'test pair')} left out that the training part has"
    note(f"held out: {first.description}; {sizes}")
    note(f"saved in {out}")
