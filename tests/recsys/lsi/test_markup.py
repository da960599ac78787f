"""HTML in texts: its tags and entities are not words, wherever texts become words."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.markup import plain_text
from recsys.features.blocks import TextBlock
from recsys.lsi import LSI, Documents, Eigenwords

HTML = [
    "<p>Kessel<br/>Gr&ouml;&szlig;e: 2 l&nbsp;</p>",
    "<p>Topf <b>schwarz</b></p>",
    '<div class="x">A wok &amp; lid</div>',
]
PLAIN = ["Kessel Größe: 2 l", "Topf schwarz", "A wok & lid"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *zip(HTML, PLAIN, strict=True),
        ("<ul><li>rot</li><li>blau</li></ul>", "rot blau"),
        ("H<sub>2</sub>O, <B>fett</B>es", "H2O, fettes"),
        ("<script>var x = 1 < 2;</script>Tee<style>p {}</style><!-- alt -->", "Tee"),
        ("&lt;p&gt;Kessel&lt;/p&gt;", "Kessel"),
        ("Wasser&shy;kocher &#8364; &#x20AC;", "Wasserkocher € €"),
        ('<a href="https://example.org/x?a=1&b=2">shop</a>', "shop"),
        ("<!DOCTYPE html><html><body>Tee</body></html>", "Tee"),
    ],
)
def test_markup_is_removed(text: str, words: str) -> None:
    assert plain_text(text).split() == words.split()


@pytest.mark.parametrize(
    "text",
    [
        *(
            "a < b",
            "AT&T",
            "R&D; more",
            "x<y>z",
            "1 <2> 3",
            "List<String>",
            "<ann@example.org>",
        ),
        *(
            "a <b and c",
            "&unknown; name",
            "5 & 6 > 4",
            "<3 you",
            "if (a<b && c>d)",
            "",
            "<",
            "&",
        ),
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert plain_text(text) == text


@given(st.text())
def test_texts_without_signs_stay(text: str) -> None:
    plain = text.replace("<", "").replace("&", "")
    assert plain_text(plain) is plain


def documents(folder: Path, form: str) -> Documents:
    ids = ["a", "b", "c"]
    path = folder / f"p.{form}"
    frame = pl.DataFrame({"sku": ids, "description": HTML})
    if form == "csv":
        frame.write_csv(path)
    elif form == "jsonl":
        frame.write_ndjson(path)
    elif form == "json":
        path.write_text(json.dumps(frame.to_dicts()))
    elif form == "parquet":
        frame.write_parquet(path)
    else:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE p (sku, description)")
            connection.executemany("INSERT INTO p VALUES (?, ?)", frame.rows())
        connection.close()
    return Documents(path)


@pytest.mark.parametrize("form", ["csv", "jsonl", "json", "parquet", "db"])
def test_documents_of_every_format(form: str, tmp_path: Path) -> None:
    lsi = LSI(2).fit(documents(tmp_path, form))
    assert lsi.query("Größe", 1)["document"].to_list() == ["a"]
    assert {"nbsp", "br", "div", "class", "szlig"}.isdisjoint(lsi.terms_)
    assert lsi.query("Gr&ouml;&szlig;e", 1)["document"].to_list() == ["a"]


def test_lists_and_added_documents() -> None:
    plain = LSI(2).fit(PLAIN)
    marked = LSI(2).fit(HTML)
    assert marked.terms_ == plain.terms_
    added = LSI(2).fit(PLAIN)
    added.add_documents(["<p>Topf<br>Gr&ouml;&szlig;e</p>"], ids=[9])
    assert 9 in added.query("Topf Größe", 4)["document"].to_list()


def test_features_of_items() -> None:
    words = ["Kessel Größe", "Kessel rot", "Topf Größe", "Topf rot schwarz"] * 3
    html = [
        f"<p>{word.replace(' ', '<br/>')}&nbsp;</p>".replace("ö", "&ouml;")
        for word in words
    ]
    plain, marked = (TextBlock.of(pl.Series("text", texts)) for texts in (words, html))
    assert marked.names == plain.names
    assert (marked.encode(html).rows != plain.encode(words).rows).nnz == 0


def test_queries_transformed_texts_and_eigenwords() -> None:
    lsi = LSI(2).fit(PLAIN)
    np.testing.assert_array_equal(lsi.transform(HTML), lsi.transform(PLAIN))
    queries = [lsi.query(texts[0], 3)["score"].to_list() for texts in (HTML, PLAIN)]
    assert queries[0] == queries[1]
    words = [Eigenwords(2).fit(texts * 5).terms_ for texts in (HTML, PLAIN)]
    assert [*words[0]] == [*words[1]]
