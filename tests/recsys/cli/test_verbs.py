"""What each verb does, on a small directory of ratings and a model of it."""

from __future__ import annotations

import io
import json
import os
import shlex
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from forked_commands import started

from recsys import Ratings, Recommender, read_ratings
from recsys.cli.inputs import find_title


def table(result):
    return pl.read_csv(io.StringIO(result.stdout))


def as_float32(frame):
    return frame.with_columns(pl.col("score").cast(pl.Float32))


def json_lines(result):
    return as_float32(pl.read_ndjson(result.stdout.encode()))


@pytest.fixture(scope="session")
def loaded(model):
    return Recommender.load(model)


# fit


def test_fit_saves_a_model_and_says_so(run, ratings):
    result = run(
        "fit", ratings, "--out", "m", "--factors", 3, "--seed", 5, "--threads", 1
    )
    assert result.stdout == ""
    assert "films/ratings.csv" in result.stderr
    assert (
        "fitted als to 40 users x 30 items, 480 ratings, 40% filled in "
        in result.stderr
    )
    assert "saved in m" in result.stderr
    params = Recommender.load("m").model.get_params()
    assert (params["factors"], params["random_state"], params["threads"]) == (3, 5, 1)


@pytest.mark.parametrize("name", ["bias", "popular", "random"])
def test_fit_other_models(run, ratings, name):
    run("fit", ratings, "--out", "m", "--model", name)
    assert Recommender.load("m").model.name == name


def test_fit_chooses_spectral_for_implicit_data(run, implicit):
    run("fit", implicit, "--out", "m")
    assert Recommender.load("m").model.name == "spectral"


def test_fit_holdout_prints_every_sweep(run, ratings):
    stderr = run(
        "fit", ratings, "--out", "m", "--test-fraction", 0.25, "--iterations", 3
    ).stderr
    sweeps = [line for line in stderr.splitlines() if line.startswith("sweep ")]
    assert sweeps
    assert all(
        "training RMSE 0." in line and "held-out RMSE " in line for line in sweeps
    )
    assert "360 ratings" in stderr
    assert Recommender.load("m").ratings.n_ratings == 360


def test_fit_does_not_replace_without_force(run, ratings):
    run("fit", ratings, "--out", "m", "--model", "bias")
    said = run("fit", ratings, "--out", "m", "--model", "popular", code=1).stderr
    assert (
        "cannot be saved in m: there is a saved model already; choose another path, or"
        in said
    )
    assert Recommender.load("m").model.name == "bias"
    run("fit", ratings, "--out", "m", "--model", "popular", "--force")
    assert Recommender.load("m").model.name == "popular"


def test_fit_never_replaces_other_things(run, ratings):
    Path("folder").mkdir()
    Path("folder/thesis.tex").touch()
    said = run("fit", ratings, "--out", "folder", "--force", code=1).stderr
    assert "cannot be saved in folder: it exists and is not a saved model" in said
    assert Path("folder/thesis.tex").exists()
    assert (
        "there is no directory" in run("fit", ratings, "--out", "no/m", code=1).stderr
    )


def test_fit_rejects_options_of_other_models(run, ratings):
    args = ["fit", ratings, "--out", "m", "--model", "popular", "--factors", 3]
    said = run(*args, code=2).stderr
    assert (
        "--factors does not apply to popular; leave it out. It is for als, bayes, "
        in said
    )
    assert not Path("m").exists()


def test_a_setting_that_the_model_does_not_have_is_for_others(
    run, ratings, monkeypatch
):
    monkeypatch.setenv("RECSYS_FACTORS", "3")
    run("fit", ratings, "--out", "m", "--model", "popular")
    run("fit", ratings, "--out", "m2", "--model", "als")
    assert Recommender.load("m2").model.get_params()["factors"] == 3


def test_fit_rejects_a_model(run, model):
    said = run("fit", model, "--out", "m", code=1).stderr
    assert "is a saved model; a file of ratings is needed here." in said


def test_fit_reads_standard_input(run, ratings):
    data = (ratings / "ratings.csv").read_bytes()
    run("fit", "-", "--out", "m", "--model", "bias", input=data)
    assert Recommender.load("m").ratings.n_ratings == 480


