"""Blends: weighted sums of the scores of several models."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, count
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike

from lowrank import kernels
from lowrank.kernels import CsrArrays, SparsePart
from recsys.errors import DataError
from recsys.models import abilities
from recsys.models.base import Model, Progress, check_indices
from recsys.models.factor_form import FactorForm
from recsys.models.histories import Explanation, Histories
from recsys.models.holdout import HeldOut, best_weights, score_scale
from recsys.models.parameters import (
    fitted,
    model,
    parameter,
    random_state_parameter,
    threads_parameter,
)
from recsys.models.parts import Array, Doubles, Floats, Indices
from recsys.models.registry import seeded_model

if TYPE_CHECKING:
    from lowrank.completion.feature_ridge import GroupedFeatures
    from recsys.data.ratings import Ratings


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
        # The shares of a blend that is not fitted are an error that says so.
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
    def uses_zeros(self) -> bool:  # type: ignore[override]
        """True if some of the models use dislikes and impressions."""
        return any(member.uses_zeros for member in self._unfitted())

    @property
    def uses_weights(self) -> bool:  # type: ignore[override]
        """True if any of the models uses the weights of interactions."""
        return any(member.uses_weights for member in self._unfitted())

    @property
    def uses_features(self) -> bool:  # type: ignore[override]
        """True if any of the models uses features of users and items."""
        return any(member.uses_features for member in self._unfitted())

    @property
    def uses_order(self) -> bool:  # type: ignore[override]
        """True if the order of a history counts in any of the models."""
        return any(member.uses_order for member in self._unfitted())

    @property
    def _needs_values(self) -> bool:  # type: ignore[override]
        return any(member._needs_values for member in self._unfitted())

    @classmethod
    def of(cls, parts: Sequence[Model], **params: Any) -> Self:
        """Return a blend of fitted models; `params` are its parameters, including weights."""
        result = cls(**params)
        shares = result._given_shares(len(parts))
        result._set(shares, [score_scale(part) for part in parts], parts)
        return result

    def with_parts(self, parts: Sequence[Model]) -> Self:
        """Return the blend with its fitted models replaced, in the order of `parts`."""
        result = copy.copy(self)
        # The item columns are those of the former models.
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
        return [seeded_model(name, self.random_state, self.threads) for name in names]

    def _given_shares(self, n_members: int) -> Doubles:
        """Return the weights as parameters give them, by default all alike."""
        if self.weights is None:
            return np.full(n_members, 1 / n_members)
        try:
            numbers = np.array([float(text) for text in self.weights.split(",")])
        except ValueError:
            numbers = np.zeros(0)
        is_valid = len(numbers) == n_members and (numbers >= 0).all()
        # Text that is no number leaves no numbers, which are never valid.
        if not is_valid or not 0 < numbers.sum() < np.inf:
            raise DataError(
                f"weights must be {n_members} numbers between commas, one for each of "
                f"{self.members}, not negative and not all 0; got {self.weights!r}."
            )
        shares: Doubles = numbers / numbers.sum()
        return shares

    def _fit(self, ratings: Ratings, progress: Progress) -> None:
        models = self._unfitted()
        shares = self._given_shares(len(models))
        trials = progress.trials
        folds = []
        if self.weights is None and len(models) > 1:
            folds = HeldOut.folds(ratings, self.random_state)
        fits, n_fits = count(1), len(models) * (1 + len(folds))

        def begin(_fold: int, _model: int) -> Progress:
            progress.report(None, next(fits), n_fits)
            return Progress(deadline=progress.deadline)

        lists = []
        for held_out, fitted_parts in HeldOut.trials(folds, models, begin):
            lists.append(held_out.lists(fitted_parts))
            trials = {part.name: part for part in fitted_parts}
        if lists:
            shares, _ = best_weights(lists)
        scales = np.ones(len(models))
        parts = []
        # Models without weight need no fit to all data.
        for number in np.flatnonzero(shares > 0):
            part = models[number]
            of_part = begin(len(folds), int(number))
            of_part.trials = trials
            parts.append(part._fit_checked(ratings, of_part))
            # Directions of one filter are a start for another.
            trials = {**trials, part.name: part}
            scales[number] = score_scale(part)
        self._set(shares, scales, parts)
        vars(self)["remarks"] = tuple(
            f"{part.name} {remark}" for part in parts for remark in part.remarks
        )

    def _set(
        self,
        shares: ArrayLike,
        scales: ArrayLike,
        parts: Sequence[Model],
    ) -> None:
        self.shares = np.asarray(shares, np.float32)
        self.scales = np.asarray(scales, np.float32)
        vars(self).pop("_columns", None)
        vars(self)["_parts"] = [*parts]

    @property
    def _weighted(self) -> list[tuple[np.float32, Model]]:
        """The models with the factors of their scores."""
        factors = (self.shares / self.scales)[self.shares > 0]
        return [*zip(factors, self.parts, strict=True)]

    def pair_scores(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Return scores of pairs, shape (n_pairs,); independent of the other pairs."""
        u, i = self._checked_pairs(users, items)
        if self._factor_form(u[:0]) is not None:
            return super().pair_scores(u, i)
        return _sum(factor * part.pair_scores(u, i) for factor, part in self._weighted)

    def scores(self, users: ArrayLike) -> Floats:
        """Return scores of all items for each user, shape (n_block, n_items)."""
        u = check_indices(users, self.n_users, "user")
        form = self._factor_form(u)
        if form is None:
            return _sum(factor * part.scores(u) for factor, part in self._weighted)
        return form.scores(self.threads)

    def _score_error(self, users: ArrayLike) -> Floats | None:
        """Return a bound on ``|scores - pair_scores|`` as in `Model`, shape (n_block,).

        Without factors, both are the same weighted sums of the models' scores.
        """
        u = check_indices(users, self.n_users, "user")
        form = self._factor_form(u)
        if form is not None:
            return form.error()
        # Each of the sums has as many terms as there are models, rounded in any order.
        rounding = np.float32(2 * len(self.parts) * np.finfo(np.float32).eps)
        bound = np.zeros(len(u), np.float32)
        for factor, part in self._weighted:
            error = part._score_error(u)
            bound += factor * np.abs(part.scores(u)).max(axis=1, initial=0) * rounding
            if error is not None:
                bound += factor * error
        return bound * np.float32(1 + 1e-5)

    def _factor_form(self, users: ArrayLike) -> FactorForm | None:
        """Return the models' factors and sparse parts side by side, or None if one has none."""
        u = check_indices(users, self.n_users, "user")
        forms = []
        for factor, part in self._weighted:
            form = part._factor_form(u)
            if form is None:
                return None
            forms.append((factor, form))
        if "_columns" not in vars(self):  # the same for all users
            vars(self)["_columns"] = _columns(forms)
        columns: FactorForm = vars(self)["_columns"]
        offset = np.zeros(len(u), np.float32)
        for factor, form in forms:
            if form.offset is not None:
                offset += factor * form.offset
        sparse = columns.sparse
        if sparse is not None:
            sparse = sparse._replace(history=_history(forms, len(u)))
        # The weight of a model is in the vectors of users, so that items are the same
        # for all.
        vectors = np.hstack([factor * form.users for factor, form in forms])
        return columns._replace(
            users=vectors,
            offset=offset,
            sparse=sparse,
        )

    def with_users(self, histories: Histories) -> Self:
        """Return the blend with these users instead of its own.

        Raises
        ------
        DataError
            If a model cannot fold in users.
        """
        return self._folded(
            abilities.FoldsInUsers,
            "user",
            histories,
        )

    def with_items(self, histories: Histories) -> Self:
        """Return the blend with these items instead of its own.

        Raises
        ------
        DataError
            If a model cannot fold in items.
        """
        return self._folded(
            abilities.FoldsInItems,
            "item",
            histories,
        )

    def _folded(
        self,
        ability: Any,
        side: str,
        histories: Histories,
    ) -> Self:
        self._check_able(ability, f"fold in new {side}s")
        return self.with_parts(
            [abilities.fold(part, side, histories) for part in self.parts]
        )

    def contributions(
        self,
        history: Histories,
        items: ArrayLike,
        fitted: Ratings | None = None,
    ) -> Explanation:
        """Return the scores of `items` as weighted sums of the models' contributions."""
        self._check_able(abilities.Explains, "explain scores")
        terms: dict[str, list[Floats]] = {name: [] for name in Explanation._fields}
        for factor, part in self._weighted:
            explanation = abilities.contributions_of(part, history, items, fitted)
            for name, values in explanation._asdict().items():
                if values is not None:
                    terms[name].append(factor * values)
        # Not every model has contributions of features.
        sums: dict[str, Any] = {}
        for name, of_models in terms.items():
            sums[name] = _sum(of_models) if of_models else None
        return Explanation(**sums)

    def item_vectors(self) -> Floats:
        """Return item vectors whose cosine is the weighted mean of the models' cosines."""
        self._check_able(abilities.HasItemVectors, "find similar items")
        return self._side_by_side(
            [cast(abilities.HasItemVectors, part).item_vectors() for part in self.parts]
        )

    def user_vectors(self) -> Floats:
        """Return user vectors whose cosine is the weighted mean of the models' cosines."""
        self._check_able(abilities.HasUserVectors, "find similar users")
        return self._side_by_side(
            [cast(abilities.HasUserVectors, part).user_vectors() for part in self.parts]
        )

    def knows(self, side: str) -> bool:
        """Return whether all models have features of `side`, "item" or "user"."""
        return all(
            isinstance(part, abilities.KnowsFeatures) and part.knows(side)
            for part in self.parts
        )

    def comparable(self, side: str) -> tuple[Floats, Floats]:
        """Return vectors of `side`, and the weighted mean reliability of their features."""
        vectors, reliabilities = [], []
        for share, part in zip(self.shares[self.shares > 0], self.parts, strict=True):
            of_part = cast(abilities.KnowsFeatures, part).comparable(side)
            vectors.append(of_part[0])
            reliabilities.append(share * of_part[1])
        return self._side_by_side(vectors), _sum(reliabilities)

    def widened(
        self,
        side: str,
        order: Indices,
        features: GroupedFeatures,
    ) -> Self:
        """Return the blend with more items (or users) without ratings; see `KnowsFeatures`."""
        return self.with_parts(
            [
                cast(abilities.KnowsFeatures, part).widened(
                    side,
                    order,
                    features,
                )
                for part in self.parts
            ]
        )

    def _side_by_side(self, vectors: Sequence[Floats]) -> Floats:
        columns = []
        for share, of_part in zip(self.shares[self.shares > 0], vectors, strict=True):
            # Vectors of length sqrt(share) make the cosine of all columns the mean of the cosines.
            lengths = np.sqrt(np.einsum("ij,ij->i", of_part, of_part))[:, None]
            zeros = np.zeros_like(of_part)
            unit = np.divide(
                of_part,
                lengths,
                out=zeros,
                where=lengths > 0,
            )
            columns.append(np.sqrt(share) * unit)
        return np.hstack(columns)

    def _check_able(self, ability: Any, action: str) -> None:
        """Check that all models have an ability."""
        unable = [part.name for part in self.parts if not isinstance(part, ability)]
        if unable:
            raise DataError(
                f"The blend cannot {action}, because {' and '.join(unable)} cannot."
            )

    def _arrays(self, prefix: str = "") -> dict[str, Array]:
        arrays = super()._arrays(prefix)
        for number, part in enumerate(self.parts, start=1):
            arrays |= part._arrays(f"{prefix}{number}_")
        return arrays

    @classmethod
    def _from_arrays(
        cls,
        params: Mapping[str, Any],
        arrays: Mapping[str, Array],
        prefix: str = "",
    ) -> Self:
        result = super()._from_arrays(params, arrays, prefix)
        models, shares, scales = result._unfitted(), result.shares, result.scales
        if len(shares) != len(models) or not (shares >= 0).all() or not shares.any():
            raise DataError(
                f"The array 'shares' must have {len(models)} non-negative numbers, not all 0."
            )
        if not ((scales > 0) & np.isfinite(scales)).all():
            raise DataError("The scales of a blend must be positive.")
        parts: list[Model] = []
        # Models of weight zero are not saved, and do not count.
        for number, member in enumerate(compress(models, shares > 0), start=1):
            number_prefix = f"{prefix}{number}_"
            part = member._from_arrays(
                member.get_params(),
                arrays,
                number_prefix,
            )
            parts.append(part)
        if len({(part.n_users, part.n_items) for part in parts}) > 1:
            raise DataError("The models of a blend must have the same users and items.")
        vars(result)["_parts"] = parts
        return result

    def _check_features(self, side: str, n_features: int) -> None:
        for part in self.parts:
            part._check_features(side, n_features)


