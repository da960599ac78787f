"""Blends: weighted sums of the scores of several models."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowrank import kernels
from lowrank.kernels import CsrArrays, SparsePart
from recsys.errors import DataError
from recsys.models import abilities
from recsys.models.base import Model, OnStep, Step, check_indices
from recsys.models.factor_form import FactorForm
from recsys.models.histories import Context, Explanation, Histories
from recsys.models.holdout import HeldOut, Lists, best_weights, score_scale
from recsys.models.parameters import (
    fitted,
    model,
    parameter,
    random_state_parameter,
    threads_parameter,
)
from recsys.models.parts import Floats, Indices
from recsys.models.registry import make_model, model_class

if TYPE_CHECKING:
    from lowrank.completion.feature_ridge import GroupedFeatures
    from recsys.data.ratings import Ratings

_PAIRS = 2**16  # pairs scored at a time


@model
class Blend(Model):
    r"""Rank items by a weighted sum of the scores of several models.

    .. math:: s_{ui} = \sum_m \frac{w_m}{\sigma_m} s^{(m)}_{ui}, \qquad w_m \ge 0, \sum_m w_m = 1,

    where :math:`\sigma_m` is the standard deviation of a user's scores by model m, which makes the
    weights independent of the scales of the models.

    By default, the weights maximise NDCG@20 on a held-out tenth of the interactions, averaged over
    the optima for bootstrap samples of the users. Above three million interactions, only some users
    are used; up to 100,000, three fifths are held out in turn. Then each model of positive weight
    is fitted to all interactions.

    Each model uses the values of ratings as it does by itself; held-out ratings that are not below
    the mean are the relevant items.

    Attributes
    ----------
    shares : float32 ndarray of shape (n_members,)
        The weights w_m.
    scales : float32 ndarray of shape (n_members,)
        The standard deviations :math:`\sigma_m`; 1 for a model of zero weight.
    parts : list of Model
        The fitted models of positive weight.

    References
    ----------
    Sill, Takács, Mackey and Lin (2009), "Feature-weighted linear stacking", for blends in
    recommendation. Caruana et al. (2004), "Ensemble selection from libraries of models".
    """

    name = "blend"
    summary = (
        "Implicit feedback: several models together, weighted on held-out interactions."
    )
    predicts_ratings = False

    members: str = parameter("spectral,ials", "Names of the models, between commas.")
    weights: str | None = parameter(
        None,
        "Their weights, between commas; by default chosen on held-out interactions.",
    )
    random_state: int = random_state_parameter()
    threads: int | None = threads_parameter()

    shares: Floats = fitted("n_members")
    scales: Floats = fitted("n_members")

    @property
    def parts(self) -> list[Model]:
        """The fitted models of positive weight, in the order of `members`."""
        parts: list[Model] = [] if self.shares is None else vars(self)["_parts"]
        return parts

    @property
    def n_users(self) -> int:
        """Number of users."""
        return self.parts[0].n_users

    @property
    def n_items(self) -> int:
        """Number of items."""
        return self.parts[0].n_items

    @property
    def uses_weights(self) -> bool:  # type: ignore[override]
        """True if any of the models uses the weights of interactions."""
        return any(each.uses_weights for each in self._unfitted())

    @property
    def uses_features(self) -> bool:  # type: ignore[override]
        """True if any of the models uses features of users and items."""
        return any(each.uses_features for each in self._unfitted())

    @property
    def _needs_values(self) -> bool:  # type: ignore[override]
        return any(each._needs_values for each in self._unfitted())

    @classmethod
    def of(cls, parts: Sequence[Model], **params: Any) -> Self:
        """Return a blend of fitted models; `params` are its parameters, including weights."""
        result = cls(**params)
        shares = result._given_shares(len(parts))
        shares = np.full(len(parts), 1 / len(parts)) if shares is None else shares
        result._set(shares, [score_scale(part) for part in parts], parts)
        return result

    def with_parts(self, parts: Sequence[Model]) -> Self:
        """Return the blend with its fitted models replaced, in the order of `parts`."""
        result = copy.copy(self)
        vars(result).pop("_columns", None)
        vars(result)["_parts"] = [*parts]
        return result

    def _unfitted(self) -> list[Model]:
        """Return the unfitted members, with the seed and the threads of the blend."""
        names = [name.strip() for name in self.members.split(",") if name.strip()]
        if not names or self.name in names or len(set(names)) < len(names):
            raise DataError(
                "members must be names of different models between commas, such as "
                f"spectral,ials; got {self.members!r}."
            )
        shared = {"random_state": self.random_state, "threads": self.threads}
        known = [
            {each.name for each in model_class(name).parameters()} for name in names
        ]
        return [
            make_model(
                name, **{key: value for key, value in shared.items() if key in has}
            )
            for name, has in zip(names, known, strict=True)
        ]

    def _given_shares(self, n_members: int) -> NDArray[np.float64] | None:
        if self.weights is None:
            return np.ones(1) if n_members == 1 else None
        try:
            found = np.array([float(each) for each in self.weights.split(",")])
        except ValueError:
            found = np.zeros(0)
        if (
            len(found) != n_members
            or not (found >= 0).all()
            or not 0 < found.sum() < np.inf
        ):
            raise DataError(
                f"weights must be {n_members} numbers between commas, one for each of "
                f"{self.members}, not negative and not all 0; got {self.weights!r}."
            )
        shares: NDArray[np.float64] = found / found.sum()
        return shares

    def _fit_like(
        self,
        trials: Mapping[str, Model],
        ratings: Ratings,
        *,
        on_step: OnStep = None,
        validation: Ratings | None = None,
    ) -> Self:
        """Fit the models with what `trials` of them have chosen; see `Model`."""
        vars(self)["_trials"] = trials
        self.fit(ratings, on_step=on_step, validation=validation)
        del vars(self)["_trials"]
        return self

    def _fit(
        self, ratings: Ratings, on_step: OnStep, validation: Ratings | None
    ) -> None:
        models = self._unfitted()
        shares = self._given_shares(len(models))
        trials: Mapping[str, Model] = vars(self).get("_trials", {})
        folds = HeldOut.folds(ratings, self.random_state) if shares is None else []
        fits, n_fits = count(1), len(models) * (1 + len(folds))

        def on_fit(_: Model) -> None:
            if on_step is not None:
                on_step(Step(next(fits), n_fits))

        if shares is None:
            shares, lists = np.full(len(models), 1 / len(models)), []
            for held_out, fitted_parts in HeldOut.trials(folds, models, on_fit):
                lists.append(held_out.lists(fitted_parts))
                trials = {each.name: each for each in fitted_parts}
            if lists:
                shares, _ = best_weights(Lists.joined(lists))
        parts = [each for each, share in zip(models, shares, strict=True) if share > 0]
        for each in parts:
            on_fit(each)
            each._fit_like(trials, ratings)
        scales = np.ones(len(models))
        scales[shares > 0] = [score_scale(each) for each in parts]
        self._set(shares, scales, parts)
        vars(self)["remarks"] = tuple(
            f"{p.name} {each}" for p in parts for each in p.remarks
        )

    def _set(
        self, shares: ArrayLike, scales: ArrayLike, parts: Sequence[Model]
    ) -> None:
        self.shares, self.scales = (
            np.asarray(each, np.float32) for each in (shares, scales)
        )
        vars(self).pop("_columns", None)
        vars(self)["_parts"] = [*parts]

    @property
    def _weighted(self) -> list[tuple[np.float32, Model]]:
        """The models with the factors of their scores."""
        factors = (self.shares / self.scales)[self.shares > 0]
        return [*zip(factors, self.parts, strict=True)]

    def predict(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Return scores of pairs, shape (n_pairs,); independent of the other pairs."""
        u = check_indices(users, self.n_users, "user")
        i = check_indices(items, self.n_items, "item")
        if self._factor_form(u[:0]) is None:
            return _sum(
                factor * part.pair_scores(u, i) for factor, part in self._weighted
            )
        found = np.empty(len(u), np.float32)
        order = np.argsort(u, kind="stable")
        for block in np.array_split(order, max(1, -(-len(u) // _PAIRS))):
            distinct, rows = np.unique(u[block], return_inverse=True)
            form = self._factor_form(distinct)
            assert form is not None
            found[block] = form.pairs(rows, i[block], self.threads)
        return found

    def scores(self, users: ArrayLike) -> Floats:
        """Return scores of all items for each user, shape (n_block, n_items)."""
        u = check_indices(users, self.n_users, "user")
        if (form := self._factor_form(u)) is None:
            return _sum(factor * part.scores(u) for factor, part in self._weighted)
        return form.scores(self.threads)

    def _score_error(self, users: ArrayLike) -> Floats | None:
        """Return a bound on ``|scores - pair_scores|`` as in `Model`, shape (n_block,).

        Without factors, both are the same weighted sums of the models' scores. They are equal bit
        for bit if those of each model are.
        """
        u = check_indices(users, self.n_users, "user")
        eps = np.float32(np.finfo(np.float32).eps)
        if (form := self._factor_form(u)) is not None:
            return form.error()
        errors = [part._score_error(u) for _, part in self._weighted]
        if all(error is None for error in errors):
            return None
        found = np.zeros(len(u), np.float32)
        for (factor, part), error in zip(self._weighted, errors, strict=True):
            size = np.abs(part.scores(u)).max(axis=1, initial=0)
            found += factor * size * (2 * len(errors) * eps)
            found += 0 if error is None else factor * error
        return found * np.float32(1 + 1e-5)

    def _factor_form(self, users: ArrayLike) -> FactorForm | None:
        """Return the models' factors and sparse parts side by side, or None if one has none."""
        u = check_indices(users, self.n_users, "user")
        forms = [part._factor_form(u) for part in self.parts]
        known = [
            each for each in forms if each and each.weight is None and each.link is None
        ]
        if len(known) < len(forms):
            return None
        pairs = [*zip((factor for factor, _ in self._weighted), known, strict=True)]
        if "_columns" not in vars(self):  # the same for all users
            vars(self)["_columns"] = _columns(pairs)
        items, bias, weights, order = vars(self)["_columns"]
        vectors = np.hstack([factor * form.users for factor, form in pairs])
        offset = np.zeros(len(u), np.float32)
        for factor, form in pairs:
            offset += 0 if form.offset is None else factor * form.offset
        if weights is None:
            return FactorForm(vectors, items, offset, bias)
        of_users = [
            (factor * form.sparse.history.data, form.sparse)
            for factor, form in pairs
            if form.sparse is not None
        ]
        (values, sparse), *others = of_users
        history = sparse.history._replace(data=values)
        if others:
            history = _stacked(of_users, len(u))
        return FactorForm(
            vectors, items, offset, bias, None, SparsePart(history, weights, order)
        )

    def with_users(
        self, histories: Histories, features: GroupedFeatures | None = None
    ) -> Self:
        """Return the blend with these users instead of its own.

        Raises
        ------
        DataError
            If a model cannot fold in users.
        """
        return self._folded(abilities.FoldsInUsers, "users", histories, features)

    def with_items(
        self, histories: Histories, features: GroupedFeatures | None = None
    ) -> Self:
        """Return the blend with these items instead of its own.

        Raises
        ------
        DataError
            If a model cannot fold in items.
        """
        return self._folded(abilities.FoldsInItems, "items", histories, features)

    def _folded(
        self,
        ability: Any,
        side: str,
        histories: Histories,
        features: GroupedFeatures | None,
    ) -> Self:
        parts = []
        for each in self._able(ability, f"fold in new {side}"):
            known = (features,) if each.uses_features else ()
            parts.append(getattr(each, f"with_{side}")(histories, *known))
        return self.with_parts(parts)

    def contributions(
        self, history: Histories, items: ArrayLike, context: Context | None = None
    ) -> Explanation:
        """Return the scores of `items` as weighted sums of the models' contributions."""
        explained = []
        for each in self._able(abilities.Explains, "explain scores"):
            features = (context,) if each.uses_features else ()
            explained.append(each.contributions(history, items, *features))
        factors = [factor for factor, _ in self._weighted]

        def total(name: str) -> Floats | None:
            arrays = [getattr(each, name) for each in explained]
            pairs = [
                (f, a) for f, a in zip(factors, arrays, strict=True) if a is not None
            ]
            return _sum(f * a for f, a in pairs) if pairs else None

        sums: list[Any] = [total(name) for name in Explanation._fields]
        return Explanation(*sums)

    def item_vectors(self) -> Floats:
        """Return item vectors whose cosine is the weighted mean of the models' cosines."""
        able = self._able(abilities.HasItemVectors, "find similar items")
        return self._side_by_side([each.item_vectors() for each in able])

    def user_vectors(self) -> Floats:
        """Return user vectors whose cosine is the weighted mean of the models' cosines."""
        able = self._able(abilities.HasUserVectors, "find similar users")
        return self._side_by_side([each.user_vectors() for each in able])

    def knows(self, side: str) -> bool:
        """Return whether all models have features of `side`, "item" or "user"."""
        return all(
            isinstance(each, abilities.KnowsFeatures) and each.knows(side)
            for each in self.parts
        )

    def comparable(self, side: str) -> tuple[Floats, Floats]:
        """Return vectors of `side`, and the weighted mean reliability of their features."""
        found = [
            cast(abilities.KnowsFeatures, each).comparable(side) for each in self.parts
        ]
        shares = self.shares[self.shares > 0]
        reliability = _sum(
            share * each[1] for share, each in zip(shares, found, strict=True)
        )
        return self._side_by_side([each[0] for each in found]), reliability

    def widened(self, side: str, order: Indices, features: GroupedFeatures) -> Self:
        """Return the blend with more items (or users) without ratings; see `KnowsFeatures`."""
        parts = [cast(abilities.KnowsFeatures, each) for each in self.parts]
        return self.with_parts([each.widened(side, order, features) for each in parts])

    def _side_by_side(self, vectors: Sequence[Floats]) -> Floats:
        parts = []
        for share, each in zip(self.shares[self.shares > 0], vectors, strict=True):
            lengths = np.sqrt(np.einsum("ij,ij->i", each, each))[:, None]
            unit = np.divide(each, lengths, out=np.zeros_like(each), where=lengths > 0)
            parts.append(np.sqrt(share) * unit)
        return np.hstack(parts)

    def _able(self, ability: Any, action: str) -> list[Any]:
        """Return the models, after checking that all have an ability."""
        unable = [each.name for each in self.parts if not isinstance(each, ability)]
        if unable:
            raise DataError(
                f"The blend cannot {action}, because {' and '.join(unable)} cannot."
            )
        return [*self.parts]

    def _arrays(self) -> dict[str, NDArray[Any]]:
        found = super()._arrays()
        for number, part in enumerate(self.parts, start=1):
            found |= {
                f"{number}_{name}": array for name, array in part._arrays().items()
            }
        return found

    @classmethod
    def _from_arrays(
        cls, params: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> Self:
        result = super()._from_arrays(params, arrays)
        models = result._unfitted()
        if len(result.shares) != len(models) or not (result.shares >= 0).all():
            raise DataError(
                f"The array 'shares' must have {len(models)} non-negative numbers."
            )
        scales, some = result.scales, result.shares.any()
        if not ((scales > 0) & np.isfinite(scales)).all() or not some:
            raise DataError(
                "The scales of a blend and at least one share must be positive."
            )
        chosen = [
            each for each, share in zip(models, result.shares, strict=True) if share > 0
        ]
        parts = []
        for number, each in enumerate(chosen, start=1):
            start = f"{number}_"  # prefix of the names of its arrays, also in errors
            own = {
                k.removeprefix(start): a
                for k, a in arrays.items()
                if k.startswith(start)
            }
            try:
                parts.append(type(each)._from_arrays(each.get_params(), own))
            except DataError as error:
                raise DataError(
                    str(error).replace("array '", f"array '{start}")
                ) from None
        if len({(part.n_users, part.n_items) for part in parts}) > 1:
            raise DataError("The models of a blend must have the same users and items.")
        vars(result)["_parts"] = parts
        return result


def _columns(pairs: Sequence[tuple[np.float32, FactorForm]]) -> tuple[Any, ...]:
    """Return item vectors, biases, item-item weights and item order from the models' forms."""
    items = np.hstack([form.items for _, form in pairs])
    bias = np.zeros(len(items), np.float32)
    for factor, form in pairs:
        bias += 0 if form.bias is None else factor * form.bias
    parts = [form.sparse for _, form in pairs if form.sparse is not None]
    if len(parts) < 2:
        weights, order = (parts[0].weights, parts[0].order) if parts else (None, None)
        return items, bias, weights, order
    from scipy.sparse import csr_array, vstack

    stacked = []
    for part in parts:
        columns = (
            part.weights.indices
            if part.order is None
            else part.order[part.weights.indices]
        )
        shape = len(part.weights.indptr) - 1, len(items)
        stacked.append(
            csr_array((part.weights.data, columns, part.weights.indptr), shape=shape)
        )
    matrix = vstack(stacked, format="csr")
    matrix.sort_indices()
    return items, bias, kernels.csr_arrays(matrix), None


def _stacked(parts: Sequence[tuple[Floats, SparsePart]], n_users: int) -> CsrArrays:
    """Return the histories of users in several models, concatenated in each row."""
    from scipy.sparse import csr_array, hstack

    matrices = [
        csr_array(
            (values, part.history.indices, part.history.indptr),
            shape=(n_users, len(part.weights.indptr) - 1),
        )
        for values, part in parts
    ]
    return kernels.csr_arrays(hstack(matrices, format="csr"))


def _sum(terms: Any) -> Floats:
    """Return the sum of arrays, added from the first to the last."""
    found: Floats = functools.reduce(operator.add, terms)
    return found
