"""Reference for the arithmetic of the page of `recsys explore` (`page/arithmetic.js`)."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from lowrank.completion.links import unpack
from recsys.models.parts import Floats, Indices
from recsys.serve.browser_model import Form

Doubles: TypeAlias = NDArray[np.float64]


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