def test_fit_reader_options(run):
    Path("x.txt").write_text(
        "reader;book;stars\nann;é;4\nann;b;3\nbob;b;1\nbob;b;5\n", "latin-1"
    )
    names = ["--user-col", "reader", "--item-col", "book", "--rating-col", "stars"]
    how = ["--sep", ";", "--encoding", "latin-1", "--duplicates", "first"]
    run("fit", "x.txt", "--out", "m", "--model", "bias", *names, *how)
    found = Recommender.load("m").ratings.to_frame().rows()
    assert found == [("ann", "b", 3.0), ("ann", "é", 4.0), ("bob", "b", 1.0)]
    said = run(
        "fit", "x.txt", "--out", "n", *names, "--encoding", "utf-8", code=1
    ).stderr
    assert "x.txt is not in the encoding utf-8" in said
    said = run("fit", "x.txt", "--out", "n", *names, *how, "--implicit", code=1).stderr
    assert (
        "--implicit is for interactions, which have no ratings, but --rating-col stars"
        in said
    )
    run("fit", "x.txt", "--out", "n", *names[:4], *how, "--implicit")
    assert Recommender.load("n").ratings.implicit


def test_fit_bad_number_names_file_and_line(run):
    Path("x.csv").write_text("user,item,rating\n1,2,3\n1,3,good\n")
    stderr = run("fit", "x.csv", "--out", "m", code=1).stderr
    assert "x.csv, line 3" in stderr
    assert "good" in stderr
    assert not Path("m").exists()


# recommend


def test_recommend_from_model_is_the_librarys_answer(run, model, loaded):
    result = run("recommend", model, "--user", 7, "-n", 4, "--format", "jsonl")
    expected = loaded.recommend([7], 4)
    assert json_lines(result).rows() == expected.rows()
    assert result.stderr == ""


def test_recommend_repeated_users(run, model):
    found = table(run("recommend", model, "--user", 2, "--user", 1, "-n", 3))
    assert found["user"].to_list() == [2, 2, 2, 1, 1, 1]
    assert found.columns == ["user", "item", "rank", "score", "title"]


def test_recommend_straight_from_data_says_so(run, ratings):
    result = run("recommend", ratings, "--user", 1)
    assert len(table(result)) == 10
    assert (
        f"fitted als to {ratings} (not saved; use `recsys fit` to keep the model)"
        in result.stderr
    )
    assert run("recommend", ratings, "--user", 1, "-q").stderr == ""


def test_recommend_from_implicit_data_uses_spectral(run, implicit):
    assert "fitted spectral to" in run("recommend", implicit, "--user", 1).stderr
    said = run("recommend", implicit, "--user", 1, "--model", "als", code=1).stderr
    assert "no rating column" in said


def test_recommend_all_users_in_any_format(run, model, loaded):
    expected = loaded.recommend(n=2)
    run("recommend", model, "--all", "-n", 2, "--output", "all.parquet")
    assert pl.read_parquet("all.parquet").equals(expected)
    document = json.loads(run("recommend", model, "--all", "-n", 2, "--json").stdout)
    assert (document["schema"], document["model"], document["n"]) == (1, "als", 2)
    assert as_float32(pl.DataFrame(document["rows"])).rows() == expected.rows()


def test_recommend_users_from_files(run, model):
    Path("users.txt").write_text("3\n\n1\n")
    Path("users.csv").write_text('name,user_id\n"a, b",3\nc,1\n')
    pl.DataFrame({"user": [3, 1]}).write_parquet("users.parquet")
    for name in ("users.txt", "users.csv", "users.parquet"):
        assert table(run("recommend", model, "--users", name, "-n", 1))[
            "user"
        ].to_list() == [3, 1]
    result = run("recommend", model, "--users", "-", "-n", 1, input="3\n1\n")
    assert table(result)["user"].to_list() == [3, 1]


def test_a_user_who_is_named_twice_has_one_list(run, model):
    once = run("recommend", model, "--user", "3,1").stdout
    assert run("recommend", model, "--user", "3,1,3", "--user", 1).stdout == once
    assert (
        run("recommend", model, "--user", "3,1,3", "--where", "item > 0").stdout == once
    )
    Path("users.txt").write_text("3\n1\n3\n")
    assert run("recommend", model, "--users", "users.txt").stdout == once


