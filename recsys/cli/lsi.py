"""recsys lsi: latent semantic indexing of texts."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recsys.cli.errors import CommandError
from recsys.cli.group import Group, Verb
from recsys.cli.options import (
    command,
    common_options,
    n_option,
    option,
    output_options,
    seed_option,
)
from recsys.cli.output import Output
from recsys.cli.progress import Activity, note
from recsys.cli.scree import check_plot, draw, spectrum_frame, with_bars
from recsys.messages import counted

if TYPE_CHECKING:
    import polars as pl

    from recsys.lsi import LSI, DocumentBatch, Documents

__all__ = [
    "DocumentOptions",
    "add",
    "document_options",
    "index",
    "info",
    "lsi",
    "open_documents",
    "open_index",
    "query",
    "scree",
    "similar",
    "terms",
    "watched",
]

VERBS = {
    "index": Verb("recsys.cli.lsi:index", "Index documents and save the index."),
    "query": Verb("recsys.cli.lsi:query", "Find the documents most like a query."),
    "terms": Verb("recsys.cli.lsi:terms", "List the words most like a word."),
    "similar": Verb("recsys.cli.lsi:similar", "List the documents most like one."),
    "add": Verb("recsys.cli.lsi:add", "Add documents to an index."),
    "scree": Verb("recsys.cli.lsi:scree", "Show how fast its singular values fall."),
    "info": Verb("recsys.cli.lsi:info", "Show what an index holds."),
}


@click.group(
    "lsi",
    cls=Group,
    verbs=VERBS,
    examples=[
        "recsys lsi index articles/ --out index",
        'recsys lsi query index "heat transfer in slip flow"',
    ],
)
@common_options
def lsi() -> None:
    """Find documents by meaning: latent semantic indexing."""


@dataclass(frozen=True)
class DocumentOptions:
    """How documents are to be read; None means that the reader finds out."""

    text_col: str | None = None
    id_col: str | None = None
    title_col: str | None = None
    encoding: str | None = None


def document_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options on how to read documents; the verb is given `reading`."""
    section = "Reading"

    @functools.wraps(function)
    def verb(
        *args: Any,
        text_col: str | None,
        id_col: str | None,
        title_col: str | None,
        encoding: str | None,
        **rest: Any,
    ) -> Any:
        reading = DocumentOptions(text_col, id_col, title_col, encoding)
        return function(*args, reading=reading, **rest)

    for name, text in (
        ("--encoding", "Text encoding."),
        ("--title-col", "Column of the titles."),
        ("--id-col", "Column of the ids."),
        ("--text-col", "Column of the texts."),
    ):
        verb = option(name, metavar="NAME", section=section, help=text)(verb)
    return verb


def open_documents(path: str, reading: DocumentOptions, after: int = 0) -> Documents:
    """Return the documents at a path, not yet read."""
    from recsys.cli.inputs import require_path
    from recsys.lsi import Documents

    require_path(path)
    return Documents(path, **asdict(reading), after=after)


def watched(documents: Documents, activity: Activity) -> Iterator[DocumentBatch]:
    """Yield the batches of documents; say what they were taken for, and how many there were."""
    count = 0
    for batch in documents:
        count += len(batch.ids)
        activity.say(counted(count, "document"))
        yield batch
    note(documents.decision)


def open_index(path: str) -> LSI:
    """Load a saved index."""
    from recsys.cli.inputs import require_path

    require_path(path)
    if Path(path).is_file():
        raise CommandError(
            f"{path} is a file; a saved index is a directory, as `recsys lsi index` writes it."
        )
    from recsys.lsi import LSI

    return LSI.load(path)


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
    from recsys.storage import is_saved_model

    if path.exists() and not is_saved_model(path, INDEX):
        raise CommandError(f"{path} exists and is not a saved index; choose another --out.")
    if path.exists() and not force:
        raise CommandError(
            f"{path} is a saved index already; choose another --out, or replace it by --force."
        )
    if not Path(os.path.realpath(path)).parent.is_dir():
        raise CommandError(f"Cannot write {path}: there is no directory {path.parent}.")


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


