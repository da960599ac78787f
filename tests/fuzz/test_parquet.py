"""Damaged Parquet files, read as ratings, documents, lists and histories: or one sentence."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from recsys import Ratings, Recommender
from recsys.cli.histories import load_history
from recsys.cli.options import ReaderOptions
from recsys.errors import RecsysError
from recsys.readers import read_ratings
from recsys.readers.documents import read_documents
from recsys.readers.id_lists import read_ids

N = 300
TABLE = pa.table(
    {
        "user": np.arange(N) % 30,
        "item": pa.array([f"i{i % 40}" for i in range(N)]),
        "rating": np.arange(N) % 5 + 1.0,
        "timestamp": np.arange(N) + 10**9,
        "text": pa.array([f"some words, {i} of them" for i in range(N)]),
    }
)
DIFFERENCES = {
    "item": "DELTA_BYTE_ARRAY",
    "text": "DELTA_BYTE_ARRAY",
    "user": "DELTA_BINARY_PACKED",
}


def _written(**settings: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(TABLE, sink, row_group_size=120, **settings)
    return sink.getvalue()


WHOLE = [
    _written(compression=compression, data_page_version=version, **settings)
    for compression in ("none", "zstd", "snappy", "gzip")
    for version in ("1.0", "2.0")
    for settings in ({}, {"use_dictionary": False, "column_encoding": DIFFERENCES})
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return a file of which a few bytes are others, half of them in the footer."""
    content = bytearray(draw(st.sampled_from(WHOLE)))
    end = len(content) - 8
    footer = end - int.from_bytes(content[-8:-4], "little")
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(footer, end - 1) | st.integers(0, end + 7))
        content[place] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    return bytes(content)


def test_damaged_parquet(tmp_path: Path, budget, fuzz_count) -> None:
    fitted = Recommender("popular").fit(Ratings.from_frame(pl.DataFrame(TABLE)))
    path = tmp_path / "damaged.parquet"
    readers = {
        "ratings": lambda: read_ratings(path),
        "documents": lambda: list(read_documents(path, text_col="text")),
        "list": lambda: read_ids(str(path), "user"),
        "history": lambda: load_history(str(path), ReaderOptions(), fitted),
    }

    @budget(100)
    @given(damaged())
    def check(content: bytes) -> None:
        path.write_bytes(content)
        for name, read in readers.items():
            try:
                read()
            except RecsysError as error:
                assert "\n" not in str(error)  # noqa: PT017
                fuzz_count[f"{name} refused"] += 1
            else:
                fuzz_count[f"{name} read"] += 1

    check()
