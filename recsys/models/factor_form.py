"""Scores as sums of products of factors and sparse parts."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from lowrank import kernels
from lowrank.kernels.retrieval import sparse_pairs, sparse_rows
from recsys.data.arrays import Floats, Longs


class FactorForm(NamedTuple):
    """Scores as sums of products of factors and sparse parts, for the compiled top-N search.

    The score of an item i for a user u is ``((offset_u + bias_i) + x_u . y_i) + sum_j h_uj S_ji``,
    with vectors x_u and y_i in the rows of `users` and `items`, and histories h and item-item
    weights S in `sparse`. With `weight`, scores are weighted cosines instead: ``weight_i
    clip((offset_u bias_i) (x_u . y_i), -1, 1)``, which the methods ignore.
    """

    users: Floats
    items: Floats
    offset: Floats | None = None
    bias: Floats | None = None
    weight: Floats | None = None
    sparse: kernels.SparsePart | None = None

    @classmethod
    def of_biases(cls, bias: Floats, offset: Floats) -> Self:
        """Return scores without factors: an offset for each user, and a bias for each item."""
        users = np.zeros((len(offset), 0), np.float32)
        items = np.zeros((len(bias), 0), np.float32)
        return cls(users, items, offset, bias)

    def pairs(
        self,
        rows: Longs,
        items: Longs,
        threads: int | None = None,
    ) -> Floats:
        """Return the scores of pairs, shape (n_pairs,), bit for bit as the top-N search."""
        # The order of the sums is the kernel's: offset, bias, factors, sparse part.
        scores = np.zeros(len(items), np.float32)
        if self.offset is not None:
            scores += self.offset[rows]
        if self.bias is not None:
            scores += self.bias[items]
        scores += kernels.pair_dots(
            self.users,
            self.items,
            rows,
            items,
        )
        if self.sparse is not None:
            history, weights, order = self.sparse
            columns = items
            if order is not None:
                column_of = np.empty(len(order), np.int64)
                # The order maps columns to items; a pair needs the inverse.
                column_of[order] = np.arange(len(order))
                columns = column_of[items]
            scores += sparse_pairs(
                history,
                weights,
                rows,
                columns,
                threads=threads,
            )
        return scores

    def scores(self, threads: int | None = None) -> Floats:
        """Return all scores, shape (n_block, n_items); rounding depends on the block."""
        scores: Floats = self.users @ self.items.T
        if self.bias is not None:
            scores += self.bias
        if self.offset is not None:
            scores += self.offset[:, None]
        if self.sparse is not None:
            history, weights, order = self.sparse
            linear = sparse_rows(
                history,
                weights,
                len(self.items),
                threads=threads,
            )
            if order is not None:
                linear = linear.take(np.argsort(order), axis=1)
            scores += linear
        return scores

    def error(self) -> Floats:
        """Return bounds on ``|scores - pairs|``, shape (n_block,).

        A sum of k + 4 terms, in any order, has an error of at most ``(k + 4) u`` times the sum of
        the absolute terms (u = 2^-24, Higham 2002, section 3.1), which the Cauchy-Schwarz
        inequality bounds. The sparse part is one term, with the same bits in both sums.
        """
        lengths = np.linalg.norm(self.items, axis=1)
        size: Floats = np.linalg.norm(self.users, axis=1) * lengths.max(initial=0)
        if self.offset is not None:
            size += np.abs(self.offset)
        if self.bias is not None:
            size += np.abs(self.bias).max(initial=0)
        if self.sparse is not None:
            history, weights, _ = self.sparse
            rows = np.repeat(np.arange(len(size)), np.diff(history.indptr))
            totals = np.bincount(
                rows,
                np.abs(history.data),
                minlength=len(size),
            )
            size += totals.astype(np.float32) * np.abs(weights.data).max(initial=0)
        terms = self.items.shape[1] + 5
        return size * np.float32(2 * terms * np.finfo(np.float32).eps)
