"""The blocks of docs/howto/vectors.md make the lists of the model, where the database is there."""

from __future__ import annotations

import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import polars as pl
import postgres as private
import pytest
from click.testing import CliRunner

from recsys import Recommender, read_ratings, sample_path, write_table
from recsys.cli.main import cli
from recsys.errors import DataError

PAGE = Path(__file__).resolve().parents[1] / "docs" / "howto" / "vectors.md"
BLOCK = re.compile(r"```\w+\n(?:#|--) \w+: (\S+)\n(.*?)```", re.DOTALL)
BLOCKS = dict(BLOCK.findall(PAGE.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved model and the files of its vectors."""
    folder = tmp_path_factory.mktemp("vectors")
    Recommender("als").fit(read_ratings(sample_path())).save(folder / "model")
    vectors("--columns", "year", folder=folder, output="items.parquet")
    return folder


@pytest.fixture(scope="module")
def recommender(folder):
    return Recommender.load(folder / "model")


@pytest.fixture(scope="module")
def users(recommender):
    """Ten users, and the items that each has rated."""
    ratings = recommender.ratings.to_frame()
    seen = ratings.group_by("user").agg("item").sort("user").head(10)
    return dict(seen.rows())


def vectors(*options: str, folder: Path, output: str) -> None:
    places = [output, output.replace("items", "users")]
    if "://" not in output:
        places = [str(folder / place) for place in places]
    command = ["vectors", str(folder / "model"), "--output", places[0]]
    command += ["--users", places[1], *options]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 0, result.output


def lists(recommender: Recommender, users: Any) -> dict[int, list[int]]:
    frame = recommender.recommend(users)
    grouped = frame.group_by("user", maintain_order=True).agg("item")
    return dict(grouped.rows())


def test_every_block_is_run_here():
    expected = ["recommend.sql", "recommend_nearest.sql"]
    assert [*BLOCKS] == [*expected, "faiss_lists.py", "qdrant_lists.py"]


@pytest.mark.parametrize(
    ("module", "name"),
    [("faiss", "faiss_lists.py"), ("qdrant_client", "qdrant_lists.py")],
)
@pytest.mark.filterwarnings("ignore")  # of the libraries
def test_python_makes_the_lists_of_the_model(
    module, name, folder, recommender, users, monkeypatch
):
    pytest.importorskip(module)
    monkeypatch.chdir(folder)
    (folder / name).write_text(BLOCKS[name])
    recommend = runpy.run_path(name)["recommend"]
    made = {user: recommend(user, seen) for user, seen in users.items()}
    assert made == lists(recommender, [*users])


def test_duckdb_recommends_to_all_users_by_one_statement(folder, recommender):
    duckdb = pytest.importorskip("duckdb")
    vectors(folder=folder, output="shop.duckdb::items")
    ratings = recommender.ratings.to_frame().select("user", "item")
    write_table(f"{folder}/shop.duckdb::ratings", ratings)
    with duckdb.connect(str(folder / "shop.duckdb")) as connection:
        connection.execute(BLOCKS["recommend.sql"])
        rows = connection.sql('SELECT "user", item, rank, score FROM recommendations')
        made = pl.DataFrame(rows.fetchall(), schema=[*rows.columns], orient="row")
        comment = "SELECT comment FROM duckdb_tables() WHERE table_name = 'items'"
        ((manifest,),) = connection.sql(comment).fetchall()
    expected = recommender.recommend().select("user", "item", "rank", "score")
    both = made.join(expected, on=["user", "rank"], how="full", suffix="_of_model")
    assert (both["item"] == both["item_of_model"]).all()
    assert (both["score"] - both["score_of_model"]).abs().max() < 1e-5
    assert recommender.provenance.version in manifest


def check_other_dimension(address: str) -> None:
    frame = pl.DataFrame({"item": [1], "vector": [[0.5, 1.0]]})
    frame = frame.with_columns(pl.col("vector").cast(pl.Array(pl.Float32, 2)))
    with pytest.raises(DataError, match=r"has vectors of \d+ dimensions .*; got 2"):
        write_table(address, frame, if_exists="replace")


def test_vectors_of_another_dimension_are_an_error(folder):
    pytest.importorskip("duckdb")
    vectors(folder=folder, output="other.duckdb::items")
    check_other_dimension(f"{folder}/other.duckdb::items")


@pytest.fixture
def psql(postgres_server):
    command = [str(private.programs() / "psql"), "-X", "-A", "-t", "-F,"]

    def run(sql: str) -> list[list[str]]:
        done = subprocess.run(
            [*command, "-v", "ON_ERROR_STOP=1", "-c", sql, postgres_server.uri],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise ValueError(done.stderr)
        return [line.split(",") for line in done.stdout.splitlines()]

    yield run
    run("DROP TABLE IF EXISTS items, users, ratings; DROP EXTENSION IF EXISTS vector")


def test_pgvector_makes_the_lists_of_the_model(
    psql, postgres, folder, recommender, users
):
    available = psql("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'")
    if not available:
        pytest.skip(
            "pgvector is not installed (apt-get install postgresql-17-pgvector)"
        )
    psql("CREATE EXTENSION vector")
    for _ in range(2):
        vectors("--if-exists", "replace", folder=folder, output=f"{postgres}::items")
    ratings = recommender.ratings.to_frame().select("user", "item")
    write_table(f"{postgres}::ratings", ratings)
    psql(f'DELETE FROM users WHERE "user" NOT IN ({",".join(map(str, users))})')
    made: dict[int, list[int]] = {}
    for user, item, _ in psql(BLOCKS["recommend_nearest.sql"]):
        made.setdefault(int(user), []).append(int(item))
    assert made == lists(recommender, [*users])
    ((dtype,),) = psql(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = 'items'::regclass AND attname = 'vector'"
    )
    dimension = recommender.item_vectors()["vector"].dtype.size
    assert dtype == f"vector({dimension})"
    check_other_dimension(f"{postgres}::items")


def test_postgresql_without_pgvector_has_arrays_and_the_manifest(
    psql, postgres, folder, recommender
):
    vectors(folder=folder, output=f"{postgres}::items")
    ((numbers,),) = psql(
        "SELECT array_to_string(vector, ' ') FROM items ORDER BY item LIMIT 1"
    )
    expected = recommender.item_vectors()["vector"][0].to_list()
    assert [*map(float, numbers.split())] == pytest.approx(expected, rel=1e-6)
    comment = "".join(psql("SELECT obj_description('items'::regclass)")[0])
    assert recommender.provenance.version in comment
    assert recommender.provenance.fingerprint in comment
