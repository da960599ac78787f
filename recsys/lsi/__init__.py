"""Latent semantic indexing: documents and words as vectors of a truncated SVD.

::

    from recsys.lsi import LSI, Documents

    lsi = LSI().fit(Documents("articles/"))
    lsi.query("heat transfer in slip flow", n=5)

The public names are listed in ``__init__.pyi`` and imported when first used, because features of
tables need the words of texts, but not the indexes.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
