"""`recsys together`: items that are bought together."""

from __future__ import annotations

from recsys.cli import inputs
from recsys.cli import options as cli
from recsys.cli.output import Activity, Output, note
from recsys.errors import DataError
from recsys.messages import counted
from recsys.ranking.lists import ListOptions

_NAMED = "the users are baskets of --basket-col"


@cli.command(
    "together",
    examples=[
        "recsys together orders.csv --basket-col order_id",
        "recsys together orders.csv --basket-col order_id --item 318 -n 5",
        "recsys together orders.csv --basket-col order_id --output together.parquet",
        "recsys together shop.db::lines --basket-col order_id -o shop.db::together",
        'recsys together orders.csv --item-table items.csv --where "in_stock"',
    ],
)
@cli.ratings_argument
@cli.list_options("items", "block", "where", "at_most", "per")
@cli.list_output_options
@cli.reader_options("columns")
def together(
    ratings: tuple[str, ...],
    options: ListOptions,
    output: Output,
    reader: cli.ReaderOptions,
    basket_col: str | None = cli.declared(
        "NAME",
        "Column of the ids of baskets, such as order_id.",
        show_default="a user's day (UTC)",
    ),
    item: tuple[str, ...] = cli.declared(
        "ID",
        "Item to list others for, or several separated by commas.",
        "--item",
        "-i",
        multiple=True,
        show_default="all",
    ),
    n: int = cli.length("other items for each item"),
) -> None:
    """List items that are bought together.

    The input has the lines of orders, read as ratings are; an item that is twice in a
    basket counts once. The columns are item, other, both (the number of baskets with both),
    lift (that number, divided by the number to expect by chance), low and high (limits of
    an interval for the lift), rank, and the title of the other item if titles are known.
    Other items are ranked by low, so that a single basket does not count: a low above 1
    tells that two items are bought together more often than by chance. Items with the
    surest pairs come first. `recsys serve MODEL --together TABLE` serves the output.
    """
    inputs.check_groups(options)
    if basket_col is not None:
        inputs.require_columns(
            reader, ("item", "rating", "timestamp", "event", "weight"), _NAMED
        )
        reader = reader.with_column("user", basket_col)
    try:
        data = inputs.load_ratings(ratings, reader)
    except DataError as error:
        if basket_col is None:
            error.add_note("Hint: --basket-col names the column of the ids of baskets.")
        raise
    from recsys.baskets import Baskets

    baskets = Baskets.of_days(data) if basket_col is None else Baskets.of_users(data)
    sentence = f"{counted(baskets.count, 'basket')} of {counted(data.n_items, 'item')}"
    if basket_col is None:
        sentence += "; a basket is a user's day (UTC), unless --basket-col names them"
    note(sentence)
    remark = "" if basket_col is None else baskets.remark()
    if remark:
        note(remark)
    items = inputs.listed_ids(item, data.items) or None
    options = inputs.with_ids(options, reader, data, reader.options)
    with Activity("Counting pairs"):
        frame = baskets.together(items, n, options)
    if frame.is_empty():
        note("no pairs: no two of these items are in a basket together")
    output.write(frame, command="together", n=n)
