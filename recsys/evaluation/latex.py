"""Tables of evaluations for papers, in LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import polars as pl

from recsys.errors import DataError

if TYPE_CHECKING:
    from recsys.evaluation.results import Evaluation

_LEVELS = (0.001, 0.01, 0.05)  # of three, two and one star
_SPECIAL = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    }
)
_ARROWS = {1: r"~$\uparrow$", -1: r"~$\downarrow$", 0: ""}


def latex_table(found: Evaluation, metrics: Sequence[str] | None = None) -> str:
    """Return a table with a row for each model; see `Evaluation.to_latex`.

    Raises
    ------
    DataError
        If a metric was not measured.
    """
    measured = [
        name for name in found.table.columns if name in {*found.metrics["metric"]}
    ]
    if metrics is None:
        metrics = [name for name in measured if _direction(found, name)]
    for name in metrics:
        if name not in measured:
            raise DataError(
                f"There is no metric {name!r}; the evaluation has {', '.join(measured)}."
            )
    heads = [_escaped(name) + _ARROWS[_direction(found, name)] for name in metrics]
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_caption(found)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(metrics)}}}",
        r"\toprule",
        " & ".join(["Model", *heads]) + r" \\",
        r"\midrule",
    ]
    for model in found.table["model"]:
        cells = [_cell(found, model, name) for name in metrics]
        lines.append(" & ".join([_escaped(model), *cells]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _direction(found: Evaluation, name: str) -> int:
    return found.measured[name.partition("@")[0]].direction


def _cell(found: Evaluation, model: str, metric: str) -> str:
    """Return a value in mathematics mode: bold if it is the best, with stars if it is worse."""
    values = _values(found, metric)
    if model not in values:
        return "--"
    value, deviation = values[model]
    text = f"{value:.4f}"
    direction = _direction(found, metric)
    best = max(values, key=lambda other: values[other][0] * direction)
    if direction and model == best:
        text = rf"\mathbf{{{text}}}"
    elif direction:
        text += _stars(found, metric, model, best)
    if deviation is not None:
        text += rf" \pm {deviation:.4f}"
    return f"${text}$"


def _values(found: Evaluation, metric: str) -> dict[str, tuple[float, float | None]]:
    """Return the value and its deviation over folds of each model that has the metric."""
    values = {}
    for row in found.to_frame().filter(metric=metric).to_dicts():
        mean = row.get("fold_mean")
        value = row["value"] if mean is None else mean
        values[row["model"]] = (value, row.get("fold_deviation"))
    return values


def _stars(found: Evaluation, metric: str, model: str, best: str) -> str:
    """Return stars for the adjusted p value of the difference from the best model."""
    pair = pl.col("model").is_in([model, best]) & pl.col("other").is_in([model, best])
    p_values = found.comparisons.filter(pair & (pl.col("metric") == metric))["adjusted"]
    n_stars = (
        sum(bool(p_values[0] < level) for level in _LEVELS) if len(p_values) else 0
    )
    return rf"^{{{'*' * n_stars}}}" if n_stars else ""


def _caption(found: Evaluation) -> str:
    """Return how the values were measured, and the meaning of the marks."""
    sentences = [f"Held out: {_escaped(found.held_out)}."]
    if len(found.splits) > 1:
        sentences.append(
            rf"Mean $\pm$ standard deviation over {len(found.splits)} folds."
        )
    sentences.append("Best values in bold.")
    if found.comparisons.height:
        sentences.append(
            "Worse than the best by a paired sign-flip test over users, adjusted by Holm's "
            r"method: $^{*}$ $p<0.05$, $^{**}$ $p<0.01$, $^{***}$ $p<0.001$."
        )
    return " ".join(sentences)


def _escaped(text: str) -> str:
    """Return text with the special characters of LaTeX escaped."""
    return text.translate(_SPECIAL)
