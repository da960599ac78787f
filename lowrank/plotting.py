"""Pictures of spectra, of data in two dimensions and of directions."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from lowrank.rank import cumulative_energy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "COLOURS",
    "DIVERGING",
    "GREY",
    "MANY_COLOURS",
    "MARKERS",
    "SEQUENTIAL",
    "axes_of",
    "eigen_images",
    "figure_of",
    "loadings",
    "scores",
    "scree",
    "whitening_comparison",
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


_MOST_MARKED = 60  # points of a scree curve that each get a marker


def scree(
    spectrum: Any,
    *,
    k: int | None = None,
    total: float | None = None,
    rule: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the scree curve, the share of the energy up to each rank, and the rank chosen.

    Parameters
    ----------
    spectrum : PCA, SVD or array-like of shape (p,)
        A fitted `lowrank.PCA` (or scikit-learn's), whose explained variances are drawn; an `SVD`,
        or singular values in descending order.
    k : int, optional
        The chosen rank, from 0 to p, which is marked.
    total : float, optional
        Energy of the whole matrix, the square of its Frobenius norm, where it isn't known from
        `spectrum`. By default that of the values given.
    rule : str, optional
        How `k` was chosen, for the legend.
    ax : matplotlib Axes, optional
        Where to draw. The cumulative share gets a second axis on its right.

    Returns
    -------
    matplotlib.axes.Axes
        The axes of the scree curve.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    ValueError
        If the values are not descending, there are none, `k` is out of its range, or a `rule` is
        named without the `k` that it chose.

    Examples
    --------
    >>> axes = scree([9.0, 4.0, 1.0, 0.5], k=2, rule="elbow")
    >>> axes.get_xlabel()
    'component'
    """
    values, shares, name, whole = _curve(spectrum, total)
    if rule is not None and k is None:
        raise ValueError(f"k must be given with a rule, as what it chose; got rule={rule!r} alone.")
    if k is not None and not 0 <= operator.index(k) <= values.size:
        raise ValueError(f"k must be between 0 and {values.size}; got {k}.")
    axes = axes_of(ax, (7, 4.2))
    ranks = np.arange(1, values.size + 1)
    marker = "o" if values.size <= _MOST_MARKED else ""
    axes.plot(ranks, values, marker=marker, markersize=4, color=COLOURS[0], label=name)
    right = axes.twinx()
    right.plot(
        ranks, shares, marker=marker, markersize=3, color=COLOURS[1], linestyle="--", label=whole
    )
    if k is not None:
        label = f"k = {k}" if rule is None else f"{rule}: k = {k}"
        axes.axvline(k, color=GREY, linestyle=":", linewidth=1.5, label=label)
    _finish_scree(axes, right, name, whole, (0.5 if k != 0 else -0.5, values.size + 0.5))
    return axes


def _finish_scree(
    axes: Axes, right: Axes, name: str, whole: str, limits: tuple[float, float]
) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axes.set(xlabel="component", ylabel=name, ylim=(0, None), xlim=limits)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.label.set_color(COLOURS[0])
    right.set(ylabel=whole, ylim=(0, 1.02))
    right.yaxis.label.set_color(COLOURS[1])
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    handles = [*axes.get_lines(), *right.get_lines()]
    axes.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=len(handles),
        frameon=False,
    )
    for side in (axes, right):
        side.spines["top"].set_visible(False)


def _curve(
    spectrum: Any, total: float | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], str, str]:
    """Return what is drawn of a spectrum, its cumulative shares, and the names of the two."""
    if hasattr(spectrum, "explained_variance_ratio_"):
        values = np.asarray(spectrum.explained_variance_, np.float64)
        shares = np.cumsum(np.asarray(spectrum.explained_variance_ratio_, np.float64))
        names = "explained variance", "cumulative variance"
    else:
        values = np.asarray(getattr(spectrum, "s", spectrum), np.float64)
        norm = getattr(spectrum, "frobenius_norm", None)
        if total is None and norm is not None:
            total = float(norm) ** 2
        shares = cumulative_energy(values, total)
        names = "singular value", "cumulative energy"
    if values.size == 0:
        raise ValueError("spectrum must have at least one value; got none.")
    return values, shares, *names


_MOST_ROWS = 20_000  # points beyond which a cloud is drawn as an image inside a vector file


