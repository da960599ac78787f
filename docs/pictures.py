"""Draw the picture of the README: `python docs/pictures.py`."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np

from lowrank import truncated_svd
from recsys import Recommender
from recsys.data.ratings import Ratings
from recsys.readers import read_ratings, sample_path

mpl.use("Agg")
from matplotlib import pyplot as plt

HERE = Path(__file__).resolve().parent
GENRES = ("Horror", "Western", "Musical", "Animation", "Sci-Fi", "Romance", "War", "Crime")
MARKERS = "osD^vP*X"


def item_map(vectors: np.ndarray) -> np.ndarray:
    """Place unit item vectors in the plane: t-SNE keeps neighbours together."""
    from sklearn.manifold import TSNE

    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    start = truncated_svd(unit, 2, center=True)
    spread = 1e-4 * start.U / start.U.std(axis=0)
    return TSNE(perplexity=100, init=spread, metric="cosine", random_state=0).fit_transform(unit)


def main_genres(ratings: Ratings) -> np.ndarray:
    """Return the main genre of each item, in index order."""
    genres = ratings.item_table.aligned(ratings.items)["genres"]
    return genres.list.first().to_numpy()


def draw(places: np.ndarray, genres: np.ndarray) -> None:
    """Write films.png: one point for each film, marked by its main genre."""
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    others = ~np.isin(genres, GENRES)
    axes.scatter(*places[others].T, s=14, color="0.8", label="other genres")
    for genre, marker in zip(GENRES, MARKERS, strict=True):
        axes.scatter(*places[genres == genre].T, s=30, marker=marker, label=genre)
    axes.set(xticks=[], yticks=[])
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    axes.spines[:].set_visible(False)
    figure.savefig(HERE / "films.png", dpi=110)


if __name__ == "__main__":
    data = read_ratings(sample_path())
    recommender = Recommender("als").fit(data)
    draw(item_map(recommender.model.item_factors), main_genres(data))
