"""The look that the pictures have in common, and the figures they are drawn on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "COLOURS",
    "DIVERGING",
    "GREY",
    "MANY_COLOURS",
    "MARKERS",
    "SEQUENTIAL",
    "axes_of",
    "figure_of",
    "without_box",
]

# Okabe & Ito (2008), which stay apart for colour-blind readers; the yellow is too light on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# For more classes: the "muted" colours of Tol (2021), and black.
MANY_COLOURS = (
    "#332288",
    "#CC6677",
    "#117733",
    "#88CCEE",
    "#DDCC77",
    "#882255",
    "#44AA99",
    "#999933",
    "#AA4499",
    "#000000",
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#666666"
SEQUENTIAL = "viridis"
DIVERGING = "RdBu_r"


def without_box(axes: Axes) -> None:
    """Leave only the left and the lower side of the frame."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def axes_of(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """Return the axes given, or those of a new figure."""
    return figure_of(None, size).subplots() if ax is None else ax


def figure_of(fig: Figure | None, size: tuple[float, float]) -> Figure:
    """Return the figure given, or a new one that pyplot knows nothing of."""
    if fig is not None:
        return fig
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "lowrank.plotting needs matplotlib; install it with pip install lowrank-recsys[plot]."
        ) from error
    return Figure(figsize=size, layout="constrained")
