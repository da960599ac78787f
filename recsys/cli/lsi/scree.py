"""`recsys lsi scree`: how fast the singular values of the documents fall."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from recsys.cli.lsi.inputs import open_index
from recsys.cli.options import command, option, output_options
from recsys.cli.output import Output
from recsys.cli.progress import note
from recsys.cli.spectra import check_plot, draw, spectrum_frame, with_bars

if TYPE_CHECKING:
    from recsys.lsi import LSI

__all__ = ["scree"]


@command(
    "scree",
    examples=["recsys lsi scree index", "recsys lsi scree index --plot scree.png --quiet"],
)
@click.argument("index", type=click.Path())
@option("--plot", metavar="FILE.png|svg|pdf", type=click.Path(), help="Draw them as well.")
@output_options
def scree(index: str, plot: str | None, output: Output) -> None:
    """Show the singular values of an index.

    energy is the square of a singular value as a share of that of all weighted words, cumulative
    its running sum. The elbow is the number of dimensions before the point farthest below the
    line from the first singular value to the last; `recsys lsi index -k` takes it, or a number.
    """
    check_plot(plot)
    lsi = open_index(index)
    rank, total = _elbow(lsi), _energy(lsi)
    frame = spectrum_frame(lsi.singular_values_, total)
    if plot is not None:
        draw(lsi.singular_values_, total, rank, "elbow", plot)
    kept = frame["cumulative"][-1]
    note(f"{len(frame)} dimensions keep {kept:.1%} of the energy; elbow at {rank}")
    document = {"command": "lsi scree", "elbow": rank, "energy": total, "rows": frame.to_dicts()}
    shown = with_bars(frame) if output.resolved_format == "table" else frame
    output.write_document(document, shown)


def _elbow(lsi: LSI) -> int:
    from lowrank.rank import elbow

    return elbow(lsi.singular_values_)


def _energy(lsi: LSI) -> float:
    """Return the squared Frobenius norm of what is indexed, added documents included."""
    import numpy as np

    energy = float(np.sum(lsi.documents_.rows.data.astype(np.float64) ** 2))
    return max(energy, float(np.sum(lsi.singular_values_.astype(np.float64) ** 2)))
