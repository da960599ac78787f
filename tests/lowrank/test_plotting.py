"""Plots show the numbers they are given, and leave the settings of matplotlib alone."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from lowrank import PCA, LowRankError, truncated_svd
from lowrank.plotting import eigen_images, scores, scree

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 6)) @ RNG.normal(size=(6, 6)) + 3


@pytest.fixture(scope="module")
def pca():
    return PCA(4).fit(X)


def lines(axes):
    return {line.get_label(): line.get_xydata() for line in axes.get_lines()}


def right_of(axes):
    (other,) = [each for each in axes.figure.axes if each is not axes]
    return other


def drawn(figure):
    """Draw for real: layout and text are made only then."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getbuffer().nbytes


def test_scree_of_singular_values():
    axes = scree([4.0, 2.0, 1.0], k=2, rule="elbow")
    found = lines(axes)
    np.testing.assert_allclose(found["singular value"], [[1, 4], [2, 2], [3, 1]])
    np.testing.assert_array_equal(found["elbow: k = 2"][:, 0], [2, 2])
    shares = lines(right_of(axes))["cumulative energy"]
    np.testing.assert_allclose(shares[:, 1], np.array([16, 20, 21]) / 21)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["singular value", "elbow: k = 2", "cumulative energy"]
    assert drawn(axes.figure) > 5000


def test_scree_of_an_svd_knows_the_whole_energy():
    axes = scree(truncated_svd(X, 2, random_state=0))
    s = np.linalg.svd(X, compute_uv=False)
    shares = lines(right_of(axes))["cumulative energy"][:, 1]
    np.testing.assert_allclose(shares, np.cumsum(s**2)[:2] / np.sum(s**2), rtol=1e-6)
    total = lines(right_of(scree(s[:2], total=np.sum(s**2))))["cumulative energy"][:, 1]
    np.testing.assert_allclose(total, shares, rtol=1e-6)


def test_scree_of_an_estimator_is_its_variances(pca):
    axes = scree(pca, k=0)
    np.testing.assert_allclose(
        lines(axes)["explained variance"][:, 1], pca.explained_variance_
    )
    shares = lines(right_of(axes))["cumulative variance"][:, 1]
    np.testing.assert_allclose(shares, np.cumsum(pca.explained_variance_ratio_))
    assert axes.get_xlim()[0] < 0  # where the mark of k = 0 is


def test_scree_of_scikit_learn():
    from sklearn import decomposition

    theirs = decomposition.PCA(3).fit(X)
    assert "explained variance" in lines(scree(theirs))


def test_scree_of_zeros_and_of_one_value():
    assert drawn(scree([0.0, 0.0]).figure)
    assert drawn(scree([3.0], k=1).figure)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, 2.0],), "s must be descending; it rises after position 0"),
        (([],), "spectrum must have at least one value; got none"),
    ],
)
def test_a_bad_spectrum_raises(arguments, message):
    with pytest.raises(ValueError, match=message):
        scree(*arguments)


def test_a_bad_rank_raises():
    with pytest.raises(ValueError, match="k must be between 0 and 2; got 3"):
        scree([2.0, 1.0], k=3)


def test_scree_needs_the_rank_that_a_rule_chose():
    with pytest.raises(
        ValueError, match=r"k must be given with a rule; got rule='elbow' alone"
    ):
        scree([3.0, 2.0, 1.0], rule="elbow")


def test_scores_have_a_look_for_each_class(pca):
    Z, labels = pca.transform(X), np.repeat(["a", "b", "c", "d", "e"], 10)
    axes = scores(Z, labels, components=(1, 2), estimator=pca)
    for name, cloud in zip("abcde", axes.collections, strict=True):
        np.testing.assert_allclose(cloud.get_offsets(), Z[labels == name][:, 1:3])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list("abcde")
    assert axes.get_xlabel() == (
        f"component 2 ({pca.explained_variance_ratio_[1]:.1%} of the variance)"
    )
    assert drawn(axes.figure)


def test_no_two_of_many_classes_look_the_same():
    axes = scores(RNG.normal(size=(40, 2)), np.arange(40).astype(str))
    handles = axes.get_legend().legend_handles
    looks = {(to_hex(each.get_color()), each.get_marker()) for each in handles}
    assert len(looks) == 40


