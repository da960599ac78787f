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

from lowrank.kernels.arrays import Codes, Float64s, Floats, Hashes, Ints
from lowrank.kernels.topk import SearchOrder, Seen, Stops, Ties, TopK, mixed

_BLOCK_FLOATS = 2**22  # numbers in each array of gathered rows: 16 MB
_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}")
_DECIMAL = re.compile(r"-?(?=[\d.]{1,16}$)\d+(\.\d+)?")


def _csr(
    indptr: Ints,
    indices: Ints,
    data: Floats,
    n_columns: int,
) -> Any:
    from scipy import sparse  # slow to import

    shape = len(indptr) - 1, n_columns
    if len(data) == 1:  # the value of all entries
        data = np.full(len(indices), data[0])
    return sparse.csr_array((data, indices, indptr), shape=shape)


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
    objective: Float64s,
    threads: int,
    weights: Floats | None = None,
    nonnegative: bool = False,
) -> None:
    """Solve one weighted ridge regression per row, exactly."""
    k = other.shape[1]
    for row in range(len(factors)):
        observed = slice(indptr[row], indptr[row + 1])
        columns = indices[observed]
        if len(columns) == 0:  # the penalties alone have their minimum at zero
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
        # Without a bias its column is zero: any penalty leaves it at zero.
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


def _nonnegative_solution(
    system: Floats,
    right: Floats,
    k: int,
) -> Floats:
    """Minimise x'Ax - 2b'x over x with the first k unknowns not negative, the others free."""
    from scipy.optimize import nnls  # slow to import

    # With A = R'R it is the least squares problem of R x = R'^-1 b.
    values, axes = np.linalg.eigh(system.astype(np.float64))
    positive = values > len(values) * np.finfo(np.float64).eps * values[-1]
    roots = np.sqrt(values[positive])
    axes = axes[:, positive].T
    design = roots[:, None] * axes
    # A free unknown is the difference of two that are not negative.
    design = np.hstack([design, -design[:, k:]])
    split, _ = nnls(design, axes @ right / roots)
    solution = split[: len(right)]
    solution[k:] -= split[len(right) :]
    return solution.astype(right.dtype)


def implicit_half_sweep(
    indptr: Ints,
    indices: Ints,
    data: Floats,
    other: Floats,
    gram: Floats,
    penalty: Floats,
    factors: Floats,
    objective: Float64s,
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
        if residual is not None:  # the errors of the other blocks alone
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
    gram: Floats,
    products: Floats,
    factors: Floats,
    passes: int,
    threads: int,
) -> None:
    """Minimise x'Gx - 2p'x over one unknown at a time, for all rows at once."""
    for _ in range(passes):
        for i, row in enumerate(gram):
            if row[i] > 0:
                slope = factors @ row - products[:, i]
                lowest = factors[:, i] - slope / row[i]
                factors[:, i] = np.maximum(lowest, 0)


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
    covariance: Floats,
    vectors: Floats,
    objective: Float64s,
    log_det: Float64s,
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
            summed[triangle] = summed.T[triangle] = covariance[row]
            system[:-1, :-1] += summed[:-1, :-1]
            right[:-1] -= summed[:-1, -1]
            squares += summed[-1, -1]
        inverse = np.linalg.inv(system)
        vectors[row] = solution = np.linalg.solve(system, right)
        objective[row] = squares - solution.astype(np.float64) @ right
        log_det[row] = np.linalg.slogdet(system)[1]
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
    evidence: Float64s,
    threads: int,
) -> None:
    """Condition one Gaussian vector per row on its noisy observations."""
    for row in range(len(evidence)):
        observed = slice(indptr[row], indptr[row + 1])
        # Times since the first observation, whose own gap does not count
        at = np.cumsum(gaps[observed], dtype=float)
        at -= at[:1]
        distance = np.abs(at[:, None] - at)
        covariance = variance * np.exp(-distance / scale)
        total = covariance / noise + np.eye(len(at))
        values = data[observed]
        solved = np.linalg.solve(total, values / noise)
        log_det = np.linalg.slogdet(total)[1]
        evidence[row] = -0.5 * (values @ solved + log_det)
        if means.size:
            means[observed] = covariance @ solved
            inverse = np.linalg.solve(total, covariance) / noise
            explained = np.einsum("ij,ji->i", covariance, inverse)
            variances[observed] = np.diag(covariance) - explained


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
        columns = right[indices[stored]]
        products = columns[:, :-1] @ left[row, :-1]
        out[stored] = products + left[row, -1] + columns[:, -1]


def csr_matmat(
    indptr: Ints,
    indices: Ints,
    data: Floats,
    X: Floats,
    Y: Floats,
    threads: int,
) -> None:
    """Write A @ X into Y."""
    Y[:] = _csr(indptr, indices, data, len(X)) @ X


