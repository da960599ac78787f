"""Parquet files that are small on the disk and immense in memory are refused unread."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

from recsys import LSI, ModelFileError, Ratings, Recommender, parquet_size, read_ratings
from recsys.cli.main import cli
from recsys.errors import DataError
from recsys.lsi.documents import read_documents
from recsys.manifest import _checksum
from recsys.parquet_size import too_large

N = 5_000_000
REFUSED = r"has 5,000,000 rows, which take at least 0\.\d GiB in memory, and 0\.0 GiB are free"


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of less than a kilobyte with five million equal rows."""
    path = tmp_path_factory.mktemp("bomb") / "bomb.parquet"
    columns = [pl.repeat(1, N, dtype=pl.Int64).alias(name) for name in ("user", "item")]
    pl.select(columns).write_parquet(path, row_group_size=N, data_page_size=2**40)
    assert path.stat().st_size < 1000
    return str(path)


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_size, "available_memory", lambda: 2**20)


def contacts() -> Ratings:
    return Ratings.from_frame(pl.DataFrame({"user": [1, 2], "item": [1, 2]}))


def test_what_fits_exactly_is_read_and_one_byte_less_is_refused(monkeypatch):
    frame = pl.LazyFrame(
        {"user": [1, 2], "item": ["a", "b"], "rating": [1, 2], "flag": [True, False]},
        schema={"user": pl.Int64, "item": pl.String, "rating": pl.Float32, "flag": pl.Boolean},
    )
    for columns, beside, needed in (
        (["user", "item", "rating", "flag"], 0, 2 * (8 + 16 + 4 + 1)),
        (["rating"], 10, 2 * 14),
        ([], 7, 14),
    ):
        monkeypatch.setattr(parquet_size, "available_memory", lambda needed=needed: needed)
        assert too_large(frame, columns, beside) is None
        monkeypatch.setattr(parquet_size, "available_memory", lambda needed=needed: needed - 1)
        assert "has 2 rows, which take at least" in (too_large(frame, columns, beside) or "")
    monkeypatch.setattr(parquet_size, "available_memory", lambda: None)
    assert too_large(frame, ["user"], 2**60) is None


def test_more_rows_than_polars_counts_are_refused_too(monkeypatch):
    def fail(*arguments: object, **settings: object) -> None:
        raise pl.exceptions.ComputeError(message)

    frame = pl.LazyFrame({"user": [1]})
    monkeypatch.setattr(pl.LazyFrame, "collect", fail)
    message = "parquet file produces 10000000000 rows which is more than maximum allowed "
    message += "pow(2, 32)-1 rows; consider compiling with bigidx feature"
    assert (
        too_large(frame, []) == "has more than the 4,294,967,295 rows that can be read of one file."
    )
    message = "something else"
    with pytest.raises(pl.exceptions.ComputeError, match="something else"):
        too_large(frame, [])


def test_ratings(bomb, little_memory):
    with pytest.raises(DataError, match=f"^bomb.parquet {REFUSED}; split the file"):
        read_ratings(bomb)


def test_documents(bomb, little_memory):
    with pytest.raises(DataError, match=f"^bomb.parquet {REFUSED}"):
        next(iter(read_documents(bomb, text_col="user")))


@pytest.mark.parametrize(
    "arguments",
    [["--users", "{bomb}"], ["--user", "1", "--items", "{bomb}"], ["--history", "{one}"]],
)
def test_lists_and_histories(bomb, little_memory, tmp_path, arguments):
    model, one = tmp_path / "model", tmp_path / "one.parquet"
    pl.scan_parquet(bomb).select("item").with_columns(rating=1).sink_parquet(one)
    Recommender("popular").fit(contacts()).save(model)
    words = [word.format(bomb=bomb, one=one) for word in arguments]
    found = CliRunner().invoke(cli, ["recommend", str(model), *words])
    assert (found.exit_code, found.stdout) == (1, "")
    file = Path(words[-1])
    assert f"Error: {file} has 5,000,000 rows, which take at least" in found.stderr


def swap_table(saved: Path, name: str, bomb: str, column: str) -> None:
    """Put the bomb in the place of a table, with the right checksums."""
    pl.scan_parquet(bomb).select(pl.col("item").alias(column)).sink_parquet(saved / name)
    content = (saved / name).read_bytes()
    document = json.loads((saved / "model.json").read_text())
    document["files"][name] |= {
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
    }
    document["checksum"] = _checksum(document)
    (saved / "model.json").write_text(json.dumps(document))


def test_saved_models(bomb, little_memory, tmp_path):
    saved = tmp_path / "model"
    Recommender("popular").fit(contacts()).save(saved)
    swap_table(saved, "users.parquet", bomb, "user")
    message = rf"^The saved model .* cannot be read: users.parquet {REFUSED}.*part of it\.$"
    with pytest.raises(ModelFileError, match=message):
        Recommender.load(saved)


def test_saved_indexes(bomb, little_memory, tmp_path):
    saved = tmp_path / "index"
    LSI(n_components=1).fit(["salt melts ice", "ice floats on water"]).save(saved)
    swap_table(saved, "terms.parquet", bomb, "term")
    with pytest.raises(ModelFileError, match=f"cannot be read: terms.parquet {REFUSED}"):
        LSI.load(saved)
