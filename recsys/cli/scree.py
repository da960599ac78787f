"""`recsys scree`: singular values and the rank they suggest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from recsys.cli.errors import CommandError
from recsys.cli.options import (
    ReaderOptions,
    command,
    option,
    output_options,
    ratings_argument,
    reader_options,
)
from recsys.cli.output import Output, atomic_file, check_file
from recsys.cli.progress import Activity, note
from recsys.messages import missing_extra

_BAR = 24  # characters of the longest bar
_EIGHTHS = " ▏▎▍▌▋▊▉"


@command(
    "scree",
    examples=[
        "recsys scree ratings.csv -k 20",
        "recsys scree ratings.csv --plot scree.png --output scree.csv",
    ],
)
@ratings_argument
@option(
    "-k",
    metavar="K",
    type=click.IntRange(min=1),
    default=50,
    help="Maximum number of singular values.",
)
@option("--plot", metavar="FILE", help="Plot to write: .png, .svg or .pdf.")
@output_options
@reader_options()
def scree(
    ratings: tuple[str, ...], k: int, plot: str | None, output: Output, reader: ReaderOptions
) -> None:
    """Show the singular values of the ratings.

    The decomposed matrix is that of the ratings minus user and item biases (of the model bias),
    with zeros for missing ratings; for implicit data, the matrix of ones or weights. energy is the
    square of a singular value as a share of the squared Frobenius norm, cumulative its running sum.
    The elbow is the point farthest below the line from the first singular value to the last.
    """
    import lowrank
    from recsys.cli.inputs import load_ratings
    from recsys.models.registry import make_model

    check_plot(plot)
    data = load_ratings(ratings, reader)
    with Activity("Decomposing"):
        matrix, decomposed = data.matrix, "implicit data"
        if not data.implicit:
            bias: Any = make_model("bias").fit(data)
            decomposed = "ratings minus user and item biases"
            matrix = data.matrix.copy()
            matrix.data -= bias.predict(data.user_index_of_nonzeros(), data.indices)
        svd = lowrank.truncated_svd(matrix, min(k, *data.shape), random_state=0)
    energy = float(svd.frobenius_norm or 0.0) ** 2
    head = {"decomposed": decomposed, "frobenius_norm": svd.frobenius_norm}
    report = f"{decomposed}: {{count}} singular values, elbow at {{elbow}}"
    write_spectrum(svd.s, energy, output, plot, report, command="scree", shape=data.shape, **head)


def write_spectrum(
    singular_values: Any, total: float, output: Output, plot: str | None, report: str, **head: Any
) -> None:
    """Write singular values with their energies, shares of `total`, and plot them to a file."""
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
    kept = cumulative[-1] if len(s) else 1.0
    note(report.format(count=len(s), elbow=rank, kept=f"{kept:.1%}"))
    bars = []
    for value in s / (s.max(initial=0.0) or 1.0):
        full, eighths = divmod(round(value * _BAR * 8), 8)
        bars.append(("█" * full + _EIGHTHS[eighths]).rstrip())
    document = {**head, "elbow": rank, "rows": frame.to_dicts()}
    output.write_document(document, frame, frame.with_columns(pl.Series("", bars)))


def check_plot(path: str | None) -> None:
    """Check, before the work, that a plot can be drawn and written.

    Raises
    ------
    CommandError
        If matplotlib is missing, or the file cannot be written.
    """
    from importlib.util import find_spec

    if path is not None and find_spec("matplotlib") is None:
        raise CommandError(f"--plot {missing_extra('matplotlib', 'plot')}")
    check_file(path, "--plot", (".png", ".svg", ".pdf"))
