"""Latent semantic indexing: documents and words as vectors of a truncated SVD.

::

    from recsys.lsi import LSI, read_documents

    lsi = LSI().fit(read_documents("articles/"))
    lsi.query("heat transfer in slip flow", n=5)

Everything here is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recsys.lsi.eigenwords import Eigenwords
    from recsys.lsi.model import LSI
    from recsys.lsi.queries import UnknownTermWarning
    from recsys.lsi.space import Added
    from recsys.readers.documents import DocumentBatch, Documents, read_documents

__all__ = [
    "LSI",
    "Added",
    "DocumentBatch",
    "Documents",
    "Eigenwords",
    "UnknownTermWarning",
    "read_documents",
]

_HOMES = {
    "recsys.readers.documents": ("DocumentBatch", "Documents", "read_documents"),
    "recsys.lsi.eigenwords": ("Eigenwords",),
    "recsys.lsi.model": ("LSI",),
    "recsys.lsi.queries": ("UnknownTermWarning",),
    "recsys.lsi.space": ("Added",),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    for module, names in _HOMES.items():
        if name in names:
            from importlib import import_module

            value = getattr(import_module(module), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
