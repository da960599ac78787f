"""Sparse matrices in files have the entries that SciPy gives them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from recsys import Ratings, read_ratings

USERS, ITEMS = [0, 0, 0, 1, 1], [0, 0, 1, 1, 2]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8, np.int64])
@pytest.mark.parametrize("form", ["coo", "csr", "csc"])
def test_repeated_entries_of_npz_are_added(
    dtype: type, form: str, tmp_path: Path
) -> None:
    values = np.array([100, 100, 3, 4, 5], dtype)
    matrix = sp.coo_matrix((values, (USERS, ITEMS)), shape=(2, 3))
    if form != "coo":
        indptr = np.array([0, 3, 5])
        compressed = {"csr": sp.csr_matrix, "csc": sp.csc_matrix}[form]
        shape = (2, 3) if form == "csr" else (3, 2)
        matrix = compressed((values, np.array(ITEMS), indptr), shape=shape)
    sp.save_npz(tmp_path / "x.npz", matrix)
    expected = Ratings.from_matrix(matrix)
    found = read_ratings(tmp_path / "x.npz")
    assert sorted(found.to_frame().rows()) == sorted(expected.to_frame().rows())
    assert found.values.max() == 200


@pytest.mark.parametrize("field", ["real", "integer", "pattern"])
def test_repeated_entries_of_matrix_market_are_added(
    field: str, tmp_path: Path
) -> None:
    value = "" if field == "pattern" else " 1"
    lines = [f"%%MatrixMarket matrix coordinate {field} general", "2 3 5"]
    lines += [
        f"{user + 1} {item + 1}{value}" for user, item in zip(USERS, ITEMS, strict=True)
    ]
    (tmp_path / "x.mtx").write_text("\n".join([*lines, ""]))
    found = read_ratings(tmp_path / "x.mtx").to_frame().sort("user", "item")
    assert found["rating"].to_list() == [2, 1, 1, 1]
    assert found["user"].to_list() == [1, 1, 2, 2]
