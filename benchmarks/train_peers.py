"""Seconds of one epoch of LensKit's BiasedMF, for `train.py`: run by the Python that has it.

Usage: PYTHON train_peers.py RATINGS.npz K

Prints nothing if LensKit is not there. RATINGS.npz has arrays "users", "items" and "values".
"""

from __future__ import annotations

import sys
import time
import warnings

import numpy as np

warnings.filterwarnings("ignore")


def main() -> None:
    try:
        import pandas as pd
        from lenskit.als import BiasedMFScorer
        from lenskit.data import from_interactions_df
    except ImportError:
        return
    parts = np.load(sys.argv[1])
    data = from_interactions_df(
        pd.DataFrame(
            {"user_id": parts["users"], "item_id": parts["items"], "rating": parts["values"]}
        )
    )
    taken = []
    for epochs in (1, 3):
        model = BiasedMFScorer(embedding_size=int(sys.argv[2]), epochs=epochs)
        start = time.perf_counter()
        model.train(data)
        taken.append(time.perf_counter() - start)
    print((taken[1] - taken[0]) / 2)


if __name__ == "__main__":
    main()
