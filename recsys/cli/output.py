"""Output of the command: data in all formats, verdicts of gates, notes, progress bars."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import sys
import textwrap
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import click

from recsys.addresses import Location
from recsys.cli.errors import CommandError, State
from recsys.messages import (
    counted,
    is_full,
    system_error,
    system_reason,
)
from recsys.saving.atomic import (
    replace_file,
    scratch_directory,
    unfinished_directory,
    unfinished_file,
)

if TYPE_CHECKING:
    import polars as pl

    from recsys.database import Address
    from recsys.evaluation.gates import Gate, Verdict
    from recsys.known_users import ListColumns
    from recsys.models.base import Step
    from recsys.table_writer import IfExists, TableWriter

FORMATS = ("table", "csv", "tsv", "json", "jsonl", "parquet")
PATIENCE = 1.0
"""Seconds before a progress bar appears."""
SCHEMA = 1
"""Version of the JSON documents; it changes when a key is removed or changes its meaning."""

_OPTIONAL = ("title", "new", "source")  # columns that a table of lists need not have

SUFFIXES = {f".{form}": form for form in FORMATS[1:]} | {".ndjson": "jsonl"}


def check_file(
    path: str | Path | None,
    option: str,
    suffixes: Iterable[str] = (),
) -> None:
    """Check that a file with one of `suffixes` can be written at `path`.

    Raises
    ------
    CommandError, UsageError
        If `path` is a directory, has another suffix, or has no parent directory.
    """
    if path is None:
        return
    if isinstance(path, Location):
        raise CommandError(f"{option} needs the name of a file; {path} is an address.")
    path, allowed = Path(path), tuple(suffixes)
    if path.is_dir():
        raise CommandError(f"{path} is a directory; {option} needs the name of a file.")
    if allowed and path.suffix.lower() not in allowed:
        listed = " or ".join(filter(None, [", ".join(allowed[:-1]), allowed[-1]]))
        raise click.UsageError(f"{option} must end in {listed}; got {path}.")
    if not path.parent.is_dir():
        raise CommandError(f"Cannot write {path}: there is no directory {path.parent}.")


@dataclass(frozen=True)
class Output:
    """Destination of the data: a file, a database table at `address`, or standard output."""

    path: Path | None = None
    format: str | None = None
    address: Address | None = None
    if_exists: IfExists = "fail"
    columns: Mapping[str, str] = field(default_factory=dict)  # by their names in output

    @property
    def resolved_format(self) -> str:
        """Requested format, format of the suffix, or database; by default table or csv.

        Raises
        ------
        UsageError
            If the suffix has no format.
        """
        if self.address is not None:
            return "database"
        if self.format is not None:
            return self.format
        if self.path is None:
            return "table" if _is_terminal() else "csv"
        if (suffix := self.path.suffix.lower()) in SUFFIXES:
            return SUFFIXES[suffix]
        listed = f"use one of {', '.join(SUFFIXES)}, or add --format"
        raise click.UsageError(
            f"Cannot infer the format from {str(self.path)!r}; {listed}."
        )

    def check(self) -> None:
        """Check format and destination before any long computation.

        Raises
        ------
        UsageError
            If binary data would go to a terminal.
        DataError
            If the database cannot be reached or written to, or the table must not exist but does.
        """
        if self.address is not None:
            with self._table() as table:
                table.check_columns(self.columns)
            return
        if self.resolved_format == "parquet" and self.path is None and _is_terminal():
            hint = "add --output FILE or redirect the output"
            raise click.UsageError(f"Parquet cannot be shown on a terminal; {hint}.")
        check_file(self.path, "--output")

    def _table(self) -> TableWriter:
        from recsys.table_writer import table_writer

        assert self.address is not None
        table = table_writer(self.address, self.if_exists)
        table.on_wait = lambda: note(
            f"waiting for another process that has locked {table.address}"
        )
        if not self.columns:
            table.optional = _OPTIONAL
        return table

    @contextmanager
    def open(
        self,
        *,
        comment: str = "",
        identity: str | None = None,
        **head: Any,
    ) -> Iterator[Sink | TableWriter | ChosenColumns]:
        """Yield a sink for frames.

        `head` precedes the rows in a JSON document; `comment` is for a table, and `identity`
        is the version of the saved model.
        """
        with self._sink(comment, **head) as sink:
            if not self.columns:
                yield sink
                return
            facts = {
                "model": head.get("model"),
                "version": identity,
                "date": datetime.now(UTC).date(),
            }
            yield ChosenColumns(sink, self.columns, facts)

    @contextmanager
    def _sink(self, comment: str, **head: Any) -> Iterator[Sink | TableWriter]:
        if self.address is not None:
            with self._table() as table:
                table.comment = comment
                yield table
            note(f"Wrote {counted(table.rows, 'row')} to {self.address}.")
            return
        with self._stream() as stream, ExitStack() as held:
            form = self.resolved_format
            kind = {"json": _Json, "parquet": _Parquet}.get(form, Sink)
            sink = kind(form, stream, head, self.path, held)
            yield sink
            sink.finish()

    def write(
        self,
        frames: pl.DataFrame | ListColumns | Iterable[pl.DataFrame],
        *,
        remark: str = "",
        **head: Any,
    ) -> int:
        """Write one frame, or several as one; in the format table, add `remark` below.

        The number of rows is returned.
        """
        listed: Any = [frames] if hasattr(frames, "write_csv") else frames
        n_rows = 0
        with self.open(**head) as sink:
            for frame in listed:
                n_rows += len(frame)
                sink.write(frame)
            if remark and isinstance(sink, Sink) and sink.format == "table":
                lines = wrapped(remark, shutil.get_terminal_size((80, 24)).columns)
                sink.stream.write(f"{lines}\n".encode(errors="replace"))
        return n_rows

    def write_document(
        self,
        document: Mapping[str, Any],
        frame: pl.DataFrame,
        table: pl.DataFrame | list[pl.DataFrame] | None = None,
        remark: str = "",
    ) -> None:
        """Write `document` as JSON, `table` with `remark` as table, `frame` in other formats."""
        form = self.resolved_format
        if form == "json":
            text = json.dumps(
                {"schema": SCHEMA, **document}, ensure_ascii=False, indent=2
            )
            with self._stream() as stream:
                stream.write(f"{text}\n".encode())
        else:
            self.write(
                table if form == "table" and table is not None else frame, remark=remark
            )

    def write_text(self, text: str) -> None:
        """Write a text, such as a table in LaTeX."""
        with self._stream() as stream:
            stream.write(text.encode())

    @contextmanager
    def _stream(self) -> Iterator[IO[bytes]]:
        if self.path is not None:
            with atomic_file(self.path) as stream:
                yield stream
            return
        if sys.stdout is None:
            raise CommandError("Standard output is closed; add --output FILE.")
        sys.stdout.flush()
        raw: Any = sys.stdout.buffer
        if not isinstance(raw, io.RawIOBase):
            yield raw
            raw.flush()
            return
        # With PYTHONUNBUFFERED it would write a part to a full disk without an error.
        own_raw = io.FileIO(raw.fileno(), "w", closefd=False)
        buffered = io.BufferedWriter(own_raw)
        try:
            yield buffered
            buffered.flush()
        finally:
            own_raw.close()  # else Python would write again what it could not write


@dataclass(frozen=True)
class ChosenColumns:
    """Sink of the chosen columns of frames, and of facts about the model, under other names."""

    sink: Sink | TableWriter
    columns: Mapping[str, str]
    facts: Mapping[str, Any]

    def write(self, batch: pl.DataFrame) -> None:
        """Write the chosen columns of a batch.

        Raises
        ------
        UsageError
            If a column does not exist.
        """
        import polars as pl

        expressions = []
        for target, name in self.columns.items():
            if name in batch.columns:
                value = pl.col(name)
            elif name in self.facts:
                dtype = pl.Date if name == "date" else pl.String
                value = pl.lit(self.facts[name], dtype)
            elif name == "new" and "rank" in batch.columns:  # all items have ratings
                value = pl.lit(False)
            else:
                names = ", ".join([*batch.columns, *self.facts])
                raise click.UsageError(
                    f"--columns: there is no column {name!r}; the columns are {names}."
                )
            expressions.append(value.alias(target))
        self.sink.write(batch.select(expressions))


@dataclass
class Sink:
    """Writer of one format: `write` each frame, then `finish`."""

    format: str
    stream: IO[bytes]
    head: Mapping[str, Any]
    path: Path | None
    held: ExitStack
    is_first: bool = True

    def write(self, frame: pl.DataFrame | ListColumns) -> None:
        """Write a batch; the first one defines the columns, even without rows."""
        if self.is_first or len(frame):
            self.stream.write(self.encoded(frame))
        self.is_first = False
        self.stream.flush()

    def encoded(self, frame: pl.DataFrame | ListColumns) -> bytes:
        """Return the bytes of a batch."""
        if self.format == "table":
            return render(frame).encode(errors="replace")
        if self.format == "jsonl":
            return frame.write_ndjson().encode()
        separator = "," if self.format == "csv" else "\t"
        return frame.write_csv(
            include_header=self.is_first, separator=separator
        ).encode()

    def finish(self) -> None:
        """Write the end of the file."""


class _Json(Sink):
    """One document: {"schema": 1, ..., "rows": [...]}."""

    separator = ""

    def encoded(self, frame: Any) -> bytes:
        head = json.dumps({"schema": SCHEMA, **self.head}, ensure_ascii=False)
        opening = f'{head[:-1]}, "rows": [' if self.is_first else ""
        # Not splitlines, which also splits at characters of titles, such as U+2028.
        rows = frame.write_ndjson().rstrip("\n").replace("\n", ",\n")
        separator = self.separator or "\n" if rows else ""
        self.separator = ",\n" if rows else self.separator
        return f"{opening}{separator}{rows}".encode()

    def finish(self) -> None:
        if self.is_first:
            import polars as pl

            self.write(pl.DataFrame())
        self.stream.write(b"\n]}\n")


@dataclass
class _Parquet(Sink):
    """Writer that stores batches as Parquet files, and joins them in a stream at the end.

    The head is in the metadata of the file.
    """

    @property
    def _metadata(self) -> dict[str, str]:
        return {"recsys": json.dumps({"schema": SCHEMA, **self.head})}

    def __post_init__(self) -> None:
        if self.path is None or _is_special(self.path):
            self.folder = self.held.enter_context(scratch_directory())
        else:  # next to the file, where room is needed anyway
            target = Path(os.path.realpath(self.path))
            self.folder = self.held.enter_context(unfinished_directory(target))
        self.batches: list[Path] = []

    def encoded(self, frame: Any) -> bytes:
        self.batches.append(self.folder / f"{len(self.batches):06}.parquet")
        frame.write_parquet(self.batches[-1], metadata=self._metadata)
        return b""

    def finish(self) -> None:
        import polars as pl

        joined = self.batches[0]
        if len(self.batches) > 1:
            joined = self.folder / "joined.parquet"
            rows = pl.scan_parquet(self.batches)
            rows.sink_parquet(joined, metadata=self._metadata)
        with joined.open("rb") as source:
            shutil.copyfileobj(source, self.stream)


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _is_special(path: Path) -> bool:  # a device or a named pipe, which is not replaced
    return path.exists() and not path.is_file()


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces `path` at the end, or is removed on any error.

    Raises
    ------
    OSError
        If it cannot be written, with the name of `path`.
    """
    if _is_special(path):
        with path.open("wb") as stream:
            yield stream
        return
    target = Path(os.path.realpath(path))
    try:
        with unfinished_file(target) as (new, stream):
            yield stream
            stream.close()  # raises, if the disk is full, before it is renamed
            if target.exists():
                shutil.copymode(target, new)
            replace_file(new, target)
    except Exception as error:  # name the file, not its temporary name
        hidden = Path(getattr(error, "filename", None) or "").name
        if hidden.startswith(f".{path.name}.") or is_full(error):
            raise OSError(
                system_error(error), system_reason(error), str(path)
            ) from error
        raise