@command("terms", examples=["recsys lsi terms index heat", "recsys lsi terms index heat flow -n 5"])
@click.argument("index", type=click.Path())
@click.argument("words", metavar="WORD...", nargs=-1, required=True)
@n_option("similar words for each word")
@output_options
def terms(index: str, words: tuple[str, ...], n: int, output: Output) -> None:
    """List the words most like a word.

    The score is the cosine of the two word vectors; the columns are term, similar, rank, score.
    """
    from recsys.lsi.vectorizer import normalised

    lsi = open_index(index)
    known = lsi.terms_.find(words) >= 0
    plain = [normalised(word.lower()) for word in words]
    asked = [words[i] if known[i] else plain[i] for i in range(len(words))]
    output.write(lsi.similar_terms(asked, n), command="lsi terms", n=n)


@command(
    "similar", examples=["recsys lsi similar index 22", "recsys lsi similar index notes.txt -n 3"]
)
@click.argument("index", type=click.Path())
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@n_option("similar documents for each document")
@output_options
def similar(index: str, ids: tuple[str, ...], n: int, output: Output) -> None:
    """List the documents most like one.

    The score is the cosine of the two document vectors; the columns are document, similar, rank,
    score, and title and snippet where they are known.
    """
    output.write(open_index(index).similar_documents(list(ids), n), command="lsi similar", n=n)


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


@command("info", examples=["recsys lsi info index", "recsys lsi info index --json"])
@click.argument("index", type=click.Path())
@output_options
def info(index: str, output: Output) -> None:
    """Show what an index holds.

    Its size, its parameters, how many documents, words and dimensions it has, and how far its
    documents have moved from orthogonality by folding in.
    """
    from recsys.cli.output import write_facts

    write_facts(_facts(index), output)


def _facts(path: str) -> dict[str, dict[str, Any]]:
    from recsys.cli.inputs import require_path
    from recsys.lsi.storing import INDEX
    from recsys.storage import read_manifest

    require_path(path)
    manifest = read_manifest(path, INDEX)
    size = sum(entry.bytes for entry in manifest.files.values())
    return {
        "index": {
            "path": str(Path(path).resolve()),
            "megabytes": size / 1e6,
            "written by recsys": manifest.package_version,
        },
        "parameters": manifest.parameters,
        "training": manifest.training,
        "versions": manifest.versions,
    }


@command(
    "scree",
    examples=["recsys lsi scree index", "recsys lsi scree index --plot scree.png --quiet"],
)
@click.argument("index", type=click.Path())
@option("--plot", metavar="FILE.png|svg|pdf", type=click.Path(), help="Draw them as well.")
@output_options
def scree(index: str, plot: str | None, output: Output) -> None:
    """Show the singular values of an index.

    energy is the square of a singular value as a share of that of all weighted words, cumulative
    its running sum. The elbow is the number of dimensions before the point farthest below the
    line from the first singular value to the last; `recsys lsi index -k` takes it, or a number.
    """
    check_plot(plot)
    lsi = open_index(index)
    rank, total = _elbow(lsi), _energy(lsi)
    frame = spectrum_frame(lsi.singular_values_, total)
    if plot is not None:
        draw(lsi.singular_values_, total, rank, "elbow", plot)
    kept = frame["cumulative"][-1]
    note(f"{len(frame)} dimensions keep {kept:.1%} of the energy; elbow at {rank}")
    document = {"command": "lsi scree", "elbow": rank, "energy": total, "rows": frame.to_dicts()}
    shown = with_bars(frame) if output.resolved_format == "table" else frame
    output.write_document(document, shown)


def _elbow(lsi: LSI) -> int:
    from lowrank.rank import elbow

    return elbow(lsi.singular_values_)


def _energy(lsi: LSI) -> float:
    """Return the squared Frobenius norm of what is indexed, added documents included."""
    import numpy as np

    energy = float(np.sum(lsi.documents_.rows.data.astype(np.float64) ** 2))
    return max(energy, float(np.sum(lsi.singular_values_.astype(np.float64) ** 2)))
