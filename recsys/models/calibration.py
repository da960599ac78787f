"""Calibration of Bayesian models by leave-one-out predictions and their errors.

The prediction of a training rating is biased towards that rating. The leverages of its user and
item are the shares of the rating in its own prediction. Removing these shares gives, to first
order, the prediction for a held-out rating.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import numpy as np

from lowrank import kernels
from lowrank.completion.bayes import calibrated_noise, leverages, predictive_variance
from lowrank.completion.links import Posterior, RowPrior
from recsys.models.histories import Histories
from recsys.models.parts import Floats, Indices, Longs, Part, record, saved

_CALIBRATED_ON = 5_000  # maximum number of ratings
_ALL = slice(None)


@record
class Calibration(Part):
    """Leverages of users and items, and the noise of predictions of other ratings.

    Attributes
    ----------
    noise : float
        Variance of a rating around its prediction. Variational posteriors are slightly too wide,
        so that it is smaller than their noise variance.
    user_leverage, item_leverage : float32 ndarrays of shape (n_users,) and (n_items,)
        Shares of ratings in their own predictions.
    """

    noise: float = saved()
    user_leverage: Floats = saved("n_users")
    item_leverage: Floats = saved("n_items")

    def with_rows(
        self,
        side: str,
        rows: Posterior,
        counts: Longs,
        prior: RowPrior,
    ) -> Self:
        """Return the calibration with the leverages of other users (or items)."""
        leverage = leverages(counts, prior, rows.covariance)
        if side == "user":
            return replace(self, user_leverage=leverage)
        return replace(self, item_leverage=leverage)

    def held_out(
        self,
        side: str,
        rows: Posterior,
        columns: Posterior,
        histories: Histories,
        global_mean: float,
        at: slice | Indices = _ALL,
    ) -> Floats:
        """Return leave-one-out predictions of the ratings of users (or items).

        They are correct to first order in the leverage. `at` selects ratings by position.
        """
        row_leverage, column_leverage = self.user_leverage, self.item_leverage
        if side == "item":
            row_leverage, column_leverage = column_leverage, row_leverage
        i = histories.rows[at]
        j = histories.indices[at].astype(np.int64)
        w, z = rows.mean, columns.mean
        scores = kernels.pair_dots(w[:, :-1], z[:, :-1], i, j) + w[i, -1]
        scores += z[j, -1] + np.float32(global_mean)
        # f - x = (f_-i - x) (1 - h) to first order in the leverage h.
        leverage = row_leverage[i] + column_leverage[j]
        corrected: Floats = scores - leverage * (histories.values[at] - scores)
        return corrected


def calibrated(
    users: Posterior,
    items: Posterior,
    priors: tuple[RowPrior, RowPrior],
    histories: Histories,
    global_mean: float,
    noise: float,
) -> Calibration:
    """Return the calibration by the likelihood of ratings under leave-one-out predictions.

    `noise` is the noise variance of the posterior.
    """
    raters = np.bincount(histories.indices, minlength=len(items.mean))
    calibration = Calibration(
        noise=noise,
        user_leverage=leverages(histories.counts, priors[0], users.covariance),
        item_leverage=leverages(raters, priors[1], items.covariance),
    )
    n = len(histories.values)
    # A sample is enough for one number, and covariances take time.
    at = np.random.default_rng(0).choice(n, min(n, _CALIBRATED_ON), replace=False)
    scores = calibration.held_out("user", users, items, histories, global_mean, at)
    u = histories.rows[at]
    i = histories.indices[at].astype(np.int64)
    leverage = calibration.user_leverage[u] + calibration.item_leverage[i]
    spread = predictive_variance(
        Posterior(users.mean[u], users.covariance[u]),
        Posterior(items.mean[i], items.covariance[i]),
    )
    # Without its own rating, a prediction is less certain.
    spread *= 1 + leverage
    best = calibrated_noise(histories.values[at], scores, spread, noise)
    return replace(calibration, noise=best)
