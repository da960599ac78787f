"""The embedded sample: its files, the script that makes them, and how they are found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from recsys import readers
from recsys.errors import DataError
from recsys.readers import sample_path

DATA = Path(__file__).resolve().parents[3] / "data"
WELL_COVERED = {
    "Horror", "Western", "Musical", "Animation", "Sci-Fi", "Romance", "War", "Crime", "Comedy",
    "Documentary",
}  # fmt: skip
GENRES = WELL_COVERED | {
    "Action", "Adventure", "Children", "Drama", "Fantasy", "Film-Noir", "Mystery", "Thriller",
}  # fmt: skip


@pytest.fixture(scope="module")
def items() -> pl.DataFrame:
    return pl.read_csv(DATA / "items.csv")


@pytest.fixture(scope="module")
def ratings() -> pl.DataFrame:
    return pl.read_csv(DATA / "ratings.csv")


def generate(output: Path, *options: str) -> bytes:
    script = [
        sys.executable,
        str(DATA / "make_sample.py"),
        "--output",
        str(output),
        *options,
    ]
    subprocess.run(script, check=True, capture_output=True)
    return output.read_bytes()


def test_items_have_the_promised_columns(items: pl.DataFrame) -> None:
    assert items.schema == {
        "itemId": pl.Int64,
        "title": pl.String,
        "year": pl.Int64,
        "genres": pl.String,
        "description": pl.String,
    }
    assert items.null_count().sum_horizontal().item() == 0


def test_item_ids_count_from_one_and_titles_are_unique(items: pl.DataFrame) -> None:
    assert items["itemId"].to_list() == list(range(1, items.height + 1))
    assert items["title"].str.to_lowercase().is_unique().all()
    assert (items["title"] == items["title"].str.strip_chars()).all()


def test_titles_with_commas_are_one_field(items: pl.DataFrame) -> None:
    years = dict(items.select("title", "year").iter_rows())
    assert years["The Good, the Bad and the Ugly"] == 1966
    assert years["Monsters, Inc."] == 2001


def test_years_are_plausible_and_spread(items: pl.DataFrame) -> None:
    assert items["year"].is_between(1920, 2019).all()
    decades = (items["year"] // 10).value_counts()["count"]
    assert len(decades) == 10
    assert decades.max() < items.height / 4  # type: ignore[operator]


def test_genres_come_from_the_list(items: pl.DataFrame) -> None:
    genres = items["genres"].str.split("|")
    assert set(genres.explode()) == GENRES
    assert genres.list.len().is_between(1, 3).all()
    assert (genres.list.n_unique() == genres.list.len()).all()


def test_each_film_has_a_sentence_of_its_own(items: pl.DataFrame) -> None:
    sentences = items["description"]
    assert sentences.is_unique().all()
    assert sentences.str.contains(r"\A[A-Z][!-~]*( [!-~]+){7,19}\.\z").all()


def test_sentences_do_not_tell_the_title(items: pl.DataFrame) -> None:
    folded = items.select(pl.col("title", "description").str.to_lowercase())
    words = folded.with_columns(
        pl.all().str.replace_all(r"[^\w ]", "").str.replace(r"^(the|an|a) ", "")
    )
    told = words.filter(
        (" " + pl.col("description") + " ").str.contains(
            " " + pl.col("title") + " ", literal=True
        )
    )
    assert told.is_empty()


@pytest.mark.parametrize("genre", sorted(WELL_COVERED))
def test_a_fan_of_a_genre_has_enough_to_choose_from(
    items: pl.DataFrame, genre: str
) -> None:
    assert (items["genres"].str.split("|").list.first() == genre).sum() >= 20


def test_ratings_have_the_promised_columns(ratings: pl.DataFrame) -> None:
    assert ratings.schema == {
        "userId": pl.Int64,
        "itemId": pl.Int64,
        "rating": pl.Float64,
        "timestamp": pl.Int64,
    }
    assert ratings.null_count().sum_horizontal().item() == 0


def test_ratings_are_half_steps_of_known_films(
    items: pl.DataFrame, ratings: pl.DataFrame
) -> None:
    assert set(ratings["rating"]) == {step / 2 for step in range(1, 11)}
    assert set(ratings["itemId"]) == set(items["itemId"])


def test_users_rate_a_film_once(ratings: pl.DataFrame) -> None:
    assert ratings.select("userId", "itemId").is_unique().all()


def test_ratings_are_newer_than_the_film(
    items: pl.DataFrame, ratings: pl.DataFrame
) -> None:
    when = ratings.join(items, on="itemId").select(
        "year", rated=pl.from_epoch("timestamp").dt.year()
    )
    assert (when["rated"] > when["year"]).all()
    assert when["rated"].is_between(2015, 2024).all()


def test_users_are_numbered_by_arrival_and_rate_in_sessions(
    ratings: pl.DataFrame,
) -> None:
    first = ratings.group_by("userId", maintain_order=True).agg(
        pl.col("timestamp").min()
    )
    assert first["userId"].to_list() == list(range(1, first.height + 1))
    assert first["timestamp"].is_sorted()
    pauses = (
        ratings.select(pl.col("timestamp").diff().over("userId"))
        .to_series()
        .drop_nulls()
    )
    assert (pauses < 3600).mean() > 0.8  # type: ignore[operator]
    assert (pauses > 86_400).mean() > 0.05  # type: ignore[operator]


def test_size_is_as_documented(items: pl.DataFrame, ratings: pl.DataFrame) -> None:
    per_user = ratings["userId"].value_counts()["count"]
    assert (per_user.min(), per_user.max()) == (5, 150)
    assert per_user.median() < 0.8 * per_user.mean()  # type: ignore[operator]
    figures = (
        f"{len(per_user):,} users, {items.height:,} films, {ratings.height:,} ratings"
    )
    assert figures in (DATA / "README.md").read_text("utf-8")
    assert sum(path.stat().st_size for path in DATA.glob("*.*")) < 2_000_000


def test_popularity_is_skewed(ratings: pl.DataFrame) -> None:
    per_item = ratings["itemId"].value_counts()["count"].sort(descending=True)
    assert per_item.head(len(per_item) // 10).sum() > 0.2 * ratings.height
    assert per_item[0] > 8 * per_item[-1]
    assert per_item[-1] >= 20


def test_genres_explain_ratings_beyond_user_and_film(
    items: pl.DataFrame, ratings: pl.DataFrame
) -> None:
    """What a low-rank model is to find: users differ in which genres they like."""
    genre = items.select("itemId", genre=pl.col("genres").str.split("|").list.first())
    ratings = ratings.with_columns(
        left=pl.col("rating") - pl.col("rating").mean().over("itemId")
    )
    ratings = ratings.with_columns(
        left=pl.col("left") - pl.col("left").mean().over("userId")
    )
    pairs = ratings.join(genre, on="itemId").group_by("userId", "genre")
    explained = pairs.agg((pl.len() * pl.col("left").mean() ** 2).alias("left"))["left"]
    by_chance = ratings["left"].to_numpy().var() * len(explained)
    assert explained.sum() > 1.5 * by_chance


def test_the_script_gives_the_committed_bytes(tmp_path: Path) -> None:
    assert generate(tmp_path / "again.csv") == (DATA / "ratings.csv").read_bytes()


def test_another_seed_gives_other_ratings(tmp_path: Path) -> None:
    other = generate(tmp_path / "other.csv", "--seed", "1")
    assert other != (DATA / "ratings.csv").read_bytes()
    assert set(pl.read_csv(other)["rating"]) == {step / 2 for step in range(1, 11)}


def test_sample_path_has_both_files() -> None:
    for name in ("ratings.csv", "items.csv"):
        assert (sample_path() / name).read_bytes() == (DATA / name).read_bytes()


def lay_sample(directory: Path) -> Path:
    directory.mkdir(parents=True)
    for name in ("ratings.csv", "items.csv"):
        (directory / name).touch()
    return directory


def test_the_installed_copy_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "recsys"
    package.mkdir()
    monkeypatch.setattr(readers, "__file__", str(package / "readers" / "__init__.py"))
    checkout = lay_sample(tmp_path / "data")
    assert sample_path() == checkout
    installed = lay_sample(package / "sample" / "data")
    assert sample_path() == installed


def test_names_missing_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_sample(tmp_path / "data").joinpath("items.csv").unlink()
    monkeypatch.setattr(
        readers, "__file__", str(tmp_path / "recsys" / "readers" / "__init__.py")
    )
    with pytest.raises(
        DataError, match=r"neither in .*sample/data nor in .*data; reinstall"
    ):
        sample_path()
