"""Charts as SVG text: lines with bands, intervals, points.

Colours are CSS classes s0, s1, ... of the page, so that a chart follows its light or dark scheme.
Every text from outside is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import NamedTuple

__all__ = [
    "Interval",
    "Point",
    "Spot",
    "colour",
    "interval_chart",
    "line_chart",
    "number",
    "scatter_chart",
    "ticks",
]

_COLOURS = 8  # classes s0, s1, ...; more series begin again, with dashes

_WIDTH, _HEIGHT = 420, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 34, 44
_ROW = 24  # height of a row of intervals
_NAME = 108  # width of the names beside them
_CHARACTER = 6.7  # width of one, on average


class Point(NamedTuple):
    """A point of a line, with the ends of its interval if they are known."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


class Spot(NamedTuple):
    """A named point; `place` tells its colour."""

    name: str
    place: int
    x: float
    y: float


class Interval(NamedTuple):
    """A value and its interval, if there is one; `place` tells its colour."""

    name: str
    place: int
    value: float
    low: float | None
    high: float | None


def line_chart(
    title: str,
    series: Mapping[str, Sequence[Point]],
    x_label: str,
    *,
    from_zero: bool = False,
    log: bool = False,
    marks: bool = True,
) -> str:
    """Draw one line per series, over a band where intervals are known.

    Parameters
    ----------
    title : str
        What the vertical axis shows.
    series : mapping of str to sequence of Point
        By increasing x; colours go by position.
    x_label : str
    from_zero : bool
        Whether the vertical axis begins at 0.
    log : bool
        Whether the horizontal axis is logarithmic, with a number at each point.
    marks : bool
        Whether points have a dot.
    """
    points = [point for each in series.values() for point in each]
    ys = [y for p in points for y in (p.y, p.low, p.high) if y is not None]
    x = _Scale.over([p.x for p in points], _LEFT, _WIDTH - _RIGHT, padding=0.0, log=log)
    y = _Scale.over([0.0, *ys] if from_zero else ys, _HEIGHT - _BOTTOM, _TOP)
    drawing = _Drawing(title, _WIDTH, _HEIGHT)
    drawing.axes(x, y, x_label, sorted({p.x for p in points}) if log else None)
    for place, each in enumerate(series.values()):
        band = [
            (x(p.x), y(p.low), y(p.high)) for p in each if p.low is not None and p.high is not None
        ]
        if len(band) > 1:
            edge = [(at, low) for at, low, _ in band]
            edge += [(at, high) for at, _, high in reversed(band)]
            drawing.add(f'<polygon class="{colour(place)} band" points="{_path(edge)}"/>')
    for place, (name, each) in enumerate(series.items()):
        path = _path([(x(p.x), y(p.y)) for p in each])
        drawing.add(f'<polyline class="{colour(place)} line" points="{path}"/>')
        for p in each if marks else ():
            drawing.dot(x(p.x), y(p.y), place, f"{name}: {number(p.y)} at {number(p.x)}")
    return drawing.svg()


def interval_chart(title: str, rows: Sequence[Interval]) -> str:
    """Draw a row per value, with a dot and the line of its interval."""
    bottom = _TOP + _ROW * len(rows)
    ends = [each for row in rows for each in (row.value, row.low, row.high) if each is not None]
    x = _Scale.over(ends, _NAME, _WIDTH - _RIGHT - 6)
    drawing = _Drawing(title, _WIDTH, bottom + 26)
    drawing.x_axis(x, bottom, _TOP - 4)
    for number_of_row, row in enumerate(rows):
        at = _TOP + _ROW * (number_of_row + 0.5)
        drawing.text(_NAME - 10, at + 4, row.name, "end", room=_NAME - 14)
        said = f"{row.name}: {number(row.value)}"
        if row.low is not None and row.high is not None:
            said += f", {number(row.low)} to {number(row.high)}"
            drawing.line(x(row.low), at, x(row.high), at, f"{colour(row.place)} interval")
        drawing.dot(x(row.value), at, row.place, said)
    return drawing.svg()


