"""`recsys lsi`: latent semantic indexing of documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recsys import lsi  # which imports nothing yet
from recsys.cli import options as cli
from recsys.cli.data import check_plot, write_spectrum
from recsys.cli.errors import require
from recsys.cli.group import Group
from recsys.cli.output import SUFFIXES, Activity, Output, check_file, note
from recsys.cli.waiting import alone
from recsys.messages import counted

if TYPE_CHECKING:
    import polars as pl

# As `recsys.lsi.search.METHODS`, which needs NumPy.
_METHODS = ("hybrid", "lsi", "bm25")
_RANKING = (
    "Ranking by words and meaning (hybrid), by meaning (lsi), or by words (bm25)."
)

# Of the counts of an evaluation, those with a meaning for documents.
_COUNTS = ("queries", "documents", "judgements")

_index = click.argument("index", type=cli.PLACE)
_ids = click.argument("ids", metavar="ID...", nargs=-1, required=True)
_target = partial(
    cli.declared,
    "INDEX",
    "Directory for the new index, instead of replacing INDEX.",
    "--out",
    "-o",
)
_force = partial(cli.declared, "", is_flag=True)


@click.group(
    "lsi",
    cls=Group,
    examples=[
        "recsys lsi index articles/ --out index",
        'recsys lsi query index "heat transfer in slip flow"',
    ],
)
@cli.common_options
def group() -> None:
    """Search documents by their words and their meaning."""


@dataclass(frozen=True)
class DocumentOptions:
    """Options for reading documents; with None, the reader decides."""

    text_col: str | None = cli.declared("NAME", "Column of the texts.")
    id_col: str | None = cli.declared("NAME", "Column of the ids.")
    title_col: str | None = cli.declared("NAME", "Column of the titles.")
    encoding: str | None = cli.declared("NAME", "Text encoding.")
    table: str | None = cli.declared(
        "NAME", "Table of a database, or sheet of a workbook."
    )
    query: str | None = cli.declared("SQL", "SQL query to read from a database.")

    def open(self, path: str, after: int = 0) -> lsi.Documents:
        """Return the documents at a path, without reading them."""
        return lsi.Documents(path, **vars(self), after=after)


document_options = cli.bundle(
    "reading", DocumentOptions, *cli.declared_in(DocumentOptions, "Reading")
)
"""Decorator that adds the options for reading documents as `reading`."""


def _watched(
    documents: lsi.Documents, activity: Activity
) -> Iterator[lsi.DocumentBatch]:
    """Yield batches of documents, show progress, and report how they were read."""
    count = 0
    for batch in documents:
        count += len(batch.ids)
        activity.say(counted(count, "document"))
        yield batch
    note(documents.decision)


@cli.command(
    "index",
    examples=[
        "recsys lsi index articles/ --out index",
        "recsys lsi index papers.jsonl --text-col abstract --out index -k 300",
        "zcat lines.txt.gz | recsys lsi index - --out index --force",
    ],
)
@click.argument("documents", type=cli.PLACE)
@document_options
def index(
    documents: str,
    reading: DocumentOptions,
    out: str = cli.declared(
        "INDEX", "Directory for the index.", "--out", "-o", required=True
    ),
    force: bool = _force("Replace an existing index."),
    dimensions: int | str | None = cli.declared(
        "K|RULE",
        # The default depends on the documents.
        "Number of dimensions, or a rule to choose it: elbow, energy, gavish-donoho, parallel "
        "or cv.",
        "--dimensions",
        "-k",
        type=lambda value: int(value) if str(value).isdecimal() else value,
        show_default="a third of the documents, at most 75",
        section="Model",
    ),
    method: str = cli.declared(
        "",
        _RANKING,
        type=click.Choice(_METHODS),
        default="hybrid",
        section="Model",
    ),
    language: str = cli.declared(
        "NAME",
        "Language of stop words and stems; none uses neither, auto detects the language.",
        default="auto",
        section="Model",
    ),
    seed: int = cli.seed("Model"),
) -> None:
    """Index documents and save the index.

    DOCUMENTS is a directory of text files; a CSV, TSV, JSON lines or Parquet file with
    a text column; or a file with one document per line (- for standard input). Files
    may be compressed by gzip or zstd. Texts are read once, a thousand at a time, and
    not stored.
    """
    from recsys.saving.model_file import INDEX
    from recsys.saving.storage import check_target

    # Before the documents are read, which may take hours.
    check_target(out, INDEX, overwrite=force)
    source = reading.open(documents)
    # The command line has no word for None.
    spoken = None if language == "none" else language
    fitted = lsi.LSI(dimensions, method=method, language=spoken, random_state=seed)
    with Activity("Indexing") as activity:
        fitted.fit(_watched(source, activity))
    fitted.save(out, overwrite=force)
    facts = fitted.training_
    # A detected language changes what a word is, so say it.
    if facts["language"]:
        note(
            f"language: {facts['language']}, so words with the same stem are treated as one word"
        )
    indexed = counted(facts["documents"], "document")
    if facts["empty_documents"]:
        indexed += f" ({facts['empty_documents']:,} without words)"
    words = counted(facts["terms"], "word")
    size = f"{counted(facts['dimensions'], 'dimension')} ({facts['dimensions_by']})"
    note(f"indexed {indexed} and {words} in {size}, saved in {out}")


@cli.command(
    "query",
    examples=[
        'recsys lsi query index "heat transfer in slip flow"',
        'recsys lsi query index "heat transfer in slip flow" --explain',
        'recsys lsi query index "heat transfer in slip flow" --explain 22 --method lsi',
        "recsys lsi query index --queries questions.txt -n 100 --output found.parquet",
    ],
    one_of={"TEXT": ("text",), "--queries": ("queries",)},
    required="Give a query, in quotes, or a file",
)
@_index
@click.argument("text", required=False)
@cli.output_options
@document_options
def query(
    index: str,
    text: str | None,
    output: Output,
    reading: DocumentOptions,
    queries: str | None = cli.declared(
        "FILE", "File of queries: one per line, or a table with texts."
    ),
    method: str | None = cli.declared(
        "",
        _RANKING,
        type=click.Choice(_METHODS),
        show_default="that of the index",
    ),
    explain: str | None = cli.declared(
        "[ID]",
        "Add the contributions of words and of meaning to each score; with ID, explain the score "
        "of this document.",
        is_flag=False,
        # Without an id, the contributions to the scores of all results.
        flag_value="",
    ),
    n: int = cli.length("documents for each query"),
) -> None:
    """Find the documents that match a query best.

    The columns are document, rank and score, and title and snippet if they are known.
    The score of the method hybrid is the weighted sum of the standard scores of BM25
    and of the cosine similarity; the score of bm25 or lsi is that value itself. For
    queries from a file, a first column query has the line number, or the id in a table
    or collection. Unknown words are ignored and reported.
    """
    loaded = lsi.Index.load(index)
    command = "lsi query"
    # One function for a text and for a file of them.
    search = partial(loaded.query, n=n, method=method, parts=explain is not None)

    def answers() -> Iterator[pl.DataFrame]:
        documents = reading.open(_inside(str(queries), "queries.jsonl"))
        for number, batch in enumerate(documents):
            # How the file was read is known with the first batch.
            if number == 0:
                note(documents.decision.replace("document", "query"))
            yield search(batch.texts, labels=batch.ids)

    if text is None:
        require(not explain, "--explain ID takes one TEXT, not --queries.")
        output.write(answers(), command=command, n=n)
    elif explain:
        frame = loaded.explain(text, explain, method=method)
        score = float(frame["contribution"].sum())
        output.write(frame, command=command, query=text, document=explain, score=score)
    else:
        output.write(search(text), command=command, query=text, n=n)


def _inside(path: str, name: str) -> str:
    """Return the file `name` in a folder with BEIR's layout, or the path itself."""
    # BEIR's collections are folders with these files.
    inner = Path(path, name)
    return str(inner) if inner.is_file() else path