def test_recommend_users_from_a_pipe(run, model):
    reading, writing = os.pipe()
    os.write(writing, b"3\n1\n")
    os.close(writing)
    result = run("recommend", model, "--users", f"/dev/fd/{reading}", "-n", 1)
    os.close(reading)
    assert table(result)["user"].to_list() == [3, 1]


def test_ids_with_what_unicode_takes_for_the_end_of_a_line(run):
    users = ["a\u2028b", "c\x85d"]
    pl.DataFrame({"user": users, "item": ["x", "y"]}).write_csv("r.csv")
    run("fit", "r.csv", "--out", "m", "--model", "popular")
    Path("users.txt").write_text("\r\n".join(users), newline="")
    found = run("recommend", "m", "--users", "users.txt", "-n", 1, "--json")
    assert [row["user"] for row in json.loads(found.stdout)["rows"]] == users


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nowhere.txt", None, "There is no file or directory nowhere.txt."),
        ("empty.txt", "\n", "empty.txt lists no users; one id per line is expected."),
        (
            "short.csv",
            "a,user\n1,2\n3\n",
            "short.csv, line 3: found 1 field, expected 2.",
        ),
        (
            "latin.txt",
            b"\xe9\n",
            "latin.txt, line 1: byte 0xe9 (byte 0 of the file) is not valid UTF-8",
        ),
        ("fake.parquet", "1\n", "fake.parquet is not a Parquet file, or damaged"),
    ],
)
def test_bad_list_of_users(run, model, name, content, message):
    if content is not None:
        Path(name).write_bytes(
            content if isinstance(content, bytes) else content.encode()
        )
    assert message in run("recommend", model, "--users", name, code=1).stderr


def test_parquet_list_without_the_column(run, model):
    pl.DataFrame({"a": [1], "b": [2]}).write_parquet("x.parquet")
    said = run("recommend", model, "--users", "x.parquet", code=1).stderr
    assert "x.parquet has no column user; it has a, b." in said


def test_recommend_items_block_and_seen(run, model, loaded):
    Path("allow.txt").write_text("100\n101\n102\n103\n104\n999\n")
    Path("block.txt").write_text("102\n")
    args = [
        "recommend",
        model,
        "--user",
        1,
        "--items",
        "allow.txt",
        "--block",
        "block.txt",
    ]
    result = run(*args, "--include-seen")
    assert sorted(table(result)["item"]) == [100, 101, 103, 104]
    assert "allow.txt: 1 of 6 items are not in the data, ignored" in result.stderr
    start, end = loaded.ratings.indptr[:2]
    seen = set(loaded.ratings.items.take(loaded.ratings.indices[start:end]))
    assert set(table(run(*args))["item"]) == {100, 101, 103, 104} - seen


def test_list_without_any_known_item(run, model):
    Path("allow.txt").write_text("998\n999\n")
    said = run("recommend", model, "--user", 1, "--items", "allow.txt", code=1).stderr
    assert "Unknown items 998, 999" in said


def test_unknown_user_is_exit_1_with_nearest_ids_and_a_hint(run, model):
    result = run("recommend", model, "--user", 1000, code=1)
    assert result.stdout == ""
    first, hint = result.stderr.splitlines()
    assert first == "Error: Unknown user 1000; the nearest ids are 40, 39, 38."
    assert hint.startswith("Hint: ")
    assert "--cold-start popular" in hint


def test_unknown_user_gets_popular_items_if_asked(run, model, loaded):
    result = run(
        "recommend", model, "--user", 1000, "--user", 1, "--cold-start", "popular"
    )
    expected = loaded.recommend([1000, 1], cold_start="popular")
    assert table(result)["item"].to_list() == expected["item"].to_list()
    assert result.stderr == "unknown users: 1000; they get the most popular items\n"


def test_text_finds_its_integer_twin_only(run, model):
    run("recommend", model, "--user", "1")
    assert "Unknown user" in run("recommend", model, "--user", "01", code=1).stderr
    assert "Unknown user" in run("recommend", model, "--user", "-1", code=1).stderr


