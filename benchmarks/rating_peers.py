"""Rating prediction by the peers, for `ratings.py`: run by a Python that has them.

Usage: PYTHON rating_peers.py TRAIN.npz VALIDATION.npz TEST.npz OUT.npz

TRAIN and VALIDATION are parts of the training ratings, with arrays "users", "items" and "values".
Each installed peer is fitted to TRAIN with each of its settings. The setting that is best on
VALIDATION is fitted to both. OUT gets its predictions for TEST, and the seconds of the last fit and
of the predictions.
"""

from __future__ import annotations

import sys
import time
import warnings

import numpy as np

warnings.filterwarnings("ignore")

SURPRISE = {
    "Surprise BaselineOnly": ("BaselineOnly", [{}]),
    "Surprise KNNBaseline": (
        "KNNBaseline",
        [
            {"k": k, "sim_options": {"name": "pearson_baseline", "user_based": by_user}}
            for k in (20, 40, 80)
            for by_user in (False, True)
        ],
    ),
    "Surprise SVD, default": ("SVD", [{"random_state": 0}]),
    "Surprise SVD": (
        "SVD",
        [
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
    ),
    "Surprise SVD++": ("SVDpp", [{"random_state": 0, "cache_ratings": True}]),
}
LENSKIT = {
    "LensKit BiasedMF": [
        {"embedding_size": k, "regularization": reg}
        for k in (32, 64)
        for reg in (0.1, 0.2, 0.4)
    ]
}


def of_surprise(name, params, train):
    import surprise

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
    return lambda test: np.array(
        [
            model.predict(int(u), int(i)).est
            for u, i in zip(test["users"], test["items"], strict=True)
        ]
    )


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


def columns(part):
    return part["users"], part["items"], part["values"]


def rmse(predicted, part):
    return float(np.sqrt(np.mean((predicted - part["values"]) ** 2)))


def run(fit, name, settings, parts):
    train, validation, test = parts
    if len(settings) > 1:
        settings.sort(key=lambda s: rmse(fit(name, s, train)(validation), validation))
    both = {key: np.concatenate([train[key], validation[key]]) for key in train}
    start = time.perf_counter()
    predict = fit(name, settings[0], both)
    fitted = time.perf_counter()
    predicted = predict(test)
    print(f"{name or 'BiasedMF'}: {settings[0]}", file=sys.stderr)
    return predicted, fitted - start, time.perf_counter() - fitted


def main() -> None:
    parts = [dict(np.load(path)) for path in sys.argv[1:4]]
    found = {}
    try:
        import surprise  # noqa: F401
    except ImportError:
        pass
    else:
        for title, (name, settings) in SURPRISE.items():
            found[title] = run(of_surprise, name, settings, parts)
    try:
        import lenskit  # noqa: F401
    except ImportError:
        pass
    else:
        for title, settings in LENSKIT.items():
            found[title] = run(of_lenskit, "", settings, parts)
    titles = list(found)
    np.savez(
        sys.argv[4],
        titles=np.array(titles),
        predicted=np.array([found[title][0] for title in titles]),
        seconds=np.array([found[title][1:] for title in titles]),
    )


if __name__ == "__main__":
    main()
