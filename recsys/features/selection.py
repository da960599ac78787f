"""Selection of features: the columns of tables that models use, and the encoding of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from lowrank.completion.als import rough_vectors
from lowrank.completion.cold_start import fit_cold_map
from lowrank.kernels import csr_arrays
from recsys.data.features import Features
from recsys.data.ids import Ids
from recsys.data.kinds import FeatureRequest
from recsys.data.ratings import Ratings
from recsys.errors import DataError, check_choice, check_flags
from recsys.features.blocks import TextBlock
from recsys.features.encoder import FeatureEncoder, Texts
from recsys.messages import absent

_FACTORS = 8  # of the ratings, which texts predict for held-out items
_LEAST_GAIN = 1e-4  # relative decrease of the error for which vectors are worth it
_FOLDS = 5  # one is held out; with few items two, one after the other
_FEW = 5_000


def with_features(
    ratings: Ratings,
    columns: Sequence[str] | None = None,
    *,
    texts: Texts | Literal["auto"] = "auto",
    unrated: bool = False,
    random_state: int = 0,
) -> Ratings:
    """Return ratings with the features of their tables, for the models that use them.

    Parameters
    ----------
    ratings : Ratings
    columns : sequence of str, optional
        Columns of the tables of items and users; a name selects from both. By default all except
        titles.
    texts : {"auto", "terms", "vectors"}
        Weighted words, or vectors from latent semantic indexing; "auto" chooses the form that
        better predicts the factors of held-out items, or users, in a rough decomposition of the
        ratings.
    unrated : bool
        Add items and users that are in the tables but have no ratings, so that models know them by
        their features.
    random_state : int
        Seed of the decomposition of texts.

    Raises
    ------
    DataError
        If there are no tables, or neither table has a requested column.

    Examples
    --------
    >>> import polars as pl
    >>> films = pl.DataFrame({"item": [1, 2, 3], "genres": [["War"], ["War", "Drama"], ["Drama"]]})
    >>> pairs = pl.DataFrame({"user": [7, 7, 8], "item": [1, 2, 3]})
    >>> ratings = with_features(Ratings.from_frame(pairs, item_table=films))
    >>> ratings.item_features.names
    ('genres = Drama', 'genres = War')
    """
    tables = [(axis.table, axis.ids) for axis in ratings.axes if axis.table is not None]
    # In messages, columns of items come first.
    all_columns = dict.fromkeys(
        name for table, _ in reversed(tables) for name in table.kinds
    )
    if not all_columns:
        raise DataError(
            "There are no tables of items or users, so there are no features."
        )
    for name in columns or ():
        if name not in all_columns:
            raise DataError(absent("column", name, "items or users", all_columns))
    check_choice("texts", texts, ("auto", *get_args(Texts)))
    names = None if columns is None else tuple(columns)
    request = FeatureRequest(names, texts, unrated, random_state)
    encoders = {
        table.kind: _encoder(ratings, table, ids, request)
        for table, ids in tables
        if columns is None or not table.kinds.keys().isdisjoint(columns)
    }
    for table, ids in tables:
        if unrated and table.kind in encoders and encoders[table.kind].blocks:
            ratings = with_ids(ratings, ids, table)
    axes = []
    for axis in ratings.axes:
        encoder = encoders.get(axis.ids.kind)
        features = None
        if encoder is not None and encoder.blocks and axis.table is not None:
            features = encoder.transform(axis.table, axis.ids)
        axes.append(replace(axis, features=features))
    return ratings.with_axes(*axes, feature_request=request)


def _encoder(
    ratings: Ratings,
    table: Features,
    ids: Ids,
    request: FeatureRequest,
) -> FeatureEncoder:
    """Return the encoder of a table, with the form of texts that tells more."""
    columns = request.columns
    if columns is not None:
        columns = tuple(name for name in columns if name in table.kinds)
    words = FeatureEncoder.fit(table, ids, columns)
    has_texts = any(isinstance(block, TextBlock) for block in words.blocks)
    if request.texts == "terms" or not has_texts:
        return words
    return _with_better_texts(words, ratings, table, request)


def with_usual_features(
    ratings: Ratings,
    features: bool | Sequence[str],
    *,
    unrated: bool,
) -> Ratings:
    """Return ratings with the features of their tables, if they have tables and no features yet.

    `features` is False for none, or has the columns to use; `unrated` as in `with_features`.

    Raises
    ------
    DataError
        As `with_features`, if columns are named.
    """
    has_tables = ratings.item_table is not None or ratings.user_table is not None
    has_features = (
        ratings.item_features is not None or ratings.user_features is not None
    )
    if isinstance(features, str):
        check_flags(features=features)
    if features is False or has_features or ratings.feature_request is not None:
        return ratings
    if features is True:
        return with_features(ratings, unrated=unrated) if has_tables else ratings
    return with_features(ratings, features, unrated=unrated)


def _with_better_texts(
    terms: FeatureEncoder,
    ratings: Ratings,
    table: Features,
    request: FeatureRequest,
) -> FeatureEncoder:
    """Return the encoder that predicts held-out items (or users) better, with a remark.

    If vectors are requested, they are not compared with words.
    """
    X = ratings.matrix
    ids = ratings.items
    if table.kind == "user":
        X = X.T.tocsr()
        ids = ratings.users
    vectors = terms.with_vectors(table, ids, request.random_state)
    if request.texts == "vectors":
        return vectors
    rows, weight = rough_vectors(X, _FACTORS)
    counts = np.bincount(X.indices, minlength=X.shape[1])
    fold = np.random.default_rng(0).integers(0, _FOLDS, len(ids))
    folds = range(2 if len(ids) < _FEW else 1)
    if not len(weight) or any(not counts[fold != held].any() for held in folds):
        return terms
    errors = np.zeros(2)
    total = 0.0
    for number, encoder in enumerate((terms, vectors)):
        features = encoder.transform(table, ids)
        for held in folds:
            train_counts = np.where(fold == held, 0, counts)
            cold_map = fit_cold_map(rows, train_counts, features)
            off = rows - cold_map.vectors(csr_arrays(features.matrix)).mean
            row_weights, at = np.sqrt(counts[fold == held]), fold == held
            errors[number] += row_weights @ (off[at].astype(np.float64) ** 2 @ weight)
            mean = np.average(rows, axis=0, weights=np.sqrt(train_counts))
            total += row_weights @ ((rows[at] - mean) ** 2 @ weight) / 2
    # Rounding, which differs between machines, does not decide between equal errors.
    chosen = vectors if errors[1] < (1 - _LEAST_GAIN) * errors[0] else terms
    shares = [
        f"{1 - error / total:.1%}" if error < total else "nothing" for error in errors
    ]
    remark = f"words explain {shares[0]} of held-out {table.kind}s, vectors {shares[1]}"
    blocks = (
        replace(block, remark=remark) if isinstance(block, TextBlock) else block
        for block in chosen.blocks
    )
    return replace(chosen, blocks=tuple(blocks))


def with_ids(
    ratings: Ratings,
    ids: Ids,
    table: Features,
) -> Ratings:
    """Return the same ratings, with the items (or users) of a table added to the given ids."""
    wider = ids.union(
        ids.like(table.frame[table.kind]).drop_nulls()
    )  # "x" is not an integer
    if wider is ids:
        return ratings
    if table.kind == "item":
        return ratings.renumbered(ratings.users, wider)
    return ratings.renumbered(wider, ratings.items)
