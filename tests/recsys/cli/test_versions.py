"""update, versions and monitor: the life of a saved model."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recsys import Recommender
from recsys.lsi import LSI

SECRET = "margarethe-von-trotta"


def table(result):
    return pl.read_csv(io.StringIO(result.stdout))


@pytest.fixture
def shop(tmp_path):
    """Events of users with names, one of whom wants to be forgotten, and a table of users."""
    rng = np.random.default_rng(0)
    users = [f"user-{n}" for n in range(30)] + [SECRET]
    rows = [(user, f"item-{i}") for user in users for i in rng.permutation(20)[:8]]
    frame = pl.DataFrame(rows, schema=["customer", "sku"], orient="row")
    frame = frame.with_columns(
        stars=pl.Series(rng.choice([1, 2, 3, 4, 5], len(rows))),
        at=pl.datetime_range(
            pl.datetime(2025, 1, 1),
            pl.datetime(2025, 1, 1) + pl.duration(hours=len(rows) - 1),
            interval="1h",
            eager=True,
        ).dt.to_string("%F %T"),
    )
    frame.write_csv("shop.csv")
    pl.DataFrame(
        {"customer": users, "town": ["Rome", "Oslo"] * 15 + ["Bremen"]}
    ).write_csv("p.csv")
    columns = ["--user-col", "customer", "--item-col", "sku", "--timestamp-col", "at"]
    return "shop.csv", [*columns, "--user-table", "p.csv"]


def files_with(folder, text):
    known = [path for path in Path(folder).rglob("*") if path.is_file()]
    assert len(known) > 5
    return [path for path in known if text.encode() in path.read_bytes()]


# update


@pytest.mark.covering(1)
@pytest.mark.parametrize("model", ["als", "ease", "popular"])
@pytest.mark.parametrize("refit", [(), ("--refit",)])
def test_no_file_of_a_model_and_no_log_knows_a_forgotten_user(run, shop, model, refit):
    data, columns = shop
    run("fit", data, *columns, "--model", model, "--out", "m")
    run("evaluate", "m", "--test", data, code=1)  # whose ratings it was fitted to
    assert files_with("m", SECRET)
    lines = [{"user": who, "item": "item-1"} for who in ("user-1", SECRET, "user-2")]
    log = "".join(json.dumps(each) + "\n" for each in lines)
    Path("events.jsonl").write_text(log)
    Path("clicks.csv").write_text(f"customer,sku\nuser-1,item-1\n{SECRET},item-2\n")
    size = Path("events.jsonl").stat().st_size
    forget = ["update", "m", "--forget-user", SECRET, "--force", *refit]
    assert (
        "clicks.csv is not a log"
        in run(*forget, "--log", "clicks.csv", "--out", "n", code=1).stderr
    )
    result = run(*forget, "--log", "events.jsonl")
    assert not files_with("m", SECRET)
    assert not files_with("m", "Bremen")
    assert SECRET not in (left := Path("events.jsonl").read_text())
    assert [json.loads(line)["user"] for line in left.splitlines() if line.strip()] == [
        "user-1",
        "user-2",
    ]
    assert Path("events.jsonl").stat().st_size == size  # others may be appending to it
    assert "removed 1 line from events.jsonl" in result.stderr
    assert ("--refit removes that, too" in result.stderr) == (
        model != "popular" and not refit
    )
    assert "Unknown user" in run("recommend", "m", "--user", SECRET, code=1).stderr
    assert table(run("recommend", "m", "--user", "user-3", "-n", 2)).height == 2
    assert (
        "Unknown user"
        in run("update", "m", "--forget-user", SECRET, "--force", code=1).stderr
    )


def test_an_update_may_be_repeated_and_counts_known_events(run, shop):
    data, columns = shop
    new = "customer,sku,stars,at\nuser-1,item-99,5,2025-01-11\nuser-2,item-99,5,2025-01-11\n"
    Path("new.csv").write_text(new)
    update = ["update", "m", "new.csv", "--force", "--window", "30d"]
    for options in ([], ["--implicit", "--half-life", "30d"]):
        run(
            "fit",
            data,
            *columns,
            *options,
            "--model",
            "popular",
            "--out",
            "m",
            "--force",
        )
        dry = run("update", "m", "new.csv", "--dry-run", "--window", "30d").stderr
        assert "2 new events" in dry
        assert "2 new events" in run(*update).stderr
        assert "0 new events, 2 known already" in run(*update).stderr


@pytest.mark.parametrize("column", [(), ("--timestamp-col", "at")])
def test_events_of_the_service_update_a_model_with_a_format_of_times(run, column):
    Path("old.csv").write_text("user,item,at\nu1,a,31.01.2025\nu2,b,01.02.2025\n")
    column = [*column, "--time-format", "%d.%m.%Y"]
    if "--timestamp-col" not in column:
        Path("old.csv").write_text(
            Path("old.csv").read_text().replace(",at", ",timestamp")
        )
    run("fit", "old.csv", *column, "--model", "popular", "--out", "m")
    event = {
        "user": "u1",
        "item": "b",
        "value": None,
        "timestamp": "2025-02-03T10:00:00Z",
    }
    Path("ev.jsonl").write_text(json.dumps(event))
    run("update", "m", "ev.jsonl", "--force")
    assert Recommender.load("m").provenance.period[1] == "2025-02-03T10:00:00+00:00"


def test_who_is_only_in_a_log_is_removed_from_it(run, shop):
    data, columns = shop
    run("fit", data, *columns, "--model", "als", "--factors", 4, "--out", "m")
    lines = [{"user": who, "item": "item-1"} for who in ("7777", "user-1", "8888")]
    Path("ev.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    forget = ["update", "m", "--force", "--forget-user"]
    said = run(*forget, "7777", "--log", "ev.jsonl").stderr
    assert "not in the model, only in the logs: 7777" in said
    assert "removed 1 line from ev.jsonl" in said
    assert "the items keep" not in said
    assert "7777" not in Path("ev.jsonl").read_text()
    both = run(*forget, f"8888,{SECRET}", "--log", "ev.jsonl").stderr
    assert "only in the logs: 8888" in both
    assert "the items keep" in both
    assert not files_with("m", SECRET)
    assert (
        "Unknown user '9999'"
        in run(*forget, "9999", "--log", "ev.jsonl", code=1).stderr
    )


def test_logs_are_checked_before_the_model_is_saved(run, shop):
    data, columns = shop
    run("fit", data, *columns, "--model", "bias", "--out", "m")
    before = Path("m/model.json").read_bytes()
    forget = ["update", "m", "--force", "--forget-user", SECRET, "--log"]
    assert "There is no log typo.jsonl" in run(*forget, "typo.jsonl", code=1).stderr
    assert Path("m/model.json").read_bytes() == before


def test_forgetting_names_the_models_that_still_know_the_user(run, shop):
    data, columns = shop
    Path("models").mkdir()
    run("fit", data, *columns, "--model", "bias", "--out", "models/a")
    said = run(
        "update", "models/a", "--forget-user", SECRET, "--out", "models/b"
    ).stderr
    assert "still known by models/a" in said.replace(f"{Path.cwd()}/", "")


def test_an_update_remembers_columns_tables_and_the_window(run, shop):
    data, columns = shop
    run("fit", data, *columns, "--model", "als", "--factors", 4, "--out", "m")
    new = "customer,sku,stars,at\nuser-1,item-99,5,2025-01-11 00:00:00\n"
    Path("new.csv").write_text(new)
    said = run(
        "update", "m", "new.csv", "--out", "m2", "--window", "7d", "--tag", "week"
    ).stderr
    assert "user = customer, item = sku, rating = stars" in said
    updated = Recommender.load("m2")
    assert updated.ratings.n_ratings < 248
    assert updated.provenance.tag == "week"
    row = new.replace("01-11", "01-21").splitlines()[1]
    Path("later.csv").write_text(f"customer,sku,stars,at\n{row}\n")
    said = json.loads(run("info", "m2", "--json").stdout)["model"]
    assert said["tag"] == "week"
    assert "user = customer, item = sku" in said["remembered for updates"]
    assert "window = 7d" in said["remembered for updates"]
    said = run("update", "m2", "later.csv", "--force", code=1).stderr
    assert (
        "--window 7d counts from the newest event (user 'user-1', item 'item-99': 2025"
        in said
    )
    rows = [row.replace("user-1", f"user-{n}") for n in range(20)]
    Path("later.csv").write_text("\n".join(["customer,sku,stars,at", *rows]))
    run("update", "m2", "later.csv", "--force")
    assert Recommender.load("m2").ratings.n_ratings == 20
    log = {
        "user": "user-1",
        "item": "item-3",
        "value": 4,
        "timestamp": "2025-01-11T00:00:00Z",
    }
    Path("log.jsonl").write_text(json.dumps(log) + "\n")
    Path("p.csv").unlink()  # the model has its own copy
    said = run("update", "m", "log.jsonl", "--out", "m3").stderr
    assert "user = user, item = item, rating = value" in said
    assert Recommender.load("m3").ratings.user_table is not None


def test_an_update_says_what_it_did_and_why(run, model):
    Path("new.csv").write_text(
        "user,item,rating,time\n77,500,4.5,2004-06-01\n77,101,2,2004-06-01\n"
    )
    said = run("update", model, "new.csv", "--out", "m2").stderr
    assert "folded in 1 user (1 new) and 2 items (1 new), without a new fit" in said
    facts = json.loads(run("info", "m2", "--json").stdout)
    assert facts["training"]["update"].startswith("folded in 1 user")
    assert facts["model"]["parent"] == Recommender.load(model).provenance.version
    said = run("update", "m2", "new.csv", "--force", "--refit").stderr
    assert "fitted again: as requested" in said
    said = run("update", model, "--out", "m3", code=2).stderr
    assert "Give RATINGS, --window, --forget-user, --refit or --item-table." in said
    said = run(
        "update", model, "new.csv", "--log", "x.jsonl", "--out", "m3", code=2
    ).stderr
    assert "--log requires --forget-user." in said
    said = run(
        "update", model, "new.csv", "--out", "m3", "--window", "a while", code=1
    ).stderr
    assert "window must be a duration in s, min, h, d, w or y, such as 30d" in said


# versions


@pytest.fixture
def models(run, ratings, model):
    """Two versions, of which the second is measured."""
    Path("models").mkdir()
    run("split", ratings, "--out", "p")
    run(
        "fit", "p/train.csv", "--model", "bias", "--out", "models/one", "--tag", "first"
    )
    shutil.copytree(model, "models/old")
    run("evaluate", "models/one", "--test", "p/test.csv")
    return Path("models")


def test_versions_are_listed_with_what_was_measured(run, models):
    # An index of texts among them is no version.
    LSI(2).fit(["salt and ice", "ice and water", "cats"]).save(models / "texts")
    found = table(run("versions", "list", models))
    assert set(found["version"]) == {"old", "one"}
    one = found.filter(pl.col("version") == "one").row(0, named=True)
    assert (one["tag"], one["model"], one["test"], one["latest"]) == (
        "first",
        "bias",
        "p/test.csv",
        False,
    )
    measured = table(run("evaluate", "models/one", "--test", "p/test.csv"))
    assert one["rmse"] == measured["rmse"][0]
    assert len(json.loads(Path("models/one/metrics.json").read_text())["measured"]) == 2
    Path("new.csv").write_text("user,item,rating,time\n77,500,4.5,2004-06-01\n")
    run("update", "models/one", "new.csv", "--out", "models/two")
    rows = json.loads(run("versions", "list", models, "--json").stdout)["versions"]
    two = next(row for row in rows if row["version"] == "two")
    assert (two["parent"], two["rmse"], two["tag"]) == ("one", None, None)
    assert two["id"].startswith("bias@")
    run("info", "models/one")  # which the file of metrics does not damage
    Recommender.load("models/one", verify=True)
    Path("models/one/metrics.json").write_text("{}[")
    assert "metrics.json is damaged" in run("versions", "list", models, code=1).stderr


def test_metrics_are_not_those_of_a_model_that_replaced_the_measured_one(
    run, models, monkeypatch
):
    from recsys.cli import evaluate as verb

    measure = verb._run

    def replaced_meanwhile(request, **options):
        result = measure(request, **options)
        Recommender.load(models / "old").save(models / "one", overwrite=True)
        return result

    monkeypatch.setattr(verb, "_run", replaced_meanwhile)
    (models / "one" / "metrics.json").unlink()
    # Without a line, a job that is quiet would lack them in silence.
    said = run("evaluate", "models/one", "--test", "p/test.csv", "--quiet").stderr
    reason = "it was replaced while it was measured"
    assert said == f"the metrics are not kept next to models/one: {reason}\n"
    assert not (models / "one" / "metrics.json").exists()


def test_the_link_moves_and_every_command_follows_it(run, models):
    assert "latest is one\n" in run("versions", "promote", "models/one").stderr
    assert Path("models/latest").readlink() == Path("one")
    assert (
        "latest is old (it was one)" in run("versions", "promote", "models/old/").stderr
    )
    found = table(run("versions", "list", models))
    assert dict(zip(found["version"], found["latest"], strict=True)) == {
        "old": True,
        "one": False,
    }
    assert "* latest" in run("versions", "list", models, "--format", "table").stdout
    assert run("recommend", "models/latest", "--user", 1).stdout == (
        run("recommend", "models/old", "--user", 1).stdout
    )
    Path("new.csv").write_text("user,item,rating,time\n77,500,4.5,2004-06-01\n")
    run("update", "models/latest", "new.csv", "--force")
    assert Path("models/latest").readlink() == Path("old")
    assert 77 in Recommender.load("models/old").ratings.users.values


def test_what_cannot_be_promoted(run, models):
    (models / "one" / "arrays" / "item_bias.npy").write_bytes(b"")
    assert "is damaged" in run("versions", "promote", "models/one", code=1).stderr
    said = run("versions", "promote", "models/latest", code=1).stderr
    assert "models/latest is the link itself; name the version" in said
    (models / "latest").mkdir()
    said = run("versions", "promote", "models/old", code=1).stderr
    assert "models/latest is a directory, not a link; move it away." in said
    assert "has no saved models" in run("versions", "list", "p", code=1).stderr
    assert (
        "There is no directory nowhere"
        in run("versions", "list", "nowhere", code=1).stderr
    )


# monitor


def test_monitor_in_one_table_and_as_a_gate(run, models):
    rows = pl.read_csv("p/test.csv")
    more = pl.DataFrame({"user": [991, 992], "item": [100, 777], "rating": [4.0, 2.0]})
    rows.select("user", "item", pl.col("rating").cast(pl.Float64)).vstack(
        more
    ).write_csv("new.csv")
    found = {
        row["name"]: row
        for row in table(run("monitor", "models/one", "new.csv")).to_dicts()
    }
    assert found["new_ratings"]["value"] == 50
    n_users = rows["user"].n_unique() + 2
    assert found["unknown_users"]["value"] == pytest.approx(2 / n_users)
    assert found["unknown_ratings"]["value"] == 0.04
    assert found["rmse"]["low"] < found["rmse"]["value"] < found["rmse"]["high"]
    assert found["rmse"]["value"] == pytest.approx(
        found["rmse"]["reference"]
    )  # as measured
    gates = ["--fail-if", "unknown_users > 0.5", "--fail-if", "rmse > 0.01"]
    failed = run("monitor", "models/one", "new.csv", *gates, "--json", code=1)
    assert 'Failed by "rmse > 0.01": rmse of bias is' in failed.stderr
    assert 'not "unknown_users > 0.5"' in failed.stderr
    answer = json.loads(failed.stdout)
    assert answer["model"].startswith("bias@")
    assert {row["drift"] for row in answer["groups"]} == {"ratings", "popularity"}
    said = run(
        "monitor", "models/one", "new.csv", "--fail-if", "rsme > 1", code=2
    ).stderr
    assert "No value is named 'rsme'; there are rmse" in said


def test_ids_in_another_writing_are_named(run, models):
    rows = pl.read_csv("p/test.csv")
    n_users = rows["user"].n_unique()
    rows.with_columns(user=pl.format("u{}", "user")).write_csv("new.csv")
    said = f"of the {n_users} new users, {n_users} differ from known ones only in"
    assert said in run("monitor", "models/one", "new.csv").stderr
    failed = run("evaluate", "models/one", "--test", "new.csv", code=1).stderr
    assert said in " ".join(failed.split())


def test_monitor_names_the_reason_without_metrics(run, models):
    known = Recommender.load("models/one").ratings.to_frame()
    known.head(20).write_csv("repeated.csv")
    gate = ["--fail-if", "ndcg[popularity=head] < 0.1"]
    result = run("monitor", "models/one", "repeated.csv", *gate, code=1)
    assert "no metrics and no groups: no new rating has a known user" in result.stderr


def test_monitor_writes_a_section_of_the_report(run, models):
    pytest.importorskip("jinja2")
    run("monitor", "models/one", "p/test.csv", "--report", "day.html")
    page = Path("day.html").read_text()
    assert "Monitoring of new ratings" in page
    assert "popularity_drift" in page
    assert "change of the popularity of items: " in page
    assert "Share of the ratings by popularity of the item" in page


def test_interactions_are_called_interactions(run, plays, ratings):
    Path("models").mkdir()
    run("fit", plays, "--implicit", "--model", "popular", "--out", "models/plays")
    facts = table(run("info", "models/plays"))
    training = facts.filter(pl.col("section") == "training")["name"].to_list()
    assert "interactions" in training
    assert "ratings" not in training
    assert table(run("versions", "list", "models"))["interactions"][0] == 480
    run("fit", ratings, "--model", "popular", "--out", "models/stars")
    # Next to a model with ratings, all numbers are of ratings.
    assert table(run("versions", "list", "models"))["ratings"].to_list() == [480, 480]
