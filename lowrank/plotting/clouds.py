"""Samples as clouds of points: their scores, and what whitening makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lowrank.plotting.style import (
    COLOURS,
    MANY_COLOURS,
    MARKERS,
    SEQUENTIAL,
    axes_of,
    figure_of,
    without_box,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike, NDArray

__all__ = ["scores", "whitening_comparison"]

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
