"""The group `recsys lsi`; its verbs are imported when they are called."""

from __future__ import annotations

import click

from recsys.cli.group import Group, Verb
from recsys.cli.options import common_options

__all__ = ["lsi"]

VERBS = {
    "index": Verb("recsys.cli.lsi.index:index", "Index documents and save the index."),
    "query": Verb("recsys.cli.lsi.query:query", "Find the documents most like a query."),
    "terms": Verb("recsys.cli.lsi.neighbours:terms", "List the words most like a word."),
    "similar": Verb("recsys.cli.lsi.neighbours:similar", "List the documents most like one."),
    "add": Verb("recsys.cli.lsi.add:add", "Add documents to an index."),
    "scree": Verb("recsys.cli.lsi.scree:scree", "Show how fast its singular values fall."),
    "info": Verb("recsys.cli.lsi.info:info", "Show what an index holds."),
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
