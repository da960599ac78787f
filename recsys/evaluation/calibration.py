"""Calibration of a model: the chances of items in lists, from held-out ratings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from recsys.errors import DataError, check_whole
from recsys.evaluation.measurement import with_history
from recsys.evaluation.metrics import Lists
from recsys.evaluation.splits import Split, default_split
from recsys.evaluation.tasks import RankingTask
from recsys.models.parts import Floats
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
    for argument, kind in ((recommender, Recommender), (split, Split | None)):
        if not isinstance(argument, kind):
            raise DataError(
                "calibrate takes a fitted Recommender, and perhaps a Split of its ratings; got "
                f"{type(argument).__name__}."
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
        before, after = _common_scores(recommender, task, lists, scores)
        chances = chances.rescaled(before, after)
    recommender.provenance = replace(recommender.provenance, chances=chances)
    return recommender


def _described(split: Split) -> str:
    """Return the description of the held-out ratings, with the days that they cover."""
    times = split.test.seconds
    if split.method != "time" or times is None:
        return split.description
    days = (float(times.max()) - float(times.min())) / 86_400
    return f"{split.description} ({days:.3g} days)"


def _common_scores(
    recommender: Recommender,
    task: RankingTask,
    lists: Lists,
    scores: Floats,
) -> tuple[Floats, Floats]:
    """Return the scores of pairs in lists, and of the same pairs in the recommender's lists.

    Scores such as counts grow with the number of ratings.
    """
    users = task.split.test.users.take(task.users)
    rows, ranks = np.nonzero(lists >= 0)
    items = task.split.test.items.take(lists[rows, ranks])
    listed = pl.DataFrame(
        {"user": users.gather(rows), "item": items, "before": scores[rows, ranks]}
    )
    fitted_users = users.filter(recommender.ratings.users.find(users) >= 0)
    served = recommender.recommend(fitted_users.to_list(), n=task.n)
    common = listed.join(served, on=["user", "item"])
    return common["before"].to_numpy(), common["score"].to_numpy()
