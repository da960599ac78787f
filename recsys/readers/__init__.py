"""Readers of ratings, and of tables of items and users."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, Unpack, cast
from urllib.parse import unquote

import polars as pl

from recsys.addresses import located
from recsys.data.columns import (
    Request,
    Roles,
    choose_columns,
    id_column,
    is_known_name,
    quoted,
    title_column,
    usual_column,
    with_outcome,
)
from recsys.data.features import Features, TableLike
from recsys.data.frames import FrameLike, to_polars
from recsys.data.ids import Ids, integers_if_whole
from recsys.data.kinds import FeatureKind
from recsys.data.numerals import are_numeric, decimal_points
from recsys.data.ratings import Ratings, build_ratings, ratings_of_frame, with_options
from recsys.data.read_options import ReadOptions, completed, set_options
from recsys.data.rows import (
    SKIPPED,
    BadRowsError,
    Rows,
    check_policy,
    prepared,
)
from recsys.data.split_parts import OF_EVENTS, reading_of_parts
from recsys.data.times import seconds_or_null
from recsys.database import OnRows, parse_address
from recsys.errors import DataError
from recsys.messages import counted
from recsys.readers.delimited import (
    Layout,
    UnreliableError,
    detect,
    parsed_blocks,
    read_carefully,
    read_delimited,
    repeats_header,
    stripped,
)
from recsys.readers.formats import joined, read_table_rows, text_lines
from recsys.readers.sources import (
    DataFile,
    NoRowsError,
    SourceLike,
    is_address,
    open_data,
    plain_name,
    table_files,
)

__all__ = [
    "TableSource",
    "as_ratings",
    "read_ratings",
    "read_raw",
    "read_table",
    "sample_path",
]

TableSource: TypeAlias = "str | os.PathLike[str] | TableLike"
"""Path of a table of items or users, or a frame."""

_SIDE_TABLES = ("item_table", "user_table")
# Options for parts of a split that updates need, too.
_KEPT_OF_PARTS = ("weight", "scale", *OF_EVENTS)
# Folders of the partitioned tables of Hive and Spark.
_FOLDER = re.compile(r"(?:^|/)(\w+)=([^/]+)(?=/)")
_OF_A_ROW = re.compile(
    r", (?:line|row|object) \d+: (?!.*(?:header|--time-format|--as-of|earlier time))"
)
_LIST = "token_seq"  # type of RecBole
_YEAR = r"\((\d{4})\)\s*$"
# Order of the flags in u.item of MovieLens 100K, as listed in its u.genre.
_GENRE_NAMES = (
    "unknown|Action|Adventure|Animation|Children's|Comedy|Crime|Documentary|Drama|"
    "Fantasy|Film-Noir|Horror|Musical|Mystery|Romance|Sci-Fi|Thriller|War|Western"
)
_GENRES = _GENRE_NAMES.split("|")
# Names of the occupation codes in users.dat of MovieLens 1M.
_JOBS = (
    "other|academic/educator|artist|clerical/admin|college/grad student|"
    "customer service|doctor/health care|executive/managerial|farmer|homemaker|"
    "K-12 student|lawyer|programmer|retired|sales/marketing|scientist|self-employed|"
    "technician/engineer|tradesman/craftsman|unemployed|writer"
)
_OCCUPATIONS = {str(code): job for code, job in enumerate(_JOBS.split("|"))}


def read_ratings(
    source: SourceLike,
    *,
    defaults: Mapping[str, Any] | None = None,
    on_rows: OnRows | None = None,
    **options: Unpack[ReadOptions],
) -> Ratings:
    """Read ratings from files, databases, the web or standard input.

    The format is recognised by content: the MovieLens layouts (ratings.csv; ratings.dat with "::";
    u.data), LightGCN lines (user item item ...), lines that begin with the number of a user's
    items, the Netflix Prize, atomic files of RecBole, text with columns separated by comma, tab,
    semicolon, bar or space, JSON lines (also Python dicts), arrays of JSON objects, Parquet, Arrow,
    Excel, Matrix Market and SciPy's sparse matrices. Each may be compressed as gz, xz, bz2, zst or
    zip. An object with a list of items becomes one row per item.

    Tables of items and users next to the ratings are also read if they have a usual name
    (movies.csv, items.parquet, u.item, users.csv, ...). `Ratings.source` reports how the files were
    interpreted. A text column of ids becomes integers only if every value is in the form in which
    an integer is printed, so "007" stays "007". Blank rows are skipped.

    Parameters
    ----------
    source : path, or sequence of paths
        A file; a directory or zip with one file, or several with the same columns (daily
        partitions); a pattern ("events/2025-*/*.parquet"); a URL ("https://..."); a database
        ("postgresql://user@host/db", "orders.db::events", "warehouse.duckdb::events"); "-" for
        standard input; or several of these, whose rows are concatenated.
    defaults : mapping, optional
        Default options, such as a saved model's `Provenance.reading`. Columns that the data lack
        are ignored, and only tables that are named are read; their ids may also be among the Ids
        "users" and "items" of the mapping.
    on_rows : callable, optional
        Called with the number of rows read so far and the expected number (None if unknown).
    **options
        Columns (``user="customer"``), the format, and what is read; see `recsys.ReadOptions`.

    Raises
    ------
    DataError
        If the file is missing, empty, damaged or binary; columns are missing or ambiguous; a row is
        ragged; or an id, rating or timestamp is missing or cannot be read (the message has its line
        and text). Also if a database cannot be reached, or lacks the table or a column.
    TypeError
        If an option does not exist.
    """
    given = set_options(options)
    sources = _listed(source)
    of_parts = _of_parts(sources, given, defaults)
    earlier = dict(defaults or {})
    if of_parts:  # which tell the weights of their events, or have them
        for name in OF_EVENTS:
            earlier.pop(name, None)
    for name in _KEPT_OF_PARTS:
        if name in of_parts:
            given[name] = of_parts.pop(name)
    chosen = completed(given, _applicable(earlier, sources, given.get("query")))
    policy = check_policy(chosen.get("duplicates"))
    request = Request.from_options({**chosen, **of_parts}, given, defaults)
    rules = request.rules
    of_tables = request.changed(table=None, query=None)

    def pick(names: Sequence[str], where: str) -> Roles:
        roles = choose_columns(names, request, where)
        return with_outcome(names, roles, request, lambda _: "1")

    def side_table(ids: Ids, data: DataFile) -> tuple[Features | None, str]:
        table_source = chosen.get(f"{ids.kind}_table")
        if table_source is not None:
            earlier_ids = (defaults or {}).get(f"{ids.kind}s")
            if earlier_ids is not None:
                ids = earlier_ids.union(ids.values)
            return read_table(_in_database(table_source, sources), ids, of_tables)
        if defaults is not None:  # tables next to other data are not for an update
            return None, ""
        return _neighbouring_table(data, ids, of_tables)

    with open_data(
        sources, request.options, pick=pick, on_rows=on_rows, stream=True
    ) as data:
        try:
            rows = read_raw(data, request)
            rows.guessed_times = "timestamp" not in chosen
            rows = prepared(rows, rules)
        except DataError as error:
            if rules.bad_rows is None and (remedy := _remedy(error)):
                error.add_note(f"{remedy}.")
            raise
        ratings = build_ratings(rows, policy, data.name)
        items, item_remark = side_table(ratings.items, data)
        users, user_remark = side_table(ratings.users, data)
        remarks = [item_remark, user_remark]
        if data.left_out:
            left_out = f"left out, without users and items: {data.left_out}"
            remarks.insert(0, left_out)
    assert ratings.source is not None
    origin = replace(ratings.source, tables="; ".join(filter(None, remarks)))
    ratings = replace(ratings, item_table=items, user_table=users, source=origin)
    for name in _SIDE_TABLES:
        table_name = _table_name(chosen.get(name), sources)
        if table_name is not None:
            chosen[name] = table_name
    return with_options(
        ratings, {"table": (defaults or {}).get("table"), **chosen}, rules
    )


def _remedy(error: DataError) -> str:
    """Return how to leave out the bad rows of an error; nothing for other errors."""
    if not _OF_A_ROW.search(str(error)):
        return ""
    remedies = []
    option = "skip"
    if isinstance(error, BadRowsError) and error.count > SKIPPED * error.total:
        option = f"{math.ceil(100 * error.count / error.total)}%"
    if option != "100%":
        remedies.append(
            f"Such rows are left out with --bad-rows {option} (bad_rows={option!r})"
        )
    if "rating is missing" in str(error):
        remedies.append("--implicit ignores all ratings")
    return "; ".join(remedies)


def _listed(source: SourceLike) -> list[str]:
    several = [source] if isinstance(source, str | os.PathLike) else source
    return [located(os.fspath(address)) for address in several]


def _applicable(
    defaults: Mapping[str, Any],
    sources: Sequence[str],
    query: str | None,
) -> dict[str, Any]:
    """Return the options of an earlier reading that apply to other sources."""
    earlier = dict(defaults)
    addresses = [parse_address(source) for source in sources]
    has_tables = all(address is not None and not address.table for address in addresses)
    if query or not has_tables:
        earlier.pop("table", None)
    for name in _SIDE_TABLES:
        table_source = earlier.get(name)
        is_file = (
            addresses[:1] == [None]
            and isinstance(table_source, str)
            and not is_address(table_source)
        )
        if is_file and not Path(str(table_source)).exists():
            del earlier[name]  # the model has its own copy of the table
    return earlier


def _of_parts(
    sources: Sequence[str],
    given: Mapping[str, Any],
    defaults: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the options for parts of a saved split that no others decide."""
    decided = set(given)
    if not decided.isdisjoint(
        ("implicit", "rating", "weight", "scale", "event_weights")
    ):
        decided |= {"weight", "feedback"}
    elif defaults is not None:  # grades or interactions, as the earlier reading decided
        decided |= {"feedback", "scale"}
    if "implicit" in given:
        decided |= {"scale", "duplicates"}
    if "rating" in given or "scale" in given:
        decided |= set(OF_EVENTS)
    elif "event_weights" in given:
        decided.add("impressions")
    options = reading_of_parts(sources)
    return {name: value for name, value in options.items() if name not in decided}


