"""Declarations of options, from which Python, the command and the service make theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "flag",
    "text",
    "texts",
    "number",
    "share",
    "count",
    "choice",
    "ids",
    "place",
    "weights",
    "scale",
]


@dataclass(frozen=True, slots=True)
class Declaration:
    """Description of an option.

    `help` is for the command, and `details` is added to it in Python. The command has the option
    as `flag`, by default its name. A flag turns a default of True off. `service` is the name in
    requests; it is empty for an option that the service lacks. `is_saved` tells that a model keeps
    the option for its updates, `of_users` that lists of similar items lack it.
    """

    kind: Kind
    help: str
    metavar: str = ""
    flag: str = ""
    service: str = ""
    choices: tuple[str, ...] = ()
    max_length: int | None = None
    shown_default: str = ""
    details: str = ""
    is_saved: bool = False
    of_users: bool = False

    def flag_of(self, name: str) -> str:
        """Return the option of the command for the option of this name in Python."""
        return f"--{(self.flag or name).replace('_', '-')}"
