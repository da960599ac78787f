"""Packed files, standard input, directories and zips."""

from __future__ import annotations

import functools
import gzip
import io
import json
import lzma
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from workbooks import workbook, zipped

import recsys
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.readers import read_ratings
from recsys.readers.copies import _zstd, readable

Read = Callable[..., Ratings]
CSV = b"user,item,rating\n1,10,4\n2,20,3\n"
EXPECTED = [(1, 10, 4.0), (2, 20, 3.0)]


def rows(loaded: Ratings) -> list[tuple[object, ...]]:
    return loaded.to_frame().rows()


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
    raw = bytearray(
        gzip.compress(content) if packing == "gz" else zipped(**{"r.csv": content})
    )
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
    with pytest.raises(DataError, match="packed more than 2 times; unpack it first"):
        read(raw, "x")


def test_a_zip_writes_nowhere_else(read: Read, tmp_path: Path) -> None:
    raw = zipped(**{"../../evil.csv": CSV, "ratings.csv": CSV})
    (tmp_path / "deep").mkdir()
    loaded = read(raw, "deep/r.zip")
    assert rows(loaded) == EXPECTED
    assert str(loaded.source).startswith("r/ratings.csv: ")
    assert not list(tmp_path.rglob("evil.csv"))


def test_a_zip_with_entries_outside_only(read: Read) -> None:
    with pytest.raises(
        DataError, match=r"^All entries of x\.zip are outside of its folder"
    ):
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
    with pytest.raises(
        DataError, match=r"several files that may be .* \(a\.csv, b\.csv\)"
    ):
        read(zipped(**{"b.csv": CSV, "a.csv": b"1,30\n"}), "x.zip")
    with pytest.raises(
        DataError, match=r"x\.zip holds no ratings file.*it holds README, a\.png"
    ):
        read(
            zipped(**{"a.png": b"", "README": b"", "__MACOSX/ratings.csv": b""}),
            "x.zip",
        )
    with pytest.raises(DataError, match=r"x\.zip holds no ratings file.*it is empty"):
        read(zipped(), "x.zip")
    with pytest.raises(DataError, match=r"x\.xlsx is a damaged workbook"):
        read(zipped(**{"xl/workbook.xml": b"<x/>", "xl/styles.xml": b"<x/>"}), "x.xlsx")
    assert rows(
        read(zipped(**{"BX-Book-Ratings.csv": CSV, "BX-Users.csv": b""}), "x.zip")
    )


