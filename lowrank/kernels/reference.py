"""The kernels in NumPy: the reference for tests of the compiled ones, and their replacement.

For descriptions see the functions of `lowrank.kernels`. `threads` is accepted and ignored.
"""

from __future__ import annotations

import itertools
import re
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowrank.kernels.topk import Hashes, SearchOrder, Seen, Stops, Ties, TopK, mixed

Floats = NDArray[np.floating]
Ints = NDArray[np.integer]

_BLOCK_FLOATS = 2**22  # numbers in each array of gathered rows: 16 MB
_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}")
_DECIMAL = re.compile(r"-?(?=[\d.]{1,16}$)\d+(\.\d+)?")


def als_half_sweep(
    indptr: Ints,
    indices: Ints,
    data: Floats,
    other: Floats,
    other_bias: Floats,
    shift: float,
    penalty: Floats,
    bias_penalty: Floats,
    fit_bias: bool,
    factors: Floats,
    bias: Floats,
    objective: NDArray[np.float64],
    threads: int,
    weights: Floats | None = None,
    nonnegative: bool = False,
) -> None:
    """Solve one weighted ridge regression per row, exactly."""
    k = other.shape[1]
    for row in range(len(factors)):
        observed = slice(indptr[row], indptr[row + 1])
        columns = indices[observed]
        if len(columns) == 0:
            factors[row], bias[row], objective[row] = 0, 0, 0
            continue
        target = data[observed] - other.dtype.type(shift) - other_bias[columns]
        design = np.column_stack(
            [other[columns], np.full(len(columns), fit_bias, other.dtype)]
        )
        if weights is not None:
            roots = np.sqrt(weights[observed])
            target = roots * target
            design = roots[:, None] * design
        ridge = np.append(
            np.full(k, penalty[row]), bias_penalty[row] if fit_bias else 1
        )
        right = design.T @ target
        system = design.T @ design + np.diag(ridge).astype(other.dtype)
        if nonnegative:
            solution = _nonnegative_solution(system, right, k)
        else:
            solution = np.linalg.solve(system, right)
        factors[row], bias[row] = solution[:k], solution[k]
        squares = target.astype(np.float64) @ target
        objective[row] = squares - solution.astype(np.float64) @ right


def _nonnegative_solution(system: Floats, right: Floats, k: int) -> Floats:
    """Minimise x'Ax - 2b'x over x with the first k unknowns not negative, the others free."""
    from scipy.optimize import nnls  # slow to import

    A = system.astype(np.float64)
    b = right.astype(np.float64)
    from_free = np.linalg.solve(A[k:, k:], np.column_stack([A[k:, :k], b[k:]]))
    reduced = A[:k, :k] - A[:k, k:] @ from_free[:, :k]
    values, axes = np.linalg.eigh(reduced)
    positive = values > k * np.finfo(np.float64).eps * values[-1]
    roots = np.sqrt(values[positive])
    along = axes[:, positive].T
    bound, _ = nnls(
        roots[:, None] * along, along @ (b[:k] - A[:k, k:] @ from_free[:, k]) / roots
    )
    return np.append(bound, from_free[:, k] - from_free[:, :k] @ bound).astype(
        right.dtype
    )


def implicit_half_sweep(
    indptr: Ints,
    indices: Ints,
    data: Floats,
    other: Floats,
    gram: Floats,
    penalty: Floats,
    factors: Floats,
    objective: NDArray[np.float64],
    threads: int,
    right: Floats | None = None,
    residual: Floats | None = None,
    nonnegative: bool = False,
) -> None:
    """Solve one weighted least squares problem per row; with residuals, for a block of factors."""
    fixed = np.eye(other.shape[1], dtype=other.dtype)
    for row in range(len(factors)):
        observed = slice(indptr[row], indptr[row + 1])
        design, weights = other[indices[observed]], data[observed]
        design = design * np.sqrt(weights)[:, None]
        target = np.sqrt(weights)
        if residual is not None:
            target = residual[observed] + design @ factors[row]
        total = design.T @ target + (0 if right is None else right[row])
        system = design.T @ design + gram + penalty[row] * fixed
        if nonnegative:
            solution = _nonnegative_solution(system, total, len(total))
        else:
            solution = np.linalg.solve(system, total)
        factors[row] = solution
        objective[row] = (
            target.astype(np.float64) @ target - solution.astype(np.float64) @ total
        )
        if residual is not None:
            residual[observed] = target - design @ solution


