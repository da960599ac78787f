"""Splits from separate data sets: pairs of files, saved splits and folds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple, get_args

import numpy as np

from recsys.data.arrays import Mask
from recsys.data.identity import (
    fingerprint as fingerprint,  # re-exported by the package
)
from recsys.data.ids import Ids
from recsys.data.new_ids import doubtful_ids
from recsys.data.ratings import Ratings, has_items, has_ratings
from recsys.data.split_parts import SPLIT_MANIFEST
from recsys.errors import DataError, check_choice
from recsys.evaluation.splits import (
    DESCRIPTIONS,
    PARAMETERS_OF,
    RatingsLike,
    Repeats,
    Split,
    has_pairs,
    without_pairs_of,
)
from recsys.readers import as_ratings, read_ratings
from recsys.saving.arrays import as_path
from recsys.saving.splits import read_split_manifest, read_undisturbed, split_files
from recsys.saving.splits import save_split as save_split

_OF_TRAINING = re.compile("base|training|train")


def split_from_pair(
    train: RatingsLike,
    test: RatingsLike,
    *,
    history: RatingsLike | None = None,
    method: str = "given",
    parameters: dict[str, Any] | None = None,
    repeats: Repeats = "drop",
) -> Split:
    """Make a split of separate training and test data sets.

    The parts get the same indices. Test pairs that the training data (or the history) have are left
    out (see `Split.n_known`). Users and items that occur only in the test data are kept until
    `Split.without_new` drops them.

    Parameters
    ----------
    train, test : Ratings, frame or path
    history : Ratings, frame or path, optional
        Other ratings of the users in `test`, if these are not in `train`.
    method, parameters
        As in `Split`.
    repeats : {"drop", "keep"}
        Whether to leave out test pairs that the training data have.

    Raises
    ------
    DataError
        If all pairs of the test data are in the training data, or no test rating has a known item.
    """
    check_choice("repeats", repeats, get_args(Repeats))
    train = as_ratings(train)
    test = as_ratings(test, _like(train))
    users = train.users
    items = train.items.union(test.items.values)
    if history is None:
        users = users.union(test.users.values)
        train = _aligned(train, users, items)
        seen = train
    else:
        # Users with a history are none of the training part.
        history = as_ratings(history, _like(train))
        items = items.union(history.items.values)
        train = _aligned(train, users, items)
        users = history.users.union(test.users.values)
        seen = history = _aligned(history, users, items)
    test = _aligned(test, users, items)
    n_known = 0
    if repeats == "drop":
        test, n_known = without_pairs_of(seen, test)
    described = dict(parameters or {})
    split = Split(train, test, history, method, described, repeats, n_known)
    # Users may all be new, as sessions are: `evaluate` folds them in with positions=True.
    if split.test.n_ratings and not has_items(split.train)[split.test.indices].any():
        tested, trained = (
            items.values[int(part.indices[0])] for part in (split.test, split.train)
        )
        raise DataError(
            f"The test ratings have none of the items of the training ratings: {tested!r} is one "
            f"of theirs, {trained!r} one of the training ratings; both need the same ids."
        )
    split.check()
    return split


class SharedTest(NamedTuple):
    """Splits of several training parts with the same test ratings.

    Attributes
    ----------
    splits : dict of str to Split
        Split of each training part, by label.
    n_unknown : int
        Number of ratings left out because a training part lacks the user or the item.
    n_known : int
        Number of ratings left out because a training part contains them.
    """

    splits: dict[str, Split]
    n_unknown: int
    n_known: int


def shared_test(
    trainings: Mapping[str, Ratings],
    test: Ratings,
    *,
    repeats: Repeats = "drop",
) -> SharedTest:
    """Make a split for each of several training parts, with test ratings that are new to all.

    Saved models that were fitted to different ratings can then be compared. Each model excludes the
    ratings in its own training part from its recommendations.

    Parameters
    ----------
    trainings : mapping of label to Ratings
    test : Ratings
        Candidates for test ratings. Kept are those whose user and item have ratings in all
        training parts, and that no training part contains.
    repeats : {"drop", "keep"}
        Whether to leave out the ratings that a training part contains.

    Raises
    ------
    DataError
        If no test rating remains, or ids are integers in one training part and texts in another.
    """
    first_label, first = next(iter(trainings.items()))
    for label, train in trainings.items():
        for kind in ("users", "items"):
            if getattr(train, kind).dtype != getattr(first, kind).dtype:
                raise DataError(
                    f"{first_label} and {label} cannot be compared: the ids of {kind} are integers "
                    "in one of them and texts in the other."
                )
    masks = {
        label: unknown_and_known(train, test) for label, train in trainings.items()
    }
    unknown = np.any([new for new, _ in masks.values()], axis=0)
    in_train = np.any([trained for _, trained in masks.values()], axis=0)
    if repeats == "keep":
        in_train[:] = False
    if (unknown | in_train).all():
        reasons = "; ".join(
            f"{label} was fitted to {np.sum(trained):,}, and lacks the user or item of "
            f"{np.sum(new):,}"
            for label, (new, trained) in masks.items()
        )
        doubt = doubtful_ids(first, test.users, test.items)
        if doubt is not None:
            reasons += f" ({doubt})"
        raise DataError(
            f"None of {len(unknown):,} test ratings can be used: {reasons}."
        )
    usable = test.take(~(unknown | in_train))
    splits = {
        label: Split(train, _aligned(usable, train.users, train.items), repeats=repeats)
        for label, train in trainings.items()
    }
    return SharedTest(splits, int(unknown.sum()), int((in_train & ~unknown).sum()))


def unknown_and_known(train: Ratings, test: Ratings) -> tuple[Mask, Mask]:
    """Mark test ratings of users or items without training ratings, and those that repeat one."""
    users = train.users.find(test.users.values)[test.user_index_of_nonzeros()]
    items = train.items.find(test.items.values)[test.indices]
    has_ids = (users >= 0) & (items >= 0)
    is_known = has_ids & has_ratings(train)[users] & has_items(train)[items]
    keys = users * np.int64(train.n_items) + items
    return ~is_known, is_known & has_pairs(train, keys)


def _aligned(
    part: Ratings,
    users: Ids,
    items: Ids,
) -> Ratings:
    """Return the ratings with the indices of `users` and `items`."""
    if part.users == users and part.items == items:
        return replace(part, users=users, items=items)
    return part.renumbered(users, items)


def _like(train: Ratings) -> dict[str, Any]:
    """Return what the reader of test ratings needs to know of the training ratings."""
    feedback = None if train.feedback is None else train.feedback.kind
    return {"feedback": feedback, "implicit": train.implicit}


def read_split(
    path: str | Path, read: Callable[..., Ratings] | None = None
) -> Split | list[Split]:
    """Read the split in a folder, or its folds; `read` reads a file as `read_ratings` does.

    A folder of pairs of files is read as folds: u1.base and u1.test, or fold-1/train.csv and
    fold-1/test.csv (see `fold_pairs`). If another split takes its place meanwhile, that one is
    read.

    Raises
    ------
    DataError
        If there is no split, its ratings overlap, ratings are on the wrong side of the cut, or the
        files are not those that the folder's split.json describes.
    """
    return read_undisturbed(as_path(path), lambda folder: _split_in(folder, read))


def _split_in(folder: Path, read: Callable[..., Ratings] | None) -> Split | list[Split]:
    manifest = read_split_manifest(folder)
    if manifest is not None and manifest.folds:
        splits = [_split_in(folder / name, read) for name in manifest.folds]
        return [split for split in splits if isinstance(split, Split)]
    files = split_files(folder)
    if files is None:
        return [_pair(train, test, read, None) for train, test in fold_pairs(folder)]
    return _pair(files["train"], files["test"], read, files.get("history"))


def fold_pairs(folder: str | Path) -> list[tuple[Path, Path]]:
    """Return the pairs of training and test files in a folder and its subfolders, in order.

    The names of a pair differ by "base" or "train" and "test". If some pairs have numbers, they are
    the folds: of ml-100k, u1 to u5, but not ua and ub.

    Raises
    ------
    DataError
        If there are none.
    """
    root = Path(folder)
    if not root.is_dir():
        raise DataError(f"There is no folder {folder}.")
    files = {
        path.relative_to(root).as_posix(): path
        for pattern in ("*", "*/*")
        for path in root.glob(pattern)
        if path.is_file()
    }
    pairs = {}
    for name, path in files.items():
        for word in _OF_TRAINING.finditer(name):
            other = f"{name[: word.start()]}test{name[word.end() :]}"
            if other in files:
                numbers = tuple(map(int, re.findall(r"\d+", name)))
                pairs[numbers, name] = path, files[other]
    if not pairs:
        raise DataError(
            f"{folder} is not a split, and has no pairs of training and test files: train.csv and "
            "test.csv, u1.base and u1.test, or fold-1/train.csv and fold-1/test.csv."
        )
    are_numbered = any(numbers for numbers, _ in pairs)
    return [
        pairs[numbers, name]
        for numbers, name in sorted(pairs)
        if numbers or not are_numbered
    ]


def read_pair(
    train: str | Path,
    test: str | Path,
    read: Callable[..., Ratings] | None = None,
    repeats: Repeats = "drop",
) -> Split:
    """Read a split from two sources; check that a saved split is unchanged.

    Raises
    ------
    DataError
        As in `read_split`.
    """
    train_file, test_file = Path(train), Path(test)
    # Tables of a database are not the files of a saved split.
    if not (train_file.exists() and test_file.exists()):
        return _parts(train, test, read, None, {"repeats": repeats})
    if train_file.parent != test_file.parent:
        return _pair(train_file, test_file, read, None, repeats)

    def pair_in(folder: Path) -> Split:
        names = train_file.name, test_file.name
        return _pair(folder / names[0], folder / names[1], read, None, repeats)

    return read_undisturbed(train_file.parent, pair_in)


def _pair(
    train: Path,
    test: Path,
    read: Callable[..., Ratings] | None,
    history: Path | None,
    repeats: Repeats = "drop",
) -> Split:
    folder = train.parent
    files = split_files(folder) or {}
    manifest = read_split_manifest(folder)
    if (files.get("train"), files.get("test")) != (train, test):
        manifest = None
    described: dict[str, Any] = {"repeats": repeats}
    if manifest is not None:
        history = history or files.get("history")
        form = Formatter().parse(DESCRIPTIONS.get(manifest.method, ""))
        needed = [PARAMETERS_OF.get(name, name) for _, name, *_ in form if name]
        if not all(name in manifest.parameters for name in needed):
            raise DataError(
                f"{folder / SPLIT_MANIFEST} is damaged: it lacks {', '.join(needed)}."
            )
        for name in ("method", "parameters", "repeats"):
            described[name] = getattr(manifest, name)
    split = _parts(train, test, read, history, described)
    if manifest is not None and manifest.fingerprint != fingerprint(*split.parts):
        raise DataError(
            f"The files in {folder} are not those that its {SPLIT_MANIFEST} describes; make the "
            f"split again, or remove {SPLIT_MANIFEST} if they were changed on purpose."
        )
    return split


def _parts(
    train: str | Path,
    test: str | Path,
    read: Callable[..., Ratings] | None,
    history: Path | None,
    described: dict[str, Any],
) -> Split:
    """Return the split of two sources, and a history."""
    read = read or read_ratings
    train_part = read(train)
    defaults = _like(train_part)
    held_out = read(test, defaults=defaults)
    earlier = None if history is None else read(history, defaults=defaults)
    return split_from_pair(train_part, held_out, history=earlier, **described)
