"""Output of the command: tables, CSV, TSV, JSON and Parquet."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from recsys.atomic import unfinished_directory, unfinished_file
from recsys.cli.errors import CommandError

if TYPE_CHECKING:
    import polars as pl
    from rich.text import Text

__all__ = ["FORMATS", "SCHEMA", "Facts", "Output", "Sink", "atomic_file", "render", "write_facts"]

FORMATS = ("table", "csv", "tsv", "json", "jsonl", "parquet")
SCHEMA = 1
"""Version of the JSON documents; it changes when a key changes its meaning or goes away."""

_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}


@dataclass(frozen=True)
class Output:
    """Where the data go (None: standard output) and the format asked for, if any."""

    path: Path | None = None
    format: str | None = None

    def __post_init__(self) -> None:
        """Refuse at once what cannot work, before any long computation."""
        if self.resolved_format == "parquet" and self.path is None and _is_terminal():
            raise click.UsageError(
                "Parquet is no text for a terminal; add --output FILE or redirect the output."
            )
        if self.path is not None:
            _check_target(self.path)

    @property
    def resolved_format(self) -> str:
        """The format asked for, else the one of the file's suffix, else table or csv."""
        if self.format is not None:
            return self.format
        if self.path is None:
            return "table" if _is_terminal() else "csv"
        suffix = self.path.suffix.lower()
        if suffix not in _SUFFIXES:
            raise click.UsageError(
                f"The suffix of {str(self.path)!r} tells no format; use one of "
                f"{', '.join(_SUFFIXES)}, or add --format."
            )
        return _SUFFIXES[suffix]

    @contextmanager
    def open(self, **head: Any) -> Iterator[Sink]:
        """Give a sink for frames; `head` goes before the rows in a JSON document."""
        with self._stream() as stream:
            sink = _SINKS[self.resolved_format](stream, head, self._target())
            try:
                yield sink
                sink.finish()
            finally:
                sink.discard()

    def write(
        self, frames: pl.DataFrame | Iterable[pl.DataFrame], *, remark: str = "", **head: Any
    ) -> None:
        """Write one frame, or several as if they were one; below a table, also `remark`."""
        import polars as pl

        with self.open(**head) as sink:
            for frame in [frames] if isinstance(frames, pl.DataFrame) else frames:
                sink.write(frame)
            sink.remark(remark)

    def write_document(self, document: Mapping[str, Any], frame: pl.DataFrame) -> None:
        """Write `document` where the format is JSON, and `frame`, its rows, elsewhere."""
        if self.resolved_format != "json":
            self.write(frame)
            return
        text = json.dumps({"schema": SCHEMA, **document}, ensure_ascii=False, indent=2)
        with self._stream() as stream:
            stream.write(f"{text}\n".encode())

    def _target(self) -> Path | None:
        """Return the file that is to be replaced, beside which there is room for its parts."""
        in_place = self.path is None or _is_special(self.path)
        return None if in_place or self.path is None else Path(os.path.realpath(self.path))

    @contextmanager
    def _stream(self) -> Iterator[IO[bytes]]:
        if self.path is not None:
            with atomic_file(self.path) as stream:
                yield stream
            return
        if sys.stdout is None:
            raise CommandError("Standard output is closed; add --output FILE.")
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()


class Sink(ABC):
    """What every format does: `write` each frame, then `finish`."""

    def __init__(self, stream: IO[bytes], head: Mapping[str, Any], target: Path | None) -> None:
        self.stream = stream
        self.target = target
        self.head = head
        self.is_first = True

    def write(self, frame: pl.DataFrame) -> None:
        """Write a batch; the first one, even without rows, tells the columns."""
        if self.is_first or len(frame):
            self._write(frame)
        self.is_first = False
        self.stream.flush()

    @abstractmethod
    def _write(self, frame: pl.DataFrame) -> None: ...

    def remark(self, text: str) -> None:  # noqa: B027
        """Write a line for people, where the format has room for one."""

    def finish(self) -> None:  # noqa: B027
        """Write what comes after the last batch."""

    def discard(self) -> None:  # noqa: B027
        """Let go of what is held outside the stream."""


class _Csv(Sink):
    separator = ","

    def _write(self, frame: pl.DataFrame) -> None:
        text = frame.write_csv(include_header=self.is_first, separator=self.separator)
        self.stream.write(text.encode())


class _Tsv(_Csv):
    separator = "\t"


class _JsonLines(Sink):
    def _write(self, frame: pl.DataFrame) -> None:
        self.stream.write(frame.write_ndjson().encode())


class _Json(Sink):
    """One document: {"schema": 1, ..., "rows": [...]}."""

    has_rows = False

    def _write(self, frame: pl.DataFrame) -> None:
        if not len(frame):
            return
        # Not splitlines, which also ends a line at what may stand in a title, such as U+2028.
        rows = frame.write_ndjson().rstrip("\n").replace("\n", ",\n")
        separator = ",\n" if self.has_rows else self._opening()
        self.stream.write(f"{separator}{rows}".encode())
        self.has_rows = True

    def _opening(self) -> str:
        head = json.dumps({"schema": SCHEMA, **self.head}, ensure_ascii=False)
        return f'{head[:-1]}, "rows": [\n'

    def finish(self) -> None:
        closing = "\n]}\n" if self.has_rows else f"{self._opening()}]}}\n"
        self.stream.write(closing.encode())


