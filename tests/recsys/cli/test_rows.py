"""Options that say which rows count, and how much."""

import json
from pathlib import Path

import polars as pl
import pytest

pytestmark = pytest.mark.usefixtures("one_fold")

EVENTS = """user,item,action,at
a,x,view,2025-06-01 09:00:00+00
a,x,buy,2025-06-02 09:00:00+00
a,y,view,2025-06-03 09:00:00+00
b,x,view,2025-06-04 09:00:00 UTC
b,z,cart,2025-06-05 09:00:00+02
c,z,view,2025-06-06 09:00:00
"""


@pytest.fixture
def events(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("events.csv").write_text(EVENTS)
    return "events.csv"


AT = ("--timestamp-col", "at")
WEIGHTS = ("--event-weight", "buy=5,cart=3,view=1")


def test_events_are_weighed_and_said(run, events):
    plain = run("data", "inspect", events, *AT, "--json")
    assert "count equally: view 4, " in plain.stderr
    found = run("data", "inspect", events, *AT, *WEIGHTS, "--json")
    assert "events: view 4 x 1, " in found.stderr
    document = json.loads(found.stdout)
    assert document["weights"]["6"] == 1
    assert document["fit would choose"]["model"] == "spectral"
    assert "weighted interactions" in document["fit would choose"]["because"]


def test_what_inspect_announces_is_what_fit_chooses(run, events):
    Path("plays.csv").write_text("user,item,plays\na,x,300\na,y,1\nb,y,2\nb,x,3\n")
    for path in (events, "plays.csv"):
        facts = json.loads(run("data", "inspect", path, "--json").stdout)
        told = facts["fit would choose"]
        fitted = run("fit", path, "--out", "m", "--force").stderr
        assert f"chose {told['model']}, " in fitted
        assert f": {told['because']}\n" in fitted
        assert facts["ratings"]["kind"] == "implicit"


def test_weights_reach_the_scores(run, events):
    weighed = table_of(run, events, *WEIGHTS)
    assert table_of(run, events)["score"].to_list() != weighed["score"].to_list()
    assert weighed["score"].max() == 7  # x: 6 of a, 1 of b
    halved = table_of(run, events, *WEIGHTS, "--half-life", "1d")
    assert halved["score"].max() < 7


def table_of(run, path, *options):
    command = ("recommend", path, "--all", "--model", "popular", "--include-seen", *AT)
    return pl.read_csv(run(*command, *options).stdout.encode())


def test_a_range_of_time(run, events):
    found = run(
        "data", "inspect", events, *AT, "--since", "2025-06-02", "--until", "2025-06-04"
    )
    assert "2 of 6 rows since 2025-06-02 until 2025-06-04" in found.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--event-weight", "buy"),
            "must be KIND=WEIGHT,..., such as purchase=5,view=1; got 'buy'",
        ),
        (
            ("--bad-rows", "5"),
            "bad_rows must be error, skip, or a share below 1",
        ),
        (("--half-life", "soon"), "half_life must be a duration"),
        (("--since", "soon"), "since must be a date or time"),
        (
            ("--time-format", "DD/MM"),
            "must be s, ms, us, ns, min, h, d, excel, ticks, filetime, or have the parts",
        ),
        (
            ("--event-weight", "buy=1"),
            "There are events without a weight: view (4), cart (1)",
        ),
        (
            ("--event-weight", "buy=1,x=1", "--event-weight", "cart=3"),
            "There are events without a weight: view (4); give",
        ),
        (
            ("--event-weight", "view=1", "--event-weight", "view=3"),
            "'view' has two values, 1.0 and 3.0; give one.",
        ),
        (("--event-weight", "view=1,buy=2,view=3"), "'view' has two values"),
    ],
)
def test_wrong_values_are_named(run, events, options, message):
    result = run(
        "data",
        "inspect",
        events,
        *options,
        code=2 if "KIND=WEIGHT" in message or "two values" in message else 1,
    )
    assert message in " ".join(result.stderr.split())


def test_rejects_two_values_of_a_parameter(run, events):
    words = (
        "fit",
        events,
        *WEIGHTS,
        "--model",
        "ials",
        "-p",
        "factors=3",
        "--out",
        "m",
    )
    stderr = run(*words, "-p", "factors=4", code=2).stderr
    assert "'factors' has two values, 3 and 4; give one." in stderr
    run(*words, "-p", "factors=3", "-p", "iterations=2")


def test_a_model_that_does_not_use_weights_says_so(run, events):
    fast = ("--factors", "2", "--iterations", "1")
    result = run(
        "fit", events, *WEIGHTS, "--model", "implicit-bpr", "--out", "m", *fast
    )
    assert "implicit-bpr does not use the weights of interactions" in result.stderr
    Path("test.csv").write_text("user,item,action\na,z,buy\nc,x,buy\n")
    pair = ("--train", events, "--test", "test.csv")
    result = run(
        "evaluate",
        *pair,
        "--event-weight",
        "*=1",
        "--duplicates",
        "sum",
        "--model",
        "popular,random",
    )
    assert "random does not use the weights of interactions" in result.stderr


