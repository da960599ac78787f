"""Models of the library `implicit`: equality with its own, and its defects avoided."""

import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from implicit import utils
from implicit.cpu.als import AlternatingLeastSquares
from implicit.cpu.bpr import BayesianPersonalizedRanking
from implicit.cpu.lmf import LogisticMatrixFactorization
from implicit.nearest_neighbours import (
    BM25Recommender,
    CosineRecommender,
    TFIDFRecommender,
)
from threadpoolctl import threadpool_info, threadpool_limits

from lowrank import kernels
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.models.histories import Histories
from recsys.models.implicit_models import library
from recsys.models.registry import make_model
from recsys.recommender import Recommender

NAMES = ["implicit-als", "implicit-bpr", "implicit-knn", "implicit-lmf"]


@pytest.fixture(scope="module")
def ratings():
    rng = np.random.default_rng(0)
    likes = np.add.outer(np.arange(60), np.arange(25)) % 2
    return Ratings.from_matrix(
        np.where(rng.random(likes.shape) < np.where(likes, 0.4, 0.1), 1.0, np.nan),
        implicit=True,
    )


def peer_matrix(ratings):
    return sp.csr_matrix(ratings.matrix, copy=True)


def test_als_is_the_librarys(ratings):
    with kernels.one_blas_thread():
        peer = AlternatingLeastSquares(
            factors=5,
            regularization=2,
            alpha=4,
            iterations=6,
            random_state=3,
            num_threads=1,
        )
        peer.fit(peer_matrix(ratings), show_progress=False)
    model = make_model(
        "implicit-als",
        factors=5,
        regularization=2,
        alpha=4,
        iterations=6,
        random_state=3,
    ).fit(ratings)
    np.testing.assert_array_equal(model.item_factors, peer.item_factors)
    expected = peer.recalculate_user(np.arange(60), peer_matrix(ratings))
    np.testing.assert_allclose(model.user_factors, expected, rtol=1e-4, atol=1e-6)


def test_bpr_is_the_librarys(ratings):
    peer = BayesianPersonalizedRanking(
        factors=5, learning_rate=0.1, regularization=0.1, random_state=3, num_threads=1
    )
    peer.fit(peer_matrix(ratings), show_progress=False)
    model = make_model(
        "implicit-bpr", factors=5, learning_rate=0.1, regularization=0.1, random_state=3
    ).fit(ratings)
    expected = peer.user_factors @ peer.item_factors.T
    np.testing.assert_allclose(
        model.scores(np.arange(60)), expected, rtol=1e-5, atol=1e-6
    )
    assert model.item_vectors().shape == (25, 5)


