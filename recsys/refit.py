"""Refits: a model made again from ratings and the request for it, as if no fit had come before.

Nothing of an earlier fit is used: the data decide again about the model (with `auto`), penalties,
weights of blends, and the encoding of features. A refit costs as much as a fit, and has its result,
bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import polars as pl

from recsys.data.csr import Values
from recsys.data.events import collect
from recsys.data.feedback import judge
from recsys.data.ids import integers_if_whole
from recsys.data.kinds import Policy
from recsys.data.ratings import (
    Ratings,
    compact,
    described,
    has_items,
    has_ratings,
    restricted,
    with_collected,
)
from recsys.models.base import Model, OnStep
from recsys.models.registry import fitted_model, request_of, requested_model
from recsys.provenance import Provenance
from recsys.saving.storage import Saved


def fit_model(
    model: Model,
    ratings: Ratings,
    on_step: OnStep,
    **settings: Any,
) -> Saved:
    """Fit a model to ratings, and record how it was requested and how they were read."""
    ratings = model._graded(ratings)
    request = request_of(model)
    # A refit has no held-out ratings, and tells the user.
    if request is not None and settings.get("validation") is not None:
        request = replace(request, is_validated=True)
    reading = {} if ratings.source is None else dict(ratings.source.options)
    model, ratings, training = fitted_model(
        model, compact(ratings), on_step, **settings
    )
    if ratings.feedback is not None:
        reading |= ratings.feedback.options
    if ratings.scale is not None:
        reading["scale"] = list(ratings.scale)
    provenance = Provenance(reading=reading, request=request)
    return Saved(model, ratings, training, provenance)


def refitted(
    fitted: Saved,
    ratings: Ratings,
    on_step: OnStep,
) -> Saved:
    """Fit the model that was requested for `fitted` to other ratings."""
    request = fitted.provenance.request
    if request is not None:
        model = requested_model(request)
    else:
        model = type(fitted.model)(**fitted.model.get_params())
    # In the order of a first reading: ids, values, tables, features.
    ratings = with_ids_read_again(without_unrated(ratings))
    ratings = judged_again(ratings, fitted.provenance.reading)
    features = ratings.feature_request
    if features is not None and request is not None and request.is_validated:
        # The held-out ratings had the users and items of the others only.
        ratings = replace(ratings, feature_request=replace(features, unrated=True))
    ratings = model._plan(with_tables_typed_again(ratings))
    return fit_model(model, encoded_again(ratings), on_step)


def without_unrated(ratings: Ratings) -> Ratings:
    """Return ratings without the users and items that the encoding of their tables has added."""
    users = has_ratings(ratings) | ~described(ratings, "user")
    items = has_items(ratings) | ~described(ratings, "item")
    zeros = ratings.zeros
    if zeros is not None:
        users |= np.diff(zeros.indptr) > 0
        items[zeros.indices] = True
    return restricted(ratings, users, items)


def with_ids_read_again(ratings: Ratings) -> Ratings:
    """Return ratings whose ids of text files are integers if all remaining ones are."""
    ids = {"user": ratings.users.values, "item": ratings.items.values}
    read = dict(ids)
    for side in ratings.untyped:
        values = ids[side]
        if values.dtype == pl.String:
            integers = integers_if_whole(values)
            # "7" and "7.0" would become one user.
            if integers.n_unique() == len(values):
                read[side] = integers
    if all(read[side].dtype == ids[side].dtype for side in ids):
        return ratings
    return ratings.relabelled(read["user"], read["item"])


def judged_again(ratings: Ratings, reading: Mapping[str, Any]) -> Ratings:
    """Return ratings that are grades or interactions by their values, as a reading decides it.

    If options of the reading have decided it, the ratings are returned as they are.
    """
    feedback = ratings.feedback
    if feedback is None or feedback.kind == "likes" or "scale" in reading:
        return ratings
    # Counts above a limit were taken as likes; the log has the counts.
    ratings = ratings.with_own_values()
    values = ratings.log.values or Values.ones(len(ratings.log))
    levels, counts = np.unique(values.at(), return_counts=True)
    decision = judge(levels, counts, feedback.name)
    implicit = decision.kind == "counts"
    usual_policy: Policy = "sum" if implicit else "last"
    rule = replace(ratings.rule, policy=reading.get("duplicates", usual_policy))
    entries = ratings.log.entries()
    code = None if "missing" in reading else decision.missing
    if code is not None:
        entries = entries.take(values.at() != code)
    order = ratings.in_time_order
    collected = collect(
        entries, ratings.shape, rule, implicit=implicit, known_order=order
    )
    judged = with_collected(ratings, collected)
    judged = replace(judged, implicit=implicit, feedback=decision)
    if code is None:
        return judged
    # Those whose ratings were all codes of missing values were not read as rated.
    users = has_ratings(judged) | ~has_ratings(ratings)
    items = has_items(judged) | ~has_items(ratings)
    return restricted(judged, users, items)


def with_tables_typed_again(ratings: Ratings) -> Ratings:
    """Return ratings whose tables have the kinds of columns that a reading of them determines."""
    axes = [
        replace(axis, table=axis.table.typed_again().matching(axis.ids))
        for axis in ratings.axes
        if axis.table is not None
    ]
    return ratings.with_axes(*axes)


def encoded_again(ratings: Ratings) -> Ratings:
    """Return ratings with their features encoded again, in the way that was requested."""
    request = ratings.feature_request
    if request is None:
        return ratings
    from recsys.features.selection import with_features

    tables = [axis.table for axis in ratings.axes if axis.table is not None]
    # Columns may have lost all values with users or items that are gone.
    names = {name for table in tables for name in table.kinds}
    if request.columns is not None:
        columns = tuple(name for name in request.columns if name in names)
        request = replace(request, columns=columns)
    if not names or request.columns == ():
        return replace(ratings, item_features=None, user_features=None)
    return with_features(ratings, **asdict(request))
