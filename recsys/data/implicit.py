"""Ratings as interactions: grades, counts or equal values as implicit feedback."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from recsys.data.feedback import Feedback, judge_values
from recsys.data.ratings import Ratings


def feedback_of(ratings: Ratings) -> Feedback:
    """Return the decision on the values of ratings, by the reader or from the values."""
    if ratings.feedback is not None:
        return ratings.feedback
    if ratings.scale is not None or ratings.implicit:
        return Feedback("grades", *ratings.value_range())
    return judge_values(ratings.values)


def as_implicit(ratings: Ratings) -> Ratings:
    """Return the ratings as implicit feedback, with all values 1.

    If nearly all are the same, lower ones are left out, because they are dislikes.
    """
    feedback = feedback_of(ratings)
    if ratings.implicit and feedback.kind == "counts":
        return replace(ratings, feedback=feedback).as_interactions()
    if not ratings.implicit and feedback.common is not None:
        common = np.float32(feedback.common)
        limit = np.nextafter(common, np.float32(-np.inf))
        interactions = ratings.interactions_above(float(limit))
    elif not ratings.implicit and feedback.kind == "counts":
        rule = replace(ratings.rule, policy="sum")
        summed = replace(ratings, rule=rule)
        interactions = summed.interactions_above(0.0)
    else:
        interactions = replace(ratings.with_values(1), implicit=True)
    return replace(interactions, feedback=feedback)
