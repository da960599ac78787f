"""Draw the pictures of RESULTS.md from its tables: `python benchmarks/pictures.py`.

The pictures show time and memory by size, residual by time for the SVD solvers, and error by time
for the models of ratings. Missing tables are reported; the other pictures are drawn.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "RESULTS.md"
SCALE = "The main job from 1 million to 100 million ratings"
SVD = "Truncated SVD of the Gowalla training matrix"
RATINGS = "Rating prediction on ml-latest-small"
STAGES = ("read s", "fit s", "save s", "load s", "top 20 s")
MARKERS = "osD^vP*X<>h"
OURS = "#3f51b5"
PEERS = ("#e67e22", "#c0392b", "#16a085", "#7f8c8d", "#8e44ad")

Row = dict[str, str]


class MissingTableError(LookupError):
    """RESULTS.md has no such table."""


def table(text: str, heading: str) -> list[Row]:
    """Return the rows of the first table below a heading, each by column.

    Raises
    ------
    MissingTableError
        If there is no such heading, or no table below it.
    """
    parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    body = dict(zip(parts[1::2], parts[2::2], strict=True)).get(heading, "")
    lines = [_cells(line) for line in body.splitlines() if line.startswith("|")]
    if len(lines) < 3:
        raise MissingTableError(f"RESULTS.md has no table below '## {heading}'")
    names, _, *rows = lines
    whole = [row for row in rows if len(row) == len(names) and set(row[0]) - set("-")]
    return [dict(zip(names, row, strict=True)) for row in whole if row != names]


def number(cell: str) -> float:
    """Return the number that a cell begins with: of "0.8399 ±0.0080" the first."""
    return float(cell.replace(",", "").split()[0])


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def draw_scale(rows: list[Row]) -> Figure:
    """Draw seconds of each stage, and the peak of memory, against the number of ratings."""
    figure, (times, memory) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    sizes = [number(row["ratings"]) for row in rows]
    for stage, marker in zip(STAGES, MARKERS, strict=False):
        seconds = [number(row[stage]) for row in rows]
        times.plot(sizes, seconds, marker=marker, label=stage.removesuffix(" s"))
    whole = [sum(number(row[stage]) for stage in STAGES) for row in rows]
    times.plot(sizes, whole, "k--", label="all stages")
    memory.plot(sizes, [number(row["peak GB"]) for row in rows], "o-", color=OURS)
    for axes, quantity in ((times, "seconds"), (memory, "peak memory, GB")):
        axes.set(xscale="log", yscale="log", xlabel="ratings", ylabel=quantity)
    memory.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    memory.yaxis.set_major_formatter("{x:g}")
    memory.yaxis.set_minor_formatter(NullFormatter())
    _legend_below(figure, times)
    return figure


def draw_svd(rows: list[Row]) -> Figure:
    """Draw the residual that each solver reaches against its seconds, for the first matrix."""
    rows = [row for row in rows if row["matrix"] == rows[0]["matrix"]]
    panels = list(dict.fromkeys(row["dtype"] for row in rows))
    figure, all_axes = plt.subplots(
        1, len(panels), figsize=(9, 3.8), layout="constrained", squeeze=False
    )
    solvers = list(dict.fromkeys(row["solver"] for row in rows))
    for axes, dtype in zip(all_axes[0], panels, strict=True):
        for solver, color, marker in _styles(solvers):
            for row in rows:
                if (row["dtype"], row["solver"]) == (dtype, solver):
                    place = (number(row["seconds"]), number(row["residual"]))
                    axes.plot(*place, marker, color=color, label=solver)
                    _name(axes, f"k = {row['k']}", place, below=solver == solvers[0])
        axes.set(xscale="log", yscale="log", xlabel="seconds", title=dtype)
        axes.margins(0.2)
    all_axes[0][0].set_ylabel("largest residual / s[i]")
    _legend_below(figure, all_axes[0][0])
    return figure


def draw_ratings(rows: list[Row]) -> Figure:
    """Draw the RMSE of each model of ratings against the seconds of its fit."""
    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    peers = ("Surprise", "LensKit")
    for rank, row in enumerate(sorted(rows, key=lambda row: number(row["fit s"]))):
        place = (number(row["fit s"]), number(row["RMSE"]))
        library = next(
            (peer for peer in peers if row["model"].startswith(peer)), "recsys"
        )
        color = dict(zip(("recsys", *peers), (OURS, *PEERS), strict=False))[library]
        interval = float(row["RMSE"].partition("±")[2] or 0)
        marker = dict(zip(("recsys", *peers), MARKERS, strict=False))[library]
        axes.errorbar(
            *place,
            yerr=interval,
            fmt=marker,
            color=color,
            label=library,
            elinewidth=0.7,
        )
        _name(
            axes, row["model"].removeprefix(f"{library} "), place, below=rank % 2 == 1
        )
    axes.set(xscale="log", xlabel="seconds of a fit", ylabel="RMSE, with 95% intervals")
    axes.margins(0.12)
    _legend_below(figure, axes)
    return figure


def _styles(names: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield each name with a colour and a marker, ours first."""
    return zip(names, (OURS, *PEERS), MARKERS, strict=False)


def _legend_below(figure: Figure, axes: Axes) -> None:
    """Name each label of some axes once, below the picture."""
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    where: dict[str, Any] = {
        "loc": "outside lower center",
        "ncols": len(once),
        "frameon": False,
    }
    figure.legend(once.values(), once.keys(), **where)


def _name(axes: Axes, text: str, place: tuple[float, float], *, below: bool) -> None:
    offset = (5, -11 if below else 4)
    axes.annotate(text, place, xytext=offset, textcoords="offset points", fontsize=8)


PICTURES: dict[str, tuple[str, Callable[[list[Row]], Figure]]] = {
    "scale.png": (SCALE, draw_scale),
    "svd.png": (SVD, draw_svd),
    "ratings.png": (RATINGS, draw_ratings),
}


def main() -> None:
    text = RESULTS.read_text(encoding="utf-8")
    missing = []
    for name, (heading, draw) in PICTURES.items():
        try:
            figure = draw(table(text, heading))
        except MissingTableError as error:
            missing.append(f"{error}; {name} was not drawn.")
            continue
        for axes in figure.axes:
            axes.grid(alpha=0.3)
            if axes.get_xlabel().startswith("seconds"):
                axes.xaxis.set_major_formatter("{x:g}")
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(HERE / name, dpi=100)
        print(HERE / name)
    if missing:
        sys.exit("\n".join(missing))


if __name__ == "__main__":
    main()
