"""recommend for new users, explain, update and impute."""

from __future__ import annotations

import io
import json
import os
import subprocess
from pathlib import Path

import polars as pl
import pytest

from recsys import Recommender, read_ratings


def table(result):
    return pl.read_csv(io.StringIO(result.stdout))


@pytest.fixture(scope="module")
def loaded(model):
    return Recommender.load(model)


@pytest.fixture(scope="module")
def contacts(ratings, tmp_path_factory):
    path = tmp_path_factory.mktemp("contacts") / "model"
    found = read_ratings(ratings, implicit=True)
    Recommender("popular").fit(found).save(path)
    return path


@pytest.fixture(scope="module")
def renamed(ratings, tmp_path_factory):
    """A model that remembers odd names of columns, and a way of writing times."""
    folder = tmp_path_factory.mktemp("renamed")
    names = {
        "userId": "Kunde",
        "movieId": "Artikel",
        "rating": "Note",
        "timestamp": "Wann",
    }
    frame = pl.read_csv(ratings / "ratings.csv").rename(names)
    frame = frame.with_columns(pl.from_epoch("Wann").dt.strftime("%m/%d/%Y %H:%M"))
    frame.write_csv(folder / "noten.csv", separator=";")
    columns = {
        "user": "Kunde",
        "item": "Artikel",
        "rating": "Note",
        "timestamp": "Wann",
    }
    found = read_ratings(folder / "noten.csv", **columns, time_format="%m/%d/%Y %H:%M")
    Recommender("bayes", factors=2).fit(found).save(folder / "model")
    return folder / "model"


def test_the_columns_of_a_model_count_in_every_file(run, renamed, tmp_path):
    def predictions(text, code=0):
        (tmp_path / "pairs.csv").write_text(text)
        return run("predict", renamed, tmp_path / "pairs.csv", code=code)

    found = table(predictions("Kunde;Artikel;Wann\n1;101;09/09/2001 01:50\n"))
    assert found.rows()[0][:2] == (1, 101)
    assert table(predictions("user;item\n1;101\n"))["prediction"].len() == 1
    assert (
        "and no item column" in predictions("Kunden;Artikeln\n1;101\n", code=1).stderr
    )

    def items(*args):
        return table(run("recommend", renamed, "-n", 30, *args))["item"].to_list()

    (tmp_path / "pairs.csv").write_text("Kunde;Artikel\n1;101\n1;102\n")
    (tmp_path / "list.csv").write_text("Artikel\n101\n102\n")
    (tmp_path / "rated.csv").write_text("Kunde;Artikel;Note\n99;101;5\n99;102;1\n")
    (tmp_path / "liked.csv").write_text("Artikel;Note\n101;5\n")
    for block in ("pairs.csv", "list.csv"):
        blocked = items("--user", 1, "--include-seen", "--block", tmp_path / block)
        assert set(range(100, 130)) - set(blocked) == {101, 102}
    assert set(
        items("--user", 1, "--include-seen", "--items", tmp_path / "list.csv")
    ) == {101, 102}
    for history, n in [("rated.csv", 28), ("list.csv", 28), ("liked.csv", 29)]:
        assert len(items("--history", tmp_path / history)) == n


# New users


def test_like_and_rate(run, model, loaded):
    given = ["--like", "film 3,", "--rate", "Film 4=2.5", "--rate", "105=4"]
    result = run("recommend", model, *given, "-n", 4)
    expected = loaded.recommend(history={103: 5.0, 104: 2.5, 105: 4.0}, n=4)
    assert table(result)["item"].to_list() == expected["item"].to_list()
    assert table(result)["user"].to_list() == ["new"] * 4
    assert result.stderr == ""


