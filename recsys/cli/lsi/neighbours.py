"""`recsys lsi terms` and `recsys lsi similar`: neighbours of words and of documents."""

from __future__ import annotations

import click

from recsys.cli.lsi.inputs import open_index
from recsys.cli.options import command, n_option, output_options
from recsys.cli.output import Output

__all__ = ["similar", "terms"]


@command("terms", examples=["recsys lsi terms index heat", "recsys lsi terms index heat flow -n 5"])
@click.argument("index", type=click.Path())
@click.argument("words", metavar="WORD...", nargs=-1, required=True)
@n_option("similar words for each word")
@output_options
def terms(index: str, words: tuple[str, ...], n: int, output: Output) -> None:
    """List the words most like a word.

    The score is the cosine of the two word vectors; the columns are term, similar, rank, score.
    """
    from recsys.lsi.words import normalised

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
