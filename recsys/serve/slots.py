"""Slots: what is served from a path, and its replacement when something new is there."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from recsys import schema
from recsys.errors import ModelFileError, RecsysError
from recsys.recommender import Recommender
from recsys.saved_arrays import MANIFEST, DamageError, resolved
from recsys.serve.answers import Answers
from recsys.serve.facts import Json

if TYPE_CHECKING:
    from recsys.lsi.index import Index

T = TypeVar("T")
Signature = tuple[str, int, int, int]

_log = logging.getLogger("recsys.serve")


class Slot(Generic[T]):
    """The place of a saved model, or index, that may be replaced at any time.

    A directory that is renamed into the place, or a link that is moved, is loaded by the next
    `check`; who holds the old one goes on with it. What cannot be loaded is rejected, and the old
    one stays.

    Parameters
    ----------
    path : str
        Resolved anew at every check.
    load : callable
        Given the real path, returns what is served.

    Attributes
    ----------
    current : object or None
        What is served; None before the first success.
    rejected : str or None
        Why what is at the path now is not served.
    rejections : int
    """

    def __init__(self, path: str, load: Callable[[Path], T]) -> None:
        self.path = path
        self._load = load
        self.rejections = 0
        self.current: T | None = None
        self.rejected: str | None = None
        self._seen: Signature | None = ("", 0, 0, 0)  # of nothing: a missing directory is news

    def check(self) -> bool:
        """Load what is new at the path, if anything is; return whether `current` has changed.

        One thread at a time may call it.
        """
        while (found := _signature(self.path)) != self._seen:
            try:
                loaded = self._load(Path(os.path.realpath(resolved(self.path))))
            except (RecsysError, OSError, MemoryError) as error:
                if found is None and self.current is not None and self.rejected is None:
                    time.sleep(0.1)  # between two renames there is nothing for a moment
                if _signature(self.path) != found:  # replaced meanwhile
                    continue
                self._seen, self.rejected = found, str(error)
                self.rejections += 1
                _log.error("%s", error)
                return False
            self._seen, self.current, self.rejected = found, loaded, None
            return True
        return False


def _signature(path: str) -> Signature | None:
    """Return what changes when a saved directory is replaced, None if there is none."""
    place = os.path.realpath(resolved(path))
    try:
        found = (Path(place) / MANIFEST).stat()
    except OSError:
        return None
    return place, found.st_ino, found.st_mtime_ns, found.st_size


def load_answers(path: Path) -> Answers:
    """Load and verify a saved model.

    Raises
    ------
    ModelFileError
    """
    recommender = Recommender.load(path, verify=True)
    manifest, mark = _manifest(path)
    answers = Answers(recommender, f"{recommender.model.name}@{mark}", manifest)
    answers.warm()
    return answers


def load_search(path: Path) -> IndexAnswers:
    """Load and verify a saved index.

    Raises
    ------
    ModelFileError
    """
    from recsys.lsi.index import Index

    return IndexAnswers(Index.load(path, verify=True), f"lsi@{_manifest(path)[1]}")


def _manifest(path: Path) -> tuple[Json, str]:
    """Return the contents of model.json, and the beginning of their checksum."""
    file = path / MANIFEST
    try:
        document = schema.read_document(file)
        return document, str(document.get("checksum", ""))[:8]
    except (OSError, DamageError) as error:
        raise ModelFileError(f"{path} cannot be served: {error}.") from None


class IndexAnswers:
    """Answers of one saved index of documents.

    Parameters
    ----------
    index : recsys.lsi.index.Index
    name : str
        What the answers call the index.
    """

    def __init__(self, index: Index, name: str) -> None:
        self.index, self.name = index, name

    def search(self, query: str, n: int) -> Json:
        """Return the n documents nearest to a query in meaning.

        Raises
        ------
        DataError
            If no word of the query is known.
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            frame = self.index.query(query, n)
        notes = [str(each.message) for each in caught]
        return {"query": query, "documents": frame.to_dicts(), "notes": notes, "model": self.name}
