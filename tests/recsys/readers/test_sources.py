"""Packed files, standard input, directories and zips."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.readers import read_ratings
from recsys.readers.archives import _zstd, readable

Read = Callable[..., Ratings]
CSV = b"user,item,rating\n1,10,4\n2,20,3\n"
EXPECTED = [(1, 10, 4.0), (2, 20, 3.0)]


def rows(loaded: Ratings) -> list[tuple[object, ...]]:
    return loaded.to_frame().rows()


def zipped(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


PACKED = {
    "gz": gzip.compress(CSV),
    "zst": _zstd().compress(CSV),
    "zip": zipped(**{"anything.csv": CSV}),
    "gz in zip": zipped(**{"ratings.csv.gz": gzip.compress(CSV)}),
    "xz": lzma.compress(CSV),
    "zst in gz": gzip.compress(_zstd().compress(CSV)),
}


@pytest.mark.parametrize("packing", PACKED)
def test_packed_files_are_told_by_content(read: Read, packing: str) -> None:
    assert rows(read(PACKED[packing], "some.name")) == EXPECTED


@pytest.mark.parametrize("packing", [None, *PACKED])
def test_standard_input(monkeypatch: pytest.MonkeyPatch, packing: str | None) -> None:
    raw = CSV if packing is None else PACKED[packing]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))
    loaded = read_ratings("-")
    assert rows(loaded) == EXPECTED
    assert str(loaded.source).startswith("standard input")


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(CSV,))
    writer.start()
    assert rows(read_ratings(tmp_path / "pipe")) == EXPECTED
    writer.join()


def test_the_suffix_below_the_packing_counts(read: Read) -> None:
    with pytest.raises(DataError, match=r"r\.parquet\.gz is not a Parquet file"):
        read(gzip.compress(CSV), "r.parquet.gz")


def test_names_with_glob_characters(read: Read) -> None:
    assert rows(read(CSV, "r[1]*?.csv")) == EXPECTED
    json = b'{"user":1,"item":10,"rating":4}\n{"user":2,"item":20,"rating":3}\n'
    assert rows(read(json, "r[1]*?.jsonl")) == EXPECTED


@pytest.mark.parametrize(
    ("packing", "cut", "message"),
    [
        ("gz", -6, r"x is damaged: compressed file ended"),
        ("gz", 14, r"x is damaged: "),
        ("zst", -6, r"x is damaged: "),
        ("xz", -6, r"x is damaged: "),
        ("xz", 14, r"x is damaged: "),
        ("zip", -6, r"x is damaged: file is not a zip file"),
    ],
)
def test_damaged_packages(read: Read, packing: str, cut: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(PACKED[packing][:cut], "x")


@pytest.mark.parametrize("packing", ["gz", "zip"])
def test_flipped_bytes_are_noticed_by_the_checksum(read: Read, packing: str) -> None:
    content = CSV * 50
    raw = bytearray(gzip.compress(content) if packing == "gz" else zipped(**{"r.csv": content}))
    raw[len(raw) // 3] ^= 0xFF
    with pytest.raises(DataError, match=r"(x|x/r\.csv) is damaged"):
        read(bytes(raw), "x")


def test_links_in_a_circle_beside_the_ratings(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_bytes(CSV)
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path, tmp_path / "ratings.csv"):
        assert rows(read_ratings(path)) == EXPECTED
    with pytest.raises(DataError, match=r"loop is a broken symbolic link\.$"):
        read_ratings(tmp_path / "loop")


def test_too_many_layers(read: Read) -> None:
    raw = CSV
    for _ in range(4):
        raw = gzip.compress(raw)
    with pytest.raises(DataError, match="packed more than 2 times over; unpack it first"):
        read(raw, "x")


def test_a_zip_writes_nowhere_else(read: Read, tmp_path: Path) -> None:
    raw = zipped(**{"../../evil.csv": CSV, "ratings.csv": CSV})
    (tmp_path / "deep").mkdir()
    loaded = read(raw, "deep/r.zip")
    assert rows(loaded) == EXPECTED
    assert str(loaded.source).startswith("r/ratings.csv: ")
    assert not list(tmp_path.rglob("evil.csv"))


def test_a_zip_with_entries_outside_only(read: Read) -> None:
    with pytest.raises(DataError, match=r"^All entries of x\.zip are outside of its folder"):
        read(zipped(**{"../../evil.csv": CSV}), "x.zip")


def test_an_encrypted_zip(read: Read) -> None:
    raw = bytearray(zipped(**{"ratings.csv": CSV}))
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.index(magic) + offset] |= 1
    with pytest.raises(DataError, match=r"cannot be unpacked: .*encrypted"):
        read(bytes(raw), "x.zip")


def test_a_zip_of_a_method_that_zipfile_does_not_know(read: Read) -> None:
    raw = bytearray(zipped(**{"ratings.csv": CSV}))
    for magic, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        raw[raw.index(magic) + offset] = 98  # PPMd
    with pytest.raises(DataError, match=r"cannot be unpacked: .*compression"):
        read(bytes(raw), "x.zip")


def test_zips_with_several_or_no_candidates(read: Read) -> None:
    with pytest.raises(DataError, match=r"several files that may be .* \(a\.csv, b\.csv\)"):
        read(zipped(**{"b.csv": CSV, "a.csv": b"user,age\n1,30\n"}), "x.zip")
    with pytest.raises(DataError, match=r"x\.zip holds no ratings file.*it holds README, a\.png"):
        read(zipped(**{"a.png": b"", "README": b"", "__MACOSX/ratings.csv": b""}), "x.zip")
    with pytest.raises(DataError, match=r"x\.zip holds no ratings file.*it is empty"):
        read(zipped(), "x.zip")
    with pytest.raises(DataError, match=r"x\.xlsx is a damaged workbook"):
        read(zipped(**{"xl/workbook.xml": b"<x/>", "xl/styles.xml": b"<x/>"}), "x.xlsx")
    assert rows(read(zipped(**{"BX-Book-Ratings.csv": CSV, "BX-Users.csv": b""}), "x.zip"))


def test_directories_with_several_or_no_candidates(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no ratings file, such as .*it is empty"):
        read_ratings(tmp_path)
    for name in ("one.csv", "two.tsv", "README.txt"):
        (tmp_path / name).write_bytes(CSV)
    with pytest.raises(DataError, match=r"several files .*\(one\.csv, two\.tsv\); name the one"):
        read_ratings(tmp_path)
    (tmp_path / "Ratings.csv.gz").write_bytes(gzip.compress(CSV))
    assert str(read_ratings(tmp_path).source).startswith(f"{tmp_path.name}/Ratings.csv.gz: comma")


def test_the_only_table_is_taken_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "README.txt").write_text("words")
    (tmp_path / "plays.txt").write_bytes(CSV)
    assert rows(read_ratings(tmp_path)) == EXPECTED
    for name in ("links.csv", "movies.csv", "users.csv"):
        (tmp_path / name).write_text("movieId,imdbId\n")
    (tmp_path / "plays.csv").write_bytes(CSV)
    assert str(read_ratings(tmp_path).source).startswith(f"{tmp_path.name}/plays.csv: ")


def test_unreadable_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "r.csv").write_bytes(CSV)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match=r"r\.csv cannot be read: permission denied\."):
        read_ratings(tmp_path / "r.csv")


def test_flipped_bytes_of_zstd_are_noticed(read: Read) -> None:
    raw = bytearray(_zstd().compress(CSV * 50))
    raw[8:16] = b"\xff" * 8
    with pytest.raises(DataError, match=r"x is damaged: unable to decompress Zstandard data"):
        read(bytes(raw), "x")


def test_what_is_no_fault_of_the_file_is_not_called_damage() -> None:
    with pytest.raises(KeyError, match="ours"), readable("x"):
        raise KeyError("ours")
