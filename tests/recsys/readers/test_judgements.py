"""Documents, queries and judgements of test collections, and pages of HTML."""

from __future__ import annotations

import polars as pl
import pytest
from workbooks import workbook

from recsys.errors import DataError
from recsys.readers.documents import Documents
from recsys.readers.judgements import read_judgements

SMART = """.I 1
.T
Tea
in China
.A
Wu, L.
.W
green leaves
.X
1 5 1
.I 2
.W
milk
"""
TREC = """<DOC>
<DOCNO> AP-1 </DOCNO>
<HEAD>Tea &amp; milk</HEAD>
<TEXT>
Green <b>leaves</b>.
</TEXT>
</DOC>
<DOC><DOCNO>AP-2</DOCNO> Bread </DOC>
"""
TOPICS = """<top>
<num> Number: 301
<title> green tea
<desc> Description:
Where does it grow?
</top>
<top>
<num> Number: 302
<title> milk
</top>
"""
BLOCKS = "1\ngreen tea\nleaves\n   /\n2\nmilk\n   /\n"


def read(path):
    documents = Documents(path)
    (batch,) = documents
    return batch.ids, batch.texts, batch.titles, documents.decision


def test_smart_records_have_titles_texts_and_authors(tmp_path):
    path = tmp_path / "col.all"
    path.write_text(SMART)
    ids, texts, titles, decision = read(path)
    assert ids == [1, 2]
    assert texts == ["green leaves\nWu, L.", "milk"]
    assert titles == ["Tea in China", None]
    assert decision == "col.all: SMART collection, ids are its own"


def test_trec_documents_and_topics(tmp_path):
    path = tmp_path / "ap"
    path.write_text(TREC)
    ids, texts, titles, _ = read(path)
    assert (ids, texts) == (["AP-1", "AP-2"], ["Green leaves .", "Bread"])
    assert titles == ["Tea & milk", None]
    path.write_text(TOPICS)
    assert read(path)[:2] == ([301, 302], ["green tea", "milk"])


def test_blocks_ended_by_a_slash(tmp_path):
    path = tmp_path / "doc-text"
    path.write_text(BLOCKS)
    assert read(path)[:2] == ([1, 2], ["green tea leaves", "milk"])


def test_a_folder_of_a_judged_collection_is_its_documents(tmp_path):
    (tmp_path / "docs.all").write_text(SMART * 1)
    (tmp_path / "queries").write_text(".I 1\n.W\ntea\n")
    (tmp_path / "qrels").write_text("1 0 1 1\n")
    ids, *_, decision = read(tmp_path)
    assert ids == [1, 2]
    assert decision.endswith(
        "docs.all: SMART collection, ids are its own; 2 other files of the folder left out"
    )
    (tmp_path / "corpus.jsonl").write_text(
        '{"_id": "d1", "title": "Tea", "text": "green"}\n'
    )
    ids, texts, titles, _ = read(tmp_path)
    assert (ids, texts, titles) == (["d1"], ["green"], ["Tea"])


def test_pages_of_html_have_no_tags_and_scripts(tmp_path):
    page = "<!DOCTYPE html><html><head><title>Hot tea</title><style>p {}</style></head>"
    (tmp_path / "tea.html").write_text(
        f"{page}<body><p>Green<br>leaves<script>x('milk')</script>"
    )
    (tmp_path / "part.htm").write_text("<p>Milk &amp; sugar")
    (tmp_path / "plain.txt").write_text("bread")
    ids, texts, titles, decision = read(tmp_path)
    assert (ids, texts, titles) == (
        ["part.htm", "plain.txt", "tea.html"],
        ["Milk & sugar", "bread", "Green leaves"],
        [None, None, "Hot tea"],
    )
    assert decision.endswith("2 pages of HTML without tags and scripts")
    assert read(tmp_path / "tea.html")[1] == ["Green leaves"]


