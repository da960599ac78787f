"""Mistakes that a new user makes: each answer says what would be right."""

from __future__ import annotations

import io
from pathlib import Path

import polars as pl
import pytest


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["recommend", "M", "--usr", 7], "option '--usr'. (Did you mean one of: '--user', "),
        (["recommend", "M", "--user", 7, "-n", "x"], "'-n': 'x' is not a valid integer range."),
        (["fit", "M", "-o", "m", "-p", "alpha"], "takes NAME=VALUE, such as linked=true; got"),
        (["recommend", "M", 7], "argument (7); expected MODEL|RATINGS. Quote values"),
        (["similar", "M", "--title", "Toy", "Story"], "Quote values that contain spaces."),
        (["predict", "M", "pairs", "more"], "expected MODEL|RATINGS and PAIRS"),
        (["data", "sample", "films"], "(films); expected no arguments."),
        (["fit", "M"], "Missing option '--out' / '-o'."),
        (["recommend"], "Missing argument 'MODEL|RATINGS'."),
        (["recommend", "M", "-n"], "Option '-n' requires an argument."),
    ],
)
def test_usage_errors_say_what_would_be_right(run, args, message):
    assert message in run(*args, code=2).stderr


def test_another_model_than_the_saved_one_is_refused(run, model, monkeypatch):
    said = run("recommend", model, "--user", 7, "--model", "bayes", code=1).stderr
    assert "is a saved als model, and --model bayes needs a file of ratings; leave it out" in said
    assert run("recommend", model, "--user", 7, "--model", "als").stderr == ""
    monkeypatch.setenv("RECSYS_MODEL", "bayes")  # a setting for fits
    assert run("recommend", model, "--user", 7).stderr == ""


def test_a_user_given_as_a_file_of_users(run, model):
    said = run("recommend", model, "--users", "7", code=1).stderr
    assert "There is no file 7 with a list of users. For one user, say --user 7." in said


def test_users_that_are_all_known_need_no_word(run, model):
    Path("users.txt").write_text("1\n2\n")
    words = ("recommend", model, "--users", "users.txt", "--cold-start", "popular")
    assert run(*words).stderr == ""


def test_columns_that_are_not_used_are_named(run):
    Path("own.csv").write_text("Leser;item;Sterne;Datum\nr1;Emma;5;x\nr2;Emma;4;x\n")
    said = run("data", "inspect", "own.csv", "--user-col", "Leser").stderr
    assert "no rating: implicit feedback, not used: Sterne, Datum;" in said
    said = run("data", "inspect", "own.csv", "--user-col", "Leser", "--rating-col", "Sterne").stderr
    assert "rating = Sterne, not used: Datum;" in said
    Path("wide.csv").write_text("user,item,a,b,c,d,e,f,time\n1,2,3,3,3,3,3,3,never\n")
    said = run("data", "inspect", "wide.csv").stderr
    assert "time not used ('never' is not a time that can be read)" in said
    assert "not used: a, b, c, d, e and 1 more;" in said
    Path("whole.csv").write_text("user,item,rating,time,a\n1,2,3,4,5\n2,2,4,4,5\n")
    assert "not used" not in run("data", "inspect", "whole.csv").stderr


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("item,rating\n105,5\n107,4\n", []),
        ("product_id,stars\n105,5\n107,4\n", []),
        ("movieId;note;score\n105;a;5\n107;b;4\n", []),
        ("Buch;Sterne\n105;5\n107;4\n", ["--item-col", "Buch", "--rating-col", "Sterne"]),
    ],
)
def test_histories_and_lists_have_the_columns_that_ratings_have(run, model, text, options):
    Path("mine.csv").write_text(text)
    Path("plain.csv").write_text("user,item,rating\nnew,105,5\nnew,107,4\n")
    expected = run("recommend", model, "--history", "plain.csv").stdout
    assert run("recommend", model, "--history", "mine.csv", *options).stdout == expected


def test_lists_of_items_have_the_columns_that_ratings_have(run, model):
    Path("some.csv").write_text("asin;price\n105;1\n107;2\n")
    found = run("recommend", model, "--user", 1, "--items", "some.csv", "--include-seen").stdout
    assert sorted(pl.read_csv(io.StringIO(found))["item"]) == [105, 107]


def test_a_list_may_begin_with_an_id_that_is_a_usual_name(run):
    rows = "".join(f"{user},{item},{len(item)}\n" for user in "abc" for item in ("book", "film"))
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