def test_scores_without_labels_and_with_numbers():
    Z = RNG.normal(size=(30, 3))
    assert len(scores(Z).collections) == 1
    axes = scores(Z, np.linspace(0, 1, 30))
    np.testing.assert_allclose(axes.collections[0].get_array(), np.linspace(0, 1, 30))
    assert axes.get_legend() is None
    assert len(axes.figure.axes) == 2  # a colour bar next to it


def test_bad_scores_raise():
    with pytest.raises(
        ValueError, match=r"Z must have the columns \(0, 1\); got shape \(5, 1\)"
    ):
        scores(np.zeros((5, 1)))
    with pytest.raises(ValueError, match=r"labels must have shape \(5,\); got \(4,\)"):
        scores(np.zeros((5, 2)), np.zeros(4))


def test_eigen_images_of_digits_are_symmetric_about_zero():
    from sklearn.datasets import load_digits

    pca = PCA(6, random_state=0).fit(load_digits().data)
    figure = eigen_images(pca)
    images = [image for axes in figure.axes for image in axes.get_images()]
    for image, row in zip(images, pca.components_, strict=True):
        np.testing.assert_allclose(image.get_array(), row.reshape(8, 8))
        low, high = image.get_clim()
        assert low == -high == -np.abs(row).max()
    assert figure.axes[0].get_title() == f"1 ({pca.explained_variance_ratio_[0]:.1%})"
    assert drawn(figure)


def test_eigen_images_that_leave_a_gap():
    drawn_in = eigen_images(np.eye(3, 4)).axes  # on a grid of 2 x 2
    assert [len(axes.get_images()) for axes in drawn_in] == [1, 1, 1, 0]
    assert not any(axes.axison for axes in drawn_in)
    assert drawn_in[3].get_title() == ""


def test_eigen_images_of_any_shape():
    figure = eigen_images(np.arange(30.0).reshape(5, 6), (2, 3), count=4)
    images = [image for axes in figure.axes for image in axes.get_images()]
    assert [image.get_array().shape for image in images] == [(2, 3)] * 4
    assert drawn(eigen_images(np.zeros((1, 4))))
    with pytest.raises(
        ValueError, match="images with 6 pixels; images that are not square need"
    ):
        eigen_images(np.ones((1, 6)))
    with pytest.raises(ValueError, match=r"images with 6 pixels; got \(2, 2\)"):
        eigen_images(np.ones((1, 6)), (2, 2))


def test_plots_use_the_given_axes_and_figures():
    figure = Figure()
    axes = figure.subplots()
    assert scree([2.0, 1.0], ax=axes) is axes
    other = Figure().subplots()
    assert scores(np.eye(3)[:, :2], ax=other) is other
    figure = Figure()
    assert eigen_images(np.ones((2, 4)), fig=figure) is figure


def test_pyplot_and_the_settings_are_left_alone(pca):
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    before = dict(mpl.rcParams)
    scree(pca)
    scores(pca.transform(X))
    eigen_images(np.ones((2, 4)))
    assert plt.get_fignums() == []
    assert dict(mpl.rcParams) == before


def test_the_import_does_not_need_matplotlib_but_a_picture_does():
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from lowrank import plotting\n"
        "try:\n    plotting.scree([2.0, 1.0])\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert (
        "lowrank.plotting needs matplotlib; install it with pip install" in done.stdout
    )


def test_no_components_to_draw_raise():
    with pytest.raises(ValueError, match="count must be at least 1; got 0"):
        eigen_images(np.ones((2, 4)), count=0)
    with pytest.raises(
        ValueError, match=r"at least one row and one column; got shape \(0, 6\)"
    ):
        eigen_images(np.zeros((0, 6)))


@pytest.mark.parametrize(
    ("plot", "message"),
    [
        (lambda: scree(np.array([2 + 1j, 1])), "s must hold real numbers"),
        (lambda: scree([2.0, 1.0], k=1.5), "k must be an integer; got 1.5"),
        (
            lambda: eigen_images(np.ones((2, 6)), (-2, -3)),
            "shape must fit images with 6",
        ),
    ],
)
def test_rejects_what_cannot_be_plotted(plot, message):
    with pytest.raises(LowRankError, match=message):
        plot()
