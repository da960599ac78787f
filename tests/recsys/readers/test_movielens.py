"""MovieLens layouts with their titles, LightGCN lines, and the real data sets where they are."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from recsys.data.ratings import Ratings
from recsys.readers import read_ratings

Read = Callable[..., Ratings]

RATINGS = [(1, 10, 4.0, 100), (1, 20, 3.5, 300), (2, 10, 5.0, 200)]
TITLES = ["Amélie: Le Fabuleux, Destin (2001)", "Alien (1979)"]
FLAGS = ["0"] * 19
GENRES = ["Comedy|Romance", "Sci-Fi"]


def flags(*on: int) -> str:
    return "|".join("1" if place in on else "0" for place in range(19))


LAYOUTS: dict[str, dict[str, bytes]] = {
    "ratings.csv": {
        "ratings.csv": b"userId,movieId,rating,timestamp\n1,10,4.0,100\n1,20,3.5,300\n2,10,5,200\n",
        "movies.csv": (
            f'movieId,title,genres\n10,"{TITLES[0]}",{GENRES[0]}\n20,{TITLES[1]},{GENRES[1]}\n'
            "99,Unrated (1990),(no genres listed)\n"
        ).encode(),
        "links.csv": b"movieId,imdbId,tmdbId\n",
    },
    "ratings.dat": {
        "ratings.dat": b"1::10::4::100\n1::20::3.5::300\n2::10::5::200\n",
        "movies.dat": (f"10::{TITLES[0]}::{GENRES[0]}\n20::{TITLES[1]}::{GENRES[1]}\n").encode(
            "latin-1"
        ),
        "users.dat": b"1::F::1::10::48067\n",
    },
    "u.data": {
        "u.data": b"1\t10\t4\t100\n1\t20\t3.5\t300\n2\t10\t5\t200\n",
        "u.item": (
            f"10|{TITLES[0]}|01-Jan-2001||http://x|{flags(5, 14)}\n"
            f"20|{TITLES[1]}|01-Jan-1979||http://x|{flags(15)}\n"
        ).encode("latin-1"),
        "u1.base": b"1\t10\t4\t100\n",
    },
    "items.csv": {
        "ratings.csv": b"user,item,rating,timestamp\n1,10,4.0,100\n1,20,3.5,300\n2,10,5,200\n",
        "items.csv": (
            f'itemId,title,year,genres\n10,"{TITLES[0]}",2001,{GENRES[0]}\n'
            f"20,{TITLES[1]},1979,{GENRES[1]}\n"
        ).encode(),
    },
}


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "ml"
    folder.mkdir()
    for name, content in LAYOUTS[request.param].items():
        (folder / name).write_bytes(content)
    return folder


def check(loaded: Ratings) -> None:
    assert loaded.to_frame().rows() == RATINGS
    assert loaded.titles is not None
    assert loaded.titles.to_list() == TITLES
    assert loaded.item_info is not None
    assert loaded.item_info["genres"].to_list() == GENRES
    assert loaded.item_info["year"].to_list() == [2001, 1979]
    assert "; titles from " in str(loaded.source)


def ratings_file(folder: Path) -> Path:
    return next(
        folder / name
        for name in ("ratings.csv", "ratings.dat", "u.data")
        if (folder / name).exists()
    )


def test_directory(layout: Path) -> None:
    loaded = read_ratings(layout)
    check(loaded)
    assert str(loaded.source).startswith(f"ml/{ratings_file(layout).name}: ")


def test_the_ratings_file_alone_finds_the_titles_beside_it(layout: Path) -> None:
    loaded = read_ratings(str(ratings_file(layout)))
    check(loaded)
    assert str(loaded.source).startswith(f"{ratings_file(layout).name}: ")


def test_zip_with_a_folder_in_it(layout: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "ml.zip", "w") as archive:
        archive.writestr("ml-x/README.txt", "about")
        for path in layout.iterdir():
            archive.write(path, f"ml-x/{path.name}")
    check(read_ratings(tmp_path / "ml.zip"))


def test_titles_are_left_out_where_they_do_not_fit(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("user,item\n1,a\n")
    (tmp_path / "items.csv").write_text("itemId,title\nb,B\n")
    loaded = read_ratings(tmp_path)
    assert loaded.item_info is None
    assert "items.csv not used (other ids)" in str(loaded.source)
    (tmp_path / "items.csv").write_text("id,price\n1,2\n")
    assert "items.csv not used (no columns of items and titles)" in str(
        read_ratings(tmp_path).source
    )
    (tmp_path / "items.csv").write_bytes(b"")
    assert "items.csv not used (no columns" in str(read_ratings(tmp_path).source)
    (tmp_path / "items.csv").write_bytes(b"\x1f\x8bbroken")
    assert "items.csv not used: items.csv is damaged" in str(read_ratings(tmp_path).source)


def test_odd_files_of_titles(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("user,item\n1,007\n1,8\n")
    (tmp_path / "items.csv").write_text(
        "Title,x,ITEM_ID,,Year\nSeven,x,007,y,1995\nNone\nEight,, 8 \n,z,9,,\n"
    )
    info = read_ratings(tmp_path).item_info
    assert info is not None
    known = info.select("item", "title", "year").rows()
    assert known == [("007", "Seven", 1995), ("8", "Eight", None)]


def test_a_wide_header_does_not_make_every_row_wide(tmp_path: Path) -> None:
    """A file of a megabyte would be a trillion cells."""
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating\n1,1,5\n")
    (tmp_path / "items.csv").write_text("item,title" + ",a" * 100_000 + "\n1,x" * 100_000)
    loaded = read_ratings(tmp_path)
    assert loaded.titles is None
    assert "items.csv not used: most of its rows are shorter than the 100,002" in str(loaded.source)


def test_names_of_columns_are_never_the_same(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating\n1,1,5\n")
    (tmp_path / "items.csv").write_text("item,title,column_4,\n1,x,y,z\n")
    info = read_ratings(tmp_path).item_info
    assert info is not None
    assert info.row(0, named=True) == {
        "item": 1,
        "title": "x",
        "column_4": "y",
        "column_4_": "z",
        "year": None,
    }


def test_no_genres_listed_means_none_known(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("user,item\n1,7\n")
    (tmp_path / "movies.csv").write_text("movieId,title,genres\n7,Untold,(no genres listed)\n")
    info = read_ratings(tmp_path).item_info
    assert info is not None
    assert info.rows() == [(7, "Untold", None, None)]


def test_a_file_of_titles_is_not_its_own_neighbour(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("user,item,rating\n1,2,3\n")
    assert read_ratings(tmp_path / "items.csv").item_info is None


# LightGCN


def test_lightgcn_lines(read: Read) -> None:
    loaded = read("0 5 3 9\n7\n2 3 \n\n3  9  5\n", "train.txt")
    ratings = loaded
    assert ratings.to_frame().rows() == [(0, 3), (0, 5), (0, 9), (2, 3), (3, 5), (3, 9)]
    assert ratings.users.values.to_list() == [0, 2, 3, 7]
    assert ratings.implicit
    assert str(loaded.source) == (
        "train.txt: LightGCN lines (user item item ...): implicit feedback, 1 user without items; "
        "no duplicates"
    )


def test_a_table_with_spaces_is_no_lightgcn_file(read: Read) -> None:
    assert not read("1 10 4\n1 20 3\n2 10 5\n", "r.txt").implicit
    assert read("1 10 4\n2 20 3\n3 10 5\n", "r.txt").implicit
    assert not read("1 10 4\n2 20 3\n3 10 5\n", "r.txt", sep=" ").implicit


def test_lightgcn_directory_reads_the_training_part(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("0 1 2\n1 3\n")
    (tmp_path / "test.txt").write_text("0 5\n1\n")
    assert read_ratings(tmp_path).nnz == 3


# Real data

DATASETS = os.environ.get("RECSYS_DATASETS")
real_data = pytest.mark.skipif(DATASETS is None, reason="RECSYS_DATASETS is not set")


@real_data
@pytest.mark.parametrize("name", ["ml-latest-small", "ml-latest-small/ratings.csv"])
def test_movielens_latest_small(name: str) -> None:
    loaded = read_ratings(Path(DATASETS or "") / name)
    assert str(loaded) == "610 users x 9,724 items, 100,836 ratings, 1.7% filled"
    assert str(loaded.source).endswith("; titles from movies.csv; no duplicates")
    assert loaded.titles is not None
    assert loaded.titles.null_count() == 0
    assert loaded.titles[0] == "Toy Story (1995)"


@real_data
def test_gowalla() -> None:
    ratings = read_ratings(Path(DATASETS or "") / "gowalla" / "train.txt")
    assert (ratings.n_users, ratings.nnz, ratings.implicit) == (29_858, 810_128, True)


@pytest.mark.parametrize("name", ["movies.dat", "movies.csv"])
def test_titles_with_what_unicode_takes_for_the_end_of_a_line(tmp_path: Path, name: str) -> None:
    """Such as the three dots of Windows, in a file that is read as Latin-1."""
    separator = "::" if name.endswith("dat") else ","
    head = [] if name.endswith("dat") else [["movieId", "title", "genres"]]
    rows = [*head, ["1", "To be \x85 (1942)", "Comedy"], ["2", "Caf\u00e9 (1990)", "Drama"]]
    text = "".join(f"{separator.join(row)}\r\n" for row in rows)
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating\n1,1,4\n1,2,3\n")
    info = read_ratings(tmp_path / "ratings.csv").item_info
    assert info is not None
    assert info["title"].to_list() == ["To be \x85 (1942)", "Caf\u00e9 (1990)"]
