"""Documents from files of every kind, and what is wrong with some."""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc
import zipfile
from itertools import chain

import polars as pl
import pytest
from workbooks import workbook

from recsys.errors import DataError
from recsys.lsi import LSI, DocumentBatch, Documents
from recsys.readers.delimited import separator_name

ROWS = [
    {"key": "a", "headline": "Ice", "body": "Salt melts ice."},
    {"key": "b", "body": "Tea"},
]


def read(path, **settings):
    documents = Documents(path, **settings)
    batches = list(documents)
    ids = list(chain.from_iterable(batch.ids for batch in batches))
    texts = list(chain.from_iterable(batch.texts for batch in batches))
    return ids, texts, documents.decision


RECBOLE = "item_id:token\tmovie_title:token_seq\tclass:token_seq\n"


def rejected(path, message, **settings):
    with pytest.raises(DataError, match=message):
        list(Documents(path, **settings))


def test_one_document_per_line(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("\ufeffSalt melts ice.\n\n  Tea\n")
    assert read(path)[:2] == ([1, 3], ["Salt melts ice.", "Tea"])
    assert read(path)[2] == "notes.txt: one document per line, ids are line numbers"
    assert read(path, after=10)[0] == [11, 13]


def test_a_directory_of_texts(tmp_path):
    folder = tmp_path / "notes"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("Salt\nmelts")
    (folder / "sub" / "b").write_text("Tea")
    (folder / ".hidden").write_text("no")
    (folder / "c.txt.gz").write_bytes(gzip.compress(b"Packed"))
    (folder / "x.png").write_bytes(b"\x89PNG\0\0")
    ids, texts, decision = read(folder)
    assert ids == ["a.txt", "c.txt.gz", "sub/b"]
    assert texts == ["Salt\nmelts", "Packed", "Tea"]
    assert decision.endswith("ids are file names; 1 binary file left out (x.png)")


def write_csv(path, rows):
    pl.DataFrame(rows).write_csv(path)


def write_tsv(path, rows):
    pl.DataFrame(rows).write_csv(path, separator="\t")


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_parquet(path, rows):
    pl.DataFrame(rows).write_parquet(path)


TABLES = {
    "csv": write_csv,
    "tsv": write_tsv,
    "jsonl": write_jsonl,
    "parquet": write_parquet,
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables(tmp_path, kind):
    path = tmp_path / f"notes.{kind}"
    TABLES[kind](path, ROWS)
    documents = Documents(path)
    (batch,) = documents
    assert batch.ids == ["a", "b"]
    assert batch.texts == ["Salt melts ice.", "Tea"]
    assert batch.titles[0] == "Ice"
    assert not batch.titles[1]
    assert documents.decision.endswith("text = body, id = key, title = headline")


def test_columns_can_be_named(tmp_path):
    path = tmp_path / "notes.csv"
    path.write_text('number,what,who\n7,"Salt\nmelts ""ice""",me\n9,Tea,you\n')
    assert read(path, text_col="what", id_col="number")[:2] == (
        ["7", "9"],
        ['Salt\nmelts "ice"', "Tea"],
    )
    assert read(path, text_col="what")[0] == [2, 4]
    rejected(
        path,
        "has no column that is evidently the text; it has number, what, who. Name it ",
    )
    rejected(path, "has no column 'wath'; it has number, what, who", text_col="wath")


def test_a_text_longer_than_csv_expects(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("text\n" + "word " * 50_000 + "\n")
    assert len(read(path)[1][0]) == 250_000


def test_missing_texts_are_empty_and_missing_ids_an_error(tmp_path):
    path = tmp_path / "notes.jsonl"
    path.write_text('{"id": 1, "text": null}\n{"id": 2, "text": 5}\n')
    assert read(path)[:2] == ([1, 2], ["", "5"])
    path.write_text('{"id": 1, "text": "a"}\n{"text": "b"}\n')
    rejected(path, "notes.jsonl, line 2: the id is missing")


def test_many_documents_come_in_batches(tmp_path):
    path = tmp_path / "many.txt"
    path.write_text("".join(f"word{i}\n" for i in range(2500)))
    assert [len(batch.ids) for batch in Documents(path)] == [1000, 1000, 500]
    assert len(LSI(2).fit(Documents(path)).documents_) == 2500


def test_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Salt\nTea\n")))
    assert read("-")[:2] == ([1, 2], ["Salt", "Tea"])


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("a.txt", b"", "a.txt has no documents"),
        ("a.txt", b"ok\ncaf\xe9\n", "a.txt, line 2: byte 0xe9 .* not valid UTF-8"),
        ("a.txt", b"GIF8\0\0", "a.txt is a binary file, not text"),
        (
            "a.csv",
            b"id,text\n1,tea\n2\n",
            "a.csv, line 3: 1 fields, and the header has 2",
        ),
        ("a.csv", b'id,text\n1,"tea\n', "a.csv, line 2: the quotes don't match"),
        ("a.jsonl", b'{"text": "tea"}\n{"text"\n', "a.jsonl, line 2: not JSON"),
        (
            "a.jsonl",
            b'{"text": "tea"}\n[1]\n',
            "line 2: expected a JSON object; got '.1.'",
        ),
        (
            "a.trec",
            b"<DOC>\n<DOCNO>1</DOCNO>",
            "a.trec, line 1: the document is not closed by </DOC>",
        ),
        (
            "a.trec",
            b"<DOC>\ntea\n</DOC>",
            "a.trec, line 1: the document has no <DOCNO>",
        ),
        (
            "a.jsonl",
            b'{"text": "\\ud83d"}',
            r"a.jsonl, line 1: \\ud83d is half of a character",
        ),
        (
            "a.jsonl",
            b'{"text": ["tea"]}',
            "a.jsonl, line 1: the text must be a text; got list",
        ),
        (
            "a.jsonl",
            b'{"id": {}, "text": "tea"}',
            "line 1: the id must be a text; got dict",
        ),
        ("a.csv", b"text,text\ntea,milk\n", "a.csv has 2 columns named 'text'"),
        ("a.parquet", b"tea", "not a Parquet file, or damaged"),
        ("a.parquet", b"PAR1tea", "damaged Parquet file"),
        ("a.txt.gz", b"\x1f\x8b\x08broken", "a.txt.gz is damaged"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, name, contents, message):
    path = tmp_path / name
    path.write_bytes(contents)
    if name == "a.txt" and not contents:
        message = "has no documents"
    rejected(path, message)


@pytest.mark.parametrize("separator", [";", "|", "\t"])
def test_the_separator_is_that_of_the_header(tmp_path, separator):
    path = tmp_path / "a.csv"
    lines = [f"id{separator}text", f"1{separator}salt, ice", f'2{separator}"tea"', ""]
    path.write_bytes("\r\n".join(lines).encode())
    ids, texts, decision = read(path)
    assert (ids, texts) == (["1", "2"], ["salt, ice", "tea"])
    assert separator_name(separator) in decision


def test_rows_of_parquet_are_named_as_rows(tmp_path):
    path = tmp_path / "a.parquet"
    pl.DataFrame({"id": [1, None], "text": ["a", "b"]}).write_parquet(path)
    rejected(path, "a.parquet, row 2: the id is missing")
    pl.DataFrame({"text": [b"tea"]}).write_parquet(path)
    rejected(path, "a.parquet, row 1: the text must be a text; got bytes")


def archive(path, *names):
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(name, "salt melts ice")
    return path


def test_a_first_line_with_usual_names_is_a_header_whatever_the_suffix(tmp_path):
    path = tmp_path / "notes"
    path.write_text("ID;Text\n7;salt, and ice\n8;tea\n")
    assert read(path)[:2] == (["7", "8"], ["salt, and ice", "tea"])
    path.write_text("The text, and its title\nsalt, and ice\n")
    assert len(read(path)[0]) == 2


def test_a_directory_of_tables_is_one_table(tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "a.csv").write_text("id,text\nx,salt\ny,tea\n")
    pl.DataFrame({"id": ["z"], "text": ["milk"]}).write_parquet(folder / "b.parquet")
    ids, texts, decision = read(folder)
    assert (ids, texts) == (["x", "y", "z"], ["salt", "tea", "milk"])
    assert decision == "parts/ (2 tables): Parquet, text = text, id = id"
    (folder / "c.txt").write_text("bread")
    assert read(folder)[0] == ["a.csv", "c.txt"]


def test_numbers_of_ids_are_integers_or_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    frame = pl.DataFrame({"id": [7.0, 8.0], "text": ["a", "b"]})
    frame.write_parquet(path)
    assert read(path)[0] == [7, 8]
    for wrong in (7.5, 1e17, float("nan")):
        frame.with_columns(id=pl.lit(wrong)).write_parquet(path)
        rejected(path, r"a\.parquet, row 1: document id")


def test_archives(tmp_path):
    """A document of an office program is one; it is no text, and no ratings file is missed."""
    rejected(
        archive(tmp_path / "a.docx", "one.xml", "two.xml"),
        "a.docx is an archive of 2 files",
    )
    assert read(archive(tmp_path / "a.zip", "one.txt"))[1] == ["salt melts ice"]
    (tmp_path / "b.txt").write_text("tea")
    ids, _, decision = read(tmp_path)
    assert ids == ["b.txt"]
    assert decision.endswith("2 binary files left out (a.docx, a.zip)")


def test_a_workbook_is_a_table_of_documents(tmp_path):
    path = tmp_path / "notes.xlsx"
    rows = [["id", "text"], [7, "salt melts ice"], [8, "tea"]]
    path.write_bytes(workbook({"notes": rows}))
    ids, texts, decision = read(path)
    assert (ids, texts) == ([7, 8], ["salt melts ice", "tea"])
    assert decision == "notes.xlsx::notes: Excel, text = text, id = id"


def test_a_text_in_utf_16_among_others_says_so_itself(tmp_path):
    (tmp_path / "a.txt").write_bytes("café".encode("utf-16"))
    (tmp_path / "b.txt").write_bytes("\ufeffthé\r\nlait".encode())
    assert read(tmp_path)[1] == ["café", "thé\r\nlait"]


def test_directories_without_texts(tmp_path):
    rejected(tmp_path, "has no documents")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "notes").write_text("hidden")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "round").symlink_to(tmp_path)
    rejected(tmp_path, "has no documents")


def test_another_encoding(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("café\n".encode("latin-1"))
    assert read(path, encoding="latin-1")[1] == ["café"]


def test_a_directory_with_a_broken_text_names_it(tmp_path):
    (tmp_path / "b.txt").write_bytes(b"caf\xe9")
    rejected(tmp_path, r"/b\.txt, line 1: byte 0xe9")


def test_columns_of_what_has_none_are_rejected(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("tea\n")
    rejected(
        path,
        "one document per line: it begins without a column 'text'",
        text_col="text",
    )


def test_memory_does_not_grow_with_the_text():
    """Four megabytes of a hundred words: the counts are kept, the texts are not."""
    text = " ".join(f"word{i:02}" for i in range(100)) * 25 + " "
    batches = (DocumentBatch([i], [text * 5]) for i in range(50))
    LSI(2).fit(["tea milk", "milk bread"])  # what is imported on the way
    tracemalloc.start()
    try:
        LSI(2, "count").fit(batches)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50 * len(text * 5) / 2


def test_names_a_damaged_archive(tmp_path):
    path = tmp_path / "x.zip"
    path.write_bytes(b"PK\x03\x04 and nothing that follows")
    rejected(path, r"^x\.zip is damaged: file is not a zip file\.$")


def test_blank_rows_are_passed_over_and_counted(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("id,text\na,Salt\n,\n\nb,Ice\n")
    assert read(path)[:2] == (["a", "b"], ["Salt", "Ice"])
    path.write_text("id,text\na,Salt\n,\n\nb\n")
    rejected(path, "line 5: 1 fields, and the header has 2")
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "Salt"}\n\n  \n{"text": "Ice"}\n')
    assert read(path)[:2] == ([1, 4], ["Salt", "Ice"])


def test_an_empty_table(tmp_path):
    path = tmp_path / "x.csv"
    path.touch()
    rejected(path, r"^x\.csv is empty\.$")
    (tmp_path / "x.jsonl").write_text("\n")
    rejected(tmp_path / "x.jsonl", r"^x\.jsonl is empty\.$")


def test_parquet_that_is_damaged_within(tmp_path):
    path = tmp_path / "x.parquet"
    pl.DataFrame({"text": [f"text {i}" for i in range(3000)]}).write_parquet(path)
    raw = bytearray(path.read_bytes())
    raw[4:60] = b"\xff" * 56
    path.write_bytes(raw)
    rejected(path, "x.parquet is a damaged Parquet file: ")


def test_a_batch_is_not_longer_than_it_may_be(monkeypatch):
    from recsys.readers import documents

    monkeypatch.setattr(documents, "_BATCH_LENGTH", 10)
    stream = [
        documents.Document(i, text)
        for i, text in enumerate(["12345"] * 3 + ["x" * 30, "y"])
    ]
    batches = [batch.texts for batch in documents.batches_of(stream)]
    assert batches == [["12345"] * 2, ["12345", "x" * 30], ["y"]]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_items_are_the_ids_if_no_two_rows_have_the_same(tmp_path, suffix):
    def ids_of(skus):
        frame = pl.DataFrame(
            {"sku": skus, "name": ["b", "b"], "description": ["c", "d"]}
        )
        write = {"csv": frame.write_csv, "jsonl": frame.write_ndjson}
        path = tmp_path / f"products.{suffix}"
        write.get(suffix, frame.write_parquet)(path)
        ids, _, decision = read(path)
        return ids, decision

    ids, decision = ids_of(["A-1", "A-2"])
    assert ids == ["A-1", "A-2"]
    assert "id = sku" in decision
    for skus in (["A-1", "A-1"], ["A-1", None]):
        ids, decision = ids_of(skus)
        assert ids in ([1, 2], [2, 3])  # a table has a header
        assert "numbers" in decision


@pytest.mark.parametrize("column", ["movie_title", "movie_title:token_seq"])
def test_a_table_of_recbole(tmp_path, column):
    path = tmp_path / "films.item"
    path.write_text(f"{RECBOLE}7\tToy Story\tAnimation Comedy\n9\tHeat\tCrime\n")
    ids, texts, decision = read(path, text_col=column)
    assert (ids, texts) == (["7", "9"], ["Toy Story", "Heat"])
    assert decision == "films.item: tab-separated, text = movie_title, id = item_id"
    rejected(
        path, "no column that is evidently the text; it has item_id, movie_title, class"
    )


def test_named_columns_are_found_in_files_of_any_suffix(tmp_path):
    path = tmp_path / "films.txt"
    path.write_text("\nnr|plot|genre\n7|Toys, alive, quarrel.|Animation\n")
    assert read(path, text_col="plot", id_col="nr")[:2] == (
        ["7"],
        ["Toys, alive, quarrel."],
    )
    assert read(path)[2] == "films.txt: one document per line, ids are line numbers"
    rejected(
        path,
        "one document per line: it begins without a column 'story'",
        text_col="story",
    )
