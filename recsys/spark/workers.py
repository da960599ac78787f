"""Functions of polars frames in the workers of Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from lowrank.spark.arrow import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def map_frames(
    table: DataFrame,
    function: Callable[[Any], pl.DataFrame],
    types: Mapping[str, str],
) -> DataFrame:
    """Apply a function to the polars frame of each batch; `types` are of its columns."""

    def convert(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            frame = function(pl.from_arrow(batch))
            arrow = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
            yield from arrow.to_batches()

    schema = ", ".join(f"{name} {kind}" for name, kind in types.items())
    return map_in_arrow(table, convert, schema)
