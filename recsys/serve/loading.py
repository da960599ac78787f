"""Loading of saved models and indexes to serve."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from recsys.errors import ModelFileError
from recsys.recommender import Recommender
from recsys.saving import model_file
from recsys.saving.arrays import DamageError, signature_of
from recsys.saving.model_file import INDEX_FORMAT, format_of
from recsys.serve.catalogue import Json
from recsys.serve.responses import NO_CONDITIONS, Responses

if TYPE_CHECKING:
    from recsys.lsi.index import Index

T = TypeVar("T")

_ATTEMPTS = 10  # maximum number of loads of a model that is replaced again and again


def load_served(path: Path) -> Any:
    """Load and verify a saved model or index."""
    is_index = format_of(str(path)) == INDEX_FORMAT
    return load_search(path) if is_index else load_responses(path)


def load_responses(
    path: Path, conditions: Mapping[str, str] = NO_CONDITIONS
) -> Responses:
    """Load and verify a saved model, for lists with named conditions."""
    recommender, manifest = _load_unchanged(
        path, lambda: Recommender.load(path, verify=True)
    )
    name = f"{recommender.model.name}@{manifest['checksum'][:8]}"
    responses = Responses(recommender, name, manifest, conditions)
    # Caches are filled before the model gets its first request.
    responses.warm()
    return responses


def load_search(path: Path) -> IndexResponses:
    """Load and verify a saved index."""
    from recsys.lsi.index import Index

    index, manifest = _load_unchanged(path, lambda: Index.load(path, verify=True))
    return IndexResponses(index, f"lsi@{manifest['checksum'][:8]}")


def _load_unchanged(path: Path, load: Callable[[], T]) -> tuple[T, Json]:
    """Return what `load` loads, and the contents of model.json of the same directory."""
    for _ in range(_ATTEMPTS):
        before = signature_of(str(path))
        loaded = load()
        try:
            manifest = model_file.read_document(path)
        except (OSError, DamageError) as error:
            raise ModelFileError(f"{path} cannot be served: {error}.") from None
        if before == signature_of(str(path)):
            return loaded, manifest
    raise ModelFileError(f"{path} cannot be served: it is replaced again and again.")


@dataclass(frozen=True, slots=True)
class IndexResponses:
    """Responses of one saved index of documents; they contain its name."""

    index: Index
    name: str

    def search(self, query: str, n: int) -> Json:
        """Return the n documents that match a query best."""
        # The command prints them, and a client gets them as notes.
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            frame = self.index.query(query, n)
        notes = [str(warning.message) for warning in caught]
        documents = frame.to_dicts()
        for document in documents:
            document["document"] = str(document["document"])
        return {
            "query": query,
            "documents": documents,
            "notes": notes,
            "model": self.name,
        }
