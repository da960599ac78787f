"""Cold start: users and items without ratings, known by their features; similarity by texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from recsys.data.features import Features, TableLike
from recsys.data.ids import Ids
from recsys.data.ratings import Ratings, table_of
from recsys.errors import DataError
from recsys.models import abilities
from recsys.models.base import Floats, Model
from recsys.predictions import unsupported
from recsys.topn import Cosine, Scorer

if TYPE_CHECKING:
    from recsys.data.encoder import FeatureBlocks, FeatureEncoder

FeaturesLike: TypeAlias = "str | Mapping[str, Any]"
"""Features of a user: ``"age=30, job=student"``, or a mapping such as ``{"age": 30}``."""

_SUPPORT = 10  # ratings at which a similarity counts half


def is_new(ratings: Ratings, rated: Ratings) -> npt.NDArray[np.bool_] | None:
    """Return which items nobody has rated, None if there is none, or if no features are known.

    `rated` has the ratings that the items were fitted to.
    """
    if ratings.item_features is None:
        return None
    found: npt.NDArray[np.bool_] = np.bincount(rated.indices, minlength=rated.n_items) == 0
    return found if found.any() else None


def described_user(values: FeaturesLike, model: Model, ratings: Ratings) -> FeatureBlocks:
    """Return the features of a user who is described in words.

    Raises
    ------
    DataError
        If the model knows no features of users, or not these, or a value is unknown.
    """
    if not model.uses_features:
        raise unsupported(model, abilities.KnowsFeatures, "use features of users")
    encoder: FeatureEncoder | None = getattr(ratings.user_features, "encoder", None)
    if encoder is None:
        raise DataError(
            f"The {model.name} model was fitted without features of users; fit it to ratings with "
            "a table of users (user_table, --user-table)."
        )
    return encoder.row(values, ratings.user_table)


def with_tables(
    model: Model,
    ratings: Ratings,
    item_table: TableLike | None,
    user_table: TableLike | None,
    *,
    learns: bool,
) -> tuple[Model, Ratings]:
    """Return a model and ratings with other tables; see `Recommender.with_tables`.

    The model `learns` of the items and users in them that it does not know.

    Raises
    ------
    DataError
    """
    for given, ids in ((item_table, ratings.items), (user_table, ratings.users)):
        table, name = table_of(given, ids), f"{ids.kind}_table"
        kept: Features | None = getattr(ratings, name)
        if table is None:
            continue
        if kept is not None and not (table.rows_of(ids) >= 0).any():  # new ones only
            table = kept.updated(table)
        changes: dict[str, Any] = {name: table}
        ratings = replace(ratings, **changes)
        if learns:
            model, ratings = extended(model, ratings, table)
    return model, ratings


def extended(model: Model, ratings: Ratings, table: Features) -> tuple[Model, Ratings]:
    """Return a model that also knows the new items, or users, of a table, by their features.

    What it knows already stays, bit for bit. The model is the same one where it has no features.
    """
    side = table.kind
    old: Ids = getattr(ratings, f"{side}s")
    features: FeatureBlocks | None = getattr(ratings, f"{side}_features")
    encoder: FeatureEncoder | None = getattr(features, "encoder", None)
    able = isinstance(model, abilities.KnowsFeatures) and model.knows(side)
    if features is None or encoder is None or not able:
        return model, ratings
    from scipy import sparse

    from recsys.data.encoder import with_ids  # few models have features

    wider = with_ids(ratings, old, table)
    ids: Ids = getattr(wider, f"{side}s")
    if len(ids) == len(old):
        return model, ratings
    new = Ids(ids.values.filter(pl.Series(old.find(ids.values) < 0)), side)
    order = np.argsort(ids.find(pl.concat([old.values, new.values])))
    blocks = encoder.transform(table, new)
    matrix = sparse.vstack([features.matrix, blocks.matrix], format="csr")[order]
    changed: dict[str, Any] = {f"{side}_features": replace(features, matrix=matrix)}
    return cast(Any, model).widened(side, order, blocks), replace(wider, **changed)


def item_similarity(model: Model, counts: npt.NDArray[np.int64]) -> Scorer:
    """Return the similarities of items, given the number of ratings of each.

    Raises
    ------
    DataError
        If the model has none.
    """
    if isinstance(model, abilities.HasItemSimilarity):
        return model.item_similarity((counts / (counts + _SUPPORT)).astype(np.float32))
    if not isinstance(model, abilities.HasItemVectors):
        similar = abilities.HasItemVectors | abilities.HasItemSimilarity
        raise unsupported(model, similar, "find similar items")
    return _cosine(model, "item", model.item_vectors(), counts)


def user_similarity(model: Model, counts: npt.NDArray[np.int64]) -> Cosine:
    """Return the similarities of users, given the number of ratings of each.

    Raises
    ------
    DataError
        If the model has none.
    """
    if not isinstance(model, abilities.HasUserVectors):
        raise unsupported(model, abilities.HasUserVectors, "find similar users")
    return _cosine(model, "user", model.user_vectors(), counts)


def _cosine(model: Model, side: str, vectors: Floats, counts: npt.NDArray[np.int64]) -> Cosine:
    """Return cosines, times the share of a vector that ratings and features tell."""
    told: Floats = np.zeros(len(counts), np.float32)
    if isinstance(model, abilities.KnowsFeatures) and model.knows(side):
        vectors, told = model.comparable(side)
    confidence = (counts + _SUPPORT * told) / (counts + _SUPPORT)
    return Cosine(vectors, confidence=confidence.astype(np.float32))


def text_similarity(ratings: Ratings, texts: Sequence[str]) -> Cosine:
    """Return the similarities of items to texts: cosines in the space of the items' own texts.

    The space is that of latent semantic indexing; the model keeps it for further texts.

    Raises
    ------
    DataError
        If the items have no texts among their features, or no word of the texts is in them.

    Warns
    -----
    UnknownTermWarning
        If some words are not.
    """
    # Texts need SciPy and scikit-learn; models load and recommend without.
    from scipy import sparse

    from recsys.lsi.queries import check_words

    features: FeatureBlocks | None = getattr(ratings, "item_features", None)
    spaces = () if features is None else features.texts
    if not spaces:
        raise DataError(
            "Texts are compared with the texts of items, and the model has none; fit one that uses "
            "features, such as als, to with_features(ratings), where the table of items has a "
            "column of texts, such as descriptions."
        )
    words = [space.block.encode(texts) for space in spaces]
    of_texts = [
        space.block.scale * (encoded.rows @ space.components.T)
        for space, encoded in zip(spaces, words, strict=True)
    ]
    unknown = [
        [word for word in first if all(word in each for each in others)]
        for first, *others in zip(*(each.unknown for each in words), strict=True)
    ]
    rows = sparse.hstack([each.rows for each in words], format="csr")
    check_words(unknown, np.diff(rows.indptr) == 0)
    vectors, queries = np.hstack([space.vectors for space in spaces]), np.hstack(of_texts)
    return Cosine(vectors.astype(np.float32), queries.astype(np.float32))
