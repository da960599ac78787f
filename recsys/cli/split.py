"""`recsys split`: ratings in a training and a test part, as files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recsys.cli.options import ReaderOptions, command, option, reader_options, seed_option
from recsys.cli.splits import SplitOptions, check_split_options, make_splits, split_options
from recsys.wording import counted

if TYPE_CHECKING:
    from recsys.evaluation import Split

__all__ = ["split"]


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
