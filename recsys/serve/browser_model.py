"""Models as arrays with which a page computes recommendations by itself.

There are two forms. In a ridge regression, the vector x of a user solves

    (sum_i w_i y_i y_i' + C_i + P) x = sum_i (w_i t_i y_i - c_i) + P m

for the rated items i with vectors y_i, weights w_i, targets t_i and covariances C_i, and
the prior of the user with mean m and precision P. The first entries of x may have to be
non-negative, with the others zero. In a sum, the score of an item is a sum
of item-item weights over the history. `page/arithmetic.js` computes both, and so does
`form_scores`, to check a form against its model before use. A page has the lists of other
models, computed in advance.
"""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from lowrank.completion.links import unpack
from lowrank.kernels import pieces
from recsys.data.ratings import Ratings
from recsys.models.base import Model, RatingModel
from recsys.models.baselines import Bias, Popular
from recsys.models.blend import Blend
from recsys.models.histories import Histories
from recsys.models.ials import IALS
from recsys.models.item_item import HistoryModel
from recsys.models.nonnegative import has_topics
from recsys.models.parts import Floats, Indices
from recsys.models.vector_model import VectorModel

Form: TypeAlias = dict[str, Any]
"""JSON values and arrays by name; the kind is "ridge" or "sums"."""
Doubles: TypeAlias = NDArray[np.float64]

_BLOCK = 2**24  # scores computed together
_N_TRIALS = 10  # users whose scores are compared with those of the model
_ROUNDING = 1e-3  # largest error relative to the largest score


def browser_model(
    model: Model, ratings: Ratings, items: Indices, users: Indices
) -> Form | None:
    """Return the form of a model for new users, None if no form has its scores.

    Parameters
    ----------
    model : Model
    ratings : Ratings
        Ratings that the model was fitted to.
    items : int64 ndarray of shape (n,)
        Indices of the items to score.
    users : int64 ndarray of shape (n_users,)
        Indices of the users whose own features are included; -1 for an unknown user.
    """
    if isinstance(model, VectorModel):
        form = _ridge_of_ratings(model, ratings, items, users)
    elif isinstance(model, IALS):
        form = _ridge_of_interactions(model, ratings, items, users)
    elif isinstance(model, Bias):
        form = _ridge_of_biases(model, items)
    elif isinstance(model, Popular):
        form = {"kind": "sums", "base": model.item_counts[items]}
    elif _is_linear(model):
        form = _sums(model, items)
    else:
        return None
    if isinstance(model, RatingModel) and model.popularity:
        discount = np.float32(model.popularity) * model.item_obscurity[items]
        form["discount"] = discount
    return form if _agrees(form, model, ratings, items) else None


def _is_linear(model: Model) -> bool:
    """Return whether scores are sums of item-item weights."""
    if isinstance(model, Blend):
        return all(_is_linear(part) for part in model.parts)
    return isinstance(model, HistoryModel)


def scores_new(model: Model) -> bool:
    """Return whether the form of a model scores items without ratings."""
    if isinstance(model, Blend):
        return all(scores_new(part) for part in model.parts)
    # The forms of content models lack the slopes of the user along features.
    return model.uses_features and not isinstance(model, VectorModel)


def form_size(model: Model, n: int) -> int:
    """Return the approximate size in bytes of the form of a model with n items.

    Examples
    --------
    >>> import recsys
    >>> ratings = recsys.read_ratings(recsys.sample_path())
    >>> recommender = recsys.Recommender("als", factors=16).fit(ratings, features=False)
    >>> form_size(recommender.model, 1000)
    72000
    """
    if _is_linear(model):
        return 4 * n * n
    if not isinstance(model, VectorModel | IALS | Bias):
        return 0
    names = ("item_factors", "item_bias", "item_covariance", "item_obscurity")
    per_item = 0
    for name, array in model._arrays().items():
        if name in names:
            width = int(np.prod(array.shape[1:]))
            per_item += array.itemsize * width
        if name == "priors_users_link":  # links of the rated items
            per_item += array.itemsize * array.size // max(1, model.n_items)
    return n * per_item