def _columns(forms: Sequence[tuple[np.float32, FactorForm]]) -> FactorForm:
    """Return the form of no users, with the items of the models' forms."""
    items = np.hstack([form.items for _, form in forms])
    bias = np.zeros(len(items), np.float32)
    for factor, form in forms:
        if form.bias is not None:
            bias += factor * form.bias
    parts = [form.sparse for _, form in forms if form.sparse is not None]
    sparse = parts[0] if parts else None
    if len(parts) > 1:
        from scipy.sparse import csr_array, vstack

        stacked = []
        for part in parts:
            starts, columns, weights = part.weights
            # Each model stores its items in an order of its own.
            if part.order is not None:
                columns = part.order[columns]
            shape = len(starts) - 1, len(items)
            stacked.append(csr_array((weights, columns, starts), shape=shape))
        matrix = vstack(stacked, format="csr")
        # The kernels search rows by column.
        matrix.sort_indices()
        sparse = SparsePart(parts[0].history, kernels.csr_arrays(matrix))
    return FactorForm(items[:0], items, bias=bias, sparse=sparse)


def _history(forms: Sequence[tuple[np.float32, FactorForm]], n_users: int) -> CsrArrays:
    """Return the weighted histories of users in several models, concatenated in each row."""
    histories = []
    sizes = []
    for factor, form in forms:
        if form.sparse is not None:
            history = form.sparse.history
            histories.append(history._replace(data=factor * history.data))
            sizes.append(len(form.sparse.weights.indptr) - 1)
    if len(histories) == 1:
        return histories[0]
    from scipy.sparse import csr_array, hstack

    matrices = [
        csr_array((history.data, history.indices, history.indptr), shape=(n_users, n))
        for history, n in zip(histories, sizes, strict=True)
    ]
    return kernels.csr_arrays(hstack(matrices, format="csr"))


def _sum(terms: Iterable[Floats]) -> Floats:
    """Return the sum of arrays, added from the first to the last."""
    return functools.reduce(operator.add, terms)
