"""Numbers of things in words, and words of any length in a few."""

from __future__ import annotations

__all__ = ["counted", "shortened"]


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, which takes an s unless the number is 1.

    Examples
    --------
    >>> counted(1, "user"), counted(2500, "test rating")
    ('1 user', '2,500 test ratings')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def shortened(text: str, length: int = 40) -> str:
    """Return a text as a message may quote it, of which the end may be left out.

    Examples
    --------
    >>> shortened("no number"), shortened("no number", 4)
    ('no number', 'no n...')
    """
    return text if len(text) <= length else f"{text[:length]}..."
