"""Plots of spectra, scores and loadings, components as images, and whitened data.

matplotlib is imported when a function is called; without it an ImportError names the extra. No
function uses pyplot or changes its settings.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from lowrank.errors import ArgumentError, missing_extra
from lowrank.rank import cumulative_energy
from lowrank.whitening import Whitening

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike, NDArray

    from lowrank.pca import PCA
    from lowrank.svd import SVD

__all__ = ["eigen_images", "loadings", "scores", "scree", "whitening_comparison"]

# Okabe & Ito (2008), safe for colour-blind readers; their yellow is too light on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = (
    "o",
    "s",
    "^",
    "D",
    "v",
    "P",
)  # one less than colours, to distinguish 42 classes
_MOST_MARKED = 60  # maximum number of points of a scree curve that get markers
_MOST_ROWS = (
    20_000  # with more points, a scatter plot in a vector file is drawn as an image
)
_MOST_LABELLED = 40  # maximum number of features whose names fit below the bars


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
    given: Any = spectrum
    if hasattr(given, "explained_variance_ratio_"):
        values = np.asarray(given.explained_variance_, np.float64)
        shares = np.cumsum(np.asarray(given.explained_variance_ratio_, np.float64))
        name, whole = "explained variance", "cumulative variance"
    else:
        values = np.asarray(getattr(given, "s", given), np.float64)
        norm = getattr(given, "frobenius_norm", None)
        shares = cumulative_energy(values, norm**2 if total is None and norm else total)
        name, whole = "singular value", "cumulative energy"
    if values.size == 0:
        raise ArgumentError("spectrum must have at least one value; got none.")
    if rule is not None and k is None:
        raise ArgumentError(f"k must be given with a rule; got rule={rule!r} alone.")
    if k is not None and not 0 <= operator.index(k) <= values.size:
        raise ArgumentError(f"k must be between 0 and {values.size}; got {k}.")
    axes = _axes(ax, (7, 4.2))
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    ranks, marker = (
        np.arange(1, values.size + 1),
        "o" if values.size <= _MOST_MARKED else "",
    )
    axes.plot(ranks, values, marker=marker, markersize=4, color=_COLOURS[0], label=name)
    right = axes.twinx()
    right.plot(
        ranks, shares, "--", marker=marker, markersize=3, color=_COLOURS[1], label=whole
    )
    if k is not None:
        label = f"k = {k}" if rule is None else f"{rule}: k = {k}"
        axes.axvline(k, color="#666666", linestyle=":", linewidth=1.5, label=label)
    axes.set(xlabel="component", ylim=(0, None))
    right.set(ylim=(0, 1.02))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    for side in (axes, right):
        curve = side.get_lines()[0]
        side.set_ylabel(str(curve.get_label()), color=curve.get_color())
        side.spines["top"].set_visible(False)
    handles, above = [*axes.get_lines(), *right.get_lines()], (0.5, 1.0)
    axes.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=above,
        ncols=len(handles),
        frameon=False,
    )
    axes.set_xlim(0.5 if k != 0 else -0.5, values.size + 0.5)
    return axes


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
    points = _two_columns(Z, components, "Z")
    axes = _axes(ax, (6.4, 4.8))
    if labels is None:
        _scatter(axes, points, color=_COLOURS[0])
    else:
        _scatter_by_label(
            axes, points, _checked_labels(labels, len(points)), legend=True
        )
    names = [f"component {j + 1}" for j in components]
    if estimator is not None:
        shares = [estimator.explained_variance_ratio_[j] for j in components]
        names = [
            f"{name} ({x:.1%} of the variance)"
            for name, x in zip(names, shares, strict=True)
        ]
    axes.set(xlabel=names[0], ylabel=names[1])
    return axes


def _scatter_by_label(
    axes: Axes, points: NDArray[Any], labels: NDArray[Any], *, legend: bool = False
) -> None:
    from matplotlib.lines import Line2D

    names = np.unique(labels)
    if names.size > 10 and labels.dtype.kind in "fiu":
        cloud = _scatter(axes, points, c=labels, cmap="viridis")
        if legend:
            axes.figure.colorbar(cloud, ax=axes, label="label")
        return
    handles = []
    for place, name in enumerate(names):
        colour, marker = (
            _COLOURS[place % len(_COLOURS)],
            _MARKERS[place % len(_MARKERS)],
        )
        _scatter(axes, points[labels == name], len(points), color=colour, marker=marker)
        handles.append(
            Line2D([], [], ls="", marker=marker, color=colour, label=str(name))
        )
    if legend:
        axes.legend(
            handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False
        )


def whitening_comparison(
    X: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    features: tuple[int, int] = (0, 1),
    fig: Figure | None = None,
) -> Figure:
    """Plot two features of data before whitening, and after PCA and ZCA whitening.

    Points are centred and at equal scales, with the ellipse of two standard deviations.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Dense data, which are whitened with all features.
    labels : array-like of shape (n_samples,), optional
        Classes, each with its own colour. By default samples are coloured by the first of the two
        features, which shows where whitening moves them.
    features : tuple of int
        The two columns to plot. After PCA whitening they are components.
    fig : matplotlib Figure, optional
        Figure to draw in, by default a new one.

    Raises
    ------
    ArgumentError
        If X does not have these columns, or cannot be whitened.
    """
    data = np.asarray(X)
    before = _two_columns(data, features, "X")
    clouds = {"before": before - before.mean(axis=0)}
    for method in ("pca", "zca"):
        whitened = Whitening(method, epsilon=0.0).fit_transform(data)
        clouds[f"{method.upper()} whitening"] = _two_columns(
            whitened, features, "whitened X"
        )
    figure = _figure(fig, (10.5, 3.9))
    shade = before[:, 0] if labels is None else _checked_labels(labels, len(data))
    angle = np.linspace(0, 2 * np.pi, 200)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    for axes, (title, points) in zip(
        figure.subplots(1, 3), clouds.items(), strict=True
    ):
        _scatter_by_label(axes, points, shade)
        values, vectors = np.linalg.eigh(np.cov(points.T))
        ellipse = vectors @ (2 * np.sqrt(np.maximum(values, 0))[:, None] * circle)
        axes.plot(*ellipse, color="black", linewidth=1.2)
        axes.set_aspect("equal", adjustable="datalim")
        axes.set_title(title)
        kind = "component" if title.startswith("PCA") else "feature"
        axes.set_xlabel(f"{kind} {features[0] + 1}")
        axes.set_ylabel(f"{kind} {features[1] + 1}")
    return figure


def _scatter(
    axes: Axes, points: NDArray[Any], size: int | None = None, **look: Any
) -> Any:
    """Draw a scatter plot; markers are smaller for more points (`size`, by default all given)."""
    size = len(points) if size is None else size
    area = float(np.clip(25_000 / max(size, 1), 3, 28))
    look |= {"s": area, "alpha": 0.7, "linewidths": 0, "rasterized": size > _MOST_ROWS}
    _without_box(axes)
    return axes.scatter(points[:, 0], points[:, 1], **look)


def loadings(
    components: PCA | ArrayLike,
    *,
    count: int = 3,
    names: Sequence[str] | None = None,
    fig: Figure | None = None,
) -> Figure:
    """Plot the entries of the first components as bars, in one row of the figure each.

    Parameters
    ----------
    components : PCA or array-like of shape (k, n_features)
        A fitted estimator with ``components_``, or the components.
    count : int
        Maximum number of components to plot.
    names : sequence of str, optional
        Names of the features, by default the estimator's.
    fig : matplotlib Figure, optional
        Figure to draw in, by default a new one.

    Raises
    ------
    ArgumentError
        If there are no components, `count` is below 1, or the number of names is not that of the
        features.
    """
    rows = _components(components, count)
    found = getattr(components, "feature_names_in_", None) if names is None else names
    if found is not None and len(found) != rows.shape[1]:
        raise ArgumentError(
            f"names must have length {rows.shape[1]}; got {len(found)}."
        )
    features = np.arange(rows.shape[1])
    named = found is not None and features.size <= _MOST_LABELLED
    longest = (
        max(len(str(name)) for name in found) if named and found is not None else 0
    )
    across = max(5.0, min(11.0, 0.3 * features.size + 1.5))
    figure = _figure(fig, (across, 0.6 + 1.4 * len(rows) + 0.08 * longest))
    grid = figure.subplots(len(rows), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    width = 1.0 if features.size > 2 * _MOST_LABELLED else 0.8
    for j, (axes, row) in enumerate(zip(grid, rows, strict=True)):
        colours = np.where(row >= 0, _COLOURS[0], _COLOURS[1])
        axes.bar(features, row, width=width, color=colours)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_ylabel(f"component {j + 1}")
        axes.set_xlim(-0.7, features.size - 0.3)
        _without_box(axes)
    limit = 1.08 * (float(np.abs(rows).max()) or 1.0)
    grid[0].set_ylim(-limit, limit)
    if named and found is not None:
        upright = longest > 3
        grid[-1].set_xticks(
            features, [str(name) for name in found], rotation=90 * upright
        )
    else:
        grid[-1].set_xlabel("feature")
    return figure


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
        If there are no components, `count` is below 1, or the number of pixels of `shape` is not
        that of the features.
    """
    rows = _components(components, count)
    pixels = rows.shape[1]
    side = round(np.sqrt(pixels))
    height, width = (side, side) if shape is None else shape
    if height * width != pixels:
        got = "images that are not square need one" if shape is None else f"got {shape}"
        raise ArgumentError(
            f"shape must be that of images with {pixels} pixels; {got}."
        )
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
            image, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest"
        )
        title = f"{j + 1}" if ratios is None else f"{j + 1} ({ratios[j]:.1%})"
        axes.set_title(title, fontsize="small", pad=3)
    return figure


def _components(given: Any, count: int) -> NDArray[Any]:
    """Return the first components, at most `count`."""
    rows = np.asarray(getattr(given, "components_", given))
    if rows.ndim != 2 or 0 in rows.shape:
        raise ArgumentError(
            f"components must have at least one row and one column; got shape {rows.shape}."
        )
    if count < 1:
        raise ArgumentError(f"count must be at least 1; got {count}.")
    return rows[:count]


def _two_columns(given: ArrayLike, pair: tuple[int, int], name: str) -> NDArray[Any]:
    array = np.asarray(given)
    columns = array.shape[1] if array.ndim == 2 else 0
    if not all(0 <= j < columns for j in pair):
        raise ArgumentError(
            f"{name} must have the columns {pair}; got shape {array.shape}."
        )
    return array[:, list(pair)]


def _checked_labels(labels: ArrayLike, size: int) -> NDArray[Any]:
    array = np.asarray(labels)
    if array.shape != (size,):
        raise ArgumentError(f"labels must have shape ({size},); got {array.shape}.")
    return array


def _without_box(axes: Axes) -> None:
    """Remove the upper and the right side of the frame."""
    axes.spines[["top", "right"]].set_visible(False)


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
