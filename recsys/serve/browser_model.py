"""Fold-ins in closed form, with which a page computes recommendations by itself.

For most models, a user's scores are a simple function of the user's ratings: the solution of a
ridge regression on the vectors of the rated items, or a sum of item-item weights. A closed form has
the arrays of this function for some of the items. With it, `page/arithmetic.js` computes the scores
of `Recommender.fold_in`. `form_scores` is the same arithmetic in NumPy; it serves to check each
form against its model before use.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from lowrank.completion.links import Terms, unpack
from lowrank.completion.ordinal import OrdinalScale
from lowrank.completion.targets import LATENT_STEPS
from lowrank.kernels import CsrArrays, csr_arrays, pieces
from recsys.errors import DataError
from recsys.models.base import Model, RatingModel
from recsys.models.baselines import Bias, Popular
from recsys.models.bayes import Bayes
from recsys.models.blend import Blend
from recsys.models.content import ContentModel
from recsys.models.ease import SparseEASE
from recsys.models.histories import Histories
from recsys.models.ials import IALS
from recsys.models.item_item import HistoryModel, ItemItemModel
from recsys.models.priors import row_of
from recsys.models.softimpute import SoftImpute

if TYPE_CHECKING:
    from collections.abc import Callable

    from recsys.data.ratings import Ratings
    from recsys.models.base import Floats, Indices

Form: TypeAlias = dict[str, Any]
"""Closed form: JSON values and arrays by name."""

Doubles = NDArray[np.float64]

_ABLE = (
    "als, bayes, bias, blend, ease, ials, implicit-knn, popular, softimpute, sparse-ease and "
    "spectral"
)
_BLOCK = 2**24  # scores computed together
_TRIALS = 10  # number of users whose scores are compared with those of the model
_ROUNDING = 1e-3  # largest error relative to the largest score


def closed_form(model: Model, ratings: Ratings, items: Indices, users: Indices) -> Form:
    """Return the closed form of a model's fold-in.

    Parameters
    ----------
    model : Model
    ratings : Ratings
        Ratings that the model was fitted to.
    items : int64 ndarray of shape (n,)
        Indices of the items to score.
    users : int64 ndarray of shape (n_users,)
        Indices of the users whose own features are included; -1 for an unknown user.

    Returns
    -------
    dict
        Closed form. Its "kind" is "posterior", "interactions", "residuals", "sums", or "blend"
        with "parts".

    Raises
    ------
    DataError
        If the model has no closed form, or its scores differ from those of the form.
    """
    form = _form(model, ratings, items, users)
    # Check the form on some training users, treated as new users.
    place = np.full(model.n_items, -1)
    place[items] = np.arange(len(items))
    scored = np.bincount(ratings.indices, minlength=model.n_items)[items] > 0
    scored |= scores_new(model)
    histories = Histories.of(ratings)
    for user in np.unique(
        np.linspace(0, ratings.n_users - 1, _TRIALS).astype(np.int64)
    ):
        own = histories.take(np.array([user]))
        kept = place[own.indices] >= 0
        rated, values = own.indices[kept], own.values[kept]
        if not len(rated):
            continue
        new = cast(Any, model).with_users(
            Histories(np.array([0, len(rated)]), rated, values)
        )
        expected = new.scores(np.zeros(1, np.int64))[0, items]
        off = np.abs(form_scores(form, place[rated], values) - expected)[scored].max()
        if not off <= _ROUNDING * np.abs(expected).max(initial=1e-30):
            raise DataError(
                f"A page cannot reproduce the scores of this {model.name} model in closed form; "
                "`recsys serve` serves every model."
            )
    return form


def _form(model: Model, ratings: Ratings, items: Indices, users: Indices) -> Form:
    if isinstance(model, Blend):
        parts = [
            {"factor": float(factor), **_form(part, ratings, items, users)}
            for factor, part in model._weighted
        ]
        return {"kind": "blend", "parts": parts}
    discount: Form = {}
    if isinstance(model, RatingModel) and model.popularity:
        discount["discount"] = (
            np.float32(model.popularity) * model.item_obscurity[items]
        )
    if isinstance(model, ContentModel):
        return _posterior(model, ratings, items, users) | discount
    if isinstance(model, IALS):
        return _interactions(model, ratings, items, users)
    if isinstance(model, SoftImpute):
        return discount | {
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
        sample = {"vectors": vectors, "precision": damping}
        form = {
            "kind": "posterior",
            "mean": model.global_mean,
            "power": 0.0,
            "samples": [sample],
        }
        return form | discount
    if isinstance(model, Popular):
        return {"kind": "sums", "base": model.item_counts[items]}
    if isinstance(model, HistoryModel):
        return _sums(model, items)
    raise DataError(
        f"The {model.name} model has no closed form for new users that a page can compute; {_ABLE} "
        "have one, and `recsys serve` serves every model."
    )


def scores_new(model: Model) -> bool:
    """Return whether the closed form of a model scores items without ratings."""
    if isinstance(model, Blend):
        return all(map(scores_new, model.parts))
    # Content models do not: their forms lack the slopes of the user along features.
    return model.uses_features and not isinstance(model, ContentModel)


def form_size(model: Model, n: int) -> int:
    """Return the approximate size in bytes of the closed form of a model with n items.

    Examples
    --------
    >>> import recsys
    >>> ratings = recsys.read_ratings(recsys.sample_path())
    >>> recommender = recsys.Recommender("als", factors=16).fit(ratings, features=False)
    >>> form_size(recommender.model, 1000)
    72000
    """
    if isinstance(model, Blend):
        return sum(form_size(part, n) for part in model.parts)
    if isinstance(model, HistoryModel):
        return 4 * n * n
    per_item = sum(
        array.itemsize * int(np.prod(array.shape[1:]))
        for name, array in model._arrays().items()
        if name
        in (
            "item_factors",
            "item_bias",
            "item_covariance",
            "item_biases",
            "item_obscurity",
        )
    )
    linked = vars(model).get("user_link")
    if linked is not None:  # links of the rated items
        per_item += 4 * linked.size // max(1, model.n_items)
    return n * per_item


def _posterior(
    model: ContentModel, ratings: Ratings, items: Indices, users: Indices
) -> Form:
    """Return the vectors of items and the prior of users, in each sample of the posterior."""
    samples, power = [], 0.0

    def terms(sample: int, raters: Histories, features: CsrArrays) -> Terms:
        return model._row_terms(sample, raters.csr, features, "item")

    for s in range(model._n_samples):
        columns, prior = (
            model._vectors(s, of_users=False),
            model._prior(s, of_users=True),
        )
        power = prior.count_power
        precision = np.asarray(prior.precision * model._noise(s), np.float32)
        sample: Form = {"vectors": columns.mean[items], "precision": precision}
        if columns.covariance.shape[1]:
            sample["covariance"] = columns.covariance[items]
        if prior.mean.any():
            sample["prior"] = prior.mean
        if len(prior.link):
            sample["link"] = prior.link[items]
        if prior.features is not None:
            sample["users"] = _of_users(ratings, users, prior.features)
        if model.knows("item"):
            sample["features"] = _of_items(ratings, items, partial(terms, s))
        samples.append(sample)
    form: Form = {
        "kind": "posterior",
        "mean": float(model.global_mean),
        "power": float(power),
    }
    if isinstance(model, Bayes) and model.is_ordinal:
        noise = float(model.noise_variances[0])
        form["scale"] = {
            "levels": model.levels,
            "cuts": model.cut_points,
            "noise": noise,
            "variance": float(model.noise_variances.mean()) + model.score_variance,
            "steps": LATENT_STEPS,
        }
    return _named(form | {"samples": samples}, ratings, model.knows("item"))


def _interactions(
    model: IALS, ratings: Ratings, items: Indices, users: Indices
) -> Form:
    """Return the vectors of items, and the terms of other items and the prior in the equations."""
    _, gram, n_known = model._pairs("item")
    form: Form = {
        "kind": "interactions",
        "vectors": model.item_factors[items],
        "gram": model.pair_weight * gram,
        "unit": float(model.unit),
        "others": float(model.pair_weight) * n_known,
        "penalty": float(model.penalty),
        "power": float(model.count_power),
    }
    known = model.known("item")[items]
    if not known.all():
        form["known"] = known.astype(np.uint8)
    if model.knows("user"):
        form["prior"] = model.user_prior_mean
        form["users"] = _of_users(ratings, users, model.user_prior_weights)
    if model.knows("item"):
        form["features"] = _of_items(ratings, items, partial(model._terms, "item"))
    return _named(form, ratings, model.knows("item"))


def _named(form: Form, ratings: Ratings, featured: bool) -> Form:
    """Return a form with the names of the groups of item features."""
    groups = ratings.item_features.groups if featured and ratings.item_features else {}
    return form | ({"groups": list(groups)} if groups else {})


def _of_users(ratings: Ratings, users: Indices, weights: Floats) -> Floats:
    """Return the contributions of the features of users to their prior means."""
    assert ratings.user_features is not None
    found = ratings.user_features.matrix.tocsr()[np.maximum(users, 0)] @ weights
    return np.where(users[:, None] < 0, 0, found).astype(np.float32)


def _of_items(
    ratings: Ratings, items: Indices, terms: Callable[[Histories, CsrArrays], Terms]
) -> Floats:
    """Return the contributions of feature groups to item vectors, shape (n, n_groups, d)."""
    assert ratings.item_features is not None
    groups, matrix = ratings.item_features.groups, ratings.item_features.matrix
    group_of = np.empty(matrix.shape[1], np.int64)
    for number, columns in enumerate(groups.values()):
        group_of[columns] = number
    rows = csr_arrays(matrix[items])
    raters = Histories(*csr_arrays(ratings.matrix[:, items].T.tocsr()))
    found = []
    for at in range(len(items)):
        own = row_of(rows, at)
        each = terms(raters.take(np.array([at])), own).features
        sums = np.zeros((len(groups), each.shape[1]), np.float32)
        np.add.at(sums, group_of[own.indices], each)
        found.append(sums)
    return np.array(found)


def _sums(model: Any, items: Indices) -> Form:
    """Return the contribution of each item in a history to the scores of all items.

    These are the scores of users who have rated a single item.
    """
    has_unit = isinstance(model, ItemItemModel | SparseEASE)
    unit = float(model.unit) if has_unit else 1.0
    counted = isinstance(model, ItemItemModel) or bool(
        getattr(model, "weighted", False)
    )
    weights = np.empty((len(items), len(items)), np.float32)
    step = max(1, _BLOCK // max(1, model.n_items))
    for part in pieces(len(items), step):
        block = items[part]
        alone = Histories(
            np.arange(len(block) + 1, dtype=np.int64),
            block.astype(np.int32),
            np.full(len(block), unit, np.float32),
        )
        scores = model.with_users(alone).scores(np.arange(len(block)))
        weights[part] = scores[:, items]
    return {"kind": "sums", "weights": weights, "unit": unit if counted else None}


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
    found: Doubles
    if form["kind"] == "blend":
        parts = form["parts"]
        found = sum(
            part["factor"] * form_scores(part, items, values, user) for part in parts
        )
    elif form["kind"] == "posterior":
        found = _posterior_scores(form, items, values, user)
    elif "base" in form:
        found = form["base"].astype(np.float64)
    elif form["kind"] == "sums":
        weights = np.ones(len(items)) if form["unit"] is None else values / form["unit"]
        found = weights.astype(np.float64) @ form["weights"][items]
    elif form["kind"] == "interactions":
        vectors = form["vectors"].astype(np.float64)  # implicit least squares
        own, d = vectors[items], vectors.shape[1]
        if "known" in form:  # other items are not observed
            own = own * form["known"][items, None]
        weights = np.maximum(values.astype(np.float64) / form["unit"], 0)
        penalty = form["penalty"] * (weights.sum() + form["others"]) ** form["power"]
        system = (own.T * weights) @ own + form["gram"] + penalty * np.eye(d)
        right = weights @ own + penalty * _prior(form, user, d)
        found = vectors @ np.linalg.solve(system, right)
    else:  # a damped bias, and a ridge regression on the residuals
        vectors = form["vectors"].astype(np.float64)
        own, off = (
            vectors[items],
            values - form["mean"] - form["bias"][items].astype(np.float64),
        )
        bias = off.sum() / (len(off) + form["damping"] or 1)
        system = own.T @ own + form["penalty"] * np.eye(own.shape[1])
        w = np.linalg.solve(system, (off - bias) @ own)
        found = (
            form["mean"] + form["bias"] + bias + vectors @ w - form.get("discount", 0.0)
        )
    return found


def _posterior_scores(form: Form, items: Indices, values: Floats, user: int) -> Doubles:
    """Return the mean of the scores over all samples.

    On an ordinal scale, latent numbers replace the ratings, and scores are expected ratings.
    """
    target: Any = values
    if "scale" in form:
        terms = form["scale"]
        scale = OrdinalScale(
            terms["levels"], terms["cuts"], (0, len(terms["cuts"]) - 1)
        )
        codes = scale.codes(values)
        for _ in range(terms["steps"]):
            at = _sample_scores(form, form["samples"][0], items, target, user)[items]
            target = scale.latent(codes, at, terms["noise"]).means
    scores = [
        _sample_scores(form, each, items, target, user) for each in form["samples"]
    ]
    found: Doubles = np.mean(scores, axis=0) - form.get("discount", 0.0)
    if "scale" in form:
        found = np.asarray(scale.expected(found, terms["variance"]), np.float64)
    return found


def _sample_scores(
    form: Form, sample: Form, items: Indices, values: Any, user: int
) -> Doubles:
    """Return the scores of one sample of a posterior: a ridge regression with a prior."""
    vectors, n = sample["vectors"].astype(np.float64), len(items)
    design, d = vectors[items], vectors.shape[1]
    target = values - form["mean"] - design[:, -1]
    design[:, -1] = 1
    pull = max(n, 1) ** form["power"] * sample["precision"].astype(np.float64)
    system = design.T @ design + pull
    right = target @ design + pull @ _prior(sample, user, d)
    if "covariance" in sample:
        uncertain = unpack(sample["covariance"][items].astype(np.float64), d).sum(
            axis=0
        )
        system[:-1, :-1] += uncertain[:-1, :-1]
        right[:-1] -= uncertain[:-1, -1]
    if "link" in sample:
        right += (
            pull
            @ sample["link"][items].sum(axis=0, dtype=np.float64)
            / np.sqrt(max(n, 1))
        )
    w = np.linalg.solve(system, right)
    found: Doubles = form["mean"] + vectors[:, -1] + vectors[:, :-1] @ w[:-1] + w[-1]
    return found


def _prior(form: Form, user: int, d: int) -> Doubles:
    """Return the prior mean of a user."""
    mean: Doubles = np.zeros(d) + form.get("prior", 0.0)
    return mean + form["users"][user] if "users" in form and user >= 0 else mean
