"""SASRec of RecTools on the processor, for `sequences.py`: run by a Python that has it.

Usage: PYTHON sequence_peers.py IN.npz OUT.npz

IN has the training events ("users", "items", in the order of time), the histories before the test
items ("rows", "history", likewise), and these items ("targets"). SASRec (Kang and McAuley 2018) is
fitted for each number of epochs without the last item of each user. The number that ranks these
items best is used for a fit to all. OUT gets the places of the test items in the lists of n items,
and the processor seconds of the lists and of the last fit; nothing without the library.
"""

from __future__ import annotations

import sys
import time
import warnings
from importlib.util import find_spec

import numpy as np

warnings.filterwarnings("ignore")

EPOCHS = (10, 30)
SETTINGS = {
    "n_factors": 64,
    "n_blocks": 2,
    "n_heads": 1,
    "session_max_len": 50,
    "dropout_rate": 0.2,
    "batch_size": 128,
    "loss": "softmax",
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


def fitted(users, items, epochs):
    from rectools.models import SASRecModel

    return SASRecModel(**SETTINGS, epochs=epochs).fit(dataset_of(users, items))


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
    targets = np.full(users.max() + 1, -1)
    targets[users[is_last]] = items[is_last]
    earlier = users[~is_last], items[~is_last]
    gains = []
    for epochs in EPOCHS:
        ranks = places(fitted(*earlier, epochs), *earlier, targets, n, repeats)
        gains.append(np.sum(1 / np.log2(2 + ranks)))
    epochs = EPOCHS[int(np.argmax(gains))]
    print(f"SASRec: {epochs} epochs, gains {gains}", file=sys.stderr)
    start = time.process_time()
    model = fitted(users, items, epochs)
    end = time.process_time()
    ranks = places(model, data["rows"], data["history"], data["targets"], n, repeats)
    seconds = [time.process_time() - end, end - start]
    title = f"SASRec, {epochs} epochs"
    np.savez(sys.argv[2], title=title, ranks=ranks, seconds=seconds)


if __name__ == "__main__":
    main()
