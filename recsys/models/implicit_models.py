"""Models of the library `implicit`: factors and nearest neighbours of items.

The library is used, and imported, for fits only. Everything else uses the fitted arrays.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowrank import kernels
from lowrank.kernels import CsrArrays
from recsys.errors import DataError
from recsys.models.base import FactorModel, FoldingModel, OnStep, Step, check_indices
from recsys.models.factor_form import FactorForm
from recsys.models.histories import Explanation, Histories
from recsys.models.item_item import ItemItemModel, weight_unit, weighted_matrix
from recsys.models.parameters import (
    fitted,
    model,
    parameter,
    random_state_parameter,
    threads_parameter,
)
from recsys.models.parts import Floats, Indices
from recsys.saved_arrays import check_rows

if TYPE_CHECKING:
    from scipy.sparse import csr_array, csr_matrix

    from recsys.data.ratings import Ratings

_INTERACTION_WEIGHT = 1.5
_PENALTY = 0.3
_BM25_K1, _BM25_B = 1.2, 0.75
_ROUNDING = (
    1e-6  # relative tolerance for similarities equal to that of the last neighbour
)


def library_class(module: str, name: str) -> Any:
    """Import a class or function of the library, without warnings about progress bars."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(import_module(f"implicit.{module}"), name)


@contextmanager
def library(name: str) -> Iterator[None]:
    """Run code of the library without warnings, and with one BLAS thread.

    Raises
    ------
    DataError
        If the fit diverges.
    """
    with kernels.one_blas_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except Exception as error:
            if type(error).__name__ == "ModelFitError" or "posv failed" in str(error):
                raise DataError(
                    f"The {name} fit diverged; try a larger regularization or, if the model has "
                    "one, a smaller learning_rate."
                ) from error
            raise


def library_matrix(matrix: Any) -> csr_matrix[np.float32]:
    """Return a copy of a sparse matrix, of the class that the library accepts."""
    from scipy.sparse import csr_matrix

    matrix = matrix.tocsr()
    arrays = (
        matrix.data,
        matrix.indices,
        matrix.indptr,
    )  # the class converts indices to 32 bits
    return csr_matrix(arrays, shape=matrix.shape, copy=True)


@model
class _LibraryFactors(FactorModel):
    """A factor model that the library fits."""

    _needs_values = False
    predicts_ratings = False
    _scores_between_sweeps = True

    if TYPE_CHECKING:  # declared by each model, to keep its order of parameters
        iterations: int

    def _fit(
        self, ratings: Ratings, on_step: OnStep, validation: Ratings | None
    ) -> None:
        def each(iteration: int, *_: object) -> None:
            if on_step is not None:
                self._take(peer.user_factors, peer.item_factors)
                on_step(Step(iteration + 1, self.iterations))

        peer = self._library_model(ratings)
        self.global_mean = 0.0
        self.user_bias = np.zeros(ratings.n_users, dtype=np.float32)
        self.item_bias = np.zeros(ratings.n_items, dtype=np.float32)
        weights = weighted_matrix(
            Histories.of(ratings), ratings.n_items, weight_unit(ratings)
        )
        with library(self.name):
            peer.fit(library_matrix(weights), show_progress=False, callback=each)
        self._take(peer.user_factors, peer.item_factors)

    @abstractmethod
    def _library_model(self, ratings: Ratings) -> Any:
        """Return the library's unfitted model for these ratings."""

    @abstractmethod
    def _take(self, users: Floats, items: Floats) -> None:
        """Set the factors and biases from the library's."""


