"""Predictions, imputed ratings and explanations as data frames, and similarities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lowrank.kernels import csr_arrays
from recsys.data.columns import of_roles
from recsys.data.frames import FrameLike, listed
from recsys.data.ids import Ids, IdsLike, query_series
from recsys.data.ratings import Ratings
from recsys.data.times import unix_seconds
from recsys.errors import DataError
from recsys.models import abilities
from recsys.models.base import FactorModel, Model
from recsys.models.baselines import Bias, Popular
from recsys.models.histories import Explanation, Histories
from recsys.models.parts import Floats, Indices
from recsys.models.registry import MODELS, model_class
from recsys.ranking.topn import Cosine, CsrPairs, Scorer, TopN, check_n
from recsys.storage import Saved

if TYPE_CHECKING:
    from recsys.data.encoder import FeatureBlocks

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
    model, ratings, times_of_pairs = fitted.model, fitted.ratings, {}
    if isinstance(pairs, Sequence):
        are_pairs = all(
            isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs
        )
        if not (pairs and are_pairs) or any(
            np.ndim(part) for part in pairs[0]
        ):  # two lists of ids
            raise DataError(
                "Pairs must be a frame with the columns user and item, or a list of (user, item) "
                "pairs."
            )
        sides = zip(("user", "item"), zip(*pairs, strict=True), strict=True)
        user, item = (query_series(ids, kind) for kind, ids in sides)
    else:
        frame = of_roles(pairs, ("user", "item"), ("timestamp",) * model.uses_times)
        user, item = frame["user"], frame["item"]
        if "timestamp" in frame.columns:
            times_of_pairs["times"] = unix_seconds(frame["timestamp"]).to_numpy()
    if cold_start == "error":
        users, items = ratings.users.index(user), ratings.items.index(item)
        predicted = model.predict(users, items, **times_of_pairs)
    else:
        users, items = ratings.users.find(user), ratings.items.find(item)
        predicted = _predict_cold(model, popular, users, items, **times_of_pairs)
    if model.predicts_ratings:
        predicted = clip_to_range(predicted, fitted.training)
    columns = [
        user.alias("user"),
        item.alias("item"),
        pl.Series("prediction", predicted),
    ]
    if std:
        if not isinstance(model, abilities.HasUncertainty):
            raise unsupported(
                model, abilities.HasUncertainty, "estimate its uncertainty"
            )
        is_known = (users >= 0) & (items >= 0)
        deviations = np.full(len(users), np.nan, dtype=np.float32)
        at = {name: times[is_known] for name, times in times_of_pairs.items()}
        deviations[is_known] = model.predict_std(users[is_known], items[is_known], **at)
        columns.append(pl.Series("std", deviations, nan_to_null=True))
    return pl.DataFrame(columns)


def imputed(
    fitted: Saved, users: IdsLike | None, items: IdsLike | None, *, missing_only: bool
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
    rows, columns = _distinct(ratings.users, users), _distinct(ratings.items, items)
    size = max(1, _BLOCK_PAIRS // max(1, len(columns)))
    position_of = np.full(ratings.n_items, -1)
    position_of[columns] = np.arange(len(columns))

    def frame(block: Indices) -> pl.DataFrame:
        is_missing = np.ones((len(block), len(columns)), dtype=np.bool_)
        if missing_only:
            at, rated = CsrPairs(ratings.indptr, ratings.indices)(block)
            has_column = position_of[rated] >= 0
            is_missing[at[has_column], position_of[rated[has_column]]] = False
        at, among = np.nonzero(is_missing)
        users, items = block[at], columns[among]
        predicted = clip_to_range(model.predict(users, items), fitted.training)
        ids = ratings.users.take(users), ratings.items.take(items)
        return pl.DataFrame([*ids, pl.Series("prediction", predicted)])

    starts = range(0, max(1, len(rows)), size)
    return (frame(rows[start : start + size]) for start in starts)


def _distinct(ids: Ids, queries: IdsLike | None) -> Indices:
    """Return the distinct indices of ids in the order of the queries; by default all indices."""
    if queries is None:
        return np.arange(len(ids))
    indices = ids.index(listed(queries))
    _, first = np.unique(indices, return_index=True)
    return indices[np.sort(first)]


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
    u, i = int(ratings.users.index([user])[0]), ratings.items.index([item])
    history, explanation = user_contributions(model, ratings, u, i, fitted)
    features, shares = _feature_shares(explanation, fitted)
    terms, none = (
        np.concatenate([explanation.terms[0], *shares]),
        [None] * len(features),
    )
    rows = pl.DataFrame(
        {
            "part": ["item"] * len(history.indices) + ["feature"] * len(features),
            "item": pl.Series([*history.indices, *none], dtype=pl.Int64),
            "rating": pl.Series([*history.values, *none], dtype=pl.Float32),
            "feature": pl.Series(
                [*[None] * len(history.indices), *features], dtype=pl.String
            ),
            "contribution": terms.astype(np.float64),
        }
    )
    order = np.argsort(-np.abs(terms), kind="stable")
    largest, smaller = order[:n], order[n:] if n is not None else order[:0]
    both = {"base": explanation.base, "popularity": explanation.popularity}
    sums = {name: float(share[0]) for name, share in both.items() if share is not None}
    remainder = {"part": ["others"], "contribution": [terms[smaller].sum(dtype=float)]}
    frames = [
        pl.DataFrame({"part": [*sums], "contribution": [*sums.values()]}),
        rows[largest],
    ]
    frames += [pl.DataFrame(remainder)] if len(smaller) else []
    frame = pl.concat(frames, how="diagonal_relaxed")
    item_indices, contribution = frame["item"], frame["contribution"].cast(pl.Float32)
    frame = frame.with_columns(
        ratings.items.values.gather(item_indices).alias("item"), contribution
    )
    columns = ["part", "item"]
    if not ratings.implicit:
        columns.append("rating")
    if features:
        columns.append("feature")
    selected = frame.select(*columns, "contribution")
    return (
        selected
        if titles is None
        else selected.with_columns(titles.gather(item_indices).alias("title"))
    )


def _feature_shares(
    explanation: Explanation, fitted: Ratings
) -> tuple[list[str], list[Floats]]:
    """Return the names of the features that contribute to a score, and their contributions."""
    named: list[str] = []
    shares: list[Floats] = []
    for side, prefix in (("item", ""), ("user", "user: ")):
        of_side = getattr(explanation, f"{side}_features")
        if of_side is not None:
            positions = np.flatnonzero(of_side[0])
            names = getattr(fitted, f"{side}_features").names
            named += [f"{prefix}{names[at]}" for at in positions]
            shares.append(of_side[0, positions])
    return named, shares


def user_contributions(
    model: Model, ratings: Ratings, user: int, items: Indices, fitted: Ratings
) -> tuple[Histories, Explanation]:
    """Return a user's history, and the scores of items as sums of contributions from it.

    `fitted` has the training ratings; `ratings` may instead belong to folded-in users.

    Raises
    ------
    DataError
        If the scores of the model are not such sums.
    """
    if not isinstance(model, abilities.Explains):
        raise unsupported(model, abilities.Explains, "explain its scores")
    positions = slice(ratings.indptr[user], ratings.indptr[user + 1])
    rated, values = ratings.indices[positions], ratings.values_at(positions)
    starts = np.array([0, len(rated)], dtype=np.int64)
    history = Histories(starts, rated, values)
    both = (ratings.user_features, [user]), (ratings.item_features, items)
    raters = None
    if model.uses_features and any(features is not None for features, _ in both):
        of_user, of_items = (
            None if features is None else csr_arrays(features.matrix[at])
            for features, at in both
        )
        history = replace(history, features=of_user)
        by_item = csr_arrays(fitted.matrix[:, items].T.tocsr())
        raters = Histories(*by_item, features=of_items)
    return history, model.contributions(history, items, raters)


def ranked(
    top: TopN,
    labels: pl.Series,
    answers: Ids,
    name: str | None = None,
    *,
    titles: pl.Series | None = None,
    new: NDArray[np.bool_] | None = None,
) -> pl.DataFrame:
    """Return a data frame of the best items (or users) among `answers`.

    `labels` is a column with the ids of the queries. The column of answers is called `name`, by
    default after their kind. `titles` and `new` are additional columns.
    """
    columns = [
        labels.new_from_index(0, len(top)) if len(labels) == 1 else labels[top.rows],
        answers.take(top.items).alias(name or answers.kind),
        pl.Series("rank", top.ranks),
        pl.Series("score", top.scores),
    ]
    if titles is not None:
        columns.append(titles[top.items].alias("title"))
    if new is not None:
        columns.append(pl.Series("new", new[top.items]))
    return pl.DataFrame(columns)


def similarity(model: Model, side: str, counts: NDArray[np.int64]) -> Scorer:
    """Return a scorer of similarities of items (or users), given the number of ratings of each.

    Cosines are multiplied by the share of a vector that is determined by ratings and features.

    Raises
    ------
    DataError
        If the model has no vectors of items (or users).
    """
    if side == "item" and isinstance(model, abilities.HasItemSimilarity):
        return model.item_similarity((counts / (counts + _SUPPORT)).astype(np.float32))
    if side == "user" and isinstance(model, abilities.HasUserVectors):
        vectors = model.user_vectors()
    elif side == "item" and isinstance(model, abilities.HasItemVectors):
        vectors = model.item_vectors()
    else:
        similar = abilities.HasItemVectors | abilities.HasItemSimilarity
        ability: Any = similar if side == "item" else abilities.HasUserVectors
        raise unsupported(model, ability, f"find similar {side}s")
    reliability: Floats = np.zeros(len(counts), np.float32)
    if isinstance(model, abilities.KnowsFeatures) and model.knows(side):
        vectors, reliability = model.comparable(side)
    confidence = (counts + _SUPPORT * reliability) / (counts + _SUPPORT)
    return Cosine(vectors, confidence=confidence.astype(np.float32))


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
    of_texts = [
        space.block.scale * (encoded.rows @ space.components.T)
        for space, encoded in zip(spaces, words, strict=True)
    ]
    unknown = [
        [word for word in first if all(word in text_rows for text_rows in other_texts)]
        for first, *other_texts in zip(
            *(text_rows.unknown for text_rows in words), strict=True
        )
    ]
    rows = sparse.hstack([text_rows.rows for text_rows in words], format="csr")
    check_words(unknown, np.diff(rows.indptr) == 0)
    vectors, queries = (
        np.hstack([space.vectors for space in spaces]),
        np.hstack(of_texts),
    )
    return Cosine(vectors.astype(np.float32), queries.astype(np.float32))


def unsupported(model: Model, ability: Any, action: str) -> DataError:
    """Return the error for a model that lacks an ability; it names the models that have it."""
    names = ", ".join(
        name for name in sorted(MODELS) if issubclass(model_class(name), ability)
    )
    return DataError(
        f"The {model.name} model cannot {action}; these models can: {names or 'none'}."
    )


def _predict_cold(
    model: Model,
    popular: Popular | None,
    users: Indices,
    items: Indices,
    **told: Indices,
) -> Floats:
    """Predict ratings of pairs in which -1 marks an unknown user or item.

    If one of them is unknown, `popular` predicts the damped mean of the item or, for an unknown
    item, the mean of all ratings. Without `popular`, the biases of `model` are used.
    """
    if popular is not None:
        means = popular.item_means[items]
        predicted: Floats = np.where(items >= 0, means, np.float32(popular.global_mean))
    elif isinstance(model, FactorModel | Bias):
        user_bias: Floats = np.where(users >= 0, model.user_bias[users], np.float32(0))
        predicted = user_bias + model.global_mean
        predicted += np.where(items >= 0, model.item_bias[items], np.float32(0))
    else:
        raise DataError(
            f"The {model.name} model has no biases; use cold_start='popular' instead."
        )
    is_known = (users >= 0) & (items >= 0)
    at = {name: times[is_known] for name, times in told.items()}
    predicted[is_known] = model.predict(users[is_known], items[is_known], **at)
    return predicted