def nonnegative_descent(
    gram: Floats, products: Floats, factors: Floats, passes: int, threads: int
) -> None:
    """Minimise x'Gx - 2p'x over one unknown at a time, for all rows at once."""
    for _ in range(passes):
        for i, row in enumerate(gram):
            if row[i] > 0:
                slope = factors @ row - products[:, i]
                factors[:, i] = np.maximum(factors[:, i] - slope / row[i], 0)


def posterior_half_sweep(
    indptr: Ints,
    indices: Ints,
    data: Floats,
    other: Floats,
    shift: float,
    prior: Floats,
    weight: Floats,
    prior_right: Floats,
    noise_variance: float,
    draws: Floats,
    covariance: Floats,
    vectors: Floats,
    objective: NDArray[np.float64],
    log_det: NDArray[np.float64],
    threads: int,
    invert: bool,
) -> None:
    """Compute one Gaussian posterior per row."""
    d = vectors.shape[1]
    triangle = np.triu_indices(d)
    for row in range(len(vectors)):
        observed = slice(indptr[row], indptr[row + 1])
        columns = indices[observed]
        target = data[observed] - other.dtype.type(shift) - other[columns, -1]
        design = other[columns]
        design[:, -1] = 1
        system = design.T @ design + weight[row] * prior
        right = design.T @ target + prior_right[row]
        squares = target.astype(np.float64) @ target
        if covariance.size:
            summed = np.zeros((d, d), vectors.dtype)
            summed[triangle] = covariance[row]
            system[:-1, :-1] += (
                np.triu(summed[:-1, :-1]) + np.triu(summed[:-1, :-1], 1).T
            )
            right[:-1] -= summed[:-1, -1]
            squares += summed[-1, -1]
        inverse = np.linalg.inv(system)
        vectors[row] = solution = np.linalg.solve(system, right)
        objective[row] = squares - solution.astype(np.float64) @ right
        log_det[row] = np.linalg.slogdet(system)[1]
        if draws.size:
            vectors[row] += np.linalg.solve(np.linalg.cholesky(system).T, draws[row])
        if covariance.size and invert:
            covariance[row] = noise_variance * inverse[triangle]


def drift_smooth(
    indptr: Ints,
    gaps: Floats,
    data: Floats,
    noise: float,
    variance: float,
    scale: float,
    means: Floats,
    variances: Floats,
    evidence: NDArray[np.float64],
    threads: int,
) -> None:
    """Condition one Gaussian vector per row on its noisy observations."""
    for row in range(len(evidence)):
        own = slice(indptr[row], indptr[row + 1])
        at = np.append(0, np.cumsum(gaps[own][1:], dtype=float))[: own.stop - own.start]
        covariance = variance * np.exp(-np.abs(at[:, None] - at) / scale)
        total = covariance / noise + np.eye(len(at))
        solved = np.linalg.solve(total, data[own] / noise)
        evidence[row] = -0.5 * (data[own] @ solved + np.linalg.slogdet(total)[1])
        if means.size:
            means[own] = covariance @ solved
            inverse = np.linalg.solve(total, covariance) / noise
            variances[own] = np.diag(covariance) - np.einsum(
                "ij,ji->i", covariance, inverse
            )


