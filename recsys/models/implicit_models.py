"""Models of the library `implicit`: factors and nearest neighbours of items.

The library is used, and imported, for fits only. Everything else uses the fitted arrays.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from lowrank import kernels
from lowrank.kernels import CsrArrays
from recsys.errors import DataError
from recsys.models.base import FactorModel, FoldingModel, Progress, check_indices
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
from recsys.models.parts import OTHER, Floats, Indices, Ints, Longs
from recsys.saving.arrays import check_sorted_rows

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from recsys.data.ratings import Ratings

_INTERACTION_WEIGHT = 1.5
_PENALTY = 0.3
_BM25_K1, _BM25_B = 1.2, 0.75


def library_module(name: str) -> Any:
    """Import a module of the library, without warnings about progress bars."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(f"implicit.{name}")


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
    arrays = (matrix.data, matrix.indices, matrix.indptr)
    # The class converts indices to 32 bits.
    return csr_matrix(arrays, shape=matrix.shape, copy=True)


@model
class _LibraryFactors(FactorModel):
    """A factor model that the library fits."""

    _needs_values = False
    predicts_ratings = False
    _scores_between_sweeps = True
    _library: ClassVar[tuple[str, str]]  # module and class of the library's model

    if TYPE_CHECKING:  # declared by each model, to keep its order of parameters
        iterations: int

    def _fit(self, ratings: Ratings, progress: Progress) -> None:
        def report(iteration: int, *_: object) -> None:
            if progress.on_step is not None:
                self._take(peer.user_factors, peer.item_factors)
                progress.report(self, iteration + 1, self.iterations)

        peer = self._peer()
        self.global_mean = 0.0
        self.user_bias = np.zeros(ratings.n_users, dtype=np.float32)
        self.item_bias = np.zeros(ratings.n_items, dtype=np.float32)
        weights = weighted_matrix(
            Histories.of(ratings), ratings.n_items, weight_unit(ratings)
        )
        with library(self.name):
            peer.fit(library_matrix(weights), show_progress=False, callback=report)
        self._take(peer.user_factors, peer.item_factors)

    def _peer(self) -> Any:
        """Return the library's unfitted model."""
        with library(self.name):
            module, name = self._library
            return getattr(library_module(module), name)(**self._options())

    def _options(self) -> dict[str, Any]:
        """Return the arguments of the library's class: one thread, for the same result again."""
        return self.get_params() | {"num_threads": 1}

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
    _library = "cpu.als", "AlternatingLeastSquares"

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

    def _prepare(self, ratings: Ratings) -> None:
        self.unit = weight_unit(ratings)
        # Few interactions say more each; the penalty grows with the noise of a random
        # matrix.
        weight = self.alpha or _INTERACTION_WEIGHT * ratings.density**-0.5
        by_chance = sum(math.sqrt(ratings.n_ratings / n) for n in ratings.shape)
        self.interaction_weight = weight
        self.penalty = self.regularization or _PENALTY * weight * by_chance

    def _fit(self, ratings: Ratings, progress: Progress) -> None:
        super()._fit(ratings, progress)
        # Solve the users exactly, so that folding in a training user returns the same vector.
        vars(self).update(self._solved("user", Histories.of(ratings)))

    def _options(self) -> dict[str, Any]:
        return {
            "factors": self.factors,
            "iterations": self.iterations,
            "random_state": self.random_state,
            "regularization": self.penalty,
            "alpha": self.interaction_weight,
            "num_threads": kernels.resolve_threads(self.threads),
        }

    def contributions(
        self,
        history: Histories,
        items: ArrayLike,
        fitted: Ratings | None = None,
    ) -> Explanation:
        """Return the scores of `items` for the user of `history` as sums; the base is 0."""
        columns, rated = self._checked_history(history, items)
        values = (history.values / np.float32(self.unit)).astype(np.float64)
        confidence = self.interaction_weight * values
        cached = vars(self._source).get("_gram")
        if cached is None or cached[0] is not self.item_factors:
            all_items = self.item_factors.astype(np.float64)
            gram = all_items.T @ all_items
            gram.flat[:: len(gram) + 1] += self.penalty
            cached = self.item_factors, gram
            vars(self._source)["_gram"] = cached
        # (Y'Y + Y'(|C| - I)Y + penalty) x = Y' max(C, 0), with target 0 for negative confidence.
        Y = self.item_factors.take(rated, axis=0).astype(np.float64)
        excess = np.abs(confidence) - 1
        scaled = Y * np.sqrt(np.abs(excess))[:, None]
        normal = cached[1] + scaled.T @ scaled
        is_small = excess < 0
        if is_small.any():
            normal -= 2 * scaled[is_small].T @ scaled[is_small]
        listed = self.item_factors.take(columns, axis=0).astype(np.float64)
        solutions = kernels.solve_positive(normal, listed)
        terms = (solutions @ Y.T) * np.maximum(confidence, 0)
        return Explanation(np.zeros(len(columns), np.float32), terms.astype(np.float32))

    def _take(self, users: Floats, items: Floats) -> None:
        self.user_factors, self.item_factors = users, items

    def _solved(self, side: str, histories: Histories) -> dict[str, Any]:
        others, _ = self._vectors_of(OTHER[side])
        peer = self._peer()
        # The library needs an array that can be written to.
        peer.item_factors = np.array(others)
        weights = weighted_matrix(histories, len(others), self.unit)
        with library(self.name):
            factors = peer.recalculate_user(
                np.arange(histories.n_rows), library_matrix(weights)
            )
        bias = np.zeros(histories.n_rows, np.float32)
        return {f"{side}_factors": factors, f"{side}_bias": bias}


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
    _library = "cpu.bpr", "BayesianPersonalizedRanking"
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
    _library = "cpu.lmf", "LogisticMatrixFactorization"

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

    def _options(self) -> dict[str, Any]:
        options = super()._options()
        options["neg_prop"] = options.pop("negatives")
        return options


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

    neighbor_indptr: Longs = fitted("n_items + 1")
    neighbor_items: Ints = fitted("n_neighbors")
    neighbor_weights: Floats = fitted("n_neighbors")

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.neighbor_indptr) - 1

    def _fit(self, ratings: Ratings, progress: Progress) -> None:
        """Find the neighbours of every item."""
        peer = library_module("nearest_neighbours")
        self.unit = weight_unit(ratings)
        histories = Histories.of(ratings)
        self._take_histories(histories)
        weights = weighted_matrix(histories, ratings.n_items, self.unit).T
        with library(self.name), np.errstate(all="ignore"):
            if self.weighting == "bm25":
                weights = peer.bm25_weight(weights, _BM25_K1, _BM25_B)
            else:
                if self.weighting == "tfidf":
                    weights = peer.tfidf_weight(weights)
                weights = peer.normalize(weights)
            # An item without weight (for example, if its users have all items) gets a zero row.
            weights.data = np.nan_to_num(weights.data, nan=0, posinf=0, neginf=0)
            nearest = peer.all_pairs_knn(
                library_matrix(weights.T),
                min(self.neighbors, ratings.n_items),
                num_threads=kernels.resolve_threads(self.threads),
                show_progress=False,
            ).tocsr()
        nearest.eliminate_zeros()  # the library pads short rows with zeros at item 0
        nearest.sort_indices()
        self.neighbor_indptr = nearest.indptr.astype(np.int64)
        self.neighbor_items = nearest.indices.astype(np.int32)
        self.neighbor_weights = nearest.data.astype(np.float32)

    def item_similarity(self, confidence: Floats) -> Neighbors:
        """Return a scorer of items for items."""
        return Neighbors(self, confidence)

    def _check_arrays(self) -> None:
        super()._check_arrays()
        indptr, indices, _ = self._neighbors
        check_sorted_rows("neighbours", indptr, indices, self.n_items)

    def _factor_form(self, users: ArrayLike) -> FactorForm:
        """Return the scores in factored form, with the similarities as sparse part."""
        u = check_indices(users, self.n_users, "user")
        history = self._all_histories().take(u).csr
        sparse = kernels.SparsePart(history, self._neighbors)
        none = np.zeros((len(u), 0), np.float32)
        items = np.zeros((self.n_items, 0), np.float32)
        return FactorForm(none, items, sparse=sparse)

    @property
    def _neighbors(self) -> CsrArrays:
        return CsrArrays(
            self.neighbor_indptr, self.neighbor_items, self.neighbor_weights
        )

    def _entries(self, rows: Indices, columns: Indices) -> Floats:
        return kernels.csr_block(self._neighbors, rows, columns)


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
        neighbors = Histories(*self._model._neighbors).take(users)
        items = neighbors.indices
        block[neighbors.rows, items] = neighbors.values * self._confidence[items]
        return block

    def _score_error(self, users: Indices) -> None:
        """Return None, since scores do not depend on the block and have no factored form."""

    _factor_form = _score_error
