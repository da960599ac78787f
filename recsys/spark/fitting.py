"""Fit of models on a cluster: `als` for ratings and `ials` for implicit feedback.

Each half-sweep solves for all users (or items) by the kernel of the local engine, so that folding
in a fitted user gives the same vector.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from lowrank.completion.als import solve_rows
from lowrank.completion.implicit import solve_interactions
from lowrank.kernels import CsrArrays
from lowrank.spark import arrow
from recsys import __version__
from recsys.data.age import iso_time
from recsys.data.columns import Request
from recsys.data.rows import check_policy
from recsys.errors import DataError
from recsys.models.als import ALS
from recsys.models.base import Step
from recsys.models.ials import IALS, INTERACTIONS, Penalties, default_factors
from recsys.models.parameters import overflow_error
from recsys.models.parts import Floats
from recsys.models.registry import make_model
from recsys.saved_arrays import MANIFEST
from recsys.spark.evaluation import rating_errors
from recsys.spark.reading import Encoded, encode, read_ratings
from recsys.spark.results import (
    MODELS,
    VERSION,
    Place,
    SparkModel,
    is_result,
    staged,
    written,
)
from recsys.spark.session import BROADCAST_LIMIT, Say, reported, spark_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    Vectors = tuple[Floats, Floats]  # factors of shape (n, k) and biases of shape (n,)
    Solver = Callable[..., Vectors]
    # Vectors of users and items, scalars of the model, and further items of the summary.
    Fit = tuple[tuple[DataFrame, DataFrame], dict[str, float], dict[str, Any]]

_ITERATIONS = 15  # default of `als` on Spark
_START_WIDTH = 0.35  # range of the random starting factors: a standard deviation of 0.1
_STEPS = 1 << 20  # number of distinct values in this range

SOLVED = "index int, count int, bias float, factors array<float>"
"""Schema of the vectors of users or items."""


def fit(
    ratings: str | DataFrame,
    out: str,
    *,
    model: str | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    columns: Request | None = None,
    duplicates: str | None = None,
    test_fraction: float | None = None,
    overwrite: bool = False,
    broadcast_limit: int = BROADCAST_LIMIT,
    on_step: Callable[[Step], None] | None = None,
    say: Callable[[str], None] | None = None,
    **parameters: Any,
) -> SparkModel:
    """Fit a model on Spark and write it to a folder.

    Parameters
    ----------
    ratings : str or DataFrame
        Parquet, CSV or TSV on any file system that Spark can read, or a Spark table.
    out : str
        Folder for the result, which is created when the fit is complete. On a local disk,
        `recsys.Recommender.load` opens it.
    model : {"als", "ials"}, optional
        By default `als` for ratings and `ials` for implicit feedback.
    master, conf
        As for `spark_session`.
    columns : Request, optional
        Names of columns, if they are not the usual ones.
    duplicates : {"last", "first", "mean", "sum", "error"}, optional
        Rating of a repeated pair of user and item; "last" and "first" need timestamps. By default
        the last, and the sum of weights.
    test_fraction : float, optional
        Share of the ratings to hold out and to evaluate the model on.
    overwrite : bool
        Whether to replace a result of the Spark engine at `out`.
    broadcast_limit : int
        Maximum size in bytes of the vectors of all items (or users) that are sent to every Python
        worker. Larger vectors are joined block by block.
    on_step : callable, optional
        Called with a `Step` after each sweep of `als`.
    say : callable, optional
        Called with a short text when a step begins, and twice a second with the number of its
        finished tasks.
    **parameters
        Parameters of the model, such as factors, regularization, count_power, iterations or
        random_state.

    Raises
    ------
    DataError
        If the ratings cannot be used, or a parameter is out of range.
    EngineError
        If Spark is missing, cannot be reached or fails; nothing is written.
    ModelFileError
        If `out` exists and is not replaced.
    """
    share, start = test_fraction or 0.0, time.perf_counter()
    if test_fraction is not None and not 0 < share < 1:
        raise DataError(f"test_fraction must be between 0 and 1; got {test_fraction}.")
    check_policy(duplicates)
    with (
        spark_session(master, conf) as spark,
        reported(spark, say) as begin,
        staged(spark, out, is_result, overwrite=overwrite) as folder,
    ):
        scratch = folder.child("_scratch")
        begin("reading")
        request = columns or Request()
        table = read_ratings(spark, ratings, request)
        name, settings = _chosen_model(model, parameters, implicit=table.implicit)
        options = {"test_fraction": share, "random_state": settings["random_state"]}
        policy = duplicates or ("sum" if table.weighted else "last")
        coded = encode(
            table.frame, scratch, duplicates=policy, weighted=table.weighted, **options
        )
        settings["factors"] = settings["factors"] or default_factors(
            coded.n_users, coded.n_items, coded.n_ratings
        )
        task = _Task(coded, settings, scratch, broadcast_limit, on_step, begin)
        sides, fitted, summary = (_fit_als if name == "als" else _fit_ials)(task)
        begin("writing")
        files = _write_tables(folder, coded, sides, settings["factors"])
        versions = {"python": platform.python_version(), "numpy": np.__version__}
        result = SparkModel(
            format_version=VERSION,
            package_version=__version__,
            model=name,
            parameters=settings,
            fitted=fitted,
            training={
                **{
                    name: getattr(coded, f"n_{name}")
                    for name in ("users", "items", "ratings")
                },
                "implicit": name != "als",
                "seconds": round(time.perf_counter() - start, 3),
                "sweeps": settings["iterations"],
                "train_rmse": None,
                "remarks": "; ".join(table.remarks) or None,
                "as_of": iso_time(request.rules.now),
                **summary,
            },
            files=files,
            versions=versions | {"spark": spark.version},
        )
        text = msgspec.json.format(msgspec.json.encode(result), indent=2).decode()
        folder.child(MANIFEST).write_text(f"{text}\n")
        scratch.delete()
    return msgspec.structs.replace(result, path=str(out).rstrip("/"))


def _chosen_model(
    model: str | None, given: Mapping[str, Any], *, implicit: bool
) -> tuple[str, dict[str, Any]]:
    name = model or ("ials" if implicit else "als")
    if name not in MODELS:
        raise DataError(
            f"On Spark the models are {' and '.join(MODELS)}; got {name!r}."
        )
    if name == "als" and implicit:
        raise DataError(
            "The als model needs ratings with values, but these have no rating column; use ials."
        )
    settings = make_model(name, **{"iterations": _ITERATIONS, **given}).get_params()
    if settings.get("linked"):
        raise DataError("The als model has no links on Spark; leave out linked.")
    if settings["nonnegative"]:
        raise DataError(
            f"The {name} model has no non-negative factors on Spark; leave out nonnegative."
        )
    return name, settings


class _Task(NamedTuple):
    """Arguments of the fit of a model."""

    coded: Encoded
    settings: dict[str, Any]
    scratch: Place
    broadcast_limit: int
    on_step: Callable[[Step], None] | None
    begin: Say


def _swept(
    task: _Task,
    solver_of: Callable[[DataFrame, int], Solver],
    after_items: Callable[[DataFrame], None] = lambda _: None,
    error: Callable[[DataFrame, DataFrame], float | None] = lambda *_: None,
) -> tuple[tuple[DataFrame, DataFrame], float | None]:
    """Sweep over users and items from random item vectors; solve for the users last.

    Returns the vectors of both and their `error` on held-out ratings.
    """
    coded, settings, scratch, broadcast_limit, on_step, begin = task
    total, k = settings["iterations"], settings["factors"]

    def solve(others: DataFrame, name: str, *, of_users: bool) -> DataFrame:
        rows = coded.by_user if of_users else coded.by_item
        n_others = coded.n_items if of_users else coded.n_users
        is_small = 4 * n_others * (k + 1) <= broadcast_limit
        known = dense_vectors(others, n_others, k) if is_small else others
        solver = solver_of(others, n_others)
        return half_sweep(rows, known, solver, coded.blocks, scratch.child(name))

    items = _start(coded, settings)
    for sweep in range(1, total + 1):
        begin(f"sweep {sweep} of {total}")
        users = solve(items, f"users-{sweep}", of_users=True)
        items = solve(users, f"items-{sweep}", of_users=False)
        after_items(items)
        if sweep == total:
            users = solve(items, "users", of_users=True)
        rmse = error(users, items)
        if on_step is not None:
            on_step(Step(step=sweep, total=total, validation_rmse=rmse))
    return (users, items), rmse


def _fit_als(task: _Task) -> Fit:
    """Sweep as `als` does, and correct the mean of the ratings after each sweep."""
    coded, settings, *_ = task
    mean = coded.mean

    def correct(items: DataFrame) -> None:
        nonlocal mean
        mean += _mean_residual(settings, items, coded.n_ratings)

    def error(users: DataFrame, items: DataFrame) -> float | None:
        return (
            None
            if coded.held is None
            else rating_errors(coded.held, users, items, mean)[0]
        )

    def solver(*_: Any) -> Solver:
        return row_solver(settings, mean, coded.std)

    sides, rmse = _swept(task, solver, correct, error)
    low, high = coded.limits
    summary = {"rating_min": low, "rating_max": high, "validation_rmse": rmse}
    return sides, {"global_mean": mean, "rating_std": coded.std}, summary


def _start(coded: Encoded, settings: dict[str, Any]) -> DataFrame:
    """Return random vectors of items, which depend only on the seed and the item."""
    from pyspark.sql import functions as sql

    def draw(place: Any) -> Any:
        bits = sql.pmod(
            sql.xxhash64("index", place, sql.lit(settings["random_state"])), _STEPS
        )
        return ((bits / _STEPS - 0.5) * _START_WIDTH).cast("float")

    places = sql.sequence(sql.lit(1), sql.lit(settings["factors"]))
    start = sql.transform(places, draw).alias("factors")
    return coded.by_item.select(
        "index", sql.lit(0.0).cast("float").alias("bias"), start
    )


def _mean_residual(
    parameters: dict[str, Any], solved: DataFrame, n_ratings: int
) -> float:
    """Return the mean residual, where a row's residuals sum to penalty * b (see `als_sweeps`)."""
    from pyspark.sql import functions as sql

    count = sql.greatest("count", sql.lit(1)).cast("double")
    weight = sql.pow(count, sql.lit(float(parameters["count_power"])))
    total = solved.agg(sql.sum(weight * sql.col("bias"))).first()[0]
    residual = float(parameters["regularization"] * total / n_ratings)
    if not math.isfinite(residual):  # the sweep failed in single precision
        raise overflow_error(ALS(**parameters), "regularization", "count_power")
    return residual