@cli.command(
    "terms",
    examples=["recsys lsi terms index heat", "recsys lsi terms index heat flow -n 5"],
)
@_index
@click.argument("words", metavar="WORD...", nargs=-1, required=True)
@cli.output_options
def terms(
    index: str,
    words: tuple[str, ...],
    output: Output,
    n: int = cli.length("similar words for each word"),
) -> None:
    """List the words nearest to a word.

    The score is the cosine similarity of the word vectors. The columns are term,
    similar, rank and score.
    """
    from recsys.lsi.vectorizer import normalised

    loaded = lsi.Index.load(index)
    terms = list(words)
    # The terms of a matrix may have capitals, so a word counts as it is first.
    for position in (loaded.terms_.find(words) < 0).nonzero()[0]:
        terms[position] = normalised(words[position]).strip()
    output.write(loaded.similar_terms(terms, n), command="lsi terms", n=n)


@cli.command(
    "similar",
    examples=["recsys lsi similar index 22", "recsys lsi similar index notes.txt -n 3"],
)
@_index
@_ids
@cli.output_options
def similar(
    index: str,
    ids: tuple[str, ...],
    output: Output,
    n: int = cli.length("similar documents for each document"),
) -> None:
    """List the documents nearest to a document.

    The score is the cosine similarity of the document vectors. The columns are
    document, similar, rank and score, and title and snippet if they are known.
    """
    frame = lsi.Index.load(index).similar_documents(list(ids), n)
    output.write(frame, command="lsi similar", n=n)


