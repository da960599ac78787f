"""Fold-ins in closed form: what a page needs to compute recommendations by itself.

For most models the scores of a user follow from the user's ratings by a little algebra: the
solution of a ridge regression on the vectors of the rated items, or a sum of item-item weights. A
closed form has the arrays of that algebra for some of the items. `page/arithmetic.js` computes with
it what `Recommender.fold_in` computes with the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from lowrank.kernels import CsrArrays, csr_arrays
from recsys.errors import DataError
from recsys.models.base import Histories, Model
from recsys.models.baselines import Bias, Popular
from recsys.models.blend import Blend
from recsys.models.content import ContentModel
from recsys.models.ials import IALS
from recsys.models.item_item import HistoryModel, ItemItemModel
from recsys.models.priors import csr_rows, row_of
from recsys.models.softimpute import SoftImpute

if TYPE_CHECKING:
    from lowrank.completion.links import RowPrior
    from recsys.data.ratings import Ratings
    from recsys.models.base import Floats, Indices

__all__ = ["Form", "closed_form", "form_size"]

Form: TypeAlias = dict[str, Any]
"""Numbers, texts and arrays by name, and lists of such forms: JSON, but for the arrays."""

_ABLE = "als, bayes, bias, blend, ease, ials, implicit-knn, popular, softimpute and spectral"
_BLOCK = 2**24  # scores of single items that are computed at a time
_TRIALS = 20  # users whose scores must be the sums of those of their items
_ROUNDING = 1e-3  # of the largest score


def closed_form(model: Model, ratings: Ratings, items: Indices, users: Indices) -> Form:
    """Return the closed form of a model's fold-in.

    Parameters
    ----------
    model : Model
    ratings : Ratings
        What it was fitted to.
    items : int64 ndarray of shape (n,)
        Indices of the items to score.
    users : int64 ndarray of shape (n_users,)
        Users of the fit whose own features count.

    Returns
    -------
    dict
        "kind" says which algebra it is: "posterior", "interactions", "residuals", "sums", or
        "blend" of "parts".

    Raises
    ------
    DataError
        If the model has no closed form here.
    """
    if isinstance(model, Blend):
        parts = [
            {"factor": float(factor), **closed_form(part, ratings, items, users)}
            for factor, part in model._weighted
        ]
        return {"kind": "blend", "parts": parts}
    if isinstance(model, ContentModel):
        return _posterior(model, ratings, items, users)
    if isinstance(model, IALS):
        return _interactions(model, items)
    if isinstance(model, SoftImpute):
        return {
            "kind": "residuals",
            "mean": float(model.global_mean),
            "bias": model.item_bias[items],
            "vectors": model.item_factors[items],
            "damping": float(model.user_damping),
            "penalty": float(model.penalty),
        }
    if isinstance(model, Bias):
        vectors = model.item_bias[items, None]
        damping = np.array([[model.user_damping]], np.float32)
        return _posterior_form(model.global_mean, 0.0, [_sample(vectors, damping)])
    if isinstance(model, Popular):
        return {"kind": "sums", "base": model.item_counts[items]}
    if isinstance(model, HistoryModel):
        return _sums(model, ratings, items)
    raise DataError(
        f"The {model.name} model has no closed form for new users that a page can compute; {_ABLE} "
        "have one, and `recsys serve` answers for every model."
    )


def form_size(model: Model, n: int) -> int:
    """Return about how many bytes the closed form of a model with n items has, before it is made.

    Examples
    --------
    >>> import recsys
    >>> ratings = recsys.read_ratings(recsys.sample_path())
    >>> form_size(recsys.Recommender("als", factors=16).fit(ratings).model, 1000)
    68000
    """
    if isinstance(model, Blend):
        return sum(form_size(part, n) for part in model.parts)
    if isinstance(model, HistoryModel):
        return 4 * n * n
    per_item = sum(
        array.itemsize * int(np.prod(array.shape[1:]))
        for name, array in model._arrays().items()
        if name in ("item_factors", "item_bias", "item_covariance", "item_biases")
    )
    linked = vars(model).get("user_link")
    if linked is not None:  # of the items of the user's history
        per_item += 4 * linked.size // max(1, model.n_items)
    return n * per_item


def _posterior(model: ContentModel, ratings: Ratings, items: Indices, users: Indices) -> Form:
    """Return the vectors of items and the prior of users, in each sample of the posterior."""
    samples = []
    features, power = csr_rows(ratings.user_features), 0.0
    raters = Histories(*csr_arrays(ratings.matrix[:, items].T.tocsr()))
    for s in range(model._n_samples):
        columns, prior = model._vectors(s, of_users=False), model._prior(s, of_users=True)
        power = prior.count_power
        sample = _sample(columns.mean[items], prior.precision * model._noise(s))
        if columns.covariance.shape[1]:
            sample["covariance"] = columns.covariance[items]
        if prior.mean.any():
            sample["mean"] = prior.mean
        if len(prior.link):
            sample["link"] = prior.link[items]
        if features is not None and prior.features is not None:
            sample["users"] = _of_users(ratings, prior, users)
        if "item_feature_weights" in vars(model):
            sample["features"] = _of_items(model, s, ratings, items, raters)
        samples.append(sample)
    form = _posterior_form(model.global_mean, power, samples)
    if ratings.item_features is not None and "features" in samples[0]:
        form["features"] = list(ratings.item_features.groups)
    return form


def _posterior_form(mean: float, power: float, samples: list[Form]) -> Form:
    return {"kind": "posterior", "mean": float(mean), "power": float(power), "samples": samples}


def _sample(vectors: Floats, precision: Any) -> Form:
    """Return item vectors, each with its bias last, and the precision of the prior of a user."""
    return {"vectors": vectors, "precision": np.asarray(precision, np.float32)}


def _of_users(ratings: Ratings, prior: RowPrior, users: Indices) -> Floats:
    """Return what the features of some users add to the mean of their prior."""
    assert ratings.user_features is not None
    assert prior.features is not None
    rows = ratings.user_features.matrix.tocsr()[users]
    return np.asarray(rows @ prior.features, np.float32)


def _of_items(
    model: ContentModel, sample: int, ratings: Ratings, items: Indices, raters: Histories
) -> Floats:
    """Return what each group of features has in the vectors of items, (n, n_groups, d)."""
    assert ratings.item_features is not None
    groups = ratings.item_features.groups
    group_of = np.empty(ratings.item_features.matrix.shape[1], np.int64)
    for number, columns in enumerate(groups.values()):
        group_of[columns] = number
    rows = csr_arrays(ratings.item_features.matrix[items])
    found = np.zeros((len(items), len(groups), model.item_prior_mean.shape[-1]), np.float32)
    for at in range(len(items)):
        own, known = (row_of(CsrArrays(*each), at) for each in (rows, raters))
        terms = model._row_terms(sample, known, own, "item").features
        np.add.at(found[at], group_of[own.indices], terms)
    return found


def _interactions(model: IALS, items: Indices) -> Form:
    Y = model.item_factors[model.known("item")].astype(np.float64)
    prior = {"prior": model.user_prior_mean} if model.knows("user") else {}
    return prior | {
        "kind": "interactions",
        "vectors": model.item_factors[items],
        "gram": model.pair_weight * (Y.T @ Y),
        "unit": float(model.unit),
        "others": float(model.pair_weight) * len(Y),
        "penalty": float(model.penalty),
        "power": float(model.count_power),
    }


def _sums(model: HistoryModel, ratings: Ratings, items: Indices) -> Form:
    """Return what having each of the items adds to the scores of all of them.

    They are the scores of users with a single item. That sums of them are the scores of others is
    checked with some of the users.
    """
    unit = float(model.unit) if isinstance(model, ItemItemModel) else 1.0
    counted = isinstance(model, ItemItemModel) or bool(getattr(model, "weighted", False))
    weights = np.empty((len(items), len(items)), np.float32)
    step = max(1, _BLOCK // max(1, model.n_items))
    for start in range(0, len(items), step):
        block = items[start : start + step]
        alone = Histories(
            np.arange(len(block) + 1, dtype=np.int64),
            block.astype(np.int32),
            np.full(len(block), unit, np.float32),
        )
        scores = model.with_users(alone).scores(np.arange(len(block)))
        weights[start : start + step] = scores[:, items]
    form = {"kind": "sums", "weights": weights, "unit": unit if counted else None}
    _check_sums(model, ratings, items, form)
    return form


def _check_sums(model: HistoryModel, ratings: Ratings, items: Indices, form: Form) -> None:
    place = np.full(model.n_items, -1)
    place[items] = np.arange(len(items))
    histories = Histories.of(ratings)
    for user in np.unique(np.linspace(0, ratings.n_users - 1, _TRIALS).astype(np.int64)):
        own = histories.take(np.array([user]))
        kept = place[own.indices] >= 0
        rows, values = place[own.indices[kept]], own.values[kept]
        if not len(rows):  # what is known of the user may count instead
            continue
        part = Histories(np.array([0, len(rows)]), own.indices[kept], values)
        scores = model.with_users(part).scores(np.zeros(1, np.int64))[0, items]
        factors = np.ones_like(values) if form["unit"] is None else values / form["unit"]
        found = factors.astype(np.float64) @ form["weights"][rows]
        if np.abs(found - scores).max(initial=0) > _ROUNDING * np.abs(scores).max(initial=1e-30):
            raise DataError(
                f"The scores of this {model.name} model are not sums over a user's items, which a "
                "page could compute; `recsys serve` answers for every model."
            )
