"""Changes of the ratings of a model: new ratings, a time window, and users to forget."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import msgspec
import numpy as np
import numpy.typing as npt

from recsys.data.csr import Values, in_common
from recsys.data.features import Features
from recsys.data.ids import Ids, IdsLike
from recsys.data.ratings import Ratings, has_items, has_ratings, restricted, table_of
from recsys.data.times import duration
from recsys.errors import DataError
from recsys.models.base import Indices

if TYPE_CHECKING:
    from lowrank.completion.design import GroupedFeatures
    from recsys.data.encoder import FeatureEncoder

_GRADES = 20  # maximum number of distinct grades; more values suggest an open range
_KEYS = ("user", "users")  # in the logs of `recsys serve`
_LOGS = (".jsonl", ".ndjson", ".json", ".log")
_GROWTH = 0.02  # relative growth of an item's ratings after which its vector is recomputed


@dataclass(frozen=True)
class Change:
    """Ratings before and after an update, and their differences.

    Attributes
    ----------
    before, after : Ratings
    users, items : int64 ndarrays of shape (before.n_users,) and (before.n_items,)
        New index of each old user and item; -1 if it was removed.
    changed_users, changed_items : int64 ndarrays
        New indices, in increasing order, of users and items whose ratings differ.
    touches : int64 ndarray of shape (n_changed_items,)
        Number of added and removed ratings of each changed item.
    n_added, n_replaced, n_removed : int
        Numbers of ratings. Replaced or summed ratings are also included in `n_added`.
    """

    before: Ratings
    after: Ratings
    users: Indices
    items: Indices
    changed_users: Indices
    changed_items: Indices
    touches: Indices
    n_added: int
    n_replaced: int
    n_removed: int

    @property
    def n_new(self) -> tuple[int, int]:
        """Numbers of new users and new items."""
        known = (self.users >= 0).sum(), (self.items >= 0).sum()
        return self.after.n_users - int(known[0]), self.after.n_items - int(known[1])

    def of_all(self) -> Change:
        """Return the change as one of all users and items."""
        counts = np.bincount(self.after.indices, minlength=self.after.n_items)
        users, items = (np.arange(n) for n in self.after.shape)
        return replace(self, changed_users=users, changed_items=items, touches=counts)

    @cached_property
    def outdated(self) -> Indices:
        """Items to recompute: new items, and those whose ratings have grown by more than 2%.

        Over many small updates, an item is recomputed once per such growth: each time the logarithm
        of its number of ratings passes a multiple of `_GROWTH`.
        """
        counts = np.bincount(self.after.indices, minlength=self.after.n_items)
        counts = counts[self.changed_items].astype(np.float64)
        earlier = np.maximum(counts - self.touches, 0)
        steps = [np.floor(np.log1p(each) / np.log1p(_GROWTH)) for each in (earlier, counts)]
        grown = (steps[0] != steps[1]) | (self.touches >= _GROWTH * counts)
        return np.asarray(self.changed_items[grown])


def check_scale(new: Ratings, old: Ratings, training: Mapping[str, Any]) -> None:
    """Check that new ratings are of the same kind as the old ones, and that grades are in range.

    `training` is the summary of the fit, which has the range of the grades.

    Raises
    ------
    DataError
    """
    if old.implicit != new.implicit:
        kinds = ["implicit" if each.implicit else "explicit" for each in (old, new)]
        raise DataError(
            f"The new ratings must be {kinds[0]}, as those of the model are; got {kinds[1]} ones."
        )
    low, high = training["rating_min"], training["rating_max"]
    if new.implicit or low is None:
        return
    values = new.values
    outside = np.flatnonzero((values < low) | (values > high))
    if len(outside) and has_grades(old):
        user, item = new.user_index_of_nonzeros()[outside[0]], new.indices[outside[0]]
        raise DataError(
            f"Rating {values[outside[0]]:g} of item {new.items.values[int(item)]!r} by "
            f"user {new.users.values[int(user)]!r} is outside of the range of the model's "
            f"ratings, {low:g} to {high:g}; fit to all ratings if the scale is wider."
        )


def check_range(values: npt.NDArray[Any], known: Ratings) -> None:
    """Check that grades of new users or items are in the range of the known grades.

    Raises
    ------
    DataError
    """
    levels = known.levels
    if known.implicit or levels is None or len(levels) > _GRADES:
        return
    outside = values[(values < levels[0]) | (values > levels[-1])]
    if len(outside):
        raise DataError(
            f"Rating {outside[0]:g} is outside of the range of the model's ratings, "
            f"{levels[0]:g} to {levels[-1]:g}."
        )


def has_grades(ratings: Ratings) -> bool:
    """Return whether ratings are grades, with at most 20 distinct values."""
    return not ratings.implicit and len(ratings.distribution()[0]) <= _GRADES


def change_of(
    old: Ratings,
    new: Ratings | None = None,
    *,
    window: str | float | None = None,
    forget: IdsLike | None = None,
) -> Change:
    """Return the change of the ratings by an update.

    A new rating of a pair replaces the old one; weights of interactions are added. A new rating
    with the same value and time as the old one is ignored. Timestamps are kept if both have them.
    Tables are merged: all columns are kept, and new rows replace old ones.

    Ratings older than the `window`, such as "180d", before the last one are removed, and so are
    users and items without remaining ratings, unless they have features. The users to `forget` are
    removed with their ratings and their rows of the table.

    Raises
    ------
    DataError
        If a window is given without timestamps, or the types of ids do not match.
    UnknownIdError
        If a user to forget is unknown.
    """
    length = 0 if window is None else int(duration(window, "window"))
    if new is not None and not adds_up(old, new):
        new = _news(old, new)
    kept, removed = old, np.zeros(0, np.int64)
    lost = np.zeros(old.n_users, np.bool_)
    if forget is not None:
        kept, new, lost = _forgotten(old, new, forget)
        removed = np.flatnonzero(lost[old.user_index_of_nonzeros()])
    if window is not None:
        times = [each.seconds for each in (old, new) if each is not None]
        if old.seconds is None or any(each is None for each in times):
            which = "the model's" if old.seconds is None else "the new"
            raise DataError(f"A window needs timestamps, and {which} ratings have none.")
        last = max(int(each.max()) for each in times if each is not None and len(each))
        first = last - length
        removed = np.union1d(removed, np.flatnonzero(old.seconds < first))
        if new is not None and new.seconds is not None and (new.seconds < first).any():
            new = _rated(new, new.seconds >= first)
    items_lost = np.zeros(old.n_items, np.bool_)
    if len(removed):  # with features, users and items without ratings stay
        mask = np.ones(kept.n_ratings, np.bool_)
        mask[removed] = False
        fewer = kept.take(mask)
        if kept.user_features is None:
            lost = lost | (has_ratings(kept) & ~has_ratings(fewer))
        if kept.item_features is None:
            items_lost = has_items(kept) & ~has_items(fewer)
        kept = fewer
    after, n_replaced = restricted(kept, ~lost, ~items_lost), 0
    if new is not None:
        after, n_replaced = merge_ratings(after, new)
    return _compared(old, after, new, removed, n_replaced)


def _compared(
    old: Ratings, after: Ratings, new: Ratings | None, removed: Indices, n_replaced: int
) -> Change:
    """Return the change to `after`, given the positions of the removed ratings and the new ones."""
    users, items = after.users.find(old.users.values), after.items.find(old.items.values)
    touches = np.zeros(after.n_items, np.int64)
    of_items = np.bincount(old.indices[removed], minlength=old.n_items)
    touches[items[items >= 0]] = of_items[items >= 0]
    fewer = np.unique(np.searchsorted(old.indptr, removed, side="right") - 1)
    changed = [users[fewer], np.setdiff1d(np.arange(after.n_users), users)]
    if new is not None:
        changed.append(after.users.find(new.users.values)[has_ratings(new)])
        counts = np.bincount(new.indices, minlength=new.n_items)
        touches[after.items.find(new.items.values)] += counts
    everyone = np.unique(np.concatenate(changed))
    fresh = np.setdiff1d(np.arange(after.n_items), items)
    touched = np.union1d(np.flatnonzero(touches), fresh)
    n_added = 0 if new is None else new.n_ratings
    return Change(
        *(old, after, users, items, everyone[everyone >= 0], touched, touches[touched]),
        *(n_added, n_replaced, len(removed)),
    )


def adds_up(old: Ratings, new: Ratings) -> bool:
    """Return whether the values of repeated pairs are added up."""
    return old.implicit and (old.weighted or new.weighted)


def pairs_in_both(old: Ratings, new: Ratings) -> tuple[Indices, Indices]:
    """Return the places, in the old and in the new ratings, of the pairs that both have."""
    users = old.users.find(new.users.values)[new.user_index_of_nonzeros()]
    items = old.items.find(new.items.values)[new.indices]
    pairs = np.flatnonzero((users >= 0) & (items >= 0))
    at, known = _located(old.indptr, old.indices, users[pairs], items[pairs])
    return at[known], pairs[known]


def _news(old: Ratings, new: Ratings) -> Ratings | None:
    """Return new ratings without those that are there already; None if all are."""
    at, pairs = pairs_in_both(old, new)
    same = old.values_at(at) == new.values_at(pairs)
    if old.seconds is not None and new.seconds is not None:
        same &= old.seconds[at] == new.seconds[pairs]
    kept = np.ones(new.n_ratings, np.bool_)
    kept[pairs[same]] = False
    return new if kept.all() else _rated(new, kept)


def _rated(ratings: Ratings, kept: npt.NDArray[np.bool_]) -> Ratings | None:
    """Return the kept ratings without idle users and items; None if no rating is left."""
    some = ratings.take(kept)
    rated = restricted(some, has_ratings(some), has_items(some))
    return replace(rated, source=ratings.source) if some.n_ratings else None


def _forgotten(
    old: Ratings, new: Ratings | None, users: IdsLike
) -> tuple[Ratings, Ratings | None, npt.NDArray[np.bool_]]:
    """Return both ratings without the given users' table rows, and a mask of them in `old`."""
    wanted, both = Ids(users, "user"), [each for each in (old, new) if each is not None]
    places = [wanted.find(each.users.values) for each in both]
    known = are_known(wanted, *both)
    if not known.all():
        old.users.index(wanted.values.filter(~known))  # raises an error that names the closest ids

    def without(ratings: Ratings) -> Ratings:
        if (table := ratings.user_table) is None:
            return ratings
        rest = table.frame.filter(wanted.find(table.frame["user"]) < 0)
        return replace(ratings, user_table=replace(table, frame=rest))

    if new is not None:
        kept = (places[1] < 0)[new.user_index_of_nonzeros()]
        new = _rated(without(new), kept)
    return without(old), new, places[0] >= 0