def csr_entries(
    indptr: Ints,
    indices: Ints,
    data: Floats,
    left: Floats,
    right: Floats,
    out: Floats,
    threads: int,
) -> None:
    """Write the products of vectors at the stored entries into `out`."""
    for row in range(len(left)):
        stored = slice(indptr[row], indptr[row + 1])
        z = right[indices[stored]]
        out[stored] = z[:, :-1] @ left[row, :-1] + left[row, -1] + z[:, -1]


def csr_matmat(
    indptr: Ints, indices: Ints, data: Floats, X: Floats, Y: Floats, threads: int
) -> None:
    """Write A @ X into Y."""
    for row in range(len(Y)):
        stored = slice(indptr[row], indptr[row + 1])
        Y[row] = data[stored] @ X[indices[stored]]


def csr_rmatmat(
    indptr: Ints, indices: Ints, data: Floats, X: Floats, Y: Floats, threads: int
) -> None:
    """Write A.T @ X into Y."""
    Y[:] = 0
    for row in range(len(X)):
        stored = slice(indptr[row], indptr[row + 1])
        np.add.at(Y, indices[stored], data[stored, None] * X[row])


def coefficients(V: Floats, W: Floats, P: Floats, threads: int) -> None:
    """Write V.T @ W into P."""
    P[:] = V.T @ W


def multiply(V: Floats, H: Floats, W: Floats, threads: int) -> None:
    """Write V @ H into W."""
    W[:] = V @ H


def subtract(V: Floats, H: Floats, W: Floats, threads: int) -> None:
    """Subtract V @ H from W."""
    W -= V @ H


def project(
    V: Floats,
    first: int,
    again: bool,
    W: Floats,
    inside: Floats,
    gram: Floats,
    threads: int,
) -> None:
    """Subtract the projection of W on V; write its coefficients, and W.T @ W of the rest."""
    inside[:] = 0
    for start in (first, 0)[: 1 + again]:
        part = V[:, start:].T @ W
        inside[start:] += part
        W -= V[:, start:] @ part
    gram[:] = W.T @ W


def squared_distances(
    P: Floats, V: Floats, s: Floats, squares: Floats, threads: int
) -> None:
    """Write the squared norm of each column of P - V * s into `squares`."""
    squares[:] = ((P - V * s) ** 2).sum(axis=0)


def place(W: Floats, V: Floats, threads: int) -> None:
    """Write W into V."""
    V[:] = W


def best_items(
    users: Floats,
    items: Floats,
    offset: Floats,
    bias: Floats,
    weight: Floats | None,
    order: SearchOrder,
    stops: Stops,
    sparse: tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]] | None,
    seen: Seen | None,
    ties: Ties | None,
    found: TopK,
    threads: int,
) -> None:
    """Write the best of the items in `order` for each user; all are scored, bounds are ignored."""
    sums = None
    if sparse is not None:
        sums = np.empty((len(users), len(order.items)), np.float32)
        history, weights = sparse
        sparse_rows(*history, *weights, sums, threads)
    columns = np.argsort(order.items)
    candidates = order.items[columns].astype(np.int64)
    n = found.items.shape[1]
    for query in range(len(users)):
        rows = np.full(len(candidates), query)
        dots = np.empty(len(candidates), np.float32)
        pair_dots(users, items, rows, candidates, dots, threads)
        if weight is None:
            values = (offset[query] + bias[candidates]) + dots
            if sums is not None:
                values += sums[query, columns]
        else:
            cosines = np.clip(dots * (offset[query] * bias[candidates]), -1, 1)
            values = cosines * weight[candidates]
        good = values > -np.inf
        if seen is not None:
            row = seen.rows[query]
            rated = seen.indices[seen.indptr[row] : seen.indptr[row + 1]]
            good &= ~np.isin(candidates, rated)
        values = values[good] + np.float32(0)
        unseen = candidates[good]
        places = unseen if ties is None else ties.places(rows[good], unseen)
        best = np.lexsort((places, -values))[:n]
        count = found.counts[query] = len(best)
        found.items[query, :count] = unseen[best]
        found.items[query, count:] = -1
        found.scores[query, :count] = values[best]
        found.scores[query, count:] = -np.inf


