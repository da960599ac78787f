"""Conditions on item metadata."""

from datetime import date, datetime

import numpy as np
import polars as pl
import pytest

from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.ranking.filters import check_modest, rows_where
from recsys.recommender import Recommender

INFO = pl.DataFrame(
    {
        "item": [5, 1, 3, 2],
        "title": ["It's Comedy", "Alien", "The Thing", None],
        "genres": ["Comedy|Drama", "Horror|Sci-Fi", "Horror", "Comedy"],
        "year": [1990, 1979, 1982, None],
        "box office": [1.5, 2.5, 0.0, 3.0],
        "select": [1, 2, 3, 4],
        "added": [date(1990, 6, 1), date(1991, 1, 31), None, None],
        "seen": [None, None, datetime(2024, 1, 31, 12), None],
        "kept": [True, True, False, None],
    }
)
FRAME = pl.DataFrame(
    {"user": [1, 1, 2, 2, 2], "item": [1, 2, 3, 4, 5], "rating": [1, 2, 3, 4, 5]}
)


@pytest.fixture(scope="module")
def ratings():
    return Ratings.from_frame(FRAME, item_table=INFO)


def met(condition, ratings):
    return ratings.items.values.filter(
        pl.Series(rows_where(condition, ratings))
    ).to_list()


@pytest.mark.parametrize(
    ("condition", "items"),
    [
        ("year >= 1980", [3, 5]),
        ("year >= 1980 AND genres LIKE '%Comedy%'", [5]),
        ("year < 1980 or genres = 'Comedy'", [1, 2]),
        ("NOT year >= 1980", [1]),
        ("year BETWEEN 1979 AND 1982", [1, 3]),
        ("year IN (1979, 1990)", [1, 5]),
        ("year IS NULL", [2, 4]),
        ("title IS NOT NULL", [1, 3, 5]),
        ("title ILIKE 'the %'", [3]),
        ("title = 'It''s Comedy'", [5]),
        ("genres ~ '^Horror$'", [3]),
        ("starts_with(title, 'A') OR ends_with(title, 'ing')", [1, 3]),
        ("lower(title) = 'alien'", [1]),
        ("length(title) > 6", [3, 5]),
        ("coalesce(year, 0) = 0", [2, 4]),
        ("CASE WHEN year > 1980 THEN true ELSE false END", [3, 5]),
        ('"box office" > 2', [1, 2]),
        ('"select" = 4', [2]),
        ("abs(year - 1981) <= 2", [1, 3]),
        ("floor(year / 10.0) = 198 and ceil(year / 10.0) = 199", [3]),
        ("round(year / 10.0) = 198", [1, 3]),
        ("item <> 3", [1, 2, 4, 5]),
        ("Year > 1980 AND TITLE LIKE 'The%'", [3]),
        ("array_contains(genres, 'Horror')", [1, 3]),
        ("array_length(genres) = 2 AND year > 1980", [5]),
        ("added >= '1990-06-01'", [1, 5]),
        ("added > DATE '1990-06-01' AND genres LIKE 'Horror%'", [1]),
        ("added BETWEEN '1990-01-01' AND '1990-12-31' AND genres LIKE '%Comedy%'", [5]),
        ("added LIKE '1991-%' OR seen >= '2024-01-31 12:00'", [1, 3]),
        ("seen < '2024-01-31'", []),
        ("year(added) = 1990", [5]),
        ("added IN ('1990-06-01', '1991-01-31') AND added <> '1990-06-01'", [1]),
        ("added + INTERVAL '1 day' > DATE '1991-01-31'", [1]),
        ("kept", [1, 5]),
        ("NOT kept AND added IS NULL", [3]),
        ("1 = 1", [1, 2, 3, 4, 5]),
        ("title = 'select from -- /* '", []),
    ],
)
def test_conditions(ratings, condition, items):
    assert met(condition, ratings) == items


