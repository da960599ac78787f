"""SASRec of RecTools on the processor, for `sequences.py`: run by a Python that has it.

Usage: PYTHON sequence_peers.py IN.npz OUT.npz

IN has the training events ("users", "items", in the order of time), the histories before the test
items ("rows", "history", likewise), and these items ("targets"). SASRec (Kang and McAuley 2018) is
fitted without the last item of each user, as usual, until these items are ranked no better for some
epochs. OUT gets the places of the test items in the lists of n items after the best number of
epochs, and the processor seconds of the lists and of the fit; nothing without the library.
"""

from __future__ import annotations

import sys
import time
import warnings
from importlib.util import find_spec

import numpy as np

warnings.filterwarnings("ignore")

MOST_EPOCHS = 200
EPOCHS = 5  # between two looks at the last items
PATIENCE = 4  # looks without a gain
SETTINGS = {
    "n_factors": 64,
    "n_blocks": 2,
    "n_heads": 1,
    "session_max_len": 100,
    "dropout_rate": 0.2,
    "batch_size": 16,
    "loss": "sampled_softmax",
    "n_negatives": 64,
    "deterministic": True,
    "verbose": 0,
}


def dataset_of(users, items):
    """Return a data set whose rows are in the order of time."""
    import pandas as pd
    from rectools.dataset import Dataset

    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(len(users)), "s")
    columns = {"user_id": users, "item_id": items, "weight": 1.0, "datetime": days}
    return Dataset.construct(pd.DataFrame(columns))


def places(model, rows, history, targets, n, repeats):
    """Return the place of each target in the list for its history, or infinity."""
    result = np.full(len(targets), np.inf)
    lists = model.recommend(
        users=np.unique(rows),
        dataset=dataset_of(rows, history),
        k=n,
        filter_viewed=not repeats,
        on_unsupported_targets="ignore",
    )
    listed = lists["user_id"].to_numpy()
    hits = np.flatnonzero(lists["item_id"].to_numpy() == targets[listed])
    result[listed[hits]] = lists["rank"].to_numpy()[hits] - 1
    return result


def main() -> None:
    if find_spec("rectools") is None or find_spec("torch") is None:
        return
    import torch

    torch.manual_seed(0)
    data = dict(np.load(sys.argv[1]))
    n, repeats = int(data["n"]), bool(data["repeats"])
    users, items = data["users"], data["items"]
    is_last = np.append(users[1:] != users[:-1], True)
    last_items = np.full(users.max() + 1, -1)
    last_items[users[is_last]] = items[is_last]
    earlier = users[~is_last], items[~is_last]
    from rectools.models import SASRecModel

    model = SASRecModel(**SETTINGS)
    dataset = dataset_of(*earlier)
    gains = []
    seconds = [0.0, 0.0]
    for epochs in range(EPOCHS, MOST_EPOCHS + 1, EPOCHS):
        start = time.process_time()
        model.fit_partial(dataset, min_epochs=EPOCHS, max_epochs=EPOCHS)
        validated = places(model, *earlier, last_items, n, repeats)
        seconds[1] += time.process_time() - start
        gains.append(np.mean(1 / np.log2(2 + validated)))
        print(f"{epochs} epochs: {gains[-1]:.4f}", file=sys.stderr, flush=True)
        if gains[-1] == max(gains):
            start = time.process_time()
            histories = data["rows"], data["history"]
            ranks = places(model, *histories, data["targets"], n, repeats)
            seconds[0] = time.process_time() - start
            title = f"SASRec, {epochs} epochs"
        elif max(gains[-PATIENCE:]) < max(gains):
            break
    np.savez(sys.argv[2], title=title, ranks=ranks, seconds=seconds)


if __name__ == "__main__":
    main()
