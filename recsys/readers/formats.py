"""Readers of Parquet, JSON lines, database tables, LightGCN and Netflix files; joins of files."""

from __future__ import annotations

import ast
import json
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import accumulate, chain, islice
from typing import Any, cast

import polars as pl

from recsys.data.columns import SAMPLE, Request, Roles, assign_roles, choose_columns
from recsys.data.csr import Batches, concatenated
from recsys.data.ids import Spot, id_problem, integers_if_whole, is_bad_id
from recsys.data.rows import OPTIONAL_ROLES, STRICT, BadRows, Rows
from recsys.database import TableRows
from recsys.errors import DataError
from recsys.readers.sources import DataFile, NoRowsError

_OF_PYTHON = ("{'", "{u'", '{u"')  # beginnings of dicts
_GLOB = frozenset("*?[")
_MOST_EXPECTED = 1 << 26  # maximum number of rows to allocate from an estimate
_CHUNK = 100_000  # rows of a Parquet file to read at once, which fit in a cache
_NO_SEPARATOR = "\x1f"  # polars reads whole lines when its separator does not occur


@contextmanager
def reading_parquet(name: str) -> Iterator[None]:
    """Convert errors of reading a Parquet file to one sentence.

    Raises
    ------
    DataError
        If polars or the system cannot read it.
    """
    try:
        yield
    except (
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,
        MemoryError,
        OSError,
    ) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DataError(f"{name} is a damaged Parquet file: {reason}.") from None


def parquet_columns(data: DataFile) -> dict[str, pl.DataType]:
    """Return the names and types of the columns of a Parquet file."""
    with reading_parquet(data.name):
        return dict(pl.scan_parquet(data.path, glob=False).collect_schema())


def read_table_rows(
    data: DataFile,
    table: TableRows,
    request: Request,
    required: Sequence[str] = ("user", "item"),
) -> Rows:
    """Read an open table of a database."""
    names, batches = table.names, Batches(min(table.estimate() or 0, _MOST_EXPECTED))
    with table.batches(data.on_rows) as record_batches:
        frames = (cast(pl.DataFrame, pl.from_arrow(batch)) for batch in record_batches)
        first = next(frames)
        roles, description = assign_roles(
            names,
            request,
            data.name,
            required,
            lambda position: _sample(first[names[position]]),
        )
        for frame in chain((first,), frames):
            batches.add(
                {role: frame[names[position]] for role, position in roles.items()}
            )
    rows = replace(_with_integers(batches.rows()), name=_name_of_ratings(names, roles))
    return _numbered(rows, data, description, request)


def _name_of_ratings(names: Sequence[str], roles: Roles) -> str:
    """Return the name of the column of ratings, "" without one."""
    return names[roles["rating"]] if "rating" in roles else ""


def _with_integers(rows: Rows) -> Rows:
    """Convert ids to integers if possible, because databases often store numbers as texts."""
    columns = rows.distinct if rows.arrays else rows.columns
    for role in (side for side in ("user", "item") if side in columns):
        column = columns[role]
        if isinstance(column.dtype, pl.Categorical) and not column.null_count():
            columns[role] = integers_if_whole(column)
    return rows


def _sample(head: pl.Series) -> list[Any]:
    """Return the first values of a column, from which the form of times is determined."""
    head = head.head(SAMPLE)
    if head.dtype == pl.Date or isinstance(head.dtype, pl.Datetime):
        head = head.dt.epoch("s")  # also for years out of Python's range
    if head.dtype == pl.Binary:  # SQLite converts all values if one is bytes
        return ["bytes"]
    is_plain = head.dtype.is_numeric() or head.dtype == pl.String
    return head.to_list() if is_plain else [str(head.dtype)]


def _numbered(rows: Rows, data: DataFile, description: str, request: Request) -> Rows:
    """Return rows whose places are row numbers."""
    numbered = replace(data, unit="row")
    return replace(
        rows,
        layout=f"{data.form}, {description}",
        place=lambda row: numbered.at(row + 1),
        bad=BadRows(request.rules.bad_rows),
    )


