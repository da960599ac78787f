"""`recsys explore`: a page to explore a model, as one file."""

from __future__ import annotations

from pathlib import Path

import click

from recsys.cli import options as cli
from recsys.cli.recommend import Source, source_options


@cli.command(
    "explore",
    examples=[
        "recsys explore model --out page.html",
        "recsys explore model --out page.html --items 2000 --users 0",
        "recsys explore model --model-b other --out both.html",
        "recsys explore ratings.csv --model ease --out page.html",
    ],
)
@click.argument("source", metavar="MODEL|RATINGS")
@cli.option("--out", "-o", metavar="FILE", required=True, help="Page to write, such as page.html.")
@cli.option("--force", is_flag=True, help="Replace an existing file.")
@cli.option("--model-b", metavar="MODEL", help="Second model, to show next to the first.")
@cli.option(
    "--items",
    show_default="all",
    help="Number of items in the page, the most rated ones.",
    **cli.COUNT,
)
@cli.option(
    "--users",
    metavar="N",
    type=click.IntRange(min=0),
    default=200,
    help="Number of users whose ratings are in the page.",
)
@cli.option("--title", metavar="TEXT", help="Title of the page.")
@source_options
def explore(
    source: Source,
    out: str,
    force: bool,
    model_b: str | None,
    items: int | None,
    users: int,
    title: str | None,
) -> None:
    """Write a page to explore a model, as one file.

    Takes a saved model, or ratings to fit a model to. The page needs no server and no network: open
    it in a browser, mark a few items as liked, and the recommendations follow, each with its
    reasons; leave items out of a user's history; look at similar items, at the map of the items and
    at the singular values. The recommendations are those of `recsys recommend --history`, computed
    in the page, for the models als, bayes, bias, blend, ease, ials, implicit-knn, popular,
    softimpute, sparse-ease and spectral. `recsys serve` shows the same page for every model and
    any size.

    The ratings of the first --users are in the page for everyone who has the file; --users 0 leaves
    them out.
    """
    from recsys.cli.errors import CommandError, require
    from recsys.cli.inputs import load_model
    from recsys.cli.output import atomic_file, check_file
    from recsys.cli.progress import note
    from recsys.messages import counted
    from recsys.serve.static_page import static_page

    check_file(out, "--out", (".html", ".htm"))
    sentence = f"{out} exists; choose another --out, or add --force."
    require(force or not Path(out).exists(), sentence, CommandError)
    first = source.open()
    second = None if model_b is None else load_model(model_b)
    page = static_page(first, second, n_items=items, n_users=users, title=title)
    text = page.html.encode()
    with atomic_file(Path(out)) as stream:
        stream.write(text)
    contents = f"{counted(page.n_items, 'item')} and the ratings of {counted(page.n_users, 'user')}"
    note(f"saved in {out}: {contents}, {len(text) / 1e6:.1f} MB; open it in a browser")
