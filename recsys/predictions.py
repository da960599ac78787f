"""Predictions, imputed ratings and explanations as data frames, and similarities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.columns import of_roles
from recsys.data.events import zeros_of
from recsys.data.frames import FrameLike, listed
from recsys.data.ids import Ids, IdsLike, query_series
from recsys.data.ratings import Ratings
from recsys.data.times import unix_seconds
from recsys.errors import DataError
from recsys.models import abilities
from recsys.models.base import FactorModel, Model, checked_predictions
from recsys.models.baselines import Bias, Popular
from recsys.models.histories import (
    Explanation,
    Histories,
    csr_rows,
    zeros_arrays,
)
from recsys.models.parts import Floats, Indices, Mask
from recsys.ranking.topn import (
    SOURCES,
    Cosine,
    CsrPairs,
    Scorer,
    TopN,
    check_n,
)
from recsys.saving.storage import Saved

if TYPE_CHECKING:
    from recsys.features.encoder import FeatureBlocks

PairsLike: TypeAlias = "FrameLike | Sequence[tuple[int | str, int | str]]"
"""Data frame with columns of users and items (user, user_id, ...), or a list of pairs of ids."""

_BLOCK_PAIRS = 2**20  # number of pairs to impute at once
_SUPPORT = 10  # number of ratings at which a similarity is halved


def clip_to_range(predicted: Floats, training: Mapping[str, Any]) -> Floats:
    """Clip predictions to the range of the training ratings, except for implicit feedback."""
    if training["implicit"]:
        return predicted
    return np.clip(predicted, training["rating_min"], training["rating_max"])


def predicted_pairs(
    fitted: Saved,
    pairs: PairsLike,
    cold_start: str,
    popular: Popular | None,
    *,
    std: bool,
) -> pl.DataFrame:
    """Return the frame of `Recommender.predict`.

    Raises
    ------
    DataError
    """
    model, ratings = fitted.model, fitted.ratings
    frame = _pairs_frame(pairs, with_times=model.uses_times)
    times = None
    if "timestamp" in frame.columns:
        times = unix_seconds(frame["timestamp"]).to_numpy()
    if cold_start == "error":
        users = ratings.users.index(frame["user"])
        items = ratings.items.index(frame["item"])
    else:  # -1 for unknown ids
        users = ratings.users.find(frame["user"])
        items = ratings.items.find(frame["item"])
    is_known = (users >= 0) & (items >= 0)
    known_users = users[is_known]
    known_items = items[is_known]
    # Only models that use times have the argument.
    context = {} if times is None else {"times": times[is_known]}
    predicted = np.empty(len(frame), np.float32)
    if not is_known.all():
        predicted = _cold_predictions(model, popular, users, items)
    predicted[is_known] = checked_predictions(
        model, known_users, known_items, **context
    )
    if model.predicts_ratings:
        predicted = clip_to_range(predicted, fitted.training)
    columns = [
        frame["user"],
        frame["item"],
        pl.Series("prediction", predicted),
    ]
    if std:
        if not isinstance(model, abilities.HasUncertainty):
            action = "estimate its uncertainty"
            raise abilities.unsupported(model, abilities.HasUncertainty, action)
        deviations = np.full(len(users), np.nan, dtype=np.float32)
        deviations[is_known] = model.predict_std(known_users, known_items, **context)
        columns.append(pl.Series("std", deviations, nan_to_null=True))
    return pl.DataFrame(columns)


def _pairs_frame(pairs: PairsLike, *, with_times: bool) -> pl.DataFrame:
    """Return pairs as a frame with the columns user and item, and timestamp if used."""
    if isinstance(pairs, np.ndarray):
        pairs = pairs.tolist()
    if not isinstance(pairs, Sequence):
        optional = ("timestamp",) if with_times else ()
        return of_roles(pairs, ("user", "item"), optional)
    are_pairs = True
    for pair in pairs:
        are_pairs &= isinstance(pair, tuple | list) and len(pair) == 2
    # Of two lists of ids, each would be taken as a pair.
    if not are_pairs or any(np.ndim(part) for pair in pairs[:1] for part in pair):
        raise DataError(
            "Pairs must be a frame with the columns user and item, or a list of (user, item) "
            "pairs."
        )
    users = [user for user, _ in pairs]
    items = [item for _, item in pairs]
    columns = query_series(users, "user"), query_series(items, "item")
    return pl.DataFrame(columns)


def _cold_predictions(
    model: Model,
    popular: Popular | None,
    users: Indices,
    items: Indices,
) -> Floats:
    """Predict ratings of pairs in which -1 marks an unknown user or item.

    `popular` predicts the damped mean of the item or, for an unknown item, the mean of all
    ratings. Without `popular`, the biases of `model` are used.
    """
    predicted: Floats
    if popular is not None:
        mean = np.float32(popular.global_mean)
        # -1 indexes the last item, whose mean is then not chosen.
        predicted = np.where(items >= 0, popular.item_means[items], mean)
        return predicted
    if not isinstance(model, FactorModel | Bias):
        raise DataError(
            f"The {model.name} model has no biases; use cold_start='popular' instead."
        )
    zero = np.float32(0)
    predicted = np.where(users >= 0, model.user_bias[users], zero)
    predicted += np.where(items >= 0, model.item_bias[items], zero)
    predicted += model.global_mean
    return predicted


def imputed(
    fitted: Saved,
    users: IdsLike | None,
    items: IdsLike | None,
    *,
    missing_only: bool,
) -> Iterator[pl.DataFrame]:
    """Return the frames of `Recommender.impute`; arguments are checked immediately.

    Raises
    ------
    DataError
    """
    model, ratings = fitted.model, fitted.ratings
    if not model.predicts_ratings or ratings.implicit:
        reason = "the data are implicit feedback"
        if not ratings.implicit:
            reason = f"the scores of the {model.name} model are not ratings"
        raise DataError(
            f"Only ratings can be imputed, and {reason}; fit a model such as 'als' to ratings with "
            "values."
        )
    rows = _distinct(ratings.users, users)
    columns = _distinct(ratings.items, items)
    size = max(1, _BLOCK_PAIRS // max(1, len(columns)))
    position_of = np.full(ratings.n_items, -1)
    position_of[columns] = np.arange(len(columns))
    rated_pairs = CsrPairs(ratings.indptr, ratings.indices)

    def frame(block: Indices) -> pl.DataFrame:
        shape = len(block), len(columns)
        is_missing = np.ones(shape, np.bool_)
        if missing_only:
            at, rated = rated_pairs(block)
            positions = position_of[rated]
            is_there = positions >= 0
            is_missing[at[is_there], positions[is_there]] = False
        at, among = np.nonzero(is_missing)
        users = block[at]
        items = columns[among]
        predicted = checked_predictions(model, users, items)
        predicted = clip_to_range(predicted, fitted.training)
        return pl.DataFrame(
            [
                ratings.users.take(users),
                ratings.items.take(items),
                pl.Series("prediction", predicted),
            ]
        )

    # Without users there is still one frame, which has the columns.
    starts = range(0, max(1, len(rows)), size)
    return (frame(rows[start : start + size]) for start in starts)


def _distinct(ids: Ids, queries: IdsLike | None) -> Indices:
    """Return the distinct indices of ids in the order of the queries; by default all indices."""
    if queries is None:
        return np.arange(len(ids))
    indices = ids.index(listed(queries))
    return np.array([*dict.fromkeys(indices.tolist())], np.int64)


def explained(
    model: Model,
    ratings: Ratings,
    fitted: Ratings,
    user: int | str,
    item: int | str,
    n: int | None,
    titles: pl.Series | None,
) -> pl.DataFrame:
    """Return the frame of `Recommender.explain`; `fitted` has the training ratings."""
    if n is not None:
        check_n(n)
    user_index = int(ratings.users.index([user])[0])
    item_indices = ratings.items.index([item])
    history = user_history(model, ratings, user_index)
    (explanation,) = user_contributions(model, [history], [item_indices], fitted)
    scores = model.scores(np.array([user_index]))[0]
    abilities.check_sum(model, explanation, float(scores[item_indices[0]]))
    rows = pl.concat(
        [
            pl.DataFrame(
                {
                    "part": ["item"] * len(history.indices),
                    "item": history.indices,
                    "rating": history.values,
                    "contribution": explanation.terms[0].astype(np.float64),
                }
            ),
            _feature_shares(explanation, fitted),
        ],
        how="diagonal_relaxed",
    )
    size = pl.col("contribution").abs()
    rows = rows.sort(size, descending=True, maintain_order=True)
    totals = {"base": explanation.base[0]}
    if explanation.popularity is not None:
        totals["popularity"] = explanation.popularity[0]
    frames = [_parts(totals), rows[:n]]
    if n is not None and n < len(rows):
        # The contributions that are listed must add up to the score.
        remainder = rows["contribution"][n:].sum()
        frames.append(_parts({"others": remainder}))
    frame = pl.concat(frames, how="diagonal_relaxed")
    at = frame["item"]
    frame = frame.with_columns(
        ratings.items.values.gather(at).alias("item"),
        pl.col("contribution").cast(pl.Float32),
    )
    columns = ["part", "item", "contribution"]
    if not ratings.implicit:
        columns.insert(2, "rating")
    if "feature" in rows["part"]:
        columns.insert(-1, "feature")
    frame = frame.select(columns)
    if titles is None:
        return frame
    return frame.with_columns(titles.gather(at).alias("title"))


def _parts(contributions: Mapping[str, Any]) -> pl.DataFrame:
    """Return rows of an explanation that are not of a rating or a feature."""
    numbers = [float(number) for number in contributions.values()]
    return pl.DataFrame({"part": [*contributions], "contribution": numbers})


def _feature_shares(explanation: Explanation, fitted: Ratings) -> pl.DataFrame:
    """Return the features that contribute to a score, and their contributions."""
    names: list[str] = []
    shares: list[float] = []
    for prefix, of_side, features in (
        ("", explanation.item_features, fitted.item_features),
        ("user: ", explanation.user_features, fitted.user_features),
    ):
        if of_side is not None:
            labels: Sequence[str] = cast(Any, features).names
            for position in np.flatnonzero(of_side[0]).tolist():
                names.append(f"{prefix}{labels[position]}")
                shares.append(float(of_side[0, position]))
    parts = ["feature"] * len(names)
    schema = {"part": pl.String, "feature": pl.String, "contribution": pl.Float64}
    return pl.DataFrame([parts, names, shares], schema=schema)


def user_history(model: Model, ratings: Ratings, user: int) -> Histories:
    """Return the ratings of a user, and the features of the user if the model uses any."""
    positions = slice(ratings.indptr[user], ratings.indptr[user + 1])
    rated, values = ratings.indices[positions], ratings.values_at(positions)
    times = None if ratings.seconds is None else ratings.seconds[positions]
    events = features = None
    if ratings.events is not None:
        events = ratings.events.of_users(np.array([user]))
    if model.uses_features:
        features = csr_rows(ratings.user_features, np.array([user]))
    rule = ratings.rule
    return Histories(
        np.array([0, len(rated)]),
        rated,
        values,
        times,
        features,
        events,
        rule,
        zeros_arrays(zeros_of(events, (1, ratings.n_items), rule)),
    )


def user_contributions(
    model: Model,
    histories: Sequence[Histories],
    lists: Sequence[Indices],
    fitted: Ratings,
) -> list[Explanation]:
    """Return the scores of a list of items for each user as sums over the history of the user.

    `fitted` has the training ratings.

    Raises
    ------
    DataError
        If the scores of the model are not such sums.
    """
    # A check of the protocol would take longer than the contributions of many models.
    if not hasattr(model, "contributions"):
        raise abilities.unsupported(model, abilities.Explains, "explain its scores")
    has_features = histories[0].features is not None or fitted.item_features is not None
    described = fitted if model.uses_features and has_features else None
    # Some models solve for several users in the time of one.
    of_lists = getattr(model, "contributions_of_lists", None)
    if of_lists is not None:
        return cast("list[Explanation]", of_lists(histories, lists, described))
    return [
        abilities.contributions_of(model, history, items, described)
        for history, items in zip(histories, lists, strict=True)
    ]


def ranked(
    top: TopN,
    labels: pl.Series,
    answers: Ids,
    name: str | None = None,
    *,
    titles: pl.Series | None = None,
    new: Mask | None = None,
    chances: Floats | None = None,
) -> pl.DataFrame:
    """Return a data frame of the best items (or users) among `answers`.

    `labels` is a column with the ids of the queries. The column of answers is called `name`, by
    default after their kind. `titles` and `new` are additional columns, as
    are the `chances` of items, and the source of each item in a list, if these differ.
    """
    if len(labels) == 1:  # faster for a single list
        queries = labels.new_from_index(0, len(top))
    else:
        queries = labels[top.rows]
    columns = [
        queries,
        answers.take(top.items).alias(name or answers.kind),
        pl.Series("rank", top.ranks),
        pl.Series("score", top.scores),
    ]
    if chances is not None:
        columns.append(pl.Series("chance", chances, nan_to_null=True))
    if titles is not None:
        columns.append(titles[top.items].alias("title"))
    if new is not None:
        columns.append(pl.Series("new", new[top.items]))
    if top.sources is not None:
        columns.append(pl.Series("source", SOURCES).gather(top.sources))
    return pl.DataFrame(columns)


def similarity(
    model: Model,
    side: str,
    counts: NDArray[np.int64],
) -> Scorer:
    """Return a scorer of similarities of items (or users), given the number of ratings of each.

    Cosines are multiplied by the share of a vector that is determined by ratings and features.

    Raises
    ------
    DataError
        If the model has no vectors of items (or users).
    """
    if side == "item" and isinstance(model, abilities.HasItemSimilarity):
        confidence = counts / (counts + _SUPPORT)
        return model.item_similarity(confidence.astype(np.float32))
    ability: Any = abilities.HasUserVectors
    if side == "item":
        ability = abilities.HasItemVectors | abilities.HasItemSimilarity
    if not isinstance(model, ability):
        raise abilities.unsupported(model, ability, f"find similar {side}s")
    vectors = abilities.vectors_of(model, side)
    reliability: Floats = np.zeros(len(counts), np.float32)
    if isinstance(model, abilities.KnowsFeatures) and model.knows(side):
        vectors, reliability = model.comparable(side)
    confidence = (counts + _SUPPORT * reliability) / (counts + _SUPPORT)
    return Cosine(vectors, confidence=confidence.astype(np.float32))


def followers(model: Model) -> Scorer:
    """Return a scorer of what comes next after each item alone.

    Raises
    ------
    DataError
        If the order of a history does not count in the model.
    """
    if not (model.uses_order and isinstance(model, abilities.FoldsInUsers)):
        raise DataError(
            f"The {model.name} model does not know what comes next after an item; fit next, or a "
            "blend with it (--model next)."
        )
    items = np.arange(model.n_items, dtype=np.int32)
    indptr = np.arange(model.n_items + 1)
    return model.with_users(Histories(indptr, items, np.ones(len(items), np.float32)))


def text_similarity(ratings: Ratings, texts: Sequence[str]) -> Cosine:
    """Return a scorer of similarities of items to texts.

    Similarities are cosines in the latent semantic space of the items' own texts, which is kept for
    further queries.

    Raises
    ------
    DataError
        If the features of the items include no texts, or these contain no word of the given texts.
    """
    # Only texts need SciPy and scikit-learn; loading and recommending do not.
    from scipy import sparse

    from recsys.lsi.queries import check_words

    features: FeatureBlocks | None = getattr(ratings, "item_features", None)
    spaces = () if features is None else features.texts
    if not spaces:
        raise DataError(
            "Texts are compared with the texts of items, and this model has none; fit a model that "
            "uses features, such as als, to with_features(ratings) with an item table that has a "
            "column of texts, such as descriptions."
        )
    words = [space.block.encode(texts) for space in spaces]
    queries = []
    for space, encoded in zip(spaces, words, strict=True):
        queries.append(space.block.scale * (encoded.rows @ space.components.T))
    unknown = []  # in each text, the words that no column has
    unknown_of_columns = [encoded.unknown for encoded in words]
    for first, *others in zip(*unknown_of_columns, strict=True):
        in_all = [word for word in first if all(word in row for row in others)]
        unknown.append(in_all)
    rows = sparse.hstack([encoded.rows for encoded in words], format="csr")
    check_words(unknown, np.diff(rows.indptr) == 0)
    vectors = np.hstack([space.vectors for space in spaces])
    of_texts = np.hstack(queries)
    return Cosine(vectors.astype(np.float32), of_texts.astype(np.float32))
