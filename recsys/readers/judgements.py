"""Judgements: which documents are relevant to which queries, in the forms they come in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.errors import DataError
from recsys.readers.sources import open_data

_SPLIT = re.compile(r"[\t,;]\s*|\s+")
_TRAILING = re.compile(r"([0-9]+)\D*$")
_LEAST_MATCHED = 0.5  # of the ids, for a reading of them to be the right one


@dataclass(frozen=True)
class Judgements:
    """Judgements as they are in a file.

    Attributes
    ----------
    frame : polars DataFrame
        Columns query, document (String) and relevance (Float64), one row per judgement.
    decision : str
        How the file was understood.
    """

    frame: pl.DataFrame
    decision: str

    def relevant(self, least: float | None = None) -> pl.DataFrame:
        """Return the rows of relevant documents, each once.

        They are those with a relevance of at least `least`: by default above 0, or all if no
        relevance is above 0, as in files that list relevant documents with a column of zeros.
        """
        relevance = self.frame["relevance"]
        if least is not None:
            rows = self.frame.filter(relevance >= least)
        else:
            rows = self.frame.filter(relevance > 0) if (relevance > 0).any() else self.frame
        return rows.select("query", "document").unique(maintain_order=True)


def read_judgements(path: str | PathLike[str], *, encoding: str | None = None) -> Judgements:
    """Read judgements: lines of query, document and perhaps relevance.

    The forms are TREC's (query, iteration, document, relevance), BEIR's table with a header, plain
    columns (query, document; Cranfield's with a relevance; CISI's with zeros), and blocks of a
    query, its documents and a slash.

    Raises
    ------
    DataError
        If a line has another number of fields than the first, or a relevance is not a number.
    """
    with open_data(path, encoding) as data:
        lines = [(number, line.strip()) for number, line in enumerate(data.lines(), 1)]
        name = data.name
    lines = [(number, line) for number, line in lines if line]
    if any(line == "/" for _, line in lines[:1000]):
        return _of_blocks(lines, name)
    rows = [(number, _SPLIT.split(line)) for number, line in lines]
    header = ""
    if rows and not any(field.lstrip("-").isdigit() for field in rows[0][1]) and len(rows) > 1:
        header, rows = "a table with a header", rows[1:]
    if not rows:
        raise DataError(f"{name} has no judgements.")
    width = len(rows[0][1])
    for number, fields in rows:
        if len(fields) != width or not 2 <= width <= 4:
            raise DataError(
                f"{name}, line {number}: a judgement has 2 to 4 fields, as many as others: query, "
                f"document and perhaps relevance, or TREC's four; got {len(fields)}."
            )
    columns = [list(column) for column in zip(*(fields for _, fields in rows), strict=True)]
    query, document, relevance, form = _roles(columns)
    values = []
    for (number, _), each in zip(rows, relevance, strict=True):
        try:
            values.append(float(each))
        except ValueError:
            message = f"{name}, line {number}: the relevance must be a number; got {each!r}."
            raise DataError(message) from None
    return Judgements(_frame(query, document, values), f"{name}: {header or form}")


def _roles(columns: list[list[str]]) -> tuple[list[str], list[str], Sequence[str], str]:
    """Return the columns of queries, documents and relevances, and the form in words."""
    if len(columns) == 2:
        return *columns, ["1"] * len(columns[0]), "queries and their documents"  # type: ignore[return-value]
    if len(columns) == 3:
        return *columns, "queries, documents, relevance"  # type: ignore[return-value]
    query, second, third, last = columns
    if len(set(second)) > 1 and len(set(third)) == 1 and set(third) <= {"0", "Q0"}:
        return query, second, last, "queries, documents, zeros"
    return query, third, last, "TREC's columns"


def _of_blocks(lines: list[tuple[int, str]], name: str) -> Judgements:
    queries, documents = list[str](), list[str]()
    current = ""
    for _, line in lines:
        fields = line.split()
        if line == "/":
            current = ""
            continue
        if not current:
            current, fields = fields[0], fields[1:]
        queries += [current] * len(fields)
        documents += fields
    return Judgements(
        _frame(queries, documents, [1.0] * len(queries)), f"{name}: blocks ended by a slash"
    )


def _frame(query: list[str], document: list[str], relevance: list[float]) -> pl.DataFrame:
    return pl.DataFrame(
        {"query": query, "document": document, "relevance": relevance},
        schema={"query": pl.String, "document": pl.String, "relevance": pl.Float64},
    )


def places_of(
    wanted: pl.Series, ids: Iterable[int | str], *, in_order: bool = False
) -> tuple[NDArray[np.int64], str]:
    """Return the place of each id of judgements among ids, -1 for none, and how they were matched.

    Ids are matched as they are, without leading zeros, or by the number that they end in
    ("CACM-1410" is document 1410). With `in_order`, where that leaves some over, they are numbers
    from 1 in the order of the file, as those of Cranfield's queries are.
    """
    names, texts = [str(each) for each in ids], wanted.to_list()
    best, how = np.full(len(texts), -1, np.int64), ""
    readings: dict[str, Callable[[str], str]] = {
        "": str,
        "without leading zeros": _plain,
        "by the numbers they end in": lambda text: (
            _plain(found[1]) if (found := _TRAILING.search(text)) else ""
        ),
    }
    for words, read in readings.items():
        places = {read(name): place for place, name in reversed([*enumerate(names)]) if read(name)}
        found = np.array([places.get(read(text), -1) for text in texts], np.int64)
        if (found >= 0).sum() > (best >= 0).sum():
            best, how = found, words
        if (best >= 0).sum() > _LEAST_MATCHED * len(best):
            break
    numbers = [int(text) if text.isdecimal() else 0 for text in texts]
    are_places = bool(numbers) and min(numbers) > 0 and max(numbers) <= len(names)
    if in_order and are_places and (best < 0).any():
        return np.array(numbers, np.int64) - 1, "in the order of the file"
    return best, how


def _plain(text: str) -> str:
    return text.lstrip("0") or "0"
