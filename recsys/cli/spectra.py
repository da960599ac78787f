"""A spectrum as a table, as bars on a terminal and as a picture; for the verbs that show one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys.cli.errors import CommandError
from recsys.cli.output import atomic_file

if TYPE_CHECKING:
    import polars as pl

__all__ = ["check_plot", "draw", "spectrum_frame", "with_bars"]

_BAR = 24
_PICTURES = ("png", "svg", "pdf")
_EIGHTHS = " ▏▎▍▌▋▊▉"


def spectrum_frame(singular_values: Any, total: float) -> pl.DataFrame:
    """Return rank, singular_value, energy and cumulative, as shares of the energy `total`."""
    import numpy as np
    import polars as pl

    from lowrank.rank import cumulative_energy

    s = np.asarray(singular_values, dtype=np.float64)
    cumulative = cumulative_energy(s, total)
    return pl.DataFrame(
        {
            "rank": np.arange(1, len(s) + 1),
            "singular_value": s,
            "energy": np.diff(cumulative, prepend=0.0),
            "cumulative": cumulative,
        }
    )


def with_bars(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with a bar for each singular value."""
    import polars as pl

    values = frame["singular_value"].to_list()
    largest = max(values, default=0.0) or 1.0
    return frame.with_columns(pl.Series("", [_bar(value / largest) for value in values]))


def _bar(share: float) -> str:
    """Draw a share of the full width in eighths of a character."""
    full, eighths = divmod(round(share * _BAR * 8), 8)
    return ("█" * full + _EIGHTHS[eighths]).rstrip()


def check_plot(path: str | None) -> None:
    """Refuse before the work what `draw` would refuse after it."""
    if path is None:
        return
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise CommandError(
            "--plot needs matplotlib; install it with pip install lowrank-recsys[plot]."
        )
    if _picture_format(path) not in _PICTURES:
        allowed = ", ".join(f".{name}" for name in _PICTURES)
        raise CommandError(f"--plot must name a file that ends in one of {allowed}; got {path}.")
    if not Path(path).parent.is_dir():
        raise CommandError(f"Cannot write {path}: there is no directory {Path(path).parent}.")


def draw(singular_values: Any, total: float, rank: int, rule: str, path: str) -> None:
    """Draw the scree curve with a rank marked on it, to a file that is never half written."""
    from matplotlib.figure import Figure

    from lowrank import plotting

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    plotting.scree(singular_values, k=rank, total=total, rule=rule, ax=figure.subplots())
    with atomic_file(Path(path)) as stream:
        figure.savefig(stream, dpi=150, format=_picture_format(path))


def _picture_format(path: str) -> str:
    return Path(path).suffix.lstrip(".").lower() or _PICTURES[0]
