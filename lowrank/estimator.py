"""Base of all estimators."""

from __future__ import annotations

from typing import Any

from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)


class Estimator(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """A transformer of scikit-learn to `n_components_` outputs, in the dtype of the data."""

    n_components_: int

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
