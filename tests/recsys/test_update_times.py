"""Updates and the present time: events of the future, windows and half-lives that few decide."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recsys import DataError, Ratings, Recommender, read_ratings

pytestmark = pytest.mark.usefixtures("one_fold")

START = datetime(2022, 1, 1, tzinfo=UTC)


def events(n: int = 400, *extra: tuple[str, str, datetime]) -> pl.DataFrame:
    rows = [
        (f"u{k % 40}", f"i{k * k % 23}", START + timedelta(hours=11 * k))
        for k in range(n)
    ]
    return pl.DataFrame([*rows, *extra], ["user", "item", "timestamp"], orient="row")


def fitted(frame: pl.DataFrame, **options: str) -> Recommender:
    return Recommender("ials", factors=4).fit(Ratings.from_frame(frame, **options))  # type: ignore[arg-type]


def new(*times: datetime) -> pl.DataFrame:
    rows = [("u1", "i22", time) for time in times]
    return pl.DataFrame(rows, ["user", "item", "timestamp"], orient="row")


@pytest.mark.parametrize("with_file", [True, False])
def test_one_event_of_the_future_does_not_move_a_window(
    tmp_path: Path, with_file: bool
) -> None:
    before = fitted(events())
    more: str | pl.DataFrame
    more = events(420, ("u0", "i1", datetime(2099, 1, 1, tzinfo=UTC)))
    if with_file:
        more.write_parquet(tmp_path / "new.parquet")
        more = str(tmp_path / "new.parquet")
    after = before.update(more, window="60d")
    plain = before.update(events(420), window="60d")
    np.testing.assert_array_equal(after.ratings.seconds, plain.ratings.seconds)
    assert after.ratings.n_ratings > 100
    with pytest.raises(
        DataError, match=r"1 of 1 rows have no time of the past: 1 row left out whose"
    ):
        before.update(new(datetime(9999, 12, 31, tzinfo=UTC)), window="60d")


@pytest.mark.parametrize(("window", "is_in_order"), [("190d", True), (None, False)])
def test_rows_outside_a_window_tell_no_order(
    window: str | None, is_in_order: bool
) -> None:
    first = START - timedelta(days=9)
    second = first + timedelta(days=1)
    newest = ("u2", "i1", START + timedelta(days=190))
    rows = [("u1", "i1", second), ("u1", "i2", first), newest]
    more = pl.DataFrame(rows, ["user", "item", "timestamp"], orient="row")
    after = fitted(events()).update(more, window=window).ratings
    [user] = after.users.find(pl.Series(["u1"]))
    assert after.in_time_order is not None
    assert after.in_time_order[user] == is_in_order


def test_a_few_events_far_from_the_others_do_not_decide_a_window() -> None:
    before = fitted(events())
    far = START + timedelta(days=600)
    with pytest.raises(DataError) as caught:
        before.update(new(far), window="60d")
    message = str(caught.value)
    assert (
        "--window 60d counts from the newest event (user 'u1', item 'i22': 2023-08-24)"
        in message
    )
    assert (
        "leaves 1 of 401 events; the others end at 2022-07-02 21:00:00 UTC" in message
    )
    assert "--as-of 2022-07-03 (as_of=) leaves it out" in message
    cured = before.update(
        Ratings.from_frame(new(far)), window="60d", as_of="2022-07-03"
    )
    assert cured.ratings.n_ratings > 60
    assert "1 event after the present time left out" in cured.training["changes"]
    assert cured.provenance.reading["as_of"] == "2022-07-03T00:00:00+00:00"


def test_accepts_an_ordinary_window_of_a_long_history() -> None:
    before = fitted(events(4_000))
    assert before.update(None, window="30d").ratings.n_ratings < 70


def test_a_half_life_that_few_events_decide_is_an_error_in_an_update() -> None:
    before = fitted(events(), half_life="7d")
    with pytest.raises(
        DataError, match=r"--half-life 7d counts from the newest event \(user 'u1',"
    ):
        before.update(new(START + timedelta(days=600)))
    after = before.update(new(START + timedelta(days=184)))
    assert "hardly count" not in after.training["changes"]


def test_users_all_of_whose_events_are_old_are_counted() -> None:
    old = pl.DataFrame(
        [(f"old{k}", "i1", START - timedelta(days=300)) for k in range(3)],
        ["user", "item", "timestamp"],
        orient="row",
    )
    frame = pl.concat([events(), old])
    before = fitted(frame, half_life="7d")
    assert "3 users have only interactions older than 70 days" in str(
        before.ratings.source
    )
    after = before.update(new(START + timedelta(days=184)))
    assert (
        "3 users have only interactions older than 70 days" in after.training["changes"]
    )


def test_the_present_time_of_a_model_is_that_of_its_last_update(tmp_path: Path) -> None:
    events().write_parquet(tmp_path / "r.parquet")
    ratings = read_ratings(tmp_path / "r.parquet", as_of="2022-05-01")
    assert ratings.timestamps is not None
    assert ratings.timestamps.max() <= datetime(2022, 5, 2, tzinfo=UTC).timestamp()
    before = Recommender("popular").fit(ratings)
    before.save(tmp_path / "m")
    loaded = Recommender.load(tmp_path / "m")
    assert loaded.provenance.reading["as_of"] == "2022-05-01T00:00:00+00:00"
    again = read_ratings(
        tmp_path / "r.parquet", as_of=loaded.provenance.reading["as_of"]
    )
    assert again.n_ratings == ratings.n_ratings
    after = loaded.update(str(tmp_path / "r.parquet"))
    assert after.ratings.n_ratings > ratings.n_ratings
    assert after.provenance.reading["as_of"] >= f"{datetime.now(UTC):%Y-%m-%d}"


@pytest.mark.parametrize("as_of", ["soon", "0000-01-01", True])
def test_a_present_time_that_cannot_be_one(as_of: str) -> None:
    with pytest.raises(
        DataError, match="as_of must be a date or time, such as 2024-01-31; got"
    ):
        Ratings.from_frame(events(), as_of=as_of)