def test_more_items_than_there_are(run, model):
    found = table(run("recommend", model, "--user", 1, "-n", 1000))
    assert len(found) == 18
    assert found["score"].is_finite().all()


@pytest.mark.parametrize("verb", ["recommend", "similar", "predict", "info"])
def test_damaged_and_missing_models(run, ratings, verb):
    rest = {"recommend": ["--user", 1], "similar": ["--item", 1], "predict": ["p.csv"]}
    Path("p.csv").write_text("user,item\n1,100\n")
    Path("broken").mkdir()
    Path("broken/model.json").write_text("{}")
    for path in ("broken", "nowhere"):
        result = run(verb, path, *rest.get(verb, []), code=1)
        assert result.stderr.startswith("Error: ")
        assert "unexpected" not in result.stderr


def test_info_rejects_a_file(run, ratings):
    said = run("info", ratings / "ratings.csv", code=1).stderr
    assert "it is a file, and a saved model is a directory" in said
    assert "Error: " in run("info", ratings, code=1).stderr


# similar


def test_similar_is_the_librarys_answer(run, model, loaded):
    result = run("similar", model, "--item", 103, "-n", 5, "--format", "jsonl")
    assert json_lines(result).rows() == loaded.similar_items([103], 5).rows()


@pytest.mark.parametrize(
    "title", ["Film 3, The [3] (1999)", "film 3, the [3] (1999)", "LM 3,", "the [3]"]
)
def test_similar_by_title(run, model, title):
    assert table(run("similar", model, "--title", title, "-n", 1))[
        "item"
    ].to_list() == [103]


def test_exact_title_wins_over_other_cases_and_longer_ones(run):
    Path("films").mkdir()
    rows = [
        f"{user},{item},{1 + (user * item) % 5}"
        for user in range(1, 9)
        for item in range(3)
    ]
    Path("films/ratings.csv").write_text("\n".join(["userId,movieId,rating", *rows]))
    Path("films/movies.csv").write_text("movieId,title\n0,IT\n1,It\n2,Iterated\n")
    for title, item in [("It", 1), ("IT", 0), ("iterated", 2)]:
        found = table(run("similar", "films", "--title", title, "-n", 1, "-q"))
        assert found["item"].to_list() == [item]
    said = run("similar", "films", "--title", "it", code=1).stderr
    assert "2 titles match 'it'" in said


@pytest.mark.parametrize(
    ("text", "item"),
    [
        ("The Matrix", 3),
        ("the matrix", 3),
        ("Matrix", 3),
        ("Matrix, The", 3),
        ("toy story", 1),
        ("Toy Story (1995)", 1),
        ("toy story 2", 2),
        ("A Bug's", 4),
        ("Return of the", 5),
        ("king", 5),
    ],
)
def test_titles_with_years_and_articles(text, item):
    titles = {
        1: "Toy Story (1995)",
        2: "Toy Story 2 (1999)",
        3: "Matrix, The (1999)",
        4: "Bug's Life, A (1998)",
        5: "Return of the King, The (2003)",
        6: None,
    }
    info = pl.DataFrame({"item": list(titles), "title": list(titles.values())})
    frame = pl.DataFrame({"user": [1] * 6, "item": list(titles)})
    assert find_title(Ratings.from_frame(frame, item_table=info), text) == item


def test_similar_ambiguous_title_lists_candidates(run, model):
    lines = run("similar", model, "--title", "film 1", code=1).stderr.splitlines()
    assert lines[0] == "Error: 11 titles match 'film 1'; use one of their ids instead:"
    assert lines[1] == "  101  Film 1, The [1] (1999)"
    assert lines[-1] == "  and 1 more"
    assert len(lines) == 12


def test_similar_unknown_title_and_item(run, model, implicit):
    said = run("similar", model, "--title", "Flim 13, The [13] (1999)", code=1).stderr
    assert "Did you mean Film 13, The [13] (1999) or" in said
    said = run("similar", model, "--item", 7, code=1).stderr
    assert "Unknown item 7" in said
    assert "Hint: --title" in said
    said = run("similar", implicit, "--title", "x", code=1).stderr
    assert "These data have no titles; use an id instead." in said


def test_similar_needs_item_vectors(run, ratings):
    said = run("similar", ratings, "--item", 100, "--model", "popular", code=1).stderr
    assert "similar items; these models can: als" in said