def _in_database(table: TableSource, sources: Sequence[str]) -> TableSource:
    """Complete the name of a table in the ratings' database, but no other source."""
    address = parse_address(sources[0]) if len(sources) == 1 else None
    if (
        address is None
        or not isinstance(table, str)
        or is_address(table)
        or Path(table).exists()
    ):
        return table
    return address.of_table(table)


def _table_name(source: object, sources: Sequence[str]) -> str | None:
    """Return the name of a table if its source is in the ratings' database, else None.

    A name is enough for updates, and needs no password.
    """
    if not isinstance(source, str) or len(sources) != 1:
        return None
    ratings, table = parse_address(sources[0]), parse_address(source)
    if ratings is None or table is None or ratings.place != table.place:
        return None
    return table.table


def sample_path() -> Path:
    """Find the directory of the embedded sample data.

    It contains ``ratings.csv`` (userId, itemId, rating, timestamp) and ``items.csv`` (itemId,
    title, year, genres, description); its ``README.md`` describes how the ratings were made. The
    directory is ``recsys/sample/data`` in an installed package, and next to the package in a source
    checkout.

    Raises
    ------
    DataError
        If the files are in neither of the two places.

    Examples
    --------
    >>> (sample_path() / "ratings.csv").is_file()
    True
    """
    # importlib.resources does not work here: in an editable install it returns a path of the build
    # backend that is not a directory.
    package = Path(__file__).resolve().parents[1]
    files = "ratings.csv", "items.csv"
    folders = package / "sample" / "data", package.parent / "data"
    for folder in folders:
        if all((folder / name).is_file() for name in files):
            return folder
    raise DataError(
        f"The sample data ({' and '.join(files)}) are neither in {folders[0]} nor in {folders[1]}; "
        "reinstall lowrank-recsys to get them."
    )


