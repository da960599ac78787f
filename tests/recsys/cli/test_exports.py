"""Files that people have: exports of their ratings, nested objects, relevant grades."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recsys import read_ratings

GOODREADS = "Book Id,Title,My Rating,Average Rating,Exclusive Shelf\n"
GOODREADS += "101,Film 1,1,3.9,read\n103,Film 3,0,4.1,to-read\n"
IMDB = "item,Your Rating,Date Rated,Title\n101,1,2023-05-01,Film 1\n"


@pytest.mark.parametrize("export", [GOODREADS, IMDB])
def test_an_export_of_a_persons_ratings_is_a_history(run, model, export):
    Path("export.csv").write_text(export)
    Path("plain.csv").write_text("item,rating\n101,1\n")
    found = run("recommend", model, "--history", "export.csv", "-n", 5)
    assert (
        found.stdout
        == run("recommend", model, "--history", "plain.csv", "-n", 5).stdout
    )
    left_out = "1 row left out whose rating is 0 (not rated)"
    assert (left_out in found.stderr) == (export == GOODREADS)


def test_fields_of_nested_objects_are_columns():
    rows = [
        {
            "context": {"user": {"id": user}},
            "product": {"sku": f"p{item}"},
            "rating": 1 + item,
        }
        for user in (1, 2)
        for item in range(3)
    ]
    Path("nested.jsonl").write_text("\n".join(map(json.dumps, rows)))
    names = {"user": "context.user.id", "item": "product.sku"}
    ratings = read_ratings("nested.jsonl", **names)
    assert ratings.to_frame().rows()[:2] == [(1, "p0", 1.0), (1, "p1", 2.0)]
    assert "user = context.user.id, item = product.sku" in str(ratings.source)


def test_grades_from_a_limit_are_relevant(run, ratings):
    how = ("--model", "popular", "--method", "random", "--json")
    every = json.loads(run("evaluate", ratings, *how).stdout)
    some = json.loads(run("evaluate", ratings, *how, "--relevant-from", "4").stdout)
    assert some["settings"]["relevant_from"] == 4
    values = [d["models"][0]["metrics"]["recall@10"]["value"] for d in (every, some)]
    assert values[0] != values[1]
    options = (
        "--model",
        "bias",
        "--metric",
        "ndcg@5",
        "--trials",
        "1",
        "--method",
        "random",
    )
    tuned = [
        json.loads(run("tune", ratings, *options, *limit, "--json").stdout)[
            "default_value"
        ]
        for limit in ((), ("--relevant-from", "4"))
    ]
    assert tuned[0] != tuned[1]
    said = run("tune", ratings, *options, "--relevant-from", "4").stderr
    assert "--relevant-from 4" in said
