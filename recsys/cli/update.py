"""`recsys update`: add new ratings to a saved model."""

from __future__ import annotations

import time
from dataclasses import replace

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
@click.argument("model")
@click.argument("ratings")
@option("--out", "-o", metavar="MODEL2", help="Directory for the updated model.")
@option("--force", is_flag=True, help="Replace an existing model: MODEL, without --out.")
@reader_options()
def update(model: str, ratings: str, out: str | None, force: bool, reader: ReaderOptions) -> None:
    """Add new ratings to a model.

    The model is fitted again to its own ratings and the new ones together, with the same
    parameters; als starts from its factors and needs fewer iterations. Users and items may be new;
    a rating of a known pair replaces the old one. The new model is written to a temporary directory
    and moved into place when complete.
    """
    from recsys.cli.inputs import check_destination, is_model, load_model, load_ratings
    from recsys.cli.progress import Activity, note

    if out is None and not force:
        raise click.UsageError("Add --out MODEL2 for a new model, or --force to replace MODEL.")
    target = out or model
    check_destination(target, is_model, force=force)
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
