"""`recsys lsi query`: documents for a query, or for a file of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from recsys.cli.lsi.inputs import (
    DocumentOptions,
    document_options,
    open_documents,
    open_index,
)
from recsys.cli.options import command, n_option, option, output_options
from recsys.cli.output import Output
from recsys.cli.progress import note

if TYPE_CHECKING:
    import polars as pl

    from recsys.lsi import LSI, DocumentBatch

__all__ = ["query"]


@command(
    "query",
    examples=[
        'recsys lsi query index "heat transfer in slip flow"',
        'recsys lsi query index "heat transfer in slip flow" --explain 22',
        "recsys lsi query index --queries questions.txt -n 100 --output found.parquet",
    ],
)
@click.argument("index", type=click.Path())
@click.argument("text", required=False)
@option(
    "--queries",
    metavar="FILE",
    type=click.Path(allow_dash=True),
    help="A file of queries: one per line, or a table with ids and texts.",
)
@option("--explain", metavar="ID", help="Show which words made the match with this document.")
@n_option("documents for each query")
@output_options
@document_options
def query(
    index: str,
    text: str | None,
    queries: str | None,
    explain: str | None,
    n: int,
    output: Output,
    reading: DocumentOptions,
) -> None:
    """Find the documents most like a query.

    The score is the cosine of the query and the document; the columns are document, rank, score,
    and title and snippet where they are known. Queries from a file have a first column query: the
    line number, or the id where the file is a table with ids. Words that no document has are left
    out, and said.
    """
    if (text is None) == (queries is None):
        raise click.UsageError("Give one TEXT, in quotes, or --queries FILE.")
    lsi = open_index(index)
    if text is None:
        if explain is not None:
            raise click.UsageError("--explain takes one TEXT, not --queries.")
        output.write(_batches(lsi, str(queries), n, reading), command="lsi query", n=n)
    elif explain is not None:
        frame = lsi.explain(text, explain)
        score = float(frame["contribution"].sum())
        output.write(frame, command="lsi query", query=text, document=explain, score=score)
    else:
        output.write(lsi.query(text, n), command="lsi query", query=text, n=n)


def _batches(lsi: LSI, path: str, n: int, reading: DocumentOptions) -> Iterator[pl.DataFrame]:
    """Yield the results of a file of queries; of some thousand, not all need have any."""
    from recsys.lsi.queries import NothingToRankError

    documents = open_documents(path, reading)
    answered, failure = 0, None
    for number, batch in enumerate(documents):
        if number == 0:
            note(documents.decision.replace("document", "query"))
        try:
            yield lsi.query(batch.texts, n, labels=batch.ids)
            answered += 1
        except NothingToRankError as error:
            failure = error
            note(f"{_lines(batch)}: {error}")
    if failure is not None and not answered:
        raise failure


def _lines(batch: DocumentBatch) -> str:
    first, last = batch.ids[0], batch.ids[-1]
    return f"query {first}" if first == last else f"queries {first} to {last}"
