"""A disk as it may be after a power cut: the logged calls, without what was not synchronized."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias


@dataclass
class File:
    """A file: its contents, and those that are on the disk for sure."""

    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


@dataclass
class Folder:
    """A folder: its entries, and those that are on the disk for sure."""

    entries: dict[str, Node] = field(default_factory=dict)
    synced: dict[str, Node] = field(default_factory=dict)


class Link(NamedTuple):
    """A symbolic link."""

    target: str


Node: TypeAlias = File | Folder | Link


class Call(NamedTuple):
    """A logged call that changed something, with its data."""

    name: str
    path: str
    other: str
    inode: int
    offset: int
    data: bytes


def calls(log: bytes) -> Iterator[Call]:
    """Read the log of the shim; failed calls have a name that begins with "!"."""
    at = 0
    while at < len(log):
        end = log.index(b"\n", at)
        name, path, other, *numbers = log[at:end].decode().split("\t")
        inode, offset, size = map(int, numbers)
        at = end + 1 + size
        yield Call(name, path, other, inode, offset, log[end + 1 : at])


class Disk:
    """The files of a folder, from what they are now through the calls that are applied."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)
        self._nodes: dict[int, Node] = {}
        self._tree = self._read(Path(self._root))

    def _read(self, path: Path) -> Node:
        """Return what is at a path; all of it is synchronized."""
        node: Node
        if path.is_symlink():
            return Link(str(path.readlink()))
        if path.is_dir():
            entries = {child.name: self._read(child) for child in path.iterdir()}
            node = Folder(entries, dict(entries))
        else:
            content = path.read_bytes()
            node = File(bytearray(content), content)
        self._nodes[path.stat().st_ino] = node
        return node

    def _parent(self, path: str) -> tuple[Folder, str]:
        """Return the folder and the name of a path."""
        *folders, name = path[len(self._root) + 1 :].split("/")
        node = self._tree
        for folder in folders:
            assert isinstance(node, Folder)
            node = node.entries[folder]
        assert isinstance(node, Folder)
        return node, name

    def apply(self, call: Call) -> None:
        """Do a call that succeeded."""
        if call.name in ("write", "truncate", "empty"):
            self._write(call)
        elif call.name == "sync":
            node = self._nodes[call.inode]
            if isinstance(node, File):
                node.synced = bytes(node.content)
            elif isinstance(node, Folder):
                node.synced = dict(node.entries)
        elif call.name != "close":
            self._name(call)

    def _write(self, call: Call) -> None:
        file = self._nodes[call.inode]
        assert isinstance(file, File)
        if call.name != "write":
            del file.content[call.offset :]
        file.content.extend(bytes(max(0, call.offset - len(file.content))))
        file.content[call.offset : call.offset + len(call.data)] = call.data

    def _name(self, call: Call) -> None:
        folder, name = self._parent(call.path)
        if call.name in ("create", "mkdir"):
            node = File() if call.name == "create" else Folder()
            folder.entries[name] = self._nodes[call.inode] = node
        elif call.name == "symlink":
            folder.entries[name] = Link(call.other)
        elif call.name == "remove":
            del folder.entries[name]
        else:
            other, new = self._parent(call.other)
            if call.name == "exchange":
                pair = other.entries[new], folder.entries[name]
                folder.entries[name], other.entries[new] = pair
            elif call.name == "rename":
                other.entries[new] = folder.entries.pop(name)
            else:
                assert call.name == "link", call.name
                other.entries[new] = folder.entries[name]

    def after_a_cut(self, rng: random.Random) -> Iterator[tuple[str, Survivors]]:
        """Yield what may be on the disk if the power fails now."""
        for kind, data, names in (
            ("everything", 1.0, 1.0),
            ("names, not data", 0.0, 1.0),
            ("data, not names", 1.0, 0.0),
            ("synchronized only", 0.0, 0.0),
            ("at random", 0.5, 0.5),
            ("at random, again", 0.5, 0.5),
        ):
            yield kind, Survivors(self._tree, data, names, rng.random())


class Survivors:
    """A tree of which some files and folders are as they were when they were synchronized."""

    def __init__(self, tree: Node, data: float, names: float, seed: float) -> None:
        self._rng = random.Random(seed)
        self._data = data
        self._names = names
        self._paths: dict[str, bytes | str | None] = {}
        self._add("", tree)

    def _add(self, path: str, node: Node) -> None:
        if isinstance(node, Link):
            self._paths[path] = node.target
        elif isinstance(node, File):
            is_current = self._rng.random() < self._data
            self._paths[path] = bytes(node.content) if is_current else node.synced
        else:
            self._paths[path] = None
            is_current = self._rng.random() < self._names
            entries = node.entries if is_current else node.synced
            for name, child in sorted(entries.items()):
                self._add(f"{path}/{name}", child)

    def digest(self) -> str:
        """Return a digest of all paths and contents."""
        return hashlib.sha256(repr(sorted(self._paths.items())).encode()).hexdigest()

    def write(self, root: Path) -> None:
        """Write the tree to a new folder."""
        for name, content in self._paths.items():  # folders before their entries
            path = root / name[1:]
            if content is None:
                path.mkdir()
            elif isinstance(content, str):
                path.symlink_to(content)
            else:
                path.write_bytes(content)
