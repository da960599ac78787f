"""Models as arrays with which a page computes recommendations by itself.

There are two forms. In a ridge regression, the vector x of a user solves

    (sum_i w_i y_i y_i' + C_i + P) x = sum_i (w_i t_i y_i - c_i) + P m

for the rated items i with vectors y_i, weights w_i, targets t_i and covariances C_i, and
the prior of the user with mean m and precision P. The first entries of x may have to be
non-negative, with the others zero. In a sum, the score of an item is a sum
of item-item weights over the history. `page/arithmetic.js` computes both. A page has the
lists of other models, computed in advance.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from lowrank.kernels import pieces
from recsys.data.ratings import Ratings
from recsys.models.abilities import fold
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

_BLOCK = 2**24  # scores computed together


def browser_model(
    model: Model,
    ratings: Ratings,
    items: Indices,
    users: Indices,
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
    elif isinstance(model, Popular) and not model.habit:
        form = {"kind": "sums", "base": model.item_counts[items]}
    elif is_linear(model):
        form = _sums(model, items)
    else:
        return None
    if isinstance(model, RatingModel) and model.popularity:
        discount = np.float32(model.popularity) * model.item_obscurity[items]
        form["discount"] = discount
    return form


def is_linear(model: Model) -> bool:
    """Return whether scores are sums of item-item weights."""
    if isinstance(model, Blend):
        return all(is_linear(part) for part in model.parts)
    return isinstance(model, HistoryModel)


def scores_new(model: Model) -> bool:
    """Return whether the form of a model scores items without ratings."""
    if isinstance(model, Blend):
        return all(scores_new(part) for part in model.parts)
    # The forms of content models lack the slopes of the user along features.
    return model.uses_features and not isinstance(model, VectorModel)


def _ridge_of_ratings(
    model: VectorModel,
    ratings: Ratings,
    items: Indices,
    users: Indices,
) -> Form:
    """Return a ridge regression on vectors whose last entry is the bias of the item."""
    columns = model._posterior("item", items)
    prior = model._prior("user")
    # The page solves the normal equations of one user at a time.
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
    model: IALS,
    ratings: Ratings,
    items: Indices,
    users: Indices,
) -> Form:
    """Return a weighted ridge regression, in which all other items have the target 0."""
    _, gram, n_observed = model._pairs("item")
    # P = penalty times the identity; the Gram matrix is of all items.
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


def _priors_of_users(
    ratings: Ratings,
    users: Indices,
    weights: Floats,
) -> Floats:
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


def _scores_of_single(
    model: Model,
    items: Indices,
    value: float,
) -> Floats:
    """Return the scores of users who have rated one item each."""
    n = len(items)
    values = np.full(n, value, np.float32)
    histories = Histories(np.arange(n + 1), items.astype(np.int32), values)
    return fold(model, "user", histories).scores(np.arange(n))