def test_the_id_of_users_needs_no_quotes():
    ratings = Ratings.from_frame(FRAME.with_columns(pl.col("user").cast(pl.String)))
    for condition in (
        "user = '2'",
        "USER <> '1'",
        "\"user\" = '2' and 'user' = 'user'",
    ):
        assert rows_where(condition, ratings, "user").tolist() == [False, True]


def test_odd_names_need_double_quotes():
    books = Ratings.from_frame(FRAME, item_table=INFO.rename({"year": "year-of"}))
    with pytest.raises(
        DataError, match='single quotes, a name such as "year-of" in double ones'
    ):
        rows_where("year-of > 1980", books)
    assert rows_where('"year-of" > 1980', books).any()


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (
            "title = Alien",
            r'unable to find column "Alien"; .* text is in single quotes',
        ),
        (
            "title LIKE Alien",
            "pattern must be a string literal.* text is in single quotes",
        ),
        (
            "yaer > 3",
            r'unable to find column "yaer"; the columns are item \(id\), title',
        ),
        ('title = "Alien"', 'unable to find column "Alien"'),
        ("year >", "'year >' cannot be used: unable to parse"),
        ("", r"the condition is empty; the columns are item \(id\), title"),
        (" ", "the condition is empty"),
        ("user = 1", 'unable to find column "user"; the columns are'),
        ("year > 'x'", r"cannot compare string with numeric.*year \(number\)"),
        ("title", "it is not a condition but gives String values"),
        ("year + 1", "it is not a condition but gives Int64 values"),
        (
            "title ~ '('",
            r"cannot be used: regular expression: unclosed group; the columns",
        ),
        ("title = 'open", "Unterminated string literal"),
        ("year > 1; 1", "';' is not allowed"),
        ("year > 1 /* 1 */", r"'/\*' is not allowed"),
        ("year > 1 -- so", "'--' is not allowed"),
        (r"title = 'a\'' or 1 = 1", "is not allowed"),
        (
            "added > 1990",
            r"dates compare with texts such as '2023-01-31', not with 1990; .* \(date\)",
        ),
        ("1990 <> seen", "such as '2023-01-31', not with 1990"),
        ("added BETWEEN 1990 AND 1991", "such as '2023-01-31', not with 199"),
        ("added < year", "such as '2023-01-31', not with numbers"),
        ("NOT (kept OR added IN (1990))", "such as '2023-01-31', not with 1990"),
        ("added > '01.01.1990'", r"such as '2023-01-31', not with '01\.01\.1990'"),
        ("seen > '2024-13-01'", "such as '2023-01-31', not with '2024-13-01'"),
        ("added IN ('1990-06-01', 'June')", "such as '2023-01-31', not with 'June'"),
        (
            "year(added) = 1990 AND added > '1990'",
            "such as '2023-01-31', not with '1990'",
        ),
        (pl.col("yaer") > 3, 'unable to find column "yaer"'),
        (pl.col("year") + 1, "it is not a condition"),
        (5, "the condition must be text or an expression; got 5"),
    ],
)
def test_bad_conditions_name_the_columns(ratings, condition, message):
    with pytest.raises(DataError, match=f"where: .*{message}"):
        rows_where(condition, ratings)


@pytest.mark.parametrize(
    "condition",
    [
        "year = ANY(SELECT year FROM read_csv('{path}'))",
        "year IN (SELECT year FROM read_csv('{path}'))",
        "EXISTS (SELECT 1 FROM read_csv('{path}'))",
        "year IN (FROM read_csv('{path}'))",
        "year IN (TABLE self)",
        "read_csv('{path}')",
        "'a' = /* ' */ 'b' OR year = ANY(SELECT x FROM read_csv('{path}')) /* ' */",
        "'a' = 'b' -- '\n OR year = ANY(SELECT x FROM read_csv('{path}')) -- '",
        "E'\\' ' = title OR year = ANY(SELECT x FROM read_csv('{path}')) OR title = ' '",
        "select = ANY(SELECT x FROM read_csv('{path}'))",
        "`'` = 1 OR year IN (SELECT x FROM read_csv('{path}')) OR `'` = 1",
        "__import__('os').system('true')",
    ],
)
def test_nothing_but_the_metadata_can_be_read(ratings, condition, tmp_path):
    secret = tmp_path / "secret.csv"
    secret.write_text("hidden\n1\n")
    with pytest.raises(DataError, match=r"is not allowed|cannot be used") as error:
        rows_where(condition.format(path=secret), ratings)
    assert "hidden" not in str(error.value)


