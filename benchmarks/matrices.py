"""Matrices for the SVD benchmark."""

from __future__ import annotations

import re

import numpy as np
import scipy.sparse as sp
from generated import movielens_shaped
from measuring import datasets

from recsys.readers import read_ratings

__all__ = [
    "cranfield",
    "cranfield_counts",
    "decaying",
    "degree_normalised",
    "gowalla",
    "movielens_shaped",
    "rating_counts",
]


def gowalla() -> sp.csr_array:
    """Return the published training part of Gowalla: 29,858 users x 40,981 places, all ones."""
    return read_ratings(datasets() / "gowalla" / "train.txt").matrix


def degree_normalised(A: sp.csr_array) -> sp.csr_array:
    """Divide each entry by the square roots of its row's and its column's sum."""
    left, right = (1 / np.sqrt(np.maximum(A.sum(axis=axis), 1)) for axis in (1, 0))
    return sp.csr_array(sp.diags_array(left) @ A @ sp.diags_array(right))


def cranfield() -> sp.csr_array:
    """Return the tf-idf matrix of the Cranfield abstracts, documents in rows."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    return sp.csr_array(TfidfVectorizer(sublinear_tf=True).fit_transform(_abstracts()))


def cranfield_counts() -> sp.csr_array:
    """Return the counts of words in the Cranfield abstracts, without English stop words."""
    from sklearn.feature_extraction.text import CountVectorizer

    return sp.csr_array(
        CountVectorizer(stop_words="english").fit_transform(_abstracts())
    )


def _abstracts() -> list[str]:
    text = (datasets() / "cranfield" / "cran.all.1400").read_text()
    return re.findall(r"^\.W\n(.*?)(?=^\.I |\Z)", text, flags=re.MULTILINE | re.DOTALL)


def rating_counts() -> sp.csr_array:
    """Return ml-latest-small, 610 users x 9,724 films, with ratings as counts of stars."""
    return read_ratings(datasets() / "ml-latest-small").matrix


def decaying(rows: int = 20_000, columns: int = 2_000) -> np.ndarray:
    """Return a dense array whose i-th singular value is about 1 / i."""
    rng = np.random.default_rng(0)
    mixed = rng.standard_normal((rows, columns)) / np.arange(1, columns + 1)
    return mixed @ np.linalg.qr(rng.standard_normal((columns, columns)))[0]