def _ridge_of_ratings(
    model: VectorModel, ratings: Ratings, items: Indices, users: Indices
) -> Form:
    """Return a ridge regression on vectors whose last entry is the bias of the item."""
    columns = model._posterior("item", items)
    prior = model._prior("user")
    form: Form = {
        "kind": "ridge",
        "vectors": columns.mean,
        "mean": float(model.global_mean),
        "precision": np.asarray(prior.precision * model._noise, np.float32),
        "power": float(prior.count_power),
    }
    if columns.covariance.shape[1]:
        form["covariance"] = columns.covariance
    if has_topics(model):
        form["nonnegative"] = model.factors  # without the bias, which is zero
    if prior.mean.any():
        form["prior"] = prior.mean
    if len(prior.link):
        form["link"] = prior.link[items]
    if prior.features is not None:
        form["users"] = _priors_of_users(ratings, users, prior.features)
    return form


def _ridge_of_biases(model: Bias, items: Indices) -> Form:
    """Return the damped mean of the residuals, as a regression on the bias alone."""
    return {
        "kind": "ridge",
        "vectors": model.item_bias[items, None],
        "mean": float(model.global_mean),
        "precision": np.array([[model.user_damping]], np.float32),
        "power": 0.0,
    }


def _ridge_of_interactions(
    model: IALS, ratings: Ratings, items: Indices, users: Indices
) -> Form:
    """Return a weighted ridge regression, in which all other items have the target 0."""
    _, gram, n_observed = model._pairs("item")
    penalty = np.eye(len(gram), dtype=np.float32)
    penalty *= np.float32(model.penalty)
    form: Form = {
        "kind": "ridge",
        "vectors": model.item_factors[items],
        "gram": model.pair_weight * gram,
        "precision": penalty,
        "power": float(model.count_power),
        "unit": float(model.unit),
        "others": float(model.pair_weight) * n_observed,
    }
    if has_topics(model):
        form["nonnegative"] = len(gram)
    is_observed = model.known("item")[items]
    if not is_observed.all():
        form["observed"] = is_observed.astype(np.uint8)
    of_users = model._axis_features("user")
    if of_users is not None:
        form["prior"] = of_users.mean
        form["users"] = _priors_of_users(ratings, users, of_users.weights)
    return form


def _priors_of_users(ratings: Ratings, users: Indices, weights: Floats) -> Floats:
    """Return the contributions of the features of users to their prior means."""
    assert ratings.user_features is not None
    features = ratings.user_features.matrix.tocsr()
    means = features[np.maximum(users, 0)] @ weights
    means[users < 0] = 0
    return np.asarray(means, np.float32)