def test_columns_with_the_names_of_keywords_open_no_doors(tmp_path):
    """Every word is a column here, so that only the keywords themselves can be rejected."""
    secret = tmp_path / "secret.csv"
    secret.write_text("hidden\n1\n")
    names = ["year", "select", "hidden", "from", "read_csv", "e"]
    info = pl.DataFrame({"item": [1], **{name: [1] for name in names}})
    ratings = Ratings.from_frame(FRAME, item_table=info)
    with pytest.raises(DataError, match="'select' is not allowed"):
        rows_where(f"year in (select hidden from read_csv('{secret}'))", ratings)
    assert met('"select" = 1 and e = 1', ratings) == [1]


def test_conditions_on_users():
    users = pl.DataFrame({"user": [2, 7], "age": [30, 20]})
    known = Ratings.from_frame(FRAME, user_table=users)
    assert rows_where("age >= 30", known, "user").tolist() == [False, True]
    assert rows_where(pl.col("user") < 2, known, "user").tolist() == [True, False]
    with pytest.raises(
        DataError, match=r"where_user: .*the columns are user \(id\), age \(number\)"
    ):
        rows_where("year > 3", known, "user")
    popular = Recommender("popular").fit(known)
    assert set(popular.recommend(where_user="age > 1")["user"]) == {2}
    assert popular.recommend([1], where_user="age > 1").is_empty()
    strangers = popular.recommend([9, 2, 8], cold_start="popular", where_user="age > 1")
    assert set(strangers["user"]) == {2}


def test_the_column_of_titles_is_title_as_well():
    wares = pl.DataFrame({"item": [1, 2], "Name": ["Tea", "Cup"]})
    assert met(
        "title = 'Tea' OR name = 'Tea'", Ratings.from_frame(FRAME, item_table=wares)
    ) == [1]


def test_data_without_metadata_have_their_ids(ratings):
    bare = Ratings.from_frame(FRAME)
    assert met("item > 3", bare) == [4, 5]
    with pytest.raises(DataError, match=r"the columns are item \(id\), and"):
        rows_where("year > 1", bare)


def test_conditions_go_with_lists(ratings):
    popular = Recommender("popular").fit(ratings)
    found = popular.recommend(1, where="year >= 1980", exclude_seen=False)
    assert set(found["item"]) == {3, 5}
    found = popular.recommend(1, where="year >= 1980", items=[1, 2, 3, 5], block=[5])
    assert found["item"].to_list() == [3]
    assert popular.recommend(2, where="year >= 1980").is_empty()
    found = popular.recommend(
        1, where=pl.col("year") >= 1980, items=[1, 2, 3, 5], block=[5]
    )
    assert found["item"].to_list() == [3]


@pytest.mark.parametrize(
    ("part", "times"), [("year = 1 or ", 20_000), ("(", 401), ("not ", 401)]
)
def test_a_condition_of_absurd_length_is_rejected_before_it_is_parsed(
    part, times, ratings
):
    with pytest.raises(DataError, match="has more than 400 words and signs"):
        rows_where(part * times + "true", ratings)
    assert met(f"item in ({','.join(['3'] * 5000)})", ratings) == [3]


PAIRS = pl.DataFrame({"user": [*"aabcc"], "item": [*"xyxzx"]})


@pytest.fixture(scope="module")
def popular():
    return Recommender("popular").fit(PAIRS)