def test_like_for_a_model_of_contacts(run, contacts):
    found = table(run("recommend", contacts, "--like", "101", "-n", 30))
    assert len(found) == 29
    said = run("recommend", contacts, "--rate", "101=4", code=1).stderr
    assert "The model is fitted to implicit feedback; use --like, not --rate." in said


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (
            ["--like", "Film 1"],
            1,
            "11 titles match 'Film 1'; use one of their ids instead:",
        ),
        (
            ["--like", "Filn 7, The [7] (1999)"],
            1,
            "Did you mean Film 7, The [7] (1999) or",
        ),
        (
            ["--rate", "Film 7"],
            2,
            "--rate takes TITLE=X with a number X; got 'Film 7'.",
        ),
        (["--rate", "=3"], 2, "--rate takes TITLE=X"),
        (["--rate", "107=nan"], 2, "--rate takes TITLE=X"),
        (["--rate", "107=9"], 1, "--rate '107=9': the ratings are between 1 and 5."),
        (
            ["--like", "107", "--rate", "Film 7,=3"],
            1,
            "Item 107 is liked or rated twice",
        ),
        (
            ["--like", "107", "--at-most", "2"],
            2,
            "--at-most and --per go together: --at-most 2 --per genres.",
        ),
        (
            ["--like", "107", "--user", "1"],
            2,
            "Give only one of --user, --users, --all, --history or --like/--rate/--user-features.",
        ),
        (
            [],
            2,
            "Choose the users: --user, --users, --all, --history or --like/--rate/--user-features.",
        ),
        (["--history", "none.csv"], 1, "There is no file or directory none.csv."),
    ],
)
def test_new_users_that_cannot_be_understood(run, model, args, code, message):
    assert message in run("recommend", model, *args, code=code).stderr


def test_likes_need_titles_or_ids(run):
    Path("x.csv").write_text("user,item,rating\n1,7,3\n1,8,4\n2,7,5\n")
    said = run("recommend", "x.csv", "--model", "als", "--like", "Alien", code=1).stderr
    assert "Unknown item 'Alien'" in said
    found = table(run("recommend", "x.csv", "--model", "als", "--like", "7"))
    assert found["item"].to_list() == [8]


def test_an_id_that_is_also_a_title_is_ambiguous(run):
    Path("d").mkdir()
    Path("d/ratings.csv").write_text("userId,movieId,rating\n1,300,3\n1,8,4\n2,8,5\n")
    Path("d/movies.csv").write_text("movieId,title,genres\n300,Alien,\n8,300,\n")
    said = run("recommend", "d", "--like", "300", code=1).stderr
    assert (
        "2 titles match '300'; use one of their ids instead:\n  8  300\n  300  Alien"
        in said
    )


HISTORY = "user,item,rating\nx,103,5\nx,104,2.5\ny,105,4\n"


def test_history_of_several_users(run, model, loaded):
    Path("h.csv").write_text(HISTORY)
    found = table(run("recommend", model, "--history", "h.csv", "-n", 3))
    expected = loaded.recommend(history=pl.read_csv("h.csv"), n=3)
    assert found.select("user", "item").rows() == expected.select("user", "item").rows()
    pl.read_csv("h.csv").write_parquet("h.parquet")
    again = table(run("recommend", model, "--history", "h.parquet", "-n", 3))
    assert again.equals(found)


def test_a_history_that_does_not_count_is_said(run):
    rows = [
        f"u{n % 20},{n % 9},{1 + n % 3},2025-06-{1 + n % 28:02d}" for n in range(200)
    ]
    header = "user,item,weight,time"
    Path("plays.csv").write_text("\n".join([header, *rows]))
    options = ("--weight-col", "weight", "--half-life", "10d")
    run("fit", "plays.csv", *options, "--model", "popular", "--out", "plays")
    Path("h.csv").write_text(f"{header}\na,1,-1,2025-06-20\nb,1,1,1999-06-20\n")
    said = run("recommend", "plays", "--history", "h.csv").stderr
    assert "h.csv: 1 user without interactions that count" in said
    assert "1 user has only interactions older than 100 days" in said


def test_an_update_names_a_weight_that_outweighs_all_others(run):
    rows = "".join(f"u{n % 20},{n % 9},{1 + n % 3}\n" for n in range(200))
    Path("plays.csv").write_text(f"user,item,weight\n{rows}")
    run("fit", "plays.csv", "--weight-col", "weight", "--model", "popular", "-o", "m")
    Path("new.csv").write_text("user,item,weight\nu1,5,1e30\n")
    said = run("update", "m", "new.csv", "--dry-run").stderr
    assert "the pair of user 'u1' and item 5 has 100% of all weights (1e+30)" in said


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("h.csv", "item,rating\n103,5\n104,2.5\n"),
        ("h.tsv", "rating\tmovieId\n5\t103\n2.5\t104\n"),
        ("h.csv", "item;rating\n103;5\n104;2,5\n"),
        ("h.parquet", None),
    ],
)
def test_history_of_one_user_needs_no_user_column(run, model, loaded, name, content):
    if content is None:
        pl.DataFrame({"item": [103, 104], "rating": [5.0, 2.5]}).write_parquet(name)
    else:
        Path(name).write_text(content)
    found = table(run("recommend", model, "--history", name, "-n", 3))
    expected = loaded.recommend(history={103: 5, 104: 2.5}, n=3)
    assert found.select("user", "item").rows() == expected.select("user", "item").rows()


