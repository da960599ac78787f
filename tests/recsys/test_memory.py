import os

import pytest

from recsys import memory


def pretend(monkeypatch, tmp_path, *, meminfo=None, limit=None, used="0"):
    """Point the module at files of our own."""
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    if meminfo is not None:
        (tmp_path / "meminfo").write_text(meminfo)
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
        (tmp_path / "memory.current").write_text(used)


def test_linux_says_what_is_available(monkeypatch, tmp_path):
    lines = "MemTotal: 4000 kB\nMemAvailable:    3000 kB\n"
    pretend(monkeypatch, tmp_path, meminfo=lines, limit="max\n")
    assert memory.available_memory() == 3000 * 1024


@pytest.mark.parametrize(("used", "left"), [("1000\n", 9000), ("12000\n", 0)])
def test_a_container_leaves_less(monkeypatch, tmp_path, used, left):
    pretend(monkeypatch, tmp_path, meminfo="MemAvailable: 3000 kB\n", limit="10000\n", used=used)
    assert memory.available_memory() == left


def test_elsewhere_it_is_all_memory_or_unknown(monkeypatch, tmp_path):
    pretend(monkeypatch, tmp_path)
    sizes = {"SC_PHYS_PAGES": 5, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__, raising=False)
    assert memory.available_memory() == memory.machine_memory() == 5 * 4096
    monkeypatch.delattr(os, "sysconf")
    assert memory.available_memory() is None
    assert memory.machine_memory() is None
