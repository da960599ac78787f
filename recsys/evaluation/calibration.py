"""Calibration of a model: the chances of items in lists, from held-out ratings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from recsys.errors import DataError, check_whole
from recsys.evaluation.measurement import with_history
from recsys.evaluation.splits import Split, default_split
from recsys.evaluation.tasks import RankingTask
from recsys.ranking.chance import Chances
from recsys.ranking.topn import check_n
from recsys.recommender import Recommender

_MOST_USERS = (
    20_000  # lists of more would not make the chances more exact than the bins
)


def calibrate(
    recommender: Recommender,
    split: Split | None = None,
    *,
    n: int = 100,
    random_state: int = 0,
) -> Recommender:
    """Return a recommender that knows the chance that an item at a place of a list is taken.

    A model with the same parameters is fitted to a part of the ratings. What users took in the
    other part, of the lists that it makes for them, is the chance of a score or of a rank
    (isotonic regression). It takes as long as a fit. Chances are for users who take anything in
    such a time as the other part covers.

    Parameters
    ----------
    recommender : Recommender
        Fitted recommender, whose chances are set.
    split : Split, optional
        Split of its ratings; by default, the newest tenth is held out, or a random one.
    n : int
        Length of the lists.
    random_state : int

    Raises
    ------
    DataError
        If no held-out rating is of a known user and a known item.

    Examples
    --------
    >>> import recsys
    >>> recommender = recsys.Recommender("popular").fit(recsys.sample_path())
    >>> chances = calibrate(recommender).recommend(1, n=2, chance=True)["chance"]
    >>> [f"{chance:.0%}" for chance in chances]
    ['34%', '34%']
    """
    random_state = check_whole("random_state", random_state, 0)
    check_n(n)
    if not (isinstance(recommender, Recommender) and isinstance(split, Split | None)):
        raise DataError(
            "calibrate takes a fitted Recommender, and perhaps a Split of its ratings."
        )
    model = recommender.model
    if split is None:
        split = default_split(recommender.ratings, random_state=random_state)
    task = RankingTask.of(
        split.without_new(), n, random_state=random_state, only_rated=True
    )
    step = -(-len(task.users) // _MOST_USERS)
    task = replace(task, users=task.users[::step])
    # What the fit has found by itself, such as a penalty, is not searched for again.
    parameters = model.get_params() | model._found_params()
    fitted = Recommender(type(model)(**parameters)).fit(
        task.split.train, features=False
    )
    lists, scores = task.scored_lists(with_history(fitted.model, task.split.history))
    hits = task.hits(slice(None), lists)
    chances = Chances.fit(scores, hits, _described(split))
    if chances.by == "score":
        # Scores such as counts grow with the number of ratings. The recommender knows what was
        # taken, and it may lack the users of another split.
        rows, ranks = np.nonzero((lists >= 0) & ~hits)
        test = task.split.test
        users = recommender.ratings.users.find(test.users.take(task.users[rows]))
        items = recommender.ratings.items.find(test.items.take(lists[rows, ranks]))
        is_known = (users >= 0) & (items >= 0)
        after = model.pair_scores(users[is_known], items[is_known])
        chances = chances.rescaled(scores[rows, ranks][is_known], after)
    recommender.provenance = replace(recommender.provenance, chances=chances)
    return recommender


def _described(split: Split) -> str:
    """Return the description of the held-out ratings, with the days that they cover."""
    times = split.test.seconds
    if split.method != "time" or times is None:
        return split.description
    days = float(np.ptp(times)) / 86_400
    return f"{split.description} ({days:.3g} days)"