def test_directories_with_several_or_no_candidates(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"holds no ratings file, such as .*it is empty"
    ):
        read_ratings(tmp_path)
    (tmp_path / "model" / "arrays").mkdir(parents=True)
    (tmp_path / "model" / "arrays" / "most_ratings.npy").touch()
    with pytest.raises(
        DataError, match=r"model/? has the arrays of a saved model, but no model"
    ):
        read_ratings(tmp_path / "model")
    shutil.rmtree(tmp_path / "model")
    for name in ("one.csv", "two.tsv", "README.txt"):
        (tmp_path / name).write_bytes(CSV)
    with pytest.raises(
        DataError, match=r"several files .*\(one\.csv, two\.tsv\); name the one"
    ):
        read_ratings(tmp_path)
    (tmp_path / "Ratings.csv.gz").write_bytes(gzip.compress(CSV))
    assert str(read_ratings(tmp_path).source).startswith(
        f"{tmp_path.name}/Ratings.csv.gz: comma"
    )


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

    def reject(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", reject)
    with pytest.raises(DataError, match=r"r\.csv cannot be read: permission denied\."):
        read_ratings(tmp_path / "r.csv")


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """A folder of daily partitions, with the marks that Spark leaves."""
    for month, text in {"06": "1,10,4\n", "07": "2,20,3\n", "08": ""}.items():
        folder = tmp_path / "events" / "year=2025" / f"month={month}"
        folder.mkdir(parents=True)
        (folder / "part-0.csv").write_text(f"user,item,rating\n{text}")
    (tmp_path / "events" / "_SUCCESS").touch()
    return tmp_path / "events"


def test_folders_and_patterns_of_parts_and_lists(
    events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = sorted(events.rglob("*.csv"))
    assert rows(read_ratings(events)) == EXPECTED
    assert str(read_ratings(events).source).startswith(
        "events/ (3 files): comma-separated, user"
    )
    monkeypatch.chdir(events.parent)
    for pattern in ("events/*/month=0[67]/*.csv", "events/**/*", "events/year*"):
        assert rows(read_ratings(pattern)) == EXPECTED
    assert rows(read_ratings(parts)) == EXPECTED
    assert rows(read_ratings([str(parts[0]), str(parts[1])])) == EXPECTED
    with pytest.raises(DataError, match=r"No file matches the pattern events/\*\.json"):
        read_ratings("events/*.json")
    empty = events / "empty.csv"
    empty.write_bytes(parts[2].read_bytes())
    with pytest.raises(DataError, match="no file has rows"):
        read_ratings([parts[2], empty])


def test_dates_in_the_names_of_folders(tmp_path: Path) -> None:
    for date, kind in (("2025-06-09", "view"), ("2025-06-10", "purchase")):
        folder = tmp_path / "events" / f"date={date}" / f"event={kind}"
        folder.mkdir(parents=True)
        (folder / "part-0.csv").write_text(f"user,item\n{date[-1]},1\n")
    ratings = read_ratings(
        tmp_path / "events", event_weights={"purchase": 5, "view": 1}
    )
    assert ratings.timestamps is not None
    assert ratings.timestamps.tolist() == [1_749_513_600, 1_749_427_200]
    assert ratings.values.tolist() == [5, 1]
    assert "event = event (folder), timestamp = date (folder)" in str(ratings.source)
    assert read_ratings(tmp_path / "events", since="2025-06-10").n_ratings == 1
    (folder / "part-0.csv").write_text("user,item,time\n0,1,2020-01-01\n")
    with pytest.raises(DataError, match="has no column 'day'"):
        read_ratings(tmp_path / "events", timestamp="day")


def test_parts_in_several_formats_and_types(tmp_path: Path) -> None:
    frame = pl.DataFrame({"user": [1, 2], "item": [10, 20], "rating": [4, 3]})
    frame.head(1).write_parquet(tmp_path / "a.parquet")
    frame.tail(1).with_columns(pl.col("user").cast(pl.String)).write_csv(
        tmp_path / "b.csv"
    )
    assert rows(read_ratings([tmp_path / "a.parquet", tmp_path / "b.csv"])) == EXPECTED
    (tmp_path / "c.csv").write_text("user,item,rating\nx7,10,4\n")
    texts = read_ratings([tmp_path / "a.parquet", tmp_path / "c.csv"])
    assert texts.users.values.to_list() == ["1", "x7"]
    (tmp_path / "d.csv").write_text("user,item\n1,2\n")
    with pytest.raises(
        DataError, match=r"b\.csv has a rating column and .*d\.csv has none; read"
    ):
        read_ratings([tmp_path / "b.csv", tmp_path / "d.csv"])


@pytest.mark.parametrize(
    "order", [("orders.csv", "journal.jsonl"), ("journal.jsonl", "orders.csv")]
)
def test_a_journal_with_ids_of_events_is_read_with_a_table_without(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    (tmp_path / "orders.csv").write_text(
        "user,item,timestamp\n1,2,2026-01-31T12:00:00Z\n"
    )
    line = '{"user": "7f3e", "item": 2, "timestamp": "2026-01-31T13:00:00Z", "event_id": "a"}'
    (tmp_path / "journal.jsonl").write_text(f"{line}\n{line}\n")
    both = read_ratings([tmp_path / name for name in order])
    assert both.users.values.to_list() == ["1", "7f3e"]
    keys = both.log.keys
    assert keys is not None
    assert (keys != 0).tolist() == [False, True]
    assert both.n_duplicates == 1
    fitted = recsys.Recommender("popular").fit(both)
    assert fitted.update(tmp_path / "journal.jsonl").ratings.n_ratings == 2


@pytest.mark.parametrize("kind", [pl.Int64, pl.String])
@pytest.mark.parametrize("n_levels", [6, 300])  # ratings are codes, or numbers
def test_parts_are_read_as_one_table(
    tmp_path: Path, kind: pl.DataType, n_levels: int
) -> None:
    places = pl.Series(range(400))
    columns = {
        "user": places * 7 % 40,
        "item": places % 13,
        "rating": places * 37 % n_levels / 2,
    }
    frame = pl.DataFrame(columns | {"timestamp": 1_700_000_000 + places % 350})
    frame = frame.with_columns(pl.col("user").cast(kind))
    parts, paths = (frame[:30], frame[390:], frame[30:390]), []
    for number, part in enumerate(parts):
        paths.append(tmp_path / f"{number}.parquet")
        part.write_parquet(paths[-1])
    expected = Ratings.from_frame(pl.concat(parts)).to_frame()
    assert_frame_equal(read_ratings(paths).to_frame(), expected)


def test_errors_in_parts_name_file_and_line(events: Path) -> None:
    bad = events / "year=2025" / "month=07" / "part-0.csv"
    bad.write_text("user,item,rating\n2,20,3\n2,30,good\n")
    with pytest.raises(
        DataError, match=r"events/year=2025/month=07/part-0\.csv, line 3: rating"
    ):
        read_ratings(events)
    bad.write_text("user,item,rating\n2,20,3\n1,10,4\n")
    with pytest.raises(
        DataError, match=r"month=07/part-0\.csv, line 3: user 1 has rated item 10 al"
    ):
        read_ratings(events, duplicates="error")


@pytest.mark.parametrize(
    ("marker", "noun"),
    [
        ("_delta_log/0.json", "a Delta Lake"),
        ("metadata/v1.metadata.json", "an Iceberg"),
        (".hoodie/x", "a Hudi"),
    ],
)
def test_a_folder_whose_files_may_be_outdated(
    tmp_path: Path, marker: str, noun: str
) -> None:
    pl.DataFrame({"user": [1], "item": [2]}).write_parquet(tmp_path / "part-0.parquet")
    (tmp_path / marker).parent.mkdir()
    (tmp_path / marker).write_text("{}")
    with pytest.raises(
        DataError, match=f"/ is {noun} table, whose current rows only programs"
    ):
        read_ratings(tmp_path)


def test_rejects_a_saved_model(tmp_path: Path) -> None:
    model = tmp_path / "model"
    recsys.Recommender("popular").fit(recsys.sample_path()).save(model)
    with pytest.raises(DataError, match="model is a saved model; a file of ratings is"):
        read_ratings(model)


def test_rejects_a_folder_of_unrelated_files(tmp_path: Path) -> None:
    for names, second in (
        ("events orders", "user,sku,n\n"),
        ("train test", "user,item,rating\n"),
    ):
        folder = tmp_path / names.replace(" ", "-")
        folder.mkdir()
        for name, head in zip(
            names.split(), ("user,item,rating\n", second), strict=True
        ):
            (folder / f"{name}.csv").write_text(f"{head}1,2,3\n")
        with pytest.raises(
            DataError, match=r"holds several files that may be the ratings \("
        ):
            read_ratings(folder)


def test_arrays_of_json(read: Read) -> None:
    text = (
        '[{"user": 1, "item": 10,\n "rating": 4}, {"user": 2, "item": 20, "rating": 3}]'
    )
    loaded = read(text, "r.json")
    assert rows(loaded) == EXPECTED
    assert str(loaded.source).startswith("r.json: JSON array, user = user")
    many = json.dumps(
        [{"user": n, "item": n % 9, "note": "ä[{" * 50} for n in range(9000)], indent=1
    )
    assert read(many, "many.json").n_ratings == 9000
    for bad, message in {
        '[{"user": 1, "item": 2}, {"user": ]': r"r\.json is not JSON: invalid character",
        '[{"user": 1, "item": 2}': r"r\.json is not JSON: input data was truncated",
        '[{"user": 1, "item": 2}, {"user": 3}]': r"r\.json, object 2: the item id is missing",
        '{"users": [{"id": 1}], "n": 1}': "one nested JSON object, with the keys users, n; write",
    }.items():
        with pytest.raises(DataError, match=message):
            read(bad, "r.json")


def test_workbooks(tmp_path: Path) -> None:
    path = tmp_path / "shop.xlsx"
    sheets = {
        "ratings": [["user", "item", "rating"], [1, 10, 4], [2, 20, 3]],
        "notes": [["x"]],
    }
    path.write_bytes(workbook(sheets))
    loaded = read_ratings(path)
    assert rows(loaded) == EXPECTED
    assert str(loaded.source).startswith("shop.xlsx::ratings: Excel, user = user")
    assert rows(read_ratings(f"{path}::ratings")) == rows(
        read_ratings(path, table="ratings")
    )
    with pytest.raises(
        DataError, match=r"shop\.xlsx has no sheet 'rating'; did you mean ratings\?"
    ):
        read_ratings(path, table="rating")
    path.write_bytes(workbook({"ratings": [["Spring term"], *sheets["ratings"]]}))
    assert rows(read_ratings(path)) == EXPECTED  # below a title
    path.write_bytes(workbook(sheets | {"more": sheets["ratings"]}))
    with pytest.raises(
        DataError, match=r"holds the sheets ratings, more; name one: .*::ratings, or"
    ):
        read_ratings(path)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """A server of the files in a folder."""
    (tmp_path / "ratings.csv.gz").write_bytes(gzip.compress(CSV))
    handler = functools.partial(QuietHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_urls(web: str) -> None:
    loaded = read_ratings(f"{web}/ratings.csv.gz?token=s3cret")
    assert rows(loaded) == EXPECTED
    assert str(loaded.source).startswith("ratings.csv.gz: comma-separated")
    for url, message in {
        f"{web}/none.csv?token=s3cret": rf"There is nothing at {web}/none\.csv\.$",
        "http://u:s3cret@127.0.0.1:1/r.csv": r"^http://127.0.0.1:1/r.csv cannot be read: connec",
        "nofs://x/y": "nofs:// is not a kind of address that can be read",
        "mysql://u:s3cret@h/d": "mysql:// databases are not supported; use PostgreSQL, SQLite",
    }.items():
        with pytest.raises(DataError, match=message) as caught:
            read_ratings(url)
        assert "s3cret" not in str(caught.value)


def test_flipped_bytes_of_zstd_are_noticed(read: Read) -> None:
    raw = bytearray(_zstd().compress(CSV * 50))
    raw[8:16] = b"\xff" * 8
    with pytest.raises(
        DataError, match=r"x is damaged: unable to decompress Zstandard data"
    ):
        read(bytes(raw), "x")


def test_errors_of_the_system_are_not_called_damage() -> None:
    with pytest.raises(KeyError, match="ours"), readable("x"):
        raise KeyError("ours")
