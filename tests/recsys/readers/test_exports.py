"""Files as programs and people leave them: dicts of Python 2, joined files, added headers."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from recsys import read_ratings
from recsys.errors import DataError
from recsys.lsi import Documents


def test_dicts_of_python_2(tmp_path: Path) -> None:
    path = tmp_path / "reviews.json"
    first = r"{u'username': u'ann', u'product_id': u'7', u'text': u'It\'s \"fun\", caf\xe9'}"
    second = "{u\"username\": u'bob', u'product_id': u'8', 'early': False}"
    path.write_text(f"{first}\n{second}\n")
    ratings = read_ratings(path)
    assert ratings.to_frame().select("user", "item").rows() == [
        ("ann", "7"),
        ("bob", "8"),
    ]
    path.write_text(f"{first}\n{{u'username': u'bob', \n")
    with pytest.raises(DataError, match=r"line 2: not JSON"):
        read_ratings(path)
    assert read_ratings(path, bad_rows=0.5).n_ratings == 1


@pytest.mark.parametrize("sep", [",", "\t", "::", ";"])
@pytest.mark.parametrize("n_before", [2, 400])
def test_headers_in_the_middle_of_joined_files(
    sep: str, n_before: int, tmp_path: Path
) -> None:
    header = sep.join(["user", "item", "rating"])
    rows = [sep.join([str(n % 9), str(n % 7), "3"]) for n in range(n_before)]
    path = tmp_path / "r.csv"
    path.write_text(
        "\n".join([header, *rows, header, sep.join(["17", "5", "4"]), header, ""])
    )
    ratings = read_ratings(path)
    assert ratings.users.dtype == pl.Int64
    assert "2 repeated headers left out" in str(ratings.source)
    assert (17, 5, 4.0) in ratings.to_frame().select("user", "item", "rating").rows()


def test_headers_in_the_middle_of_interactions(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("user,item\nann,tea\nbob,cup\nuser,item\ncy,tea\n")
    ratings = read_ratings(path)
    assert [*ratings.users] == ["ann", "bob", "cy"]
    assert "1 repeated header left out" in str(ratings.source)


def test_headers_in_tables_of_movielens(tmp_path: Path) -> None:
    (tmp_path / "u.data").write_text("1\t1\t5\t874965758\n2\t2\t3\t876893171\n")
    flags = "0|" * 18 + "0"
    for heads in (
        ("", ""),
        ("user_id|age|gender|occupation|zip code\n", "movie id | title | a\n"),
    ):
        (tmp_path / "u.user").write_text(
            f"{heads[0]}1|24|M|technician|85711\n2|53|F|other|94043\n"
        )
        films = [f"1|Toy Story (1995)|01-Jan-1995||x|{flags}\n"]
        films.append(f"2|GoldenEye (1995)|01-Jan-1995||x|{flags}\n")
        (tmp_path / "u.item").write_text(heads[1] + "".join(films))
        ratings = read_ratings(tmp_path)
        assert ratings.user_table is not None
        assert ratings.user_table.kinds["age"] == "number"
        assert ratings.titles is not None
        assert ratings.titles.to_list() == ["Toy Story (1995)", "GoldenEye (1995)"]


@pytest.mark.parametrize(
    "content", ['["tea milk", "bread"]', '[\n  "tea milk",\n  "bread"\n]\n']
)
def test_a_json_array_of_texts_is_a_collection(content: str, tmp_path: Path) -> None:
    path = tmp_path / "texts.json"
    path.write_text(content)
    documents = Documents(path)
    (batch,) = documents
    assert (batch.ids, batch.texts) == ([1, 2], ["tea milk", "bread"])
    assert (
        documents.decision
        == "texts.json: a JSON array of texts, ids are element numbers"
    )
    path.write_text('["tea", 5]')
    with pytest.raises(DataError, match="element 2 must be a text; got int"):
        list(Documents(path))


def test_lines_that_begin_like_an_array_are_lines(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text('["quoted"] is a note\nanother\n')
    (batch,) = Documents(path)
    assert len(batch.texts) == 2
