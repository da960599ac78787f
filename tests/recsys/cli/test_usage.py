"""Mistakes that a new user makes: each answer says what would be right."""

from __future__ import annotations

import io
from pathlib import Path

import polars as pl
import pytest


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["recommend", "M", "--usr", 7], "--user"),
        (["recommend", "M", "--user", 7, "-k", 5], "No such option '-k'."),
        (["fit", "M", "-o", "m", "--xyzzy", 3], "No such option '--xyzzy'.\n"),
        (
            ["evaluate", "M", "--metric", "ndcg@10"],
            "'--metric'. All metrics are computed and",
        ),
        (["fit", "M", "-o", "m", "--model", "svd"], "Did you mean als?"),
        (["fit", "M", "-o", "m", "--model", "knn"], "Did you mean implicit-knn?"),
        (
            ["predict", "M", "1", "50"],
            "that are not in a file, give --user and --item.",
        ),
        (
            ["predict", "M", "--user", "1"],
            "--user and --item require each other; give both.",
        ),
        (["predict", "M"], "Choose the pairs: PAIRS or --user with --item."),
        (
            ["similar", "M"],
            "Choose items, texts or users: --item/--title, --text, --user or --all.",
        ),
        (
            ["recommend", "M", "--user", 7, "-n", "x"],
            "'-n': 'x' is not a valid integer range.",
        ),
        (
            ["fit", "M", "-o", "m", "-p", "alpha"],
            "must be NAME=VALUE, such as linked=true; got",
        ),
        (
            ["recommend", "M", 7],
            "argument (7); expected MODEL|RATINGS. Users go to --user",
        ),
        (
            ["similar", "M", "--title", "Toy", "Story"],
            "Quote values that contain spaces.",
        ),
        (["predict", "M", "pairs", "more"], "expected MODEL|RATINGS and [PAIRS]. For"),
        (["data", "sample", "films"], "(films); expected no arguments."),
        (["fit", "M"], "Missing option '--out' / '-o'."),
        (["recommend"], "Missing argument 'MODEL|RATINGS'."),
        (["recommend", "M", "-n"], "Option '-n' requires an argument."),
    ],
)
def test_usage_errors_say_what_would_be_right(run, args, message):
    assert message in run(*args, code=2).stderr


def test_another_model_than_the_saved_one_raises(run, model, monkeypatch):
    said = run("recommend", model, "--user", 7, "--model", "bayes", code=1).stderr
    assert (
        "is a saved als model, and --model bayes needs a file of ratings; leave it out"
        in said
    )
    assert run("recommend", model, "--user", 7, "--model", "als").stderr == ""
    monkeypatch.setenv("RECSYS_MODEL", "bayes")  # a setting for fits
    assert run("recommend", model, "--user", 7).stderr == ""


def test_a_user_given_as_a_file_of_users(run, model):
    said = run("recommend", model, "--users", "7", code=1).stderr
    assert "There is no file or directory 7." in said


def test_users_that_are_all_known_need_no_word(run, model):
    Path("users.txt").write_text("1\n2\n")
    words = ("recommend", model, "--users", "users.txt", "--cold-start", "popular")
    assert run(*words).stderr == ""


def test_columns_that_are_not_used_are_named(run):
    Path("own.csv").write_text("Leser;item;Sterne;Datum\nr1;Emma;5;x\nr2;Emma;4;x\n")
    said = run("data", "inspect", "own.csv", "--user-col", "Leser").stderr
    assert "no rating: implicit feedback, not used: Sterne, Datum;" in said
    said = run(
        "data", "inspect", "own.csv", "--user-col", "Leser", "--rating-col", "Sterne"
    ).stderr
    assert "rating = Sterne, not used: Datum;" in said
    Path("wide.csv").write_text("user,item,a,b,c,d,e,f,time\n1,2,3,3,3,3,3,3,never\n")
    said = run("data", "inspect", "wide.csv").stderr
    assert (
        "time not used ('never' is not a time that can be read; --time-format reads"
        in said
    )
    assert "not used: a, b, c, d, e and 1 more;" in said
    Path("whole.csv").write_text("user,item,rating,time,a\n1,2,3,4,5\n2,2,4,4,5\n")
    assert "not used" not in run("data", "inspect", "whole.csv").stderr


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("item,rating\n105,5\n107,4\n", []),
        ("product_id,stars\n105,5\n107,4\n", []),
        ("movieId;note;score\n105;a;5\n107;b;4\n", []),
        (
            "Buch;Sterne\n105;5\n107;4\n",
            ["--item-col", "Buch", "--rating-col", "Sterne"],
        ),
    ],
)
def test_histories_and_lists_have_the_columns_that_ratings_have(
    run, model, text, options
):
    Path("mine.csv").write_text(text)
    Path("plain.csv").write_text("user,item,rating\nnew,105,5\nnew,107,4\n")
    expected = run("recommend", model, "--history", "plain.csv").stdout
    assert run("recommend", model, "--history", "mine.csv", *options).stdout == expected


def test_lists_of_items_have_the_columns_that_ratings_have(run, model):
    Path("some.csv").write_text("asin;price\n105;1\n107;2\n")
    found = run(
        "recommend", model, "--user", 1, "--items", "some.csv", "--include-seen"
    ).stdout
    assert sorted(pl.read_csv(io.StringIO(found))["item"]) == [105, 107]


def test_a_list_may_begin_with_an_id_that_is_a_usual_name(run):
    rows = "".join(
        f"{user},{item},{len(item)}\n" for user in "abc" for item in ("book", "film")
    )
    Path("ratings.csv").write_text(f"user,item,rating\n{rows}d,book,3\n")
    Path("some.txt").write_text("book\nfilm\n")
    found = run("recommend", "ratings.csv", "--user", "d", "--items", "some.txt").stdout
    assert pl.read_csv(io.StringIO(found))["item"].to_list() == ["film"]


