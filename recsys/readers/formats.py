"""Formats other than delimited text: Parquet, JSON lines, databases, LightGCN and Netflix files.

`FORMATS` is the registry: how each format is recognised and read.
"""

from __future__ import annotations

import ast
import json
import math
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, islice
from typing import Any, TypeAlias, cast

import numpy as np
import polars as pl

from recsys.data.columns import SAMPLE, Request, Roles, assign_roles, choose_columns
from recsys.data.csr import Batches, concatenated
from recsys.data.ids import Spot, id_problem, integers_if_whole, is_bad_id
from recsys.data.rows import OPTIONAL_ROLES, STRICT, BadRows, Rows
from recsys.database import TableRows
from recsys.errors import DataError
from recsys.readers.sources import DataFile, NoRowsError

JsonObject: TypeAlias = dict[str, Any]
"""Fields of one row of JSON lines."""

_INTEGERS = re.compile(r"\s*-?\d+( +-?\d+)*\s*")
_OF_PYTHON = ("{'", "{u'", '{u"')  # beginnings of dicts
_GLOB = frozenset("*?[")
_CHUNK = 100_000  # rows of a Parquet file to read at once, which fit in a cache
_BLOCK = 1 << 20  # bytes to search at once
_MANY = 30  # ratings of a file that tell its scale
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


def read_table_rows(data: DataFile, table: TableRows, request: Request) -> Rows:
    """Read an open table of a database."""
    names = table.names
    batches = Batches()
    with table.batches(data.on_rows) as record_batches:
        frames = (cast(pl.DataFrame, pl.from_arrow(batch)) for batch in record_batches)
        first = next(frames)

        def sample(position: int) -> list[Any]:
            return _sample(first[names[position]])

        roles, description = assign_roles(names, request, data.name, sample)
        for frame in chain((first,), frames):
            columns = {role: frame[names[position]] for role, position in roles.items()}
            batches.add(columns)
    rows = _with_integers(batches.rows())
    rows.name = _name_of_ratings(names, roles)
    return _numbered(rows, data, description, request)


def _name_of_ratings(names: Sequence[str], roles: Roles) -> str:
    """Return the name of the column of ratings, "" without one."""
    if "rating" not in roles:
        return ""
    return names[roles["rating"]]


def _with_integers(rows: Rows) -> Rows:
    """Convert ids to integers if possible; databases often store numbers as texts."""
    columns = rows.columns
    for role in ("user", "item"):
        column = columns.get(role)
        if column is None or column.null_count():
            continue
        if isinstance(column.dtype, pl.Categorical):
            columns[role] = integers_if_whole(column)
    return rows


def _sample(head: pl.Series) -> list[Any]:
    """Return the first values of a column, which tell the form of times."""
    head = head.head(SAMPLE)
    if head.dtype == pl.Date or isinstance(head.dtype, pl.Datetime):
        head = head.dt.epoch("s")  # also for years out of Python's range
    if head.dtype == pl.Binary:  # SQLite converts all values if one is bytes
        return ["bytes"]
    if isinstance(head.dtype, pl.Categorical | pl.Enum):
        head = head.cast(pl.String)
    if head.dtype.is_numeric() or head.dtype in (pl.String, pl.Boolean):
        return head.to_list()
    return [str(head.dtype)]


def _numbered(
    rows: Rows,
    data: DataFile,
    description: str,
    request: Request,
) -> Rows:
    """Return rows whose places are row numbers."""
    numbered = replace(data, unit="row")
    return replace(
        rows,
        layout=f"{data.form}, {description}",
        place=lambda row: numbered.at(row + 1),
        bad=BadRows(request.rules.bad_rows),
    )


