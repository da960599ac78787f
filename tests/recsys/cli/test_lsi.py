"""`recsys lsi` from documents to answers."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

LINES = [
    "The nurse called the doctor",
    "The doctor left the hospital",
    "A nurse works in a hospital",
    "Batman drew in a notebook",
    "A notebook fell on Batman",
]


@pytest.fixture
def notes() -> Path:
    path = Path("notes.txt")
    path.write_text("".join(f"{line}\n" for line in LINES))
    return path


@pytest.fixture
def index(run, notes) -> str:
    run("lsi", "index", notes, "--out", "index", "-k", 2, "--quiet")
    return "index"


def rows(result):
    document = json.loads(result.stdout)
    assert document["schema"] == 1
    return document["rows"]


def test_dimensions_from_the_settings_file(run, notes):
    Path("recsys.toml").write_text("[lsi.index]\ndimensions = 2\n")
    assert " in 2 dimensions (" in run("lsi", "index", notes, "--out", "index").stderr


def test_an_index_goes_into_a_directory_that_is_there(run, notes):
    said = run("lsi", "index", notes, "--out", "none/index", code=1).stderr
    assert said.startswith(
        "Error: The index cannot be saved in none/index: there is no directory"
    )


def test_indexing_says_what_it_did(run, notes):
    result = run("lsi", "index", notes, "--out", "index")
    assert result.stdout == ""
    said = result.stderr.splitlines()
    assert said[0] == "notes.txt: one document per line, ids are line numbers"
    assert said[1].startswith(
        "indexed 5 documents and 13 words in 2 dimensions (default: a third"
    )
    assert said[1].endswith("saved in index")


def test_a_rule_chooses_the_dimensions(run, notes):
    said = run("lsi", "index", notes, "--out", "index", "-k", "elbow").stderr
    assert "dimensions (rule: elbow)" in said
    said = run(
        "lsi", "index", notes, "--out", "index", "-k", "knee", "--force", code=1
    ).stderr
    assert "one of 'elbow', 'energy" in said


def test_a_query_finds_what_does_not_have_the_word(run, index):
    result = run("lsi", "query", index, "doctor", "-n", 3, "--json")
    found = rows(result)
    assert {row["document"] for row in found} == {1, 2, 3}
    assert list(found[0]) == ["document", "rank", "score", "snippet"]
    assert json.loads(result.stdout)["query"] == "doctor"


@pytest.mark.filterwarnings("always::recsys.lsi.queries.UnknownTermWarning")
def test_unknown_words(run, index):
    result = run("lsi", "query", index, "doctor zebra hospitl", "-n", 1)
    expected = "Warning: Not in the index: zebra, hospitl (did you mean hospital?).\n"
    assert result.stderr == expected
    assert result.stdout.startswith("document,rank,score,snippet\n")
    result = run("lsi", "query", index, "zebra", code=1)
    assert result.stderr == "Error: No word of the query is in the index: zebra.\n"
    assert result.stdout == ""


def test_explanation(run, index):
    found = rows(run("lsi", "query", index, "nurse hospital", "--explain", 1, "--json"))
    assert {row["term"] for row in found} == {"nurse", "hospital", "(average document)"}
    score = rows(run("lsi", "query", index, "nurse hospital", "--json"))
    wanted = next(row["score"] for row in score if row["document"] == 1)
    assert sum(row["contribution"] for row in found) == pytest.approx(wanted, abs=1e-6)


def test_queries_from_a_file(run, index):
    Path("queries.txt").write_text("doctor\n\nnotebook\n")
    result = run(
        "lsi", "query", index, "--queries", "queries.txt", "-n", 1, "--output", "o.csv"
    )
    assert result.stderr == "queries.txt: one query per line, ids are line numbers\n"
    found = pl.read_csv("o.csv")
    assert found.columns == ["query", "document", "rank", "score", "snippet"]
    assert found["query"].to_list() == [1, 3]
    Path("queries.tsv").write_text("id\ttext\nq7\tdoctor\n")
    found = rows(
        run("lsi", "query", index, "--queries", "queries.tsv", "-n", 1, "--json")
    )
    assert found[0]["query"] == "q7"


def test_one_way_of_asking(run, index):
    for arguments in ([], ["doctor", "--queries", "notes.txt"]):
        said = run("lsi", "query", index, *arguments, code=2).stderr
        assert "TEXT or --queries." in said
    said = run(
        "lsi", "query", index, "--queries", "notes.txt", "--explain", "1", code=2
    ).stderr
    assert "--explain ID takes one TEXT" in said


def test_similar_words_and_documents(run, index):
    found = rows(run("lsi", "terms", index, "Batman", "notebook", "-n", 1, "--json"))
    assert [row["term"] for row in found] == ["batman", "notebook"]
    found = rows(run("lsi", "similar", index, "4", "-n", 1, "--json"))
    assert found[0]["similar"] == 5
    said = run("lsi", "terms", index, "nurze", code=1).stderr
    assert said == "Error: Unknown term 'nurze'; the nearest id is 'nurse'.\n"
    assert run("lsi", "similar", index, "44", code=1).stderr.startswith(
        "Error: Unknown document"
    )


@pytest.mark.parametrize("method", ["update", "fold-in"])
def test_adding(run, index, method):
    Path("more.txt").write_text("A doctor called a nurse at night\n")
    said = run("lsi", "add", index, "more.txt", "--method", method).stderr
    assert "more.txt: one document per line, ids are line numbers + 5\n" in said
    assert (
        f"added 1 document by {method}, saved in index; 2 new words without meaning"
        in said
    )
    found = rows(run("lsi", "query", index, "doctor", "-n", 6, "--json"))
    assert 6 in {row["document"] for row in found}
    facts = json.loads(run("lsi", "info", index, "--json").stdout)
    assert facts["training"]["documents"] == 6
    assert facts["training"]["added"] == 1
    assert (facts["training"]["orthogonality_loss"] > 1e-3) == (method == "fold-in")


def test_adding_to_another_place(run, index):
    run("lsi", "add", index, "notes.txt", "--out", "larger", "--quiet")
    assert (
        json.loads(run("lsi", "info", index, "--json").stdout)["training"]["documents"]
        == 5
    )
    assert (
        json.loads(run("lsi", "info", "larger", "--json").stdout)["training"][
            "documents"
        ]
        == 10
    )


def test_an_index_in_the_way_is_kept_without_force(run, index):
    before = Path(index, "model.json").read_bytes()
    said = run("lsi", "index", "notes.txt", "--out", index, code=1).stderr
    assert "cannot be saved in index: there is a saved index already" in said
    assert Path(index, "model.json").read_bytes() == before
    run("lsi", "index", "notes.txt", "--out", index, "--force")
    said = run("lsi", "index", "notes.txt", "--out", "notes.txt", code=1).stderr
    assert "notes.txt: it exists and is not a saved index" in said


def test_bad_input_leaves_nothing_behind(run):
    Path("broken.txt").write_bytes(b"tea\ncaf\xe9\n")
    said = run("lsi", "index", "broken.txt", "--out", "index", code=1).stderr
    assert said.startswith("Error: broken.txt, line 2: byte 0xe9")
    assert not Path("index").exists()
    said = run("lsi", "index", "brokn.txt", "--out", "index", code=1).stderr
    assert "There is no file or directory brokn.txt. Did you mean broken.txt?" in said


def test_models_and_indexes_are_not_mistaken_for_each_other(run, index, model):
    said = run("lsi", "query", model, "tea", code=1).stderr
    assert (
        "is not a saved index: it is a saved model of ratings; see `recsys info`"
        in said
    )
    said = run("recommend", index, "--user", 1, code=1).stderr
    assert (
        "is not a saved model: it is an index of texts; see `recsys lsi info`" in said
    )
    assert (
        "it is a file, and a saved index is a directory"
        in run("lsi", "query", "notes.txt", "tea", code=1).stderr
    )


def test_a_table_with_other_columns(run):
    Path("notes.csv").write_text("nr,what\n7,tea and milk\n8,bread\n")
    said = run("lsi", "index", "notes.csv", "--out", "index", code=1).stderr
    assert "no column that is evidently the text; it has nr, what" in said
    said = run(
        "lsi",
        "index",
        "notes.csv",
        "--out",
        "index",
        "--text-col",
        "what",
        "--id-col",
        "nr",
    ).stderr
    assert "notes.csv: comma-separated, text = what, id = nr" in said
    assert rows(run("lsi", "query", "index", "milk", "--json"))[0]["document"] == "7"


def test_scree_of_an_index(run, index):
    found = rows(run("lsi", "scree", index, "--json", "--plot", "scree.png"))
    assert [row["rank"] for row in found] == [1, 2]
    assert found[0]["singular_value"] > found[1]["singular_value"] > 0
    assert 0 < found[0]["energy"] < found[1]["cumulative"] < 1
    assert Path("scree.png").read_bytes().startswith(b"\x89PNG")
    assert "2 dimensions keep" in run("lsi", "scree", index).stderr
    said = run("lsi", "scree", index, "--plot", "scree.xls", code=2).stderr
    assert "--plot must end in .png, .svg or .pdf" in said


@pytest.mark.filterwarnings("always::recsys.lsi.queries.UnknownTermWarning")
def test_of_many_queries_those_without_a_known_word_stop_no_others(run, index):
    message = "Not in the index: zebra, xylophone. 2 queries have no known word"
    Path("asked.txt").write_text("doctor\n" * 1000 + "zebra\n" + "xylophone\n")
    result = run("lsi", "query", index, "--queries", "asked.txt", "-n", 1, "--json")
    assert len(rows(result)) == 1000
    assert message in result.stderr
    Path("asked.txt").write_text("zebra\nxylophone\n")
    result = run("lsi", "query", index, "--queries", "asked.txt", "--json")
    assert rows(result) == []
    assert message in result.stderr


def test_words_are_asked_for_as_they_are_typed(run, index):
    from recsys import LSI

    expected = rows(run("lsi", "terms", index, "doctor", "-n", 2, "--json"))
    assert rows(run("lsi", "terms", index, "DOCTOR", "-n", 2, "--json")) == expected
    LSI(2).fit([[1, 0], [1, 2]], vocabulary=["DNA", "heat"]).save("genes")
    found = rows(run("lsi", "terms", "genes", "DNA", "-n", 1, "--json"))
    assert [row["term"] for row in found] == ["DNA"]


def test_counts_of_one_are_in_the_singular(run):
    Path("one.txt").write_text("tea\n")
    said = run("lsi", "index", "one.txt", "--out", "one").stderr
    assert "indexed 1 document and 1 word in 1 dimension (" in said


def test_half_a_character_in_a_query_is_one_sentence(run, index):
    said = run("lsi", "query", index, "caf\udce9", code=1).stderr
    assert said.startswith("Error: Query 0 (from 0) must be valid Unicode")


def test_an_index_is_measured_on_judged_queries(run):
    Path("docs").write_text(
        "".join(f".I {i}\n.W\n{line}\n" for i, line in enumerate(LINES, 1))
    )
    Path("queries").write_text(".I 1\n.W\nnurse\n.I 2\n.W\nBatman\n")
    Path("qrels").write_text("1 0 1 1\n1 0 3 1\n2 0 4 1\n2 0 9 1\n")
    run("lsi", "index", "docs", "--out", "index", "-k", 2, "--quiet")
    how = ("--queries", "queries", "--judgements", "qrels")
    result = run("lsi", "evaluate", "index", *how, "--json", "--per-query", "each.csv")
    document = json.loads(result.stdout)
    assert document["counts"] == {"queries": 2, "documents": 5, "judgements": 4}
    assert {row["method"] for row in document["metrics"]} == {"hybrid", "lsi", "bm25"}
    assert "1 relevant document outside of the index" in result.stderr
    assert pl.read_csv("each.csv").height == 6
    late = run("lsi", "evaluate", "no", *how, "--per-query", "no/each.csv", code=1)
    assert "there is no directory no" in late.stderr  # before the index is read
    table = run(
        "lsi", "evaluate", "index", *how, "--method", "bm25", "--format", "table"
    ).stdout
    assert "recall@100" in table
    assert "interval over queries" in table


def test_parts_of_scores_and_removal(run, index):
    found = rows(run("lsi", "query", index, "nurse", "--explain", "--json"))
    assert found[0]["words"] + found[0]["meaning"] == pytest.approx(
        found[0]["score"], abs=1e-5
    )
    assert found[0]["matched"] == "nurse"
    said = run("lsi", "remove", index, 1, 4).stderr
    assert said == "removed 2 documents, saved in index; 3 documents left\n"
    Path("new.csv").write_text("id,text\n2,A doctor drew\n9,A nurse drew\n")
    assert (
        "added 2 documents by fold-in (1 replaced)"
        in run("lsi", "add", index, "new.csv", "--replace").stderr
    )
    assert len(rows(run("lsi", "query", index, "doctor", "--json"))) <= 4


def test_a_folder_in_the_layout_of_beir_has_queries_and_judgements(run):
    Path("beir/qrels").mkdir(parents=True)
    lines = [
        {"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(LINES)
    ]
    Path("beir/corpus.jsonl").write_text("\n".join(map(json.dumps, lines)))
    Path("beir/queries.jsonl").write_text('{"_id": "q", "text": "drew Batman"}\n')
    Path("beir/qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td3\t1\n")
    run("lsi", "index", "beir", "--out", "index", "--quiet")
    found = run(
        "lsi",
        "evaluate",
        "index",
        "--queries",
        "beir",
        "--judgements",
        "beir",
        "--json",
    )
    metrics = json.loads(found.stdout)["metrics"]
    assert {row["value"] for row in metrics if row["method"] == "hybrid"} >= {1.0}
