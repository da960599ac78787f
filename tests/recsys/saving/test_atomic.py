"""Temporary files and directories next to their place."""

import errno
import os
import shutil
import threading
from pathlib import Path

import pytest

from recsys.saving import atomic
from recsys.saving.atomic import put_in_place, unfinished_directory, unfinished_file


def names(folder):
    return sorted(each.name for each in folder.iterdir())


@pytest.mark.parametrize("begin", [unfinished_directory, unfinished_file])
def test_nothing_stays_after_an_error(tmp_path, begin):
    def fail():
        with begin(tmp_path / "m"):
            assert len(names(tmp_path)) == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert names(tmp_path) == []


@pytest.mark.parametrize(("place", "name"), [(Path, "mkdir"), (shutil, "rmtree")])
def test_nothing_stays_after_an_interrupt_of_making_or_removing(
    tmp_path, monkeypatch, place, name
):
    done = getattr(place, name)

    def interrupted(*args, **options):
        monkeypatch.setattr(place, name, done)
        if name == "mkdir":
            done(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(place, name, interrupted)
    with pytest.raises(KeyboardInterrupt), unfinished_directory(tmp_path / "m"):
        pass
    assert names(tmp_path) == []


def test_two_can_work_on_one_target(tmp_path):
    with (
        unfinished_directory(tmp_path / "m") as first,
        unfinished_file(tmp_path / "m") as second,
    ):
        assert names(tmp_path) == sorted([first.name, second[0].name])
    assert names(tmp_path) == []


def test_remains_of_killed_processes_are_removed_by_the_next_one(tmp_path):
    target, remains = tmp_path / "m.tmp", tmp_path / ".m.tmp.01234567.tmp"
    others = [".m.tmp.0123456.tmp", "..01234567.tmp", "m.tmp.01234567.tmp"]
    others += [".other.01234567.old"]
    for name in others:
        (tmp_path / name).touch()
    for begin in (unfinished_directory, unfinished_file):
        remains.mkdir()
        (remains / "file").touch()
        with begin(target):
            assert not remains.exists()
        remains.touch()
        with begin(target):
            assert not remains.exists()
    assert names(tmp_path) == sorted(others)


def test_remains_of_another_version_are_removed_by_the_next_one(tmp_path):
    remains = [tmp_path / ".2025-06-08.01234567.tmp", tmp_path / ".a.csv.89abcdef.tmp"]
    remains[0].mkdir()
    (remains[0] / "file").touch()
    remains[1].touch()
    with (
        unfinished_directory(tmp_path / "2025-06-10") as used,
        unfinished_file(tmp_path / "2025-06-11.csv"),
    ):
        assert used.exists()
        assert not any(path.exists() for path in remains)
    assert names(tmp_path) == []


@pytest.mark.parametrize("error", [OSError(errno.ENOMEM, "no memory"), MemoryError()])
def test_a_removal_that_fails_once_is_tried_again(tmp_path, monkeypatch, error):
    errors, unlink = [error], os.unlink

    def failing_once(*arguments, **options):
        if errors:
            raise errors.pop()
        unlink(*arguments, **options)

    with atomic.unfinished_directory(tmp_path / "model") as directory:
        (directory / "file").touch()
        monkeypatch.setattr(os, "unlink", failing_once)
    assert not list(tmp_path.iterdir())
    assert not errors


def test_remains_in_use_are_left_alone(tmp_path):
    target = tmp_path / "m"
    with unfinished_directory(target) as first, unfinished_file(target) as second:
        atomic.remove_remains(target)
        assert first.is_dir()
        assert second[0].is_file()


def test_without_locks_old_remains_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "fcntl", None)
    new, old = tmp_path / ".m.01234567.tmp", tmp_path / ".m.89abcdef.tmp"
    new.touch()
    old.touch()
    os.utime(old, (0, 0))
    with unfinished_directory(tmp_path / "m"):
        assert new.exists()
        assert not old.exists()


def test_a_link_is_moved_after_a_killed_process(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / ".latest.01234567.tmp").symlink_to("one")
    atomic.move_link(tmp_path / "latest", "one")
    assert names(tmp_path) == ["latest", "one"]


@pytest.mark.parametrize("exchanged", [True, False])
def test_a_directory_is_moved_to_a_free_name_only_unless_it_replaces(
    tmp_path, monkeypatch, exchanged
):
    if not exchanged:
        monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    for name in ("new", "target"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    with pytest.raises(FileExistsError):
        put_in_place(tmp_path / "new", tmp_path / "target", replace=False)
    assert names(tmp_path / "target") == ["target"]
    put_in_place(tmp_path / "new", tmp_path / "target")
    assert names(tmp_path / "target") == ["new"]


def test_a_thread_may_lock_again_what_it_has_locked(tmp_path):
    with (
        atomic.exclusive(tmp_path, lambda: None),
        atomic.exclusive(tmp_path, lambda: None),
    ):
        pass
    with atomic.exclusive(tmp_path, lambda: None):
        pass


def test_a_directory_takes_the_place_of_another(tmp_path):
    target = tmp_path / "m"
    for text in ("first", "second"):
        with unfinished_directory(target) as new:
            (new / "sub").mkdir()
            (new / "sub" / text).touch()
            put_in_place(new, target)
        assert names(target / "sub") == [text]
    assert names(tmp_path) == ["m"]


def test_on_windows_a_file_next_to_the_directory_is_locked(tmp_path, monkeypatch):
    """The calls of Windows, made by what POSIX has for a byte of a file."""
    held, said = [], []

    class Windows:
        LK_NBLCK, LK_UNLCK = 2, 0

        @staticmethod
        def locking(descriptor, mode, n_bytes):
            assert n_bytes == 1
            if mode == Windows.LK_UNLCK:
                held.clear()
            elif held:
                raise PermissionError("Permission denied")
            else:
                held.append(descriptor)

    monkeypatch.setattr(atomic, "fcntl", None)
    monkeypatch.setattr(atomic, "msvcrt", Windows)
    target = tmp_path / "model"
    target.mkdir()
    order = []
    begun, waiting = threading.Event(), threading.Event()

    def wait_for_the_other():
        said.append("b")
        waiting.set()

    def first():
        with atomic.exclusive(target, lambda: said.append("a")):
            order.append("a begins")
            begun.set()
            waiting.wait()
            order.append("a ends")

    def second():
        begun.wait()
        with atomic.exclusive(target, wait_for_the_other):
            order.append("b begins")
            order.append("b ends")

    threads = [threading.Thread(target=update) for update in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order == ["a begins", "a ends", "b begins", "b ends"]
    assert said == ["b"]
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_a_link_moves_from_one_name_to_another(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        atomic.move_link(tmp_path / "latest", name)
        assert (tmp_path / "latest").resolve().name == name
    assert sorted(each.name for each in tmp_path.iterdir()) == ["latest", "one", "two"]


def test_scratch_of_killed_processes_is_removed_and_files_of_others_stay(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left, other = tmp_path / ".recsys.01234567.tmp", tmp_path / ".other.01234567.tmp"
    for path in (left, other):
        path.mkdir()
        (path / "1").touch()
    with atomic.scratch_directory() as first, atomic.scratch_directory() as second:
        assert not left.exists()
        assert first != second
        assert first.stat().st_mode & 0o077 == 0
        assert second.is_dir()
    assert names(tmp_path) == [other.name]
