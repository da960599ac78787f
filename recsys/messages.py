"""Helpers for messages: plurals, shortened texts and close matches."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lowrank.errors import missing_extra as missing_extra

_SIMILAR = 0.6  # minimum similarity ratio of two words
_WORK = 20_000_000  # maximum number of character comparisons, which take a few seconds


def counted(n: int, noun: str) -> str:
    """Return a number with a noun, in the plural unless the number is 1.

    Examples
    --------
    >>> counted(1, "user"), counted(2500, "test rating")
    ('1 user', '2,500 test ratings')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def worded(sentence: str, *, implicit: bool) -> str:
    """Return a sentence on ratings, with interactions in their place if they are implicit.

    Examples
    --------
    >>> worded("5 test ratings; a rating counts once", implicit=True)
    '5 test interactions; an interaction counts once'
    """
    if not implicit:
        return sentence
    sentence = re.sub(r"\b([Aa]) rating\b", r"\1n rating", sentence)
    return re.sub(r"\brating(?=s?\b)", "interaction", sentence).replace(
        "Rating", "Interaction"
    )


def enumerated(
    names: Sequence[Any],
    most: int,
    shown: Callable[[Any], str] = str,
) -> str:
    """Return the first `most` names, formatted by `shown` and separated by commas.

    Examples
    --------
    >>> enumerated(["ape", "bee", "cat"], 2), enumerated(["ape", "bee"], 2, repr)
    ('ape, bee and 1 more', "'ape', 'bee'")
    """
    remainder = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(shown, names[:most])) + remainder


def html_table(caption: str, facts: Mapping[str, object]) -> str:
    """Return an HTML table of names and values for notebooks.

    Examples
    --------
    >>> html_table("Fit", {"rmse < 1": True})
    '<table><caption>Fit</caption><tr><th>rmse &lt; 1</th><td>True</td></tr></table>'
    """
    import html

    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f"<table><caption>{html.escape(caption)}</caption>{rows}</table>"


def lasting(seconds: float) -> str:
    """Return a duration in words, to two significant digits.

    Examples
    --------
    >>> lasting(90), lasting(5400), lasting(86400 * 400)
    ('1.5 minutes', '1.5 hours', '1.1 years')
    """
    units = {"years": 365.25 * 86400, "days": 86400, "hours": 3600, "minutes": 60}
    unit, size = next(
        (entry for entry in units.items() if seconds >= entry[1]), ("seconds", 1)
    )
    return f"{seconds / size:.2g} {unit}"


def system_error(error: BaseException) -> int | None:
    """Return the errno of an exception, or None if it is not a system error.

    Exceptions of polars have it in their text only.

    Examples
    --------
    >>> system_error(OSError(28, "No space left on device")), system_error(ValueError("No space"))
    (28, None)
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    match = re.search(r"\(os error (\d+)\)", str(error))
    return int(match[1]) if match else None


def system_reason(error: BaseException) -> str | None:
    """Return the system's message for an error, or None if it is not a system error."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    number = system_error(error)
    return None if number is None else os.strerror(number)


def is_full(error: BaseException) -> bool:
    """Return whether an error is due to a full disk or a limit on file sizes."""
    return system_error(error) in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is due to memory, also if a library does not say so."""
    text = str(error)
    if isinstance(error, SystemError):
        # CPython and NumPy then return an error without an exception, or a result with one.
        if isinstance(error.__cause__, MemoryError):
            return True
        return "without exception set" in text or "without setting an exc" in text
    # polars panics with the representation of the exception, or has the sentence of zstd.
    replaced = "<class 'MemoryError'>", "not enough memory"
    return isinstance(error, MemoryError) or any(part in text for part in replaced)


def shortened(text: str, length: int = 40) -> str:
    """Return a text, cut to a length that fits a message.

    Examples
    --------
    >>> shortened("no number"), shortened("no number", 4)
    ('no number', 'no n...')
    """
    return text if len(text) <= length else f"{text[:length]}..."


def close_matches(
    text: str,
    others: Iterable[str],
    n: int,
) -> list[str]:
    """Return up to n of the others that are similar to a text, the most similar first.

    This is `difflib.get_close_matches` in bounded time: others that would take more than a few
    seconds are not compared. Ties are resolved in favour of a text with the same letters, then of
    one that begins with the given text.

    Examples
    --------
    >>> close_matches("appel", ["ape", "apple", "peach", "puppy"], 2)
    ['apple', 'ape']
    >>> close_matches("wnig", ["wing", "wong"], 1)
    ['wing']
    """
    from difflib import SequenceMatcher
    from heapq import nlargest

    matcher = SequenceMatcher(b=text)
    matches, budget = [], _WORK
    for other in others:
        matcher.set_seq1(other)
        if matcher.real_quick_ratio() < _SIMILAR:
            continue
        budget -= len(other)
        if budget < 0:
            break
        if matcher.quick_ratio() < _SIMILAR:
            continue
        budget -= len(text) * len(other)
        if budget < 0:
            break
        if (ratio := matcher.ratio()) >= _SIMILAR:
            matches.append(
                (ratio, sorted(other) == sorted(text), other.startswith(text), other)
            )
    return [other for *_, other in nlargest(n, matches)]


def did_you_mean(near: Iterable[str]) -> str:
    """Return a suggestion to append to a message, or an empty text without close matches.

    Examples
    --------
    >>> did_you_mean(["ape", "apple"])
    ' Did you mean ape or apple?'
    """
    names = " or ".join(near)
    return f" Did you mean {names}?" if names else ""


def absent(
    noun: str,
    name: str,
    of: str,
    names: Collection[str],
) -> str:
    """Return the message for a name that does not exist, with a similar one of those that do.

    Examples
    --------
    >>> absent("column", "yaer", "items", ["year", "price"])
    "There is no column 'yaer' of items; there are year, price. Did you mean year?"
    """
    listed = ", ".join(names) or "none"
    hint = did_you_mean(close_matches(name, names, 1))
    return f"There is no {noun} {name!r} of {of}; there are {listed}.{hint}"


def nothing_at(path: Path) -> str:
    """Return the message for a path that does not exist, with the closest existing name.

    Examples
    --------
    >>> nothing_at(Path("nowhere/ratings.csv"))
    'There is no file nowhere/ratings.csv: the directory nowhere does not exist.'
    """
    if path.is_symlink():
        return f"{path} is a broken symbolic link."
    if not path.parent.is_dir():
        return f"There is no file {path}: the directory {path.parent} does not exist."
    siblings = sorted(
        path.parent.iterdir(),
        key=lambda sibling: sibling.suffix.startswith(path.suffix),
    )
    stems = {
        sibling.name.partition(".")[0]: sibling for sibling in siblings
    }  # the same suffix comes last
    begin = path.name.partition(".")[0]
    close = [stems[stem] for stem in close_matches(begin, stems, 1)]
    close = [
        sibling
        for sibling in close
        if begin in stems or close_matches(path.name, [sibling.name], 1)
    ]
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"There is no file or directory {path}.{hint}"
