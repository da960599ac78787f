"""Rating prediction by the peers, for `ratings.py`: run by a Python that has them.

Usage: PYTHON rating_peers.py TRAIN.npz VALIDATION.npz TEST.npz OUT.npz

TRAIN and VALIDATION are parts of the training ratings, with arrays "users", "items", "values" and
"times". Each installed peer is fitted to TRAIN with each of its settings. The setting that is best
on VALIDATION is fitted to both. OUT gets its predictions for TEST, and the processor seconds of the
last fit and of the predictions.

"linked" myFM has as features the set of items of each user and of users of each item in the
training ratings (Rendle et al. 2019), and with "times" also each day of a user and each month of an
item.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from importlib.util import find_spec

import numpy as np

warnings.filterwarnings("ignore")
os.environ["TQDM_DISABLE"] = "1"  # myFM shows progress

SURPRISE = {
    "Surprise BaselineOnly": [{}],
    "Surprise KNNBaseline": [
        {"k": k, "sim_options": {"name": "pearson_baseline", "user_based": by_user}}
        for k in (20, 40, 80)
        for by_user in (False, True)
    ],
    "Surprise SVD, default": [{"random_state": 0}],
    "Surprise SVD": [
        {
            "n_factors": k,
            "reg_all": reg,
            "n_epochs": n,
            "lr_all": 0.01,
            "random_state": 0,
        }
        for k in (50, 200)
        for reg in (0.05, 0.1)
        for n in (30, 60)
    ],
    "Surprise SVD++": [{"random_state": 0, "cache_ratings": True}],
}
LENSKIT = {
    "LensKit BiasedMF": [
        {"embedding_size": k, "regularization": reg}
        for k in (32, 64)
        for reg in (0.1, 0.2, 0.4)
    ]
}
MYFM = {
    "myFM": [{"rank": 8}],
    "myFM, linked": [{"rank": 8}],
    "myFM, linked, times known": [{"rank": 8}],
}
SAMPLES = 200  # of the Gibbs sampler
KEPT_SAMPLES = 150
PERIODS = {"users": 1, "items": 30}  # days


def of_surprise(title, params, train):
    import surprise

    name = title.split()[1].rstrip(",").replace("++", "pp")
    data = surprise.Dataset(
        surprise.Reader(rating_scale=(train["values"].min(), train["values"].max()))
    )
    rows = [
        (int(u), int(i), float(v), None)
        for u, i, v in zip(*columns(train), strict=True)
    ]
    options = {"verbose": False} if "KNN" in name or name == "BaselineOnly" else {}
    model = getattr(surprise, name)(**params, **options).fit(
        data.construct_trainset(rows)
    )

    def predict(test):
        pairs = zip(*pair_indices(test), strict=True)
        return np.array([model.predict(int(u), int(i)).est for u, i in pairs])

    return predict


def of_lenskit(_, params, train):
    import pandas as pd
    from lenskit.als import BiasedMFScorer
    from lenskit.data import ItemList, from_interactions_df

    frame = pd.DataFrame(
        {
            "user_id": train["users"],
            "item_id": train["items"],
            "rating": train["values"],
        }
    )
    data = from_interactions_df(frame)
    model = BiasedMFScorer(**params)
    model.train(data)
    mean = float(train["values"].mean())

    def predict(test):
        predicted = np.full(len(test["users"]), np.nan)
        for user in np.unique(test["users"]):
            rows = np.flatnonzero(test["users"] == user)
            scored = model(int(user), ItemList(item_ids=test["items"][rows]))
            predicted[rows] = scored.scores()
        # Items without training ratings have no score there: the user's mean stands in.
        for row in np.flatnonzero(np.isnan(predicted)):
            own = train["values"][train["users"] == test["users"][row]]
            predicted[row] = own.mean() if len(own) else mean
        return predicted

    return predict


def of_myfm(title, params, train):
    from myfm import MyFMRegressor, RelationBlock
    from scipy import sparse

    pairs = sparse.coo_array((np.ones(len(train["users"])), pair_indices(train)))
    related = []
    sizes = []
    for axis, counts in (("users", pairs.tocsr()), ("items", pairs.T.tocsr())):
        parts = [sparse.eye_array(counts.shape[0])]
        if "linked" in title:
            lengths = np.sqrt(np.maximum(counts.sum(axis=1), 1))
            parts.append(sparse.diags_array(1 / lengths) @ counts)
        # A user or item above the training ratings has the last row, which is empty.
        parts = [sparse.vstack([part, np.zeros((1, part.shape[1]))]) for part in parts]
        related.append((axis, sparse.csr_matrix(sparse.hstack(parts))))
        sizes += [part.shape[1] for part in parts]
    periods = []
    if "times" in title:
        periods = [(axis, np.unique(period(train, axis))) for axis in PERIODS]
        sizes = [len(levels) for _, levels in periods] + sizes

    def inputs(part):
        X = None
        if periods:
            one_hot = [indicators(period(part, axis), x) for axis, x in periods]
            X = sparse.csr_matrix(sparse.hstack(one_hot))
        blocks = [
            RelationBlock(np.minimum(part[axis], block.shape[0] - 1), block)
            for axis, block in related
        ]
        return X, blocks

    X, blocks = inputs(train)
    model = MyFMRegressor(**params, random_seed=0)
    model.fit(
        X,
        train["values"].astype(float),
        X_rel=blocks,
        n_iter=SAMPLES,
        n_kept_samples=KEPT_SAMPLES,
        group_shapes=sizes,
    )
    return lambda test: model.predict(*inputs(test))


def period(part, axis):
    """Return a number for the day of a user, or the month of an item, of each rating."""
    days = part["times"] // 86400
    return part[axis] * 10**6 + days // PERIODS[axis]


def indicators(column, levels):
    """Return a row of zeros and a one at the level; of zeros for other levels."""
    from scipy import sparse

    index = np.searchsorted(levels, column).clip(max=len(levels) - 1)
    rows = np.flatnonzero(levels[index] == column)
    shape = (len(column), len(levels))
    return sparse.csr_array((np.ones(len(rows)), (rows, index[rows])), shape=shape)


def pair_indices(part):
    return part["users"], part["items"]


def columns(part):
    return part["users"], part["items"], part["values"]


def rmse(predicted, part):
    return float(np.sqrt(np.mean((predicted - part["values"]) ** 2)))


def run(fit, title, settings, parts):
    """Return the predictions for the test part, and seconds of the fit and of them."""
    train, validation, test = parts
    errors = []
    if len(settings) > 1:
        for params in settings:
            predicted = fit(title, params, train)(validation)
            errors.append(rmse(predicted, validation))
        settings = [settings[int(np.argmin(errors))]]
    both = {key: np.concatenate([train[key], validation[key]]) for key in train}
    start = time.process_time()
    predict = fit(title, settings[0], both)
    fitted = time.process_time()
    predicted = predict(test)
    print(f"{title}: {settings[0]}", file=sys.stderr)
    return predicted, fitted - start, time.process_time() - fitted


def main() -> None:
    parts = [dict(np.load(path)) for path in sys.argv[1:4]]
    results = {}
    for library, fit, models in (
        ("surprise", of_surprise, SURPRISE),
        ("lenskit", of_lenskit, LENSKIT),
        ("myfm", of_myfm, MYFM),
    ):
        if find_spec(library) is None:
            continue
        for title, settings in models.items():
            results[title] = run(fit, title, settings, parts)
    np.savez(
        sys.argv[4],
        titles=np.array(list(results)),
        predicted=np.array([predicted for predicted, *_ in results.values()]),
        seconds=np.array([seconds for _, *seconds in results.values()]),
    )


if __name__ == "__main__":
    main()
