"""Predictions from features by the peers, for `features.py`: run by a Python that has them.

Usage: PYTHON feature_peers.py IN.npz OUT.npz

Fits cmfrec's CMF, LightFM and myFM, as far as they are installed. Unless IN names the setting, each
setting is fitted to the inner part, and the best on the items held out from it is chosen. It is
then fitted to the training part. OUT gets the scores of the held-out items, one row per user, the
seconds of the last fit, predictions for known items (of models that predict ratings), and LightFM's
scores of all items.
"""

from __future__ import annotations

import json
import sys
import time
import warnings

import numpy as np
from scipy import sparse
from scipy.stats import rankdata

warnings.filterwarnings("ignore")


class Data:
    """The parts of a split and the features of items."""

    def __init__(self, path):
        arrays = dict(np.load(path))
        self.chosen = json.loads(str(arrays.pop("chosen")))
        self.n_users, self.held = int(arrays["n_users"]), arrays["held"]
        self.inner_held, self.dense = (
            arrays["inner_held"],
            arrays["dense"].astype(float),
        )
        csr = arrays["data"], arrays["indices"], arrays["indptr"]
        self.features = sparse.csr_matrix(csr, shape=tuple(arrays["shape"]))
        self.parts = {
            name: tuple(
                arrays[f"{name}_{column}"] for column in ("users", "items", "values")
            )
            for name in ("inner", "validation", "train", "test", "warm", "warm_test")
        }

    @property
    def reduced(self):
        """Return the features with tags as 50 vectors of latent semantic indexing."""
        from scipy.sparse.linalg import svds

        tags = self.features[:, self.dense.shape[1] :].astype(float)
        U, s, _ = svds(tags, 50, random_state=0)
        return np.hstack([self.dense, U * s])


class OfCmfrec:
    """Collective matrix factorization."""

    title, rates = "cmfrec CMF", True
    settings = tuple(
        {"k": k, "lambda_": penalty, "w_item": weight}
        for k in (16, 40)
        for penalty in (1.0, 3.0, 10.0)
        for weight in (5.0, 20.0)
    )

    def fit(self, data, part, params):
        import pandas as pd
        from cmfrec import CMF

        users, items, values = part
        frame = pd.DataFrame({"UserId": users, "ItemId": items, "Rating": values})
        F = data.reduced
        self.known, self.F = np.isin(np.arange(len(F)), items), F
        info = pd.DataFrame(F[self.known])
        info.columns = [f"f{j}" for j in info.columns]
        info.insert(0, "ItemId", np.flatnonzero(self.known))
        self.model = CMF(**params, verbose=False, nthreads=2, scale_lam=False)
        self.model.fit(frame, I=info)

    def scores(self, data, held):
        users, items = np.meshgrid(
            np.arange(data.n_users), np.arange(len(held)), indexing="ij"
        )
        import pandas as pd

        info = pd.DataFrame(self.F[held])
        info.columns = [f"f{j}" for j in info.columns]
        rows = info.iloc[items.ravel()].reset_index(drop=True)
        return self.model.predict_new(users.ravel(), I=rows).reshape(users.shape)

    def predict(self, data, users, items):
        known = self.known[items]
        found = np.full(len(users), np.nan)
        found[known] = self.model.predict(users[known], items[known])
        import pandas as pd

        info = pd.DataFrame(self.F[items[~known]])
        info.columns = [f"f{j}" for j in info.columns]
        found[~known] = self.model.predict_new(users[~known], I=info)
        return found


class OfContentBased:
    """A map from features to factors, fitted to the ratings."""

    title, rates = (
        "cmfrec ContentBased",
        False,
    )  # its scores of new items are taken as ranks
    settings = tuple({"k": 20, "lambda_": penalty} for penalty in (3.0, 30.0))

    def fit(self, data, part, params):
        import pandas as pd
        from cmfrec import ContentBased

        users, items, values = part
        frame = pd.DataFrame({"UserId": users, "ItemId": items, "Rating": values})
        self.F = data.reduced
        # Nothing is known of users: each has a column of its own.
        everybody = pd.DataFrame(
            np.eye(data.n_users), columns=[f"u{j}" for j in range(data.n_users)]
        )
        self.users = everybody
        films = pd.DataFrame(self.F, columns=[f"f{j}" for j in range(self.F.shape[1])])
        self.films = films
        self.model = ContentBased(
            **params,
            maxiter=100,
            user_bias=True,
            item_bias=False,
            verbose=False,
            nthreads=2,
        )
        everybody = everybody.assign(UserId=np.arange(data.n_users))
        films = films.assign(ItemId=np.arange(len(films)))
        self.model.fit(frame, U=everybody, I=films)

    def scores(self, data, held):
        out = np.empty((data.n_users, len(held)))
        for user in range(data.n_users):
            mine = self.users.iloc[np.full(len(held), user)].reset_index(drop=True)
            out[user] = self.model.predict_new(
                mine, self.films.iloc[held].reset_index(drop=True)
            )
        return out

    predict = None