def are_known(users: Ids, *parts: Ratings) -> npt.NDArray[np.bool_]:
    """Return which users are in some of the ratings, or in their tables of users."""
    tables = [each.user_table.frame["user"] for each in parts if each.user_table is not None]
    places = [users.find(each) for each in (*(each.users.values for each in parts), *tables)]
    return np.isin(np.arange(len(users)), np.concatenate(places))


def merge_ratings(old: Ratings, new: Ratings) -> tuple[Ratings, int]:
    """Merge old and new ratings; return them and the number of old ones replaced or added to.

    For a pair in both, the new rating is used, except that weights of interactions are added.
    """
    users, items = _united(old.users, new.users), _united(old.items, new.items)
    adds = adds_up(old, new)
    own, others = (Values(each.data, each.levels) for each in (old, new))
    own, others = (Values(own.at()), Values(others.at())) if adds else in_common(own, others)
    counts = np.zeros(len(users), np.int64)
    counts[users.find(old.users.values)] = np.diff(old.indptr)
    indptr, indices = np.append(0, np.cumsum(counts)), old.indices
    if items is not old.items:
        indices = items.find(old.items.values)[indices].astype(np.int32)
    rows = users.find(new.users.values)[new.user_index_of_nonzeros()]
    columns = items.find(new.items.values)[new.indices].astype(np.int32)
    order = np.lexsort((columns, rows))
    rows, columns = rows[order], columns[order]
    at, there = _located(indptr, indices, rows, columns)

    def merged(earlier: Any, later: Any, both: np.ufunc) -> npt.NDArray[Any]:
        whole, later = earlier.astype(np.result_type(earlier, later)), later[order]
        whole[at[there]] = both(whole[at[there]], later[there]) if adds else later[there]
        return np.insert(whole, at[~there], later[~there])

    data, seconds = merged(own.data, others.data, np.add), None
    if old.seconds is not None and new.seconds is not None:
        seconds = merged(old.seconds, new.seconds, np.maximum)
    values = Values.of(data) if own.levels is None else Values(data, own.levels)
    tables: dict[str, Any] = {}
    for side, ids in (("user", users), ("item", items)):
        known, newer = (getattr(each, f"{side}_table") for each in (old, new))
        both = table_of(newer if known is None else known.updated(newer), ids)
        features, before = getattr(old, f"{side}_features"), getattr(old, f"{side}s")
        tables[f"{side}_features"] = encoded_rows(features, both, newer, before, ids)
        tables |= {f"{side}_table": both, f"{side}s": ids}
    if (source := new.source) is not None:
        source = replace(source, name=f"{source.name} and earlier ratings", options={})
    counts += np.bincount(rows[~there], minlength=len(users))
    fields: dict[str, Any] = {"indptr": np.append(0, np.cumsum(counts)), **tables}
    fields |= {"indices": np.insert(indices, at[~there], columns[~there]), "seconds": seconds}
    fields |= {"data": values.data, "levels": values.levels, "source": source}
    return replace(old, **fields, n_duplicates=0), int(there.sum())


