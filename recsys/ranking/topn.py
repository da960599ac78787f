"""Exact top-N over all items, in blocks of users.

The result of a user does not depend on the other users of the query, bit for bit. Equal scores are
in a random order, given by `ties`, or else in the order of the items. If scores have a factored
form (`Scorer._factor_form`), a compiled kernel scores and selects without storing the scores; see
`lowrank.kernels.retrieval.top_k`.

Otherwise the scores of a block are computed together, and their rounding may depend on the block.
The cut is therefore widened by a bound on the rounding (`Scorer._score_error`), and the candidates
are scored again, pair by pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowrank import kernels
from lowrank.kernels.arrays import Hashes
from lowrank.kernels.retrieval import top_k
from lowrank.kernels.topk import SearchOrder, Ties, item_order, mixed
from recsys.errors import DataError, check_whole
from recsys.models.factor_form import FactorForm
from recsys.models.parts import Floats, Indices, Mask

# scores of a block of users: 32 MB, and the same again for the partition
_BLOCK_SCORES = 2**23
_BLOCK_RESULTS = 2**20  # maximum number of results of a block of users
_BLOCK_FACTORS = 2**23  # user factors of a block for the kernel: 32 MB
_SAMPLE = 16  # users for the typical length of a vector
# Minimum number of items whose order makes a search faster: by a tenth of 10,000 items, and by
# two thirds of 40,000.
_ORDERED = 2**13
_PAYS_AFTER = 32  # number of small searches after which the items are ordered
_MANY = 64  # candidates of a user, in addition to n, from which the best are selected one by one


SOURCES = ("model", "fill", "slot")
"""Reasons for which an item is in a list: its score, a short list, or a reserved place."""
MODEL, FILL, SLOT = range(3)


class Scorer(Protocol):
    """Protocol for the scores that top-N search needs; see `recsys.models.base.Model`.

    The caller may overwrite `scores`. They differ from `pair_scores` by at most `_score_error`, or
    not at all if that is None. `_factor_form` is None if scores have no factored form.
    """

    @property
    def n_items(self) -> int: ...  # noqa: D102
    def pair_scores(self, users: Indices, items: Indices) -> Floats: ...  # noqa: D102
    def scores(self, users: Indices) -> Floats: ...  # noqa: D102
    def _score_error(self, users: Indices) -> Floats | None: ...
    def _factor_form(self, users: Indices) -> FactorForm | None: ...


@dataclass(frozen=True, slots=True)
class TopN:
    """The best items of some users: one entry per user and rank, best first.

    `rows` are the positions of the users in the query, ascending; `ranks` begin at 1. A user has
    fewer than n entries, possibly none, if fewer items are allowed. `sources` tell why an item is
    in a list, as positions in `SOURCES`; None if all items are there by their score.
    """

    rows: Indices
    items: Indices
    ranks: NDArray[np.int32]
    scores: Floats
    sources: NDArray[np.int8] | None = None

    @classmethod
    def joined(cls, parts: Iterable[TopN]) -> TopN:
        """Concatenate several results."""
        columns = zip(*parts, strict=True)
        return cls(*map(np.concatenate, columns))

    def take(self, which: NDArray[np.generic]) -> TopN:
        """Return some of the entries, given by a mask or by positions."""
        return TopN(*(column[which] for column in self))

    def with_rows(self, rows: Indices) -> TopN:
        """Return the entries at other positions in the query."""
        return replace(self, rows=rows)

    def renumbered(self) -> TopN:
        """Return the entries with the ranks that they have among these."""
        starts = np.searchsorted(self.rows, self.rows)
        ranks = np.arange(1, len(self) + 1) - starts
        return replace(self, ranks=ranks.astype(np.int32))

    def with_source(self, source: int) -> TopN:
        """Return the entries with one source, a position in `SOURCES`."""
        return replace(self, sources=np.full(len(self), source, np.int8))

    def by_row(self) -> TopN:
        """Return the entries in the order of their rows."""
        return self.take(np.argsort(self.rows, kind="stable"))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        columns = (self.rows, self.items, self.ranks, self.scores)
        return iter(columns if self.sources is None else (*columns, self.sources))


def top_n(
    scorer: Scorer,
    users: Indices,
    n: int,
    *,
    exclude: CsrPairs | None = None,
    allowed: Mask | None = None,
    order: SearchOrder | None = None,
    ties: Ties | None = None,
) -> Iterator[TopN]:
    """Find the n best items of each user.

    Results are yielded in blocks of users; `rows` are positions in the whole query. A block has at
    most a million results (or one user's), and working memory is about 100 MB at most.

    Parameters
    ----------
    scorer, users, n : Scorer, int64 ndarray and int
        Users may be repeated; n may exceed the number of items.
    exclude : CsrPairs, optional
        Pairs of a user and an item to leave out.
    allowed : bool ndarray of shape (n_items,), optional
        False for items that are left out for all users.
    order : SearchOrder, optional
        The result of `search_order` for the scorer and `allowed`, which makes small searches
        faster.
    ties : Ties, optional
        Random order of equal scores, such as `user_ties`, for these users. By default, the lower
        item comes first.
    """
    check_n(n)
    options: SearchOptions = {"allowed": allowed, "order": order, "ties": ties}
    return _blocks(scorer, users, int(n), exclude, options)


def user_ties(
    items: Hashes,
    users: Hashes,
    random_state: int = 0,
) -> Ties:
    """Return a random order of equal scores that differs between users, for an evaluation.

    It depends on the hashes of the ids and the seed only, and so is the same with more items.
    """
    seed = np.array([random_state % 2**64], np.uint64)
    return Ties(items, mixed(users ^ mixed(seed)))


def search_order(
    scorer: Scorer,
    n_users: int,
    allowed: Mask | None = None,
) -> SearchOrder | None:
    """Return an order of the items that makes small searches by `top_n` faster, or None.

    The order is computed once for many searches. It gains nothing if there are few items.
    """
    if not n_users or scorer.n_items < _ORDERED:
        return None
    users = np.linspace(0, n_users - 1, min(n_users, _SAMPLE)).astype(np.int64)
    form = scorer._factor_form(users)
    if form is None or form.weight is not None or form.sparse is not None:
        return None
    typical = float(np.median(np.linalg.norm(form.users, axis=1)))
    return item_order(form.items, form.bias, allowed=allowed, typical=typical)


class SearchOptions(TypedDict):
    """Options of `top_n` that are the same for all users."""

    allowed: Mask | None
    order: SearchOrder | None
    ties: Ties | None


class KnownUsers:
    """Search for the best new items of a few users at a time.

    The `order` of the items is computed by `prepare`, or after enough searches.
    """

    def __init__(
        self,
        scorer: Scorer,
        seen: CsrPairs,
        allowed: Mask | None = None,
        ties: Ties | None = None,
    ) -> None:
        self.allowed, self.ties = allowed, ties
        self.order: SearchOrder | None = None
        self._scorer, self._seen, self._searches = scorer, seen, 0
        self._popularity: float | None = getattr(scorer, "popularity", None)

    def prepare(self) -> None:
        """Compute the order of the items, if it makes searches faster."""
        self._searches = _PAYS_AFTER
        n_users = len(self._seen.indptr) - 1
        self.order = search_order(self._scorer, n_users, self.allowed)

    def best(self, users: Indices, n: int) -> Iterator[TopN]:
        """Find the n best items that each user has not rated."""
        popularity = getattr(self._scorer, "popularity", None)
        if popularity != self._popularity:  # so the order is invalid
            self._popularity, self._searches, self.order = popularity, 0, None
        self._searches += 1
        if self._searches == _PAYS_AFTER:
            self.prepare()
        return top_n(self._scorer, users, n, exclude=self._seen, **self.options)

    @property
    def options(self) -> SearchOptions:
        """Options of `top_n` for these items."""
        return {
            "allowed": self.allowed,
            "order": self.order,
            "ties": self.ties,
        }


def check_n(n: object) -> None:
    """Check a number of items."""
    check_whole("n", n, 1)


@dataclass(frozen=True, slots=True)
class CsrPairs:
    """Pairs of a user and an item as the entries of a CSR matrix, for `top_n` to leave out."""

    indptr: Indices
    indices: NDArray[np.int32]

    @classmethod
    def diagonal(cls, n: int) -> CsrPairs:
        """Return the pairs of each of n items with itself."""
        return cls(np.arange(n + 1), np.arange(n, dtype=np.int32))

    def __call__(self, users: Indices) -> tuple[Indices, NDArray[np.integer[Any]]]:
        """Return the entries of the rows `users`: positions in `users`, and items."""
        at, indptr = kernels.row_places(self.indptr, users)
        rows = np.repeat(np.arange(len(users)), np.diff(indptr))
        return rows, self.indices[at]


def select(
    scores: NDArray[np.floating[Any]],
    n: int,
    *,
    error: Floats | None = None,
    exact: Callable[[Indices, Indices], Floats] | None = None,
    ties: Ties | None = None,
) -> TopN:
    """Find the n largest scores of each row, sorted by row and descending score.

    `scores` are overwritten; minus infinity and NaN are never selected. With `exact`, the entries
    are ranked by the scores that it returns for rows and items, from which `scores` may differ by
    the `error` of the row.
    """
    losses = np.negative(scores, out=scores)  # NaN sorts last, so it is worst
    chosen = losses < np.inf
    if n < losses.shape[1]:
        cut = np.partition(losses, n - 1, axis=1)[:, n - 1]
        if error is not None:
            # The n best are at most 2 * error below the approximate n-th.
            cut = np.nextafter(cut + 2 * error, np.float32(np.inf))
        cut[np.isnan(cut)] = np.inf
        chosen &= losses <= cut[:, None]
    n_items = max(1, scores.shape[1])
    rows, items = np.divmod(np.flatnonzero(chosen), n_items)
    values = -losses[rows, items]
    if exact is not None:
        values = exact(rows, items)
    return best_entries(rows, items, values, n, ties)


def best_entries(
    rows: Indices,
    items: Indices,
    values: NDArray[np.floating[Any]],
    n: int,
    ties: Ties | None,
) -> TopN:
    """Find the n entries with the largest values of each row; `rows` must be ascending."""
    selected = _largest(rows, items, values, n, ties)
    rows, items = rows[selected], items[selected]
    values = values[selected]
    tie_ranks = items if ties is None else ties.places(rows, items)
    order = np.lexsort((tie_ranks, -values, rows))
    counts = np.bincount(rows)
    starts = np.cumsum(counts) - counts
    ranks = np.arange(1, len(rows) + 1) - np.repeat(starts, counts)
    order = order[ranks <= n]
    ranks = ranks[ranks <= n]
    values = values[order].astype(np.float32, copy=False)
    return TopN(rows[order], items[order], ranks.astype(np.int32), values)


def _largest(
    rows: Indices,
    items: Indices,
    scores: NDArray[np.floating[Any]],
    n: int,
    ties: Ties | None,
) -> Mask:
    """Return a mask of candidates, grouped by row, without most that are not among the n best.

    Rows in which many items have the same score would take long to sort.
    """
    is_selected = np.ones(len(rows), np.bool_)
    counts = np.bincount(rows)
    ends = np.cumsum(counts)
    for row in np.flatnonzero(counts > n + _MANY):
        part = slice(ends[row] - counts[row], ends[row])
        losses = -scores[part]
        cut = np.partition(losses, n - 1)[n - 1]
        is_selected[part] = losses < cut
        equal = part.start + np.flatnonzero(losses == cut)
        if ties is not None:
            places = ties.places(rows[equal], items[equal])
            equal = equal[np.argsort(places)]
        n_missing = n - np.count_nonzero(is_selected[part])
        is_selected[equal[:n_missing]] = True
    return is_selected


def inverse_lengths(vectors: Floats) -> Floats:
    """Return 1 / length of each row, or NaN for rows of zeros."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    inverse: Floats = np.full_like(lengths, np.nan)
    np.divide(1, lengths, out=inverse, where=lengths > 0)
    return inverse


class Cosine:
    """Scorer by the cosine of vectors and queries, NaN for a vector of zeros.

    By default, the queries are the vectors themselves. The cosine with an item is multiplied by its
    `confidence`, from 0 to 1.
    """

    def __init__(
        self,
        vectors: Floats,
        queries: Floats | None = None,
        *,
        confidence: Floats | None = None,
    ) -> None:
        self._vectors = vectors
        self._inverse = inverse_lengths(vectors)
        self._queries = vectors if queries is None else queries
        self._scale = self._inverse if queries is None else inverse_lengths(queries)
        if confidence is None:
            confidence = np.ones(len(vectors), np.float32)
        self._confidence = confidence

    @property
    def n_items(self) -> int:  # noqa: D102
        return len(self._vectors)

    @property
    def unit_vectors(self) -> Floats:
        """The vectors divided by their lengths; NaN for a vector of zeros."""
        return self._vectors * self._inverse[:, None]

    @property
    def confidence(self) -> Floats:
        """The factor of the cosines with each item."""
        return self._confidence

    def pair_scores(self, users: Indices, items: Indices) -> Floats:  # noqa: D102
        dots = kernels.pair_dots(self._queries, self._vectors, users, items)
        dots *= self._scale[users] * self._inverse[items]
        np.clip(dots, -1, 1, out=dots)
        return dots * self._confidence[items]

    def scores(self, users: Indices) -> Floats:  # noqa: D102
        block: Floats = self._queries[users] @ self._vectors.T
        block *= self._scale[users, None]
        block *= self._inverse * self._confidence
        return block

    def _score_error(self, users: Indices) -> Floats:
        """Return a bound on the rounding of a cosine (as `FactorModel._score_error`)."""
        terms = self._vectors.shape[1] + 3
        bound = 2 * terms * np.finfo(np.float32).eps
        return np.full(len(users), bound, np.float32)

    def _factor_form(self, users: Indices) -> FactorForm:
        """Return queries and vectors, with factors that convert their products to cosines."""
        return FactorForm(
            self._queries[users],
            self._vectors,
            self._scale[users],
            self._inverse,
            self._confidence,
        )


def _blocks(
    scorer: Scorer,
    users: Indices,
    n: int,
    exclude: CsrPairs | None,
    options: SearchOptions,
) -> Iterator[TopN]:
    """Yield at least one block; blocks are larger if the kernel computes the scores."""
    is_compiled = kernels.backend().name == "compiled"
    width, limit = scorer.n_items, _BLOCK_SCORES
    form = None
    # A single user is one block in any case.
    if is_compiled and len(users) > 1:
        form = scorer._factor_form(users[:0])
    if form is not None:
        width, limit = min(width, form.users.shape[1]), _BLOCK_FACTORS
    # At most `limit` numbers of work and a million results, but at least one user.
    size = limit // max(1, width)
    size = min(size, _BLOCK_RESULTS // max(1, min(n, scorer.n_items)))
    size = max(1, size)
    for start in range(0, max(1, len(users)), size):
        block = slice(start, start + size)
        form = scorer._factor_form(users[block]) if is_compiled else None
        ties = options["ties"]
        of_block = options.copy()
        of_block["ties"] = None if ties is None else ties.take(block)
        if form is None:
            top = _by_scores(scorer, users[block], n, exclude, of_block)
        else:
            top = _by_factors(form, users[block], n, exclude, of_block)
        yield top.with_rows(top.rows + start)


def _by_factors(
    form: FactorForm,
    users: Indices,
    n: int,
    exclude: CsrPairs | None,
    options: SearchOptions,
) -> TopN:
    seen = None
    if exclude is not None:
        seen = kernels.Seen(users, exclude.indptr, exclude.indices)
    best = top_k(
        form.users,
        form.items,
        n,
        offset=form.offset,
        bias=form.bias,
        weight=form.weight,
        sparse=form.sparse,
        seen=seen,
        **options,
    )
    ranks = np.arange(best.items.shape[1])
    rows, columns = np.nonzero(ranks < best.counts[:, None])
    items = best.items[rows, columns].astype(np.int64)
    scores = best.scores[rows, columns]
    return TopN(rows, items, (columns + 1).astype(np.int32), scores)


def _by_scores(
    scorer: Scorer,
    users: Indices,
    n: int,
    exclude: CsrPairs | None,
    options: SearchOptions,
) -> TopN:
    scores = checked_scores(scorer, users)
    if exclude is not None:
        scores[exclude(users)] = -np.inf
    if options["allowed"] is not None:
        # Assigning by a mask takes several times as long.
        highest = np.where(options["allowed"], np.inf, -np.inf).astype(np.float32)
        np.minimum(scores, highest, out=scores)
    ties = options["ties"]
    error = scorer._score_error(users)
    if error is None:
        return select(scores, n, ties=ties)

    def exact(rows: Indices, items: Indices) -> Floats:
        return unmasked(scorer.pair_scores(users[rows], items), -np.inf)

    return select(scores, n, error=error, exact=exact, ties=ties)


def unmasked(values: ArrayLike, fill: float) -> NDArray[Any]:
    """Return an array with `fill` where a NumPy mask hides a value."""
    if isinstance(values, np.ma.MaskedArray) and values.dtype.kind in "biuf":
        dtype = np.promote_types(values.dtype, np.float32)
        values = np.ma.filled(values.astype(dtype), fill)
    return np.asarray(values)


def checked_scores(scorer: Scorer, users: Indices) -> NDArray[np.floating[Any]]:
    """Return the scores of a scorer as single or double precision.

    A masked score is minus infinity, of an item to leave out.

    Raises
    ------
    DataError
        If they are not numbers, have another shape, or a model's are NaN or too large.
    """
    scores = unmasked(scorer.scores(users), -np.inf)
    name = getattr(scorer, "name", type(scorer).__name__)
    shape = len(users), scorer.n_items
    if scores.shape != shape:
        raise DataError(
            f"The scores of the {name} model must have one row per user and one column per item, "
            f"shape {shape}; got shape {scores.shape}."
        )
    if scores.dtype.kind not in "biuf":
        raise DataError(
            f"The scores of the {name} model must be numbers; got {scores.dtype}."
        )
    if scores.dtype not in (np.float32, np.float64):
        is_short = scores.dtype.itemsize < 4
        scores = scores.astype(np.float32 if is_short else np.float64)
    if not scores.flags.writeable:  # such as the result of np.broadcast_to
        scores = scores.copy()
    # Similarities may be NaN, of vectors of zeros; only models have a name.
    if hasattr(scorer, "name") and scores.size:
        _check_range(scores, users, name)
    return scores


def _check_range(scores: NDArray[np.floating[Any]], users: Indices, name: str) -> None:
    """Check that scores are numbers of single precision, as in lists, or minus infinity."""
    largest = float(np.finfo(np.float32).max)
    if scores.dtype == np.float32 and scores.max() <= largest:  # False for NaN
        return
    is_valid = (np.abs(scores) <= largest) | (scores == -np.inf)
    if is_valid.all():
        return
    row, item = np.argwhere(~is_valid)[0].tolist()
    value = scores[row, item]
    raise DataError(
        f"The scores of the {name} model must be numbers of at most {largest:.3g} in size, or "
        "minus infinity for items to leave out; got "
        f"{'NaN' if np.isnan(value) else f'{value:.3g}'} for the user of index {users[row]} and "
        f"the item of index {item}."
    )