def csr_rmatmat(
    indptr: Ints,
    indices: Ints,
    data: Floats,
    X: Floats,
    Y: Floats,
    threads: int,
) -> None:
    """Write A.T @ X into Y."""
    Y[:] = _csr(indptr, indices, data, len(Y)).T @ X


def coefficients(
    V: Floats,
    W: Floats,
    P: Floats,
    threads: int,
) -> None:
    """Write V.T @ W into P."""
    P[:] = V.T @ W


def multiply(
    V: list[Floats],
    H: Floats,
    W: Floats,
    threads: int,
) -> None:
    """Write V @ H into W."""
    W[:] = np.hstack(V) @ H


def subtract(
    V: Floats,
    H: Floats,
    W: Floats,
    threads: int,
) -> None:
    """Subtract V @ H from W."""
    W -= V @ H


def project(
    V: list[Floats],
    first: int,
    again: bool,
    W: Floats,
    inside: Floats,
    gram: Floats,
    threads: int,
) -> None:
    """Subtract the projection of W on V; write its coefficients, and W.T @ W of the rest."""
    inside[:] = 0
    # The second pass removes what rounding has left in all columns.
    for panels in (V[first:], V)[: 1 + again]:
        basis = np.hstack([W[:, :0], *panels])
        part = basis.T @ W
        inside[len(inside) - len(part) :] += part
        W -= basis @ part
    gram[:] = W.T @ W


def squared_distances(
    P: Floats,
    V: Floats,
    s: Floats,
    squares: Floats,
    threads: int,
) -> None:
    """Write the squared norm of each column of P - V * s into `squares`."""
    squares[:] = ((P - V * s) ** 2).sum(axis=0)


def place(
    W: Floats,
    V: Floats,
    threads: int,
) -> None:
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
        history, weights = sparse
        sums = np.empty((len(users), len(order.items)), np.float32)
        sparse_rows(*history, *weights, sums, threads)
    columns = np.argsort(order.items)
    candidates = order.items[columns].astype(np.int64)
    found.items[:] = -1
    found.scores[:] = -np.inf
    for query in range(len(users)):
        rows = np.full(len(candidates), query)
        dots = np.empty(len(candidates), np.float32)
        pair_dots(users, items, rows, candidates, dots, threads)
        if weight is None:
            scores = (offset[query] + bias[candidates]) + dots
            if sums is not None:
                scores += sums[query, columns]
        else:
            cosines = np.clip(dots * (offset[query] * bias[candidates]), -1, 1)
            scores = cosines * weight[candidates]
        is_valid = scores > -np.inf
        if seen is not None:
            row = seen.rows[query]
            rated = seen.indices[seen.indptr[row] : seen.indptr[row + 1]]
            is_valid &= ~np.isin(candidates, rated)
        valid = candidates[is_valid]
        scores = scores[is_valid] + np.float32(0)  # no minus zero
        order_of_ties = valid if ties is None else ties.places(rows[is_valid], valid)
        # The last key counts first.
        best = np.lexsort((order_of_ties, -scores))[: found.items.shape[1]]
        count = len(best)
        found.counts[query] = count
        found.items[query, :count] = valid[best]
        found.scores[query, :count] = scores[best]


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
    n_columns = int(indices.max(initial=0)) + 1
    history = _csr(history_indptr, history_indices, history_data, len(indptr) - 1)
    product = history @ _csr(indptr, indices, data, n_columns)
    is_inside = columns < n_columns
    found[:] = 0
    found[is_inside] = product[rows[is_inside], columns[is_inside]]


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
    n_columns = Y.shape[1]
    history = _csr(history_indptr, history_indices, history_data, len(indptr) - 1)
    Y[:] = (history @ _csr(indptr, indices, data, n_columns)).toarray()


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
    for row in range(len(counts)):
        entries = slice(*column_indptr[first + row :][:2])
        users = column_indices[entries]
        history = column_data[entries] * weight[users]
        sums = np.empty((1, len(out)), np.float32)
        one_row = np.array([0, len(users)])
        sparse_rows(one_row, users, history, indptr, indices, data, sums, threads)
        # In the order of the compiled kernel, so that the bits are equal
        sums[0] *= scale[first + row] * out
        _write_largest(sums[0], row, columns, values, counts)


def pair_rows(
    indptr: Ints,
    places: Ints,
    place_weights: Floats,
    items: Ints,
    weights: Floats,
    lags: Ints,
    decay: Floats,
    n_cols: int,
    rows: Ints,
    columns: Ints,
    values: Floats,
    counts: Ints,
    threads: int,
) -> None:
    """Write the largest sums over pairs of an item and a later one of the same sequence."""
    for row, item in enumerate(rows):
        entries = slice(*indptr[item:][:2])
        sums = np.zeros(n_cols, np.float32)
        for place, weight in zip(places[entries], place_weights[entries], strict=True):
            n_later = min(lags[place], len(decay)) - 1
            later = slice(place + 1, place + 1 + n_later)
            terms = weight * (decay[1 : n_later + 1] * weights[later])
            np.add.at(sums, items[later], terms)
        _write_largest(sums, row, columns, values, counts)