class _Parquet(Sink):
    """Batches are kept as Parquet files and joined by the streaming engine at the end."""

    def __init__(self, stream: IO[bytes], head: Mapping[str, Any], target: Path | None) -> None:
        super().__init__(stream, head, target)
        self.held = ExitStack()
        self.parts = self.held.enter_context(_workplace(target))
        self.n_parts = 0

    def _write(self, frame: pl.DataFrame) -> None:
        frame.write_parquet(self.parts / f"{self.n_parts:06}.parquet")
        self.n_parts += 1

    def finish(self) -> None:
        import polars as pl

        if self.n_parts != 1:
            parts = [self.parts / f"{i:06}.parquet" for i in range(self.n_parts)]
            pl.scan_parquet(parts).sink_parquet(self.parts / "joined.parquet")
        whole = self.parts / ("000000.parquet" if self.n_parts == 1 else "joined.parquet")
        with whole.open("rb") as source:
            shutil.copyfileobj(source, self.stream)

    def discard(self) -> None:
        self.held.close()


@contextmanager
def _workplace(target: Path | None) -> Iterator[Path]:
    """Yield a directory for parts of `target`: beside it, where room is needed anyway."""
    if target is not None:
        with unfinished_directory(target) as folder:
            yield folder
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="recsys-") as name:
        yield Path(name)


class _Table(Sink):
    """A table for people, as wide as the terminal."""

    def _write(self, frame: pl.DataFrame) -> None:
        self.stream.write(render(frame).encode(errors="replace"))

    def remark(self, text: str) -> None:
        if text:
            self.stream.write(f"{text}\n".encode(errors="replace"))


_SINKS: dict[str, type[Sink]] = {
    "table": _Table,
    "csv": _Csv,
    "tsv": _Tsv,
    "json": _Json,
    "jsonl": _JsonLines,
    "parquet": _Parquet,
}


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _check_target(path: Path) -> None:
    if path.is_dir():
        raise CommandError(f"{path} is a directory; --output needs the name of a file.")
    if not path.parent.is_dir():
        raise CommandError(f"Cannot write {path}: there is no directory {path.parent}.")


def _is_special(path: Path) -> bool:
    """Whether `path` is a device or a named pipe, which is written to and not replaced."""
    return path.exists() and not path.is_file()


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Let an error say what could not be written, not what it is called until it is whole."""
    try:
        yield
    except OSError as error:
        is_hidden = Path(error.filename or "").name.startswith(f".{path.name}.")
        if is_hidden or error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            error.filename, error.filename2 = str(path), None
        raise


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file beside `path` that takes its place at the end, or goes away on any error."""
    if _is_special(path):
        with path.open("wb") as stream:
            yield stream
        return
    target = Path(os.path.realpath(path))
    with _named(path), unfinished_file(target) as (beside, stream):
        yield stream
        stream.close()  # what cannot be written is said here, before it is renamed
        if target.exists():
            shutil.copymode(target, beside)
        beside.replace(target)


_CONTROL = dict.fromkeys([*range(32), *range(127, 160)], "\ufffd")


def render(frame: pl.DataFrame) -> str:
    """Draw `frame` to the width of the terminal: numbers to the right, long texts cut with "…"."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    columns = []
    for series in frame.get_columns():
        numeric = series.dtype.is_numeric()
        table.add_column(
            series.name,
            justify="right" if numeric else "left",
            no_wrap=numeric,  # texts make room for numbers
        )
        columns.append(_cells(series))
    for row in zip(*columns, strict=True):
        table.add_row(*row)
    page = io.StringIO()
    width = shutil.get_terminal_size((80, 24)).columns
    Console(file=page, width=width, color_system=None, legacy_windows=False).print(table)
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


def _cells(series: pl.Series) -> list[Text]:
    from rich.text import Text

    values = series.to_list()
    if series.dtype.is_float():
        decimals = _decimals(values)
        return [Text(_number(value, decimals)) for value in values]
    return [Text(_plain(value), no_wrap=True, overflow="ellipsis") for value in values]


def _decimals(values: list[float | None]) -> int:
    """No decimals for whole numbers, else as many as keep four digits or so of the largest."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if all(value == round(value) for value in finite):
        return 0
    largest = max(map(abs, finite))
    return 1 if largest >= 1000 else 2 if largest >= 100 else 4


def _number(value: float | None, decimals: int) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.{decimals}f}"


def _plain(value: Any) -> str:
    """Text in which nothing moves the cursor of the terminal."""
    return "" if value is None else str(value).translate(_CONTROL)


Facts = Mapping[str, Mapping[str, Any]]
"""Section -> name -> value."""


def write_facts(facts: Facts, output: Output, document: Mapping[str, Any] | None = None) -> None:
    """Write `facts` as rows section, name, value, or `document` (else the facts) as JSON."""
    import polars as pl

    rows = list(_rows(facts, with_all_sections=output.resolved_format != "table"))
    frame = pl.DataFrame(
        rows, schema=dict.fromkeys(("section", "name", "value"), pl.String), orient="row"
    )
    output.write_document(document or facts, frame)


def _rows(facts: Facts, *, with_all_sections: bool) -> Iterator[tuple[str, str, str]]:
    """Yield the rows; a table for people names a section once."""
    for section, values in facts.items():
        for position, (name, value) in enumerate(values.items()):
            shown = section if with_all_sections or position == 0 else ""
            yield shown, str(name), _text(value)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return _fact_number(value) if isinstance(value, float) else str(value)


def _fact_number(value: float) -> str:
    if value == round(value):
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"