@pytest.mark.parametrize(
    "block",
    [
        {"a": ["z"], "b": "y"},
        pl.DataFrame({"user": ["a", "b"], "item": ["z", "y"]}),
        pl.DataFrame(
            {"customer_id": ["a", "b"], "sku": ["z", "y"], "returned": [1, 2]}
        ),
    ],
)
def test_a_block_with_users_is_for_each_alone(popular, block):
    found = popular.recommend(block=block)
    assert found.select("user", "item").rows() == [("b", "z"), ("c", "y")]
    both = popular.recommend(block=block, exclude_seen=False)
    kept = set(both.select("user", "item").rows())
    every = {(user, item) for user in "abc" for item in "xyz"}
    assert kept == every - {("a", "z"), ("b", "y")}


def test_a_block_list_without_users_is_for_everyone(popular):
    frame = pl.DataFrame({"item": ["z"]})
    expected = popular.recommend(block=["z"])
    assert popular.recommend(block=frame).equals(expected)
    assert "z" not in expected["item"].to_list()


def test_blocked_pairs_of_unknown_users_count_for_them_only(popular):
    block = {"new": ["x"], "nobody": ["y"], "a": ["nothing"]}
    found = popular.recommend(["a", "new", "other"], block=block, cold_start="popular")
    assert found.select("user", "item").rows() == [
        *(("a", "z"), ("new", "y"), ("new", "z")),
        *(("other", "x"), ("other", "y"), ("other", "z")),
    ]
    assert popular.recommend(block={}).equals(popular.recommend())


def test_blocked_pairs_hold_for_factors_and_many_users():
    rng = np.random.default_rng(0)
    pairs = pl.DataFrame(
        {"user": rng.integers(0, 90, 900), "item": rng.integers(0, 40, 900)}
    )
    recommender = Recommender("implicit-als", factors=8, iterations=2).fit(pairs)
    blocked = pl.DataFrame(
        {"user": rng.integers(0, 90, 300), "item": rng.integers(0, 40, 300)}
    )
    found = recommender.recommend(n=40, block=blocked).select("user", "item")
    free = recommender.recommend(n=40).select("user", "item")
    assert found.equals(
        free.join(blocked, on=["user", "item"], how="anti", maintain_order="left")
    )


@pytest.mark.parametrize(
    "condition",
    [
        "LPAD(title, 999999999, 'x') = ''",
        "\"lpad\" (title, 9, 'x') = ''",
        "title || title = 'x'",
        "replace(replace(title, 'a', 'bb'), 'b', 'cc') = ''",
        "SUM(year) OVER (ORDER BY year) > 0",
    ],
)
def test_conditions_of_requests_call_no_expensive_functions(condition):
    with pytest.raises(DataError, match="is not allowed in a condition"):
        check_modest(condition)


def test_usual_conditions_of_requests_are_allowed():
    check_modest(
        "LOWER(title) LIKE 'the %' AND (year IN (1990, 1991) OR NOT (genre = 'lpad(||)'))"
    )


@pytest.mark.parametrize(
    "condition",
    [
        "sale > 0",
        "sale",
        "NOT sale",
        "lower(sale) = 'a'",
        "sale IN (1, 2)",
        "sale = 'x'",
    ],
)
def test_nothing_meets_a_condition_on_a_column_without_values(condition):
    table = pl.DataFrame({"item": [1, 2], "stock": [3, 0], "sale": [None, None]})
    pairs = pl.DataFrame({"user": [7, 7], "item": [1, 2]})
    ratings = Ratings.from_frame(pairs, item_table=table)
    assert not rows_where(condition, ratings).any()
    either = rows_where("stock > 0 OR sale IS NOT NULL", ratings)
    assert either.tolist() == [True, False]
    with pytest.raises(DataError, match=r"stock \(number\), sale \(without values\)"):
        rows_where("sail > 0", ratings)
