"""`recsys evaluate` and `recsys compare`: evaluate models on held-out ratings."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from recsys import evaluation  # which imports nothing yet
from recsys.addresses import shown
from recsys.cli import inputs
from recsys.cli import options as cli
from recsys.cli.errors import CommandError, require
from recsys.cli.online import PlanOptions
from recsys.cli.output import (
    Activity,
    Output,
    check_file,
    note,
    parsed_gates,
    report_verdicts,
    warn,
)
from recsys.cli.split import (
    SplitOptions,
    load_splits,
    note_doubts,
    split_options,
)
from recsys.messages import counted, nothing_at, worded

if TYPE_CHECKING:
    import polars as pl

    from recsys.auto import Purpose
    from recsys.data.ratings import Ratings
    from recsys.data.read_options import ReadOptions
    from recsys.evaluation import Evaluation, Split
    from recsys.evaluation.gates import Gate
    from recsys.evaluation.splits import Repeats
    from recsys.recommender import Recommender

_CURVE = (1, 2, 5, 10, 20, 50, 100)  # lengths of the recommendations in a report
_LEAST = 1e-30  # lowest propensity: 0 is none
_MARK = "*"
_OF_CUTS = ("cut", "until", "users", "since")
_OF_SLICES = ("side", "by", "group", "users", "exposure", "relevance")
_OF_GROUPS = ("gap", "p_value", "adjusted")
_METRICS = (
    "All metrics are computed and shown; --format csv or --json writes them for other "
    "programs."
)
_DETAILS = "As in the help of `recsys fit`, `recsys split` and `recsys recommend`"
_OF_FITS = ("purpose", "regularization", "iterations", "seed", "threads")
_OF_EVALUATE = (
    "fold",
    "n",
    "new",
    "candidates",
    "relevant_from",
    "positions",
    "propensity",
    "per_user",
    "save",
)
_HINTS = {"--metric": _METRICS, "--metrics": _METRICS}
_NOT_ONLINE = (
    "--relevant-from",
    "--train",
    "--test",
    "--model",
    "--per-user",
    "--report",
    "--fail-if",
)


@dataclass(frozen=True, kw_only=True)
class _Request:
    """Options of an evaluation."""

    ratings: tuple[str, ...]
    train: str | None = cli.declared("FILE", "Training ratings.")
    test: str | None = cli.declared("FILE", "Test ratings.")
    fold: tuple[tuple[str, str], ...] = cli.declared(
        "TRAIN TEST",
        "Training and test ratings of a fold; repeatable.",
        multiple=True,
        nargs=2,
        type=cli.PLACE,
    )
    model: tuple[str, ...] = cli.declared(
        "NAME",
        "Models to evaluate, such as als or als:no-features; repeatable.",
        multiple=True,
        commas=True,
        show_default="als, bias, popular; spectral, popular, random for implicit data",
        type=cli.COMPARED_NAME,
    )
    n: tuple[int, ...] = cli.declared(
        "N",
        "Number of items to recommend to each user; repeatable.",
        "-n",
        default=(10,),
        multiple=True,
        commas=True,
        show_default="10",
        type=click.IntRange(min=1),
    )
    new: Literal["drop", "keep"] = cli.declared(
        "",
        "Treatment of test ratings whose user or item has no training ratings.",
        default="drop",
        type=click.Choice(["drop", "keep"]),
    )
    candidates: int | None = cli.declared(
        "N",
        "Number of random items to rank among; all by default.",
        type=click.IntRange(min=1),
    )
    relevant_from: float | None = cli.declared(
        "RATING",
        "Lowest relevant test rating; all by default.",
        type=float,
    )
    diversity: float = cli.declared(
        "X",
        "Weight of diversity against score, from 0 to 1.",
        default=0.0,
        type=cli.SHARE,
        details=_DETAILS,
    )
    by: tuple[str, ...] = cli.groups("items", "popularity")
    by_user: tuple[str, ...] = cli.groups("users", "activity")
    propensity: str | None = cli.declared(
        "COLUMN",
        "Exposure to correct: a column, popularity:0.5.",
    )
    positions: bool = cli.declared(
        "",
        "Predict each test event from the events before it.",
        is_flag=True,
    )
    per_user: str | None = cli.declared(
        "FILE", "CSV or Parquet file for the metrics of each user."
    )
    save: str | None = cli.declared(
        "DIR",
        "Directory for the results.",
    )
    report: str | None = cli.declared(
        "FILE.html", "HTML page to write, with tables and charts."
    )
    fail_if: tuple[str, ...] = cli.declared(
        "CONDITION",
        'Condition for exit code 1: "METRIC < X" or "METRIC worse"; also '
        "METRIC[COLUMN=GROUP]; repeatable.",
        multiple=True,
    )
    splitting: SplitOptions
    fitting: cli.FitOptions
    reader: cli.ReaderOptions

    @property
    def by_position(self) -> bool:
        """True if each position of the test histories is predicted."""
        return self.positions or self.splitting.method == "sessions"


def _evaluation_options(details: str = "", named: Sequence[str] = ()) -> cli.Decorator:
    """Add RATINGS and the options of an evaluation, as `request`; list `named` ones by name."""
    return cli.bundle(
        "request",
        _Request,
        click.argument("ratings", nargs=-1, type=cli.PLACE),
        *cli.declared_in(_Request, "Options", details, named),
        split_options(_DETAILS),
        cli.bundle(
            "fitting",
            # `_Request` has a --model of its own, which may be repeated.
            functools.partial(cli.FitOptions, None),
            *cli.declared_in(cli.FitOptions, "Model", _DETAILS, _OF_FITS)[1:],
        ),
        cli.reader_options("none"),
    )


def _run(request: _Request, *, at_least: int = 1) -> tuple[Evaluation, list[Gate]]:
    """Read, split, fit and measure, or load the results; return them and the conditions."""
    from recsys.evaluation.propensity import SAMPLE_SIZE, corrected
    from recsys.evaluation.results import only, value_names
    from recsys.evaluation.saved import check_target

    check_file(request.per_user, "--per-user", (".csv", ".parquet"))
    check_file(request.report, "--report", (".html",))
    if request.save is not None:
        check_target(request.save)
    stored = _loaded(request)
    ns = request.n
    if stored is not None:
        ns = stored.settings.ns
        if cli.is_typed("n"):
            for n in request.n:
                listed = ", ".join(map(str, stored.settings.ns))
                sentence = f"The saved lists have {listed} items; leave out -n {n}."
                require(n in stored.settings.ns, sentence)
            ns = request.n
    metrics = [*evaluation.METRICS.values()]
    metrics += [*corrected(metrics), SAMPLE_SIZE]
    names = [name for *_, name in value_names(metrics, ns)]
    gates = parsed_gates(request.fail_if, names, comparing=at_least > 1)
    result = stored or _measured(request, at_least, gates)
    _report_counts(result, request.splitting.method)
    if request.save is not None:
        result.save(request.save)
        note(f"the results are in {request.save}")
    if request.per_user is not None:
        Output(Path(request.per_user)).write(_without_empty(only(result, ns).per_user))
        note(f"the values of each user are in {request.per_user}")
    if request.report is not None:
        from recsys.cli.versions import write_report

        write_report(result, request.report)
    return only(result, ns), gates


def _loaded(request: _Request) -> Evaluation | None:
    """Return saved results, or None if the request is for a measurement.

    Raises
    ------
    UsageError
        If an option would need a measurement.
    """
    from recsys.evaluation.results import combined
    from recsys.evaluation.saved import is_evaluation

    sources = [*dict.fromkeys(request.ratings)]
    saved = [source for source in sources if is_evaluation(source)]
    if not saved:
        return None
    for source in sources:
        if source not in saved:
            raise click.UsageError(
                f"{saved[0]} has saved results and {source} has not; name saved results only."
            )
    typed: list[str] = []
    for bundled in (request, request.splitting, request.fitting):
        typed += cli.given_in(bundled, typed=True)
    for option in typed:
        if option not in ("-n", "--report", "--per-user", "--fail-if"):
            raise click.UsageError(
                f"{sources[0]} has saved results; leave out {option}."
            )
    loaded = {source: evaluation.Evaluation.load(source) for source in sources}
    return combined(loaded)


def _measured(
    request: _Request,
    at_least: int,
    gates: Sequence[Gate],
) -> Evaluation:
    """Read, split, fit and measure, also by unusual metrics that conditions name."""
    from recsys.evaluation.gates import with_groups
    from recsys.evaluation.metrics import CORRECTED, resolve_metrics

    kinds = {gate.metric.partition("@")[0].removesuffix(CORRECTED) for gate in gates}
    kinds &= evaluation.METRICS.keys()
    metrics = None
    if any(not evaluation.METRICS[kind].is_usual for kind in kinds):
        usual = {metric.name for metric in resolve_metrics(None)}
        metrics = sorted(usual | kinds)
    models, splits = _prepared(request, at_least)
    first = next(iter(splits.values() if isinstance(splits, dict) else splits))
    by, by_user = with_groups(gates, first.train, request.by, request.by_user)
    ns = request.n
    if request.report is not None:  # its curves also show shorter lists
        ns = tuple(sorted({*ns, *(n for n in _CURVE if n < max(ns))}))
    with Activity("Evaluating") as activity:
        return evaluation.evaluate(
            models,
            splits,
            ns,
            metrics=metrics,
            relevant_from=request.relevant_from,
            candidates=request.candidates,
            new=request.new,
            diversity=request.diversity,
            positions=request.positions,
            repeats=_repeats(request),
            by=by,
            by_user=by_user,
            propensity=_propensity(request, splits),
            features=False,  # those of the options for reading, or none
            random_state=request.fitting.seed,
            on_step=lambda label, step: activity.step(step, f"Fitting {label}"),
        )


def _propensity(
    request: _Request, splits: list[Split] | dict[str, Split]
) -> str | Ratings | None:
    """Return the propensity; a column that the table of items lacks is one of the test rows."""
    column = request.propensity
    if column is None or column.startswith("popularity:"):
        return column
    from recsys.errors import DataError

    # All folds have one table of items.
    first = splits[0] if isinstance(splits, list) else next(iter(splits.values()))
    table = first.train.item_table
    if table is not None and column in table.frame.columns:
        return column
    sources = [request.test] if request.test else [test for _, test in request.fold]
    options = {**request.reader.options, "rating": column, "scale": (_LEAST, 1.0)}
    for name in ("weight", "event", "event_weights", "half_life", "item_table"):
        options.pop(name, None)
    reader = cli.ReaderOptions(cast("ReadOptions", options))
    try:
        return inputs.load_ratings(sources or request.ratings, reader)
    except DataError as error:
        raise CommandError(
            "--propensity must be popularity:POWER, such as popularity:0.5, or a column of "
            f"probabilities in (0, 1], of the items or of the test rows; got {column!r}. {error}"
        ) from None


def _repeats(request: _Request) -> Repeats | None:
    """Return how items that came before are treated; None for what the split says."""
    from recsys.saving.splits import is_split

    repeats = request.splitting.repeats
    is_saved = len(request.ratings) == 1 and is_split(request.ratings[0])
    if not request.by_position and not is_saved:
        return None
    return repeats if is_saved else repeats or "drop"


def _are_models(request: _Request) -> bool:
    """Return whether the request is for saved models."""
    saved = [source for source in request.ratings if inputs.is_model(source)]
    others = [source for source in request.ratings if source not in saved]
    if saved and others:
        hint = "name saved models only, with --test FILE"
        raise click.UsageError(
            f"{saved[0]} is a saved model and {others[0]} is not; {hint}."
        )
    return bool(saved) and request.train is None


def _prepared(
    request: _Request, at_least: int
) -> tuple[dict[str, Any], list[Split] | dict[str, Split]]:
    """Return the models to evaluate, by label, and the ratings to evaluate them on."""
    if _are_models(request):
        return _saved(request, at_least)
    if request.ratings and request.test and not request.train:
        from recsys.readers.sources import is_address

        path = request.ratings[0]
        if not is_address(path):
            require(Path(path).exists(), nothing_at(Path(path)), CommandError)
        hint = "--test FILE needs saved models, or --train FILE"
        raise click.UsageError(f"{path} is not a saved model; {hint}.")
    require(
        not request.model or len(set(request.model)) >= at_least,
        "Give at least two models to compare, each with --model.",
    )
    splitting = request.splitting
    if request.by_position:
        # Repeated events belong to histories, even if they are not predicted.
        splitting = replace(splitting, repeats="keep")
    loaded = load_splits(
        request.ratings,
        (request.train, request.test),
        splitting,
        request.fitting.seed,
        request.reader,
        request.fold,
    )
    splits = [loaded] if isinstance(loaded, evaluation.Split) else [*loaded]
    names = _chosen_models(request.model, splits, request.fitting.purpose)
    return _unfitted(names, splits, request)


def _unfitted(
    labels: Sequence[str],
    splits: Sequence[Split],
    request: _Request,
) -> tuple[dict[str, Any], list[Split]]:
    """Return models by label, and the splits with the features that they use.

    "als:no-features" is `als` to fit without features.
    """
    from recsys.models.registry import make_model

    names = {label: label.partition(":")[0] for label in labels}
    parameters = inputs.parameters_for(
        [*dict.fromkeys(names.values())], request.fitting
    )
    plain = {
        label: make_model(name, **parameters[name]) for label, name in names.items()
    }
    models: dict[str, Any] = dict(plain)
    for label, name in names.items():
        if label != name:
            models[label] = evaluation.WithoutFeatures(plain[label])
    inputs.note_weights(plain.values(), splits[0].train)
    if plain and splits[0].train.feature_request is None:
        splits = [
            replace(
                split,
                train=inputs.featured(split.train, request.reader, [*plain.values()]),
            )
            for split in splits
        ]
    return models, [*splits]


def _saved(request: _Request, at_least: int) -> tuple[dict[str, Any], dict[str, Split]]:
    """Return saved models, and a split for each, with the same test ratings.

    Saved models are not fitted again. Other models are fitted to the ratings of the first one.
    """
    from recsys.provenance import without_weights

    paths = [*dict.fromkeys(request.ratings)]
    hint = "add --test FILE, with ratings that it was not fitted to"
    require(request.test is not None, f"{paths[0]} is a saved model; {hint}.")
    unusable = [*request.splitting.given]
    if request.new == "keep":
        unusable.append("--new keep")
    for option in unusable:
        raise click.UsageError(f"{option} does not apply to a saved model.")
    require(
        request.model or not request.fitting.has_typed_parameters,
        "A saved model is evaluated as it is; leave out parameters.",
    )
    require(
        len(paths) + len(set(request.model)) >= at_least,
        "Give at least two models to compare: name another saved model, or --model NAME.",
    )
    loaded = [inputs.load_model(path) for path in paths]
    first = loaded[0]
    reading = without_weights(first.provenance.reading)
    like = reading | {"implicit": first.ratings.implicit}
    test = inputs.load_ratings(request.test or "", request.reader, like)
    note_doubts(first.ratings, test)
    saved = dict(zip(_labels(paths, loaded, request.model), loaded, strict=True))
    if request.positions:
        require(len(saved) == 1, "--positions takes one saved model.")
        split = evaluation.split_from_pair(first.ratings, test, repeats="keep")
        splits = dict.fromkeys(saved, split)
    else:
        splits = _shared_splits(saved, test, request.splitting.repeats or "drop")
    fitted_to = [next(iter(splits.values()))]
    names: list[str] = []
    if request.model:
        names = _chosen_models(request.model, fitted_to, request.fitting.purpose)
    unfitted, [featured] = _unfitted(names, fitted_to, request)
    return saved | unfitted, splits | dict.fromkeys(unfitted, featured)


def _shared_splits(
    saved: Mapping[str, Recommender], test: Ratings, repeats: Repeats
) -> dict[str, Split]:
    """Return a split for each saved model, and report the test ratings that are left out."""
    trainings = {label: recommender.ratings for label, recommender in saved.items()}
    shared = evaluation.shared_test(trainings, test, repeats=repeats)
    for count, reason in (
        (shared.n_unknown, "of users or items without training ratings"),
        (shared.n_known, "that a model was fitted to"),
    ):
        if count:
            sentence = f"{counted(count, 'test rating')} {reason} left out"
            implicit = next(iter(trainings.values())).implicit
            note(worded(sentence, implicit=implicit))
    return shared.splits


def _labels(
    places: Sequence[str],
    loaded: Sequence[Recommender],
    names: Sequence[str],
) -> list[str]:
    """Return labels of saved models: names of models or directories, or paths."""
    kinds = [recommender.model.name for recommender in loaded]
    directories = [Path(path).name for path in places]
    for labels in (kinds if len(places) == 1 else directories, directories):
        if len({*labels}) == len(places) and not {*labels, ""} & {*names}:
            return labels
    return [*places]


def _chosen_models(
    names: Sequence[str],
    splits: list[Split],
    purpose: Purpose | None,
) -> list[str]:
    """Return the models to evaluate; without names, convert splits as `recsys fit` does."""
    from recsys.auto import choose_model
    from recsys.data.implicit import as_implicit

    if "auto" not in names:
        fits = purpose is None or not cli.is_typed("purpose")
        require(fits, "--for needs --model auto.")
        if names:
            return [*dict.fromkeys(names)]
    choice = choose_model(splits[0].train, purpose or "later")
    if purpose == "next":
        note(f"auto: {choice}")
    if choice.ratings.implicit != splits[0].train.implicit:
        if purpose != "next":
            note(f"{choice.reason}; use --model to treat them as ratings")
        for number, split in enumerate(splits):
            history = split.history
            splits[number] = replace(
                split,
                train=as_implicit(split.train),
                test=as_implicit(split.test),
                history=None if history is None else as_implicit(history),
            )
    best = "auto" if choice.is_open else choice.candidates[0].model
    if names:
        models = [best if name == "auto" else name for name in names]
    elif not splits[0].train.implicit:
        models = ["als", "bias", "popular"]
    else:
        models = ["spectral", "popular"]
        if splits[0].history is None:  # random does not fold in users
            models.append("random")
    return [*dict.fromkeys(models)]


def _report_counts(found: Evaluation, method: str | None) -> None:
    """Report the held-out ratings; without a `method`, suggest one that measures more users."""
    from recsys.evaluation.results import ranking

    counts = found.counts
    folds = len(found.splits)
    note(f"held out: {found.held_out}")
    tested = found.worded(counted(counts["test_ratings"], "rating"))
    users = counts["users_evaluated"]
    line = f"trained on {counts['train_ratings']:,} and tested on {tested}"
    if found.settings.positions:
        predicted = counted(counts["positions"], "position")
        line += f"; predicted {predicted} of {counted(users, 'user')}"
    else:
        line += f"; recommended to {counted(users, 'user')}"
    if folds > 1:
        line += f" ({folds} folds together)"
    note(line)
    if counts["known_pairs"]:
        pairs = counted(counts["known_pairs"], "test pair")
        note(f"{pairs} left out that the training part has (--repeats keep tests them)")
    if found.remark is not None:
        note(found.remark)
    if found.settings.positions:
        if counts["new_targets"]:
            missed = counted(counts["new_targets"], "position")
            sentence = f"{missed} of items without training ratings"
            note(f"{found.worded(sentence)}, which count as misses")
    elif counts["new_ratings"]:
        done = "left out" if found.settings.new == "drop" else "kept"
        new = f"{counted(counts['new_users'], 'user')} and {counted(counts['new_items'], 'item')}"
        rated = counted(counts["new_ratings"], "test rating")
        sentence = f"{rated} of users or items without training ratings {done}"
        note(f"{found.worded(sentence)} (new: {new})")
    n_users = users + counts["users_without_test_items"]
    first = found.splits[0].method
    by_default = first == "time" and method is None and not found.settings.positions
    by_default &= folds == 1
    if by_default and users < n_users / 2:
        few = f"only {users:,} of {n_users:,} users have ratings that new"
        note(
            f"{found.worded(few)}; --method per-user or --method leave-last measures all users"
        )
    settings = found.settings
    if settings.candidates is not None or settings.positions or first == "items":
        note(f"ranking is {found.worded(ranking(found))}")


def _without_empty(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame without the metrics that no model has."""
    return frame[[column.name for column in frame if column.null_count() < len(column)]]


