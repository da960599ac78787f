"""`recsys scree`: how fast the singular values of the ratings fall."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from recsys.cli.options import ReaderOptions, command, option, output_options, reader_options
from recsys.cli.output import Output
from recsys.cli.progress import Activity, note
from recsys.cli.spectra import check_plot, draw, spectrum_frame, with_bars

if TYPE_CHECKING:
    import polars as pl
    import scipy.sparse as sp

    from lowrank import SVD
    from recsys.ratings import Ratings

__all__ = ["scree"]


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
    from recsys.models import model_class

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