def test_bad_rows_are_reported_with_their_places(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("r.csv").write_text("user,item,rating\n1,2,3\n1,3\n2,2,4\n2,4,x\n")
    result = run("data", "inspect", "r.csv", "--bad-rows", "50%")
    assert "2 bad rows left out" in result.stderr
    assert "skipped: r.csv, line 3: found 2 fields, expected 3." in result.stderr
    assert "skipped: r.csv, line 5: rating 'x' is not a number." in result.stderr


def test_a_block_file_with_users_is_for_each_alone(run, events):
    Path("blocked.csv").write_text("user,item\na,z\nc,y\n")
    command = ("recommend", events, "--all", "--model", "popular", *AT)
    free = pl.read_csv(run(*command).stdout.encode()).select("user", "item").rows()
    result = run(*command, "--block", "blocked.csv")
    left = pl.read_csv(result.stdout.encode()).select("user", "item").rows()
    assert "blocked.csv blocks 2 pairs of a user and an item" in result.stderr
    assert set(free) - set(left) == {("a", "z"), ("c", "y")}
    Path("z.txt").write_text("z\n")
    left = pl.read_csv(run(*command, "--block", "z.txt").stdout.encode())
    assert "z" not in left["item"].to_list()


def test_says_whom_a_block_file_is_for(run, events):
    """A column of users with an unusual name is not one, and A is not the user a."""
    Path("blocked.csv").write_text("user,item\na,z\nA,y\n")
    command = ("recommend", events, "--all", "--model", "popular", *AT)
    said = run(*command, "--block", "blocked.csv").stderr
    assert "1 of 2 rows are of users that are not in the data, ignored" in said
    assert "blocked.csv blocks 1 pair of a user and an item" in said
    Path("blocked.csv").write_text("person,item\na,z\nc,y\n")
    said = run(*command, "--block", "blocked.csv").stderr
    assert "blocked.csv blocks 2 items for all users" in said


def test_histories_of_new_users_are_weighed_as_well(run, events):
    run("fit", events, *AT, *WEIGHTS, "--model", "ease", "--out", "m")
    history = "item,action,at\nx,view,2025-06-01\nx,buy,2025-06-02\ny,view,2025-06-03\n"
    Path("mine.csv").write_text(history)
    Path("weights.csv").write_text("item,rating\nx,6\ny,1\n")
    command = ("recommend", "m", "--format", "csv", "--history")
    weighed = run(*command, "mine.csv", *AT, *WEIGHTS).stdout
    assert weighed == run(*command, "weights.csv").stdout
    assert weighed == run(*command, "mine.csv").stdout  # by the weights of the model


CLICKS = "user,item,at\n" + "".join(
    f"u{n % 20},i{n * n % 31},2025-06-{n // 10 + 1:02}\n" for n in range(200)
)
FUTURE = CLICKS + "u1,i7,2035-01-01 00:00:00\nu2,i8,9999-12-31\n"
LEFT_OUT = (
    "1 row after the present time left out (future.csv, line 202: 2035-01-01); 1 row left out "
    'whose time means "never" (future.csv, line 203: 9999-12-31)'
)


@pytest.mark.parametrize(
    "command",
    [
        ("fit", "future.csv", "--model", "popular", "--out", "m"),
        ("recommend", "future.csv", "--model", "popular", "--user", "u1"),
        ("evaluate", "future.csv", "--model", "popular"),
        ("compare", "future.csv", "--model", "popular", "--model", "random"),
        ("split", "future.csv", "--out", "parts"),
        ("data", "inspect", "future.csv"),
    ],
)
def test_rows_of_the_future_are_left_out_by_every_verb_and_named(run, events, command):
    Path("future.csv").write_text(FUTURE)
    assert LEFT_OUT in run(*command, *AT).stderr
    forced = ["--force"] if "--out" in command else []
    earlier = run(*command, *AT, *forced, "--as-of", "2025-06-17").stderr
    assert (
        "21 rows after the present time left out (future.csv, line 182: 2025-06-19;"
        in earlier
    )


def test_a_row_of_the_future_does_not_change_the_lists(run, events):
    Path("future.csv").write_text(FUTURE)
    Path("clicks.csv").write_text(CLICKS)
    plain = table_of(run, "clicks.csv", "--half-life", "3d")
    assert table_of(run, "future.csv", "--half-life", "3d").equals(plain)


def test_the_present_time_may_be_a_setting_and_is_shown(run, events):
    Path("recsys.toml").write_text('as_of = "2025-06-04"\n')
    said = run("fit", events, *AT, "--model", "popular", "--out", "m").stderr
    assert "2 rows after the present time left out" in said
    assert json.loads(run("info", "m", "--json").stdout)["model"]["as of"].startswith(
        "2025-06-04"
    )
    said = run("fit", events, *AT, "--as-of", "soon", "--out", "n", code=1).stderr
    assert "as_of must be a date or time, such as 2024-01-31; got 'soon'" in said
    Path("recsys.toml").unlink()
    said = run("update", "m", events, *AT, "--force").stderr
    assert "left out" not in said
    assert not json.loads(run("info", "m", "--json").stdout)["model"][
        "as of"
    ].startswith("2025-06")


def test_causes_of_bad_rows_are_counted_by_the_command(run, events):
    rows = [
        f"{'' if n < 3 else n};a;{'2025-10' if n < 8 else '18.10.2025'}"
        for n in range(12)
    ]
    Path("de.csv").write_text("\n".join(["customer_id;sku;zeit", *rows]))
    said = run("data", "inspect", "de.csv", "--timestamp-col", "zeit", code=1).stderr
    assert (
        "8 of 12 rows cannot be read: 8 rows, the first de.csv, line 2: time '2025-10'"
        in said
    )
    assert "3 rows, the first de.csv, line 2: the user id is missing." in said
    limited = ("--timestamp-col", "zeit", "--bad-rows", "20%")
    said = run("data", "inspect", "de.csv", *limited, code=1).stderr
    assert (
        "8 rows of 12 (67%) cannot be read, more than 20%: 8 rows, the first de.csv"
        in said
    )
    assert "100%" not in said
