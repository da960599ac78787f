"""Draw the pictures of the README and the pages: `python docs/pictures.py`."""

from __future__ import annotations

import io
import sys
import tempfile
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
LIKED = ("Alien", "The Princess Bride", "Casablanca")
GENRES = (
    "Horror",
    "Western",
    "Musical",
    "Animation",
    "Sci-Fi",
    "Romance",
    "War",
    "Crime",
)
MARKERS = "osD^vP*X"


def item_map(vectors: np.ndarray) -> np.ndarray:
    """Return positions of unit item vectors in the plane, by t-SNE."""
    from sklearn.manifold import TSNE

    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    start = truncated_svd(unit, 2, center=True)
    spread = 1e-4 * start.U / start.U.std(axis=0)
    return TSNE(
        perplexity=100, init=spread, metric="cosine", random_state=0
    ).fit_transform(unit)


def main_genres(ratings: Ratings) -> np.ndarray:
    """Return the main genre of each item, in index order."""
    genres = ratings.item_table.aligned(ratings.items)["genres"]
    return genres.list.first().to_numpy()


def draw(places: np.ndarray, genres: np.ndarray) -> None:
    """Write films.png, with one point for each film, marked by its main genre."""
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    others = ~np.isin(genres, GENRES)
    axes.scatter(*places[others].T, s=14, color="0.8", label="other genres")
    for genre, marker in zip(GENRES, MARKERS, strict=True):
        axes.scatter(*places[genres == genre].T, s=30, marker=marker, label=genre)
    axes.set(xticks=[], yticks=[])
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    axes.spines[:].set_visible(False)
    figure.savefig(HERE / "films.png", dpi=110)


def photograph(recommender: Recommender) -> None:
    """Write screenshots from Chromium: explore.png, the page after a few likes, and map.png."""
    from PIL import Image

    sys.path.append(str(HERE.parent / "tests"))
    import chromium

    from recsys.serve.static_page import static_page

    def write(name: str) -> None:
        picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        colours = picture.quantize(160, dither=Image.Dither.NONE)
        colours.save(HERE / name, optimize=True)

    with tempfile.TemporaryDirectory() as folder, chromium.browser() as browser:
        path = Path(folder) / "page.html"
        path.write_text(static_page(recommender).html, encoding="utf-8")
        size = {"width": 1200, "height": 880}
        page = browser.new_page(
            viewport=size, device_scale_factor=1.5, reduced_motion="reduce"
        )
        page.goto(path.as_uri())
        for title in LIKED:
            page.get_by_label("Add what you like").fill(title)
            page.locator("#found [role=option]").get_by_text(title, exact=True).click()
        page.locator(".ranked").wait_for()
        page.evaluate("document.activeElement.blur()")
        write("explore.png")
        page.get_by_role("tab", name="Map").click()
        write("map.png")


if __name__ == "__main__":
    data = read_ratings(sample_path())
    recommender = Recommender("als").fit(data)
    draw(item_map(recommender.model.item_factors), main_genres(data))
    photograph(Recommender("bayes").fit(data))
