"""Lines of users in logs: found as the reader reads them, erased in place, counted if not."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from recsys import Recommender
from recsys.errors import DataError
from recsys.saving.versions import models_knowing
from recsys.user_logs import WantedUsers, erase_users, search_log


@pytest.mark.parametrize("user", [1, 1.0, "1", "1.0"])
@pytest.mark.parametrize(
    "record",
    [
        lambda user: {"user": user, "item": "a"},
        lambda user: {"users": [3, user], "n": 2},
        lambda user: {"who": user, "item": 2},
        lambda user: {"customer_id": user, "item": "2"},
        lambda user: {"context": {"user": {"id": user}}, "item": 2},
        lambda user: {"session": 7, "events": [{"user": 2}, {"user": user}]},
    ],
)
def test_lines_are_found_by_the_ids_and_columns_that_the_reader_knows(
    tmp_path, user, record
):
    column = "context.user.id" if "context" in record(1) else "who"
    log = tmp_path / "log.jsonl"
    others = [record(11), record("10"), record("1x"), record(None)]
    lines = [json.dumps(each) for each in [*others, record(user), *others]]
    log.write_text("\n".join(lines) + "\n")
    wanted = WantedUsers(["1"], column, are_integers=True)
    assert search_log(log, wanted).users == {"1"}
    search = erase_users(log, wanted)
    assert (search.n_lines, search.n_unreadable) == (1, 0)
    left = log.read_text().split("\n")
    assert not left.pop(len(others)).strip()
    assert left == [*lines[:4], *lines[5:], ""]
    assert erase_users(log, wanted).n_lines == 0


def test_texts_are_compared_as_they_are(tmp_path):
    log = tmp_path / "log.jsonl"
    users = ["007", 7, "7", "7.0", "Zoë", "Zoe\u0308"]
    log.write_text("".join(json.dumps({"user": user}) + "\n" for user in users))
    assert erase_users(log, WantedUsers(["7", "Zoë"])).n_lines == 3
    assert [
        json.loads(line)["user"] for line in log.read_text().split("\n") if line.strip()
    ] == [
        "007",
        "7.0",
        "Zoe\u0308",
    ]


def test_lines_that_cannot_be_read_are_counted_and_stay(tmp_path):
    log = tmp_path / "log.jsonl"
    unclean = [
        b'{"user": 9001, "it',
        b"\xff\xfe\x00",
        b'{"user": "9001\xff"}',
        b"[9001]",
        b"not JSON",
        b'{"item": 9001}',
        b'{"a":' * 3000 + b"1" + b"}" * 3000,
        b"\0\0\0\0",
        b'{"user": 19001',
    ]
    log.write_bytes(b"\n".join([b'{"user": 9001}', b"", *unclean, b'{"user": "9001"}']))
    search = erase_users(log, WantedUsers(["9001"], are_integers=True))
    assert (search.n_lines, search.n_unreadable, search.first_unreadable) == (2, 9, 3)
    assert search.n_suspicious == 4
    assert str(search).startswith(
        "9 lines cannot be read as events (the first is line 3); 4 of"
    )
    assert log.read_bytes().split(b"\n")[2:-1] == unclean


@pytest.mark.parametrize("name", ["nowhere.jsonl", "table.csv"])
def test_rejects_a_file_that_is_not_a_log(tmp_path, name):
    (tmp_path / "table.csv").write_text("user,item\n1,2\n")
    with pytest.raises(DataError, match=r"There is no log|is not a log of JSON lines"):
        search_log(tmp_path / name, WantedUsers(["1"]))


@pytest.fixture
def versions(tmp_path):
    """Versions next to other directories with models; all know 1, and some 2."""
    frame = pl.DataFrame({"user": [1, 2, 3], "item": [5, 6, 5]})
    every, some = (Recommender("popular").fit(frame[:n]) for n in (3, 1))
    for name, recommender in {
        "shop/versions/a": every,
        "shop/versions/b": every,
        "shop/versions/c": some,
        "shop/old": every,
        "shop/backup/may": every,
        "shop/.versions.01234567.tmp": every,
        "elsewhere/d": every,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        recommender.save(tmp_path / name)
    (tmp_path / "shop/versions/latest").symlink_to("b")
    (tmp_path / "shop/versions/next").symlink_to(tmp_path / "elsewhere/d")
    return tmp_path


def test_models_and_versions_that_know_a_user_are_found(versions, monkeypatch):
    monkeypatch.chdir(versions)
    around = ["shop/backup/may", "shop/old", "shop/versions/a", "shop/versions/b"]
    found = models_knowing(["2", "x"], ["shop/versions/latest"])
    shown = sorted(str(path).removeprefix(f"{versions}/") for path in found.models)
    assert shown == [*around, "shop/versions/next"]
    assert found.unreadable == []
    assert [path.name for path in models_knowing(["2"], ["shop/old"]).models] == [
        *("may", "old", "a", "b"),
        "next",
    ]
    assert models_knowing(["4"], ["shop/versions/latest"]).models == []


def test_models_that_cannot_be_read_are_named(versions):
    array = versions / "shop/versions/c/users/0.npy"
    array.write_bytes(array.read_bytes()[:-1])
    found = models_knowing(["1"], [versions / "shop/versions/a"])
    assert [path.name for path in found.unreadable] == ["c"]


@pytest.fixture
def shop(tmp_path, monkeypatch):
    from click.testing import CliRunner

    from recsys.cli.main import cli

    monkeypatch.chdir(tmp_path)
    users = [user for user in range(1, 21) for _ in range(4)]
    items = [(3 * user + 5 * n) % 11 for user in range(1, 21) for n in range(4)]
    pl.DataFrame({"who": users, "item": items}).write_csv("events.csv")

    def run(*args, code=0):
        result = CliRunner().invoke(cli, [*map(str, args)])
        assert result.exit_code == code, result.output
        return result.stderr

    Path("versions").mkdir()
    reading = ["events.csv", "--user-col", "who", "--model", "popular"]
    run("fit", *reading, "--out", "versions/a")
    run("fit", *reading, "--out", "versions/b")
    return run


@pytest.mark.parametrize("form", ["txt", "csv", "parquet", "jsonl", "json"])
def test_users_of_a_list_are_forgotten(shop, form):
    ids = pl.DataFrame({"who": [3, 4, 99]})
    if form == "txt":
        Path("ids.txt").write_text("3\n4\n99\n")
    elif form == "csv":
        ids.write_csv("ids.csv")
    elif form == "json":
        Path("ids.json").write_text("[3, 4,\n 99]\n")
    elif form == "jsonl":
        ids.write_ndjson("ids.jsonl")
    else:
        ids.write_parquet("ids.parquet")
    lines = [{"user": "3"}, {"user": 4.0}, {"user": 5}, {"who": 99}]
    Path("log.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines) + "{"
    )
    update = [
        "update",
        "versions/a",
        "--forget-users",
        f"ids.{form}",
        "--log",
        "log.jsonl",
    ]
    said = " ".join(shop(*update, "--forget-user", "5", "--force").split())
    assert "not in the model, only in the logs: 99" in said
    assert "removed 4 lines from log.jsonl" in said
    assert "log.jsonl: 1 line cannot be read as events (the first is line 5)" in said
    assert "still known by versions/b; to forget there, too:" in said
    options = f"--forget-user 5 --forget-users ids.{form}"
    command = f'for m in versions/b; do recsys update "$m" {options}'
    assert command in said
    known = Recommender.load("versions/a").ratings.users.values.to_list()
    assert known == [user for user in range(1, 21) if user not in (3, 4, 5)]
    said = " ".join(shop(*update, "--force").split())  # may be repeated
    assert "3 of 3 users of" in said
    assert "are not in the model: '3', '4', '99'" in said
    assert "Unknown user 5" in shop(*update, "--forget-user", "5", "--force", code=1)


def test_torn_lines_are_named(shop):
    Path("log.jsonl").write_text('{"user": 5}\n')
    Path("log.jsonl.torn").write_text('{"user": 7, "it\n{"user": 71\n')
    said = shop(
        "update", "versions/a", "--forget-user", "7", "--log", "log.jsonl", "--force"
    )
    assert "log.jsonl.torn: 1 torn line may name these users" in " ".join(said.split())
