"""Slots for saved models and indexes, which may be replaced at any time."""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from recsys.errors import RecsysError
from recsys.saving.arrays import MANIFEST, Signature, as_path, signature_of
from recsys.serve.problems import ProblemError
from recsys.serve.trial import Trial

T = TypeVar("T")

_PAUSE = 2.0  # seconds until a load that failed is tried again; doubled for the next
_LONGEST_PAUSE = 300.0
_RENAMES = 0.1  # seconds for which a path may be missing between two renames
_FOLDERS = re.compile(r"(?<![^\s'\"(=])/(?:[^\s'\"/]+/)*(?=[^\s'\"/])")  # absolute path

_log = logging.getLogger("recsys.serve")


class Slot(Generic[T]):
    """Slot for a saved model, or index, that may be replaced at any time.

    `check` loads a directory that was renamed to the path, or that a moved link points to.
    Requests in progress keep the old model. If the new one cannot be loaded, it is rejected
    and the old one is kept. It is tried again when anything in the directory changes, and
    after growing pauses: a full memory or a broken mount may be over, though no file has
    changed. The path is resolved at every check; `load` takes the real path and returns the
    object to serve. After the first check, a model is loaded in another process before, with
    `trial`: if it crashes, the model is rejected as well.

    Attributes
    ----------
    current : object or None
        Served object; None before the first success.
    rejected : str or None
        Reason for which the model at the path is not served, without folders: anybody may
        read it.
    """

    def __init__(
        self,
        path: str,
        load: Callable[[Path], T],
        trial: Trial | None = None,
    ) -> None:
        self.path = path
        self._load = load
        self._trial = trial
        self.current: T | None = None
        self.rejected: str | None = None
        self._signature: Signature | None = None  # None before the first check
        self._retry_time = math.inf
        self._pause = _PAUSE

    def loaded(self) -> T:
        """Return the served object.

        Raises
        ------
        ProblemError
            If none is loaded yet.
        """
        if self.current is None:
            reason = self.rejected or f"{Path(self.path).name} is being loaded."
            raise ProblemError("not-ready", reason)
        return self.current

    def check(self) -> bool | None:
        """Load a new model from the path; return whether it is served, None if none is new.

        A model that was rejected before, and is still, is not new.
        Only one thread at a time may call it.
        """
        while True:
            signature = signature_of(self.path)
            was_tried = signature == self._signature
            if was_tried and time.monotonic() < self._retry_time:
                return None
            try:
                loaded = self._load_tried(Path(os.path.realpath(as_path(self.path))))
            except (RecsysError, OSError, MemoryError) as error:
                if not signature and self.rejected is None:
                    time.sleep(_RENAMES)
                if signature_of(self.path) == signature:
                    self._reject(error, signature)
                    return None if was_tried else False
                continue  # replaced meanwhile
            self._signature = signature
            self._retry_time = math.inf
            self.current = loaded
            self.rejected = None
            return True

    def stop(self) -> None:
        """End a load in another process."""
        if self._trial is not None:
            self._trial.stop()

    def _load_tried(self, path: Path) -> T:
        """Load a directory, after the first one only if another process can."""
        if self._trial is not None and self._signature is not None:
            is_model = (path / MANIFEST).is_file()
            if is_model and not self._trial.check(path):
                _log.warning(
                    "%s is loaded without a trial: no process can be started.", path
                )
        return self._load(path)

    def _reject(self, error: Exception, signature: Signature) -> None:
        """Keep the served model, and remember what was at the path."""
        reason = without_folders(str(error), self.path)
        is_new = signature != self._signature
        if is_new or reason != self.rejected:
            state = "is not served" if self.current is None else "is served as before"
            _log.error(
                "%s %s %s until it is replaced. Loads are tried again with growing pauses.",
                error,
                self.path,
                state,
            )
        self._pause = _PAUSE if is_new else min(2 * self._pause, _LONGEST_PAUSE)
        self._retry_time = time.monotonic() + self._pause
        self._signature = signature
        self.rejected = reason


def without_folders(sentence: str, path: str) -> str:
    """Return a sentence with the names of files and folders, but not where they are.

    Examples
    --------
    >>> without_folders("There is no saved model in /srv/my shop/latest.", "/srv/my shop/latest")
    'There is no saved model in latest.'
    >>> without_folders("Permission denied: '/srv/model.json'", "models/latest")
    "Permission denied: 'model.json'"
    """
    real = os.path.realpath(as_path(path))
    spellings = {path, str(Path(path).absolute()), real}
    for spelling in sorted(spellings, key=len, reverse=True):
        sentence = sentence.replace(spelling, Path(spelling).name or spelling)
    return _FOLDERS.sub("", sentence)
