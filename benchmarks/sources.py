"""Read ratings from files and databases, compared with polars and pandas; write recommendations.

Each read runs in its own process, in turns, after the imports. Ours returns `Ratings` (ids, one
rating per pair, a CSR matrix), the others return a frame with the same columns. The seconds are
processor seconds of the process, which depend less on other programs than wall time; the minimum of
the repeats is given. The PostgreSQL server is a private one, as in the tests; its own seconds are
not included. Writing is compared with COPY from a CSV file, by wall time: into a new table, and
replacing the rows of an indexed table.

Usage: python benchmarks/sources.py [--rows N]... [--recommendations N] [--repeats R] [--pandas N]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from generated import movielens_shaped
from measuring import extra_memory, interleaved, machine, median, spread, table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import postgres  # noqa: E402

SOURCES = ("Parquet", "CSV", "SQLite", "DuckDB", "PostgreSQL")
SQL = "SELECT * FROM ratings"


def ours(source: str, place: str) -> Callable[[], object]:
    from recsys import read_ratings

    if source in SOURCES[2:]:
        for module in ("adbc_driver_manager.dbapi", "duckdb", "pyarrow"):
            import_module(module)

    address = place if source in ("Parquet", "CSV") else f"{place}::ratings"
    return lambda: read_ratings(address)


def with_polars(source: str, place: str) -> Callable[[], object]:
    if source == "Parquet":
        return lambda: pl.read_parquet(place)
    if source == "CSV":
        return lambda: pl.read_csv(place)
    if source == "DuckDB":
        import duckdb

        return lambda: duckdb.connect(place, read_only=True).sql(SQL).pl()
    uri = place if source == "PostgreSQL" else f"sqlite:///{place}"
    return lambda: pl.read_database_uri(SQL, uri, engine="adbc")


def with_connectorx(source: str, place: str) -> Callable[[], object] | None:
    if source not in ("SQLite", "PostgreSQL") or not find_spec("connectorx"):
        return None
    uri = place if source == "PostgreSQL" else f"sqlite://{place}"
    return lambda: pl.read_database_uri(SQL, uri, engine="connectorx")


def with_pandas(source: str, place: str) -> Callable[[], object]:
    import pandas as pd

    if source == "Parquet":
        return lambda: pd.read_parquet(place)
    if source == "CSV":
        return lambda: pd.read_csv(place)
    if source == "DuckDB":
        import duckdb

        return lambda: duckdb.connect(place, read_only=True).sql(SQL).df()
    if source == "SQLite":
        import sqlite3

        return lambda: pd.read_sql(SQL, sqlite3.connect(place))
    from adbc_driver_postgresql import dbapi

    return lambda: pd.read_sql(SQL, dbapi.connect(place))


READERS = {
    "ours": ours,
    "polars": with_polars,
    "connectorx": with_connectorx,
    "pandas": with_pandas,
}


def child(reader: str, source: str, place: str) -> None:
    """Read once; print seconds on processors and clock, and by how many bytes the process grew."""
    run = READERS[reader](source, place)
    if run is None:
        print(json.dumps(None))
        return
    seconds = []

    def timed() -> None:
        start, begun = time.process_time(), time.perf_counter()
        run()
        seconds.extend((time.process_time() - start, time.perf_counter() - begun))

    peak = extra_memory(timed)
    print(json.dumps([*seconds, peak]))


def measured(reader: str, source: str, place: str) -> list[float] | None:
    command = [sys.executable, __file__, "--child", reader, source, place]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{reader} from {source}: {done.stderr}")
    found: list[float] | None = json.loads(done.stdout.splitlines()[-1])
    return found


def write_sources(n_rows: int, folder: Path, uri: str | None) -> dict[str, str]:
    """Write the same ratings to every source; return their places."""
    from recsys import write_table

    A = movielens_shaped(n_rows).tocoo()
    frame = pl.DataFrame(
        {
            "user": A.coords[0].astype(np.int64) + 1,
            "item": A.coords[1].astype(np.int64) + 1,
            "rating": A.data,
            "timestamp": 1_000_000_000 + np.arange(A.nnz),
        }
    )
    names = ("ratings.parquet", "ratings.csv", "ratings.db", "ratings.duckdb")
    places = dict(zip(SOURCES, (str(folder / name) for name in names), strict=False))
    places |= {"PostgreSQL": uri} if uri is not None else {}
    frame.write_parquet(places["Parquet"])
    frame.write_csv(places["CSV"])
    for source in [name for name in SOURCES[2:] if name in places]:
        write_table(
            f"{places[source]}::ratings",
            frame.iter_slices(500_000),
            if_exists="replace",
        )
    return places


def reading(
    n_rows: int, repeats: int, pandas_rows: int, folder: Path, uri: str | None
) -> str:
    places, rows = write_sources(n_rows, folder, uri), []
    readers = [name for name in READERS if name != "pandas" or n_rows <= pandas_rows]
    for source, place in places.items():
        found: dict[str, list[list[float]]] = {}
        for _ in range(repeats):
            for reader in readers:
                if (result := measured(reader, source, place)) is not None:
                    found.setdefault(reader, []).append(result)
        base = [min(each) for each in zip(*found["polars"], strict=True)]
        for reader, results in found.items():
            used, clock, peaks = zip(*results, strict=True)
            ratios = [min(used) / base[0], min(clock) / base[1]]
            peak = f"{max(peaks) / n_rows:.0f}"
            rows.append(
                [source, reader, min(used), ratios[0], min(clock), ratios[1], peak]
            )
    heads = [
        "source",
        "reader",
        "processor, s",
        "/ polars",
        "clock, s",
        "/ polars",
        "peak B/row",
    ]
    return f"{n_rows:,} rows\n\n{table(heads, rows)}"


def recommendations(n_rows: int) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    ranks = np.tile(np.arange(1, 11, dtype=np.int32), n_rows // 10)
    return pl.DataFrame(
        {
            "user": np.repeat(np.arange(n_rows // 10), 10),
            "item": rng.integers(0, 60_000, len(ranks)),
            "rank": ranks,
            "score": rng.random(len(ranks), dtype=np.float32),
        }
    )


def writing(n_rows: int, repeats: int, folder: Path, uri: str) -> str:
    from recsys import write_table

    frame, file = recommendations(n_rows), folder / "recommendations.csv"
    frame.write_csv(file)
    columns = '"user" bigint, item bigint, rank integer, score real'

    def run(*statements: str) -> None:
        each = [part for statement in statements for part in ("-c", statement)]
        command = [str(postgres.programs() / "psql"), "-Xqv", "ON_ERROR_STOP=1", *each]
        subprocess.run([*command, uri], check=True, stderr=subprocess.DEVNULL)

    def frames() -> Iterator[pl.DataFrame]:
        return frame.iter_slices(1_000_000)

    def new(target: str, mode: Any) -> Callable[[], object]:
        return lambda: write_table(target, frames(), if_exists=mode)

    def copy() -> None:
        run("DROP TABLE IF EXISTS copied", f"CREATE TABLE copied ({columns})")
        run(f"\\copy copied FROM '{file}' CSV HEADER")

    def copy_indexed() -> None:
        run("DROP TABLE IF EXISTS filled", f"CREATE TABLE filled ({columns})")
        run(
            'CREATE INDEX ON filled ("user")', f"\\copy filled FROM '{file}' CSV HEADER"
        )

    run(f"CREATE TABLE indexed ({columns})", 'CREATE INDEX ON indexed ("user")')
    candidates = {
        "COPY from CSV (psql)": copy,
        "ours, PostgreSQL": new(f"{uri}::recs", "replace"),
        "COPY into an indexed table": copy_indexed,
        "ours, replacing an indexed table": new(f"{uri}::indexed", "replace"),
        "ours, SQLite": new(f"{folder / 'recs.db'}::recs", "replace"),
        "ours, DuckDB": new(f"{folder / 'recs.duckdb'}::recs", "replace"),
    }
    seconds = interleaved(candidates, repeats)
    base = median(seconds["COPY from CSV (psql)"])
    rows = [
        [name, median(t), spread(t), median(t) / base] for name, t in seconds.items()
    ]
    heads = ["writing", "seconds", "spread", "/ COPY"]
    return f"{n_rows:,} recommendations\n\n{table(heads, rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rows", type=int, action="append", help="default: 5 and 25 million"
    )
    parser.add_argument("--recommendations", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--pandas", type=int, default=5_000_000, help="most rows for pandas"
    )
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    print(machine(), flush=True)
    with ExitStack() as held:
        folder, uri = Path(held.enter_context(tempfile.TemporaryDirectory())), None
        if reason := postgres.why_no_postgres():
            print(f"PostgreSQL is left out: {reason}.")
        else:
            uri = held.enter_context(postgres.server("shared_buffers=1GB")).uri
        for n_rows in options.rows or [5_000_000, 25_000_000]:
            found = reading(n_rows, options.repeats, options.pandas, folder, uri)
            print(f"\n{found}", flush=True)
        if options.recommendations and uri is not None:
            print(f"\n{writing(options.recommendations, options.repeats, folder, uri)}")


if __name__ == "__main__":
    main()
