"""Components: their entries as bars, or as images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lowrank.plotting.style import COLOURS, DIVERGING, figure_of, without_box

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = ["eigen_images", "loadings"]

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