def sparse_pairs(
    history_indptr: Ints,
    history_indices: Ints,
    history_data: Floats,
    indptr: Ints,
    indices: Ints,
    data: Floats,
    rows: Ints,
    columns: Ints,
    found: Floats,
    threads: int,
) -> None:
    """Write entries of the product of history and weights into found."""
    for at, (row, column) in enumerate(zip(rows, columns, strict=True)):
        total = np.float32(0)
        for entry in range(history_indptr[row], history_indptr[row + 1]):
            stored = slice(*indptr[history_indices[entry] :][:2])
            for weight in data[stored][indices[stored] == column]:
                total += history_data[entry] * weight
        found[at] = total


def sparse_rows(
    history_indptr: Ints,
    history_indices: Ints,
    history_data: Floats,
    indptr: Ints,
    indices: Ints,
    data: Floats,
    Y: Floats,
    threads: int,
) -> None:
    """Write the product of history and weights into Y."""
    Y[:] = 0
    for row in range(len(Y)):
        for entry in range(history_indptr[row], history_indptr[row + 1]):
            stored = slice(*indptr[history_indices[entry] :][:2])
            Y[row, indices[stored]] += history_data[entry] * data[stored]


def gram_rows(
    indptr: Ints,
    indices: Ints,
    data: Floats,
    column_indptr: Ints,
    column_indices: Ints,
    column_data: Floats,
    weight: Floats,
    scale: Floats,
    out: Floats,
    first: int,
    columns: Ints,
    values: Floats,
    counts: Ints,
    threads: int,
) -> None:
    """Write the largest entries of rows of diag(scale) C.T diag(weight) X diag(out)."""
    X = indptr, indices, data
    for row in range(len(counts)):
        mine = slice(*column_indptr[first + row :][:2])
        users = column_indices[mine]
        history = np.array([0, len(users)]), users, column_data[mine] * weight[users]
        sums = np.empty((1, len(out)), np.float32)
        sparse_rows(*history, *X, sums, threads)
        sums = sums[0] * (scale[first + row] * out)
        best = np.argsort(-np.abs(sums), kind="stable")[: columns.shape[1]]
        kept = np.sort(best[sums[best] != 0])
        counts[row] = len(kept)
        columns[row, : len(kept)], values[row, : len(kept)] = kept, sums[kept]


def pair_dots(
    left: Floats, right: Floats, rows: Ints, others: Ints, dots: Floats, threads: int
) -> None:
    """Write the dot products of left[rows] with right[others] into `dots`."""
    block = _BLOCK_FLOATS // max(1, left.shape[1])
    for start in range(0, len(rows), block):
        part = slice(start, start + block)
        np.einsum("ij,ij->i", left[rows[part]], right[others[part]], out=dots[part])


def sum_rows(
    indptr: Ints, indices: Ints, data: Floats, rows: Ints, factors: Floats, out: Floats
) -> None:
    """Add rows of a CSR matrix, each times its factor, to `out`."""
    for row, factor in zip(rows.tolist(), factors, strict=True):
        own = slice(indptr[row], indptr[row + 1])
        out[indices[own]] += factor * data[own]