def _sums(model: Model, items: Indices) -> Form:
    """Return the contribution of each item in a history to the scores of all items.

    These are the scores of users who have rated a single item.
    """
    n = len(items)
    weights = np.empty((n, n), np.float32)
    block_size = max(1, _BLOCK // max(1, model.n_items))
    for part in pieces(n, block_size):
        scores = _scores_of_single(model, items[part], 1.0)
        weights[part] = scores[:, items]
    doubled = _scores_of_single(model, items[:1], 2.0)
    # Some models take all interactions as equal.
    is_weighted = not np.allclose(doubled[:, items], weights[:1], rtol=1e-3)
    return {"kind": "sums", "weights": weights, "weighted": is_weighted}


def _scores_of_single(model: Model, items: Indices, value: float) -> Floats:
    """Return the scores of users who have rated one item each."""
    n = len(items)
    histories = Histories(
        np.arange(n + 1, dtype=np.int64),
        items.astype(np.int32),
        np.full(n, value, np.float32),
    )
    return _scores_of_new(model, histories)


def _scores_of_new(model: Model, histories: Histories) -> Floats:
    """Return the scores of new users with these histories."""
    folded = cast(Any, model).with_users(histories)
    users = np.arange(len(histories.indptr) - 1)
    scores: Floats = folded.scores(users)
    return scores


def _agrees(form: Form, model: Model, ratings: Ratings, items: Indices) -> bool:
    """Return whether a form has the model's scores of training users, taken as new ones."""
    position = np.full(model.n_items, -1)
    position[items] = np.arange(len(items))
    counts = np.bincount(ratings.indices, minlength=model.n_items)
    is_scored = counts[items] > 0
    is_scored |= scores_new(model)
    histories = Histories.of(ratings)
    trials = np.linspace(0, ratings.n_users - 1, _N_TRIALS)
    for user in np.unique(trials.astype(np.int64)):
        history = histories.take(np.array([user]))
        is_in_page = position[history.indices] >= 0
        rated = history.indices[is_in_page]
        values = history.values[is_in_page]
        if not len(rated):
            continue
        ends = np.array([0, len(rated)])
        scores = _scores_of_new(model, Histories(ends, rated, values))
        expected = scores[0, items]
        error = form_scores(form, position[rated], values) - expected
        largest = np.abs(expected).max(initial=1e-30)
        largest_error = np.abs(error[is_scored]).max()
        if not largest_error <= _ROUNDING * largest:  # also if it is not a number
            return False
    return True


def form_scores(form: Form, items: Indices, values: Floats, user: int = -1) -> Doubles:
    """Return the scores of all items of a form for a user, by the arithmetic of the page.

    Parameters
    ----------
    form : dict
    items : int64 ndarray of shape (n_history,)
        Positions of the rated items in the form.
    values : float32 ndarray of shape (n_history,)
    user : int
        Position of the user in the form, to use the user's own features; -1 for a new user.
    """
    scores: Doubles
    if "base" in form:
        scores = form["base"].astype(np.float64)
    elif form["kind"] == "sums":
        factors = np.ones(len(items))
        if form["weighted"]:
            factors = values.astype(np.float64)
        weights = form["weights"][items]
        scores = factors @ weights
    elif "unit" in form:
        scores = _scores_of_interactions(form, items, values, user)
    else:
        scores = _scores_of_ratings(form, items, values, user)
    if "discount" in form:
        scores = scores - form["discount"]
    return scores


def _scores_of_ratings(
    form: Form, items: Indices, values: Floats, user: int
) -> Doubles:
    vectors = form["vectors"].astype(np.float64)
    n = max(len(items), 1)
    design = vectors[items]
    target = values - form["mean"] - design[:, -1]
    design[:, -1] = 1  # the bias of the user
    precision = form["precision"].astype(np.float64)
    precision *= n ** form["power"]
    system = design.T @ design + precision
    right = target @ design + precision @ _prior(form, user)
    if "covariance" in form:
        packed = form["covariance"][items].astype(np.float64)
        covariances = unpack(packed, vectors.shape[1])
        covariance = covariances.sum(axis=0)
        system[:-1, :-1] += covariance[:-1, :-1]
        right[:-1] -= covariance[:-1, -1]
    if "link" in form:
        links = form["link"][items].astype(np.float64)
        mean_link = links.sum(axis=0) / np.sqrt(n)
        right += precision @ mean_link
    x = _solution(form, system, right)
    item_biases = vectors[:, -1]
    scores: Doubles = vectors[:, :-1] @ x[:-1]
    scores += item_biases
    scores += form["mean"] + x[-1]
    return scores


def _scores_of_interactions(
    form: Form, items: Indices, values: Floats, user: int
) -> Doubles:
    vectors = form["vectors"].astype(np.float64)
    design = vectors[items]
    if "observed" in form:
        design = design * form["observed"][items, None]
    counts = values.astype(np.float64) / form["unit"]
    weights = np.maximum(counts, 0)
    total = weights.sum() + form["others"]
    precision = form["precision"].astype(np.float64)
    precision *= total ** form["power"]
    weighted = design.T * weights
    system = weighted @ design
    system += form["gram"]
    system += precision
    right = weights @ design + precision @ _prior(form, user)
    scores: Doubles = vectors @ _solution(form, system, right)
    return scores


def _solution(form: Form, system: Doubles, right: Doubles) -> Doubles:
    """Return the vector of a user, not negative if the form says so."""
    n = form.get("nonnegative")
    if n is None:
        x = np.linalg.solve(system, right)
        return np.asarray(x, np.float64)
    from scipy.optimize import nnls  # slow to import

    factor = np.linalg.cholesky(system[:n, :n])
    x = np.zeros(len(right))
    target = np.linalg.solve(factor, right[:n])
    x[:n], _ = nnls(factor.T, target)
    return x


def _prior(form: Form, user: int) -> Doubles:
    """Return the prior mean of a user."""
    width = form["vectors"].shape[1]
    mean: Doubles = np.zeros(width)
    if "prior" in form:
        mean = mean + form["prior"]
    if "users" in form and user >= 0:
        mean = mean + form["users"][user]
    return mean
