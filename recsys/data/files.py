"""Files of one table: their rows, read one by one, as one table."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import polars as pl

from recsys.data.ids import Ids, Spot
from recsys.data.rows import SHOWN, BadRows, Rows
from recsys.errors import DataError

_MOST_LEVELS = 256  # of codes of one byte


def joined(parts: Sequence[tuple[str, Rows]]) -> Rows:
    """Return the rows of several files, which are named, as one table.

    Raises
    ------
    DataError
        If not all files have the same roles.
    """
    first_name, first = parts[0]
    every = [rows for _, rows in parts]
    for name, rows in parts:
        if odd := sorted({*rows.columns, *rows.arrays} ^ {*first.columns, *first.arrays}):
            is_first = odd[0] in first.columns or odd[0] in first.arrays
            has, lacks = (first_name, name) if is_first else (name, first_name)
            raise DataError(
                f"{has} has a {odd[0]} column and {lacks} has none; read together, all files need "
                "the same ones."
            )
    if any(rows.levels is not first.levels for rows in every):
        _unite_levels(every)
    found = Rows({}, first.layout, bad=BadRows(first.bad.limit, sum(r.bad.count for r in every)))
    found.bad.first = [
        (Spot((part, *spot.order), spot.text), problem)
        for part, rows in enumerate(every)
        for spot, problem in rows.bad.first
    ][:SHOWN]
    found.levels, found.in_seconds = first.levels, all(rows.in_seconds for rows in every)
    ends = list(accumulate(len((r.arrays or r.columns)["item"]) for r in every))

    def place(row: int) -> Spot:
        part = bisect_right(ends, row)
        spot = every[part].place(row - (ends[part - 1] if part else 0))
        return Spot((part, *spot.order), spot.text)

    found.place = place
    kinds = [
        (r.in_seconds, {k: s.dtype.is_integer() for k, s in r.distinct.items()}) for r in every
    ]
    if all(kind == kinds[0] for kind in kinds) and all(rows.arrays for rows in every):
        for role in tuple(first.arrays):
            found.arrays[role] = _united(every, role, found.distinct)
        return found
    for rows in every:
        if rows.spread().in_seconds and not found.in_seconds:  # dates among numbers: as dates again
            rows.columns["timestamp"] = pl.from_epoch(rows.columns["timestamp"], "s")
    for role in tuple(first.columns):
        found.columns[role] = concatenated([rows.columns.pop(role) for rows in every])
    idle = [rows.idle_users for rows in every if rows.idle_users is not None]
    found.idle_users = concatenated(idle) if idle else None
    return found


def _united(parts: list[Rows], role: str, distinct: dict[str, pl.Series]) -> npt.NDArray[np.int32]:
    """Return arrays of several files as one, of ids as places among `distinct` ones of all."""
    if role in parts[0].distinct:
        known = [rows.distinct[role] for rows in parts]
        whole = concatenated(known)
        if is_text := isinstance(whole.dtype, pl.Categorical):
            whole = whole.cast(pl.String)
        ids = Ids(whole.unique(maintain_order=True), role, sort=False)
        for rows, each in zip(parts, known, strict=True):
            rows.arrays[role] = ids.find(each).astype(np.int32)[rows.arrays[role]]
        of_texts = pl.Categorical(pl.Categories.random())
        distinct[role] = ids.values.cast(of_texts) if is_text else ids.values
    return np.concatenate([rows.arrays.pop(role) for rows in parts])


def _unite_levels(parts: list[Rows]) -> None:
    """Give the codes of ratings of several files the same levels; decode them if that fails."""
    tables = [rows.levels for rows in parts if rows.levels is not None]
    levels = np.unique(np.concatenate(tables)) if tables else np.empty(0, np.float32)
    for rows in parts:
        if len(tables) < len(parts) or len(levels) > _MOST_LEVELS:
            rows.decode()
        elif rows.levels is not None:
            places = np.searchsorted(levels, rows.levels).astype(np.uint8)
            if rows.arrays:
                rows.arrays["rating"] = places[rows.arrays["rating"]]
            else:
                rows.columns["rating"] = pl.Series(places[rows.columns["rating"].to_numpy()])
            rows.levels = levels


def concatenated(series: list[pl.Series]) -> pl.Series:
    """Return columns below each other: as numbers if all are, else as texts."""
    types = {each.dtype for each in series}
    if len(types) > 1 and all(isinstance(each, pl.Categorical) for each in types):
        shared = pl.Categorical(pl.Categories.random())
        return pl.concat([each.cast(pl.String).cast(shared) for each in series])
    if len(types) > 1:
        target: type[pl.DataType] = pl.String
        if all(each.is_integer() for each in types):
            target = pl.Int64
        elif all(each.is_numeric() for each in types):
            target = pl.Float64
        series = [each.cast(target) for each in series]
    return pl.concat(series)