def test_a_ragged_history_is_one_sentence(run, model):
    Path("h.csv").write_text("item,rating\n103,5,1,1\n")
    said = run("recommend", model, "--history", "h.csv", code=1).stderr
    assert said.startswith("Error: h.csv")
    assert said.count("\n") == 1


@pytest.mark.parametrize("name", ["h.parquet", "h.csv"])
def test_rejects_a_history_that_is_not_a_table(run, model, name):
    Path(name).write_bytes(b"\xff\xfe\x00\xd8 no text")
    said = run("recommend", model, "--history", name, code=1).stderr
    assert said.startswith("Error: ")
    assert name in said


def test_likes_count_as_the_best_rating_even_if_it_is_zero(run):
    Path("x.csv").write_text("user,item,rating\n1,7,-3\n1,8,-1\n2,7,0\n2,9,-2\n")
    run("fit", "x.csv", "--out", "m", "--model", "bias")
    found = table(run("recommend", "m", "--like", "7", "--format", "csv"))
    expected = Recommender.load("m").recommend(history={7: 0.0})
    assert found["score"].to_list() == pytest.approx(
        expected["score"].to_list(), rel=1e-5
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("u.data", "1\t103\t5\t881250949\n1\t104\t2.5\t881250949\n"),
        ("ratings.dat", "1::103::5::881250949\n1::104::2.5::881250949\n"),
        (
            "h.jsonl",
            '{"user": 1, "item": 103, "rating": 5}\n{"user": 1, "item": 104, "rating": 2.5}\n',
        ),
    ],
)
def test_history_in_the_layouts_of_ratings(run, model, loaded, name, content):
    Path(name).write_text(content)
    found = table(run("recommend", model, "--history", name, "-n", 3))
    expected = loaded.recommend(history={103: 5.0, 104: 2.5}, n=3)
    assert found["item"].to_list() == expected["item"].to_list()
    assert found["user"].to_list() == [1, 1, 1]


def test_history_of_contacts_in_lightgcn_lines(run, contacts):
    Path("train.txt").write_text("0 103 104\n1 105\n")
    found = table(run("recommend", contacts, "--history", "train.txt", "-n", 40))
    assert found.filter(pl.col("user") == 0).height == 28
    assert found.filter(pl.col("user") == 1).height == 29


def test_history_without_ratings_is_what_was_liked(run, model, loaded):
    Path("liked.txt").write_text("103\n105\n999\n")
    result = run("recommend", model, "--history", "liked.txt", "-n", 3)
    expected = loaded.recommend(history={103: 5.0, 105: 5.0}, n=3)
    assert table(result)["item"].to_list() == expected["item"].to_list()
    assert "liked.txt: 1 of 3 rows are of unknown items, ignored" in result.stderr
    assert "its items are treated as liked, with a rating of 5" in result.stderr


def test_repeated_pairs_of_a_history_are_counted(run, model, loaded):
    Path("h.csv").write_text("item,rating\n103,1\n104,2.5\n103,5\n")
    result = run("recommend", model, "--history", "h.csv", "-n", 3)
    assert "h.csv: 1 duplicate (last kept)" in result.stderr
    expected = loaded.recommend(history={103: 5.0, 104: 2.5}, n=3)
    assert table(result)["item"].to_list() == expected["item"].to_list()


