"""From paths on the command line to documents and to an index."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys.cli.errors import CommandError
from recsys.cli.options import option
from recsys.cli.progress import Activity, note
from recsys.wording import counted

if TYPE_CHECKING:
    from recsys.lsi import LSI, DocumentBatch, Documents

__all__ = [
    "DocumentOptions",
    "document_options",
    "open_documents",
    "open_index",
    "watched",
]


@dataclass(frozen=True)
class DocumentOptions:
    """How documents are to be read; None means that the reader finds out."""

    text_col: str | None = None
    id_col: str | None = None
    title_col: str | None = None
    encoding: str | None = None


def document_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options on how to read documents; the verb is given `reading`."""
    section = "Reading"

    @functools.wraps(function)
    def verb(
        *args: Any,
        text_col: str | None,
        id_col: str | None,
        title_col: str | None,
        encoding: str | None,
        **rest: Any,
    ) -> Any:
        reading = DocumentOptions(text_col, id_col, title_col, encoding)
        return function(*args, reading=reading, **rest)

    for name, text in (
        ("--encoding", "Text encoding."),
        ("--title-col", "Column of the titles."),
        ("--id-col", "Column of the ids."),
        ("--text-col", "Column of the texts."),
    ):
        verb = option(name, metavar="NAME", section=section, help=text)(verb)
    return verb


def open_documents(path: str, reading: DocumentOptions, after: int = 0) -> Documents:
    """Return the documents at a path, not yet read."""
    from recsys.cli.inputs import require_path
    from recsys.lsi import Documents

    require_path(path)
    return Documents(path, **asdict(reading), after=after)


def watched(documents: Documents, activity: Activity) -> Iterator[DocumentBatch]:
    """Yield the batches of documents; say what they were taken for, and how many there were."""
    count = 0
    for batch in documents:
        count += len(batch.ids)
        activity.say(counted(count, "document"))
        yield batch
    note(documents.decision)


def open_index(path: str) -> LSI:
    """Load a saved index."""
    from recsys.cli.inputs import require_path

    require_path(path)
    if Path(path).is_file():
        raise CommandError(
            f"{path} is a file; a saved index is a directory, as `recsys lsi index` writes it."
        )
    from recsys.lsi import LSI

    return LSI.load(path)
