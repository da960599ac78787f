"""The page: its sections, each of which is left out where there is nothing to show."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import polars as pl

from recsys.evaluation.report import pictures
from recsys.evaluation.report.pictures import shown_metrics
from recsys.evaluation.report.tables import (
    comparison_table,
    facts_table,
    metric_table,
    plain,
    table,
    values_table,
)
from recsys.evaluation.results import (
    INTERVALS,
    TESTS,
    best_model,
    named,
    ranking,
    significantly_worse,
)
from recsys.messages import counted

if TYPE_CHECKING:
    from recsys.evaluation.results import Evaluation

__all__ = ["html_report"]

_FEW = 5  # models that the title names


def html_report(
    found: Evaluation,
    *,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    command: str | None = None,
    versions: Mapping[str, str] | None = None,
) -> str:
    """Return an evaluation as an HTML page that needs no other file and no network.

    Parameters
    ----------
    found : Evaluation
        What `recsys.evaluation.evaluate` returned.
    parameters : mapping of str to mapping, optional
        The parameters of each model, by label.
    command : str, optional
        What repeats the evaluation.
    versions : mapping of str to str, optional
        Of programs and libraries.

    Returns
    -------
    str
        HTML, with all labels escaped.

    Examples
    --------
    >>> import recsys
    >>> from recsys.evaluation import evaluate, random_split
    >>> ratings = recsys.read_ratings(recsys.sample_path())
    >>> found = evaluate(["popular", "bias"], random_split(ratings), n=[1, 10], resamples=100)
    >>> html_report(found)[:15]
    '<!doctype html>'
    """
    models = found.table["model"].to_list()
    few = len(models) <= _FEW
    title = f"Evaluation of {_listed(models) if few else f'{len(models)} models'}"
    style = files("recsys.evaluation.report").joinpath("page.css").read_text(encoding="utf-8")
    sections = (
        _header(found, title),
        _results(found),
        pictures.intervals(found),
        pictures.lengths(found),
        pictures.popularity(found),
        pictures.residuals(found),
        pictures.learning(found),
        _significance(found),
        _split(found),
        _repetition(found, parameters or {}, command, versions or {}),
    )
    body = "\n".join(part for section in sections for part in section)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _header(found: Evaluation, title: str) -> Iterator[str]:
    counts = found.counts
    together = ", all folds together" if len(found.splits) > 1 else ""
    yield f"<h1>{escape(title)}</h1>"
    yield (
        f'<p class="lead">{counted(counts["train_ratings"], "rating")} to learn from, '
        f"{counts['test_ratings']:,} to test on; recommendations to "
        f"{counted(counts['users_evaluated'], 'user')}{together}. "
        f"Held out: {escape(_held_out(found))}.</p>"
    )
    said = [_verdict(found, metric) for metric in _headline(found)]
    points = "".join(f"<li>{each}</li>" for each in said if each)
    if points:
        yield f'<ul class="short">{points}</ul>'


def _results(found: Evaluation) -> Iterator[str]:
    worse = significantly_worse(found)
    yield "<h2>Results</h2>"
    confidence = f"{found.settings.confidence:.0%}"
    said = "↑ more is better, ↓ less is better. The best of each row is in green."
    if found.settings.resamples:
        said += f" Below each value is its {confidence} interval over users."
    if worse:
        said += " * differs significantly from the best of its row."
    yield f'<p class="note">{said} Candidates: {escape(ranking(found))}.</p>'
    yield metric_table(found, shown_metrics(found), worse)
    yield f"<details><summary>All values</summary>{values_table(found)}</details>"


def _significance(found: Evaluation) -> Iterator[str]:
    if found.comparisons.is_empty():
        return
    shown = [
        metric for metric in shown_metrics(found) if metric in set(found.comparisons["metric"])
    ]
    main = [metric for metric in _headline(found) if metric in shown]
    yield "<h2>Differences between the models</h2>"
    yield f'<p class="note">{escape(TESTS[0].upper() + TESTS[1:])}.</p>'
    yield comparison_table(found, main)
    rest = [metric for metric in shown if metric not in main]
    if rest:
        yield (
            f"<details><summary>Other metrics</summary>{comparison_table(found, rest)}</details>"
        )


def _split(found: Evaluation) -> Iterator[str]:
    first, counts = found.splits[0], found.counts
    together = ", all folds" if len(found.splits) > 1 else ""
    facts: dict[str, int | str] = {
        "held out": _held_out(found),
        "method": first.method,
        # As text: a seed or a time is no quantity, so its digits are not grouped.
        **{name.replace("_", " "): str(value) for name, value in first.parameters.items()},
        **{f"{name.replace('_', ' ')}{together}": value for name, value in counts.items()},
        "users and items that are new in the test part": {
            "drop": "their test ratings are left out",
            "keep": "their test ratings count",
        }[found.settings.new],
        "relevant test items": "all"
        if found.settings.relevant_from is None
        else f"rated {found.settings.relevant_from:g} or more",
        "candidates": ranking(found),
    }
    yield "<h2>The split</h2>"
    yield facts_table(facts)
    yield from pictures.activity(found)


def _repetition(
    found: Evaluation,
    parameters: Mapping[str, Mapping[str, Any]],
    command: str | None,
    versions: Mapping[str, str],
) -> Iterator[str]:
    yield "<h2>To repeat this</h2>"
    if command is not None:
        yield f"<pre>{escape(command)}</pre>"
    settings = found.settings
    yield facts_table(
        {
            "seed": str(settings.random_state),
            "lengths of the recommendations": ", ".join(map(str, settings.ns)),
            "intervals": f"{settings.confidence:.0%}, {INTERVALS}; {settings.resamples:,} resamples"
            if settings.resamples
            else "none",
            "fingerprint of the data": found.fingerprint,
            **versions,
        }
    )
    rows = [
        [escape(label), f"<code>{escape(json.dumps(dict(values), ensure_ascii=False))}</code>"]
        for label, values in parameters.items()
    ]
    if rows:
        yield table(["model", "parameters"], rows)
    kinds = list(dict.fromkeys(found.metrics["kind"]))
    words = [[escape(kind), escape(found.measured[kind].definition)] for kind in kinds]
    yield "<details open><summary>Definitions of the metrics</summary>"
    yield f"{table(['metric', 'definition'], words)}</details>"


def _verdict(found: Evaluation, metric: str) -> str:
    """Say which model is best by a metric, and which are not significantly behind."""
    best = best_model(found, metric)
    labels = found.metrics.filter(pl.col("metric") == metric)["model"].to_list()
    if best is None or len(labels) < 2:
        return ""
    value = found.table.filter(pl.col("model") == best)[metric][0]
    said = (
        f"Best by {escape(named(metric, found))}: <strong>{escape(best)}</strong>, {plain(value)}"
    )
    if metric not in set(found.comparisons["metric"]):
        return f"{said}."
    worse = significantly_worse(found)
    close = [label for label in labels if label != best and (label, metric) not in worse]
    if close:
        return f"{said}; not significantly better than {escape(_listed(close))}."
    return f"{said}; significantly better than {'the others' if len(labels) > 2 else 'the other'}."


def _headline(found: Evaluation) -> list[str]:
    """Return the metrics that sum the rest up: the first of ratings and the last of rankings."""
    known = found.metrics["metric"].to_list()
    n = found.settings.ns[-1]
    return [metric for metric in ("rmse", f"recall@{n}", f"ndcg@{n}") if metric in known]


def _held_out(found: Evaluation) -> str:
    folds = len(found.splits)
    return f"{folds} folds, each in turn" if folds > 1 else found.splits[0].description


def _listed(names: Sequence[str]) -> str:
    """Return "a", "a and b", "a, b and c"."""
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