def test_bad_histories(run, model):
    Path("unknown.csv").write_text("item,rating\n1,5\n")
    assert (
        "Unknown item 1"
        in run("recommend", model, "--history", "unknown.csv", code=1).stderr
    )
    Path("text.csv").write_text("item,rating\n103,good\n")
    said = run("recommend", model, "--history", "text.csv", code=1).stderr
    assert "rating 'good' is not a number" in said
    Path("ragged.csv").write_text("item,rating\n103,5,6,7\n")
    said = run("recommend", model, "--history", "ragged.csv", code=1).stderr
    assert "ragged.csv, line 2: found 4 fields, expected 2" in said


# Candidates


@pytest.mark.parametrize("text", ["", "\n", "item\n", "item,note\n", "user,item\n"])
def test_a_list_may_block_nothing_but_others_need_ids(run, model, tmp_path, text):
    (tmp_path / "list.csv").write_text(text)
    plain = table(run("recommend", model, "--user", 1, "-n", 3))
    blocked = run("recommend", model, "--user", 1, "-n", 3, "--block", "list.csv")
    assert table(blocked).equals(plain)
    assert "list.csv blocks nothing: it lists no items" in blocked.stderr
    for verb, kind in [("recommend", "item"), ("impute", "item"), ("impute", "user")]:
        words = ["--user", 1] if verb == "recommend" else []
        said = run(verb, model, *words, f"--{kind}s", "list.csv", code=1).stderr
        if kind in text or not text.strip():
            assert f"list.csv lists no {kind}s; one id per line is expected." in said
    said = run("recommend", model, "--history", "list.csv", code=1).stderr
    assert "unexpected" not in said


@pytest.mark.parametrize("text", ["999\nzz\n", "user,item\n1,999\n"])
def test_a_list_of_unknown_items_blocks_nothing(run, model, tmp_path, text):
    (tmp_path / "list.csv").write_text(text)
    plain = table(run("recommend", model, "--user", 1, "-n", 3))
    blocked = run("recommend", model, "--user", 1, "-n", 3, "--block", "list.csv")
    assert table(blocked).equals(plain)
    assert "list.csv blocks nothing: none of its items is in the data" in blocked.stderr
    said = run("recommend", model, "--user", 1, "--items", "list.csv", code=1).stderr
    assert "Unknown item" in said


def test_items_and_block_and_where(run, model):
    Path("items.txt").write_text("101\n102\n103\n104\n")
    Path("block.txt").write_text("103\n")

    def items(*args):
        found = table(
            run("recommend", model, "--user", 1, "-n", 30, "--include-seen", *args)
        )
        return set(found["item"])

    assert items("--items", "items.txt") == {101, 102, 103, 104}
    assert items("--items", "items.txt", "--block", "block.txt") == {101, 102, 104}
    assert items("--items", "items.txt", "--where", "item > 102 AND year = 1999") == {
        103,
        104,
    }
    assert items("--where", "title LIKE 'Film 2%' AND genres = 'Drama'") == {
        102,
        *range(120, 130),
    }


def test_bad_where_is_one_sentence(run, model):
    said = run("recommend", model, "--user", 1, "--where", "yaer > 1", code=1).stderr
    assert said.startswith("Error: where: ")
    assert "yaer" in said
    assert "title" in said
    assert said.count("\n") == 1


# similar users


def test_similar_users(run, model, loaded):
    found = table(run("similar", model, "--user", 3, "--user", 4, "-n", 2))
    expected = loaded.similar_users([3, 4], 2)
    assert found.columns == ["user", "similar", "rank", "score"]
    assert found["similar"].to_list() == expected["similar"].to_list()
    said = run("similar", model, "--user", 3, "--item", 103, code=2).stderr
    assert "Give only one of --item/--title, --text, --user or --all." in said


# explain


def test_explain_is_the_librarys_answer(run, model, loaded):
    result = run("explain", model, "--user", 3, "--title", "Film 5,", "-n", 3, "--json")
    document = json.loads(result.stdout)
    assert (document["command"], document["user"], document["item"]) == (
        "explain",
        3,
        105,
    )
    expected = loaded.explain(3, 105, 3)
    found = pl.DataFrame(document["rows"])
    assert found["part"].to_list() == [
        "base",
        "popularity",
        "item",
        "item",
        "item",
        "others",
    ]
    assert found["item"].to_list() == expected["item"].to_list()
    assert found["contribution"].to_list() == pytest.approx(
        expected["contribution"].to_list()
    )