@model
class ImplicitALS(FoldingModel, _LibraryFactors):
    """Alternating least squares for implicit feedback, by the library `implicit`.

    The target is 1 for an interaction and 0 otherwise. The squared error of an interaction has the
    weight alpha, multiplied by the rating divided by the highest rating, or by the count divided by
    the mean count. All other pairs have the weight 1.

    Attributes
    ----------
    interaction_weight : float
        The given `alpha`, by default ``1.5 d^(-1/2)``, where d is the density of the interactions.
    penalty : float
        The given `regularization`, by default ``0.3 alpha (n_u^(1/2) + n_i^(1/2))``, where n_u and
        n_i are the mean numbers of interactions of users and items. The sum is the scale of the
        singular values of a random matrix of the same size and density.
    unit : float
        The rating or count of weight 1.

    References
    ----------
    Hu, Koren and Volinsky (2008), "Collaborative filtering for implicit feedback datasets",
    section 4. Takacs, Pilaszy and Tikk (2011), "Applications of the conjugate gradient method for
    implicit feedback collaborative filtering".
    """

    name = "implicit-als"
    summary = "Implicit feedback as latent factors: small models, similar users."

    factors: int = parameter(64, "Number of latent factors.", low=8, high=256, log=True)
    regularization: float | None = parameter(
        None, "Ridge penalty of the factors; by default it follows from the data."
    )
    alpha: float | None = parameter(
        None,
        "Weight of an interaction; by default it follows from the density of the data.",
    )
    iterations: int = parameter(15, "Number of sweeps.")
    random_state: int = random_state_parameter()
    threads: int | None = threads_parameter()

    interaction_weight: float = fitted()
    penalty: float = fitted()
    unit: float = fitted()

    def _fit(
        self, ratings: Ratings, on_step: OnStep, validation: Ratings | None
    ) -> None:
        super()._fit(ratings, on_step, validation)
        # Solve the users exactly, so that folding in a training user returns the same vector.
        vars(self).update(self._solved("user", Histories.of(ratings), None))

    def contributions(self, history: Histories, items: ArrayLike) -> Explanation:
        """Return the scores of `items` for the user of `history` as sums; the base is 0."""
        columns = check_indices(items, self.n_items, "item")
        rated = check_indices(history.indices, self.n_items, "item")
        values = (history.values / np.float32(self.unit)).astype(np.float64)
        confidence = self.interaction_weight * values
        Y = self.item_factors.astype(np.float64)
        normal = Y.T @ Y + self.penalty * np.eye(Y.shape[1])
        normal += (Y[rated].T * (np.abs(confidence) - 1)) @ Y[rated]
        sides = Y[rated].T * np.maximum(
            confidence, 0
        )  # negative confidence means target 0
        terms = Y[columns] @ np.linalg.solve(normal, sides)
        return Explanation(np.zeros(len(columns), np.float32), terms.astype(np.float32))

    def _take(self, users: Floats, items: Floats) -> None:
        self.user_factors, self.item_factors = users, items

    def _library_model(self, ratings: Ratings) -> Any:
        self.unit = weight_unit(ratings)
        self.interaction_weight = (
            self.alpha or _INTERACTION_WEIGHT * ratings.density**-0.5
        )
        by_chance = sum(math.sqrt(ratings.n_ratings / n) for n in ratings.shape)
        self.penalty = (
            self.regularization or _PENALTY * self.interaction_weight * by_chance
        )
        als = library_class("cpu.als", "AlternatingLeastSquares")
        options = {
            name: getattr(self, name)
            for name in ("factors", "iterations", "random_state")
        }
        options |= {"regularization": self.penalty, "alpha": self.interaction_weight}
        with library(self.name):
            return als(**options, num_threads=kernels.resolve_threads(self.threads))

    def _solved(
        self, side: str, histories: Histories, features: CsrArrays | None
    ) -> dict[str, Any]:
        other = self.item_factors if side == "user" else self.user_factors
        n, Y = histories.n_rows, np.ascontiguousarray(other)
        indptr, indices = histories.indptr, histories.indices
        confidence = (self.interaction_weight * histories.values / self.unit).astype(
            np.float32
        )
        preferred, weights = np.maximum(confidence, 0), np.abs(confidence) - 1
        gram = kernels.coefficients(Y, Y, threads=self.threads)
        # (Y'Y + Y'(|C| - I)Y + penalty) x = Y' max(C, 0), with target 0 for negative confidence.
        # The kernel adds Y'(|C| - I) to the right-hand side, so only the rest is passed.
        solved = kernels.aligned_zeros((n, Y.shape[1]), Y.dtype)
        remaining = CsrArrays(indptr, indices, preferred - weights)
        kernels.implicit_half_sweep(
            CsrArrays(indptr, indices, np.maximum(weights, 0)),
            Y,
            gram=gram,
            penalty=np.full(n, self.penalty),
            factors=solved,
            right=kernels.csr_matmat(remaining, Y, threads=self.threads),
            threads=self.threads,
        )
        # The kernel takes square roots of weights, so rows with confidence below 1 are solved here.
        penalised = gram + np.float32(self.penalty) * np.eye(
            len(gram), dtype=gram.dtype
        )
        for row in np.unique(histories.rows[weights < 0]).tolist():
            entries = slice(indptr[row], indptr[row + 1])
            rated_factors = Y[indices[entries]]
            system = penalised + (rated_factors.T * weights[entries]) @ rated_factors
            solved[row] = np.linalg.solve(system, rated_factors.T @ preferred[entries])
        return {
            f"{side}_factors": solved,
            f"{side}_bias": np.zeros(n, dtype=np.float32),
        }