class OfLightfm:
    """Sums of the vectors of features, fitted to liked items."""

    title, rates = "LightFM", False
    settings = tuple(
        {"no_components": 32, "loss": loss, "epochs": epochs, "item_alpha": penalty}
        for loss, epochs in (("warp", 3), ("warp", 10), ("warp", 30), ("logistic", 30))
        for penalty in (0.0, 1e-5)
    )

    def fit(self, data, part, params):
        from lightfm import LightFM

        users, items, values = part
        params = dict(params)
        epochs = params.pop("epochs")
        n_items = data.features.shape[0]
        sign = np.where(values >= 4, 1.0, -1.0)
        if params["loss"] == "warp":
            users, items, sign = users[sign > 0], items[sign > 0], sign[sign > 0]
        X = sparse.coo_matrix((sign, (users, items)), shape=(data.n_users, n_items))
        known = sparse.diags(np.isin(np.arange(n_items), items).astype(np.float32))
        self.rows = sparse.hstack([known, data.features], format="csr").astype(
            np.float32
        )
        self.model = LightFM(**params, random_state=0)
        self.model.fit(X, item_features=self.rows, epochs=epochs, num_threads=2)

    def scores(self, data, held):
        biases, vectors = self.model.get_item_representations(self.rows)
        user_biases, users = self.model.get_user_representations()
        return user_biases[:, None] + biases[held] + users @ vectors[held].T

    predict = None


class OfMyfm:
    """Bayesian factorization machines, by Gibbs sampling."""

    title, rates = "myFM", True
    settings = tuple({"rank": rank} for rank in (8, 16))

    def design(self, data, users, items):
        n, n_items = len(users), data.features.shape[0]
        one = np.ones(n)
        by_user = sparse.csr_matrix(
            (one, (np.arange(n), users)), shape=(n, data.n_users)
        )
        known = one * self.known[items]
        by_item = sparse.csr_matrix((known, (np.arange(n), items)), shape=(n, n_items))
        return sparse.hstack(
            [by_user, by_item, data.features[items]], format="csr"
        ).astype(float)

    def fit(self, data, part, params):
        import myfm

        users, items, values = part
        n_items = data.features.shape[0]
        self.known = np.isin(np.arange(n_items), items)
        groups = [data.n_users, n_items, 19, 2, data.features.shape[1] - 21]
        shapes = [j for j, size in enumerate(groups) for _ in range(size)]
        self.model = myfm.MyFMRegressor(**params, random_seed=0)
        X = self.design(data, users, items)
        options = {"n_iter": 150, "n_kept_samples": 130, "grouping": shapes}
        self.model.fit(X, values.astype(float), **options)

    def scores(self, data, held):
        out = np.empty((data.n_users, len(held)))
        for user in range(data.n_users):
            out[user] = self.model.predict(
                self.design(data, np.full(len(held), user), held)
            )
        return out

    def predict(self, data, users, items):
        return self.model.predict(self.design(data, users, items))


def quality(peer, data):
    """Return the error on held-out items: RMSE, or minus the AUC of each user's likes among all."""
    users, items, values = data.parts["validation"]
    found, places = (
        peer.scores(data, data.inner_held),
        np.searchsorted(data.inner_held, items),
    )
    if peer.rates:
        off = np.clip(found[users, places], 0.5, 5) - values
        return float(np.sqrt(np.mean(off**2)))
    liked = np.zeros(found.shape, bool)
    liked[users[values >= 4], places[values >= 4]] = True
    rows = np.flatnonzero(liked.any(axis=1))
    ranks, n = rankdata(found[rows], axis=1), liked[rows].sum(axis=1)
    above = (ranks * liked[rows]).sum(axis=1) - n * (n + 1) / 2
    return -float(np.mean(above / (n * (liked.shape[1] - n))))


def fitted(kind, data, part, params):
    peer = kind()
    peer.fit(data, data.parts[part], params)
    return peer


def main() -> None:
    data, found = Data(sys.argv[1]), {}
    titles, chosen = [], data.chosen
    for kind in (OfCmfrec, OfContentBased, OfLightfm, OfMyfm):
        try:
            if kind.title not in chosen:
                errors = [
                    quality(fitted(kind, data, "inner", p), data) for p in kind.settings
                ]
                chosen[kind.title] = int(np.argmin(errors))
            best = kind.settings[chosen[kind.title]]
            start = time.perf_counter()
            peer = fitted(kind, data, "train", best)
        except ImportError:
            continue
        found[f"{kind.title}: seconds"] = time.perf_counter() - start
        print(f"{kind.title}: {best}", file=sys.stderr)
        found[f"{kind.title}: scores"] = peer.scores(data, data.held)
        if kind.predict is not None:
            users, items, _ = data.parts["warm_test"]
            known = fitted(kind, data, "warm", best)
            found[f"{kind.title}: warm"] = known.predict(data, users, items)
        if kind is OfLightfm:
            everything = np.arange(data.features.shape[0])
            found[f"{kind.title}: lists"] = fitted(kind, data, "warm", best).scores(
                data, everything
            )
        titles.append(kind.title)
    rated = [
        kind.title
        for kind in (OfCmfrec, OfContentBased, OfLightfm, OfMyfm)
        if kind.rates
    ]
    np.savez(
        sys.argv[2],
        titles=np.array(titles),
        rated=np.array(rated),
        chosen=json.dumps(chosen),
        **found,
    )


if __name__ == "__main__":
    main()