def _located(
    indptr: npt.NDArray[np.int64], indices: npt.NDArray[np.int32], rows: Indices, columns: Any
) -> tuple[Indices, npt.NDArray[np.bool_]]:
    """Return positions of entries in CSR arrays (or insertion points), and a mask of those found.

    All entries are searched simultaneously, each by bisection of its row.
    """
    low, high = indptr[rows], indptr[rows + 1]
    ends = high.copy()
    while len(left := np.flatnonzero(low < high)):
        middle = (low[left] + high[left]) // 2
        below = indices[middle] < columns[left]
        low[left[below]] = middle[below] + 1
        high[left[~below]] = middle[~below]
    known = low < ends
    known[known] = indices[low[known]] == columns[known]
    return low, known


def _united(known: Ids, others: Ids) -> Ids:
    """Return the union of ids, in the type of the known ones."""
    theirs = known.like(others.values)
    if theirs.null_count():
        first = others.values.filter(theirs.is_null())[0]
        raise DataError(f"The model has integer {known.kind} ids; {first!r} cannot be among them.")
    return known.union(theirs)


def encoded_rows(
    features: GroupedFeatures | None,
    table: Features | None,
    new: Features | None,
    known: Ids,
    ids: Ids,
) -> GroupedFeatures | None:
    """Return features for all `ids`, encoding those that are new or have a new row."""
    encoder: FeatureEncoder | None = getattr(features, "encoder", None)
    if features is None or encoder is None or table is None:
        return None
    places = known.find(ids.values)
    fresh = places < 0
    if new is not None:
        fresh |= new.rows_of(ids) >= 0
    if not fresh.any():
        return features
    from scipy.sparse import vstack

    some = Ids(ids.values.filter(fresh), ids.kind)
    stacked = vstack([features.matrix, encoder.transform(table, some).matrix], format="csr")
    rows = places.copy()
    rows[fresh] = len(known) + np.arange(len(some))
    encoded: GroupedFeatures = replace(cast(Any, features), matrix=stacked[rows])
    return encoded


