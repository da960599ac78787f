"""`recsys data` and `recsys scree`: contents and singular values of ratings; sample data."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recsys.cli import inputs
from recsys.cli import options as cli
from recsys.cli.errors import CommandError, require
from recsys.cli.group import Group
from recsys.cli.output import (
    Activity,
    Output,
    atomic_file,
    check_file,
    note,
    write_facts,
)
from recsys.messages import counted, missing_extra, worded
from recsys.saving.atomic import unfinished_directory

if TYPE_CHECKING:
    import numpy.typing as npt

    from recsys.data.ratings import Ratings

_QUARTILES = ("minimum", "lower quarter", "median", "upper quarter", "maximum")
_TOP = 10
_VALUES = 20
_BAR = 24  # characters of the longest bar
_EIGHTHS = " ▏▎▍▌▋▊▉"


@click.group(
    "data",
    cls=Group,
    examples=["recsys data sample", "recsys data inspect ratings.csv"],
)
@cli.common_options
def data() -> None:
    """Inspect ratings files, and copy sample data."""


@cli.command(
    "inspect",
    examples=[
        "recsys data inspect ratings.csv",
        'recsys data inspect ratings.dat --sep "::" --json',
    ],
)
@cli.ratings_argument
@cli.output_options
@cli.reader_options("all")
def inspect(
    ratings: tuple[str, ...],
    output: Output,
    reader: cli.ReaderOptions,
) -> None:
    """Show the contents of a ratings file, how it is read, and what would be fitted to it.

    The output has counts, dates, the distribution of the ratings, tables of items and users,
    ratings per user and item, the most rated items, and the models that `recsys fit` would compare,
    with the features that they use.
    """
    from recsys.auto import choose_model
    from recsys.models.registry import make_model

    loaded = inputs.load_ratings(ratings, reader)
    choice = choose_model(loaded)
    facts = _described(loaded)
    facts["ratings"]["kind"] = "implicit" if choice.ratings.implicit else "explicit"
    # Nothing is fitted here: the names of the candidates are enough.
    names = ", ".join(map(str, choice.candidates))
    first = choice.candidates[0]
    found_by = (
        {"models": names} if choice.is_open else {"model": first.model, **first.params}
    )
    plan = "fit would compare" if choice.is_open else "fit would choose"
    facts[plan] = {**found_by, "because": choice.reason}
    models = [make_model(candidate.model) for candidate in choice.candidates]
    used = inputs.featured(choice.ratings, reader, models, unrated=True)
    for side in ("item", "user"):
        encoder = used.axis(side).encoder
        if encoder is not None:
            facts[plan][f"features of {side}s"] = str(encoder)
    document = {"command": "data inspect", "read_as": str(loaded.source), **facts}
    if output.resolved_format == "table" and choice.ratings.implicit:
        facts = {
            worded(section, implicit=True): {
                worded(name, implicit=True): value for name, value in values.items()
            }
            for section, values in facts.items()
        }
    write_facts(facts, output, document)


@cli.command(
    "sample", examples=["recsys data sample", "recsys data sample --out films"]
)
def sample(
    out: str = cli.declared("DIR", "Target directory.", default="recsys-sample"),
    force: bool = cli.declared("", "Replace existing sample files.", is_flag=True),
) -> None:
    """Copy the sample data to a directory.

    The data are real films with synthetic ratings, and a README that describes how they were made.
    """
    from recsys.readers import sample_path

    # The directory behind a link is filled, and the link stays.
    target = Path(os.path.realpath(out))
    is_file = f"{out} is a file; --out needs the name of a directory."
    require(not target.is_file(), is_file, CommandError)
    exists = f"{out} exists already; choose another --out, or add --force."
    require(force or not target.exists(), exists, CommandError)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with unfinished_directory(target) as unfinished:
            for file in sample_path().iterdir():
                if file.suffix in (".csv", ".md"):
                    shutil.copyfile(file, unfinished / file.name)
            # One by one, because other files in the directory stay.
            target.mkdir(exist_ok=True)
            for file in unfinished.iterdir():
                file.replace(target / file.name)
    except OSError as error:
        reason = f"The sample cannot be copied to {out}: {error.strerror}."
        raise CommandError(reason) from error
    with (target / "ratings.csv").open(encoding="utf-8") as lines:
        next(lines)
        user = next(lines).split(",")[0]
    note(f"The sample data are in {out}. Try:")
    note(f"  recsys recommend {shlex.quote(out)} --user {user}", verbatim=True)


data.add_command(inspect)
data.add_command(sample)


def _quantiles(values: npt.NDArray[Any]) -> dict[str, float]:
    import numpy as np

    quantiles = np.quantile(values, [0, 0.25, 0.5, 0.75, 1])
    return dict(zip(_QUARTILES, map(float, quantiles), strict=True))


def _described(ratings: Ratings) -> dict[str, dict[str, Any]]:
    """Return facts about ratings: counts, dates, values, ratings per user and item."""
    import numpy as np

    from recsys.data.times import shown_time

    counts: dict[str, Any] = {
        "kind": "implicit" if ratings.implicit else "explicit",
        "users": ratings.n_users,
        "items": ratings.n_items,
        "ratings": ratings.n_ratings,
        "share filled": ratings.density,
        "duplicates": ratings.n_duplicates,
    }
    moments = ratings.timestamps
    if moments is not None:
        for name, seconds in (("first", moments.min()), ("last", moments.max())):
            counts[name] = shown_time(int(seconds), day=True)
    facts: dict[str, dict[str, Any]] = {"ratings": counts}
    # Count each value, or compute quantiles if there are many values.
    if not ratings.implicit or ratings.weighted:
        mean, deviation = ratings.mean_and_std()
        name = "weights" if ratings.implicit else "values"
        facts[name] = {"mean": mean, "standard deviation": deviation}
        distinct, n_each = ratings.distribution()
        facts[name] |= (
            _quantiles(ratings.values)
            if len(distinct) > _VALUES
            else {
                f"{value:g}": int(n) for value, n in zip(distinct, n_each, strict=True)
            }
        )
    per_item = ratings.counts("item")
    best = np.argsort(-per_item, kind="stable")[:_TOP]
    names = ratings.items.take(best).cast(str).to_list()
    if ratings.titles is not None:
        titles = ratings.titles.gather(best).to_list()
        names = [
            f"{name} {title or ''}".strip()
            for name, title in zip(names, titles, strict=True)
        ]
    for side in ("item", "user"):
        axis = ratings.axis(side)
        table = axis.table
        if table is not None:
            n_known = int(axis.in_table.sum())
            absent = {
                "not in the table": len(axis.ids) - n_known,
                "unrated": len(table) - n_known,
            }
            facts[f"{side} table"] = {
                "rows": len(table),
                **absent,
                **table.described(),
            }
    return facts | {
        "ratings per user": _quantiles(ratings.counts("user")),
        "ratings per item": _quantiles(per_item),
        "most rated items": {
            n: int(k) for n, k in zip(names, per_item[best], strict=True)
        },
    }


@cli.command(
    "scree",
    examples=[
        "recsys scree ratings.csv -k 20",
        "recsys scree ratings.csv --plot scree.png --output scree.csv",
    ],
)
@cli.ratings_argument
@cli.output_options
@cli.reader_options()
def scree(
    ratings: tuple[str, ...],
    output: Output,
    reader: cli.ReaderOptions,
    k: int = cli.declared(
        "K",
        "Maximum number of singular values.",
        "-k",
        type=click.IntRange(min=1),
        default=50,
    ),
    plot: str | None = cli.declared("FILE", "File for a plot: .png, .svg or .pdf."),
) -> None:
    """Show the singular values of the ratings.

    The matrix has the ratings minus user and item biases (of the model bias), and zeros for missing
    ratings; for implicit data, ones or weights. The column energy is the square of a singular value
    divided by the squared Frobenius norm; cumulative is its running sum. The elbow is the point
    farthest below the line from the first singular value to the last.
    """
    import lowrank
    from recsys.models.registry import make_model

    check_plot(plot)
    data = inputs.load_ratings(ratings, reader).as_interactions()
    with Activity("Decomposing"):
        matrix = data.matrix
        decomposed = "implicit data"
        if not data.implicit:
            bias: Any = make_model("bias").fit(data)
            # The biases have most of the variance, and would be the first singular vectors.
            decomposed = "ratings minus user and item biases"
            matrix = data.matrix.copy()
            matrix.data -= bias.predict(data.user_index_of_nonzeros(), data.indices)
        svd = lowrank.truncated_svd(matrix, min(k, *data.shape), random_state=0)
    energy = float(svd.frobenius_norm or 0.0) ** 2
    report = f"{decomposed}: {{values}}, elbow at {{elbow}}"
    write_spectrum(
        svd.s,
        energy,
        output,
        plot,
        report,
        command="scree",
        shape=data.shape,
        decomposed=decomposed,
        frobenius_norm=svd.frobenius_norm,
    )


def write_spectrum(
    singular_values: Any,
    total: float,
    output: Output,
    plot: str | None,
    report: str,
    **head: Any,
) -> None:
    """Write singular values with their energies as shares of `total`, and plot them to a file."""
    import numpy as np
    import polars as pl

    from lowrank.rank import cumulative_energy, elbow

    s = np.asarray(singular_values, dtype=np.float64)
    cumulative, rank = cumulative_energy(s, total), elbow(s)
    columns = {"rank": np.arange(1, len(s) + 1), "singular_value": s}
    columns |= {"energy": np.diff(cumulative, prepend=0.0), "cumulative": cumulative}
    frame = pl.DataFrame(columns)
    if plot is not None:
        from matplotlib.figure import Figure

        from lowrank import plotting

        figure = Figure(figsize=(7, 4.2), layout="constrained")
        axes = figure.subplots()
        plotting.scree(s, k=rank, total=total, rule="elbow", ax=axes)
        with atomic_file(Path(plot)) as stream:
            figure.savefig(stream, dpi=150, format=Path(plot).suffix[1:].lower())
    share = cumulative[-1] if len(s) else 1.0
    values = counted(len(s), "singular value")
    note(report.format(values=values, count=len(s), elbow=rank, kept=f"{share:.1%}"))
    # Eighths of a character: small singular values differ, too.
    bars = []
    for value in s / (s.max(initial=0.0) or 1.0):
        full, eighths = divmod(round(value * _BAR * 8), 8)
        bars.append(("█" * full + _EIGHTHS[eighths]).rstrip())
    document = {**head, "elbow": rank, "rows": frame.to_dicts()}
    output.write_document(document, frame, frame.with_columns(pl.Series("", bars)))


def check_plot(path: str | None) -> None:
    """Check in advance that a plot can be drawn and written.

    Raises
    ------
    CommandError
        If matplotlib is missing, or the file cannot be written.
    """
    from importlib.util import find_spec

    if path is not None and find_spec("matplotlib") is None:
        raise CommandError(f"--plot {missing_extra('matplotlib', 'plot')}")
    check_file(path, "--plot", (".png", ".svg", ".pdf"))
