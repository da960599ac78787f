"""Problems: errors as JSON documents (RFC 9457), with the messages of the command."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from lowrank.errors import LowRankError
from recsys.errors import ModelFileError, RecsysError, UnknownIdError

MEDIA_TYPE = "application/problem+json"

_UNKNOWN_USER = re.compile(r"""Unknown users? (-?\d+|'[^']*'|"[^"]*")""")
_UNKNOWN_VALUE = re.compile(r"(.* is unknown); (?:did you mean|known are) ", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Kind:
    """Kind of a problem: its HTTP status, its title and its meaning."""

    status: int
    title: str
    meaning: str


KINDS = {
    "invalid-request": Kind(
        400, "Invalid request", "A parameter or the body cannot be used."
    ),
    "unauthorized": Kind(401, "Unauthorized", "The API key is missing or wrong."),
    "forbidden": Kind(
        403,
        "Forbidden",
        "Data of users, and conditions of a request, need the API key, or a service on a loopback "
        "address.",
    ),
    "unknown-id": Kind(
        404, "Unknown id", "A user or an item is not in the data of the model."
    ),
    "not-found": Kind(404, "Not found", "There is no such path."),
    "not-available": Kind(
        404, "Not available", "The model or the service does not support this request."
    ),
    "wrong-method": Kind(
        405, "Method not allowed", "The path supports other methods only."
    ),
    "slow-request": Kind(408, "Request timeout", "The request did not arrive in time."),
    "too-large": Kind(
        413, "Content too large", "The body exceeds the limit of the service."
    ),
    "internal": Kind(
        500, "Internal error", "A defect of the service; its log has details."
    ),
    "busy": Kind(503, "Busy", "Too many requests are waiting; try again."),
    "not-ready": Kind(503, "Not ready", "No model is loaded yet."),
    "not-stored": Kind(503, "Not stored", "Events cannot be written to the disk."),
    "timeout": Kind(
        503, "Timeout", "The answer exceeded the time limit of the service."
    ),
}
"""Kinds of problems, by the last part of their `type`."""


class ProblemError(RecsysError):
    """Request that cannot be answered: a kind of problem and a message."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind

    @property
    def status(self) -> int:
        """HTTP status."""
        return KINDS[self.kind].status

    def document(self) -> dict[str, Any]:
        """Return the problem document."""
        kind = KINDS[self.kind]
        # Relative: a proxy may serve the documentation under another address.
        document = {
            "type": f"/docs#{self.kind}",
            "title": kind.title,
            "status": kind.status,
        }
        return document | {"detail": str(self)}


def unauthorized() -> ProblemError:
    """Return the problem of a request without a key, or with a wrong one."""
    way = "send it as the header `Authorization: Bearer KEY`"
    return ProblemError("unauthorized", f"The service needs an API key; {way}.")


def names_user(problem: ProblemError) -> bool:
    """Return whether a problem is an unknown user."""
    return problem.kind == "unknown-id" and str(problem).startswith("Unknown user")


def without_hint(problem: ProblemError) -> ProblemError:
    """Return a problem without data of users: without the nearest ids, or values of features.

    Examples
    --------
    >>> print(without_hint(ProblemError("unknown-id", "Unknown user 7; the nearest id is 8.")))
    Unknown user 7.
    >>> print(without_hint(ProblemError("invalid-request", "job: 'x' is unknown; known are a, b.")))
    job: 'x' is unknown.
    """
    # Values of features are those of other users.
    value = _UNKNOWN_VALUE.match(str(problem))
    if value is not None:
        return ProblemError(problem.kind, f"{value[1]}.")
    if not names_user(problem):
        return problem
    named = _UNKNOWN_USER.match(str(problem))
    return ProblemError(
        problem.kind, f"Unknown user {named[1]}." if named else "Unknown user."
    )


def problem_of(error: Exception) -> ProblemError:
    """Return the problem that describes an error."""
    if isinstance(error, ProblemError):
        return error
    # Before its base class, which is a fault of the request.
    if isinstance(error, UnknownIdError):
        return ProblemError("unknown-id", str(error))
    # A damaged model is a fault of the service, not of the request.
    if isinstance(error, RecsysError | LowRankError) and not isinstance(
        error, ModelFileError
    ):
        return ProblemError("invalid-request", str(error))
    if isinstance(error, TimeoutError):
        return ProblemError("timeout", "The answer took too long.")
    return ProblemError("internal", "The service has a defect; its log has details.")
