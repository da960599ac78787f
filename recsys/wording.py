"""Numbers of things in words."""

from __future__ import annotations

__all__ = ["counted"]


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, which takes an s unless the number is 1.

    Examples
    --------
    >>> counted(1, "user"), counted(2500, "test rating")
    ('1 user', '2,500 test ratings')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