def as_ratings(
    data: Ratings | FrameLike | SourceLike,
    defaults: Mapping[str, Any] | None = None,
    **options: Unpack[ReadOptions],
) -> Ratings:
    """Return `data` as ratings, from paths or a frame.

    They are read with the `options`, and otherwise with the options `defaults`, as by
    `read_ratings`. Ratings stay as they are.
    """
    if isinstance(data, Ratings):
        return data
    listed = (
        data if isinstance(data, Sequence) and not isinstance(data, str) else [data]
    )
    if listed and all(isinstance(part, str | os.PathLike) for part in listed):
        return read_ratings(cast(SourceLike, data), defaults=defaults, **options)
    return ratings_of_frame(cast(FrameLike, data), set_options(options), defaults)


def read_raw(data: DataFile, request: Request) -> Rows:
    """Read the columns of an open file without conversion.

    Raises
    ------
    DataError
        As `read_ratings`.
    """
    if data.parts:
        parts = []
        empty = None
        for part in data.parts:
            try:
                parts.append((part.name, read_raw(part, request)))
            except NoRowsError as error:
                empty = error
        if not parts:
            raise DataError(f"{data.name}: no file has rows.") from empty
        return joined(parts)
    if data.table is not None:
        return read_table_rows(data, data.table, request)
    folders = _of_folders(data.name, request) if "=" in data.name else {}
    required = tuple(role for role in request.required if role not in folders)
    request = replace(request, required=required).changed(**dict.fromkeys(folders))
    layout = detect(data, request)
    if isinstance(layout, Layout):
        rows = read_delimited(data, layout, request)
    else:
        if layout.frame is None and request.needed:
            role, name = next(iter(request.needed.items()))
            raise DataError(
                f"{data.name} has a form without named columns ({layout.name}), so the {role} "
                f"column {name!r} cannot be used; leave it out, or name the separator with --sep."
            )
        rows = layout.read(data, request)
    for role, (name, value) in folders.items():
        if role not in rows.columns:
            rows.columns[role] = value.new_from_index(
                0, len(next(iter(rows.columns.values())))
            )
            rows.layout = f"{rows.layout}, {role} = {name} (folder)"
    return rows


