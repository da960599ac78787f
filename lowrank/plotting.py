"""Plots of spectra, of scores, and of components as images.

matplotlib is imported when a function is called; without it an ImportError names the extra. No
function uses pyplot or changes its settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lowrank.errors import ArgumentError, checked_integer, missing_extra
from lowrank.rank import cumulative_energy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike, NDArray

    from lowrank.kernels.arrays import Float64s
    from lowrank.pca import PCA
    from lowrank.svd import SVD

__all__ = ["eigen_images", "scores", "scree"]

# Okabe & Ito (2008), safe for colour-blind readers; their yellow is too light on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osDv^P"  # one less than colours, to distinguish 42 classes
_MOST_MARKED = 60  # maximum number of points of a scree curve that get markers
# With more points, a scatter plot in a vector file is drawn as an image.
_MOST_ROWS = 20_000


def scree(
    spectrum: PCA | SVD | ArrayLike,
    *,
    k: int | None = None,
    total: float | None = None,
    rule: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Plot a scree curve with the cumulative share of the energy and a chosen rank.

    Parameters
    ----------
    spectrum : PCA, SVD or array-like of shape (p,)
        A fitted `lowrank.PCA` (or scikit-learn's), whose explained variances are plotted; an `SVD`;
        or singular values in descending order.
    k : int, optional
        Rank to mark, from 0 to p.
    total : float, optional
        Energy ||A||_F^2 if `spectrum` does not have it, by default of the given values.
    rule : str, optional
        Rule by which `k` was chosen, for the legend.
    ax : matplotlib Axes, optional
        Axes to draw in, by default of a new figure. The cumulative share gets a second axis
        on the right.

    Raises
    ------
    ArgumentError
        If there are no values or they are not in descending order, `k` is out of its range, or
        `rule` is given without `k`.

    Examples
    --------
    >>> axes = scree([9.0, 4.0, 1.0, 0.5], k=2, rule="elbow")
    >>> axes.get_xlabel()
    'component'
    """
    values, shares, noun, noun_of_shares = _spectrum(spectrum, total)
    if values.size == 0:
        raise ArgumentError("spectrum must have at least one value; got none.")
    if rule is not None and k is None:
        raise ArgumentError(f"k must be given with a rule; got rule={rule!r} alone.")
    if k is not None and not 0 <= checked_integer(k, "k") <= values.size:
        raise ArgumentError(f"k must be between 0 and {values.size}; got {k}.")
    axes = _axes(ax, (7, 4.2))
    ranks = np.arange(1, values.size + 1)
    marker = "o" if values.size <= _MOST_MARKED else ""
    axes.plot(
        ranks,
        values,
        marker=marker,
        markersize=4,
        color=_COLOURS[0],
        label=noun,
    )
    right = axes.twinx()  # shares have a scale of their own
    right.plot(
        ranks,
        shares,
        "--",
        marker=marker,
        markersize=3,
        color=_COLOURS[1],
        label=noun_of_shares,
    )
    if k is not None:
        label = f"k = {k}" if rule is None else f"{rule}: k = {k}"
        axes.axvline(
            k,
            color="#666666",
            linestyle=":",
            linewidth=1.5,
            label=label,
        )
    _finish_scree(axes, right)
    axes.set_xlim(0.5 if k != 0 else -0.5, values.size + 0.5)  # show the mark of k = 0
    return axes


def _spectrum(source: Any, total: float | None) -> tuple[Float64s, Float64s, str, str]:
    """Return the values to plot, their cumulative shares, and the names of both."""
    if hasattr(source, "explained_variance_ratio_"):
        values = np.asarray(source.explained_variance_, np.float64)
        shares = np.cumsum(np.asarray(source.explained_variance_ratio_, np.float64))
        return values, shares, "explained variance", "cumulative variance"
    singular_values = getattr(source, "s", source)
    norm = getattr(source, "frobenius_norm", None)
    if total is None and norm:
        total = norm**2
    shares = cumulative_energy(singular_values, total)
    values = np.asarray(singular_values, np.float64)
    return values, shares, "singular value", "cumulative energy"


def _finish_scree(axes: Axes, right: Axes) -> None:
    """Name and scale the axes of both curves, and add a legend above them."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axes.set(xlabel="component", ylim=(0, None))
    right.set(ylim=(0, 1.02))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    for side in (axes, right):
        curve = side.get_lines()[0]
        side.set_ylabel(str(curve.get_label()), color=curve.get_color())
        side.spines["top"].set_visible(False)
    handles = [*axes.get_lines(), *right.get_lines()]
    axes.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=len(handles),
        frameon=False,
    )


def scores(
    Z: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    components: tuple[int, int] = (0, 1),
    estimator: PCA | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Plot two columns of the scores of samples, coloured by label.

    Parameters
    ----------
    Z : array-like of shape (n_samples, k)
        Scores, as returned by `PCA.transform`; k >= 2.
    labels : array-like of shape (n_samples,), optional
        Classes, each with its own colour and marker. Numbers with more than ten distinct values
        are shown on a colour scale.
    components : tuple of int
        The two columns to plot.
    estimator : PCA, optional
        The fitted estimator, whose explained variance ratios label the axes.
    ax : matplotlib Axes, optional
        Axes to draw in, by default of a new figure.

    Raises
    ------
    ArgumentError
        If Z does not have these columns, or `labels` does not have one entry per row of Z.
    """
    points = np.asarray(Z)
    n_columns = points.shape[1] if points.ndim == 2 else 0
    if not all(0 <= j < n_columns for j in components):
        raise ArgumentError(
            f"Z must have the columns {components}; got shape {points.shape}."
        )
    points = points[:, list(components)]
    axes = _axes(ax, (6.4, 4.8))
    axes.spines[["top", "right"]].set_visible(False)
    if labels is None:
        _scatter(axes, points, len(points), color=_COLOURS[0])
    else:
        classes = np.asarray(labels)
        if classes.shape != (len(points),):
            raise ArgumentError(
                f"labels must have shape ({len(points)},); got {classes.shape}."
            )
        _scatter_by_label(axes, points, classes)
    names = [f"component {j + 1}" for j in components]
    if estimator is not None:
        for at, j in enumerate(components):
            share = estimator.explained_variance_ratio_[j]
            names[at] += f" ({share:.1%} of the variance)"
    axes.set_xlabel(names[0])
    axes.set_ylabel(names[1])
    return axes