# Characters that move the cursor, break a line or reverse the direction of text.
_CONTROLS = [*range(32), *range(127, 160), 0x61C, 0x200E, 0x200F]
_CONTROLS += [0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_PLAIN = dict.fromkeys(_CONTROLS, "\ufffd")
_ASCII = str.maketrans("─…█▏▎▍▌▋▊▉", "-~#   ####")
_LOCALES = ("LC_ALL", "LC_CTYPE", "LANG")  # the first one that is set decides
_WRAPPED = ("description", "use", "value", "items")  # columns that are read in full


def render(frame: pl.DataFrame | ListColumns) -> str:
    """Draw `frame` to the width of the terminal: numbers to the right, long texts cut with "…"."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table, columns = (
        Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False),
        [],
    )
    for name, values in frame.to_dict(as_series=False).items():
        types, folds = (
            {type(value) for value in values} - {type(None)},
            name in _WRAPPED,
        )
        numeric = bool(types) and types <= {int, float}
        # Only texts are shortened, not numbers.
        table.add_column(name, justify="right" if numeric else "left", no_wrap=numeric)
        overflow: Any = "fold" if folds else "ellipsis"
        columns.append(
            [Text(c, no_wrap=not folds, overflow=overflow) for c in _cells(values)]
        )
    for row in zip(*columns, strict=True):
        table.add_row(*row)
    page = io.StringIO()
    width = shutil.get_terminal_size((80, 24)).columns
    Console(file=page, width=width, color_system=None, legacy_windows=False).print(
        table
    )
    text = page.getvalue() if _shows_unicode() else page.getvalue().translate(_ASCII)
    return "".join(f"{line.rstrip()}\n" for line in text.rstrip("\n").split("\n"))


def _shows_unicode() -> bool:
    """Return whether no setting tells that the terminal has another encoding than UTF-8."""
    locales = filter(None, map(os.environ.get, _LOCALES))
    locale = next(locales, "UTF-8")
    return "utf" in locale.lower()


def _cells(values: list[Any]) -> list[str]:
    """Format a column as text; floats have about four digits of the largest value."""
    types = {type(value) for value in values}
    if bool in types:
        return ["" if value is None else "yes" if value else "no" for value in values]
    if float not in types:
        return [
            "" if value is None else str(value).translate(_PLAIN) for value in values
        ]
    finite = [value for value in values if value is not None and math.isfinite(value)]
    decimals = 0
    if any(value != round(value) for value in finite):
        largest = max(map(abs, finite))
        decimals = 1 if largest >= 1000 else 2 if largest >= 100 else 4
    return ["-" if v is None or math.isnan(v) else f"{v:z.{decimals}f}" for v in values]


def write_facts(
    facts: Mapping[str, Mapping[str, Any]],
    output: Output,
    document: Mapping[str, Any] | None = None,
) -> None:
    """Write `facts` as rows of section, name and value; as JSON, write `document` or `facts`."""
    import polars as pl

    columns = dict.fromkeys(("section", "name", "value"), pl.String)
    # name a section only once for human readers
    is_table = output.resolved_format == "table"
    rows = [
        (
            "" if is_table and number else section,
            str(name),
            _fact(value, for_people=is_table),
        )
        for section, values in facts.items()
        for number, (name, value) in enumerate(values.items())
    ]
    output.write_document(
        document or facts, pl.DataFrame(rows, schema=columns, orient="row")
    )


def _fact(value: Any, *, for_people: bool) -> str | None:
    """Format a fact as text; for human readers, 12,345 instead of 12345, yes instead of true."""
    if value is None:
        return "-" if for_people else None
    if isinstance(value, bool):
        return ("no", "yes")[value] if for_people else str(value).lower()
    if not for_people:
        return str(value)
    if isinstance(value, int) or (
        isinstance(value, float) and value == round(value, 0)
    ):
        return f"{value:z,.0f}"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def parsed_gates(
    conditions: Sequence[str],
    names: Sequence[str],
    *,
    comparing: bool = False,
) -> list[Gate]:
    """Parse the conditions of --fail-if on values with the given names.

    Raises
    ------
    UsageError
        If a condition is invalid, or needs a comparison of two models.
    """
    from recsys.errors import DataError
    from recsys.evaluation.gates import Gate

    try:
        gates = [Gate.parse(text, names) for text in conditions]
    except DataError as error:
        raise click.UsageError(f"--fail-if: {error}") from None
    if not comparing and any(gate.sign is None for gate in gates):
        hint = "`recsys compare BEFORE AFTER --test FILE` tests whether one is worse"
        raise click.UsageError(f'--fail-if: "worse" needs two models; {hint}.')
    return gates


def report_verdicts(verdicts: Sequence[Verdict]) -> None:
    """Report the conditions that are not met, and raise for those that are.

    Raises
    ------
    CommandError
        If a condition is met.
    """
    for verdict in verdicts:
        if not verdict.failed:
            note(f'not "{verdict.gate}": {verdict.reason}')
    if failed := [
        f'"{judged.gate}": {judged.reason}' for judged in verdicts if judged.failed
    ]:
        raise CommandError(f"Failed by {'; by '.join(failed)}.")


def note(message: str, *, verbatim: bool = False) -> None:
    """Print a line on standard error, unless `--quiet`; wrap it on a terminal.

    `verbatim` prevents wrapping, for commands to copy.
    """
    if not _state().quiet:
        warn(message, verbatim=verbatim)


def warn(message: str, *, verbatim: bool = False) -> None:
    """Print a line on standard error, also with `--quiet`: a result is lost otherwise."""
    if not verbatim and sys.stderr is not None and sys.stderr.isatty():
        message = wrapped(message, shutil.get_terminal_size((80, 24)).columns)
    click.echo(message, err=True)


def wrapped(text: str, width: int) -> str:
    """Wrap a sentence into lines, but not next to "=".

    Examples
    --------
    >>> print(wrapped("r.csv: user = user, item = item", 24))
    r.csv: user = user,
      item = item
    """
    lines = textwrap.wrap(
        text.replace(" = ", "\xa0=\xa0"),
        width,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("\xa0=\xa0", " = ")


class Activity:
    """Progress bar (a context manager), shown on a terminal for work that takes over a second."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._shown: dict[str, Any] = {"total": None, "note": ""}
        self._bar: Any = None
        self._lock = threading.Lock()
        self._is_over = False
        self._timer = threading.Timer(PATIENCE, self._show)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        if sys.stderr is not None and sys.stderr.isatty() and not _state().quiet:
            self._timer.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._bar is not None:
                self._bar.stop()

    def step(self, step: Step, title: str = "") -> None:
        """Move the bar to `step`; `title` names new work."""
        self.title = title or self.title
        self._update(total=step.total, completed=step.step, note=describe(step))

    def count(self, rows: int, expected: int | None) -> None:
        """Move the bar to a number of rows, out of the expected number."""
        total = None if expected is None else max(rows, expected)
        share = "" if total is None else f"{rows / max(total, 1):.0%}, "
        self._update(total=total, completed=rows, note=f"{share}{rows:,} rows")

    def say(self, message: str) -> None:
        """Show the progress of work of unknown length."""
        self._update(note=message)

    def _update(self, **shown: Any) -> None:
        with self._lock:
            self._shown |= shown
            if self._bar is not None:
                self._bar.update(
                    self._bar.task_ids[0], description=self.title, **self._shown
                )

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._is_over:
                return
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[note]}", markup=False),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.add_task(self.title, **self._shown)
            self._bar.tasks[0].start_time -= PATIENCE
            self._bar.start()


def describe(step: Step) -> str:
    """Describe an iteration: "sweep 3/15, training RMSE 0.7312, held-out RMSE 0.8725"."""
    parts = [f"sweep {step.step}/{step.total}"]
    if step.objective is not None and step.train_rmse is None:
        parts.append(f"objective {step.objective:.6g}")
    if step.train_rmse is not None:
        parts.append(f"training RMSE {step.train_rmse:.4f}")
    if step.validation_rmse is not None:
        parts.append(f"held-out RMSE {step.validation_rmse:.4f}")
    return ", ".join(parts)


def _state() -> State:
    context = click.get_current_context(silent=True)
    return context.ensure_object(State) if context else State()
