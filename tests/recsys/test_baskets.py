"""Items that are bought together: counts, limits, ranks and options."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import recsys
from recsys import DataError, Ratings, UnknownIdError, baskets, together

LINES = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from("abcdefg")), min_size=1, max_size=60
)


def frame_of(lines: list[tuple[int, str]]) -> pl.DataFrame:
    return pl.DataFrame(lines, schema=["order_id", "sku"], orient="row")


def grocery(n_baskets: int = 4000, seed: int = 0) -> pl.DataFrame:
    """Independent items, but pasta with sauce, and two rare items in one basket."""
    rng = np.random.default_rng(seed)
    lines: list[tuple[int, str]] = []
    for order in range(n_baskets):
        lines += [(order, f"item-{at}") for at in range(12) if rng.random() < 0.1]
        if rng.random() < 0.05:
            lines += [(order, "pasta")]
            lines += [(order, "sauce")] * int(rng.random() < 0.6)
    return frame_of([*lines, (17, "caviar"), (17, "truffle")])


@given(LINES)
def test_counts_equal_dictionary_counts(lines):
    by_order: dict[int, set[str]] = {}
    for order, sku in lines:
        by_order.setdefault(order, set()).add(sku)
    counts = Counter(sku for skus in by_order.values() for sku in skus)
    both = Counter(pair for skus in by_order.values() for pair in permutations(skus, 2))
    frame = together(frame_of(lines), "order_id", n=100)
    found = {(one, other): row for one, other, *row in frame.rows()}
    assert {pair: row[0] for pair, row in found.items()} == dict(both)
    for (one, other), (count, lift, low, high, _) in found.items():
        expected = counts[one] * counts[other] / len(by_order)
        assert lift == pytest.approx(count / expected, rel=1e-6)
        assert low <= lift <= high
    for _, of_item in frame.group_by("item"):
        assert of_item["rank"].to_list() == [*range(1, len(of_item) + 1)]
        assert of_item["low"].is_sorted(descending=True)


@given(LINES, st.integers(1, 3))
def test_blocks_do_not_change_the_result(lines, n):
    frame = frame_of(lines)
    whole = together(frame, "order_id", n)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baskets, "_BLOCK", 5)
        assert together(frame, "order_id", n).equals(whole)


def test_one_basket_of_two_rare_items_gives_no_evidence():
    frame = together(grocery(), "order_id")
    first = frame.row(0, named=True)
    assert {first["item"], first["other"]} == {"pasta", "sauce"}
    rare = frame.filter(pl.col("item") == "caviar", pl.col("other") == "truffle")
    assert rare["both"].item() == 1
    assert rare["lift"].item() > 2000
    assert rare["low"].item() < 1 < first["low"]


@pytest.mark.parametrize(
    ("share", "lift"), [(0.002, 1), (0.002, 30), (0.01, 3), (0.1, 0.5), (0.1, 3)]
)
def test_intervals_contain_the_lift(share, lift):
    """Of listed pairs, at least 95% (less some sampling error) as the documentation says."""
    n = 20_000
    both = lift * share**2
    cells = [both, share - both, share - both, 1 - 2 * share + both]
    counts = np.random.default_rng(0).multinomial(n, cells, size=400)
    contained = []
    for n_both, only_one, only_other, _ in counts[counts[:, 0] > 0].tolist():
        expected = np.array([(n_both + only_one) * (n_both + only_other) / n])
        several = np.array([n_both])
        low = baskets._lower_limits(several, expected)[0]
        high = baskets._quantiles(several, 1, 0.975)[0] / expected[0]
        contained.append(low <= lift <= high)
    assert np.mean(contained) > 0.93


def test_an_item_twice_in_a_basket_counts_once():
    lines = [(1, "tea"), (1, "tea"), (1, "jam"), (2, "tea")]
    row = together(frame_of(lines), "order_id", item="jam").row(0, named=True)
    assert (row["other"], row["both"], row["lift"]) == ("tea", 1, 1.0)


def test_a_basket_is_the_day_of_a_user_by_default():
    frame = pl.DataFrame(
        {
            "user": ["ann", "ann", "ann", "bob", "bob"],
            "item": ["tea", "jam", "rye", "tea", "jam"],
            "time": [
                "2026-01-05",
                "2026-01-05",
                "2026-01-06",
                "2026-01-05",
                "2026-02-05",
            ],
        }
    )
    pairs = together(frame)
    assert sorted(pairs.select("item", "other", "both").rows()) == [
        ("jam", "tea", 1),
        ("tea", "jam", 1),
    ]
    with pytest.raises(DataError, match="--basket-col"):
        together(frame.drop("time"))
    # Of ratings without times, users are baskets.
    ratings = Ratings.from_frame(frame.drop("time"))
    rows = together(ratings, item="tea").select("other", "both").rows()
    assert sorted(rows) == [("jam", 2), ("rye", 1)]


def test_repeated_purchases_are_baskets_of_their_days():
    """The ratings have the last time of a pair, but the events have all."""
    days = ["2026-01-05", "2026-01-06", "2026-01-07"]
    frame = pl.DataFrame(
        {
            "user": ["ann"] * 6,
            "item": ["tea", "jam"] * 3,
            "time": sorted(days * 2),
        }
    )
    assert together(frame)["both"].to_list() == [3, 3]


def test_returns_do_not_count_as_purchases():
    frame = pl.DataFrame(
        {
            "user": ["ann"] * 3,
            "item": ["tea", "jam", "rye"],
            "quantity": [2.0, 1.0, -1.0],
            "time": ["2026-01-05"] * 3,
        }
    )
    ratings = Ratings.from_frame(frame, weight="quantity")
    assert set(together(ratings)["item"]) == {"tea", "jam"}
    assert set(together(ratings, "user")["item"]) == {"tea", "jam"}


def test_what_comes_back_on_the_same_day_was_not_bought():
    frame = pl.DataFrame(
        {
            "user": ["ann"] * 6,
            "item": ["tea", "jam", "rye", "rye", "rye", "rye"],
            "quantity": [2.0, 1.0, 0.1, 0.2, -0.3, 0.0],
            "time": ["2026-01-05 10:00"] * 4 + ["2026-01-05 18:00"] * 2,
        }
    )
    ratings = Ratings.from_frame(frame, weight="quantity")
    assert set(together(ratings)["item"]) == {"tea", "jam"}
    assert set(together(ratings, "user")["item"]) == {"tea", "jam"}


def test_doors_give_the_same_pairs(tmp_path):
    frame = grocery(500)
    frame.write_csv(tmp_path / "orders.csv")
    expected = together(frame, "order_id")
    assert together(tmp_path / "orders.csv", "order_id").equals(expected)
    ratings = recsys.read_ratings(tmp_path / "orders.csv", user="order_id")
    assert together(ratings, "user").equals(expected)
    assert together(ratings, "order_id").equals(expected)
    assert together(ratings).equals(expected)
    assert together(frame.to_pandas(), "order_id").equals(expected)


def test_a_missing_column_of_baskets_names_the_columns(tmp_path):
    frame = grocery(50)
    frame.write_csv(tmp_path / "orders.csv")
    for source in (frame, tmp_path / "orders.csv"):
        with pytest.raises(DataError, match=r"no column 'basket'.*'order_id', 'sku'"):
            together(source, "basket")
    ratings = Ratings.from_frame(frame, user="order_id")
    with pytest.raises(DataError, match="user='cart'"):
        together(ratings, "cart")


def test_options_choose_the_others():
    table = pl.DataFrame(
        {
            "item": [f"item-{at}" for at in range(12)],
            "title": [f"Item {at}" for at in range(12)],
            "shelf": ["left", "right"] * 6,
        }
    )
    frame = grocery()
    ratings = Ratings.from_frame(frame, user="order_id", item_table=table)

    def others(**options):
        listed = together(ratings, "user", 5, item=["pasta", "item-3"], **options)
        return {
            item: listed.filter(pl.col("item") == item)["other"].to_list()
            for item in ("pasta", "item-3")
        }

    assert others()["pasta"][0] == "sauce"
    assert "sauce" not in others(block=["sauce"])["pasta"]
    assert set(others(items=["sauce", "item-1"])["item-3"]) == {"sauce", "item-1"}
    left = others(where="shelf = 'left'")
    assert all(int(other[5:]) % 2 == 0 for other in left["pasta"] + left["item-3"])
    limited = others(at_most=1, per="shelf")
    for listed in limited.values():
        shelves = [int(other[5:]) % 2 for other in listed if other.startswith("item")]
        assert len(shelves) == len(set(shelves)) == 2
    listed = together(ratings, "user", 5, at_most=1, per="shelf")
    everything = together(ratings, "user", 100)
    keys = ["item", "other", "both", "lift", "low", "high", "title"]
    assert len(listed.select(keys).join(everything, on=keys, nulls_equal=True)) == len(
        listed
    )
    with pytest.raises(DataError, match="at_most and per"):
        others(at_most=1)
    with pytest.raises(UnknownIdError):
        together(ratings, "user", item="itme-1")
    with pytest.raises(DataError, match="leave out the users"):
        together(ratings, "user", block={1: ["sauce"]})


def test_without_pairs_the_frame_is_empty():
    frame = together(frame_of([(1, "tea"), (2, "jam")]), "order_id")
    assert frame.is_empty()
    assert frame.columns == ["item", "other", "both", "lift", "low", "high", "rank"]


def test_equal_limits_are_not_in_the_order_of_the_ids():
    lines = [(1, sku) for sku in "abcdefghijklmnop"]
    listed = together(frame_of(lines), "order_id", n=20, item="a")["other"].to_list()
    assert sorted(listed) == [*"bcdefghijklmnop"]
    assert listed != sorted(listed)
