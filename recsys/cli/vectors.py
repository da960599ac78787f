"""`recsys vectors`: vectors of items and users for a database."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from recsys.cli import inputs
from recsys.cli import options as cli
from recsys.cli.errors import require
from recsys.cli.output import Output, note
from recsys.cli.recommend import Described, described_options

if TYPE_CHECKING:
    import polars as pl

    from recsys.recommender import Recommender
    from recsys.vectors import Metric, VectorTable


@cli.command(
    "vectors",
    examples=[
        "recsys vectors model --output items.parquet --users users.parquet",
        "recsys vectors model --output shop.duckdb::items --columns price,stock",
        "recsys vectors model -o postgresql://me@host/db::items --if-exists replace",
        "recsys vectors model --metric cosine --output items.parquet",
        "recsys vectors model --history basket.csv --output user.parquet",
    ],
)
@click.argument("model", metavar="MODEL", type=cli.PLACE)
@described_options
@cli.output_options
@cli.reader_options("none")
def vectors(
    model: str,
    described: Described,
    output: Output,
    reader: cli.ReaderOptions,
    users: str | None = cli.declared(
        "FILE|TABLE", "Where to write the vectors of the users.", type=cli.PLACE
    ),
    history: str | None = cli.declared(
        "FILE", "Ratings of new users, whose vectors are written to --output."
    ),
    metric: Metric = cli.declared(
        "",
        "Product of vectors: inner-product for scores, cosine for similarities.",
        type=click.Choice(["inner-product", "cosine"]),
        default="inner-product",
    ),
    columns: str | None = cli.declared(
        "NAME,...", "Columns of the item table to add, such as price,stock."
    ),
) -> None:
    """Write the vectors of a model for a search in a database.

    The columns are item, vector (of float32), title if titles are known, and --columns.
    The inner product of the vectors of a user and an item is the score of `recsys
    recommend`: biases and the discount for few ratings are in two more dimensions. The
    vectors of the users go to --users, with the columns user and vector. New users are
    described by --history, --like, --rate or --user-features.

    With --metric cosine, there is a column query, too: the cosine of the query of an
    item and the vector of another is the score of `recsys similar`.

    In PostgreSQL with pgvector, vectors have its type, and otherwise they are arrays of
    real numbers. Parquet has the version of the model, the metric and the dimension in
    its metadata (key "recsys"), and a table has them in its comment.
    """
    is_new = history is not None or bool(described)
    fits = not (is_new and (users or columns))
    require(fits, "New users have neither --users nor --columns.")
    fits = not (history is not None and described)
    require(fits, "Describe new users by --history or by --like and --rate, not both.")
    of_users = None if users is None else cli.other_output(users, output)
    recommender = inputs.load_model(model)
    if is_new:
        if history is not None:
            rated = inputs.load_history(history, reader, recommender)
            recommender = recommender.fold_in(rated)
        else:
            recommender = described.folded_into(recommender)
        table = recommender.vector_table("user", metric)
        _write(table, output, recommender)
        return
    names = [name.strip() for name in (columns or "").split(",") if name.strip()]
    table = recommender.vector_table("item", metric, names)
    _write(table, output, recommender)
    # They are in no list either.
    n_left_out = recommender.ratings.n_items - len(table.rows)
    if n_left_out:
        note(f"{n_left_out:,} items without ratings have no vectors")
    if of_users is not None:
        _write(recommender.vector_table("user", metric), of_users, recommender)


def _write(
    table: VectorTable,
    output: Output,
    recommender: Recommender,
) -> None:
    """Write the rows of a table with their manifest."""
    manifest = table.manifest(recommender.provenance, recommender.model.name)
    form = output.resolved_format
    comment = json.dumps(manifest)
    with output.open(comment=comment, command="vectors", **manifest) as sink:
        for batch in table.batches():
            sink.write(_stored(batch, form))


def _stored(batch: pl.DataFrame, form: str) -> pl.DataFrame:
    """Return a batch without the lists that a format cannot store.

    As texts, vectors are such as [0.5,1.0], which pgvector reads.
    """
    import polars as pl
    import polars.selectors as cs

    if form in ("table", "csv", "tsv"):
        numbers = cs.array().arr.to_list().cast(pl.List(pl.String)).list.join(",")
        batch = batch.with_columns(numbers.name.keep())
        batch = batch.with_columns(
            pl.format("[{}]", pl.col(name)).alias(name)
            for name in ("vector", "query")
            if name in batch.columns
        )
    if form not in ("json", "jsonl", "parquet"):
        batch = batch.with_columns(cs.list().cast(pl.List(pl.String)).list.join("|"))
    return batch