@model
class ImplicitBPR(_LibraryFactors):
    """Bayesian personalised ranking by the library `implicit`.

    Stochastic gradient steps rank the items of a user above the others. Any rating is an
    interaction, and weights are not used. The fit uses one thread, because the library's results
    are not reproducible with more.

    References
    ----------
    Rendle, Freudenthaler, Gantner and Schmidt-Thieme (2009), "BPR: Bayesian personalized ranking
    from implicit feedback", section 4.
    """

    name = "implicit-bpr"
    summary = "Implicit feedback, by pairwise ranking; for comparison."
    uses_weights = False

    factors: int = parameter(64, "Number of latent factors.", low=8, high=256, log=True)
    learning_rate: float = parameter(
        0.01, "Step size of the gradient descent.", low=0.001, high=0.1, log=True
    )
    regularization: float = parameter(
        0.01, "Ridge penalty of the factors.", low=0.0001, high=0.1, log=True
    )
    iterations: int = parameter(100, "Number of passes over the interactions.")
    random_state: int = random_state_parameter()

    def _take(self, users: Floats, items: Floats) -> None:
        # The last column of the items is their bias, and that of the users is 1.
        self.user_factors = np.ascontiguousarray(users[:, :-1])
        self.item_factors = np.ascontiguousarray(items[:, :-1])
        self.item_bias = items[:, -1].copy()

    def _library_model(self, ratings: Ratings) -> Any:
        bpr = library_class("cpu.bpr", "BayesianPersonalizedRanking")
        return bpr(**self.get_params(), num_threads=1)


@model
class ImplicitLMF(_LibraryFactors):
    """Logistic matrix factorisation by the library `implicit`.

    The probability of an interaction is a logistic function of the score. The weight of an
    interaction is the rating divided by the highest rating, or the count divided by the mean count.
    The fit uses one thread, because the library's samples depend on the number of threads.

    References
    ----------
    Johnson (2014), "Logistic matrix factorization for implicit feedback data".
    """

    name = "implicit-lmf"
    summary = "Implicit feedback, by logistic regression; for comparison."

    factors: int = parameter(16, "Number of latent factors.", low=4, high=64, log=True)
    learning_rate: float = parameter(
        1.0,
        "Size of the first gradient step; later ones shrink.",
        low=0.1,
        high=3.0,
        log=True,
    )
    regularization: float = parameter(
        6.0, "Ridge penalty of the factors.", low=0.1, high=20.0, log=True
    )
    iterations: int = parameter(30, "Number of passes over users and items.")
    negatives: int = parameter(30, "Number of negative items sampled per interaction.")
    random_state: int = random_state_parameter()

    def _take(self, users: Floats, items: Floats) -> None:
        # The last two columns are (bias, 1) for items and (1, bias) for users.
        self.user_factors = np.ascontiguousarray(users[:, :-2])
        self.item_factors = np.ascontiguousarray(items[:, :-2])
        self.user_bias, self.item_bias = users[:, -1].copy(), items[:, -2].copy()

    def _library_model(self, ratings: Ratings) -> Any:
        lmf = library_class("cpu.lmf", "LogisticMatrixFactorization")
        params = self.get_params()
        negatives = params.pop("negatives")
        return lmf(**params, neg_prop=negatives, num_threads=1)


