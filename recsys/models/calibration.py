"""Calibration of Bayesian models by leave-one-out predictions and their errors.

The prediction of a training rating is biased towards that rating. The leverages of its user and
item are the shares of the rating in its own prediction. Removing these shares gives, to first
order, the prediction for a held-out rating.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels
from lowrank.completion.bayes import calibrated_noise, leverages, predictive_variance
from lowrank.completion.links import Posterior
from recsys.models.base import Floats, Indices
from recsys.models.histories import Histories

if TYPE_CHECKING:
    from recsys.models.bayes import Bayes

_PAIRS = 2**13  # pairs whose covariances are unpacked at a time
_ALL = slice(None)
_CALIBRATED_ON = 5_000  # maximum number of ratings
_QUANTILES = 201  # number of quantiles of predictions, for the coverage of intervals


def pair_variances(model: Bayes, users: Indices, items: Indices) -> Floats:
    """Return the posterior variances of predictions, shape (n_pairs,)."""
    variance = np.empty(len(users), dtype=np.float32)
    for start in range(0, len(users), _PAIRS):
        part = slice(start, start + _PAIRS)
        u, i = users[part], items[part]
        if model._sampled:
            variance[part] = _sampled_variances(model, u, i)
            continue
        w = np.column_stack([model.user_vectors()[u], model.user_bias[u]])
        z = np.column_stack([model.item_vectors()[i], model.item_bias[i]])
        pair = (
            Posterior(w, model.user_covariance[u]),
            Posterior(z, model.item_covariance[i]),
        )
        variance[part] = predictive_variance(*pair)
    return variance


def _sampled_variances(model: Bayes, users: Indices, items: Indices) -> Floats:
    n = model._n_samples
    drawn = model.user_draws[users].reshape(len(users), n, -1)
    factors = model.item_vectors()[items].reshape(len(items), n, -1)
    predicted = np.einsum("nsk,nsk->ns", drawn[:, :, :-1], factors)
    predicted += drawn[:, :, -1] + model.item_biases[items]
    variance: Floats = predicted.var(axis=1, ddof=1 if n > 1 else 0)
    if model.knows("item"):  # factors of items without ratings are means, not draws
        drawn[:, :, -1] = 1
        own = np.einsum("nsi,sij,nsj->n", drawn, model.item_cold_covariance, drawn)
        variance += model.item_spread[items] * own / n
    return variance


def leverage(
    model: Bayes, side: str, arrays: Mapping[str, Floats], counts: NDArray[np.int64]
) -> Floats:
    """Return the leverages of users (or items), zero for draws."""
    if model._sampled:
        return np.zeros(len(counts), np.float32)
    prior = model._prior(0, of_users=side == "user")
    return leverages(counts, prior, arrays[f"{side}_covariance"])


def unseen(
    model: Bayes,
    histories: Histories,
    arrays: Mapping[str, Floats],
    side: str,
    at: slice | Indices = _ALL,
) -> tuple[Floats, Floats]:
    """Return ratings (or their latent variables) and their leave-one-out predictions.

    The predictions are correct to first order in the leverage. `at` selects ratings by position.
    """
    other, k = "item" if side == "user" else "user", model._base_width
    rows, columns = histories.rows[at], histories.indices[at].astype(np.int64)
    pair = arrays[f"{side}_factors"][:, :k], getattr(model, f"{other}_factors")[:, :k]
    scores = kernels.pair_dots(*pair, rows, columns) + arrays[f"{side}_bias"][rows]
    scores += getattr(model, f"{other}_bias")[columns] + np.float32(model.global_mean)
    values = histories.values[at]
    if model.is_ordinal:
        codes, noise = model._scale.codes(values), float(model.noise_variances.mean())
        values = model._scale.latent(codes, scores, noise, only_means=True).means
    shares = (
        arrays[f"{side}_leverage"][rows] + getattr(model, f"{other}_leverage")[columns]
    )
    return values, scores - shares * (values - scores)


def calibrate(model: Bayes, histories: Histories) -> None:
    """Set the noise to maximise the likelihood of ratings under leave-one-out predictions."""
    found = vars(model)
    raters = np.bincount(histories.indices, minlength=model.n_items)
    for side, counts in (("user", histories.counts), ("item", raters)):
        found[f"{side}_leverage"] = leverage(model, side, found, counts)
    n = len(histories.values)
    at = np.random.default_rng(0).choice(n, min(n, _CALIBRATED_ON), replace=False)
    scores = unseen(model, histories, found, "user", at)[1]
    u, i = histories.rows[at], histories.indices[at].astype(np.int64)
    spread = pair_variances(model, u, i) * (
        1 + model.user_leverage[u] + model.item_leverage[i]
    )
    scale, noise = (
        model._scale if model.is_ordinal else None,
        float(model.noise_variances.mean()),
    )
    given = histories.values[at], scores, spread, noise, scale
    model.predictive_noise = noise if model._sampled else calibrated_noise(*given)
    if model.is_ordinal:
        shares = np.linspace(0, 1, _QUANTILES)
        model.score_quantiles = np.quantile(scores.astype(np.float64), shares)