def _of_folders(path: str, request: Request) -> dict[str, tuple[str, pl.Series]]:
    """Return the names and values of folders such as date=2025-06-09, by role."""
    folders = {name: unquote(value) for name, value in _FOLDER.findall(path)}
    if {"year", "month", "day"} <= {*folders}:
        parts = (folders.pop(name).zfill(2) for name in ("year", "month", "day"))
        folders["date"] = "-".join(parts)
    values: dict[str, tuple[str, pl.Series]] = {}
    for role in ("user", "item", "event", "timestamp"):
        position = usual_column([*folders], role, path)
        name = request.columns.get(role)
        if name is None and position is not None:
            name = [*folders][position]
        if role == "timestamp" and name is None:
            name = next(
                (folder for folder in ("day", "dt", "ds") if folder in folders), None
            )
        if name in folders:
            value = pl.Series([folders[name]])
            if role == "timestamp":
                value = seconds_or_null(value, request.rules.time_format)
            elif role != "event":
                value = integers_if_whole(value)
            if not value.null_count():
                values[role] = str(name), value
    return values


def read_table(
    source: TableSource,
    ids: Ids,
    request: Request,
    *,
    of_new: bool = False,
) -> tuple[Features, str]:
    """Read the table of the items or users with these ids, and describe it.

    Every format of ratings is supported, and the MovieLens tables without header. The column of ids
    is the one named in `request` if the table has it, else one with a usual name, else the only
    column whose values are ids of the ratings. With `of_new`, all ids of the table may be new, if
    they have the form of `ids`.

    Raises
    ------
    DataError
        If the file cannot be read, the column of ids is missing, or none of `ids` is in it.
    """
    where = "The table"
    if isinstance(source, Features):
        features = source.matching(ids)
    elif not isinstance(source, str | os.PathLike):
        features = _features(to_polars(source), ids, request, where, untyped=False)
    else:
        with open_data(source, request.options, guess=True) as data:
            features = _read(data, ids, request)
            where = data.name
    return _described(features, ids, where, of_new)


def _neighbouring_table(
    data: DataFile,
    ids: Ids,
    request: Request,
) -> tuple[Features | None, str]:
    """Read a table next to the ratings; the remark tells why one is not used."""
    names = [] if data.folder is None else table_files(data.folder.names(), ids.kind)
    name = next((file for file in names if "/" not in file), None)
    if data.folder is None or name is None or name == data.name.rpartition("/")[2]:
        return None, ""
    try:
        neighbour = data.folder.fetch(name)
        with open_data(neighbour, request.options, guess=True) as table_file:
            features = _read(replace(table_file, name=name), ids, request)
        if not (features.rows_of(ids) >= 0).any():
            return None, f"{name} not used (other ids)"
        other = "user" if ids.kind == "item" else "item"
        if usual_column([*features.kinds], other) is not None:
            return None, f"{name} not used (it has {other}s, too)"
    except DataError as error:
        reason = str(error).removeprefix(f"{name} ").rstrip(".")
        return None, f"{name} not used: {reason}"
    return _described(features, ids, name)


