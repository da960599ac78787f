"""Updates of a fitted model with new, removed and changed ratings.

An update takes time in proportion to what is new, next to a copy of the arrays: users with other
ratings are folded in again, items whose ratings have grown by more than a fiftieth, and their
users. Of models of all pairs, such as ials, these are all users.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recsys.changes import (
    Change,
    change_of,
    like_old,
    other_unit,
    wider_range,
    without_visitors,
)
from recsys.data.age import FADED, faded_remark, iso_time, present
from recsys.data.arrays import distinct
from recsys.data.ids import IdsLike
from recsys.data.new_ids import doubtful_ids
from recsys.data.ratings import Ratings, conflicts
from recsys.data.rows import large_share
from recsys.data.times import Moment
from recsys.drift import popularity_stability, rating_stability
from recsys.errors import DataError
from recsys.messages import counted, worded
from recsys.models.abilities import folded_in
from recsys.models.base import FactorModel, FoldingModel, Model, OnStep
from recsys.models.blend import Blend
from recsys.models.histories import Histories
from recsys.models.item_item import HistoryModel
from recsys.models.parts import Indices
from recsys.provenance import AS_OF, Provenance
from recsys.refit import refitted
from recsys.saving.storage import Saved

_SHARE = 0.2  # of the ratings of a fit, after as many new ones all are fitted again
_NOT_VALIDATED = (
    "the held-out ratings that chose the iterations of the earlier fit are not in the "
    "model, so this fit has all iterations"
)
_HALVINGS = 1.0  # of weights since a fit, after which all are fitted again


def reading_of(fitted: Saved) -> dict[str, Any]:
    """Return what `recsys.read_ratings` is to know of a model when it reads ratings for it."""
    ratings = fitted.ratings
    ids = {"users": ratings.users, "items": ratings.items}
    return {**fitted.provenance.reading, **ids, "implicit": ratings.implicit}


@dataclass(frozen=True)
class Plan:
    """Plan of an update.

    Attributes
    ----------
    change : Change
    reading : dict
        Reading options that the update changes.
    aged : float
        Number of half-lives since the last fit.
    reason : str or None
        Reason for a fit to all ratings; None if the change can be folded in.
    source : str or None
        Source of the ratings, in words. If users are forgotten, the name only: the rest may have
        numbers of their rows.
    forgets : bool
        Whether users are forgotten. The number of their events is not told, since it stays with
        the model.
    visitors : str or None
        Events that are left out, because the model cannot have the ids of their users.
    wider : str or None
        How grades exceed the range of the last fit.
    untimed : str or None
        Times of new ratings that are lost, because the old ones have none.
    doubtful : str or None
        New ids that may be known ones, or ids of the other column.
    lacks_keys : bool
        Whether the old events have ids, and the new ones have none.
    unit : str or None
        How the new weights differ from the old ones, as if in another unit.
    """

    change: Change
    reading: dict[str, Any]
    aged: float
    reason: str | None
    source: str | None
    forgets: bool
    visitors: str | None = None
    wider: str | None = None
    untimed: str | None = None
    doubtful: str | None = None
    lacks_keys: bool = False
    unit: str | None = None

    @property
    def description(self) -> str:
        """Description of what changes, in words."""
        change = self.change
        parts = [counted(change.n_added, "new event")]
        if change.n_repeated:
            repeats = f"{change.n_repeated:,} known already"
            if change.n_conflicts:
                repeats += f" ({conflicts(change.n_conflicts)})"
            parts.append(repeats)
        if self.forgets:
            parts.append("users forgotten")
        elif change.n_removed:
            parts.append(f"{change.n_removed:,} removed")
        if change.n_late:
            parts.append(
                f"{counted(change.n_late, 'event')} after the present time left out"
            )
        after = change.after
        if after.rule.half_life is not None and (n_faded := faded_users(after)):
            parts.append(faded_remark(n_faded, after.rule.half_life))
        if change.n_added and after.rule.policy in ("mean", "sum"):
            if after.seconds is None:
                parts.append("without times, a repeated event counts as a new one")
            elif self.lacks_keys:
                parts.append(
                    "without the ids that earlier events have, a repeated event counts "
                    "as a new one"
                )
        remarks = (
            self.visitors,
            self.untimed,
            self.wider,
            self.doubtful,
            self.unit,
            _heavy_pair(change),
        )
        parts += [remark for remark in remarks if remark is not None]
        return ", ".join(parts)


def planned(
    fitted: Saved,
    new: Ratings | None,
    *,
    window: str | float | None = None,
    forget: IdsLike | None = None,
    refit: bool | None = None,
    as_of: Moment | None = None,
) -> Plan:
    """Return the plan of an update without carrying it out; see `Recommender.update`."""
    old, origin = fitted.ratings, fitted.provenance
    if window is None:
        window = origin.reading.get("window")
    reading: dict[str, Any] = {} if window is None else {"window": window}
    wider = visitors = None
    if new is not None:
        new, visitors = without_visitors(new, old)
        old, new = like_old(new, old, origin.reading)
        wider = wider_range(new, old, fitted.training)
        reading |= {} if new.source is None else new.source.options
        if fitted.ratings.implicit and not old.implicit:  # equal values are grades now
            reading |= {"feedback": "grades", "common": None}
    untimed = _lost_times(old, new, as_of)
    now = present(as_of)
    change = change_of(old, new, window=window, forget=forget, now=now)
    if change.after.seconds is not None:
        reading[AS_OF] = iso_time(now)
    aged = fitted.training.get("aged", 0.0)
    after, half_life = change.after, change.after.rule.half_life
    newest = [
        float(part.seconds.max())
        for part in (old, after)
        if part.seconds is not None and part.nnz
    ]
    if half_life is not None and len(newest) == 2:
        aged += max(0.0, newest[1] - newest[0]) / half_life
    reason = reason_to_refit(fitted, change, new, refit, aged, wider)
    # The description may have numbers of the rows of the users to forget.
    source = origin.source
    if forget is not None:
        source = f"{_source_name(after, origin)}, without forgotten users"
        change = replace(change, after=replace(after, source=None))
    forgets = forget is not None
    return Plan(
        change,
        reading,
        aged,
        reason,
        source,
        forgets,
        visitors,
        wider,
        untimed,
        doubtful=None if new is None else doubtful_ids(old, new.users, new.items),
        unit=None if new is None else other_unit(new, old),
        lacks_keys=_have_keys(old) and new is not None and not _have_keys(new),
    )


def _heavy_pair(change: Change) -> str | None:
    """Describe a pair with a large share of all weights after an update, or None."""
    after = change.after
    if not (after.implicit and change.n_added and after.nnz):
        return None
    weights = np.abs(after.values)
    position = int(weights.argmax())
    total = float(weights.sum(dtype=np.float64))
    share = large_share(float(weights[position]), total, after.nnz)
    if not share:
        return None
    row = int(np.searchsorted(after.indptr, position, side="right")) - 1
    user, item = (
        after.users.values[row],
        after.items.values[int(after.indices[position])],
    )
    return f"the pair of user {user!r} and item {item!r} has {share}"


def _have_keys(ratings: Ratings) -> bool:
    """Return whether events have ids."""
    return ratings.events is not None and ratings.events.keys is not None


def _lost_times(
    old: Ratings,
    new: Ratings | None,
    as_of: Moment | None,
) -> str | None:
    """Return a remark if only the new events have times, which are dropped.

    Raises
    ------
    DataError
        If only the old events have times, or if none have and the present time was given.
    """
    if new is not None and not new.nnz:
        new = None
    new_times = None if new is None else new.seconds
    if old.seconds is not None and new is not None and new_times is None:
        raise DataError(
            "The new events have no times, but the events of the model have: name the column of "
            "times with --timestamp-col (timestamp=), or add one. For a model without times, fit "
            "all events again without their times."
        )
    if as_of is not None and old.seconds is None and new_times is None:
        raise DataError(
            "--as-of (as_of=) needs times, and the events of the model have none; leave it out."
        )
    if old.seconds is not None or new_times is None:
        return None
    return "the times of the new events are dropped, because the earlier ones have none"


def _source_name(ratings: Ratings, origin: Provenance) -> str:
    """Return the name of the source of ratings, or of the model from which they come."""
    if ratings.source is not None:
        return ratings.source.name
    if origin.source is not None:
        return origin.source.partition(": ")[0].removesuffix(
            ", without forgotten users"
        )
    return "ratings"


def updated(
    fitted: Saved,
    new: Ratings | None,
    *,
    window: str | float | None,
    forget: IdsLike | None,
    refit: bool | None,
    as_of: Moment | None,
    on_step: OnStep,
) -> Saved:
    """Return a fitted model with changed ratings; see `Recommender.update`."""
    start = time.perf_counter()
    plan = planned(fitted, new, window=window, forget=forget, refit=refit, as_of=as_of)
    change = plan.change
    request = fitted.provenance.request
    if plan.reason is None:
        model, ratings = folded(fitted.model, change), change.after
        training = _folded_summary(fitted, change)
        if plan.aged:
            training["aged"] = round(plan.aged, 6)
        training["seconds"] = round(time.perf_counter() - start, 3)
        finding = f"folded in {_folded_in(change)}, without a new fit"
    else:
        refit_result = refitted(fitted, change.after, on_step)
        model, ratings = refit_result.model, refit_result.ratings
        training = refit_result.training
        finding = f"fitted again: {plan.reason}"
        if request is not None and request.is_validated:
            request = replace(request, is_validated=False)
            if fitted.model._keeps_best_sweep:
                finding += f"; {_NOT_VALIDATED}"
    training |= {"changes": plan.description, "update": finding}
    provenance = replace(
        fitted.provenance.child(plan.reading), request=request, source=plan.source
    )
    return Saved(model, ratings, training, provenance)


def _folded_in(change: Change) -> str:
    """Return the numbers of users and items that are folded in, in words."""
    n_solved = len(change.changed_users), len(change.outdated)
    parts = []
    for n, noun, n_added in zip(n_solved, ("user", "item"), change.n_new, strict=True):
        if not n:
            continue
        part = counted(n, noun)
        if n_added:
            part += f" ({n_added:,} new)"
        parts.append(part)
    return " and ".join(parts) or "nothing"


def faded_users(ratings: Ratings) -> int:
    """Return the number of users all of whose interactions hardly count, because of their age."""
    seconds, half_life = ratings.seconds, ratings.rule.half_life
    if seconds is None or half_life is None or not len(seconds):
        return 0
    starts = ratings.indptr[:-1][ratings.counts("user") > 0]
    newest = np.maximum.reduceat(seconds, starts)
    return int(np.count_nonzero(newest < seconds.max() - FADED * half_life))


def _n_folded(fitted: Saved, change: Change) -> int:
    """Return the number of events that were added or removed since the last fit."""
    folded_before: int = fitted.training.get("folded", 0)
    return folded_before + change.n_added + change.n_removed


def _folded_summary(fitted: Saved, change: Change) -> dict[str, Any]:
    """Return the summary of the fit after a fold-in."""
    training, after = dict(fitted.training), change.after
    training["users"], training["items"] = after.shape
    training["ratings"] = after.n_ratings
    training["folded"] = _n_folded(fitted, change)
    if not after.implicit and after.n_ratings:
        low, high = after.value_range()
        training["rating_min"] = min(training["rating_min"], low)
        training["rating_max"] = max(training["rating_max"], high)
    return training


def reason_to_refit(
    fitted: Saved,
    change: Change,
    new: Ratings | None,
    refit: bool | None,
    aged: float = 0.0,
    wider: str | None = None,
) -> str | None:
    """Return the reason for a new fit to all ratings, or None if folding in is enough.

    The weights are `aged` by so many half-lives since the last fit. `wider` tells how the grades
    exceed the range of that fit.

    Raises
    ------
    DataError
        If ``refit=False``, and the model cannot fold in the changes.
    """
    if not change.after.n_ratings:
        raise DataError("No rating would be left.")
    if refit:
        return "as requested"
    if change.is_empty:
        return None
    # The weakest reason comes last: what the model cannot do, how much is new, drift.
    unable = wider or _inability(fitted.model, change)
    if refit is False:
        if unable:
            raise DataError(f"The model must be fitted again: {unable}.")
        return None
    if unable:
        return unable
    share = _n_folded(fitted, change) / change.before.n_ratings
    if share > _SHARE:
        reason = f"added and removed ratings are {share:.0%} of those of the last fit"
        return worded(reason, implicit=change.before.implicit)
    if aged >= _HALVINGS:
        return f"weights have halved {aged:.3g} times since the last fit"
    if new is None:
        return None
    shifts = {
        "ratings": rating_stability(change.before, new),
        "popularity": popularity_stability(change.before, new),
    }
    for what, shift in shifts.items():
        if shift is not None and shift.is_shift:
            return f"the distribution of {what} has shifted (stability index {shift.index:.2f})"
    return None


def _inability(model: Model, change: Change) -> str | None:
    """Return why a model cannot fold a change in, or None if it can."""
    loses_items = bool((change.items < 0).any())
    for part in model.parts if isinstance(model, Blend) else [model]:
        if isinstance(part, HistoryModel):
            if loses_items or change.n_new[1]:
                return f"{part.name} learns about new items in a fit only"
        elif not isinstance(part, FoldingModel):
            return f"{part.name} does not fold in ratings"
    return None


def folded(model: Model, change: Change) -> Model:
    """Return the model with new and changed users and items folded in.

    Users come first, then items, and once more the users, with all whose items have moved: a user
    folded in later with the same ratings gets the very same vector, which `explain` explains.
    """
    if change.is_empty:
        return model
    if isinstance(model, Blend):
        return model.with_parts([folded(part, change) for part in model.parts])
    if isinstance(model, HistoryModel):
        histories = Histories.of(change.after)
        return folded_in(model, "user", histories, change.after.user_features)
    assert isinstance(model, FoldingModel)
    grown = _moved(model, change)
    ratings, outdated = change.after, change.outdated
    raters = Histories.of_items(ratings, outdated)
    affected_users = distinct(np.append(change.changed_users, raters.indices))
    counts_all_items = not model.predicts_ratings  # rated or not
    if counts_all_items and (len(outdated) or (change.items < 0).any()):
        affected_users = np.arange(ratings.n_users)
    histories = Histories.of(ratings)
    if len(outdated):
        _put_folded(grown, ratings, "user", change.changed_users, histories)
        if counts_all_items and isinstance(grown, FactorModel):
            # Users of new items only would leave them, and be left, at zero: they are
            # the mean user instead.
            vectors = grown.user_factors
            is_zero = ~vectors[change.changed_users].any(axis=1)
            vectors[change.changed_users[is_zero]] = vectors.mean(axis=0)
        _put_folded(grown, ratings, "item", outdated, raters)
    _put_folded(grown, ratings, "user", affected_users, histories)
    return grown


def _put_folded(
    model: FoldingModel,
    ratings: Ratings,
    side: str,
    rows: Indices,
    histories: Histories,
) -> None:
    """Fold some users or items in, and put them at their indices in the model."""
    if not len(rows):
        return
    features: Any = ratings.axis(side).features
    if features is not None:
        features = replace(features, matrix=features.matrix[rows])
    if side == "user":
        histories = histories.take(rows)
    model._put(folded_in(model, side, histories, features), side, rows)


def _moved(model: FoldingModel, change: Change) -> FoldingModel:
    """Return a copy of a model with users and items at new indices, with zeros for new ones."""
    rows: dict[str, Indices] = {}
    for side, indices in (("user", change.users), ("item", change.items)):
        remaining = np.flatnonzero(indices >= 0)
        rows[side] = np.full(len(change.after.axis(side).ids), -1)
        rows[side][indices[remaining]] = remaining
    return model._rearranged(**rows)