def _document(command: str, found: Evaluation) -> dict[str, Any]:
    """Return the results as JSON values."""
    from recsys import __version__
    from recsys.evaluation.results import INTERVALS, TESTS, ranking

    kinds = set(found.metrics["kind"])
    first = found.splits[0]
    return {
        "command": command,
        "version": __version__,
        "seed": found.settings.random_state,
        "n": list(found.settings.ns),
        "ranking": ranking(found),
        "data": {"fingerprint": found.fingerprint, **found.counts},
        "split": {
            "method": first.method,
            "parameters": first.parameters,
            "description": found.held_out,
            "folds": len(found.splits),
            "repeats": first.repeats,
            "new": found.settings.new,
        },
        "settings": asdict(found.settings),
        "intervals": INTERVALS,
        "tests": TESTS,
        "definitions": {
            kind: metric.definition
            for kind, metric in found.measured.items()
            if kind in kinds
        },
        "models": [_model_document(found, row) for row in found.table.to_dicts()],
        "comparisons": found.comparisons.to_dicts(),
    }


def _model_document(found: Evaluation, row: dict[str, Any]) -> dict[str, Any]:
    """Return the results of the model in a row of the table as JSON values."""
    model = row["model"]
    gaps = found.largest_gaps.filter(model=model).drop("model")
    return {
        "model": model,
        "parameters": found.parameters[model],
        "metrics": _values_of(found, row),
        "folds": _nested(found.folds, model, ["fold"]),
        "cuts": _nested(_dated_cuts(found), model, _OF_CUTS),
        "staleness": _staleness_of(found, model),
        "slices": _nested(found.slices, model, _OF_SLICES, _OF_GROUPS),
        "largest_gaps": gaps.to_dicts(),
        "calibration": _calibration_of(found, model),
        "fit_seconds": row["fit_seconds"],
        "recommend_seconds": row["recommend_seconds"],
    }


