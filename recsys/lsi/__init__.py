"""Latent semantic indexing: documents and words as vectors of a truncated SVD.

::

    from recsys.lsi import LSI, read_documents

    lsi = LSI().fit(read_documents("articles/"))
    lsi.query("heat transfer in slip flow", n=5)
"""

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