def test_explain_rejects(run, model):
    assert (
        "Choose the item: --item or --title."
        in run("explain", model, "--user", 1, code=2).stderr
    )
    assert (
        "Unknown user 99"
        in run("explain", model, "--user", 99, "--item", 101, code=1).stderr
    )
    said = run(
        "explain", model, "--user", 1, "--item", 101, "--title", "x", code=2
    ).stderr
    assert "Give only one of --item or --title." in said


# predict


def test_std_of_a_model_that_does_not_know_it(run, model):
    Path("pairs.csv").write_text("user,item\n1,101\n")
    said = run("predict", model, "pairs.csv", "--std", code=1).stderr
    assert "these models can: bayes." in said


# update


NEW = """user,item,rating,time
1,101,5,2004-06-01
77,101,4,2004-06-01
77,500,1,2004-06-01
"""


def test_update_writes_another_model(run, model, loaded):
    Path("new.csv").write_text(NEW)
    result = run("update", model, "new.csv", "--out", "m2")
    assert result.stdout == ""
    assert "3 new events" in result.stderr
    assert "updated als to 41 users x 31 items" in result.stderr
    updated = Recommender.load("m2")
    rated = updated.ratings.to_frame().drop("timestamp")
    rows = rated.filter(pl.col("user") == 77).rows()
    assert rows == [(77, 101, 4.0), (77, 500, 1.0)]
    assert updated.model.get_params() == loaded.model.get_params()
    assert Recommender.load(model).ratings.n_users == 40
    found = table(run("recommend", "m2", "--user", 77, "-n", 3))
    assert found["item"].to_list() == updated.recommend(77, n=3)["item"].to_list()


def test_update_in_place_needs_force(run, model):
    Path("new.csv").write_text(NEW)
    Recommender.load(model).save("m")
    said = run("update", "m", "new.csv", code=2).stderr
    assert "Add --out MODEL2 for a new model, or --force to replace MODEL." in said
    assert Recommender.load("m").ratings.n_users == 40
    run("update", "m", "new.csv", "--force")
    assert Recommender.load("m").ratings.n_users == 41
    said = run("update", model, "new.csv", "--out", "m", code=1).stderr
    assert "cannot be saved in m: there is a saved model already" in said


def test_update_of_a_model_of_contacts_ignores_ratings(run, contacts):
    Path("new.csv").write_text(NEW)
    run("update", contacts, "new.csv", "--out", "m2")
    updated = Recommender.load("m2").ratings
    assert updated.implicit
    assert updated.n_users == 41


def test_update_rejects(run, model, ratings):
    assert "saved model" in run("update", ratings, "x.csv", "--out", "m", code=1).stderr
    assert (
        "There is no file"
        in run("update", model, "none.csv", "--out", "m", code=1).stderr
    )
    Path("bad.csv").write_text("user,item,rating\n1,101,good\n")
    assert (
        "bad.csv, line 2"
        in run("update", model, "bad.csv", "--out", "m", code=1).stderr
    )
    assert not Path("m").exists()


# impute


def test_impute_to_any_format(run, model, loaded):
    expected = pl.concat(loaded.impute())
    run("impute", model, "--output", "all.parquet")
    assert pl.read_parquet("all.parquet").equals(expected)
    run("impute", model, "--output", "all.csv")
    assert pl.read_csv("all.csv").height == 40 * 30 - 480
    document = json.loads(run("impute", model, "--json").stdout)
    assert (document["command"], len(document["rows"])) == ("impute", 720)


def test_impute_some(run, model, loaded):
    Path("u.txt").write_text("3\n1\n99\n")
    Path("i.txt").write_text("101\n102\n")
    result = run("impute", model, "--users", "u.txt", "--items", "i.txt")
    pairs = table(result).select("user", "item").rows()
    rated = set(loaded.ratings.to_frame().select("user", "item").rows())
    assert pairs == [(u, i) for u in (3, 1) for i in (101, 102) if (u, i) not in rated]
    assert "u.txt: 1 of 3 users are not in the data, ignored" in result.stderr


def test_impute_rejects_and_leaves_nothing_behind(run, contacts):
    said = run("impute", contacts, "--output", "all.csv", code=1).stderr
    assert "Only ratings can be imputed, and the data are implicit feedback" in said
    assert list(Path.cwd().iterdir()) == []


