"""Accuracy of `sparse-ease` compared with the exact weights of EASE, on Gowalla's published split.

The inverse that EASE needs would take 6.3 GiB. Its products with the histories of some users are
computed by conjugate gradients on ``(X'X + lambda I) Z = R'``. Its diagonal is that of the
approximate inverse plus a stochastic estimate of the difference (Bekas, Kokiopoulou and Saad 2007).

Usage: RECSYS_DATASETS=... python benchmarks/sparse_ease.py [USERS]
"""

from __future__ import annotations

import sys

import numpy as np
from measuring import table
from numpy.typing import NDArray
from scipy.sparse import diags_array
from topn import N, gowalla

from lowrank import kernels
from recsys.data.ratings import Ratings
from recsys.models.ease import SparseEASE
from recsys.models.histories import Histories

Floats = NDArray[np.float32]
PROBES, BLOCK, TOLERANCE = 192, 400, 1e-5


class Exact:
    """The scores of EASE for the users of a fitted `sparse-ease`, block by block."""

    def __init__(self, model: SparseEASE, train: Ratings) -> None:
        of_users = diags_array(model._user_scale())
        scaled = (of_users @ train.matrix @ diags_array(model.item_weight)).tocsr()
        self.model, self.by_user = model, kernels.csr_arrays(scaled)
        self.by_item, self.histories = (
            kernels.csr_arrays(scaled.T.tocsr()),
            Histories.of(train),
        )
        signs = np.random.default_rng(0).choice([-1, 1], (model.n_items, PROBES))
        signs = signs.astype(np.float32)
        difference = signs * (self.solve(signs) - self.nearly(signs))
        self.diagonal = 1 / model.item_output + difference.mean(axis=1)

    def gram(self, Z: Floats) -> Floats:
        return kernels.csr_matmat(self.by_item, kernels.csr_matmat(self.by_user, Z))

    def nearly(self, Z: Floats) -> Floats:
        """Return the product with the inverse that the model approximates."""
        constant, slope = self.model._line
        vectors = self.model.item_factors / self.model.item_output[:, None]
        of_directions = self.model._correction(self.model._eigenvalues).astype(
            np.float32
        )
        found = np.float32(constant) * Z - np.float32(slope) * self.gram(Z)
        return found + vectors @ (of_directions[:, None] * (vectors.T @ Z))

    def solve(self, Z: Floats) -> Floats:
        penalty, found = np.float32(self.model.penalty), self.nearly(Z)
        residual = Z - self.gram(found) - penalty * found
        step, size = residual.copy(), np.square(residual).sum(axis=0)
        while (size > TOLERANCE**2 * np.square(Z).sum(axis=0)).any():
            image = self.gram(step) + penalty * step
            length = size / (step * image).sum(axis=0)
            found += length * step
            residual -= length * image
            size, before = np.square(residual).sum(axis=0), size
            step = residual + (size / before) * step
        return found

    def scores(self, users: NDArray[np.int64]) -> Floats:
        rows = np.zeros((len(users), self.model.n_items), np.float32)
        some = self.histories.take(users)
        rows[some.rows, some.indices] = (
            some.values * self.model.item_weight[some.indices]
        )
        return -(self.solve(np.ascontiguousarray(rows.T)) / self.diagonal[:, None]).T


def main() -> None:
    train, test = gowalla()
    model = SparseEASE().fit(train)
    exact = Exact(model, train)
    users = np.flatnonzero(np.diff(test.indptr))
    users = users[:: max(1, len(users) // int((sys.argv[1:] or [3000])[0]))]
    discounts = 1 / np.log2(np.arange(2, N + 2))
    found: dict[str, list[NDArray[np.float64]]] = {"ease": [], "sparse-ease": []}
    for start in range(0, len(users), BLOCK):
        block = users[start : start + BLOCK]
        seen, relevant = (
            train.matrix[block].tocoo().coords,
            test.matrix[block].toarray() > 0,
        )
        n = relevant.sum(axis=1)
        for name, scorer in (("ease", exact), ("sparse-ease", model)):
            scores = np.array(scorer.scores(block))
            scores[seen] = -np.inf
            best = np.argsort(-scores, axis=1, kind="stable")[:, :N]
            hits = np.take_along_axis(relevant, best, axis=1)
            ndcg = hits @ discounts / discounts.cumsum()[np.minimum(n, N) - 1]
            found[name].append(np.array([hits.sum(axis=1) / n, ndcg]))
    both = np.array([np.concatenate(each, axis=1) for each in found.values()])
    lost = (both[1] - both[0]) / both[0].mean(axis=1, keepdims=True)
    errors = lost.std(axis=1) / np.sqrt(len(users))
    rows = [
        [name, *(f"{x:.4f}" for x in each.mean(axis=1))]
        for name, each in zip(found, both, strict=True)
    ]
    rows.append(
        [
            "difference",
            *(
                f"{x:+.2%} ±{e:.2%}"
                for x, e in zip(lost.mean(axis=1), errors, strict=True)
            ),
        ]
    )
    print(
        f"{len(users):,} users; penalty {model.penalty:.1f}, {len(model.response)} directions"
    )
    print(table(["model", f"Recall@{N}", f"NDCG@{N}"], rows))


if __name__ == "__main__":
    main()
