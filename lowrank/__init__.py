"""Low-rank numerics on dense arrays, sparse matrices and linear operators.

>>> import numpy as np
>>> from lowrank import truncated_svd
>>> U, s, Vt = truncated_svd(np.diag([1.0, 3.0, 2.0]), k=2)
>>> s
array([3., 2.])

The public names are listed in ``__init__.pyi``, and imported when first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