def test_no_recommendations_are_explained(run, model):
    result = run("recommend", model, "--user", 7, "--where", "item < 0")
    assert result.stdout == "user,item,rank,score,title\n"
    assert result.stderr == (
        "no recommendations: every item is already rated, blocked or filtered out\n"
    )


@pytest.mark.parametrize(
    ("title", "meant"),
    [
        ("Filn 7", "Did you mean Film 7, The [7] (1999)"),
        ("Flm 12, the [12]", "Did you mean Film 12, The [12] (1999)"),
        ("Casablanca", "contains 'Casablanca'.\n"),
    ],
)
def test_a_misspelt_title_gets_the_nearest_ones(run, model, title, meant):
    assert meant in run("recommend", model, "--like", title, code=1).stderr


def test_several_models_lengths_and_ids_between_commas(run, ratings, model):
    one = run("recommend", model, "--user", 1, "--user", 2, "-n", 2).stdout
    assert run("recommend", model, "--user", "1,2", "-n", 2).stdout == one
    one = run("similar", model, "--item", 100, "--item", 101, "-n", 2).stdout
    assert run("similar", model, "--item", "100, 101", "-n", 2).stdout == one
    found = pl.read_csv(
        io.StringIO(
            run("evaluate", ratings, "--model", "bias, popular", "-n", "1,5").stdout
        )
    )
    assert found["model"].to_list() == ["bias", "popular"]
    assert {"ndcg@1", "ndcg@5"} <= set(found.columns)
    said = run("evaluate", ratings, "--model", "bias,popul", code=2).stderr
    assert "'popul' is not one of" in said
    assert "Did you mean popular?" in said


def test_an_id_with_a_comma_counts_before_a_list(run):
    users = ("Smith, J", "Smith", "J")
    rows = "".join(
        f'"{user}",{item},{i + 1}\n' for user in users for i, item in enumerate("abc")
    )
    Path("ratings.csv").write_text(f"user,item,rating\n{rows}z,d,3\nz,a,2\n")

    def users_of(*names):
        words = ("recommend", "ratings.csv", "--model", "bias")
        result = run(*words, *(w for n in names for w in ("--user", n)))
        return (
            pl.read_csv(io.StringIO(result.stdout))["user"]
            .unique(maintain_order=True)
            .to_list()
        )

    assert users_of("Smith, J") == ["Smith, J"]
    assert users_of("J,Smith") == ["J", "Smith"]
    said = run(
        "recommend", "ratings.csv", "--model", "bias", "--user", "Smith,J", code=0
    ).stdout
    assert said.count("Smith,d") == 1
    said = run("recommend", "ratings.csv", "--user", "Smyth, T", code=1).stderr
    assert "Unknown user 'Smyth, T'; the nearest id" in said


def test_pairs_of_users_and_items_on_the_command_line(run, model):
    Path("pairs.csv").write_text("user,item\n1,100\n1,101\n2,100\n2,101\n")
    expected = run("predict", model, "pairs.csv").stdout
    assert (
        run("predict", model, "--user", "1,2", "--item", 100, "--item", 101).stdout
        == expected
    )
    said = run("predict", model, "--user", 1, "--item", 999_999, code=1).stderr
    assert "Unknown item" in said
    said = run("predict", model, "pairs.csv", "--user", 1, "--item", 2, code=2).stderr
    assert "Give only one of" in said


def test_an_online_test_has_no_conditions_and_no_models(run):
    for option in (
        ("--fail-if", "ndcg@10 worse"),
        ("--report", "r.html"),
        ("--model", "als"),
    ):
        result = run("compare", "--online", "log.jsonl", "clicks.csv", *option, code=2)
        assert f"{option[0]} does not apply to --online." in result.stderr


@pytest.mark.parametrize(
    ("words", "option", "end"),
    [
        (["recommend", "M", "--user", 7], "--at-least", "from 0 to 1"),
        (["recommend", "M", "--user", 7], "--diversity", "from 0 to 1"),
        (["evaluate", "M"], "--diversity", "from 0 to 1"),
        (["evaluate", "M"], "--test-fraction", "between 0 and 1"),
        (["split", "M", "--out", "parts"], "--test-fraction", "between 0 and 1"),
        (["fit", "M", "--out", "m"], "--test-fraction", "between 0 and 1"),
        (["tune", "M", "--model", "als"], "--test-fraction", "between 0 and 1"),
        (["compare", "--plan", "--difference", "1%"], "--rate", "between 0 and 1"),
        (["compare", "--plan"], "--power", "between 0 and 1"),
        (["compare", "--plan"], "--level", "between 0 and 1"),
        (["serve", "M", "--model-b", "N"], "--share", "from 0 to 1"),
    ],
)
def test_shares_are_numbers_or_percentages(run, words, option, end):
    for value in ("20", "120%", "-1%", "nan", "a fifth", "%"):
        result = run(*words, option, value, code=2)
        expected = f"must be a number {end}, or a percentage such as 20%; got"
        assert expected in " ".join(result.stderr.split())


def test_a_percentage_is_its_share(run):
    words = ["compare", "--plan", "--difference", 0.01, "--format", "csv"]
    options = {
        "--rate": ("10%", 0.1),
        "--power": ("90 %", 0.9),
        "--level": ("1%", 0.01),
    }
    outputs = []
    for form in (0, 1):
        shares = [word for name in options for word in (name, options[name][form])]
        outputs.append(run(*words, *shares).stdout)
    assert outputs[0] == outputs[1]
    assert "0.1,0.01," in outputs[0]