def scatter_chart(title: str, spots: Sequence[Spot], x_label: str) -> str:
    """Draw points, with their names where there is room for them."""
    x = _Scale.over([spot.x for spot in spots], _LEFT, _WIDTH - _RIGHT, padding=0.18)
    y = _Scale.over([spot.y for spot in spots], _HEIGHT - _BOTTOM, _TOP, padding=0.12)
    drawing = _Drawing(title, _WIDTH, _HEIGHT)
    drawing.axes(x, y, x_label)
    taken = [_Box(x(s.x) - 5, y(s.y) - 5, x(s.x) + 5, y(s.y) + 5) for s in spots]
    for spot in spots:
        said = f"{spot.name}: {number(spot.x)}, {number(spot.y)}"
        drawing.dot(x(spot.x), y(spot.y), spot.place, said)
        shown = _cut(spot.name, 120)
        box = _free(x(spot.x), y(spot.y), len(shown) * _CHARACTER, taken)
        if box is not None:
            taken.append(box)
            drawing.text(
                box.left, box.bottom - 3, shown, "start", kind=f"{colour(spot.place)} name"
            )
    return drawing.svg()


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round numbers within an interval, about `most` of them and at least two.

    Examples
    --------
    >>> ticks(0.81, 0.97)
    [0.85, 0.9, 0.95]
    """
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = min(s for s in (power, 2 * power, 5 * power, 10 * power) if s >= rough * 0.8)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    decimals = max(0, 1 - math.floor(math.log10(step)))
    return [round(i * step, decimals) + 0.0 for i in range(first, last + 1)]


def number(value: float) -> str:
    """Return a number as short as four significant digits allow."""
    if value and not 1e-4 <= abs(value) < 1e6:
        text = f"{value:.3g}"
    else:
        text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return text.replace("-", "−")


@dataclass(frozen=True)
class _Scale:
    """From values to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def over(
        cls,
        values: Sequence[float],
        start: float,
        end: float,
        *,
        padding: float = 0.06,
        log: bool = False,
    ) -> _Scale:
        """Return the scale that shows all values, with some room at both ends."""
        low, high = min(values), max(values)
        room = (high - low) * padding
        if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):
            room = abs(low) * 0.1 or 1.0
        return cls(low if low == 0 or log else low - room, high + room, start, end, log)

    def __call__(self, value: float) -> float:
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


@dataclass
class _Drawing:
    """The elements of one SVG."""

    title: str
    width: float
    height: float
    parts: list[str] = field(default_factory=list)

    def add(self, element: str) -> None:
        self.parts.append(element)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self.add(f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def dot(self, x: float, y: float, place: int, said: str) -> None:
        self.add(
            f'<circle class="{colour(place)} dot" cx="{x:.1f}" cy="{y:.1f}" r="3.6">'
            f"<title>{escape(said)}</title></circle>"
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        anchor: str = "middle",
        *,
        room: float = 999,
        kind: str = "",
    ) -> None:
        of_kind = f' class="{kind}"' if kind else ""
        self.add(
            f'<text{of_kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
            f"{escape(_cut(text, room))}</text>"
        )

    def axes(
        self, x: _Scale, y: _Scale, x_label: str, x_marks: Sequence[float] | None = None
    ) -> None:
        """Draw both axes with grid lines, numbers and the label of the horizontal one."""
        for value in ticks(y.low, y.high, 5):
            self.line(x.start, y(value), x.end, y(value), "grid")
            self.text(x.start - 8, y(value) + 4, number(value), "end")
        self.x_axis(x, y.start, None, x_marks)
        self.text((x.start + x.end) / 2, y.start + 36, x_label)

    def x_axis(
        self, x: _Scale, at: float, top: float | None, marks: Sequence[float] | None = None
    ) -> None:
        """Draw the horizontal axis, with grid lines up to `top` if that is given."""
        self.line(x.start, at, x.end, at, "axis")
        for value in ticks(x.low, x.high, 5) if marks is None else marks:
            self.line(x(value), at, x(value), at + 4 if top is None else top, "grid")
            self.text(x(value), at + 18, number(value))

    def svg(self) -> str:
        """Return the whole."""
        name = escape(self.title)
        return (
            f'<svg viewBox="0 0 {self.width} {self.height:.0f}" role="img" aria-label="{name}">'
            f'<text class="title" x="8" y="15">{name}</text>{"".join(self.parts)}</svg>'
        )


def colour(place: int) -> str:
    """Return the classes of a series."""
    return f"s{place % _COLOURS}" + (" again" if place >= _COLOURS else "")


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _cut(text: str, room: float) -> str:
    """Return the text, or as much of it as fits."""
    most = max(1, int(room / _CHARACTER))
    return text if len(text) <= most else f"{text[: most - 1]}…"


class _Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        """Whether two boxes overlap."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


def _free(x: float, y: float, width: float, taken: Sequence[_Box]) -> _Box | None:
    """Return a box for a name beside, above or below its point, if there is room for one."""
    corners = [
        (x + 8, y - 7),
        (x - 8 - width, y - 7),
        (x - width / 2, y - 19),
        (x - width / 2, y + 5),
    ]
    boxes = [_Box(left, top, left + width, top + 14) for left, top in corners]
    inside = [box for box in boxes if box.left > _LEFT and box.right < _WIDTH and box.top > 20]
    free = (box for box in inside if not any(box.meets(other) for other in taken))
    return next(free, None)
