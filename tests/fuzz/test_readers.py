"""Damaged, spliced and absurd files: ratings or one sentence, whatever is in them."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.errors import DataError
from recsys.readers import read_ratings

FRAME = pl.DataFrame(
    {
        "user": [u for u in range(12) for _ in range(5)],
        "item": [100 + (7 * i) % 11 for i in range(60)],
        "rating": [1.0 + i % 5 for i in range(60)],
        "timestamp": [1_000_000_000 + i for i in range(60)],
    }
)
NASTY = [
    *(
        b"\0",
        b'"',
        b"\n",
        b"\r",
        b"::",
        b"\t",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\xe9",
        b"{",
        b"[",
    ),
    *(
        b"1e999",
        b"-1e308",
        b"nan",
        b"9" * 5000,
        b"99999999999999999999",
        b"[" * 100_000,
    ),
    *(
        b"x" * 200_000,
        b"PK\x03\x04",
        b"\x1f\x8b\x08",
        b"\x28\xb5\x2f\xfd",
        b"PAR1",
        b"\xed\xa0\x80",
    ),
]


def _parquet() -> bytes:
    sink = io.BytesIO()
    FRAME.write_parquet(sink)
    return sink.getvalue()


def _zip(inner: dict[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in inner.items():
            archive.writestr(name, content)
    return sink.getvalue()


CSV = FRAME.write_csv().encode()
DAT = b"".join("::".join(map(str, row)).encode() + b"\n" for row in FRAME.rows())
TITLES = b"movieId,title,genres\n" + b"".join(
    b"%d,Film (1999),Drama\n" % i for i in range(100, 111)
)
WHOLE = {
    "ratings.csv": CSV,
    "ratings.dat": DAT,
    "u.data": FRAME.write_csv(separator="\t", include_header=False).encode(),
    "ratings.jsonl": FRAME.write_ndjson().encode(),
    "ratings.parquet": _parquet(),
    "train.txt": b"".join(b"%d 5 6 7\n" % user for user in range(20)),
    "ratings.csv.gz": gzip.compress(CSV),
    "set.zip": _zip({"set/ratings.csv": CSV, "set/movies.csv": TITLES}),
}


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    """Return the name and the contents of a valid file in which some things were changed."""
    name = draw(st.sampled_from(sorted(WHOLE)))
    content = bytearray(WHOLE[name])
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(len(content) - 1, 0)))
        kind = draw(st.sampled_from(["flip", "cut", "insert", "splice", "drop"]))
        if kind == "flip" and content:
            content[place] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del content[place:]
        elif kind == "insert":
            content[place:place] = draw(st.sampled_from(NASTY) | st.binary(max_size=20))
        elif kind == "splice":
            other = WHOLE[draw(st.sampled_from(sorted(WHOLE)))]
            content[place:] = other[draw(st.integers(0, len(other))) :]
        else:
            del content[place : place + draw(st.integers(1, 50))]
    return name, bytes(content)


def read_or_reject(path: Path) -> str:
    """Return what came of reading; anything but ratings or a sentence is raised."""
    try:
        read_ratings(path)
    except DataError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return "rejected"
    return "read"


def test_damaged_files(tmp_path: Path, budget, fuzz_count) -> None:
    @budget(20)
    @given(damaged())
    def check(file: tuple[str, bytes]) -> None:
        name, content = file
        folder = tmp_path / "in"
        folder.mkdir(exist_ok=True)
        path = folder / name
        path.write_bytes(content)
        try:
            fuzz_count[read_or_reject(path)] += 1
            assert [p.name for p in tmp_path.iterdir()] == ["in"]
            assert [p.name for p in folder.iterdir()] == [name]
        finally:
            path.unlink(missing_ok=True)

    check()


def test_damaged_titles(tmp_path: Path, budget, fuzz_count) -> None:
    (tmp_path / "ratings.csv").write_bytes(CSV)

    @budget(12)
    @given(
        st.sampled_from(["movies.csv", "movies.dat", "u.item", "items.csv"]), damaged()
    )
    def check(name: str, other: tuple[str, bytes]) -> None:
        path = tmp_path / name
        path.write_bytes(other[1] if len(other[1]) % 2 else TITLES + other[1])
        fuzz_count[read_or_reject(tmp_path / "ratings.csv")] += 1
        path.unlink()

    check()


def test_random_json_lines(tmp_path: Path, budget, fuzz_count) -> None:
    scalars = (
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    )
    values = scalars | st.just(10**400) | st.lists(scalars, max_size=2)
    rows = st.dictionaries(st.sampled_from(["user", "item", "rating", "ts"]), values)

    @budget(12)
    @given(st.lists(rows, min_size=1, max_size=5))
    def check(given_rows: list[dict[str, object]]) -> None:
        path = tmp_path / "r.jsonl"
        path.write_text("\n".join(map(json.dumps, given_rows)))
        fuzz_count[read_or_reject(path)] += 1

    check()


@pytest.mark.parametrize(
    "name", ["../ratings.csv", "/ratings.csv", "a/../../ratings.csv", "C:\\ratings.csv"]
)
def test_a_zip_writes_nothing_outside(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "deep" / "er"
    folder.mkdir(parents=True)
    (folder / "set.zip").write_bytes(_zip({name: CSV}))
    read_or_reject(folder / "set.zip")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["deep", "er", "set.zip"]