def peak_memory(arguments, source_tree):
    """Run a process to its end; the most memory that it held, in megabytes."""
    environment = {**os.environ, "PYTHONPATH": str(source_tree)}
    process = subprocess.Popen(arguments, env=environment, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss / 1024


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="no memory of a child process")
def test_impute_in_bounded_memory(command, source_tree):
    """Five times as many rows take no more memory, but for what reading the data takes."""
    peaks = []
    for n_users in (300, 1500):
        rows = [f"{user},{user % 50},{1 + user % 5}" for user in range(n_users)]
        rows += [f"0,{item},3" for item in range(4000)]
        Path("wide.csv").write_text("\n".join(["user,item,rating", *rows]) + "\n")
        arguments = command(
            "impute", "wide.csv", "--model", "popular", "-o", "all.parquet"
        )
        peaks.append(peak_memory(arguments, source_tree))
        written = pl.scan_parquet("all.parquet").select(pl.len()).collect().item()
        assert written == 4000 * n_users - 4000 - n_users + 1
    assert peaks[1] < peaks[0] + 60  # the further 5 million rows take 100 MB


# fit


def test_fit_says_what_it_chose(run, ratings):
    said = run("fit", ratings, "--out", "m").stderr
    assert "chose als, 30 factors: the ratings are between 1 and 5" in said
    said = run("fit", ratings, "--out", "m", "--force", "--factors", 2).stderr
    assert "chose als, 2 factors: " in said
    assert Recommender.load("m").model.get_params()["factors"] == 2
    assert (
        "chose"
        not in run("fit", ratings, "--out", "m", "--force", "--model", "bias").stderr
    )


def test_fit_takes_constant_ratings_for_contacts(run):
    Path("likes.csv").write_text("user,item,rating\n1,7,1\n1,8,1\n2,7,1\n")
    said = run("fit", "likes.csv", "--out", "m").stderr
    assert (
        "chose spectral, 1 factor: all ratings are 1, which makes them implicit feedback"
        in said
    )
    assert Recommender.load("m").ratings.implicit
    run("fit", "likes.csv", "--out", "n", "--model", "als")
    assert not Recommender.load("n").ratings.implicit


@pytest.mark.parametrize("name", ["Ella Fitzgerald", "Earth, Wind & Fire"])
def test_a_list_of_names_with_spaces_or_commas_is_a_history(run, name):
    names = [name, "Monk", "Nina Simone", "Bach"]
    rows = [[user, names[(user + n) % 4]] for user in range(8) for n in range(2)]
    pl.DataFrame(rows, schema=["user", "artist"], orient="row").write_csv("plays.csv")
    Path("liked.txt").write_text(f"{name}\nMonk\n")
    found = table(run("recommend", "plays.csv", "--history", "liked.txt"))
    assert sorted(found["item"]) == ["Bach", "Nina Simone"]


def test_titles_are_pointed_to_where_there_are_some(run, model, implicit):
    assert "Hint: --title" in run("similar", model, "--item", 7, code=1).stderr
    assert "Hint" not in run("similar", implicit, "--item", 7, code=1).stderr


def test_a_history_from_standard_input(run, model):
    Path("h.csv").write_text("item,rating\n103,5\n")
    piped = run("recommend", model, "--history", "-", input="item,rating\n103,5\n")
    assert table(piped).equals(table(run("recommend", model, "--history", "h.csv")))


def test_the_history_of_a_new_user_may_be_json_lines(run, model, tmp_path):
    rows = [{"item": 101, "rating": 5}, {"item": 104, "rating": 2}]
    lines = [json.dumps(row) for row in rows]
    (tmp_path / "mine.jsonl").write_text("\n".join(lines))
    (tmp_path / "mine.csv").write_text("item,rating\n101,5\n104,2")
    (tmp_path / "liked.jsonl").write_text('{"item": 101}\n{"item": 104}')
    (tmp_path / "liked.txt").write_text("101\n104")
    for first, second in (("mine.jsonl", "mine.csv"), ("liked.jsonl", "liked.txt")):
        lists = [
            table(run("recommend", model, "--history", file, "-n", 3))
            for file in (first, second)
        ]
        assert lists[0].equals(lists[1])
