"""Parquet files that are small on the disk and immense in memory are refused unread."""

from __future__ import annotations

import hashlib
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from recsys import (
    LSI,
    ModelFileError,
    Ratings,
    Recommender,
    memory,
    read_ratings,
)
from recsys.cli.main import cli
from recsys.errors import DataError
from recsys.parquet import size
from recsys.parquet.size import pages_of, too_large, unpacked_size
from recsys.readers import documents as tables
from recsys.readers import read_raw
from recsys.readers.documents import read_documents
from recsys.readers.layout import Request
from recsys.readers.sources import open_data
from recsys.storage import _checksum

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
    for module in (size, memory, tables):
        monkeypatch.setattr(module, "available_memory", lambda: 2**20)


def contacts() -> Ratings:
    return Ratings.from_frame(pl.DataFrame({"user": [1, 2], "item": [1, 2]}))


def in_parquet(frame: pl.DataFrame) -> bytes:
    sink = io.BytesIO()
    frame.write_parquet(sink)
    return sink.getvalue()


def test_what_fits_exactly_is_read_and_one_byte_less_is_refused(monkeypatch):
    n = 100_000
    flags = pl.select(flag=pl.repeat(True, n), rating=pl.repeat(1.5, n, dtype=pl.Float32))
    content = in_parquet(flags)
    for columns, beside, width in ((["rating", "flag"], 0, 5), (["rating"], 10, 14), ([], 7, 7)):
        needed = n * beside + pages_of(content, columns).memory
        assert width * n <= needed < width * n + 1000
        monkeypatch.setattr(size, "available_memory", lambda needed=needed: needed)
        assert too_large(content, columns, beside) is None
        monkeypatch.setattr(size, "available_memory", lambda needed=needed: needed - 1)
        reason = too_large(content, columns, beside) or ""
        assert reason.startswith("has 100,000 rows, which take at least 0.0 GiB in memory")
    monkeypatch.setattr(size, "available_memory", lambda: None)
    assert too_large(content, ["rating"], 2**60) is None


def test_more_rows_than_polars_counts_are_refused_too():
    sentence = "has more than the 4,294,967,295 rows that can be read of one file."
    assert memory.over_memory(2**32, 0, None) == sentence
    assert memory.over_memory(2**32 - 1, 0, None) is None
    assert "has 1 row, which take at least" in (memory.over_memory(1, 2, 1) or "")


def test_a_damaged_file_is_said_to_be_one():
    content = in_parquet(pl.DataFrame({"user": [1, 2]}))
    for damaged in (content[:4] + b"\xff" * 20 + content[24:], content[40:], b""):
        with pytest.raises(pl.exceptions.ComputeError):
            too_large(damaged, ["user"])


# Texts that are long, and equal texts that are stored once.

LONG = 4_000_000


@pytest.fixture
def some_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (size, memory, tables):
        monkeypatch.setattr(module, "available_memory", lambda: LONG)


