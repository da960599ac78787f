"""Columns of types that Python has no values for, in every role."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest

from recsys import LSI, DataError, read_ratings
from recsys.readers.documents import Documents
from recsys.readers.id_lists import read_ids

FAR = pl.Series([2**62, 2**62 + 1]).cast(pl.Datetime("us"))  # the year 148108
LAST = pl.Series([2**31 - 1] * 2, dtype=pl.Int32).cast(pl.Date)


@pytest.mark.parametrize("times", [FAR, LAST], ids=["datetime", "date"])
def test_times_of_far_years(tmp_path: Path, times: pl.Series) -> None:
    path = tmp_path / "r.parquet"
    frame = pl.DataFrame({"user": [1, 2], "item": [1, 2], "timestamp": times})
    frame.write_parquet(path)
    with pytest.raises(
        DataError, match="2 of 2 rows have no time of the past: 2 rows left out whose"
    ):
        read_ratings(path)
    modern = pl.Series([datetime(2023, 11, 14), datetime(2023, 11, 15)]).cast(
        times.dtype
    )
    pl.concat([frame, frame.with_columns(modern.alias("timestamp"))] * 2).write_parquet(
        path
    )
    said = str(read_ratings(path).source)
    assert 'time means "never" (r.parquet, row 1: after the year 9999;' in said


@pytest.mark.parametrize("times", [FAR, LAST], ids=["datetime", "date"])
@pytest.mark.parametrize("role", ["text_col", "id_col", "title_col"])
def test_documents_with_times_of_far_years(
    tmp_path: Path, times: pl.Series, role: str
) -> None:
    path = tmp_path / "d.parquet"
    pl.DataFrame({"text": ["a", "b"], "far": times}).write_parquet(path)
    with pytest.raises(
        DataError,
        match=r"d\.parquet is a damaged Parquet file: .*(out.of.range|must be in)",
    ):
        list(Documents(path, **{"text_col": "text"} | {role: "far"}))


def test_documents_in_lists_are_rejected_before_they_are_objects(
    tmp_path: Path,
) -> None:
    path = tmp_path / "d.parquet"
    pl.DataFrame({"text": [["a"], ["b"]]}).write_parquet(path)
    with pytest.raises(
        DataError, match=r"column text must be of texts; got List\(String\) values"
    ):
        list(Documents(path))


def test_a_list_of_times_is_not_a_list_of_ids(tmp_path: Path) -> None:
    path = tmp_path / "l.parquet"
    pl.DataFrame({"user": FAR}).write_parquet(path)
    with pytest.raises(
        DataError, match=r"^User ids must be integers or strings; got Datetime"
    ):
        read_ids(str(path), "user")


@pytest.mark.parametrize("number", [2**63, 2**70, -(2**63) - 1])
def test_documents_with_ids_of_more_than_64_bits(tmp_path: Path, number: int) -> None:
    path = tmp_path / "d.jsonl"
    lines = [
        {"id": number, "text": "salt melts ice"},
        {"id": 2, "text": "ice floats on water"},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    [batch] = Documents(path)
    index = LSI(n_components=1).fit(batch.texts, ids=batch.ids)
    assert index.similar_documents(2)["similar"].to_list() == [str(number)]


@pytest.mark.parametrize(
    ("values", "noun"),
    [
        ([True, False], "True"),
        ([[1], [2]], "'List(Int64)'"),
        ([b"x", b"y"], "'bytes'"),
    ],
)
def test_a_foreign_column_where_times_could_be(
    tmp_path: Path, values: list[object], noun: str
) -> None:
    path = tmp_path / "r.parquet"
    frame = pl.DataFrame({"user": [1, 2], "item": [1, 2], "timestamp": values})
    frame.write_parquet(path)
    remark = f"timestamp not used ({noun} is not a time that can be read"
    assert remark in str(read_ratings(path).source)