def read_parquet(
    data: DataFile, request: Request, required: Sequence[str] = ("user", "item")
) -> Rows:
    """Read the columns of a Parquet file that have a role.

    Raises
    ------
    DataError
        If the file is damaged or has no rows, or columns are missing or ambiguous.
    """
    types = parquet_columns(data)
    names, scan = list(data.columns or types), pl.scan_parquet(data.path, glob=False)

    def times(position: int) -> list[Any]:
        return _sample(
            scan.select(names[position]).head(SAMPLE).collect()[names[position]]
        )

    with reading_parquet(data.name):
        roles, description = assign_roles(names, request, data.name, required, times)
        chosen = {role: pl.col(names[position]) for role, position in roles.items()}
        for role, position in roles.items():
            if types[names[position]] == pl.Binary:
                chosen[role] = _text(
                    chosen[role], scan, f"{data.name}: the column of {role}s"
                )
        n_rows = int(scan.select(pl.len()).collect().item())
        if not n_rows:
            raise NoRowsError(f"{data.name} has no rows.")
        # By column, because polars reads whole row groups, and a file may have only one.
        plans, batches = (
            [scan.select(**{role: chosen[role]}) for role in chosen],
            Batches(n_rows),
        )
        if "item" in roles and isinstance(types[names[roles["item"]]], pl.List):
            plans = [
                scan.select(**chosen)
                .explode("item")
                .filter(pl.col("item").is_not_null())
            ]
        for n_plans, plan in enumerate(plans):
            n_read = n_plans * n_rows
            for frame in plan.collect_batches(chunk_size=_CHUNK, engine="streaming"):
                batches.add(frame.to_dict())
                n_read += len(frame)
                if data.on_rows is not None:
                    data.on_rows(min(n_read // len(plans), n_rows), n_rows)
    rows = replace(batches.rows(), name=_name_of_ratings(names, roles))
    return _numbered(
        _with_integers(rows) if data.columns else rows, data, description, request
    )


def _text(binary: pl.Expr, scan: pl.LazyFrame, where: str) -> pl.Expr:
    """Return a column of bytes as texts."""
    texts = binary.cast(pl.String)
    try:
        scan.select(texts).head(SAMPLE).collect()
    except pl.exceptions.PolarsError:
        raise DataError(f"{where} has bytes that are not text in UTF-8.") from None
    return texts


def read_jsonl(
    data: DataFile, request: Request, required: Sequence[str] = ("user", "item")
) -> Rows:
    """Read a file of JSON objects, one per line; keys are columns.

    Raises
    ------
    DataError
        As `json_objects`; also if an id is neither integer nor string, or columns are missing or
        ambiguous.
    """
    passing = BadRows(
        request.rules.bad_rows
    )  # bad rows of the sample are counted below
    sample = [fields for _, fields in islice(json_objects(data, passing), SAMPLE)]
    names = _keys(sample)
    paths = _paths(request, sample)
    if paths:
        sample = [_with_paths(fields, paths) for fields in sample]
        names = _keys(sample)
    is_alone = len(sample) == 1 and not paths
    if is_alone and any(isinstance(field, list | dict) for field in sample[0].values()):
        raise DataError(
            f"{data.name} is one nested JSON object, with the keys {', '.join(names)}; write one "
            "object per rating, one per line or in an array."
        )
    nested = _nested(sample, names, request)
    if nested is not None:
        sample = [row for fields in sample for row in _unnested(fields, nested)]
        names = _keys(sample)
    roles, description = assign_roles(
        names,
        request,
        data.name,
        required,
        lambda position: [row.get(names[position]) for row in sample],
    )
    bad, lines = BadRows(request.rules.bad_rows), pl.Series(dtype=pl.Int64)
    rows = (
        _read_fast(data, names, roles, sample) if nested is None and not paths else None
    )
    if rows is None:
        values: dict[str, list[Any]] = {"line": [], **{role: [] for role in roles}}
        objects = (
            (n, _with_paths(fields, paths)) for n, fields in json_objects(data, bad)
        )
        for line, fields in (
            (n, row) for n, field in objects for row in _unnested(field, nested)
        ):
            by_role = {
                role: fields.get(names[position]) for role, position in roles.items()
            }
            problem = next(
                filter(None, (_problem(role, by_role[role]) for role in by_role)), None
            )
            if problem is not None:
                bad.add(data.at(line), problem)
                continue
            for role, value in (by_role | {"line": line}).items():
                values[role].append(value)
        lines = pl.Series(values.pop("line"), dtype=pl.Int64)
        columns = {role: _series(role, column) for role, column in values.items()}
        untyped = frozenset(
            role for role in ("user", "item") if _are_integers(values.get(role))
        )
        rows = Rows(columns, untyped=untyped)

    n_rows = len(next(iter(rows.spread().columns.values())))

    def place_of(row: int) -> Spot:
        if len(lines):
            return data.at(lines[row])
        if n_rows == data.n_lines:  # there are no blank lines
            return data.at(row + 1)
        return data.at(next(islice(json_objects(data), row, None))[0])

    form = f"JSON {'array' if data.unit == 'object' else 'lines'}"
    if nested is not None:
        form += f", a row for each of {nested}"
    name = _name_of_ratings(names, roles)
    return replace(
        rows, layout=f"{form}, {description}", place=place_of, bad=bad, name=name
    )


def _paths(request: Request, sample: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the requested columns that are fields of nested objects, such as "context.user.id"."""
    paths: dict[str, list[str]] = {}
    for name in request.columns.values():
        keys = name.split(".")
        is_nested = len(keys) > 1 and not any(name in fields for fields in sample)
        if is_nested and any(_at_path(fields, keys) is not None for fields in sample):
            paths[name] = keys
    return paths


def _at_path(fields: Any, keys: Sequence[str]) -> Any:
    """Return the value of a field of nested objects, or None."""
    for key in keys:
        if not isinstance(fields, dict):
            return None
        fields = fields.get(key)
    return fields


def _with_paths(fields: dict[str, Any], paths: dict[str, list[str]]) -> dict[str, Any]:
    """Return an object with the fields at some paths next to its own."""
    if not paths:
        return fields
    return {**fields, **{name: _at_path(fields, keys) for name, keys in paths.items()}}


def _keys(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for fields in rows for name in fields))


def _nested(
    sample: list[dict[str, Any]], names: list[str], request: Request
) -> str | None:
    """Return the key of lists of items, or None if each object has a single item."""
    filled = {
        name: sum(isinstance(row.get(name), list) for row in sample if row.get(name))
        for name in names
    }
    try:
        item = names[choose_columns(names, request, "").get("item", 0)]
    except DataError:
        lists = [name for name in names if 2 * filled[name] > len(sample)]
        return lists[0] if len(lists) == 1 else None
    return item if filled[item] else None


def _unnested(fields: dict[str, Any], key: str | None) -> list[dict[str, Any]]:
    """Return one row per element of a list, with the other fields; without a list, one row."""
    elements = fields.get(key) if key is not None else None
    if not isinstance(elements, list):
        return [fields]
    around = {name: value for name, value in fields.items() if name != key}
    return [
        around | (element if isinstance(element, dict) else {str(key): element})
        for element in elements
    ]


def json_objects(
    data: DataFile, bad: BadRows = STRICT
) -> Iterator[tuple[int, dict[str, Any]]]:
    r"""Yield the line number and the object of each line that is not blank.

    Raises
    ------
    DataError
        If a line is not a JSON object, or has half of a character (a single escape such as
        ``\ud83d``), unless bad rows are left out. The message has the file and line.
    """
    for number, line in enumerate(data.lines(bad), 1):
        if not line.strip():
            continue
        try:
            fields = _json_object(line)
        except DataError as error:
            bad.add(data.at(number), str(error))
            continue
        yield number, fields


def _json_object(line: str) -> dict[str, Any]:
    """Return the JSON object in a line, or the dict of Python 3 or 2, as in older datasets."""
    if line.startswith(_OF_PYTHON):
        with suppress(SyntaxError, ValueError, MemoryError, RecursionError):
            return dict(ast.literal_eval(line.rstrip()))
    try:
        fields = json.loads(line.rstrip())
        if "\\u" in line:
            json.dumps(fields, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        where = f"column {error.colno}: {error.msg.lower()}"
        raise DataError(f"not JSON ({where}).") from None
    except UnicodeEncodeError as error:
        code = ord(error.object[error.start])
        raise DataError(f"\\u{code:04x} is half of a character.") from None
    except (ValueError, RecursionError):  # thousands of digits or brackets
        raise DataError(
            f"a number is too long or brackets are nested too deeply; got {line.strip()[:40]!r}."
        ) from None
    if not isinstance(fields, dict):
        raise DataError(f"expected a JSON object; got {line.strip()[:40]!r}.")
    return fields


def _read_fast(
    data: DataFile, names: list[str], roles: Roles, sample: list[dict[str, Any]]
) -> Rows | None:
    """Read with polars and the types of the sample; return None if it fails or finds nulls."""
    if _GLOB.intersection(str(data.path)):
        return None  # scan_ndjson always treats the name as a pattern
    schema: dict[str, pl.DataType] = {}
    for role, position in roles.items():
        types = {type(fields.get(names[position])) for fields in sample}
        if role == "rating" and types == {bool}:
            schema[names[position]] = pl.Boolean()
        elif role == "rating" and types <= {int, float}:
            schema[names[position]] = pl.Float64()
        elif role in OPTIONAL_ROLES and types <= {str, type(None)}:
            schema[names[position]] = pl.String()
        elif role != "rating" and types in ({int}, {str}):
            schema[names[position]] = pl.Int64() if types == {int} else pl.String()
        else:
            return None
    try:
        plan = pl.scan_ndjson(data.path, schema=schema)
        chosen = {role: pl.col(names[position]) for role, position in roles.items()}
        batches = Batches()
        for frame in plan.select(**chosen).collect_batches(engine="streaming"):
            batches.add(frame.to_dict())
    except pl.exceptions.PolarsError:
        return None
    rows = batches.rows().spread()
    needed = [
        column for role, column in rows.columns.items() if role not in OPTIONAL_ROLES
    ]
    return None if any(column.null_count() for column in needed) else rows


def _problem(role: str, value: Any) -> str | None:
    """Return a sentence on the wrong type of an id, or None if the type is right."""
    if role not in ("user", "item") or type(value) in (int, str, type(None)):
        return None
    if isinstance(value, float):  # pandas writes 17 as 17.0, and a missing id as NaN
        return None if math.isnan(value) else id_problem(value, role)
    return f"{role} id {json.dumps(value)[:40]} is neither integer nor string."


def _are_integers(values: list[Any] | None) -> bool:
    """Return whether ids are integers, apart from missing and bad ones."""
    texts = [value for value in values or () if isinstance(value, str)]
    return bool(is_bad_id(pl.Series(texts, dtype=pl.String)).all())


def _series(role: str, values: list[Any]) -> pl.Series:
    """Return values as a column of their common type, or of strings if types differ."""
    if role in ("user", "item"):
        values = [None if value != value else value for value in values]  # NaN
        values = [int(value) if isinstance(value, float) else value for value in values]
    if len({type(value) for value in values} - {type(None)}) == 1:
        try:
            return pl.Series(role, values)
        except (OverflowError, TypeError):
            pass
    return pl.Series(
        role, [None if entry is None else str(entry) for entry in values], pl.String
    )


def read_lightgcn(data: DataFile, request: Request, *, counted: bool = False) -> Rows:
    """Read lines of integers: a user and the user's items, of which there may be none.

    With `counted`, each line begins with the number of items, and users are numbered from 0.
    """
    lines, bad = _lines(data, "LightGCN lines"), BadRows(request.rules.bad_rows)
    tokens = lines["line"].str.replace_all(r"\s+", " ").str.split(" ")
    numbers = tokens.cast(pl.List(pl.Int64), strict=False)
    order = pl.int_range(len(numbers), dtype=pl.Int64, eager=True)
    wrong = numbers.list.eval(pl.element().is_null()).list.any()
    if wrong.any():
        at = wrong.arg_max() or 0
        first_bad = tokens[at].filter(numbers[at].is_null())[0][:40]
        problem = (
            "is not an integer; in LightGCN lines a user and its items are integers."
        )
        bad.add(data.at(lines["row"][at]), f"{first_bad!r} {problem}", int(wrong.sum()))
    numbers, order, line_rows = (
        column.filter(~wrong) for column in (numbers, order, lines["row"])
    )
    user, items = order if counted else numbers.list.first(), numbers.list.slice(1)
    busy, ends = items.list.len() > 0, items.list.len().cum_sum()
    pairs = pl.DataFrame({"user": user, "item": items}).filter(busy).explode("item")
    idle = user.filter(~busy)
    kind, first = ("lines", "count") if counted else ("LightGCN lines", "user")
    layout = f"{kind} ({first} item item ...): implicit feedback"
    if len(idle):
        noun = "user" if len(idle) == 1 else "users"
        layout += f", {len(idle):,} {noun} without items"

    def place(row: int) -> Spot:
        return data.at(line_rows[int((ends <= row).sum())])

    return Rows(pairs.to_dict(), layout, place, idle, bad)


def read_netflix(data: DataFile, request: Request) -> Rows:
    """Read the files of the Netflix Prize: a line "7:" with an item, then its ratings."""
    item = pl.col("line").str.extract(r"^(\d+):$").cast(pl.Int64).forward_fill()
    fields = pl.col("line").str.extract_groups(
        r"^(?<user>\d+),(?<rating>[\d.]+),(?<timestamp>[\d-]+)$"
    )
    frame = _lines(data, "ratings of the Netflix Prize").with_columns(
        item=item, of=fields
    )
    frame = frame.unnest("of").filter(~pl.col("line").str.ends_with(":"))
    bad = BadRows(request.rules.bad_rows)
    for row, line in (
        frame.filter(pl.col("user").is_null()).select("row", "line").iter_rows()
    ):
        bad.add(data.at(row), f"{line[:40]!r} is not a user, a rating and a date.")
    frame = frame.filter(pl.col("user").is_not_null())
    types = {
        "user": pl.Int64,
        "item": pl.Int64,
        "rating": pl.Float32,
        "timestamp": pl.String,
    }
    columns = {role: frame[role].cast(dtype) for role, dtype in types.items()}
    layout = "Netflix Prize (item: user, rating, date)"
    return Rows(columns, layout, lambda at: data.at(frame["row"][at]), bad=bad)


def _lines(data: DataFile, form: str) -> pl.DataFrame:
    """Return the stripped lines that are not blank, with their numbers, as columns row and line."""
    settings: dict[str, Any] = {
        "has_header": False,
        "separator": _NO_SEPARATOR,
        "quote_char": None,
    }
    try:
        frame = pl.read_csv(
            data.path, **settings, schema={"line": pl.String}, glob=False
        )
    except pl.exceptions.PolarsError:
        deque(
            data.lines(), maxlen=0
        )  # raises with the line of a byte that is not UTF-8
        raise DataError(f"{data.name} cannot be read as {form}.") from None
    stripped = frame.with_row_index("row", 1).with_columns(
        pl.col("line").str.strip_chars()
    )
    return stripped.filter(pl.col("line").str.len_bytes() > 0)


def joined(parts: Sequence[tuple[str, Rows]]) -> Rows:
    """Concatenate the rows of several files, given with their names.

    Raises
    ------
    DataError
        If not all files have the same roles.
    """
    first_name, first = parts[0]
    every, roles = [rows for _, rows in parts], {*first.columns, *first.arrays}
    for name, rows in parts:
        if unshared := sorted({*rows.columns, *rows.arrays} ^ roles):
            has, lacks = (
                (first_name, name) if unshared[0] in roles else (name, first_name)
            )
            raise DataError(
                f"{has} has a {unshared[0]} column and {lacks} has none; read together, "
                "all files need the same ones."
            )
    sizes = [len((rows.arrays or rows.columns)["item"]) for rows in every]
    ends, batches = list(accumulate(sizes)), Batches(sum(sizes))
    in_seconds = {rows.in_seconds for rows in every}
    untyped = [rows.untyped for rows in every]
    for rows in every:
        columns = rows.decode().columns
        if len(in_seconds) > 1:  # dates in only some files: convert all to texts
            times = columns["timestamp"]
            if rows.in_seconds:
                exact = (times.cast(pl.Float64) * 10**6).round().cast(pl.Int64)
                times = exact.cast(pl.Datetime("us"))
            columns["timestamp"] = times.cast(pl.String)
        batches.add({role: columns.pop(role) for role in tuple(columns)})

    def place(row: int) -> Spot:
        part = bisect_right(ends, row)
        spot = every[part].place(row - (ends[part - 1] if part else 0))
        return Spot((part, *spot.order), spot.text)

    bad = BadRows(first.bad.limit)
    for part, rows in enumerate(every):
        bad.count += rows.bad.count
        for cause in rows.bad.causes.values():
            spot = Spot((part, *cause.spot.order), cause.spot.text)
            bad.add_cause(replace(cause, spot=spot))
    idle = [rows.idle_users for rows in every if rows.idle_users is not None]
    shared: dict[str, Any] = {"layout": first.layout, "place": place, "bad": bad}
    shared |= {"name": first.name, "untyped": first.untyped.intersection(*untyped)}
    shared |= {
        "in_seconds": in_seconds == {True},
        "idle_users": concatenated(idle) if idle else None,
    }
    return replace(batches.rows(), **shared)
