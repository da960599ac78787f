"""Weights are those of the formulas."""

import numpy as np
import pytest
from scipy import sparse

from recsys.errors import DataError
from recsys.lsi.space import Weighting, canonical_csr

COUNTS = np.array([[3.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 2.0], [2.0, 4.0, 0.0]])


def weighted(name, counts=COUNTS):
    csr = canonical_csr(counts)
    return Weighting.learn(name, csr).apply(csr).toarray()


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_tfidf():
    inverse_frequency = np.log(5 / np.array([3, 2, 1]))
    local = np.where(COUNTS > 0, 1 + np.log(np.maximum(COUNTS, 1)), 0)
    np.testing.assert_allclose(weighted("tfidf"), unit(local * inverse_frequency))


def test_log_entropy():
    shares = COUNTS / COUNTS.sum(axis=0)
    information = np.where(
        shares > 0, shares * np.log(np.where(shares > 0, shares, 1)), 0
    )
    entropy = 1 + information.sum(axis=0) / np.log(4)
    np.testing.assert_allclose(
        weighted("log-entropy"), unit(np.log1p(COUNTS) * entropy)
    )


def test_a_term_spread_evenly_has_no_entropy_weight():
    csr = canonical_csr(np.ones((4, 1)))
    assert Weighting.learn("log-entropy", csr).term_weights == pytest.approx(
        [0.0], abs=1e-12
    )


def test_counts_are_left_as_they_are():
    np.testing.assert_array_equal(weighted("count"), COUNTS)
    np.testing.assert_array_equal(weighted("count", -COUNTS), -COUNTS)


@pytest.mark.parametrize("name", ["tfidf", "log-entropy"])
def test_one_document_has_weights(name):
    assert (weighted(name, np.array([[2.0, 1.0]])) > 0).all()


@pytest.mark.parametrize("name", ["tfidf", "log-entropy"])
def test_negative_counts_are_rejected(name):
    with pytest.raises(DataError, match=f"weighting '{name}' needs counts.*got -4"):
        weighted(name, -COUNTS)


def test_small_values_keep_their_sign_and_order():
    weights = weighted("tfidf", np.array([[0.01, 0.5, 1.0, 1.1], [1, 0, 0, 0]]))
    assert (weights[0] > 0).all()
    assert (np.diff(weights[0, 1:]) > 0).all()


def test_documents_have_length_one_and_empty_ones_zero():
    csr = canonical_csr(np.vstack([COUNTS, np.zeros(3)]))
    rows = Weighting.learn("tfidf", csr).apply(csr)
    np.testing.assert_allclose(rows.power(2).sum(axis=1), [1, 1, 1, 1, 0])


def test_a_matrix_wrongly_marked_as_sorted_is_sorted():
    csr = sparse.csr_array(([1.0, 2.0], [1, 0], [0, 2]), shape=(1, 2))
    csr.has_sorted_indices = True
    assert canonical_csr(csr).indices.tolist() == [0, 1]
    assert canonical_csr(csr).data.tolist() == [2.0, 1.0]


def test_whole_numbers_are_weighted_as_the_same_fractions():
    whole = canonical_csr(COUNTS.astype(np.int64))
    assert whole.dtype == np.float64
    np.testing.assert_array_equal(whole.toarray(), COUNTS)
