"""Tables in saved directories: columns as arrays, and back.

Numbers and booleans are one array, texts are UTF-8 bytes and offsets. Lists of texts also
have the ends of the lists, and columns with missing values have flags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.features import Features
from recsys.data.ids import joined_texts
from recsys.errors import ModelFileError
from recsys.saving.arrays import DamageError, check_rows
from recsys.saving.model_file import Arrays, ColumnEntry, ColumnType, Manifest, listed

Table: TypeAlias = pl.DataFrame | Features

# Valid types of columns for each kind of features; "number" allows any numeric type.
_FEATURES: dict[str, tuple[Any, ...]] = {
    "boolean": (pl.Boolean,),
    "date": (pl.Date, pl.Datetime),
    "category": (pl.String, pl.Int64),
    "list": (pl.List(pl.String),),
    "text": (pl.String,),
}


def check_features(
    frame: pl.DataFrame,
    side: str,
    kinds: Mapping[str, Any],
) -> None:
    """Check that a frame is a valid table of `Features`.

    Raises
    ------
    DamageError
    """
    names = frame.columns
    if names != [side, *kinds]:
        raise DamageError(f"a table of {side}s needs kinds of the columns {names[1:]}")
    ids = frame[side]
    is_distinct = ids.is_not_null().all() and ids.is_unique().all()
    if ids.dtype not in (pl.Int64, pl.String) or not is_distinct:
        raise DamageError(f"a table of {side}s needs distinct ids, integers or strings")
    for name, kind in kinds.items():
        dtype = frame.schema[name]
        fits = dtype in _FEATURES.get(kind, ())
        if kind == "number":
            fits = dtype.is_numeric()
        if not fits:
            raise DamageError(
                f"column {name!r} has {dtype} values; they cannot be of {kind!r}"
            )


def decoded(
    arrays: Arrays,
    prefix: str,
    entry: ColumnEntry,
) -> pl.Series:
    """Return a column from the arrays of `encoded`, whose names begin with `prefix`."""
    if entry.type in ("text", "list"):
        values = _decoded_texts(arrays, prefix)
    else:
        array = listed(arrays, prefix)
        if array.ndim != 1 or not array.dtype.isnative:
            raise DamageError(f"{prefix} is not a column")
        values = pl.Series(array)
    if entry.type == "list":
        ends = f"{prefix}_ends"
        starts = np.append(0, listed(arrays, ends))
        check_rows(ends, starts, np.zeros(len(values)), 1)
        lists = pl.lit(values.implode()).list
        values = _slices(starts, lists.slice, pl.List(pl.String))
    if entry.type == "date":
        values = values.cast(pl.Date)
    if entry.type == "datetime":
        values = values.cast(pl.Datetime("us"))
    valid = arrays.get(f"{prefix}_valid")
    if valid is not None:
        is_valid = pl.Series(valid)
        missing = pl.Series([None], dtype=values.dtype)
        values = values.zip_with(is_valid, missing)
    return values.alias(entry.name)


def _decoded_texts(arrays: Arrays, prefix: str) -> pl.Series:
    """Return the texts between offsets of bytes, which must be valid UTF-8."""
    offsets = listed(arrays, f"{prefix}_offsets")
    text = listed(arrays, f"{prefix}_bytes")
    are_texts = offsets.dtype == np.int64 and text.dtype == np.uint8
    if not are_texts or text.ndim != 1:
        raise DamageError(f"{prefix} is not text")
    # An offset outside the bytes would be cut to an empty text in silence.
    check_rows(f"{prefix}_offsets", offsets, text, 256)
    # Offsets count bytes, not characters, so bytes are cut and decoded afterwards.
    joined = pl.lit(text.tobytes())
    slices = _slices(offsets, joined.bin.slice, pl.Binary)
    return slices.cast(pl.String)


def _slices(
    starts: NDArray[Any],
    slice_of: Callable[[str, str], pl.Expr],
    dtype: Any,
) -> pl.Series:
    """Return slices of one value, each from a start to the next one."""
    lengths = np.diff(starts)
    if not len(lengths):  # a literal would be a column of one row
        return pl.Series([], dtype=dtype)
    spans = pl.DataFrame({"start": starts[:-1], "length": lengths})
    slices = spans.select(slice_of("start", "length"))
    return slices.to_series()


def saved_table(
    arrays: Arrays,
    manifest: Manifest,
    name: Any,
) -> pl.DataFrame:
    """Return a saved table with the columns that the manifest lists.

    Raises
    ------
    DamageError
    """
    columns = []
    for number, entry in enumerate(manifest.columns.get(name, [])):
        columns.append(decoded(arrays, f"{name}/{number}", entry))
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        raise DamageError(f"the columns of {name} are of different lengths, or missing")
    return pl.DataFrame(columns)


def encoded_tables(
    tables: Mapping[str, Table],
) -> tuple[dict[str, list[ColumnEntry]], Arrays]:
    """Return the columns of tables and their arrays."""
    columns: dict[str, list[ColumnEntry]] = {}
    arrays: Arrays = {}
    for name, table in tables.items():
        features = table
        if not isinstance(features, Features):
            features = Features(features, {})
        columns[name] = []
        for number, series in enumerate(features.frame.get_columns()):
            form, parts = encoded(series)
            entry = ColumnEntry(
                series.name,
                form,
                kind=features.kinds.get(series.name),
                read_as=features.read_as.get(series.name),
            )
            columns[name].append(entry)
            for suffix, array in parts.items():
                arrays[f"{name}/{number}{suffix}"] = array
    return columns, arrays


def encoded(series: pl.Series) -> tuple[ColumnType, Arrays]:
    """Return the type of a column, and its arrays by name suffix.

    Raises
    ------
    ModelFileError
        If values of its type cannot be saved.
    """
    dtype = series.dtype
    arrays: Arrays = {}
    if series.null_count():
        arrays["_valid"] = series.is_not_null().to_numpy()
    is_list = dtype == pl.List(pl.String)
    if is_list:
        counts = series.list.len().fill_null(0)
        ends = counts.cast(pl.Int64).cum_sum()
        arrays["_ends"] = ends.to_numpy()
        # `explode` makes a null of a missing list, and in polars 1 of an empty one.
        series = series.filter(counts > 0).explode()
    if is_list or isinstance(dtype, pl.String | pl.Categorical | pl.Enum):
        texts = series.cast(pl.String).fill_null("")
        arrays["_bytes"], arrays["_offsets"] = joined_texts(texts)
        return "list" if is_list else "text", arrays
    form: ColumnType = "number"
    if dtype == pl.Date:
        form = "date"
        series = series.cast(pl.Int32)
    elif isinstance(dtype, pl.Datetime):
        form = "datetime"
        microseconds = series.dt.cast_time_unit("us")
        series = microseconds.cast(pl.Int64)
    # Decimals are numeric, but NumPy has no such type.
    elif dtype.is_decimal() or not (dtype.is_numeric() or dtype == pl.Boolean):
        raise ModelFileError(
            f"The column {series.name!r} of the metadata cannot be saved: it has {dtype} values; "
            "texts, lists of texts, numbers, booleans and dates can be."
        )
    zero = False if dtype == pl.Boolean else 0
    filled = series.fill_null(zero)
    return form, arrays | {"": filled.to_numpy()}