def test_lmf_is_the_librarys(ratings):
    peer = LogisticMatrixFactorization(
        factors=5, neg_prop=7, random_state=3, num_threads=1
    )
    peer.fit(peer_matrix(ratings), show_progress=False)
    model = make_model(
        "implicit-lmf", factors=5, negatives=7, regularization=0.6, random_state=3
    ).fit(ratings)
    expected = peer.user_factors @ peer.item_factors.T
    np.testing.assert_allclose(
        model.scores(np.arange(60)), expected, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("weighting", "peer"),
    [
        ("cosine", CosineRecommender),
        ("tfidf", TFIDFRecommender),
        ("bm25", BM25Recommender),
    ],
)
def test_knn_is_the_librarys(ratings, weighting, peer):
    other = peer(K=6, num_threads=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.fit(peer_matrix(ratings), show_progress=False)
    model = make_model("implicit-knn", weighting=weighting, neighbors=6).fit(ratings)
    expected = (peer_matrix(ratings) @ other.similarity).toarray()
    np.testing.assert_allclose(model.scores(np.arange(60)), expected, rtol=1e-5)


@pytest.mark.parametrize("weighting", ["cosine", "tfidf", "bm25"])
def test_items_of_all_or_no_users_give_no_nan(weighting):
    table = np.where(np.arange(4) < np.array([[1], [3], [4], [4]]), 1.0, np.nan)
    for some in (
        table,
        table[:, :1],
        table[3:],
        np.pad(table, 1, constant_values=np.nan),
    ):
        model = make_model("implicit-knn", weighting=weighting).fit(
            Ratings.from_matrix(some, implicit=True)
        )
        assert np.isfinite(model.scores(np.arange(len(some)))).all()


@pytest.mark.parametrize("weighting", ["cosine", "tfidf", "bm25"])
def test_negative_ratings_make_no_nan(weighting, ratings):
    values = np.where(ratings.indices < 3, -ratings.values, ratings.values)
    negative = replace(ratings.with_values(values), implicit=False)
    model = make_model("implicit-knn", weighting=weighting).fit(negative)
    assert np.isfinite(model.scores(np.arange(60))).all()


def test_fewer_neighbours_than_requested_are_not_padded_with_item_0():
    table = np.pad(np.kron(np.eye(3), np.ones((4, 2))), ((0, 0), (1, 0)))
    ratings = Ratings.from_matrix(np.where(table > 0, 1.0, np.nan), implicit=True)
    model = make_model("implicit-knn", neighbors=5).fit(ratings)
    np.testing.assert_array_equal(np.diff(model.neighbor_indptr), [0, 2, 2, 2, 2, 2, 2])
    np.testing.assert_array_equal(np.sort(model.neighbor_items[4:6]), [3, 4])


def test_similar_items_of_knn_are_its_neighbours(ratings):
    recommender = Recommender("implicit-knn", weighting="cosine", neighbors=8).fit(
        ratings
    )
    frame = recommender.similar_items([3, 4], n=20)
    assert (frame.group_by("item", maintain_order=True).len()["len"] == 7).all()
    X = ratings.matrix.toarray()[:, [3, frame["similar"][0]]]
    cosine = X[:, 0] @ X[:, 1] / np.sqrt(X[:, 0].sum() * X[:, 1].sum())
    support = X[:, 1].sum() / (X[:, 1].sum() + 10)
    assert frame["score"][0] == pytest.approx(cosine * support, rel=1e-5)
    similarity = recommender.model.item_similarity(np.ones(25, np.float32))
    assert similarity.pair_scores(np.array([3]), np.array([3]))[0] == pytest.approx(1)


@pytest.mark.parametrize("name", NAMES)
def test_the_library_is_silent_and_leaves_blas_alone(name, ratings, monkeypatch, capfd):
    monkeypatch.setattr(
        utils, "_checked_blas_config", False
    )  # it warns once, as an error here
    with threadpool_limits(limits=2, user_api="blas"):
        make_model(name).fit(ratings)
        assert all(
            each["num_threads"] == 2
            for each in threadpool_info()
            if each["user_api"] == "blas"
        )
    assert capfd.readouterr() == ("", "")


def test_loaded_models_recommend_without_the_library(ratings, tmp_path):
    for name in NAMES:
        Recommender(name).fit(ratings).save(tmp_path / name)
    code = (
        "import sys; from recsys.recommender import Recommender\n"
        f"for name in {NAMES}:\n"
        "    frame = Recommender.load(name).recommend(3)\n"
        "    print(len(frame), 'implicit' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["10 False"] * len(NAMES)


@pytest.mark.parametrize(
    "name", ["ease", "implicit-als", "implicit-knn", "implicit-lmf"]
)
@pytest.mark.parametrize("implicit", [False, True])
def test_ratings_and_counts_matter_but_not_their_scale(name, implicit, ratings):
    counts = (
        np.random.default_rng(1).integers(1, 5, ratings.n_ratings).astype(np.float32)
    )
    scores = []
    for values in (counts, 8 * counts, np.ones_like(counts)):
        matrix = ratings.matrix.copy()
        matrix.data = values
        model = make_model(name).fit(Ratings.from_matrix(matrix, implicit=implicit))
        scores.append(model.scores([0, 1]))
    np.testing.assert_array_equal(scores[0], scores[1])
    assert not np.allclose(scores[0], scores[2], rtol=0.01)


def test_als_folds_new_ratings_in_on_the_scale_of_the_old(ratings):
    matrix = ratings.matrix.copy()
    matrix.data = np.where(np.arange(len(matrix.data)) % 2, 4, 2).astype(np.float32)
    stars = Ratings.from_matrix(matrix)
    model = make_model("implicit-als").fit(stars)
    folded = model.with_users(Histories.of(stars.take(stars.values < 3)))
    again = model._with(interaction_weight=model.interaction_weight / 2)
    ones = Histories.of(stars.take(stars.values < 3))
    expected = again.with_users(
        replace(ones, values=np.full(len(ones.values), 4, np.float32))
    )
    np.testing.assert_allclose(
        folded.user_factors, expected.user_factors, rtol=1e-5, atol=1e-6
    )


def test_the_default_weight_of_an_interaction_follows_from_the_density(ratings):
    model = make_model("implicit-als").fit(ratings)
    assert model.interaction_weight == pytest.approx(1.5 * ratings.density**-0.5)
    assert make_model("implicit-als", alpha=3).fit(ratings).interaction_weight == 3


def test_contributions_of_dislikes_equal_the_solution():
    """Negative weights are the library's way to say that a user surely doesn't prefer an item."""
    rng = np.random.default_rng(2)
    table = np.where(
        rng.random((30, 12)) < 0.4, rng.choice([-2.0, 1.0], (30, 12)), np.nan
    )
    ratings = Ratings.from_matrix(table, implicit=True)
    model = make_model("implicit-als", factors=6, regularization=1.0).fit(ratings)
    mine = slice(*ratings.indptr[4:6])
    history = Histories(
        np.array([0, mine.stop - mine.start]),
        ratings.indices[mine],
        ratings.values[mine],
    )
    found = model.contributions(history, np.arange(12))
    np.testing.assert_allclose(found.terms.sum(axis=1), model.scores([4])[0], atol=1e-4)


def test_a_fit_that_breaks_down_is_an_error_with_advice(ratings):
    with pytest.raises(
        DataError, match="The implicit-bpr fit diverged; try a larger regularization"
    ):
        make_model("implicit-bpr", learning_rate=1e30, iterations=5).fit(ratings)


def test_the_library_runs_with_one_blas_thread():
    with threadpool_limits(limits=2, user_api="blas"), library("implicit-als"):
        blas = [each for each in threadpool_info() if each["user_api"] == "blas"]
        assert [each["num_threads"] for each in blas] == [1] * len(blas)


def test_other_failures_of_the_library_are_not_disguised():
    with pytest.raises(ValueError, match="mistake"), library("implicit-als"):
        raise ValueError("mistake")
