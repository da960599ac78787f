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
        "movies.dat": (
            f"10::{TITLES[0]}::{GENRES[0]}\n20::{TITLES[1]}::{GENRES[1]}\n"
        ).encode("latin-1"),
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
    assert loaded.item_table is not None
    films = loaded.item_table.aligned(loaded.items)
    assert films["genres"].list.join("|").to_list() == GENRES
    assert films["year"].to_list() == [2001, 1979]
    assert "title, " in str(loaded.source)
    assert "genres (list of 3)" in str(loaded.source)
    assert "year (number)" in str(loaded.source)


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


def test_a_file_of_titles_is_not_its_own_neighbour(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("user,item,rating\n1,2,3\n")
    assert read_ratings(tmp_path / "items.csv").item_table is None


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


def test_a_table_with_spaces_is_not_read_as_lightgcn(read: Read) -> None:
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
    assert str(loaded.source).endswith(
        "; movies.csv (has 18 without ratings): title, genres (list of 19), year (number); "
        "no duplicates"
    )
    assert loaded.titles is not None
    assert loaded.titles.null_count() == 0
    assert loaded.titles[0] == "Toy Story (1995)"


@real_data
def test_gowalla() -> None:
    ratings = read_ratings(Path(DATASETS or "") / "gowalla" / "train.txt")
    assert (ratings.n_users, ratings.nnz, ratings.implicit) == (29_858, 810_128, True)
