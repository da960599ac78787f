"""recsys scree: singular values and the rank they suggest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recsys.cli.errors import CommandError
from recsys.cli.options import ReaderOptions, command, option, output_options, reader_options
from recsys.cli.output import Output, atomic_file
from recsys.cli.progress import Activity, note

if TYPE_CHECKING:
    import polars as pl
    import scipy.sparse as sp

    from lowrank import SVD
    from recsys.data.ratings import Ratings

__all__ = ["check_plot", "draw", "scree", "spectrum_frame", "with_bars"]


@command(
    "scree",
    examples=[
        "recsys scree ratings.csv -k 20",
        "recsys scree ratings.csv --plot scree.png --output scree.csv",
    ],
)
@click.argument("ratings", type=click.Path(allow_dash=True))
@option(
    "-k",
    metavar="K",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="Number of singular values, at most.",
)
@option("--plot", metavar="FILE.png|svg|pdf", type=click.Path(), help="Draw them as well.")
@output_options
@reader_options
def scree(ratings: str, k: int, plot: str | None, output: Output, reader: ReaderOptions) -> None:
    """Show the singular values of the ratings.

    What is decomposed is the sparse matrix of the ratings minus the user and item biases (those of
    the model bias), with zeros where there is no rating; of implicit data, the matrix of ones.
    energy is the square of a singular value as a share of the squared Frobenius norm, cumulative
    its running sum. The elbow is the number of singular values before the point farthest below
    the line from the first to the last.
    """
    from recsys.cli.inputs import load_ratings

    check_plot(plot)
    data = load_ratings(ratings, reader)
    with Activity("Decomposing"):
        svd = _decompose(_matrix(data), k)
    rank, total = _elbow(svd), float(svd.frobenius_norm or 0.0) ** 2
    frame = spectrum_frame(svd.s, total)
    if plot is not None:
        draw(svd.s, total, rank, "elbow", plot)
    note(f"{_what(data)}: {len(svd.s)} singular values, elbow at {rank}")
    shown = with_bars(frame) if output.resolved_format == "table" else frame
    output.write_document(_document(data, svd, rank, frame), shown)


def _what(data: Ratings) -> str:
    return "implicit data" if data.implicit else "ratings minus user and item biases"


def _matrix(data: Ratings) -> sp.csr_array:
    """Make the matrix to decompose; it shares the structure of the ratings."""
    import scipy.sparse as sp

    if data.implicit:
        return data.matrix
    from recsys.models.registry import model_class

    bias = model_class("bias")().fit(data)
    residuals = data.values - bias.predict(data.user_index_of_nonzeros(), data.indices)
    return sp.csr_array((residuals, data.indices, data.indptr), shape=data.shape)


def _decompose(matrix: sp.csr_array, k: int) -> SVD:
    import lowrank

    return lowrank.truncated_svd(matrix, min(k, *matrix.shape), random_state=0)


def _elbow(svd: SVD) -> int:
    from lowrank.rank import elbow

    return elbow(svd.s)


def _document(data: Ratings, svd: SVD, rank: int, frame: pl.DataFrame) -> dict[str, Any]:
    return {
        "command": "scree",
        "decomposed": _what(data),
        "shape": list(data.shape),
        "frobenius_norm": svd.frobenius_norm,
        "elbow": rank,
        "rows": frame.to_dicts(),
    }


_BAR = 24
_PICTURES = ("png", "svg", "pdf")
_EIGHTHS = " ▏▎▍▌▋▊▉"


def spectrum_frame(singular_values: Any, total: float) -> pl.DataFrame:
    """Return rank, singular_value, energy and cumulative, as shares of the energy `total`."""
    import numpy as np
    import polars as pl

    from lowrank.rank import cumulative_energy

    s = np.asarray(singular_values, dtype=np.float64)
    cumulative = cumulative_energy(s, total)
    return pl.DataFrame(
        {
            "rank": np.arange(1, len(s) + 1),
            "singular_value": s,
            "energy": np.diff(cumulative, prepend=0.0),
            "cumulative": cumulative,
        }
    )


def with_bars(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with a bar for each singular value."""
    import polars as pl

    values = frame["singular_value"].to_list()
    largest = max(values, default=0.0) or 1.0
    return frame.with_columns(pl.Series("", [_bar(value / largest) for value in values]))


def _bar(share: float) -> str:
    """Draw a share of the full width in eighths of a character."""
    full, eighths = divmod(round(share * _BAR * 8), 8)
    return ("█" * full + _EIGHTHS[eighths]).rstrip()


def check_plot(path: str | None) -> None:
    """Refuse before the work what `draw` would refuse after it."""
    if path is None:
        return
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise CommandError(
            "--plot needs matplotlib; install it with pip install lowrank-recsys[plot]."
        )
    if _picture_format(path) not in _PICTURES:
        allowed = ", ".join(f".{name}" for name in _PICTURES)
        raise CommandError(f"--plot must name a file that ends in one of {allowed}; got {path}.")
    if not Path(path).parent.is_dir():
        raise CommandError(f"Cannot write {path}: there is no directory {Path(path).parent}.")


def draw(singular_values: Any, total: float, rank: int, rule: str, path: str) -> None:
    """Draw the scree curve with a rank marked on it, to a file that is never half written."""
    from matplotlib.figure import Figure

    from lowrank import plotting

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    plotting.scree(singular_values, k=rank, total=total, rule=rule, ax=figure.subplots())
    with atomic_file(Path(path)) as stream:
        figure.savefig(stream, dpi=150, format=_picture_format(path))


def _picture_format(path: str) -> str:
    return Path(path).suffix.lstrip(".").lower() or _PICTURES[0]