def hash_texts(bytes: NDArray[np.uint8], offsets: Ints, hashes: Hashes) -> None:
    """Write a hash of each text: its bytes are mixed in, eight at a time."""
    for text, (start, end) in enumerate(itertools.pairwise(offsets.tolist())):
        length = end - start
        words = np.zeros(-(-length // 8) * 8, np.uint8)
        words[:length] = bytes[start:end]
        state = mixed(np.array([length], np.uint64))
        for word in words.view("<u8"):
            state = mixed(state ^ word)
        hashes[text] = state[0]


def largest(scores: Floats, found: Ints) -> int:
    """Write the positions of the largest scores, best first; return their number."""
    places = np.flatnonzero(scores > -np.inf)
    best = places[np.argsort(-scores[places], kind="stable")[: len(found)]]
    found[: len(best)] = best
    return len(best)


def code_levels(values: Floats, codes: Ints, levels: Floats, count: int) -> int:
    """Write the code of each value, and new levels; return the number of levels, -1 if too many."""
    bits, known = values.view(np.uint32), levels[:count].view(np.uint32)
    _, first = np.unique(bits, return_index=True)
    new = [place for place in np.sort(first) if bits[place] not in known]
    if count + len(new) > len(levels):
        return -1
    levels[count : count + len(new)] = values[new]
    count += len(new)
    order = np.argsort(levels[:count].view(np.uint32))
    codes[:] = order[np.searchsorted(levels[order].view(np.uint32), bits)]
    return count


def code_keys(
    keys: Ints, codes: Ints, distinct: Ints, count: int, slots: Ints
) -> tuple[int, int]:
    """Write the code of each key, and new keys; return how many are coded and how many distinct."""
    values, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    places = dict(zip(distinct[:count].tolist(), range(count), strict=True))
    for key in keys[np.sort(first)].tolist():
        places.setdefault(key, len(places))
    if len(places) > len(distinct):
        return 0, count
    distinct[: len(places)] = list(places)
    codes[:] = np.array([places[value] for value in values.tolist()], np.int32)[inverse]
    return len(keys), len(places)


def look_up(keys: Ints, table: Ints, found: Ints, threads: int) -> None:
    """Write the entry of the table at each key."""
    found[:] = table[keys]


def read_rows(
    text: Ints, mark: str, width: int, places: list[int], arrays: list[NDArray[Any]]
) -> int:
    """Write the numbers in columns of a text; return the number of rows, -1 if it is not plain."""
    n_rows, block = 0, text.tobytes()
    room = min((len(array) for array in arrays), default=sys.maxsize)
    if b'"' in block or not block.isascii():
        return -1
    for line in re.split("\r?\n", block.decode()):
        fields = line.split(mark)
        if line and (len(fields) != width or n_rows == room):
            return -1
        for place, array in zip(places if line else (), arrays, strict=False):
            form = _INTEGER if array.dtype == np.int64 else _DECIMAL
            if not form.fullmatch(fields[place]):
                return -1
            array[n_rows] = array.dtype.type(fields[place])
        n_rows += bool(line)
    return n_rows


def row_offsets(rows: Ints, indptr: Ints) -> bool:
    """Write the row starts of entries; return whether the rows are in ascending order."""
    indptr[0] = 0
    np.cumsum(np.bincount(rows, minlength=len(indptr) - 1), out=indptr[1:])
    return bool((rows[1:] >= rows[:-1]).all())


def scatter(
    rows: Ints,
    indptr: Ints,
    sources: list[NDArray[Any]],
    targets: list[NDArray[Any]],
    threads: int,
) -> None:
    """Write the sources in the order of their rows."""
    order = np.argsort(rows, kind="stable")
    for source, target in zip(sources, targets, strict=True):
        target[:] = source[order]


def transpose(
    indptr: Ints,
    indices: Ints,
    data: NDArray[Any],
    to_indptr: Ints,
    to_indices: Ints,
    to_data: NDArray[Any],
    threads: int,
) -> None:
    """Write the transpose of a CSR matrix."""
    row_offsets(indices, to_indptr)
    order = np.argsort(indices, kind="stable")
    to_indices[:] = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))[order]
    to_data[:] = data[order]


def sort_rows(
    indptr: Ints, indices: Ints, columns: list[NDArray[Any]], threads: int
) -> None:
    """Sort the entries of each row by index, in place."""
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    order = np.lexsort((indices, rows))
    for column in (indices, *columns):
        column[:] = column[order]