@cli.command(
    "add",
    examples=[
        "recsys lsi add index more.jsonl",
        "recsys lsi add index more.jsonl --method update --out larger",
    ],
)
@_index
@click.argument("documents", type=cli.PLACE)
@document_options
def add(
    index: str,
    documents: str,
    reading: DocumentOptions,
    method: str = cli.declared(
        "",
        "Whether to keep the decomposition (fold-in), or to update it in time proportional to the "
        "size of the index.",
        type=click.Choice(["fold-in", "update"]),
        default="fold-in",
    ),
    out: str | None = _target(),
    replace: bool = _force("Replace documents with the same id in the index."),
    force: bool = _force("Replace the index at --out."),
) -> None:
    """Add documents to an index.

    New documents without ids get the next numbers after the last one of the index. They
    are found by all their words, ranked as in a new index. The dimensions do not know
    new words, which have no meaning until everything is indexed again. The files of
    the index are written again. When the reported share outside the dimensions and the
    loss of orthogonality (both 0 for a new index) grow, update the decomposition or
    index everything again.
    """
    target = out or index
    # Two changes at once would lose one of them.
    with alone(target):
        loaded = lsi.LSI.load(index)
        ids = loaded.documents_.ids.values
        # Ids that are numbers are continued.
        last = ids.max() if ids.dtype.is_integer() else None
        source = reading.open(documents, after=last if isinstance(last, int) else 0)
        with Activity("Adding") as activity:
            added = loaded.add_documents(
                _watched(source, activity), method=method, replace=replace
            )
        loaded.save(target, overwrite=force or out is None)
    replaced = f" ({added.n_replaced:,} replaced)" if replace else ""
    note(
        f"added {counted(added.n_documents, 'document')} by {added.method}{replaced}, "
        f"saved in {target}; "
        f"{counted(added.unknown_words, 'new word')} without meaning until indexed again; "
        f"{added.outside:.1%} of the squared weights were outside the index's dimensions; "
        f"loss of orthogonality {added.orthogonality_loss:.2g}"
    )


@cli.command(
    "remove",
    examples=["recsys lsi remove index 22 184", "recsys lsi remove index old.txt"],
)
@_index
@_ids
def remove(
    index: str,
    ids: tuple[str, ...],
    out: str | None = _target(),
    force: bool = _force("Replace the index at --out."),
) -> None:
    """Remove documents from an index.

    The words and dimensions of the index do not change. To replace documents, use
    `recsys lsi add --replace`.
    """
    target = out or index
    with alone(target):
        loaded = lsi.LSI.load(index)
        removed = loaded.remove_documents(list(ids))
        loaded.save(target, overwrite=force or out is None)
    remaining = counted(len(loaded.documents_), "document")
    note(f"removed {counted(removed, 'document')}, saved in {target}; {remaining} left")


