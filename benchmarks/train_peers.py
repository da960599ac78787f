"""Seconds of one epoch of a peer, for `train.py`: run by a Python that has it.

Usage: PYTHON train_peers.py RATINGS.npz K explicit|implicit

The peers are LensKit's BiasedMF and cmfrec's CMF_implicit. Without the library nothing is printed.
RATINGS.npz has arrays "users", "items" and "values".
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Mapping

import numpy as np

warnings.filterwarnings("ignore")

Fit = Callable[[int], object]


def lenskit(parts: Mapping[str, np.ndarray], k: int) -> Fit:
    import pandas as pd
    from lenskit.als import BiasedMFScorer
    from lenskit.data import from_interactions_df

    frame = {
        "user_id": parts["users"],
        "item_id": parts["items"],
        "rating": parts["values"],
    }
    data = from_interactions_df(pd.DataFrame(frame))
    return lambda epochs: BiasedMFScorer(embedding_size=k, epochs=epochs).train(data)


def cmfrec(parts: Mapping[str, np.ndarray], k: int) -> Fit:
    from cmfrec import CMF_implicit
    from scipy.sparse import coo_matrix

    matrix = coo_matrix((parts["values"], (parts["users"], parts["items"])))
    options = {"k": k, "use_float": True, "use_cg": True, "finalize_chol": False}
    return lambda epochs: CMF_implicit(niter=epochs, verbose=False, **options).fit(
        matrix
    )


def main() -> None:
    peer = {"explicit": lenskit, "implicit": cmfrec}[sys.argv[3]]
    try:
        fit = peer(np.load(sys.argv[1]), int(sys.argv[2]))
    except ImportError:
        return
    taken = []
    for epochs in (1, 3):
        start = time.perf_counter()
        fit(epochs)
        taken.append(time.perf_counter() - start)
    print((taken[1] - taken[0]) / 2)


if __name__ == "__main__":
    main()
