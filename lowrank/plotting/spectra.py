"""The scree curve."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from lowrank.plotting.style import COLOURS, GREY, axes_of
from lowrank.rank import cumulative_energy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

__all__ = ["scree"]

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
