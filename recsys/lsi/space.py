"""The latent space: singular values and term directions of a weighted document-by-term matrix."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys.errors import DataError

__all__ = ["DEFAULT_RANK", "RULES", "Space", "decompose", "default_rank"]

Floats = NDArray[np.floating[Any]]

RULES = ("elbow", "profile", "energy", "gavish-donoho", "parallel", "cv", "mle")
DEFAULT_RANK = 200
_SHARE = 3  # documents (or terms) for each dimension, at least, by default


@dataclass(frozen=True, eq=False)
class Space:
    """Directions of terms, with their singular values.

    Attributes
    ----------
    components : ndarray of shape (k, n_terms)
        Orthonormal rows, U_k' of the term-by-document matrix.
    singular_values : ndarray of shape (k,)
    """

    components: Floats
    singular_values: Floats

    def project(self, rows: Any) -> Floats:
        """Return ``rows @ components.T``, shape (n_rows, k), of CSR rows.

        For a training document it is its row of V_k S_k; for others it is the fold-in.
        """
        components = self.components
        used = np.unique(rows.indices)
        if 4 * len(used) < rows.shape[1]:  # a query: the directions of its few terms are enough
            rows, components = rows[:, used], components[:, used]
        projected = rows @ np.ascontiguousarray(components.T)
        return np.ascontiguousarray(projected, dtype=components.dtype)


def default_rank(shape: tuple[int, int]) -> int:
    """Return the number of dimensions if none is asked for: 200, fewer for small collections.

    Collections of some thousand documents are served about equally well by 150 to 300 dimensions;
    random parts of Cranfield of 200 to 700 documents best by a fifth to a half of their number.
    """
    return max(1, min(DEFAULT_RANK, max(2, min(shape) // _SHARE), *shape))


def decompose(weighted: Any, n_components: int | str | None, random_state: Any) -> Space:
    """Compute the space of a weighted document-by-term matrix.

    Parameters
    ----------
    weighted : csr_array of shape (n_documents, n_terms)
    n_components : int, str or None
        The number of dimensions, a rule of `lowrank.choose_rank`, or None for `default_rank`.
    random_state : int, Generator, RandomState or None

    Returns
    -------
    Space
        Without directions whose singular value is zero within rounding.

    Raises
    ------
    DataError
        If there is no such rule, or the number is out of its range, or no document has a weight.
    """
    from lowrank import truncated_svd

    k = _rank(weighted, n_components, random_state)
    svd = truncated_svd(weighted, k, random_state=random_state)
    rounding = svd.s[0] * max(weighted.shape) * np.finfo(svd.s.dtype).eps if k else 0
    kept = int(np.sum(svd.s > rounding))
    if not kept:
        raise DataError("There is nothing to decompose: every term has weight zero everywhere.")
    return Space(svd.Vt[:kept], svd.s[:kept])


def _rank(weighted: Any, n_components: int | str | None, random_state: Any) -> int:
    if n_components is None:
        return default_rank(weighted.shape)
    if isinstance(n_components, str):
        return _rank_by_rule(weighted, n_components, random_state)
    largest = min(weighted.shape)
    is_integer = isinstance(n_components, numbers.Integral) and not isinstance(n_components, bool)
    if not is_integer or not 1 <= n_components <= largest:
        raise DataError(
            f"n_components must be an integer from 1 to {largest} (documents or terms, whichever "
            f"are fewer), a rule such as 'elbow', or None; got {n_components!r}."
        )
    return int(n_components)


def _rank_by_rule(weighted: Any, rule: str, random_state: Any) -> int:
    from lowrank import choose_rank

    if rule not in RULES:
        raise DataError(
            f"n_components must be an integer, None, or one of {', '.join(RULES)}; got {rule!r}."
        )
    seed = 0 if random_state is None else random_state
    return max(1, choose_rank(weighted, rule, random_state=seed))