def _read(
    data: DataFile,
    ids: Ids,
    request: Request,
) -> Features:
    """Return the typed table in a file, with a column of the years in titles."""
    read = [
        read_frame(part, request.columns.get(ids.kind), pad=True)
        for part in data.parts or (data,)
    ]
    frame = pl.concat([part for part, _, _ in read], how="diagonal_relaxed")
    untyped = all(is_text for _, is_text, _ in read)
    features = _features(frame, ids, request, data.name, untyped=untyped)
    remarks = dict.fromkeys(remark for _, _, remarks in read for remark in remarks)
    features = replace(features, remarks=(*remarks, *features.remarks))
    if features.title is not None and "year" not in map(str.lower, features.kinds):
        year = features.frame[features.title].str.extract(_YEAR).cast(pl.Int64)
        if 2 * year.null_count() <= len(year):
            frame = features.frame.with_columns(year.alias("year"))
            kinds: dict[str, FeatureKind] = {**features.kinds, "year": "number"}
            return replace(features, frame=frame, kinds=kinds)
    return features


def read_frame(
    data: DataFile,
    column: str | None,
    *,
    pad: bool = False,
) -> tuple[pl.DataFrame, bool, list[str]]:
    """Return all columns of a file, whether they are strings without types, and remarks.

    With `pad`, short records are filled with empty fields.
    """
    name = plain_name(data.name)
    if name in _MOVIELENS:
        names, separator, change = _MOVIELENS[name]
        lines = text_lines(data, "a table")["line"]
        fields = lines.str.splitn(separator, len(names)).struct.rename_fields(names)
        frame = fields.struct.unnest()
        if len(frame) and is_known_name(frame.item(0, 0).strip()):
            frame = frame.tail(-1)  # some copies have a header
        if len(frame) and frame.item(0, -1) is None:
            raise DataError(f"{data.name} has no header; its columns need names.")
        frame = pl.DataFrame([stripped(column) for column in frame])
        if change is not None:
            frame = change(frame)
        return frame, True, []
    layout = detect(data, Request({"item": column}))
    if not isinstance(layout, Layout) and layout.frame is not None:
        return layout.frame(data), False, []
    if not isinstance(layout, Layout) or not layout.has_header:
        raise DataError(f"{data.name} has no header; its columns need names.")
    frame = _texts(data, layout, pad=pad)
    remarks = []
    for series in filter(are_numeric, frame):
        numbers, remark = decimal_points(series, commas=layout.separator == ";")
        frame = frame.with_columns(numbers)
        if remark:
            remarks.append(f"{series.name}: {remark}")
    title = title_column(frame.columns)
    typed = zip(frame.columns, layout.types, strict=False)  # few files have types
    lists = [name for name, kind in typed if kind == _LIST and name != title]
    return frame.with_columns(pl.col(lists).str.extract_all(r"\S+")), True, remarks


def _texts(
    data: DataFile,
    layout: Layout,
    *,
    pad: bool,
) -> pl.DataFrame:
    """Return all columns of a delimited file as strings, null for empty fields."""
    names: dict[str, str] = {}
    for position, name in enumerate(layout.names):
        unique_name = (
            name if name and name not in names.values() else f"column_{position + 1}"
        )
        while unique_name in names.values():
            unique_name += "_"
        names[str(position)] = unique_name
    roles = {position: int(position) for position in names}

    def all_stripped(texts: dict[str, pl.Series]) -> dict[str, pl.Series]:
        return {position: stripped(text) for position, text in texts.items()}

    try:
        blocks = parsed_blocks(data, layout, roles, all_stripped)
        empty = pl.DataFrame(schema=dict.fromkeys(roles, pl.String))
        frame = pl.concat([empty, *map(pl.DataFrame, blocks)])
    except UnreliableError:
        texts, _ = read_carefully(data, layout, roles, pad=pad)
        frame = pl.DataFrame(all_stripped(texts.select(*names).to_dict()))
    return frame.filter(~repeats_header(layout, roles)).rename(names)


