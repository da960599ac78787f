"""Catalogues: tables of the items that may be recommended, which change while a model stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from recsys.data.columns import Request
from recsys.data.features import Features
from recsys.data.ratings import Ratings
from recsys.readers import TableSource, read_table

_REMEMBERED = ("item", "encoding")


def read_catalogue(
    source: TableSource,
    ratings: Ratings,
    reading: Mapping[str, Any],
    earlier: Features | None = None,
    *,
    of_new: bool = False,
) -> tuple[Features, str]:
    """Return the catalogue in a file, a database or a frame, and a remark on it.

    Columns that the table of the ratings has, too, get the same types, if they can. Titles and
    the columns of features must have the type that they had, and be there if an `earlier`
    catalogue has them; other columns may change.

    Parameters
    ----------
    source : path, address or frame
    ratings : Ratings
        Ratings of the model, whose items the catalogue has.
    reading : mapping
        Options with which the ratings were read.
    earlier : Features, optional
    of_new : bool
        Whether all items may be new.

    Raises
    ------
    DataError
        If the source cannot be read, has none of the items, or lacks titles or a column of
        features that it had, or one of them has values of another type.
    """
    # The catalogue is read as the table of the fit was: its ids may be of the same column.
    options = {name: reading[name] for name in _REMEMBERED if name in reading}
    request = Request.from_options(options, given=())
    table, remark = read_table(source, ratings.items, request, of_new=of_new)
    before = ratings.item_table if earlier is None else earlier
    if before is not None:
        features = ratings.item_features
        needed = set() if features is None else {*features.groups}
        needed.add(before.title or "")
        table = table.continuing(before, needed, whole=earlier is not None)
    return replace(table, is_catalogue=True), remark
