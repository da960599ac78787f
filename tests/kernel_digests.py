"""Digests of what each kernel computes: the same for every compiler, within an instruction set.

``python tests/kernel_digests.py`` writes the file that the tests compare with. The inputs are
fractions of integers, so that no library has a say in them. Left out are the results
of logarithms and exponentials, which are those of the system's C library.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from lowrank import kernels
from lowrank.kernels import CsrArrays
from lowrank.kernels.posteriors import posterior_half_sweep
from lowrank.kernels.retrieval import (
    gram_rows,
    pair_rows,
    sparse_pairs,
    sparse_rows,
    sum_rows,
    top_k,
)
from lowrank.kernels.topk import mixed

FILE = Path(__file__).parent / "lowrank/kernel_digests.txt"
RANKS = 1, 5, 16, 19, 33, 64, 130
ROWS, COLUMNS = 43, 90
Arrays = list[NDArray[np.generic]]


def hashes(seed: int, shape: tuple[int, ...], bits: int = 16) -> NDArray[np.int64]:
    """Return pseudo-random integers of some bits."""
    counters = np.arange(np.prod(shape), dtype=np.uint64) + np.uint64(seed << 32)
    return (mixed(counters) >> np.uint64(64 - bits)).astype(np.int64).reshape(shape)


def numbers(seed: int, *shape: int, dtype: type = np.float32) -> NDArray[np.floating]:
    """Return numbers of 16 bits between -2 and 2, for float64 of 40."""
    bits = 16 if dtype is np.float32 else 40
    return (hashes(seed, shape, bits) / 2.0 ** (bits - 2) - 2).astype(dtype)


def positive(seed: int, *shape: int, dtype: type = np.float32) -> NDArray[np.floating]:
    """Return such numbers between 1 and 5."""
    return numbers(seed, *shape, dtype=dtype) + dtype(3)


def sparse(seed: int, rows: int, columns: int, dtype: type = np.float32) -> CsrArrays:
    """Return a matrix whose rows have from none to all entries."""
    filled = hashes(seed, (rows, columns)) * rows < 2**16 * np.arange(rows)[:, None]
    values = positive(seed + 1, rows, columns, dtype=dtype)
    return kernels.csr_arrays(sp.csr_array(np.where(filled, values, dtype(0))))


def als(dtype: type) -> Arrays:
    """Return factors, biases and objectives of rows with few and with many entries."""
    results: Arrays = []
    for k in RANKS:
        matrix = sparse(k, ROWS, COLUMNS, dtype)
        weights = positive(6, len(matrix.data), dtype=dtype)
        for form in ({}, {"weights": weights}, {"nonnegative": True}):
            factors, bias = np.zeros((ROWS, k), dtype), np.empty(ROWS, dtype)
            objective = kernels.als_half_sweep(
                matrix,
                numbers(2, COLUMNS, k, dtype=dtype),
                other_bias=numbers(3, COLUMNS, dtype=dtype),
                shift=0.25,
                penalty=positive(4, ROWS),
                bias_penalty=positive(5, ROWS),
                factors=factors,
                bias=bias,
                threads=2,
                **form,
            )
            results += [factors, bias, objective]
    return results


def implicit(dtype: type) -> Arrays:
    """Return factors and objectives for several Gram matrices, and for one block."""
    results: Arrays = []
    for k in RANKS:
        weights = sparse(k, ROWS, COLUMNS, dtype)
        short = numbers(8, COLUMNS, k).astype(float)
        gram = short.T @ short  # exact in any order of the additions
        residual = numbers(6, len(weights.data), dtype=dtype)
        for form in (
            {"gram": np.diag(np.diag(gram))},
            {"gram": gram},
            {"gram": gram, "nonnegative": True},
            {"gram": gram, "residual": residual},
        ):
            factors = numbers(7, ROWS, k, dtype=dtype)
            objective = kernels.implicit_half_sweep(
                weights,
                numbers(2, COLUMNS, k, dtype=dtype),
                penalty=positive(4, ROWS),
                factors=factors,
                threads=2,
                **form,
            )
            results += [factors, objective]
        factors = positive(7, ROWS, k, dtype=dtype)
        products = numbers(9, ROWS, k, dtype=dtype)
        kernels.nonnegative_descent(
            gram.astype(dtype), products, factors, passes=3, threads=2
        )
        results += [residual, factors]
    return results


def posterior(dtype: type) -> Arrays:
    """Return means, covariances and objectives."""
    results: Arrays = []
    for k in RANKS:
        d = k + 1
        covariance = np.tile(np.eye(d, dtype=dtype)[np.triu_indices(d)], (ROWS, 1))
        vectors = np.empty((ROWS, d), dtype)
        objective, _ = posterior_half_sweep(
            sparse(k, ROWS, COLUMNS, dtype),
            numbers(2, COLUMNS, d, dtype=dtype),
            prior=np.eye(d) * 8 + 0.25,
            weight=positive(3, ROWS),
            prior_right=numbers(4, ROWS, d),
            shift=0.25,
            noise_variance=0.75,
            covariance=covariance,
            vectors=vectors,
            threads=2,
        )
        results += [vectors, covariance, objective]
    return results


def products(dtype: type) -> Arrays:
    """Return products of sparse and dense blocks of several widths, and entries of them."""
    A = sparse(1, ROWS, COLUMNS, dtype)
    results: Arrays = []
    for width in (1, 2, 3, 6, 7, 31, 70):
        X, Z = (
            numbers(2, COLUMNS, width, dtype=dtype),
            numbers(3, ROWS, width, dtype=dtype),
        )
        results.append(kernels.csr_matmat(A, X, threads=2))
        results.append(kernels.csr_rmatmat(A, Z, COLUMNS, threads=2))
        results.append(kernels.csr_entries(A, Z, X, threads=2))
    return results


def bases(dtype: type) -> Arrays:
    """Return products of tall matrices, and projections."""
    results: Arrays = []
    for size, width in ((1, 1), (7, 3), (24, 30), (40, 64)):
        n = 1500
        V, W = numbers(1, n, size, dtype=dtype) / 64, numbers(2, n, width, dtype=dtype)
        H = kernels.coefficients(V, W, threads=2)
        distances = kernels.squared_distances(
            W, W / 2, positive(3, width, dtype=dtype), threads=2
        )
        results += [H, kernels.multiply(V, H, threads=2), distances]
        rest = W.copy()
        kernels.subtract(V, H, rest, threads=2)
        inside, gram = kernels.project(V, W, again=True, threads=2)
        results += [rest, W, inside, gram]
    return results


def retrieval(dtype: type) -> Arrays:
    """Return the best items, scores of pairs, sparse scores and similarities."""
    results: Arrays = []
    for k in RANKS:
        users, items = numbers(1, 300, k), numbers(2, 700, k)
        bias = numbers(3, 700)
        for few in (users, users[:1]):
            results += top_k(few, items, 10, bias=bias, threads=2)[:2]
        pairs = np.arange(300)
        results.append(kernels.pair_dots(users, items, pairs, 2 * pairs, threads=2))
    history, weights = sparse(4, ROWS, COLUMNS), sparse(5, COLUMNS, 120)
    part = kernels.SparsePart(history, weights)
    factors = numbers(1, ROWS, 8), numbers(2, 120, 8)
    results += top_k(*factors, 10, sparse=part, threads=2)[:2]
    results.append(sparse_rows(history, weights, 120, threads=2))
    columns = np.arange(ROWS) * 2
    results.append(sparse_pairs(history, weights, np.arange(ROWS), columns, threads=2))
    results.append(sum_rows(weights, columns, numbers(6, ROWS), 120))
    by_column = kernels.transposed(history, COLUMNS)
    scales = {"scale": positive(7, COLUMNS), "out": positive(8, COLUMNS)}
    rows = slice(0, COLUMNS)
    weight = numbers(9, ROWS)
    results += gram_rows(
        history, by_column, rows, 20, weight=weight, **scales, threads=2
    )
    items, lags = history.indices, np.arange(len(history.indices))[::-1] % 9 + 1
    by_place = history._replace(indptr=np.arange(len(items) + 1))
    results += pair_rows(
        items,
        history.data,
        lags.astype(np.int32),
        positive(10, 6),
        kernels.transposed(by_place, COLUMNS),
        np.arange(COLUMNS),
        20,
        threads=2,
    )
    return results


SUBJECTS: dict[Callable[[type], Arrays], tuple[type, ...]] = {
    als: (np.float32, np.float64),
    implicit: (np.float32, np.float64),
    posterior: (np.float32, np.float64),
    products: (np.float32, np.float64),
    bases: (np.float32, np.float64),
    retrieval: (np.float32,),
}


def digests(instruction_set: str) -> list[str]:
    """Return a line for each kind of kernel: instruction set, type, kind, digest."""
    before = kernels.backend().instruction_set or "reference"
    kernels.use(instruction_set)
    lines = []
    for subject, dtypes in SUBJECTS.items():
        for dtype in dtypes:
            digest = hashlib.sha256()
            for array in subject(dtype):
                digest.update(np.ascontiguousarray(array).tobytes())
            name = f"{instruction_set} {np.dtype(dtype)} {subject.__name__}"
            lines.append(f"{name} {digest.hexdigest()[:16]}")
    kernels.use(before)
    return lines


def main() -> None:
    """Write the digests of all instruction sets of this machine."""
    lines = [line for name in kernels.supported()[1:] for line in digests(name)]
    FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