def _write_largest(
    sums: Floats,
    row: int,
    columns: Ints,
    values: Floats,
    counts: Ints,
) -> None:
    """Write the largest entries of a row, sorted by column."""
    best = np.argsort(-np.abs(sums), kind="stable")
    best = best[: columns.shape[1]]
    largest_columns = np.sort(best[sums[best] != 0])
    counts[row] = count = len(largest_columns)
    columns[row, :count] = largest_columns
    values[row, :count] = sums[largest_columns]


def pair_dots(
    left: Floats,
    right: Floats,
    rows: Ints,
    others: Ints,
    dots: Floats,
    threads: int,
) -> None:
    """Write the dot products of left[rows] with right[others] into `dots`."""
    block = _BLOCK_FLOATS // max(1, left.shape[1])
    for start in range(0, len(rows), block):
        part = slice(start, start + block)
        np.einsum("ij,ij->i", left[rows[part]], right[others[part]], out=dots[part])


def sum_rows(
    indptr: Ints,
    indices: Ints,
    data: Floats,
    rows: Ints,
    factors: Floats,
    out: Floats,
) -> None:
    """Add rows of a CSR matrix, each times its factor, to `out`."""
    for row, factor in zip(rows.tolist(), factors, strict=True):
        stored = slice(indptr[row], indptr[row + 1])
        out[indices[stored]] += factor * data[stored]


def hash_texts(
    bytes: Codes,
    offsets: Ints,
    hashes: Hashes,
) -> None:
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
    positions = np.flatnonzero(scores > -np.inf)
    order = np.argsort(-scores[positions], kind="stable")
    best = positions[order[: len(found)]]
    found[: len(best)] = best
    return len(best)


def code_levels(
    values: Floats,
    codes: Ints,
    levels: Floats,
    count: int,
) -> int:
    """Write the code of each value, and new levels; return the number of levels, -1 if too many."""
    bits = values.view(np.uint32)
    _, first = np.unique(bits, return_index=True)
    is_new = ~np.isin(bits, levels[:count].view(np.uint32))
    new = [position for position in np.sort(first) if is_new[position]]
    if count + len(new) > len(levels):
        return -1
    levels[count : count + len(new)] = values[new]
    count += len(new)
    order = np.argsort(levels[:count].view(np.uint32))
    codes[:] = order[np.searchsorted(levels[order].view(np.uint32), bits)]
    return count


def code_keys(
    keys: Ints,
    codes: Ints,
    distinct: Ints,
    count: int,
    slots: Ints,
) -> tuple[int, int]:
    """Write the code of each key, and new keys; return how many are coded and how many distinct."""
    code_of = {key: code for code, key in enumerate(distinct[:count].tolist())}
    all_codes = [code_of.setdefault(key, len(code_of)) for key in keys.tolist()]
    if len(code_of) > len(distinct):
        return 0, count
    codes[:] = all_codes
    distinct[: len(code_of)] = list(code_of)
    return len(keys), len(code_of)


def look_up(
    keys: Ints,
    table: Ints,
    found: Ints,
    threads: int,
) -> None:
    """Write the entry of the table at each key."""
    found[:] = table[keys]


def read_rows(
    text: Ints,
    mark: str,
    width: int,
    places: list[int],
    arrays: list[NDArray[Any]],
) -> int:
    """Write the numbers in columns of a text; return the number of rows, -1 if it is not plain."""
    n_rows, block = 0, text.tobytes()
    room = min((len(array) for array in arrays), default=sys.maxsize)
    if b'"' in block or not block.isascii():  # quoted fields need a real parser
        return -1
    for line in re.split("\r?\n", block.decode()):
        fields = line.split(mark)
        if line and (len(fields) != width or n_rows == room):
            return -1
        for column, array in zip(places if line else (), arrays, strict=False):
            form = _INTEGER if array.dtype == np.int64 else _DECIMAL
            if not form.fullmatch(fields[column]):
                return -1
            array[n_rows] = array.dtype.type(fields[column])
        n_rows += bool(line)
    return n_rows


def row_offsets(rows: Ints, indptr: Ints) -> bool:
    """Write the row starts of entries; return whether the rows are in ascending order."""
    counts = np.bincount(rows, minlength=len(indptr) - 1)
    indptr[0] = 0
    indptr[1:] = np.cumsum(counts)
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
    transposed = _csr(indptr, indices, data, len(to_indptr) - 1).tocsc()
    to_indptr[:] = transposed.indptr
    to_indices[:] = transposed.indices
    to_data[:] = transposed.data[: len(to_data)]


def sort_rows(
    indptr: Ints,
    indices: Ints,
    columns: list[NDArray[Any]],
    threads: int,
) -> None:
    """Sort the entries of each row by index, in place."""
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    order = np.lexsort((indices, rows))
    for column in (indices, *columns):
        column[:] = column[order]