def read_parquet(data: DataFile, request: Request) -> Rows:
    """Read the columns of a Parquet file that have a role.

    Raises
    ------
    DataError
        If the file is damaged or has no rows, or columns are missing or ambiguous.
    """
    types = parquet_columns(data)
    names = list(data.columns or types)
    scan = pl.scan_parquet(data.path, glob=False)

    def sample(position: int) -> list[Any]:
        head = scan.select(names[position]).head(SAMPLE).collect()
        return _sample(head.to_series())

    with reading_parquet(data.name):
        roles, description = assign_roles(names, request, data.name, sample)
        n_rows = int(scan.select(pl.len()).collect().item())
        if not n_rows:
            raise NoRowsError(f"{data.name} has no rows.")
        columns = {}
        for role, position in roles.items():
            column = pl.col(names[position])
            if types[names[position]] in (pl.Int128, pl.UInt128):
                # NumPy has no such integers.
                column = column.cast(
                    pl.String if role in ("user", "item") else pl.Float64
                )
            if types[names[position]] == pl.Binary:
                where = f"{data.name}: the column of {role}s"
                column = _text(column, scan, where)
            columns[role] = column
        # By column, because polars reads whole row groups, and a file may have only one.
        plans = [scan.select(column.alias(role)) for role, column in columns.items()]
        if "item" in roles and isinstance(types[names[roles["item"]]], pl.List):
            # A list of items becomes a row for each.
            plans = [scan.select(**columns).explode("item").drop_nulls("item")]
            description = f"a row for each of {names[roles['item']]}, {description}"
        # Room for all rows, because arrays that grow need more memory.
        batches = Batches(n_rows)
        for n_plans, plan in enumerate(plans):
            n_read = n_plans * n_rows
            for frame in plan.collect_batches(chunk_size=_CHUNK, engine="streaming"):
                batches.add(frame.to_dict())
                n_read += len(frame)
                if data.on_rows is not None:
                    data.on_rows(min(n_read // len(plans), n_rows), n_rows)
    rows = batches.rows()
    rows.name = _name_of_ratings(names, roles)
    if data.columns:
        rows = _with_integers(rows)
    return _numbered(rows, data, description, request)


def _text(
    binary: pl.Expr,
    scan: pl.LazyFrame,
    where: str,
) -> pl.Expr:
    """Return a column of bytes as texts."""
    texts = binary.cast(pl.String)
    try:
        scan.select(texts).head(SAMPLE).collect()
    except pl.exceptions.PolarsError:
        raise DataError(f"{where} has bytes that are not text in UTF-8.") from None
    return texts


def read_jsonl(data: DataFile, request: Request) -> Rows:
    """Read a file of JSON objects, one per line; keys are columns.

    Raises
    ------
    DataError
        As `json_objects`; also if an id is neither integer nor string, or columns are missing or
        ambiguous.
    """
    # Bad rows of the sample are counted below.
    passing = BadRows(request.rules.bad_rows)
    sample = [fields for _, fields in islice(json_objects(data, passing), SAMPLE)]
    names = _keys(sample)
    paths = _paths(request, sample)
    if paths:
        sample = [_with_paths(fields, paths) for fields in sample]
        names = _keys(sample)
    elif len(sample) == 1:
        _check_flat(sample[0], data.name)
    nested = _nested(sample, names, request)
    if nested is not None:
        sample = [row for fields in sample for row in _unnested(fields, nested)]
        names = _keys(sample)

    def values_of(position: int) -> list[Any]:
        return [row.get(names[position]) for row in sample]

    try:
        roles, description = assign_roles(names, request, data.name, values_of)
    except DataError as error:
        raise DataError(f"{error}{_hint_on_fields(sample)}") from None
    keys = {role: names[position] for role, position in roles.items()}
    bad = BadRows(request.rules.bad_rows)
    lines = pl.Series(dtype=pl.Int64)
    rows = None
    if nested is None and not paths:
        rows = _read_fast(data, keys, sample)
    if rows is None:
        rows, lines = _read_objects(data, keys, paths, nested, bad)
    rows.bad = bad
    rows.name = keys.get("rating", "")
    n_rows = len(next(iter(rows.columns.values())))

    def place(row: int) -> Spot:
        if len(lines):
            return data.at(lines[row])
        return data.at_row(row, n_rows, json_objects(data))

    rows.place = place
    form = "JSON array" if data.unit == "object" else "JSON lines"
    if nested is not None:
        form += f", a row for each of {nested}"
    rows.layout = f"{form}, {description}"
    return rows


def _hint_on_fields(sample: Sequence[JsonObject]) -> str:
    """Return how to name a field of an object inside of others, if there is one."""
    for fields in sample:
        for name, value in fields.items():
            if isinstance(value, dict) and value:
                return f" A field of an object has a name such as '{name}.{next(iter(value))}'."
    return ""


def _check_flat(fields: JsonObject, where: str) -> None:
    """Raise an error if the only object of a file has others in it."""
    if any(isinstance(value, list | dict) for value in fields.values()):
        raise DataError(
            f"{where} is one nested JSON object, with the keys {', '.join(fields)}; "
            "write one object per rating, one per line or in an array."
        )


def _read_objects(
    data: DataFile,
    keys: Mapping[str, str],
    paths: dict[str, list[str]],
    nested: str | None,
    bad: BadRows,
) -> tuple[Rows, pl.Series]:
    """Read objects in Python; return their rows, and the line of each."""
    lines: list[int] = []
    values: dict[str, list[Any]] = {role: [] for role in keys}
    for line, fields in json_objects(data, bad):
        for row in _unnested(_with_paths(fields, paths), nested):
            by_role = {role: row.get(key) for role, key in keys.items()}
            try:
                for role in ("user", "item"):
                    if role in by_role:
                        by_role[role] = _checked_id(by_role[role], role, keys[role])
            except DataError as error:
                bad.add(data.at(line), str(error))
                continue
            lines.append(line)
            for role, value in by_role.items():
                values[role].append(value)
    columns = {role: _series(column) for role, column in values.items()}
    untyped = [role for role in ("user", "item") if _are_integers(values.get(role))]
    rows = Rows(columns, untyped=frozenset(untyped))
    return rows, pl.Series(lines, dtype=pl.Int64)


def _paths(request: Request, sample: list[JsonObject]) -> dict[str, list[str]]:
    """Return the requested columns of nested objects, such as "context.user.id"."""
    paths: dict[str, list[str]] = {}
    for name in request.columns.values():
        keys = name.split(".")
        if len(keys) == 1 or any(name in fields for fields in sample):
            continue
        if any(_at_path(fields, keys) is not None for fields in sample):
            paths[name] = keys
    return paths


def _at_path(fields: Any, keys: Sequence[str]) -> Any:
    """Return the value of a field of nested objects, or None."""
    for key in keys:
        if not isinstance(fields, dict):
            return None
        fields = fields.get(key)
    return fields


def _with_paths(fields: JsonObject, paths: dict[str, list[str]]) -> JsonObject:
    """Return an object with the fields at some paths next to its own."""
    if not paths:
        return fields
    values = {name: _at_path(fields, keys) for name, keys in paths.items()}
    return {**fields, **values}


def _keys(rows: list[JsonObject]) -> list[str]:
    return list(dict.fromkeys(name for fields in rows for name in fields))


def _nested(
    sample: list[JsonObject],
    names: list[str],
    request: Request,
) -> str | None:
    """Return the key of lists of items, or None if each object has a single item."""
    n_lists = dict.fromkeys(names, 0)
    for fields in sample:
        for name, value in fields.items():
            if isinstance(value, list) and value:
                n_lists[name] += 1
    try:
        roles = choose_columns(names, request, "")
    except DataError:
        # No name tells the items: the only key of lists does.
        lists = [name for name in names if 2 * n_lists[name] > len(sample)]
        return lists[0] if len(lists) == 1 else None
    item = names[roles.get("item", 0)]
    return item if n_lists[item] else None


def _unnested(fields: JsonObject, key: str | None) -> list[JsonObject]:
    """Return a row for each element of a list, or one row without a list."""
    elements = fields.get(key) if key is not None else None
    if not isinstance(elements, list):
        return [fields]
    shared_fields = {name: value for name, value in fields.items() if name != key}
    rows = []
    for element in elements:
        # An element is an item, or an object with columns of its own.
        row = element if isinstance(element, dict) else {str(key): element}
        rows.append({**shared_fields, **row})
    return rows


def json_objects(
    data: DataFile, bad: BadRows = STRICT
) -> Iterator[tuple[int, JsonObject]]:
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


def _json_object(line: str) -> JsonObject:
    """Return the JSON object in a line, or the dict of Python in older datasets."""
    if line.startswith(_OF_PYTHON):
        with suppress(SyntaxError, ValueError, MemoryError, RecursionError):
            return dict(ast.literal_eval(line.rstrip()))
    try:
        fields = json.loads(line.rstrip(), object_pairs_hook=_of_pairs)
        # Half of a character passes json, and fails when the text is encoded.
        if "\\u" in line:
            json.dumps(fields, ensure_ascii=False).encode()
    except _RepeatedKeyError as error:
        raise DataError(f"the key {error.args[0]!r} occurs twice.") from None
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


class _RepeatedKeyError(Exception):
    """A key has two values in a JSON object."""


def _of_pairs(pairs: list[tuple[str, Any]]) -> JsonObject:
    """Return an object, in which a repeated key may only have one value."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        for key, value in pairs:
            if value != fields[key]:
                raise _RepeatedKeyError(key)
    return fields


def _read_fast(
    data: DataFile,
    keys: Mapping[str, str],
    sample: list[JsonObject],
) -> Rows | None:
    """Read with the types of the sample; return None if this fails or gives nulls."""
    if _GLOB.intersection(str(data.path)):
        return None  # scan_ndjson always treats the name as a pattern
    schema: dict[str, pl.DataType] = {}
    for role, key in keys.items():
        dtype = _type_of(role, {type(fields.get(key)) for fields in sample})
        if dtype is None:
            return None
        schema[key] = dtype
    columns = {role: pl.col(key) for role, key in keys.items()}
    batches = Batches()
    try:
        plan = pl.scan_ndjson(data.path, schema=schema).select(**columns)
        for frame in plan.collect_batches(engine="streaming"):
            batches.add(frame.to_dict())
    except pl.exceptions.PolarsError:
        return None
    rows = batches.rows()
    if rows.lacks_values:
        return None
    n_rows = len(next(iter(rows.columns.values())))
    return None if _may_repeat_keys(data, keys.values(), sample, n_rows) else rows


def _may_repeat_keys(
    data: DataFile,
    keys: Collection[str],
    sample: list[JsonObject],
    n_rows: int,
) -> bool:
    """Return whether a key occurs in more places than there are rows."""
    n_keys = max(map(len, sample))
    # One search is enough if all rows have the same number of keys.
    if _count(data, b'":') == n_rows * n_keys:
        return False
    return any(_count(data, json.dumps(key).encode()) > n_rows for key in keys)


def _count(data: DataFile, text: bytes) -> int:
    """Return how often a text occurs in the lines of a file."""
    n = 0
    with data.path.open("rb") as stream:
        while block := stream.read(_BLOCK) + stream.readline():
            n += block.count(text)
    return n


def _type_of(role: str, types: set[type]) -> pl.DataType | None:
    """Return the type of a column whose values have some types of Python."""
    if role == "rating":
        if types == {bool}:
            return pl.Boolean()
        return pl.Float64() if types <= {int, float} else None
    if types == {int}:
        return pl.Int64()
    if role in OPTIONAL_ROLES:
        types = types - {type(None)}
    return pl.String() if types <= {str} else None


def _checked_id(value: Any, role: str, key: str) -> int | str | None:
    """Return an id, which pandas writes as a float, or NaN, if another one is missing.

    Raises
    ------
    DataError
        If the value is of another type, or may be rounded.
    """
    if isinstance(value, float):
        if math.isnan(value):
            return None
        problem = id_problem(value, role)
        if problem is not None:
            raise DataError(problem)
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | str | None):
        text = json.dumps(value)[:40]
        cure = ""
        if isinstance(value, dict) and value:
            path = f"'{key}.{next(iter(value))}'"
            cure = f"; name its field with --{role}-col {path} ({role}={path})"
        raise DataError(f"{role} id {text} is neither integer nor string{cure}.")
    return value


def _are_integers(values: list[Any] | None) -> bool:
    """Return whether ids are integers, apart from missing and bad ones."""
    texts = [value for value in values or () if isinstance(value, str)]
    return bool(is_bad_id(pl.Series(texts, dtype=pl.String)).all())


def _series(values: list[Any]) -> pl.Series:
    """Return values as a column of their common type, or of strings if types differ."""
    types = {type(value) for value in values if value is not None}
    if len(types) == 1:
        with suppress(OverflowError, TypeError):
            return pl.Series(values)
    texts = [None if value is None else str(value) for value in values]
    return pl.Series(texts, dtype=pl.String)


def read_lightgcn(
    data: DataFile,
    request: Request,
    *,
    counted: bool = False,
) -> Rows:
    """Read lines of integers: a user and the user's items, of which there may be none.

    With `counted`, each line begins with the number of items, and users are numbered from 0.
    """
    lines = text_lines(data, "LightGCN lines")
    bad = BadRows(request.rules.bad_rows)
    tokens = lines["line"].str.replace_all(r"\s+", " ").str.split(" ")
    numbers = tokens.cast(pl.List(pl.Int64), strict=False)
    order = pl.int_range(len(numbers), dtype=pl.Int64, eager=True)
    # A number is null if its text is not an integer.
    wrong = numbers.list.eval(pl.element().is_null()).list.any()
    if wrong.any():
        at = wrong.arg_max() or 0
        wrong_tokens = tokens[at].filter(numbers[at].is_null())
        text = wrong_tokens[0][:40]
        problem = (
            f"{text!r} is not an integer; in LightGCN lines a user and its items are "
            "integers."
        )
        spot = data.at(lines["row"][at])
        bad.add(spot, problem, int(wrong.sum()))
    numbers = numbers.filter(~wrong)
    line_rows = lines["row"].filter(~wrong)
    items = numbers.list.slice(1)
    users = order.filter(~wrong) if counted else numbers.list.first()
    n_items = items.list.len()
    ends = n_items.cum_sum()
    lists = pl.DataFrame({"user": users, "item": items})
    pairs = lists.filter(n_items > 0).explode("item")
    # Users without items are still users, such as of a test file.
    idle = users.filter(n_items == 0)
    layout = "LightGCN lines (user item item ...): implicit feedback"
    if counted:
        layout = "lines (count item item ...): implicit feedback"
    if len(idle):
        noun = "user" if len(idle) == 1 else "users"
        layout += f", {len(idle):,} {noun} without items"

    def place(row: int) -> Spot:
        return data.at(line_rows[int((ends <= row).sum())])

    return Rows(pairs.to_dict(), layout, place, idle, bad)


def read_netflix(data: DataFile, request: Request) -> Rows:
    """Read files of the Netflix Prize: a line "7:" with an item, then its ratings."""
    item = pl.col("line").str.extract(r"^(\d+):$").cast(pl.Int64).forward_fill()
    fields = pl.col("line").str.extract_groups(
        r"^(?<user>\d+),(?<rating>[\d.]+),(?<timestamp>[\d-]+)$"
    )
    lines = text_lines(data, "ratings of the Netflix Prize")
    frame = lines.with_columns(item=item, fields=fields).unnest("fields")
    frame = frame.filter(~pl.col("line").str.ends_with(":"))
    is_bad = frame["user"].is_null()
    bad = BadRows(request.rules.bad_rows)
    for row, line in frame.filter(is_bad).select("row", "line").iter_rows():
        bad.add(data.at(row), f"{line[:40]!r} is not a user, a rating and a date.")
    frame = frame.filter(~is_bad)
    columns = {
        "user": frame["user"].cast(pl.Int64),
        "item": frame["item"],
        "rating": frame["rating"].cast(pl.Float32),
        "timestamp": frame["timestamp"],
    }
    layout = "Netflix Prize (item: user, rating, date)"
    line_rows = frame["row"]

    def place(row: int) -> Spot:
        return data.at(line_rows[row])

    return Rows(columns, layout, place, bad=bad)


def text_lines(data: DataFile, form: str) -> pl.DataFrame:
    """Return stripped lines that are not blank, and their numbers: line and row."""
    try:
        frame = pl.read_csv(
            data.path,
            has_header=False,
            separator=_NO_SEPARATOR,
            quote_char=None,
            schema={"line": pl.String},
            glob=False,
        )
    except pl.exceptions.PolarsError:
        # This raises with the line of a byte that is not UTF-8.
        deque(data.lines(), maxlen=0)
        raise DataError(f"{data.name} cannot be read as {form}.") from None
    line = pl.col("line")
    frame = frame.with_row_index("row", 1).with_columns(line.str.strip_chars())
    return frame.filter(line.str.len_bytes() > 0)


def parquet_frame(data: DataFile) -> pl.DataFrame:
    """Return all columns of a Parquet file."""
    with reading_parquet(data.name):
        return pl.read_parquet(data.path, glob=False)


def _objects_frame(data: DataFile) -> pl.DataFrame:
    """Return all columns of JSON objects, one per line."""
    rows = [fields for _, fields in json_objects(data)]
    try:
        return pl.DataFrame(rows, infer_schema_length=None, strict=False)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DataError(f"{data.name} is not a table: {reason}.") from None


@dataclass(frozen=True, slots=True)
class Format:
    """Format of a file.

    `read` reads the columns that have a role. `fits` recognises the
    first lines that are not blank; a name with one of the `suffixes` decides without them. `frame`
    reads all columns; it is None if they have no names.
    """

    name: str
    read: Callable[[DataFile, Request], Rows]
    fits: Callable[[Sequence[str]], bool] = lambda lines: False
    suffixes: tuple[str, ...] = ()
    frame: Callable[[DataFile], pl.DataFrame] | None = None


def _integer_rows(lines: Sequence[str]) -> list[list[str]]:
    """Return the fields of lines of integers with spaces; none for other lines."""
    are_integers = all(map(_INTEGERS.fullmatch, lines))
    return [line.split() for line in lines] if are_integers else []


def _are_counted(lines: Sequence[str]) -> bool:
    """Return whether each line has as many items as its first number tells."""
    rows = _integer_rows(lines)
    are_equal = len(set(map(len, rows))) <= 1
    return not are_equal and all(int(row[0]) == len(row) - 1 for row in rows)


def _are_lists(lines: Sequence[str]) -> bool:
    """Return whether lines are of a user and items.

    Users come back in a table of integers with spaces, but not in such lines.
    """
    rows = _integer_rows(lines)
    users = {row[0] for row in rows}
    widths = set(map(len, rows))
    return len(users) == len(rows) > 0 and widths not in ({1}, {2})


PARQUET = Format("Parquet", read_parquet, frame=parquet_frame)
FORMATS = (
    Format(
        "JSON lines",
        read_jsonl,
        fits=lambda lines: lines[0].lstrip().startswith("{"),
        suffixes=(".jsonl", ".ndjson"),
        frame=_objects_frame,
    ),
    Format(
        "Netflix Prize",
        read_netflix,
        fits=lambda lines: re.fullmatch(r"\d+:\s*", lines[0]) is not None,
    ),
    Format("counted items", partial(read_lightgcn, counted=True), fits=_are_counted),
    Format("LightGCN", read_lightgcn, fits=_are_lists),
)
"""Formats of text other than delimited columns, in the order in which they are tried."""


def recognised(lines: Sequence[str], data: DataFile) -> Format | None:
    """Return the format of a text by its first lines; None for delimited columns.

    Raises
    ------
    DataError
        If the text is a JSON array of other values than objects.
    """
    filled = [line for line in lines if line.strip()]
    for format in FORMATS:
        if data.suffix in format.suffixes or format.fits(filled):
            return format
    if filled[0].lstrip().startswith("["):
        raise DataError(
            f"{data.name} is a JSON array, and its elements are not objects."
        )
    return None


def joined(parts: Sequence[tuple[str, Rows]]) -> Rows:
    """Concatenate the rows of several files, given with their names.

    Raises
    ------
    DataError
        If not all files have the same roles.
    """
    _check_same_roles(parts)
    remarks = _differences(parts)
    every = [rows for _, rows in parts]
    first = every[0]
    in_seconds = {rows.in_seconds for rows in every}
    sizes = [len(rows.columns["item"]) for rows in every]
    ends = list(accumulate(sizes))
    batches = Batches()
    has_event_ids = any("event_id" in rows.columns for rows in every)
    for rows in every:
        # Each file has codes of its own, so ratings are numbers here.
        columns = rows.decode().columns
        if len(in_seconds) > 1:  # dates in only some files: convert all to texts
            columns["timestamp"] = _time_texts(columns["timestamp"], rows.in_seconds)
        if has_event_ids and "event_id" not in columns:
            n_rows = len(columns["item"])
            columns["event_id"] = pl.repeat(None, n_rows, dtype=pl.String, eager=True)
        batches.add({role: columns.pop(role) for role in tuple(columns)})

    def place(row: int) -> Spot:
        part = bisect_right(ends, row)
        row_of_part = row - ends[part] + sizes[part]
        return _spot_of_part(every[part].place(row_of_part), part)

    bad = BadRows(first.bad.limit)
    for part, rows in enumerate(every):
        bad.count += rows.bad.count
        for cause in rows.bad.causes.values():
            bad.add_cause(replace(cause, spot=_spot_of_part(cause.spot, part)))
    idle = [rows.idle_users for rows in every if rows.idle_users is not None]
    untyped = [rows.untyped for rows in every]
    return replace(
        batches.rows(),
        layout=first.layout,
        place=place,
        bad=bad,
        name=first.name,
        untyped=first.untyped.intersection(*untyped),
        in_seconds=in_seconds == {True},
        remarks=remarks,
        idle_users=concatenated(idle) if idle else None,
    )


def _differences(parts: Sequence[tuple[str, Rows]]) -> list[str]:
    """Return remarks on files that repeat others, or are written in another way."""
    first_name, first = parts[0]
    remarks = [f"{name}: {remark}" for name, rows in parts for remark in rows.remarks]
    for name, rows in parts:
        if rows.layout != first.layout:
            remarks.append(f"{name}: {rows.layout}")
            break
    same: dict[Any, tuple[str, Rows]] = {}
    for name, rows in parts:
        size = len(rows.columns["item"])
        ends = [(column.first(), column.last()) for column in rows.columns.values()]
        levels = None if rows.levels is None else rows.levels.tobytes()
        key = (size, levels, *ends)
        earlier_name, earlier = same.setdefault(key, (name, rows))
        if size > 1 and earlier is not rows and _are_equal(earlier, rows):
            remarks.append(f"{name} has the same rows as {earlier_name}")
            break
    if "rating" not in first.columns:
        return remarks
    usual = _usual_values(first)
    for name, rows in parts[1:]:
        others = _usual_values(rows)
        if usual and others and (others[0] > usual[1] or usual[0] > others[1]):
            remarks.append(
                f"half of the {first.name or 'rating'} values are up to {usual[0]:g} in "
                f"{first_name} and up to {others[0]:g} in {name}, as of another scale"
            )
            break
    return remarks


def _are_equal(one: Rows, other: Rows) -> bool:
    """Return whether the columns of two files are the same."""
    pairs = ((one.columns[role], other.columns[role]) for role in one.columns)
    return all(a.cast(pl.String).equals(b.cast(pl.String)) for a, b in pairs)


def _usual_values(rows: Rows) -> tuple[float, float] | None:
    """Return the median and the maximum of many ratings; None of few, or of texts."""
    ratings = rows.columns["rating"]
    if not ratings.dtype.is_numeric() or len(ratings) < _MANY:
        return None
    values = ratings.drop_nulls().to_numpy()
    if rows.levels is not None:
        values = rows.levels[values]
    return float(np.median(values)), float(values.max())


def _check_same_roles(parts: Sequence[tuple[str, Rows]]) -> None:
    """Raise an error if a file has a role that the first one lacks, or lacks one.

    Only ids of events may be missing: a journal has them, and a table of orders has none.
    """
    first_name, first = parts[0]
    first_roles = {*first.columns} - {"event_id"}
    for name, rows in parts:
        roles = {*rows.columns} - {"event_id"}
        if roles == first_roles:
            continue
        role = min(roles ^ first_roles)
        with_role, without_role = name, first_name
        if role in first_roles:
            with_role, without_role = first_name, name
        raise DataError(
            f"{with_role} has a {role} column and {without_role} has none; read "
            "together, all files need the same ones."
        )


def _time_texts(times: pl.Series, in_seconds: bool) -> pl.Series:
    """Convert times to texts, exact to the microsecond if they are in seconds."""
    if in_seconds:
        seconds = times.cast(pl.Float64)
        microseconds = (seconds * 10**6).round().cast(pl.Int64)
        times = microseconds.cast(pl.Datetime("us"))
    return times.cast(pl.String)


def _spot_of_part(spot: Spot, part: int) -> Spot:
    """Return a place in one of several files, in the order of the files."""
    return Spot((part, *spot.order), spot.text)
