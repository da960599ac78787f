"""Tables of evaluations for papers, in LaTeX."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

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


def latex_table(
    values: pl.DataFrame,
    comparisons: pl.DataFrame,
    directions: Mapping[str, int],
    held_out: str,
) -> str:
    """Return a table with a row for each model and a column for each metric.

    `values` and `comparisons` are frames of an `Evaluation` (see its `to_frame` and `to_latex`),
    and `directions` has the direction of each metric to show.
    """
    columns = {
        name: _column(values.filter(metric=name), comparisons.filter(metric=name), sign)
        for name, sign in directions.items()
    }
    heads = [_escaped(name) + _ARROWS[sign] for name, sign in directions.items()]
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_caption(values, comparisons, held_out)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
        r"\toprule",
        " & ".join(["Model", *heads]) + r" \\",
        r"\midrule",
    ]
    for model in values["model"].unique(maintain_order=True):
        cells = [column.get(model, "--") for column in columns.values()]
        lines.append(" & ".join([_escaped(model), *cells]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _column(
    values: pl.DataFrame,
    comparisons: pl.DataFrame,
    direction: int,
) -> dict[str, str]:
    """Return the values of a metric by model: the best ones bold, worse ones with stars."""
    # Papers report means over folds; without folds, there is one value.
    several = "fold_mean" in values.columns
    name = "fold_mean" if several else "value"
    rows = values.to_dicts()
    best = max(rows, key=lambda row: float(row[name] * direction))
    cells = {}
    for row in rows:
        text = f"{row[name]:.4f}"
        if direction and row[name] == best[name]:
            text = rf"\mathbf{{{text}}}"
        elif direction:
            text += _stars(comparisons, row["model"], best["model"])
        if several:
            text += rf" \pm {row['fold_deviation']:.4f}"
        cells[row["model"]] = f"${text}$"
    return cells


def _stars(
    comparisons: pl.DataFrame,
    model: str,
    best: str,
) -> str:
    """Return stars for the adjusted p value of the difference from the best model."""
    # A pair is compared once, in either order.
    pair = [model, best]
    is_pair = pl.col("model").is_in(pair) & pl.col("other").is_in(pair)
    p_values = comparisons.filter(is_pair)["adjusted"]
    n_stars = sum(p_value < level for p_value in p_values for level in _LEVELS)
    return rf"^{{{'*' * n_stars}}}" if n_stars else ""


def _caption(
    values: pl.DataFrame,
    comparisons: pl.DataFrame,
    held_out: str,
) -> str:
    """Return how the values were measured, and the meaning of the marks."""
    sentences = [f"Held out: {_escaped(held_out)}."]
    if "fold_mean" in values.columns:
        sentences.append(r"Mean $\pm$ standard deviation over the folds.")
    sentences.append("Best values in bold.")
    if comparisons.height:
        sentences.append(
            "Worse than the best by a paired sign-flip test over users, adjusted by Holm's "
            r"method: $^{*}$ $p<0.05$, $^{**}$ $p<0.01$, $^{***}$ $p<0.001$."
        )
    return " ".join(sentences)


def _escaped(text: str) -> str:
    """Return text with the special characters of LaTeX escaped."""
    return text.translate(_SPECIAL)
