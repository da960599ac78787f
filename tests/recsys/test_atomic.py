"""Temporary files and directories next to their place."""

import pytest

from recsys.atomic import put_in_place, unfinished_directory, unfinished_file


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


def test_two_can_work_on_one_target(tmp_path):
    with unfinished_directory(tmp_path / "m") as first, unfinished_file(tmp_path / "m") as second:
        assert names(tmp_path) == sorted([first.name, second[0].name])
    assert names(tmp_path) == []


def test_a_directory_takes_the_place_of_another(tmp_path):
    target = tmp_path / "m"
    for text in ("first", "second"):
        with unfinished_directory(target) as new:
            (new / "sub").mkdir()
            (new / "sub" / text).touch()
            put_in_place(new, target)
        assert names(target / "sub") == [text]
    assert names(tmp_path) == ["m"]