def scores(
    Z: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    components: tuple[int, int] = (0, 1),
    estimator: Any = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw samples by two of their scores, coloured by label.

    Parameters
    ----------
    Z : array-like of shape (n_samples, k)
        Scores, as `PCA.transform` gives them; k >= 2.
    labels : array-like of shape (n_samples,), optional
        Classes, each with a colour and a marker of its own; real numbers of more than ten different
        values are a colour scale.
    components : tuple of int
        The two columns to draw.
    estimator : PCA, optional
        The fitted estimator, whose shares of the variance are then on the axes.
    ax : matplotlib Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    ValueError
        If Z does not have those columns, or the labels are not as many as its rows.
    """
    points = _two_columns(Z, components, "Z")
    axes = axes_of(ax, (6.4, 4.8))
    look: dict[str, Any] = {
        "s": _marker_area(len(points)),
        "alpha": 0.7,
        "linewidths": 0,
        "rasterized": len(points) > _MOST_ROWS,
    }
    if labels is None:
        axes.scatter(points[:, 0], points[:, 1], color=COLOURS[0], **look)
    else:
        _coloured(axes, points, _checked_labels(labels, len(points)), look)
    across, up = (_component_name(j, estimator) for j in components)
    axes.set(xlabel=across, ylabel=up)
    without_box(axes)
    return axes


def _two_columns(given: ArrayLike, pair: tuple[int, int], name: str) -> NDArray[Any]:
    array = np.asarray(given)
    columns = array.shape[1] if array.ndim == 2 else 0
    if not all(0 <= j < columns for j in pair):
        raise ValueError(f"{name} must have the columns {pair}; got shape {array.shape}.")
    return array[:, list(pair)]


def _checked_labels(labels: ArrayLike, size: int) -> NDArray[Any]:
    array = np.asarray(labels)
    if array.shape != (size,):
        raise ValueError(f"labels must have shape ({size},); got {array.shape}.")
    return array


def _coloured(axes: Axes, points: NDArray[Any], labels: NDArray[Any], look: dict[str, Any]) -> None:
    from matplotlib.lines import Line2D

    names = np.unique(labels)
    if names.size > 10 and labels.dtype.kind in "fiu":
        cloud = axes.scatter(points[:, 0], points[:, 1], c=labels, cmap=SEQUENTIAL, **look)
        axes.figure.colorbar(cloud, ax=axes, label="label")
        return
    looks = _looks(names.size)
    for name, (colour, marker) in zip(names, looks, strict=True):
        chosen = points[labels == name]
        axes.scatter(chosen[:, 0], chosen[:, 1], color=colour, marker=marker, **look)
    handles = [
        Line2D([], [], linestyle="", marker=marker, color=colour, label=str(name))
        for name, (colour, marker) in zip(names, looks, strict=True)
    ]
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _looks(count: int) -> list[tuple[str, str]]:
    """Return colour and marker of each class: where colours begin anew, markers have moved on."""
    colours = COLOURS if count <= len(COLOURS) else MANY_COLOURS
    return [
        (colours[place % len(colours)], MARKERS[place % len(MARKERS)]) for place in range(count)
    ]


def whitening_comparison(
    X: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    features: tuple[int, int] = (0, 1),
    fig: Figure | None = None,
) -> Figure:
    """Draw two features of some data before whitening, and after PCA and ZCA whitening.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Dense data; they are whitened with all their features.
    labels : array-like of shape (n_samples,), optional
        Classes, each with a colour of its own; by default samples are coloured by their first
        feature, so that one sees where they go.
    features : tuple of int
        The two columns to draw. After PCA whitening they are components.
    fig : matplotlib Figure, optional
        Where to draw.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    ValueError
        If X does not have those columns, or cannot be whitened.
    """
    from lowrank.whitening import Whitening

    data = np.asarray(X)
    before = _two_columns(data, features, "X")
    clouds = {"before": before - before.mean(axis=0)}
    for method in ("pca", "zca"):
        whitened = Whitening(method, epsilon=0.0).fit_transform(data)
        clouds[f"{method.upper()} whitening"] = _two_columns(whitened, features, "whitened X")
    figure = figure_of(fig, (10.5, 3.9))
    what = None if labels is None else _checked_labels(labels, len(data))
    for axes, (title, points) in zip(figure.subplots(1, 3), clouds.items(), strict=True):
        _cloud(axes, points, before[:, 0] if what is None else what)
        axes.set_title(title)
        kind = "component" if title.startswith("PCA") else "feature"
        axes.set_xlabel(f"{kind} {features[0] + 1}")
        axes.set_ylabel(f"{kind} {features[1] + 1}")
    return figure


def _cloud(axes: Axes, points: NDArray[Any], colour: NDArray[Any]) -> None:
    """Draw points about the origin at equal scales, with the ellipse of two standard deviations."""
    from matplotlib.colors import ListedColormap

    names, codes = np.unique(colour, return_inverse=True)
    few = names.size <= len(COLOURS)
    cmap: Any = ListedColormap(list(COLOURS[: names.size])) if few else SEQUENTIAL
    shade = codes if few or colour.dtype.kind not in "fiu" else colour
    area = _marker_area(len(points))
    axes.scatter(
        points[:, 0],
        points[:, 1],
        c=shade,
        cmap=cmap,
        s=area,
        alpha=0.7,
        linewidths=0,
        rasterized=len(points) > _MOST_ROWS,
    )
    angle = np.linspace(0, 2 * np.pi, 200)
    values, vectors = np.linalg.eigh(np.cov(points.T))
    circle = np.stack([np.cos(angle), np.sin(angle)])
    ellipse = vectors @ (2 * np.sqrt(np.maximum(values, 0))[:, None] * circle)
    axes.plot(*ellipse, color="black", linewidth=1.2)
    axes.set_aspect("equal", adjustable="datalim")
    without_box(axes)


def _component_name(j: int, estimator: Any) -> str:
    if estimator is None:
        return f"component {j + 1}"
    return f"component {j + 1} ({estimator.explained_variance_ratio_[j]:.1%} of the variance)"


def _marker_area(size: int) -> float:
    """Return the area of a marker, in square points: smaller in larger clouds."""
    return float(np.clip(25_000 / max(size, 1), 3, 28))


_MOST_LABELLED = 40  # features whose names fit below the bars


def loadings(
    components: Any,
    *,
    count: int = 3,
    names: Sequence[str] | None = None,
    fig: Figure | None = None,
) -> Figure:
    """Draw the entries of the first components as bars, one row of the picture for each.

    Parameters
    ----------
    components : PCA or array-like of shape (k, n_features)
        A fitted estimator with ``components_``, or the components.
    count : int
        How many are drawn, at most.
    names : sequence of str, optional
        Names of the features; by default those that the estimator has seen.
    fig : matplotlib Figure, optional
        Where to draw.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    ValueError
        If there is no component, `count` is below 1, or the names are not as many as the features.
    """
    rows = _components(components, count)
    found = getattr(components, "feature_names_in_", None) if names is None else names
    if found is not None and len(found) != rows.shape[1]:
        raise ValueError(f"names must have length {rows.shape[1]}; got {len(found)}.")
    features = np.arange(rows.shape[1])
    named = found is not None and features.size <= _MOST_LABELLED
    longest = max(len(str(name)) for name in found) if named and found is not None else 0
    across = max(5.0, min(11.0, 0.3 * features.size + 1.5))
    figure = figure_of(fig, (across, 0.6 + 1.4 * len(rows) + 0.08 * longest))
    grid = figure.subplots(len(rows), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    width = 1.0 if features.size > 2 * _MOST_LABELLED else 0.8
    for j, (axes, row) in enumerate(zip(grid, rows, strict=True)):
        colours = np.where(row >= 0, COLOURS[0], COLOURS[1])
        axes.bar(features, row, width=width, color=colours)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_ylabel(f"component {j + 1}")
        axes.set_xlim(-0.7, features.size - 0.3)
        without_box(axes)
    limit = 1.08 * (float(np.abs(rows).max()) or 1.0)
    grid[0].set_ylim(-limit, limit)
    if named and found is not None:
        upright = longest > 3
        grid[-1].set_xticks(features, [str(name) for name in found], rotation=90 * upright)
    else:
        grid[-1].set_xlabel("feature")
    return figure


def eigen_images(
    components: Any,
    shape: tuple[int, int] | None = None,
    *,
    count: int = 16,
    fig: Figure | None = None,
) -> Figure:
    """Draw components as images: red is positive, blue negative and white zero.

    The sign of a component is a convention, so the colours are symmetric; each image has its own
    scale, from minus to plus its largest absolute value.

    Parameters
    ----------
    components : PCA or array-like of shape (k, height * width)
        A fitted estimator with ``components_``, or the components, of images as rows.
    shape : tuple of int, optional
        Height and width; by default they are square.
    count : int
        How many are drawn, at most.
    fig : matplotlib Figure, optional
        Where to draw.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    ValueError
        If there is no component, `count` is below 1, or `shape` does not have as many pixels as
        they have entries.
    """
    rows = _components(components, count)
    height, width = _image_shape(rows.shape[1], shape)
    across = int(np.ceil(np.sqrt(len(rows))))
    down = -(-len(rows) // across)
    figure = figure_of(fig, (1.35 * across, (1.35 * height / width + 0.25) * down))
    grid = figure.subplots(down, across, squeeze=False).ravel()
    for j, axes in enumerate(grid):
        axes.set_axis_off()
        if j >= len(rows):
            continue
        limit = float(np.abs(rows[j]).max()) or 1.0
        image = rows[j].reshape(height, width)
        axes.imshow(image, cmap=DIVERGING, vmin=-limit, vmax=limit, interpolation="nearest")
        axes.set_title(_image_title(components, j), fontsize="small", pad=3)
    return figure


def _image_title(components: Any, j: int) -> str:
    ratio = getattr(components, "explained_variance_ratio_", None)
    return f"{j + 1}" if ratio is None else f"{j + 1} ({ratio[j]:.1%})"


def _image_shape(pixels: int, shape: tuple[int, int] | None) -> tuple[int, int]:
    side = round(np.sqrt(pixels))
    height, width = (side, side) if shape is None else shape
    if height * width != pixels:
        given = "images that are not square need one" if shape is None else f"got {shape}"
        raise ValueError(f"shape must be that of images with {pixels} pixels; {given}.")
    return int(height), int(width)


def _components(given: Any, count: int) -> NDArray[Any]:
    """Return the first components, `count` of them at most."""
    rows = np.asarray(getattr(given, "components_", given))
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(
            f"components must have at least one row and one column; got shape {rows.shape}."
        )
    if count < 1:
        raise ValueError(f"count must be at least 1; got {count}.")
    return rows[:count]
