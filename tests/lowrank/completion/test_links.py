"""Linked least squares against its definition."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from lowrank.completion.linked_als import linked_als_sweeps


def random_ratings(n=40, m=25, density=0.4, seed=0):
    rng = np.random.default_rng(seed)
    return sp.random_array(
        (n, m), density=density, rng=rng, format="csr", data_sampler=rng.standard_normal
    )


def scaled_pattern(X):
    counts = np.maximum(np.diff(X.indptr), 1)
    return (X != 0).toarray() / np.sqrt(counts)[:, None], counts


def penalty(X, vectors, prior, link_penalty):
    """Return the penalties of one side, from the formula."""
    S, counts = scaled_pattern(X)
    weight = np.where(np.diff(X.indptr) > 0, counts**prior.count_power, 0)
    off = vectors - prior.mean - S @ prior.link
    ridge = link_penalty * weight.sum() / np.count_nonzero(weight)
    P = prior.precision
    return weight @ np.einsum("ij,jk,ik->i", off, P, off) + ridge * np.trace(
        prior.link @ P @ prior.link.T
    )


def test_objective_and_rmse_are_what_they_say():
    X = random_ratings()
    for sweep in islice(
        linked_als_sweeps(X, 3, regularization=0.7, link_penalty=4.0), 3
    ):
        f = sweep.factors
        whole = (
            f.mean
            + f.row_bias[:, None]
            + f.column_bias
            + f.row_factors @ f.column_factors.T
        )
        errors = (X.toarray() - whole)[(X != 0).toarray()]
        assert sweep.rmse == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-9)
        rows = np.column_stack([f.row_factors, f.row_bias])
        columns = np.column_stack([f.column_factors, f.column_bias])
        expected = errors @ errors + penalty(X, rows, sweep.row_prior, 4.0)
        expected += penalty(X.T.tocsr(), columns, sweep.column_prior, 4.0)
        assert sweep.objective == pytest.approx(expected, rel=1e-9)


@given(
    n=st.integers(1, 30),
    m=st.integers(1, 30),
    k=st.integers(1, 4),
    density=st.floats(0.05, 1),
    link_penalty=st.sampled_from([0.3, 10.0]),
    seed=st.integers(0, 1000),
)
def test_the_objective_falls_at_every_half_sweep(n, m, k, density, link_penalty, seed):
    X = random_ratings(n, m, density, seed)
    if X.nnz == 0:
        return
    path = []
    sweeps = linked_als_sweeps(X, k, regularization=0.5, link_penalty=link_penalty)
    for sweep in islice(sweeps, 6):
        path += [sweep.half_objective, sweep.objective]
    assert (np.diff(path) <= 1e-9 * np.abs(path[0]) + 1e-9).all()


def test_another_unit_of_the_ratings_changes_nothing_with_features():
    """What features are charged depends on the noise, which has the ratings' unit."""
    X, rng = random_ratings(60, 30), np.random.default_rng(1)
    F = SimpleNamespace(
        matrix=sp.csr_array(rng.standard_normal((30, 6))), groups={"": slice(0, 6)}
    )

    def entries(factor):
        sweeps = linked_als_sweeps(X * factor, 3, regularization=0.5, column_features=F)
        f = next(islice(sweeps, 3, None)).factors
        return (
            f.mean
            + f.row_bias[:, None]
            + f.column_bias
            + f.row_factors @ f.column_factors.T
        )

    np.testing.assert_allclose(entries(100.0), 100 * entries(1.0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"link_penalty": -1.0}, r"link_penalty must be 0 or positive; got -1\.0"),
        (
            {"regularization": -1.0},
            r"regularization must be positive and finite; got -1\.0",
        ),
        ({"k": 0}, "k must be at least 1; got 0"),
        (
            {"X": sp.csr_array((3, 3))},
            "X must have at least one stored entry; got none",
        ),
    ],
)
def test_bad_arguments_raise(options, message):
    defaults = {
        "X": random_ratings(),
        "k": 2,
        "regularization": 1.0,
        "link_penalty": 1.0,
    }
    with pytest.raises(ValueError, match=message):
        next(linked_als_sweeps(**(defaults | options)))