def _features(
    frame: pl.DataFrame,
    ids: Ids,
    request: Request,
    where: str,
    *,
    untyped: bool,
) -> Features:
    """Determine the kinds of the columns, and leave out rows without an id."""
    option = f"--{ids.kind}-col ({ids.kind}=)"
    problem = DataError(
        f"{where} has no column of {ids.kind}s; its columns are {quoted(frame.columns)}. "
        f"Name it as in the ratings, or give the name that it has in both with {option}."
    )
    try:
        column = id_column(
            frame.columns, ids.kind, request.columns.get(ids.kind), where
        )
    except DataError as error:  # several columns have usual names
        column = None
        problem = error
    if column is None:
        fitting = [name for name in frame.columns if _has_ids(frame[name], ids)]
        if len(fitting) != 1:
            raise problem
        column = fitting[0]
    if untyped and frame[column].dtype == pl.String:
        frame = frame.with_columns(integers_if_whole(frame[column]))
    elif frame[column].dtype.is_float():
        frame = frame.with_columns(frame[column].fill_nan(None))
    rows = frame.filter(pl.col(column).is_not_null())
    features = Features.of(rows, ids.kind, column=column, untyped=untyped).matching(ids)
    n_without = len(frame) - len(rows)
    if not n_without:
        return features
    remark = f"{counted(n_without, 'row')} without an id left out"
    return replace(features, remarks=(remark, *features.remarks))


def _has_ids(values: pl.Series, ids: Ids) -> bool:
    """Return whether values are distinct, and half of them or of `ids` match."""
    if values.dtype != pl.String and not values.dtype.is_integer():
        return False
    present = values.drop_nulls()
    if not len(present) or not present.is_unique().all():
        return False
    return 2 * int((ids.find(present) >= 0).sum()) >= min(len(present), len(ids))


def _described(
    features: Features,
    ids: Ids,
    name: str,
    of_new: bool = False,
) -> tuple[Features, str]:
    """Return the table, and a remark on its columns and its ids."""
    table_ids = features.frame[ids.kind]
    if not len(table_ids):
        raise DataError(f"{name} has no rows with an id.")
    n_known = int((features.rows_of(ids) >= 0).sum())
    # Ids of another form are of other things, not of new ones.
    are_new = of_new and not _forms(table_ids).isdisjoint(_forms(ids.values))
    if not n_known and not are_new:
        raise DataError(
            f"{name} has none of the {ids.kind}s of the ratings: its ids look like "
            f"{next(iter(table_ids), None)!r}, theirs like {ids.values[0]!r}."
        )
    remarks = []
    if 0 < n_known < len(ids):
        remarks.append(f"lacks {len(ids) - n_known:,} of {counted(len(ids), ids.kind)}")
    if n_known < len(features):
        remarks.append(f"has {len(features) - n_known:,} without ratings")
    if features.n_repeated:
        repeated = counted(features.n_repeated, "row")
        remarks.append(f"{repeated} of repeated {ids.kind}s left out")
    remarks += features.remarks
    aside = f" ({', '.join(remarks)})" if remarks else ""
    unused = f"; left out: {', '.join(features.left_out)}" if features.left_out else ""
    columns = str(features) if features.kinds else "ids only"
    return features, f"{name}{aside}: {columns}{unused}"


def _forms(ids: pl.Series) -> set[str]:
    """Return the forms of ids, such as "A-a" for "SKU-0042"."""
    forms = (
        ids.cast(pl.String)
        .str.replace_all("[0-9a-z]+", "a")
        .str.replace_all("[A-Z]+", "A")
    )
    return set(forms.unique())


def _with_genres(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of u.item with a list of genres in place of their flags."""
    genres = [pl.when(pl.col(genre) == "1").then(pl.lit(genre)) for genre in _GENRES]
    listed = pl.concat_str(genres, separator="|", ignore_nulls=True)
    listed = listed.replace("", None)
    return frame.select("item", "title", "released", genres=listed)


_MOVIELENS: dict[
    str, tuple[list[str], str, Callable[[pl.DataFrame], pl.DataFrame] | None]
] = {
    "u.item": (
        ["item", "title", "released", "video", "url", *_GENRES],
        "|",
        _with_genres,
    ),
    "movies.dat": (["item", "title", "genres"], "::", None),
    # Netflix Prize: titles may have commas without quotes.
    "movie_titles.csv": (["item", "year", "title"], ",", None),
    "u.user": (["user", "age", "gender", "occupation", "zip"], "|", None),
    "users.dat": (
        ["user", "gender", "age", "occupation", "zip"],
        "::",
        lambda frame: frame.with_columns(pl.col("occupation").replace(_OCCUPATIONS)),
    ),
}
"""Columns, separator and conversion of tables without header, by the name of the file."""