@cli.command(
    "evaluate",
    examples=[
        "recsys lsi evaluate index --queries cran.qry --judgements cranqrel",
        "recsys lsi evaluate index --queries queries.jsonl --judgements qrels/test.tsv --json",
    ],
)
@_index
@cli.output_options
@document_options
def evaluate(
    index: str,
    output: Output,
    reading: DocumentOptions,
    queries: str = cli.declared(
        "FILE", "File of queries, as for `recsys lsi query`.", required=True
    ),
    judgements: str = cli.declared(
        "FILE",
        "File of judgements: query, document and optional relevance (TREC, BEIR, SMART).",
        required=True,
    ),
    method: tuple[str, ...] = cli.declared(
        "",
        "Method of search to measure; repeatable.",
        type=click.Choice(_METHODS),
        multiple=True,
        show_default="all",
    ),
    per_query: str | None = cli.declared(
        "FILE", "File for the metrics of each query (.csv, ...)."
    ),
) -> None:
    """Measure an index on judged queries.

    The metrics of each method are MAP over the 1,000 best documents, NDCG and precision
    at 10, recall at 100 and MRR, with 95% intervals over queries and paired tests
    between methods. Queries without relevant documents are left out. JSON output has
    definitions, intervals and tests.
    """
    from recsys.cli.evaluate import tables
    from recsys.evaluation.results import INTERVALS, TESTS
    from recsys.evaluation.search import evaluate_search
    from recsys.readers.judgements import read_judgements

    check_file(per_query, "--per-query", SUFFIXES)
    loaded = lsi.Index.load(index)
    documents = reading.open(_inside(queries, "queries.jsonl"))
    labels: list[Any] = []
    texts: list[str] = []
    for batch in documents:
        labels += batch.ids
        texts += batch.texts
    note(documents.decision.replace("document", "query"))
    path = _inside(judgements, "qrels/test.tsv")
    judged = read_judgements(path, encoding=reading.encoding)
    # An option may be repeated with the same value.
    methods = [*dict.fromkeys(method)] or _METHODS
    result = evaluate_search(loaded, labels, texts, judged, methods=methods)
    note(result.splits[0].description)
    if per_query is not None:
        per_user = result.per_user.rename({"model": "method", "user": "query"})
        Output(Path(per_query)).write(per_user)
        note(f"the metrics of each query are in {per_query}")
    counts = {name: result.counts[name] for name in _COUNTS}
    measured = result.measured
    definitions = {name: measured[name].definition for name in measured}
    # An evaluation compares models for users: here methods for queries.
    names = {"model": "method", "users": "queries"}
    metrics = result.metrics.drop("kind", "n").rename(names)
    comparisons = result.comparisons.drop("kind", "n").rename({"model": "method"})
    document = {
        "command": "lsi evaluate",
        "index": index,
        "counts": counts,
        "definitions": definitions,
        "intervals": INTERVALS.replace("users", "queries"),
        "tests": TESTS.replace("users", "queries").replace("models", "methods"),
        "metrics": metrics.to_dicts(),
        "comparisons": comparisons.to_dicts(),
    }
    frame = result.table.rename({"model": "method"})
    output.write_document(document, frame, *tables(result, "queries"))


@cli.command("info", examples=["recsys lsi info index", "recsys lsi info index --json"])
@_index
@cli.output_options
def info(index: str, output: Output) -> None:
    """Show the size and parameters of an index.

    The output has the numbers of documents, words and dimensions, that of added words
    without meaning in the dimensions until a new index, and the loss of orthogonality
    caused by folding in.
    """
    from recsys.cli.info import manifest_facts
    from recsys.cli.output import write_facts
    from recsys.saving.model_file import INDEX, read_manifest

    write_facts(manifest_facts(index, read_manifest(index, INDEX), "index"), output)


@cli.command(
    "scree",
    examples=[
        "recsys lsi scree index",
        "recsys lsi scree index --plot scree.png --quiet",
    ],
)
@_index
@cli.output_options
def scree(
    index: str,
    output: Output,
    plot: str | None = cli.declared("FILE", "File for a plot: .png, .svg or .pdf."),
) -> None:
    """Show the singular values of an index.

    The column energy is the square of a singular value divided by the squared Frobenius
    norm of the matrix of weighted words; cumulative is its running sum. The elbow is
    the point farthest below the line from the first singular value to the last; `recsys
    lsi index -k elbow` selects it.
    """
    from recsys.lsi.space import energy

    check_plot(plot)
    loaded = lsi.Index.load(index)
    s = loaded.singular_values_
    # The squared Frobenius norm of the indexed matrix, added documents included.
    # Rounding may make the part larger than the whole.
    total = max(energy(loaded.document_weights().data), energy(s))
    report = "{count} dimensions keep {kept} of the energy; elbow at {elbow}"
    write_spectrum(s, total, output, plot, report, command="lsi scree", energy=total)


for verb in (index, query, terms, similar, add, remove, evaluate, scree, info):
    group.add_command(verb)
