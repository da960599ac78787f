"""`recsys evaluate`: models side by side on held-out ratings."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import click

from recsys.cli.options import (
    MODEL_NAMES,
    ReaderOptions,
    command,
    n_option,
    option,
    output_options,
    parameter_options,
    reader_options,
    seed_option,
    threads_option,
)
from recsys.cli.output import Output
from recsys.cli.parameters import applying, check_applicable
from recsys.cli.progress import Activity, note

if TYPE_CHECKING:
    import polars as pl

    from recsys.evaluation import Evaluation, Split
    from recsys.models.base import Model, Step
    from recsys.ratings import Ratings

__all__ = ["evaluate"]

_EXPLICIT = ("als", "bias", "popular")
_IMPLICIT = ("popular", "random")
_TEST_FRACTION = 0.1
_NORMAL_95 = 1.96


@command(
    "evaluate",
    examples=[
        "recsys evaluate ratings.csv",
        "recsys evaluate ratings.csv --model als --model popular -n 20 --json",
        "recsys evaluate ratings.csv --model als --factors 64 --regularization 0.8",
        "recsys evaluate --train train.csv --test test.csv",
    ],
)
@click.argument("ratings", required=False, type=click.Path(allow_dash=True))
@option("--train", metavar="FILE", type=click.Path(), help="Ratings to learn from.")
@option("--test", metavar="FILE", type=click.Path(), help="Ratings to be tested on.")
@option(
    "--model",
    "names",
    multiple=True,
    type=click.Choice(MODEL_NAMES),
    show_default="als, bias, popular; popular, random on implicit data",
    help="Model to evaluate; repeatable.",
)
@n_option("items recommended to each user")
@option(
    "--test-fraction",
    metavar="FRACTION",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    show_default=str(_TEST_FRACTION),
    help="Share of RATINGS that is held out, at random.",
)
@seed_option()
@threads_option()
@output_options
@parameter_options
@reader_options
def evaluate(
    ratings: str | None,
    train: str | None,
    test: str | None,
    names: tuple[str, ...],
    n: int,
    test_fraction: float | None,
    seed: int,
    threads: int | None,
    output: Output,
    parameters: dict[str, Any],
    reader: ReaderOptions,
) -> None:
    """Compare models on held-out ratings.

    Takes either RATINGS, of which a random part is held out, or both --train and --test. A
    parameter goes to each of the models that has it. RMSE and MAE are over the held-out ratings.
    Precision, recall and NDCG are means over the users that have any: each is recommended N of all
    items not rated in the training part, and the held-out ones count as relevant. JSON holds the
    definitions, 95% intervals of the means over users, and a fingerprint of the data.
    """
    from recsys import evaluation

    _check_choice(ratings, train, test, test_fraction)
    if ratings is not None:
        split = _random_split(ratings, test_fraction or _TEST_FRACTION, seed, reader)
    else:
        split = _split_of_files(str(train), str(test), reader)
    names = names or (_IMPLICIT if split.train.implicit else _EXPLICIT)
    models = _models(names, parameters, random_state=seed, threads=threads)
    with Activity("Evaluating") as activity:

        def each(label: str, step: Step) -> None:
            activity.title = f"Fitting {label}"
            activity.step(step)

        found = evaluation.evaluate(models, split, n, on_step=each)
    note(_summary(split, found))
    table = _without_empty(found.table)
    if output.resolved_format == "json":
        output.write_document(_document(models, split, found, seed), table)
    else:
        output.write(_for_people(table) if output.resolved_format == "table" else table)


def _check_choice(
    ratings: str | None, train: str | None, test: str | None, test_fraction: float | None
) -> None:
    pair = (train is not None) + (test is not None)
    if (ratings is not None) + (pair > 0) != 1 or pair == 1:
        raise click.UsageError("Give either RATINGS, or both --train FILE and --test FILE.")
    if pair and test_fraction is not None:
        raise click.UsageError("--test-fraction applies to RATINGS, not to --train and --test.")


def _random_split(path: str, fraction: float, seed: int, reader: ReaderOptions) -> Split:
    from recsys.cli.inputs import load_ratings
    from recsys.evaluation import random_split

    return random_split(load_ratings(path, reader), fraction, seed)


def _split_of_files(train: str, test: str, reader: ReaderOptions) -> Split:
    from recsys.cli.inputs import load_ratings
    from recsys.evaluation import split_from_pair

    return split_from_pair(load_ratings(train, reader), load_ratings(test, reader))


def _models(
    names: tuple[str, ...], parameters: dict[str, Any], **everywhere: Any
) -> dict[str, Model | str]:
    """Make the models, each with those of the parameters that it has."""
    from recsys.models import make_model

    check_applicable(names, parameters)
    return {name: make_model(name, **applying(name, parameters, **everywhere)) for name in names}


def _summary(split: Split, found: Evaluation) -> str:
    counts = found.counts
    parts = [
        f"trained on {counts['train_ratings']:,} and tested on {counts['test_ratings']:,} ratings",
        f"recommended to {counts['users_evaluated']:,} users",
    ]
    if split.unknown_ratings:
        parts.append(f"{split.unknown_ratings:,} test ratings of unknown users or items left out")
    return "; ".join(parts)


def _without_empty(table: pl.DataFrame) -> pl.DataFrame:
    """Leave out rating metrics where no model predicts ratings."""
    return table[[column.name for column in table if column.null_count() < len(column)]]


def _for_people(table: pl.DataFrame) -> pl.DataFrame:
    """Shorten the table to the width of a terminal."""
    return table.drop("users").rename({"fit_seconds": "fit s", "recommend_seconds": "rec. s"})


def _document(
    models: dict[str, Model | str], split: Split, found: Evaluation, seed: int
) -> dict[str, Any]:
    from recsys import __version__
    from recsys.evaluation import DEFINITIONS

    return {
        "command": "evaluate",
        "version": __version__,
        "seed": seed,
        "n": found.n,
        "data": {"fingerprint": _fingerprint(split.train, split.test), **found.counts},
        "definitions": DEFINITIONS,
        "models": [_result(row, models[row["model"]], found) for row in found.table.to_dicts()],
    }


def _result(row: dict[str, Any], model: Model | str, found: Evaluation) -> dict[str, Any]:
    """One model's part of the document."""
    name = row["model"]
    mine = found.per_user.filter(found.per_user["model"] == name)
    metrics = {}
    for metric in ("rmse", "mae"):
        if row[metric] is not None:
            metrics[metric] = {"value": row[metric], "ratings": found.counts["test_ratings"]}
    for metric in ("precision", "recall", "ndcg"):
        column = mine[f"{metric}@{found.n}"]
        metrics[f"{metric}@{found.n}"] = {
            "value": row[column.name],
            "interval": _interval(column),
            "users": len(column),
        }
    return {
        "model": name,
        "parameters": {} if isinstance(model, str) else model.params(),
        "metrics": metrics,
        "fit_seconds": row["fit_seconds"],
        "recommend_seconds": row["recommend_seconds"],
    }


def _interval(values: pl.Series) -> list[float] | None:
    """95% interval of the mean over users, by the normal approximation; None for one user."""
    if len(values) < 2:
        return None
    mean = float(values.to_numpy().mean())
    half = _NORMAL_95 * float(values.to_numpy().std(ddof=1)) / len(values) ** 0.5
    return [mean - half, mean + half]


def _fingerprint(*parts: Ratings) -> str:
    """SHA-256 over the ids, the pairs and the values, whatever file they came from."""
    digest = hashlib.sha256()
    for part in parts:
        for ids in (part.users, part.items):
            digest.update("\n".join(map(str, ids.values.to_list())).encode())
        for array, dtype in ((part.indptr, "<i8"), (part.indices, "<i4"), (part.values, "<f4")):
            digest.update(array.astype(dtype, copy=False).tobytes())
    return f"sha256:{digest.hexdigest()}"
