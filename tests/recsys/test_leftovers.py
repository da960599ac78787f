"""Unfinished work beside its place, and what killed processes leave of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

import recsys
from recsys import atomic as leftovers
from recsys.atomic import old_one_of, put_in_place, unfinished_directory, unfinished_file

MARK = "0123abcd"


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_nothing_stays_after_an_error(tmp_path):
    for begin in (unfinished_directory, unfinished_file):
        work = begin(tmp_path / "m")
        work.__enter__()
        assert len(names(tmp_path)) == 1
        assert not work.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert names(tmp_path) == []


@pytest.mark.parametrize("begin", [unfinished_directory, unfinished_file])
def test_leftovers_are_removed_and_nothing_else(tmp_path, begin):
    (tmp_path / f".m.{MARK}.tmp").mkdir()
    (tmp_path / f".m.{MARK}.tmp" / "part").touch()
    (tmp_path / ".m.99999999.tmp").touch()
    (tmp_path / f".link.{MARK}.tmp").touch()
    (tmp_path / ".m.00000000.tmp").symlink_to(tmp_path / f".link.{MARK}.tmp")
    others = [f".n.{MARK}.tmp", ".m.tmp", f".m.{MARK}.tmp2", f".m2.{MARK}.tmp", f"m.{MARK}.tmp"]
    for name in others:
        (tmp_path / name).touch()
    with begin(tmp_path / "m"):
        pass
    assert names(tmp_path) == sorted([*others, f".link.{MARK}.tmp", ".m.00000000.tmp"])


def test_what_another_is_at_work_on_stays(tmp_path):
    with unfinished_directory(tmp_path / "m") as first, unfinished_file(tmp_path / "m") as second:
        with unfinished_directory(tmp_path / "m") as third:
            assert len({first, second[0], third}) == 3
        assert names(tmp_path) == sorted([first.name, second[0].name])


def test_an_old_one_is_removed_only_when_there_is_a_new_one(tmp_path):
    old, target = tmp_path / f".m.{MARK}.old", tmp_path / "m"
    old.mkdir()
    assert old_one_of(target) == old
    with unfinished_directory(target) as new:
        assert old.exists()
        put_in_place(new, target)
    assert old_one_of(target) is None
    with unfinished_directory(target):
        assert not old.exists()


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_directory_takes_the_place_of_another(tmp_path, monkeypatch, exchanges):
    if not exchanges:
        monkeypatch.setattr(leftovers, "_exchange", lambda first, second: False)
    target = tmp_path / "m"
    for text in ("first", "second"):
        with unfinished_directory(target) as new:
            (new / text).touch()
            put_in_place(new, target)
        assert names(target) == [text]
    assert names(tmp_path) == ["m"]


@pytest.mark.skipif(sys.platform != "linux", reason="two names are exchanged on Linux only")
def test_on_linux_there_is_never_nothing(tmp_path, monkeypatch):
    """Without `Path.rename`, an old one can be replaced by exchange only."""
    monkeypatch.setattr(Path, "rename", None)
    (tmp_path / "m").mkdir()
    with unfinished_directory(tmp_path / "m") as new:
        (new / "x").touch()
        put_in_place(new, tmp_path / "m")
    assert names(tmp_path / "m") == ["x"]


def test_a_killed_process_leaves_what_the_next_one_removes(tmp_path):
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from recsys.atomic import unfinished_directory\n"
        "with unfinished_directory(Path(sys.argv[1])):\n"
        "    print('working', flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "m")],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(Path(recsys.__file__).parents[1])},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"working\n"
    with unfinished_file(tmp_path / "m"):
        assert len(names(tmp_path)) == 2
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    process.stdout.close()
    assert len(names(tmp_path)) == 1
    with unfinished_file(tmp_path / "m"):
        assert len(names(tmp_path)) == 1
    assert names(tmp_path) == []


@pytest.mark.parametrize("begin", [unfinished_directory, unfinished_file])
def test_a_new_one_that_another_removed_before_it_was_locked_is_made_again(
    tmp_path, monkeypatch, begin
):
    """Another run may take it for a leftover before it is locked, or while."""
    pytest.importorskip("fcntl")
    made = []

    def open_too_late(path, *rest):
        made.append(path.name)
        if len(made) == 1:
            remove(path)
        lock = os.open(path, *rest)
        if len(made) == 2:
            remove(path)
        return lock

    def remove(path):
        path.rmdir() if path.is_dir() else path.unlink()

    system = SimpleNamespace(**vars(os) | {"open": open_too_late})
    monkeypatch.setattr(leftovers, "os", system)
    with begin(tmp_path / "m"):
        assert names(tmp_path) == [made[2]]
    assert len(set(made)) == 3
    assert names(tmp_path) == []


@pytest.mark.parametrize("begin", [unfinished_directory, unfinished_file])
def test_where_all_are_removed_at_once_it_is_given_up(tmp_path, monkeypatch, begin):
    @contextmanager
    def never_ours(path, *, wait=True):
        yield False

    monkeypatch.setattr(leftovers, "_locked", never_ours)
    with pytest.raises(FileNotFoundError, match="No such file"), begin(tmp_path / "m"):
        pytest.fail("there is nothing to work in")
    assert names(tmp_path) == []


@pytest.mark.parametrize("begin", [unfinished_directory, unfinished_file])
def test_where_nothing_can_be_locked_work_goes_on_and_all_else_stays(tmp_path, monkeypatch, begin):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    (tmp_path / f".m.{MARK}.tmp").mkdir()
    with begin(tmp_path / "m"):
        assert len(names(tmp_path)) == 2
    assert names(tmp_path) == [f".m.{MARK}.tmp"]


def test_without_an_exchange_of_names_one_is_put_aside(tmp_path, monkeypatch):
    def missing(*_, **__):
        raise OSError("no such library")

    monkeypatch.setattr("ctypes.CDLL", missing)
    target = tmp_path / "m"
    target.mkdir()
    with unfinished_directory(target) as new:
        (new / "x").touch()
        put_in_place(new, target)
    assert names(target) == ["x"]
    assert names(tmp_path) == ["m"]