def users_in_log(
    path: str | Path, users: Collection[Any], column: str | None = None
) -> frozenset[str]:
    """Return which users a log of JSON lines names; arguments and errors as of `erase_users`."""
    with _log(path).open("rb") as stream:
        found = [named for _, _, named in _lines_of(stream, users, column)]
    return frozenset().union(*found)


def erase_users(path: str | Path, users: Collection[Any], column: str | None = None) -> int:
    """Remove the lines of users from a log of JSON lines, and return the number of lines.

    Lines are overwritten with spaces in place, so that a service can continue to append to the log,
    and no data of the users stay on the disk. `column` is the key of users, in addition to the keys
    that `recsys serve` writes.

    Raises
    ------
    DataError
        If the file is missing, or its name is not that of a JSON lines file.
    """
    erased = 0
    with _log(path).open("r+b") as stream:
        for place, line, _ in _lines_of(stream, users, column):
            stream.seek(place)
            stream.write(b" " * len(line.rstrip(b"\r\n")))
            stream.seek(place + len(line))
            erased += 1
        stream.flush()
        os.fsync(stream.fileno())
    return erased


def _log(path: str | Path) -> Path:
    file = Path(path)
    if not file.is_file():
        raise DataError(f"There is no log {file}.")
    if file.suffix.lower() not in _LOGS:
        raise DataError(f"{file} is not a log of JSON lines ({', '.join(_LOGS)}).")
    return file


def _lines_of(
    stream: BinaryIO, users: Collection[Any], column: str | None
) -> Iterator[tuple[int, bytes, set[str]]]:
    """Return the place of each line that names some users, the line, and these."""
    wanted = {str(each) for each in users}
    keys, place = (*_KEYS, column) if column else _KEYS, 0
    while line := stream.readline():
        try:
            record = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError:
            record = {}
        found = [record.get(key) for key in keys]
        named = [each for one in found for each in (one if isinstance(one, list) else [one])]
        if those := wanted.intersection(map(str, named)):
            yield place, line, those
        place += len(line)
