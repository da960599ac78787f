"""`recsys lsi index`: index documents."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recsys.cli.errors import CommandError
from recsys.cli.lsi.inputs import (
    DocumentOptions,
    document_options,
    open_documents,
    watched,
)
from recsys.cli.options import command, option, seed_option
from recsys.cli.progress import Activity, note
from recsys.wording import counted

if TYPE_CHECKING:
    from recsys.lsi import LSI

__all__ = ["index"]


class _Dimensions(click.ParamType[Any]):
    """A number of dimensions, or the name of a rule."""

    name = "dimensions"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if isinstance(value, int):
            return value
        return int(value) if value.isdecimal() else value


@command(
    "index",
    examples=[
        "recsys lsi index articles/ --out index",
        "recsys lsi index papers.jsonl --text-col abstract --out index -k 300",
        "zcat lines.txt.gz | recsys lsi index - --out index --force",
    ],
)
@click.argument("documents", type=click.Path(allow_dash=True))
@option(
    "--out",
    "-o",
    metavar="INDEX",
    required=True,
    type=click.Path(),
    help="Directory for the index.",
)
@option("--force", is_flag=True, help="Replace the index that is there.")
@option(
    "--dimensions",
    "-k",
    metavar="K|RULE",
    type=_Dimensions(),
    section="Model",
    show_default="a third of the documents, at most 200",
    help="Number of dimensions, or elbow, profile, energy, gavish-donoho, parallel, cv or mle.",
)
@option(
    "--weighting",
    type=click.Choice(["tfidf", "log-entropy", "count"]),
    default="tfidf",
    show_default=True,
    section="Model",
    help="Weights of the words.",
)
@option(
    "--min-df",
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    section="Model",
    help="Leave out words in fewer documents.",
)
@option(
    "--stop-words",
    type=click.Choice(["english"]),
    section="Model",
    help="Leave out the commonest words of a language.",
)
@seed_option("Model")
@document_options
def index(
    documents: str,
    out: str,
    force: bool,
    dimensions: int | str | None,
    weighting: str,
    min_df: int,
    stop_words: str | None,
    seed: int,
    reading: DocumentOptions,
) -> None:
    """Index documents and save the index.

    DOCUMENTS is a directory of text files, a CSV, TSV, JSON lines or Parquet file with a text
    column, or a file with one document per line (- for standard input), as it is or packed by gzip
    or zstd. Texts are read once, a thousand at a time, and not kept.
    """
    from recsys.lsi import LSI

    _check_destination(Path(out), force=force)
    found = open_documents(documents, reading)
    lsi = LSI(dimensions, weighting, min_df=min_df, stop_words=stop_words, random_state=seed)
    with Activity("Indexing") as activity:
        lsi.fit(watched(found, activity))
    lsi.save(out, overwrite=force)
    note(_summary(lsi, out))


def _summary(lsi: LSI, out: str) -> str:
    facts = lsi.training_
    empty = f" ({facts['empty_documents']:,} without words)" if facts["empty_documents"] else ""
    return (
        f"indexed {counted(facts['documents'], 'document')}{empty} and "
        f"{counted(facts['terms'], 'word')} in {counted(facts['dimensions'], 'dimension')} "
        f"({facts['dimensions_by']}), saved in {out}"
    )


def _check_destination(path: Path, *, force: bool) -> None:
    """Refuse before the work what would be refused after it."""
    from recsys.lsi.storing import INDEX
    from recsys.manifest import is_saved_model

    if path.exists() and not is_saved_model(path, INDEX):
        raise CommandError(f"{path} exists and is not a saved index; choose another --out.")
    if path.exists() and not force:
        raise CommandError(
            f"{path} is a saved index already; choose another --out, or replace it by --force."
        )
    if not Path(os.path.realpath(path)).parent.is_dir():
        raise CommandError(f"Cannot write {path}: there is no directory {path.parent}.")
