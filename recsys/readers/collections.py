"""Documents with marks: SMART and TREC collections, blocks ended by a slash, pages of HTML."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from html import unescape
from typing import NamedTuple

from recsys.data.ids import CANONICAL_INTEGER
from recsys.errors import DataError

SMART, TREC, BLOCKS, HTML = "SMART", "TREC", "blocks", "HTML"

_BEGINNINGS = {
    SMART: re.compile(rb"\.i +\S+[ \t]*\r?\n\.[a-z]\b"),
    TREC: re.compile(rb"<(doc|top)(>|\s)"),
    HTML: re.compile(rb"(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)*(<!doctype html|<html)", re.S),
    BLOCKS: re.compile(rb"\d+[ \t]*\r?\n(?!\s*\d+\s*\n)[^/]+\n\s*/[ \t]*\r?\n"),
}
_FIELD = re.compile(r"\.([A-Z])\s*$")
_RECORD = re.compile(r"\.I\s+(\S+)\s*$")
_TEXTS = ("W", "A", "K")  # of a SMART record: text, authors, keywords
_OPENING = re.compile(r"<(DOC|top)[>\s]", re.I)
_CLOSING = re.compile(r"</(DOC|top)>", re.I)
_NUMBER = re.compile(r"<(?:DOCNO|num)>\s*(?:Number:)?\s*([^\s<]+)", re.I)
_HEAD = re.compile(
    r"<(TITLE|HEADLINE|HEAD|TI|HL)>(.*?)(?=</\1>|<(?!/?\1)[A-Za-z]+>|$)", re.I | re.S
)
_LABEL = re.compile(r"<(desc|narr|title)>\s*(?:Description:|Narrative:|Topic:)?", re.I)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_SILENT = "script, style, noscript, template, svg, head"


class Marked(NamedTuple):
    """A record of a collection; `number` is the line that it begins in."""

    number: int
    id: int | str
    text: str
    title: str | None


def form_of(head: bytes) -> str | None:
    """Return the form of a text with marks, by its beginning: one of `FORMS`, "HTML" or None."""
    beginning = head.lstrip(b"\xef\xbb\xbf \r\n\t").lower()
    return next((form for form, mark in _BEGINNINGS.items() if mark.match(beginning)), None)


def page(text: str) -> tuple[str, str | None]:
    """Return the text of a page of HTML, without tags, scripts and styles, and its title.

    Examples
    --------
    >>> page("<html><title>Tea</title><body><p>Hot <b>tea</b></p><script>x()</script>")
    ('Hot tea', 'Tea')
    """
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(text)
    heading = tree.css_first("title") or tree.css_first("h1")
    title = None if heading is None else " ".join(heading.text(separator=" ").split())
    for node in tree.css(_SILENT):
        node.decompose()
    body = tree.body
    words = [] if body is None else body.text(separator="\n").split("\n")
    lines = (" ".join(each.split()) for each in words)
    return " ".join(line for line in lines if line), title or None


def _smart(lines: Iterable[str], place: str) -> Iterator[Marked]:
    """Yield the records of the SMART form: ``.I`` begins one, ``.T``, ``.W``, ... its fields."""
    identity, start, field = "", 0, ""
    fields: dict[str, list[str]] = {}

    def record() -> Marked:
        text = "\n".join("".join(fields.get(name, [])).strip() for name in _TEXTS)
        title = " ".join("".join(fields.get("T", [])).split())
        return Marked(start, _identity(identity), text.strip(), title or None)

    for number, line in enumerate(lines, 1):
        if found := _RECORD.match(line):
            if identity:
                yield record()
            identity, start, field, fields = found[1], number, "", {}
        elif found := _FIELD.match(line):
            field = found[1]
        elif identity:
            fields.setdefault(field, []).append(line)
        elif line.strip():
            raise DataError(f"{place}, line {number}: there is a text before the first .I.")
    if identity:
        yield record()


def _trec(lines: Iterable[str], place: str) -> Iterator[Marked]:
    """Yield the documents between ``<DOC>`` and ``</DOC>``, or topics in ``<top>``."""
    start, parts = 0, list[str]()
    for number, line in enumerate(lines, 1):
        if not parts and not _OPENING.search(line):
            continue
        start = start if parts else number
        parts.append(line)
        if not _CLOSING.search(line):
            continue
        text, parts = "".join(parts), []
        label = _NUMBER.search(text)
        if label is None:
            raise DataError(f"{place}, line {start}: the document has no <DOCNO>.")
        head = _HEAD.search(text)
        title = None if head is None else _plain(head[2]) or None
        rest = text.replace(label[0], " ", 1)
        if text.lstrip().lower().startswith("<top"):
            # Queries are the title, as is the custom; else whatever there is.
            rest, title = title or _LABEL.sub(" ", rest.split("<narr>")[0]), None
        elif head is not None:
            rest = rest.replace(head[0], " ", 1)
        yield Marked(start, _identity(label[1]), _plain(rest), title)
    if "".join(parts).strip():
        raise DataError(f"{place}, line {start}: the document is not closed by </DOC>.")


def _blocks(lines: Iterable[str], place: str) -> Iterator[Marked]:
    """Yield blocks of a line with a number, a text, and a line with a slash."""
    start, identity, parts = 0, "", list[str]()
    for number, line in enumerate(lines, 1):
        word = line.strip()
        if word == "/" and identity:
            yield Marked(start, _identity(identity), " ".join(parts), None)
            identity, parts = "", []
        elif not identity and word:
            if not word.isdecimal():
                if word in ("/", "\x1a"):
                    continue
                raise DataError(f"{place}, line {number}: expected a number; got {word[:40]!r}.")
            start, identity = number, word
        elif word:
            parts.append(word)
    if parts:
        raise DataError(f"{place}, line {start}: the document is not ended by a line with a slash.")


def _identity(text: str) -> int | str:
    """Return an id, as an integer where it is one: ``.I 007`` is document 7."""
    plain = text.lstrip("0") or "0" if text.isdecimal() else text
    return int(plain) if CANONICAL_INTEGER.match(plain) else text


def _plain(text: str) -> str:
    return " ".join(unescape(_TAG.sub(" ", text)).split())


FORMS: dict[str, tuple[str, Callable[[Iterable[str], str], Iterator[Marked]]]] = {
    SMART: ("SMART collection", _smart),
    TREC: ("TREC collection", _trec),
    BLOCKS: ("texts ended by a slash", _blocks),
}
"""Name in words of each form, and its reader of the lines of a file at a place."""