# predict


def test_predict_keeps_the_rows_in_order(run, model, loaded):
    pairs = pl.DataFrame({"user": [3, 1, 3, 3], "item": [100, 101, 100, 99 + 6]})
    pairs.write_csv("pairs.csv")
    pairs.rename({"user": "userId", "item": "movieId"}).write_parquet("pairs.parquet")
    expected = loaded.predict(pairs)
    for name in ("pairs.csv", "pairs.parquet"):
        run("predict", model, name, "--output", "out.parquet")
        assert pl.read_parquet("out.parquet").equals(expected)
    found = table(run("predict", model, "-", input=pairs.write_csv()))
    assert found.columns == ["user", "item", "prediction"]
    assert found["prediction"].to_list() == pytest.approx(
        expected["prediction"].to_list()
    )


def test_predict_ignores_other_columns_and_takes_reader_options(run, model):
    Path("pairs.txt").write_text("when|who|what|rating\nsoon|1|100|none\n")
    args = ["--user-col", "who", "--item-col", "what", "--sep", "|"]
    assert len(table(run("predict", model, "pairs.txt", *args))) == 1


def test_predict_from_data(run, ratings):
    Path("pairs.csv").write_text("user,item\n1,100\n")
    result = run("predict", ratings, "pairs.csv", "--model", "bias")
    assert 1 <= table(result)["prediction"][0] <= 5
    assert "fitted bias to" in result.stderr


@pytest.mark.parametrize("cold_start", ["bias", "popular"])
def test_predict_unknown_pairs(run, model, loaded, cold_start):
    pairs = pl.DataFrame({"user": [1, 999], "item": [888, 100]})
    pairs.write_csv("pairs.csv")
    first, hint = run("predict", model, "pairs.csv", code=1).stderr.splitlines()
    assert "Unknown user 999" in first
    assert hint.startswith("Hint: --cold-start bias")
    result = run("predict", model, "pairs.csv", "--cold-start", cold_start)
    expected = loaded.predict(pairs, cold_start=cold_start)["prediction"].to_list()
    assert table(result)["prediction"].to_list() == pytest.approx(expected)
    assert "unknown users: 999; they get " in result.stderr
    assert "unknown items: 888; they get " in result.stderr


def test_predict_says_that_columns_are_exchanged(run):
    seen = "user,item,rating\nanna,tea,5\nanna,rice,2\nbert,tea,4\nbert,figs,1\n"
    Path("seen.csv").write_text(seen)
    Path("pairs.csv").write_text("user,item\ntea,anna\nrice,bert\n")
    run("fit", "seen.csv", "--model", "bias", "--out", "of-names")
    said = run("predict", "of-names", "pairs.csv", code=1).stderr
    assert said.startswith("of the 2 new users, 2 are known items, as if the columns")


def test_predict_without_an_item_column(run, model):
    Path("pairs.csv").write_text("user,rating\n1,3\n")
    assert (
        "pairs.csv has no item column"
        in run("predict", model, "pairs.csv", code=1).stderr
    )


# scree


def test_scree_is_the_svd_of_the_residuals(run, ratings):
    result = run("scree", ratings, "-k", 5)
    found = table(result)
    data = read_ratings(ratings)
    bias = Recommender("bias").fit(data).model
    dense = np.zeros(data.shape)
    users = data.user_index_of_nonzeros()
    dense[users, data.indices] = data.values - bias.predict(users, data.indices)
    s = np.linalg.svd(dense, compute_uv=False)
    assert found["singular_value"].to_list() == pytest.approx(s[:5], rel=1e-4)
    energy = s**2 / (s**2).sum()
    assert found["energy"].to_list() == pytest.approx(energy[:5], rel=1e-3)
    assert found["cumulative"].to_list() == pytest.approx(
        np.cumsum(energy)[:5], rel=1e-3
    )
    # The two kinds of films are one strong direction.
    assert (
        "ratings minus user and item biases: 5 singular values, elbow at 1"
        in result.stderr
    )


def test_scree_of_one_rating(run):
    Path("one.csv").write_text("user,item,rating\n1,2,3\n")
    assert "biases: 1 singular value, elbow at 1\n" in run("scree", "one.csv").stderr