def _scatter_by_label(
    axes: Axes,
    points: NDArray[Any],
    labels: NDArray[Any],
) -> None:
    from matplotlib.lines import Line2D

    names = np.unique(labels)
    if names.size > 10 and labels.dtype.kind in "fiu":
        cloud = _scatter(axes, points, len(points), c=labels, cmap="viridis")
        axes.figure.colorbar(cloud, ax=axes, label="label")
        return
    handles = []
    for index, name in enumerate(names):
        colour = _COLOURS[index % len(_COLOURS)]
        marker = _MARKERS[index % len(_MARKERS)]
        members = points[labels == name]
        _scatter(axes, members, len(points), color=colour, marker=marker)
        handle = Line2D(
            [],
            [],
            ls="",
            marker=marker,
            color=colour,
            label=str(name),
        )
        handles.append(handle)
    axes.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
    )


def _scatter(
    axes: Axes,
    points: NDArray[Any],
    n_all: int,
    **style: Any,
) -> Any:
    """Draw a scatter plot, with smaller markers the more points there are in all."""
    return axes.scatter(
        points[:, 0],
        points[:, 1],
        s=float(np.clip(25_000 / max(n_all, 1), 3, 28)),
        alpha=0.7,
        linewidths=0,
        rasterized=n_all > _MOST_ROWS,
        **style,
    )


def eigen_images(
    components: PCA | ArrayLike,
    shape: tuple[int, int] | None = None,
    *,
    count: int = 16,
    fig: Figure | None = None,
) -> Figure:
    """Plot components as images: red is positive, blue negative and white zero.

    The sign of a component is a convention, so the colour scale is symmetric. Each image has its
    own scale, from minus to plus its largest absolute value.

    Parameters
    ----------
    components : PCA or array-like of shape (k, height * width)
        A fitted estimator with ``components_``, or the components, with images as rows.
    shape : tuple of int, optional
        Height and width; by default images are square.
    count : int
        Maximum number of components to plot.
    fig : matplotlib Figure, optional
        Figure to draw in, by default a new one.

    Raises
    ------
    ArgumentError
        If there are no components, `count` is below 1, or images of `shape` do not have as
        many pixels as there are features.
    """
    rows = np.asarray(getattr(components, "components_", components))
    if rows.ndim != 2 or 0 in rows.shape:
        raise ArgumentError(
            f"components must have at least one row and one column; got shape {rows.shape}."
        )
    if count < 1:
        raise ArgumentError(f"count must be at least 1; got {count}.")
    rows = rows[:count]
    pixels = rows.shape[1]
    side = round(np.sqrt(pixels))
    height, width = (side, side) if shape is None else shape
    if height * width != pixels or height < 1:
        got = "images that are not square need one" if shape is None else f"got {shape}"
        raise ArgumentError(f"shape must fit images with {pixels} pixels; {got}.")
    across = int(np.ceil(np.sqrt(len(rows))))
    down = -(-len(rows) // across)
    figure = _figure(fig, (1.35 * across, (1.35 * height / width + 0.25) * down))
    grid = figure.subplots(down, across, squeeze=False).ravel()
    ratios = getattr(components, "explained_variance_ratio_", None)
    for j, axes in enumerate(grid):
        axes.set_axis_off()
        if j >= len(rows):
            continue
        limit = float(np.abs(rows[j]).max()) or 1.0
        image = rows[j].reshape(height, width)
        axes.imshow(
            image,
            cmap="RdBu_r",
            vmin=-limit,
            vmax=limit,
            interpolation="nearest",
        )
        title = f"{j + 1}" if ratios is None else f"{j + 1} ({ratios[j]:.1%})"
        axes.set_title(title, fontsize="small", pad=3)
    return figure


def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """Return the given axes, or the axes of a new figure."""
    return _figure(None, size).subplots() if ax is None else ax


def _figure(fig: Figure | None, size: tuple[float, float]) -> Figure:
    """Return the given figure, or a new one that pyplot does not manage."""
    if fig is not None:
        return fig
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f"lowrank.plotting {missing_extra('matplotlib', 'plot')}"
        ) from error
    return Figure(figsize=size, layout="constrained")