def _values_of(found: Evaluation, row: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics of the model in a row of the table, with intervals, by name."""
    from recsys.evaluation.metrics import CORRECTED

    values: dict[str, Any] = {}
    for metric in found.to_frame().filter(model=row["model"]).to_dicts():
        value = {
            "value": metric["value"],
            "interval": None if metric["low"] is None else _interval(metric),
            "users": metric["users"],
        }
        if metric["n"] is None:
            value["ratings"] = found.counts["test_ratings"]
        if "fold_mean" in metric:
            value["folds"] = {
                "mean": metric["fold_mean"],
                "deviation": metric["fold_deviation"],
                "interval": [metric["fold_low"], metric["fold_high"]],
            }
        values[metric["metric"]] = value
    if found.remark:
        missing = {"value": None, "interval": None, "reason": found.remark}
        values |= {name: missing for name in row if CORRECTED in name}
    return values


def _interval(row: dict[str, Any]) -> list[float | None]:
    return [row["low"], row["high"]]


def _nested(
    values: pl.DataFrame,
    model: str,
    keys: Sequence[str],
    details: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Return rows of a model with equal keys as one, with their metrics by name.

    A metric is its value, or has an interval and `details`.
    """
    nested: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in values.filter(model=model).to_dicts():
        head = {key: row[key] for key in keys}
        entry = nested.setdefault(tuple(head.values()), head | {"metrics": {}})
        value = row["value"]
        if details:
            value = {"value": value, "interval": _interval(row)}
            value |= {name: row[name] for name in details}
        entry["metrics"][row["metric"]] = value
    return [*nested.values()]


def _staleness_of(found: Evaluation, model: str) -> dict[str, Any] | None:
    """Return how fast a model goes stale as JSON values, if this was measured."""
    periods = found.refit_periods.filter(model=model).to_dicts()
    if not periods:
        return None
    windows = found.staleness.filter(model=model, metric=periods[0]["metric"])
    return {
        **periods[0],
        "windows": windows.drop("model", "metric", "n").to_dicts(),
    }


def _calibration_of(found: Evaluation, model: str) -> dict[str, Any] | None:
    """Return how well the chances of a model hold as JSON values."""
    bins = found.reliability.filter(model=model).drop("model")
    if bins.is_empty():
        return None
    shares = bins["count"] / bins["count"].sum()
    errors = (bins["taken"] - bins["chance"]).abs()
    return {
        "brier": (shares * bins["brier"]).sum(),
        "expected_calibration_error": (shares * errors).sum(),
        "bins": bins.to_dicts(),
    }


def _slice_tables(found: Evaluation) -> list[pl.DataFrame]:
    """Return a table of the groups for each column, by the NDCG or the first metric of lists."""
    import polars as pl

    if found.slices.is_empty():
        return []
    name = _main_metric(found.slices)
    tables = []
    rows = found.slices.filter(metric=name)
    for (_, by), part in rows.group_by("side", "by", maintain_order=True):
        columns = [
            pl.col("group").alias(str(by)),
            "model",
            "users",
            pl.col("value").round(4).alias(name),
            pl.col("gap").round(4),
            pl.col("adjusted").round(4).alias("p"),
        ]
        if part["exposure"].is_not_null().any():
            columns += [pl.col("exposure").round(3), pl.col("relevance").round(3)]
        tables.append(part.select(columns))
    return tables


def _fold_table(found: Evaluation) -> list[pl.DataFrame]:
    """Return a table of the values on each fold, if there are several."""
    import polars as pl

    if len(found.splits) == 1:
        return []
    if not found.cuts.is_empty():
        return [_cut_table(found), *_staleness_table(found)]
    rows = []
    for row in found.to_frame().to_dicts():
        # Properties of lists, such as coverage, have no better direction to compare.
        if not found.measured[row["kind"]].direction:
            continue
        values = found.folds.filter(model=row["model"], metric=row["metric"])
        cells = {"metric": row["metric"], "model": row["model"]}
        for fold, value in values.select("fold", "value").iter_rows():
            cells[f"fold {fold}"] = f"{value:.4f}"
        cells["mean"] = f"{row['fold_mean']:.4f}"
        cells["deviation"] = f"{row['fold_deviation']:.4f}"
        rows.append(cells)
    return [pl.DataFrame(rows)]


def _cut_table(found: Evaluation) -> pl.DataFrame:
    """Return a table of the windows in time, by the NDCG or the first metric."""
    import polars as pl

    name = _main_metric(found.cuts)
    values = (
        _dated_cuts(found).filter(metric=name).with_columns(pl.col("value").round(4))
    )
    return values.pivot("model", index=["since", "users"], values="value").rename(
        {"since": f"{name} since"}
    )


def _dated_cuts(found: Evaluation) -> pl.DataFrame:
    """Return the values in each window in time, with the time of the cut in words."""
    import polars as pl

    from recsys.data.times import shown_time

    since = [shown_time(cut) for cut in found.cuts["cut"]]
    return found.cuts.with_columns(pl.Series("since", since, pl.String))


def _staleness_table(found: Evaluation) -> list[pl.DataFrame]:
    """Return a table of the loss of models that are not fitted again, if it was measured."""
    import polars as pl

    periods = found.refit_periods
    if periods.is_empty():
        return []
    days = pl.col("refit_seconds") / 86_400
    gains = pl.format("{} days", days.round(1)).fill_null("none seen")
    return [
        periods.filter(n=periods["n"][0]).select(
            "model",
            pl.col("loss_per_window")
            .round(4)
            .alias("loss per window, not fitted again"),
            gains.alias("a refit gains after"),
        )
    ]


def _main_metric(values: pl.DataFrame) -> str:
    """Return the name of the NDCG, or else of the first metric, in a frame of values."""
    names: list[str] = values["metric"].unique(maintain_order=True).to_list()
    return next((name for name in names if name.startswith("ndcg@")), names[0])


def tables(found: Evaluation, noun: str = "users") -> tuple[list[pl.DataFrame], str]:
    """Return tables as wide as the terminal, one column per model, and a legend.

    Intervals are shown if there is room for them.
    """
    import polars as pl

    from recsys.evaluation.results import named, significantly_worse

    measured = set(found.metrics["metric"])
    names = [name for name in found.table.columns if name in measured]
    seconds = [name for name in found.table.columns if name.endswith("_seconds")]
    worse = significantly_worse(found)
    rows = {(row["model"], row["metric"]): row for row in found.metrics.to_dicts()}

    def cell(
        label: str,
        name: str,
        decimals: int,
    ) -> str:
        row = rows.get((label, name))
        if row is None:
            return "-"
        # A digit less after the point keeps columns as wide.
        fewer = int(abs(row["value"]) >= 10)
        text = f"{row['value']:.{4 - fewer}f}"
        if decimals and row["low"] is not None:
            text += " [{low:.{0}f}, {high:.{0}f}]".format(decimals - fewer, **row)
        if (label, name) in worse:
            text += _MARK
        return text

    def columns(decimals: int) -> dict[str, list[str]]:
        headers = [named(name, found) for name in names]
        headers += [f"{name.removesuffix('_seconds')}, seconds" for name in seconds]
        cells = {"metric": headers}
        for row in found.table.to_dicts():
            label = row["model"]
            cells[label] = [cell(label, name, decimals) for name in names]
            cells[label] += [f"{row[name]:.4f}" for name in seconds]
        return cells

    terminal = shutil.get_terminal_size((80, 24)).columns
    confidence = found.settings.confidence
    legend = ""
    decimals = 0
    if found.settings.resamples:
        fitting = (d for d in (4, 3) if _width(columns(d)) <= terminal)
        decimals = next(fitting, 0)
        legend = f"[{confidence:.0%} interval over {noun}]"
        if not decimals:
            legend = f"(intervals need {_width(columns(3))} columns, or --json)"
        if found.comparisons.height:
            test = f"paired sign-flip test, Holm, p < {1 - confidence:.2g}"
            legend += f"  {_MARK} worse than the best of its row ({test})"
    cells = columns(decimals)
    headers = {"metric": cells.pop("metric")}
    parts = [dict(headers)]
    for label, texts in cells.items():
        if len(parts[-1]) > 1 and _width({**parts[-1], label: texts}) > terminal:
            parts.append(dict(headers))
        parts[-1][label] = texts
    return [pl.DataFrame(part) for part in parts], legend


def _width(columns: dict[str, list[str]]) -> int:
    """Return the width of a table of these columns, with three characters between them."""
    widest = (max(len(name), *map(len, cells)) for name, cells in columns.items())
    return sum(widest) + 3 * (len(columns) - 1)


def _differences(found: Evaluation) -> tuple[pl.DataFrame, str]:
    """Return the table of pairs of models, as wide as the terminal, and its legend."""
    import polars as pl

    from recsys.evaluation.results import named

    level = 1 - found.settings.confidence
    rows = found.comparisons.to_dicts()
    interval = f"{found.settings.confidence:.0%} interval"
    cells = {
        "metric": [named(row["metric"], found) for row in rows],
        "new - old": [f"{row['other']} - {row['model']}" for row in rows],
        "difference": [
            f"{row['difference']:+.4f} {row['verdict'] or ''}".rstrip() for row in rows
        ],
        interval: [f"[{row['low']:+.4f}, {row['high']:+.4f}]" for row in rows],
        "p": [f"{row['p_value']:.4f}" for row in rows],
        "adjusted": [
            f"{p:.4f} {_MARK}" if p < level else f"{p:.4f}"
            for p in found.comparisons["adjusted"]
        ],
    }
    legend = (
        "p: paired sign-flip test over users; adjusted by Holm's method over the pairs; "
        f"{_MARK} below {level:.2g}"
    )
    terminal = shutil.get_terminal_size((80, 24)).columns
    needed = _width(cells)
    if needed > terminal:
        legend += f" (all columns need {needed}, or --json)"
    # Columns that are left out one after the other until the table fits.
    for left_out in ((), ("p",), (interval,), ("p", interval)):
        narrower = {name: cells[name] for name in cells if name not in left_out}
        if _width(narrower) <= terminal:
            break
    return pl.DataFrame(narrower), legend


@cli.command(
    "evaluate",
    examples=[
        "recsys evaluate ratings.csv --model als,popular -n 5,20 --json",
        "recsys evaluate ratings.csv --method time --cuts 6 --model als,popular",
        "recsys evaluate --folds ml-100k --model als,bayes --output table.tex",
        "recsys evaluate model --test test.csv --fail-if 'ndcg@10 < 0.1'",
        "recsys evaluate s3a://lake/model --test s3a://lake/test --engine spark",
    ],
    hints=_HINTS,
)
@_evaluation_options("As in docs/howto/evaluate.md", ("candidates", "propensity"))
@cli.engine_options(_DETAILS)
@cli.paper_output_options
def evaluate(
    request: _Request,
    output: Output,
    engine: cli.EngineOptions,
) -> None:
    """Evaluate models on held-out ratings.

    The input is RATINGS, of which some are held out (the newest, if there are timestamps); or a
    directory of `recsys split`; or both --train and --test; or folds, by --fold TRAIN TEST for each
    or --folds FOLDER; or a saved MODEL, which is not fitted again, and --test; or the results
    that --save has kept. RMSE and MAE are computed over the held-out ratings. Ranking metrics are
    means over users: each gets N recommendations out of all items not rated in training, and
    the held-out items are relevant. JSON output has definitions and
    intervals over users.

    With --engine spark, the model is one of `recsys fit --engine spark`.
    """
    if engine.on_spark:
        from recsys.cli.spark import evaluate_on_spark

        unusable = cli.given_in(request, typed=True).keys() - {"--test", "-n"}
        is_more = (
            unusable
            or request.splitting.given
            or request.fitting.has_typed_parameters
            or len(request.n) > 1
        )
        require(not is_more, "--engine spark takes MODEL --test FILE, and one -n.")
        is_there = len(request.ratings) == 1 and request.test is not None
        require(is_there, "--engine spark needs MODEL --test FILE.")
        source, test, reader = request.ratings[0], request.test or "", request.reader
        evaluate_on_spark(source, test, request.n[0], engine, reader, output)
        return
    saved = list(dict.fromkeys(request.ratings)) if _are_models(request) else []
    from recsys.saving.versions import record, version_of

    # A job may replace a model while it is measured.
    versions = [version_of(source) for source in saved]
    result, gates = _run(request)
    _write(result, output, "evaluate")
    labels = result.table["model"].to_list()
    is_usual = request.candidates is None and not request.diversity
    if is_usual and not result.settings.positions:
        for source, version, label in zip(saved, versions, labels, strict=False):
            test = shown(request.test or "")
            problem = record(source, version, result, label, test)
            if problem is None:
                note(f"the metrics are kept in {Path(source) / 'metrics.json'}")
            else:
                # A nightly job, which is quiet, would lack them in silence.
                warn(f"the metrics are not kept next to {source}: {problem}")
    from recsys.evaluation.gates import verdicts

    report_verdicts(verdicts(gates, result, labels[: len(saved)] or labels))


def _write(
    result: Evaluation,
    output: Output,
    command: str,
) -> None:
    """Write the results of `evaluate` or `compare`."""
    if output.resolved_format == "latex":
        output.write_text(result.to_latex())
        return
    document = _document(command, result)
    if command == "compare":
        output.write_document(document, result.comparisons, *_differences(result))
        return
    shown, legend = tables(result)
    shown += _fold_table(result)
    shown += _slice_tables(result)
    for row in result.largest_gaps.to_dicts():
        if row["metric"] == _main_metric(result.slices):
            note(
                f"largest gap of {row['metric']} by {row['by']}, {row['model']}: "
                f"{row['group']}, {row['gap']:+.4f} (p = {row['adjusted']:.4f})"
            )
    output.write_document(document, _without_empty(result.table), shown, legend)


@cli.command(
    "compare",
    examples=[
        "recsys compare ratings.csv --model als,popular",
        "recsys compare live candidate --test today.csv --fail-if 'ndcg@10 worse'",
        "recsys compare --online requests.jsonl clicks.csv",
        "recsys compare --plan --rate 0.1 --difference 5%",
    ],
    hints=_HINTS,
)
@_evaluation_options("As in the help of `recsys evaluate`", _OF_EVALUATE)
@cli.bundle(
    "sizes",
    PlanOptions,
    *cli.declared_in(PlanOptions, "Plan", "With --plan", PlanOptions.__annotations__),
)
@cli.paper_output_options
def compare(
    request: _Request,
    sizes: PlanOptions,
    output: Output,
    plan: bool = cli.declared(
        "", "List the users that an online test needs.", is_flag=True
    ),
    online: str | None = cli.declared(
        "FILE", "Log of `recsys serve --log`; RATINGS are clicks."
    ),
) -> None:
    """Test whether models differ on held-out ratings.

    The input is as for `recsys evaluate`, or several saved models and --test, or several results
    of --save. Only test ratings that are new to all models are used. The output has one row per
    metric and pair of models: the difference (later minus earlier), "better" or "worse" if it is
    significant, its 95% bootstrap interval, and the p value of a paired sign-flip test over users,
    also adjusted by Holm's method.

    With --online, the result is an A/B test: RATINGS are clicks (user, item, timestamp) on
    the lists in the log of a service of two models. Its intervals "at any time" hold however often
    one looks. Saved models after the clicks get the number of clicks that their lists would have
    had. With --plan, the result is the users of each model that a test needs to detect a
    --difference (0.01, or 5%) from a --rate of users who click.
    """
    for flag in cli.given_in(sizes, typed=True):
        require(plan, f"{flag} needs --plan.")
    if online is not None or plan:
        from recsys.cli.online import compare_online, plan_online

        for flag in cli.given_in(request, typed=True):
            require(flag not in _NOT_ONLINE, f"{flag} does not apply to --online.")
        clicks, reader = request.ratings, request.reader
        if online is not None:
            require(not plan, "--plan does not read a log; leave out --online.")
            compare_online(online, clicks, reader, output, request.fitting.seed)
        else:
            require(
                not clicks, "--plan reads no ratings; give --rate and --difference."
            )
            plan_online(sizes, output)
        return
    result, gates = _run(request, at_least=2)
    sentence = (
        "A test needs a metric that two models have, and at least two users with it."
    )
    require(not result.comparisons.is_empty(), sentence)
    _write(result, output, "compare")
    # The first model is the one that the others must not be worse than.
    challengers = result.table["model"].to_list()[1:]
    from recsys.evaluation.gates import verdicts

    report_verdicts(verdicts(gates, result, challengers))
