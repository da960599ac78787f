"""Pictures of decompositions: scree, scores, loadings, eigen-images, whitening.

matplotlib is imported when a picture is drawn. Each function draws on the axes it is given, or
makes a `matplotlib.figure.Figure` of its own, which is not registered with pyplot: nothing is
shown, no style is changed, and ``picture.savefig(...)`` (``axes.figure.savefig(...)``) writes it.
"""

from __future__ import annotations

from lowrank.plotting.clouds import scores, whitening_comparison
from lowrank.plotting.directions import eigen_images, loadings
from lowrank.plotting.spectra import scree

__all__ = ["eigen_images", "loadings", "scores", "scree", "whitening_comparison"]
