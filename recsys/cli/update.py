"""`recsys update`: new ratings into a saved model."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import click

from recsys.cli.options import ReaderOptions, command, option, reader_options
from recsys.messages import counted

__all__ = ["update"]


@command(
    "update",
    examples=[
        "recsys update model new-ratings.csv --out model2",
        "recsys update model new-ratings.csv --force",
    ],
)
@click.argument("model", type=click.Path())
@click.argument("ratings", type=click.Path(allow_dash=True))
@option(
    "--out",
    "-o",
    metavar="MODEL2",
    type=click.Path(),
    help="Directory for the updated model.",
)
@option("--force", is_flag=True, help="Replace the model that is there: MODEL, without --out.")
@reader_options
def update(model: str, ratings: str, out: str | None, force: bool, reader: ReaderOptions) -> None:
    """Add new ratings to a model.

    The model is fitted again to its own ratings and those of RATINGS together, with the same
    parameters; als starts from what it knows and needs fewer sweeps. Users and items may be new; a
    rating of a pair that was rated before replaces the old one. The new model is written beside its
    place and renamed when it is complete.
    """
    from recsys.cli.fit import check_destination
    from recsys.cli.inputs import load_model, load_ratings
    from recsys.cli.progress import Activity, note

    if out is None and not force:
        raise click.UsageError("Say where the model goes: --out MODEL2, or --force in place.")
    target = out or model
    check_destination(Path(target), force=force)
    old = load_model(model)
    new = load_ratings(ratings, replace(reader, implicit=reader.implicit or old.ratings.implicit))
    start = time.perf_counter()
    with Activity(f"Updating {old.model.name}") as activity:
        updated = old.update(new, on_step=activity.step)
    seconds = time.perf_counter() - start
    updated.save(target, overwrite=force)
    replaced = old.ratings.n_ratings + new.n_ratings - updated.ratings.n_ratings
    note(f"{counted(new.n_ratings, 'new rating')}, {replaced:,} of them in place of old ones")
    fitted = f"updated {old.model.name} to {updated.ratings}"
    note(f"{fitted} in {seconds:.1f} s, saved in {target}")