@model
class ImplicitKNN(ItemItemModel):
    """Score an item by its similarity to the items of the user, by the library `implicit`.

    Two items are similar if the same users have them. Only the nearest neighbours of each item are
    used. The weight of an interaction is the rating divided by the highest rating, or the count
    divided by the mean count.

    The similarities are the rows of a CSR matrix. An item is its own neighbour.

    References
    ----------
    Deshpande and Karypis (2004), "Item-based top-N recommendation algorithms", section 4.
    """

    name = "implicit-knn"
    summary = "Implicit feedback, by similar items: easy to explain."

    weighting: str = parameter(
        "tfidf",
        "Similarity of items: cosine, cosine of TF-IDF, or product of BM25 weights.",
        choices=("cosine", "tfidf", "bm25"),
    )
    neighbors: int = parameter(
        300,
        "Number of most similar items kept of each item.",
        low=10,
        high=1000,
        log=True,
    )
    threads: int | None = threads_parameter()

    neighbor_indptr: NDArray[np.int64] = fitted("n_items + 1")
    neighbor_items: NDArray[np.int32] = fitted("n_neighbors")
    neighbor_weights: Floats = fitted("n_neighbors")

    @property
    def n_items(self) -> int:
        """Number of items."""
        n: int = vars(self).get("_n_new", len(self.neighbor_indptr) - 1)
        return n

    def _fit(
        self, ratings: Ratings, on_step: OnStep, validation: Ratings | None
    ) -> None:
        """Find the neighbours of every item."""
        all_pairs_knn = library_class("nearest_neighbours", "all_pairs_knn")
        self.unit = weight_unit(ratings)
        self._take_histories(Histories.of(ratings))
        weights = weighted_matrix(Histories.of(ratings), ratings.n_items, self.unit)
        weighted = library_matrix(self._weighted(weights).T)
        threads = kernels.resolve_threads(self.threads)
        k = min(self.neighbors, ratings.n_items)
        with library(self.name):
            nearest = all_pairs_knn(
                weighted, k, num_threads=threads, show_progress=False
            ).tocsr()
        nearest.eliminate_zeros()  # the library pads short rows with zeros at item 0
        self._set_neighbors(nearest)

    def item_similarity(self, confidence: Floats) -> Neighbors:
        """Return a scorer of items for items.

        Raises
        ------
        DataError
            If items were folded into the model.
        """
        self._require_items_of_the_fit()
        return Neighbors(self, confidence)

    @classmethod
    def _from_arrays(
        cls, params: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> Self:
        result = super()._from_arrays(params, arrays)
        check_rows(
            "neighbours", result.neighbor_indptr, result.neighbor_items, result.n_items
        )
        return result

    def _set_items(self, histories: Histories) -> None:
        """Make new items neighbours of items to which they are similar enough.

        The similarity must be at least the last neighbour's.
        """
        n_items = self.n_items
        fitted_weights = weighted_matrix(self._all_histories(), n_items, 1)
        new_weights = weighted_matrix(histories, self.n_users, self.unit)
        columns = self._weighted(fitted_weights, new_weights).T
        products = (self._weighted(fitted_weights) @ columns).tocsr()
        similar = products.astype(np.float32)
        counts = np.diff(self.neighbor_indptr)
        least = np.full(n_items, np.inf, np.float32)
        np.minimum.at(
            least, np.repeat(np.arange(n_items), counts), self.neighbor_weights
        )
        least[counts < self.neighbors] = 0
        least = np.maximum(least * np.float32(1 - _ROUNDING), np.finfo(np.float32).tiny)
        similar.data[similar.data < np.repeat(least, np.diff(similar.indptr))] = 0
        similar.eliminate_zeros()
        self._set_neighbors(similar)
        vars(self)["_n_new"] = histories.n_rows

    def predict(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Return scores of pairs, shape (n_pairs,), equal to those in `scores`."""
        u, i = self._checked_pairs(users, items)
        distinct, rows = np.unique(u, return_inverse=True)
        return self._factor_form(distinct).pairs(rows, i, self.threads)

    def scores(self, users: ArrayLike) -> Floats:
        """Return scores of all items for each user, shape (n_block, n_items)."""
        return self._factor_form(users).scores(self.threads)

    def _factor_form(self, users: ArrayLike) -> FactorForm:
        """Return the scores in factored form, with the similarities as sparse part."""
        u = check_indices(users, self.n_users, "user")
        weights = CsrArrays(
            self.neighbor_indptr, self.neighbor_items, self.neighbor_weights
        )
        history = self._all_histories().take(u).csr
        return FactorForm(
            users=np.zeros((len(u), 0), np.float32),
            items=np.zeros((self.n_items, 0), np.float32),
            sparse=kernels.SparsePart(history, weights),
        )

    def _set_neighbors(self, similarities: Any) -> None:
        similarities.sort_indices()
        self.neighbor_indptr = similarities.indptr.astype(np.int64)
        self.neighbor_items = similarities.indices.astype(np.int32)
        self.neighbor_weights = similarities.data.astype(np.float32)

    def _weighted(
        self, known: csr_array[np.float32], new: csr_array[np.float32] | None = None
    ) -> csr_array[np.float64]:
        """Return an items x users matrix whose row products are the library's similarities.

        The rows of `new` items are weighted with the statistics of the `known` interactions.
        """
        weighted = (known.T.tocsr() if new is None else new).astype(np.float64)
        rows = np.repeat(np.arange(weighted.shape[0]), np.diff(weighted.indptr))
        idf = (np.log(known.shape[1]) - np.log1p(np.diff(known.indptr)))[
            weighted.indices
        ]
        values = weighted.data
        with np.errstate(all="ignore"):
            if self.weighting == "bm25":
                average = known.sum(dtype=np.float64) / known.shape[1]
                norm = 1 - _BM25_B + _BM25_B * np.bincount(rows, values)[rows] / average
                values = values * (_BM25_K1 + 1) / (_BM25_K1 * norm + values) * idf
            else:
                if self.weighting == "tfidf":
                    values = np.sqrt(values) * idf
                values = values / np.sqrt(np.bincount(rows, values**2))[rows]
        # An item without weight (for example, if its users have all items) gets a zero row.
        weighted.data = np.nan_to_num(values, nan=0, posinf=0, neginf=0)
        return weighted

    def _entries(self, rows: Indices, columns: Indices) -> Floats:
        from scipy.sparse import csr_array

        neighbors = (self.neighbor_weights, self.neighbor_items, self.neighbor_indptr)
        similarities = csr_array(
            neighbors, shape=(len(self.neighbor_indptr) - 1, self.n_items)
        )
        return similarities[rows][:, columns].toarray()


class Neighbors:
    """Scorer of items for items: similarity times confidence, or -inf without a neighbour."""

    def __init__(self, model: ImplicitKNN, confidence: Floats) -> None:
        self._model, self._confidence = model, confidence

    @property
    def n_items(self) -> int:
        """Number of items."""
        return self._model.n_items

    def pair_scores(self, users: Indices, items: Indices) -> Floats:
        """Return similarities of pairs of items, shape (n_pairs,)."""
        return self.scores(users)[np.arange(len(users)), items]

    def scores(self, users: Indices) -> Floats:
        """Return similarities of some items to all items, shape (n_block, n_items)."""
        block = np.full((len(users), self.n_items), -np.inf, dtype=np.float32)
        model = self._model
        neighbors = Histories(
            model.neighbor_indptr, model.neighbor_items, model.neighbor_weights
        ).take(users)
        items = neighbors.indices
        block[neighbors.rows, items] = neighbors.values * self._confidence[items]
        return block

    def _score_error(self, users: Indices) -> None:
        """Return None, since scores do not depend on the block and have no factored form."""

    _factor_form = _score_error
