"""Saved models whose features lack what similar items need: an error of the loading."""

import numpy as np
import polars as pl
import pytest

from recsys import Ratings
from recsys.errors import DataError
from recsys.features.selection import with_features
from recsys.models.registry import make_model, model_class

N_ITEMS = 20


@pytest.fixture(scope="module")
def ratings():
    rng = np.random.default_rng(0)
    rows = [
        (user, int(item), 1_600_000_000 + 60 * step)
        for user in range(30)
        for step, item in enumerate(rng.permutation(N_ITEMS)[:6])
    ]
    frame = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
    genres = [["war", "comedy", "crime"][item % 3] for item in range(N_ITEMS)]
    table = pl.DataFrame({"item": range(N_ITEMS), "genre": genres})
    return with_features(Ratings.from_frame(frame, item_table=table))


@pytest.mark.parametrize("name", ["next", "spectral"])
def test_rejects_features_without_similarities(ratings, name):
    model = make_model(name).fit(ratings)
    arrays = model._arrays()
    damaged = {key: array for key, array in arrays.items() if "_similarity_" not in key}
    assert len(damaged) < len(arrays)
    with pytest.raises(DataError, match="items_similarity_weights', which is missing"):
        model_class(name)._from_arrays(model.get_params(), damaged)