def test_scree_asks_for_no_more_than_there_are(run, ratings):
    found = table(run("scree", ratings))
    assert len(found) == 30
    assert found["cumulative"][-1] == pytest.approx(1)


def test_scree_of_implicit_data(run, implicit):
    document = json.loads(run("scree", implicit, "-k", 2, "--json").stdout)
    assert document["decomposed"] == "implicit data"
    assert document["shape"] == [40, 30]
    assert document["frobenius_norm"] == pytest.approx(480**0.5)
    assert len(document["rows"]) == 2


def test_scree_table_has_bars(run, ratings):
    lines = run("scree", ratings, "-k", 3, "--format", "table").stdout.splitlines()
    bars = [line.split()[-1] for line in lines[2:]]
    assert bars[0] == "█" * 24
    assert len(bars[0]) > len(bars[1]) >= len(bars[2]) > 0


def test_scree_plot(run, ratings):
    run("scree", ratings, "-k", 4, "--plot", "scree.png", "--output", "scree.csv")
    assert Path("scree.png").read_bytes().startswith(b"\x89PNG")
    assert len(pl.read_csv("scree.csv")) == 4
    run("scree", ratings, "-k", 4, "--plot", "scree.svg")
    assert "<svg" in Path("scree.svg").read_text()
    run("scree", ratings, "-k", 4, "--plot", "scree.PDF")
    assert Path("scree.PDF").read_bytes().startswith(b"%PDF")
    said = run("scree", ratings, "--plot", "scree.txt", code=2).stderr
    assert "--plot must end in .png, .svg or .pdf; got scree.txt" in said
    said = run("scree", ratings, "--plot", "nowhere/x.png", code=1).stderr
    assert "there is no directory nowhere" in said


