"""`recsys lsi add`: add documents to an index."""

from __future__ import annotations

import click

from recsys.cli.lsi.inputs import (
    DocumentOptions,
    document_options,
    open_documents,
    open_index,
    watched,
)
from recsys.cli.options import command, option
from recsys.cli.progress import Activity, note
from recsys.wording import counted

__all__ = ["add"]


@command(
    "add",
    examples=[
        "recsys lsi add index more.jsonl",
        "recsys lsi add index more.jsonl --method fold-in --out larger",
    ],
)
@click.argument("index", type=click.Path())
@click.argument("documents", type=click.Path(allow_dash=True))
@option(
    "--method",
    type=click.Choice(["update", "fold-in"]),
    default="update",
    show_default=True,
    help="Update the decomposition, or leave it as it is, which is quicker.",
)
@option(
    "--out", "-o", metavar="INDEX", type=click.Path(), help="Save the larger index here instead."
)
@option("--force", is_flag=True, help="Replace the index at --out.")
@document_options
def add(
    index: str,
    documents: str,
    method: str,
    out: str | None,
    force: bool,
    reading: DocumentOptions,
) -> None:
    """Add documents to an index.

    Documents without ids of their own are numbered after those of the index. The words of the index
    and their weights stay as they are; new words are left out and counted.
    The loss of orthogonality, 0 for a fresh index, tells when to index everything afresh.
    """
    lsi = open_index(index)
    ids = lsi.documents_.ids.values
    last = ids.max() if ids.dtype.is_integer() else None
    found = open_documents(documents, reading, after=last if isinstance(last, int) else 0)
    with Activity("Adding") as activity:
        added = lsi.add_documents(watched(found, activity), method=method)
    target = out or index
    lsi.save(target, overwrite=force or out is None)
    note(
        f"added {counted(added.n_documents, 'document')} by {added.method}, saved in {target}; "
        f"{counted(added.unknown_words, 'unknown word')} left out; {added.outside:.1%} of the "
        f"squared weights were outside the index's dimensions; loss of orthogonality "
        f"{added.orthogonality_loss:.2g}"
    )