def long_text(path: Path, column: str) -> str:
    """Write a file of a few kilobytes with a text that takes as much as there is, in a page."""
    texts = ["a " * (LONG // 2), "b"]
    pl.DataFrame({column: texts, "item": [1, 2]}).write_parquet(path)
    assert path.stat().st_size < 5000
    return str(path)


def repeated(path: Path, column: str, text: str, times: int, **settings: Any) -> str:
    """Write a text once, with how often it comes, in a single page."""
    once = pa.DictionaryArray.from_arrays(pa.array(np.zeros(times, np.int32)), pa.array([text]))
    whole = {"write_batch_size": times, "dictionary_pagesize_limit": 2**30, "store_schema": False}
    pq.write_table(pa.table({column: once}), path, compression="zstd", **whole | settings)
    return str(path)


def test_ratings_with_a_long_text(some_memory, tmp_path):
    with pytest.raises(DataError, match=r"has 2 rows, which take at least 0\.0 GiB in memory"):
        read_ratings(long_text(tmp_path / "r.parquet", "user"))


def test_a_page_that_is_many_times_the_file_is_refused(monkeypatch, tmp_path):
    path = long_text(tmp_path / "r.parquet", "user")
    monkeypatch.setattr(memory, "_ABSURD_SIZE", LONG - 1)
    message = (
        r"^r\.parquet expands to more than 250 times its size; it is damaged or meant to do harm\.$"
    )
    with pytest.raises(DataError, match=message):
        read_ratings(path)
    with pytest.raises(DataError, match=message):
        list(read_documents(path, text_col="user"))


def test_ids_of_absurd_length_are_refused_when_they_are_read(tmp_path):
    message = (
        r"r.parquet, row 1: the user id has 4,000,000 bytes; no id may have more than 65,536\.$"
    )
    with pytest.raises(DataError, match=message):
        read_ratings(long_text(tmp_path / "r.parquet", "user"))


def test_documents_with_a_long_text(some_memory, tmp_path):
    with pytest.raises(DataError, match=r"has 2 rows, which take at least 0\.0 GiB in memory"):
        next(iter(read_documents(long_text(tmp_path / "d.parquet", "text"))))


def test_documents_are_read_by_as_many_rows_as_their_texts_let(monkeypatch, tmp_path):
    texts = [f"document {i} " + "of some length " * 50 for i in range(300)]
    pl.DataFrame({"text": texts}).write_parquet(tmp_path / "d.parquet", row_group_size=100)
    heights = []
    collect = pl.LazyFrame.collect

    def noted(frame: pl.LazyFrame, **settings: Any) -> pl.DataFrame:
        found = collect(frame, **settings)
        heights.append(len(found))
        return found

    monkeypatch.setattr(pl.LazyFrame, "collect", noted)
    for limit, expected in ((2**30, [300]), (2**18, [3] * 100), (1, [1] * 300)):
        heights.clear()
        monkeypatch.setattr(tables, "_TEXTS", limit)
        batches = list(read_documents(tmp_path / "d.parquet"))
        assert [text for batch in batches for text in batch.texts] == texts
        assert [i for batch in batches for i in batch.ids] == list(range(1, 301))
        assert heights == expected


def test_documents_that_are_many_times_the_file_are_refused(monkeypatch, tmp_path):
    path = repeated(tmp_path / "d.parquet", "text", "some words " * 100, 5000)
    assert sum(len(batch.texts) for batch in read_documents(path)) == 5000
    monkeypatch.setattr(memory, "_ABSURD_SIZE", 1 << 20)
    with pytest.raises(DataError, match=r"^d\.parquet expands to more than 250 times its size"):
        list(read_documents(path))


def test_a_list_whose_equal_texts_would_be_held_singly(monkeypatch, tmp_path):
    model = tmp_path / "model"
    Recommender("popular").fit(contacts()).save(model)
    path = repeated(tmp_path / "users.parquet", "user", "u" * 10_000, 1000)
    for free, refused in ((20_000_000, False), (19_000_000, True)):
        for module in (size, memory, tables):
            monkeypatch.setattr(module, "available_memory", lambda free=free: free)
        found = CliRunner().invoke(cli, ["recommend", str(model), "--users", path])
        assert ("1,000 rows, which take at least 0.0 GiB" in found.stderr) == refused


# Texts that are written as what differs from the one before, and may be longer than their page.


def differences(path: Path, text: str, times: int, **settings: Any) -> Path:
    table = pa.table({"user": np.arange(times), "item": pa.array([text] * times)})
    encoding = {"user": "PLAIN", "item": "DELTA_BYTE_ARRAY"}
    settings = {"data_page_size": 2**30, "write_batch_size": times} | settings
    pq.write_table(table, path, use_dictionary=False, column_encoding=encoding, **settings)
    return path


@pytest.mark.parametrize("groups", [1, 7])
def test_differences_are_looked_at_before_they_are_read(monkeypatch, tmp_path, groups):
    path = differences(tmp_path / "d.parquet", "a" * 50_000, 400, row_group_size=400 // groups)
    assert path.stat().st_size < 30_000
    pages = pages_of(path, ["user", "item"])
    assert pages.unbounded == {"item"}
    assert pages.memory < 2_000_000
    needed = pages.memory + 400 * 50_000
    for free, refused in ((needed, False), (needed - 1, True), (pages.memory, True)):
        monkeypatch.setattr(size, "available_memory", lambda free=free: free)
        assert (too_large(path, ["user", "item"]) is not None) == refused
    monkeypatch.setattr(size, "available_memory", lambda: 2**40)
    monkeypatch.setattr(pl, "scan_parquet", None)  # there is no need to look
    assert too_large(path, ["user", "item"]) is None


def test_sums_of_lengths_do_not_overflow(monkeypatch, tmp_path):
    """polars adds lengths up in 32 bits if it is not told otherwise."""
    path = differences(tmp_path / "d.parquet", "a" * 50_000, 400)
    monkeypatch.setattr(size, "available_memory", lambda: pages_of(path, ["item"]).memory)
    types = []
    row = pl.DataFrame.row

    def noted(frame: pl.DataFrame, index: int) -> tuple[Any, ...]:
        types.extend(frame.dtypes)
        return row(frame, index)

    monkeypatch.setattr(pl.DataFrame, "row", noted)
    assert too_large(path, ["item"]) is not None
    assert set(types) == {pl.UInt64}


def test_differences_that_would_take_too_long_to_look_at(monkeypatch, tmp_path):
    path = differences(tmp_path / "d.parquet", "a" * 50_000, 400)
    free = pages_of(path, ["item"]).memory
    monkeypatch.setattr(size, "available_memory", lambda: free)
    monkeypatch.setattr(size, "_MOST_LOOKS", 100)
    reason = too_large(path, ["item"]) or ""
    assert reason.startswith("has texts in the encoding DELTA_BYTE_ARRAY (item), which may need")
    assert reason.endswith("write it in another encoding.")


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


def read_raw_decision(path: Path) -> str:
    with open_data(path) as data:
        return read_raw(data, Request()).decision


def swap_table(saved: Path, name: str, bomb: str, column: str) -> None:
    """Put the bomb in the place of a table, with the right checksums."""
    pl.scan_parquet(bomb).select(pl.col("item").alias(column)).sink_parquet(saved / name)
    note_table(saved, json.loads((saved / "model.json").read_text()), name)


def note_table(saved: Path, document: dict[str, Any], name: str) -> None:
    content = (saved / name).read_bytes()
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


def test_saved_models_whose_equal_titles_would_be_held_singly(monkeypatch, tmp_path):
    saved = tmp_path / "model"
    Recommender("popular").fit(contacts()).save(saved)
    path = repeated(tmp_path / "titles.parquet", "title", "t" * 10_000, 1000)
    pl.scan_parquet(path).with_row_index("item").sink_parquet(saved / "items.parquet")
    state = json.loads((saved / "model.json").read_text())
    note_table(saved, state, "items.parquet")
    monkeypatch.setattr(memory, "_ABSURD_SIZE", 1 << 20)
    message = (
        r"is damaged: items\.parquet expands to more than 250 times its size; it is damaged or"
    )
    with pytest.raises(ModelFileError, match=message):
        Recommender.load(saved)


@pytest.mark.parametrize("dtype", [pl.String, pl.Categorical])
def test_sizes_count_equal_texts_singly(dtype):
    frame = pl.DataFrame({"n": [1, 2, 3], "text": ["a" * 100, None, "a" * 100]})
    found = unpacked_size(frame.with_columns(pl.col("text").cast(dtype)))
    assert 3 * 8 + 2 * 100 <= found < 3 * 8 + 3 * 120


def test_a_foreign_time_of_equal_long_texts_is_looked_at_by_its_beginning(tmp_path):
    """A hundred of them are, which would be a gigabyte."""
    path = tmp_path / "r.parquet"
    text = "x" * 10_000_000
    once = pa.DictionaryArray.from_arrays(pa.array(np.zeros(150, np.int32)), pa.array([text]))
    table = pa.table({"user": np.arange(150), "item": np.arange(150), "timestamp": once})
    for stored in (False, True):  # as strings, and as categories
        pq.write_table(table, path, compression="zstd", store_schema=stored)
        tracemalloc.start()
        decision = read_raw_decision(path)
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
        tracemalloc.stop()
        assert "timestamp not used ('xxxx" in decision