def test_scree_plot_without_matplotlib_names_the_extra(run, ratings, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    said = run("scree", ratings, "--plot", "x.png", code=1).stderr
    assert "lowrank-recsys[plot]" in said


# info and data


def test_info_of_the_installation(run):
    facts = json.loads(run("info", "--json").stdout)
    assert set(facts) == {
        "schema",
        "recsys",
        "libraries",
        "extras",
        "kernels",
        "settings",
    }
    extras = {"matplotlib", "jinja2", "fastapi", "uvicorn", "pyspark", "pyarrow"}
    assert set(facts["extras"]) == extras
    assert facts["recsys"]["memory, GB"] > 0.1
    assert Path(facts["recsys"]["installed in"]).name == "recsys"
    assert facts["libraries"]["numpy"] == np.__version__
    assert facts["kernels"]["backend"] in ("compiled", "reference")
    assert facts["kernels"]["cores"] >= 1
    assert "section,name,value" in run("info").stdout


def test_info_of_a_model(run, model):
    facts = json.loads(run("info", model, "--json").stdout)
    assert facts["model"]["model"] == "als"
    assert facts["parameters"]["factors"] == 4
    assert facts["training"]["ratings"] == 480


def test_inspect(run, ratings):
    result = run("data", "inspect", ratings, "--json")
    facts = json.loads(result.stdout)
    assert "user = userId" in facts["read_as"]
    counts = facts["ratings"]
    assert (counts["users"], counts["items"], counts["ratings"]) == (40, 30, 480)
    assert (counts["first"], counts["last"]) == ("2001-09-09", "2001-09-09")
    frame = pl.read_csv(ratings / "ratings.csv")
    values = dict(frame["rating"].value_counts().iter_rows())
    assert facts["values"]["mean"] == pytest.approx(frame["rating"].mean())
    assert facts["values"]["4.5"] == values[4.5]
    assert facts["ratings per user"]["median"] == 12
    (first, count), *_ = facts["most rated items"].items()
    most = (
        frame["movieId"]
        .value_counts()
        .sort(["count", "movieId"], descending=[True, False])
    )
    assert first.startswith(f"{most['movieId'][0]} Film ")
    assert count == most["count"][0]
    assert result.stderr.count("\n") == 1


def test_inspect_implicit_and_continuous(run, implicit):
    assert "values" not in json.loads(run("data", "inspect", implicit, "--json").stdout)
    rng = np.random.default_rng(0)
    pl.DataFrame(
        {"user": range(50), "item": 1, "rating": rng.normal(size=50)}
    ).write_csv("x.csv")
    values = json.loads(run("data", "inspect", "x.csv", "--json").stdout)["values"]
    assert set(values) == {
        "mean", "standard deviation", "minimum", "lower quarter", "median", "upper quarter",
        "maximum",
    }  # fmt: skip
    long = table(run("data", "inspect", "x.csv"))
    assert long.columns == ["section", "name", "value"]
    assert long["section"].null_count() == 0


def test_sample_and_the_command_it_prints(run):
    result = run("data", "sample")
    assert result.stdout == ""
    assert (Path("recsys-sample") / "README.md").exists()
    hint = result.stderr.splitlines()[-1].strip()
    words = shlex.split(hint)
    assert words[0] == "recsys"
    found = table(run(*words[1:]))
    assert len(found) == 10
    assert found["title"].null_count() == 0


def test_sample_does_not_overwrite(run):
    Path("here").mkdir()
    Path("here/notes.txt").write_text("mine")
    assert (
        "here exists already" in run("data", "sample", "--out", "here", code=1).stderr
    )
    run("data", "sample", "--out", "here", "--force")
    assert Path("here/notes.txt").read_text() == "mine"
    assert Path("here/ratings.csv").exists()
    assert [p.name for p in Path().iterdir()] == ["here"]
    Path("file").touch()
    assert (
        "file is a file"
        in run("data", "sample", "--out", "file", "--force", code=1).stderr
    )


def test_times_before_the_calendar(run):
    Path("x.csv").write_text(
        "user,item,rating,time\n1,7,3,0\n2,8,4,-90000000000\n"
    )  # 882 BC
    facts = run("data", "inspect", "x.csv").stdout
    assert "1970-01-01" in facts
    assert "-90000000000 s after 1970" in facts


def test_says_that_counts_are_interactions(run, plays):
    result = run("recommend", plays, "--user", 1, "-n", 3)
    assert "chose spectral" in result.stderr
    assert (
        "the ratings look like counts or amounts, from 1 to 40: implicit feedback"
        in result.stderr
    )
    assert (
        result.stdout
        == run("recommend", plays, "--user", 1, "-n", 3, "--implicit").stdout
    )


def test_updates_of_one_model_at_the_same_time_wait_for_each_other(ratings):
    fitted = Recommender("bias").fit(read_ratings(ratings))
    fitted.save("m")
    users = [9001, 9002, 9003]
    for user in users:
        Path(f"{user}.csv").write_text(f"user,item,rating,timestamp\n{user},100,4,1\n")
    with ExitStack() as stack:
        updates = [
            stack.enter_context(started(["update", "m", f"{user}.csv", "--force"]))
            for user in users
        ]
        assert [update.wait(60) for update in updates] == [0, 0, 0]
    updated = Recommender.load("m").ratings
    assert (updated.users.find(users) >= 0).all()
    assert updated.n_ratings == fitted.ratings.n_ratings + 3
    assert not list(Path().glob(".m*"))


def test_info_of_a_model_has_its_time_and_the_source_of_its_data(run, ratings):
    run("fit", ratings, "--model", "bias", "--out", "m")
    facts = json.loads(run("info", "m", "--json").stdout)["model"]
    assert datetime.fromisoformat(facts["created"]) <= datetime.now(UTC)
    assert facts["source"].startswith(
        "films/ratings.csv: comma-separated, user = userId, "
    )
    shown = run("info", "m", "--format", "table").stdout
    assert "movies.csv: title" in shown
    Path("new.csv").write_text("user,item,rating,timestamp\n1,100,4,1\n")
    run("update", "m", "new.csv", "--force")
    facts = json.loads(run("info", "m", "--json").stdout)["model"]
    assert facts["source"].startswith("new.csv and earlier ratings: comma-separated")


def test_facts_have_plain_numbers_for_programs(run, ratings):
    found = table(run("data", "inspect", ratings, "--format", "csv"))
    values = dict(
        found.filter(pl.col("section") == "ratings").select("name", "value").iter_rows()
    )
    assert values["ratings"] == "480"
    assert float(values["share filled"]) == 480 / 40 / 30