@pytest.mark.parametrize(
    ("text", "pairs", "form"),
    [
        ("1 0 AP-1 1\n1 0 AP-2 0\n", [("1", "AP-1")], "TREC's columns"),
        ("1 184 2\n1 29 -1\n", [("1", "184")], "queries, documents, relevance"),
        (
            "     1     28\t0\t0.000000\n     1     35\t0\t0.000000\n",
            [("1", "28"), ("1", "35")],
            "zeros",
        ),
        ("1 28\n2 7\n", [("1", "28"), ("2", "7")], "queries and their documents"),
        (
            "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\n",
            [("q1", "d1")],
            "header",
        ),
        (
            "1\n 5  7\n 9\n/\n2\n 3\n/\n",
            [("1", "5"), ("1", "7"), ("1", "9"), ("2", "3")],
            "blocks",
        ),
    ],
    ids=["trec", "cranfield", "cisi", "pairs", "beir", "blocks"],
)
def test_forms_of_judgements(tmp_path, text, pairs, form):
    path = tmp_path / "qrels"
    path.write_text(text)
    found = read_judgements(path)
    assert found.relevant().rows() == pairs
    assert form in found.decision


JUDGED = pl.DataFrame(
    {
        "Doc_ID": ["a 1.html", "7", "8"],
        "split": ["test", "test", "test"],
        "query-id": [2, 2, 3],
        "score": [1.0, 0.0, 2.0],
    }
)


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "json", "parquet", "xlsx"])
def test_columns_are_chosen_by_their_names(tmp_path, form):
    path = tmp_path / f"qrels.{form}"
    if form == "xlsx":
        path.write_bytes(workbook({"qrels": [JUDGED.columns, *JUDGED.rows()]}))
    elif form in ("csv", "tsv"):
        JUDGED.write_csv(path, separator="," if form == "csv" else "\t")
    else:
        write = {"jsonl": "ndjson", "json": "json", "parquet": "parquet"}[form]
        getattr(JUDGED, f"write_{write}")(path)
    judgements = read_judgements(path)
    assert judgements.relevant().rows() == [("2", "a 1.html"), ("3", "8")]
    assert judgements.decision.endswith(": a table with a header")


def test_a_table_without_documents_names_its_columns(tmp_path):
    path = tmp_path / "qrels.parquet"
    JUDGED.drop("Doc_ID").write_parquet(path)
    with pytest.raises(DataError, match="its columns are split, query-id, score"):
        read_judgements(path)


def test_a_negative_relevance_is_never_relevant(tmp_path):
    path = tmp_path / "qrels"
    path.write_text("1 2 -1\n1 3 -2\n2 4 0\n")
    assert read_judgements(path).relevant().is_empty()


def test_judgements_that_cannot_be_read_are_named(tmp_path):
    path = tmp_path / "qrels"
    for text, message in (
        (
            "1 2 1\n1 2\n",
            "qrels, line 2: each judgement must have the same 2 to 4 fields",
        ),
        ("1 2 x\n", "qrels, line 1: the relevance must be a number; got 'x'"),
        (
            "1 2 1\n1 3 nan\n",
            "qrels, line 2: the relevance must be a number; got 'nan'",
        ),
        ("1 0 2 inf\n", "qrels, line 1: the relevance must be a number; got 'inf'"),
        (
            "1 0 2 0\n1 0 3 0\n",
            "qrels has no relevant document: no relevance is above 0",
        ),
        ("query-id\tcorpus-id\tscore\nq1\td1\t0\n", "qrels has no relevant document"),
        ("\n", "qrels has no judgements"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            read_judgements(path)


@pytest.mark.parametrize("head", ["", "topics passages grades\n"])
@pytest.mark.parametrize("grade", ["1", "1.0", "1e0"])
def test_reads_grades_in_any_form_of_numbers(tmp_path, head, grade):
    path = tmp_path / "qrels.txt"
    path.write_text(f"{head}q1 d1 {grade}\nq1 d2 0.0\nq2 d1 {grade}\n")
    judged = read_judgements(path)
    assert judged.frame.rows() == [("q1", "d1", 1), ("q1", "d2", 0), ("q2", "d1", 1)]
    assert ("header" in judged.decision) == bool(head)


def test_keeps_the_first_row_of_texts_without_grades(tmp_path):
    path = tmp_path / "qrels.txt"
    path.write_text("tea green\ntea black\nmilk oat\n")
    assert len(read_judgements(path).frame) == 3


def test_says_which_documents_are_judged_in_two_ways(tmp_path):
    path = tmp_path / "qrels.txt"
    path.write_text("q1 0 d1 0\nq1 0 d1 1\nq1 0 d2 1\nq1 0 d2 2\n")
    judged = read_judgements(path)
    assert judged.relevant()["document"].to_list() == ["d1", "d2"]
    assert "; 1 document judged both relevant and not, taken as relevant" in (
        judged.decision
    )