def row_solver(parameters: Mapping[str, Any], mean: float, rating_std: float) -> Solver:
    """Return `solve_rows` of `als` on one thread, since Spark runs a task on each core."""
    penalty = {name: parameters[name] for name in ("regularization", "count_power")}
    return partial(solve_rows, mean=mean, scale=rating_std, threads=1, **penalty)


def half_sweep(
    rows: DataFrame,
    others: DataFrame | Vectors,
    solver: Solver,
    blocks: int,
    place: Place,
) -> DataFrame:
    """Solve for the vectors of all rows, write them to `place` and return them.

    The vectors of the `others` are a table with the schema `SOLVED`, or arrays if they are few.
    """
    from pyspark.sql import functions as sql

    rows = rows.repartition(blocks, "index")
    if isinstance(others, tuple):
        shared: Any = rows.sparkSession.sparkContext.broadcast(others)

        def solve(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                yield from _solved(batch, shared.value, solver).to_batches()

        solved = written(arrow.map_in_arrow(rows, solve, SOLVED), place)
        shared.destroy()
        return solved
    block = sql.pmod(sql.hash("index"), blocks).alias("block")
    numbered = rows.select(block, "index", "others", "values")
    # Each block receives only the vectors that it needs.
    needed = numbered.select("block", sql.explode("others").alias("index")).distinct()
    to = sql.col("block").alias("to")
    sent = needed.join(others, "index").select(to, "index", "bias", "factors")

    def solve_block(left: pa.Table, right: pa.Table) -> pa.Table:
        right = right.sort_by("index")
        vectors = arrow.matrix(right, "factors"), arrow.column(right, "bias")
        return _solved(left, vectors, solver, arrow.column(right, "index"))

    with arrow.quiet_pandas():
        pairs = numbered.groupBy("block").cogroup(sent.groupBy("to"))
        return written(pairs.applyInArrow(solve_block, SOLVED), place)


def _solved(
    batch: Any, others: Vectors, solver: Solver, known: NDArray[Any] | None = None
) -> pa.Table:
    """Solve for a batch of rows; `known` are the indices of the `others`, by default 0, 1, ..."""
    import pyarrow as pa

    indptr, indices = arrow.lists(batch, "others")
    if known is not None:
        indices = np.searchsorted(known, indices)
    values = arrow.lists(batch, "values")[1].astype(np.float32, copy=False)
    factors, bias = solver(
        CsrArrays(indptr, indices.astype(np.int32, copy=False), values), *others
    )
    columns = {
        "index": arrow.column(batch, "index").astype(np.int32),
        "count": np.diff(indptr).astype(np.int32),
        "bias": bias.copy(),
        "factors": arrow.list_array(factors),
    }
    return pa.table(columns)


def dense_vectors(solved: DataFrame, n: int, k: int) -> Vectors:
    """Collect vectors as arrays, factors of shape (n, k) and bias; missing rows are zero."""
    whole = arrow.table_of(solved.select("index", "bias", "factors"))
    factors, bias = np.zeros((n, k), np.float32), np.zeros(n, np.float32)
    if whole.num_rows:
        rows = arrow.column(whole, "index")
        factors[rows], bias[rows] = (
            arrow.matrix(whole, "factors"),
            arrow.column(whole, "bias"),
        )
    return factors, bias


def _fit_ials(task: _Task) -> Fit:
    """Sweep as `ials` does."""
    coded, settings, *_ = task
    k, unit = settings["factors"], coded.mean if coded.mean > 0 else 1.0
    task.begin("choosing penalties")
    penalties = _penalties(coded, IALS(**settings), unit)
    options = {
        "unit": unit,
        "count_power": settings["count_power"],
        **penalties._asdict(),
    }

    def solver(others: DataFrame, n: int) -> Solver:
        return partial(_solve_interactions, whole=(_gram(others, k), n), **options)

    sides, _ = _swept(task, solver)
    fitted = {
        "global_mean": 0.0,
        "unit": unit,
        "penalty": penalties.regularization,
        "pair_weight": penalties.unobserved_weight,
    }
    return sides, fitted, dict.fromkeys(("rating_min", "rating_max", "validation_rmse"))


def _penalties(coded: Encoded, unfitted: IALS, unit: float) -> Penalties:
    """Return the given penalties, or the best ones for a sample of the users."""
    from pyspark.sql import functions as sql
    from scipy.sparse import csr_array

    given = Penalties(unfitted.unobserved_weight or 0.0, unfitted.regularization or 0.0)
    if all(given):
        return given
    bits = sql.pmod(sql.xxhash64("index", sql.lit(unfitted.random_state)), _STEPS)
    share = min(1.0, INTERACTIONS / max(1, coded.n_ratings))
    chosen = coded.by_user.where(bits < sql.lit(int(share * _STEPS))).sort("index")
    sample = arrow.table_of(chosen.select("others", "values"))
    if not sample.num_rows:
        sample = arrow.table_of(
            coded.by_user.sort("index").limit(1).select("others", "values")
        )
    indptr, indices = arrow.lists(sample, "others")
    values = _weights(arrow.lists(sample, "values")[1], unit)
    shape = (len(indptr) - 1, coded.n_items)
    weights = csr_array((values, indices.astype(np.int32), indptr), shape=shape)
    return unfitted.chosen_penalties(weights, given, coded.n_users)


def _weights(values: NDArray[Any], unit: float) -> Floats:
    found: Floats = np.maximum(values.astype(np.float32) / np.float32(unit), 0)
    return found


def _gram(vectors: DataFrame, k: int) -> NDArray[np.float64]:
    """Return the Gram matrix of the factors of all users or items, the sum over partitions."""

    def partial_gram(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        gram = np.zeros((k, k))
        for batch in batches:
            if batch.num_rows:
                factors = arrow.matrix(batch, "factors").astype(np.float64)
                gram += factors.T @ factors
        flat = pa.array([gram.ravel().tolist()], pa.list_(pa.float64()))
        yield from pa.table({"gram": flat}).to_batches()

    parts = arrow.map_in_arrow(
        vectors.select("factors"), partial_gram, "gram array<double>"
    )
    gram = np.zeros(k * k)
    for row in parts.collect():
        gram += row.gram
    return gram.reshape(k, k)


def _solve_interactions(
    rows: CsrArrays, factors: Floats, bias: Floats, *, unit: float, **options: Any
) -> Vectors:
    """Solve for rows of interactions as `ials` does, on one thread like `row_solver`."""
    weights = rows._replace(data=_weights(rows.data, unit))
    solved = solve_interactions(weights, factors, threads=1, **options)
    return solved, np.zeros(len(solved), np.float32)


def _write_tables(
    folder: Place, coded: Encoded, sides: tuple[DataFrame, DataFrame], factors: int
) -> dict[str, int]:
    """Write users and items, with zeros if they have no training ratings; return file sizes."""
    from pyspark.sql import functions as sql

    zero, files = sql.lit(0.0).cast("float"), dict[str, int]()
    default = {
        "count": sql.lit(0),
        "bias": zero,
        "factors": sql.array_repeat(zero, factors),
        "others": sql.array().cast("array<int>"),
        "values": sql.array().cast("array<float>"),
    }
    users, items = sides
    for side, ids, vectors in (
        ("users", coded.users, users.join(coded.by_user, "index")),
        ("items", coded.items, items),
    ):
        chosen = [
            sql.coalesce(each, default[each]).alias(each)
            for each in vectors.columns[1:]
        ]
        table = ids.join(vectors, "index", "left").select("index", "id", *chosen)
        ordered = table.repartitionByRange(coded.blocks, "index").sortWithinPartitions(
            "index"
        )
        place = folder.child(side)
        ordered.write.parquet(place.uri)
        files |= {f"{side}/{file}": size for file, size in place.sizes().items()}
    return files
