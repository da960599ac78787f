"""Problems: errors as JSON documents (RFC 9457), with the sentences of the command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lowrank.errors import LowRankError
from recsys.errors import ModelFileError, RecsysError, UnknownIdError

MEDIA_TYPE = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of problem: its status, its title, and when a client meets it."""

    status: int
    title: str
    meaning: str


KINDS = {
    "invalid-request": Kind(400, "Invalid request", "A parameter or the body cannot be used."),
    "unauthorized": Kind(401, "Unauthorized", "The API key is missing or wrong."),
    "unknown-id": Kind(404, "Unknown id", "A user or an item is not in the data of the model."),
    "not-found": Kind(404, "Not found", "There is no such path."),
    "not-available": Kind(404, "Not available", "The model, or the service, has no such answer."),
    "wrong-method": Kind(405, "Method not allowed", "The path takes other methods."),
    "slow-request": Kind(408, "Request timeout", "The request did not arrive in time."),
    "too-large": Kind(413, "Content too large", "The body is larger than the service takes."),
    "internal": Kind(500, "Internal error", "A defect of the service, which is in its log."),
    "busy": Kind(503, "Busy", "Too many requests wait; try again."),
    "not-ready": Kind(503, "Not ready", "No model is loaded yet."),
    "not-stored": Kind(503, "Not stored", "Events cannot be written to the disk."),
    "timeout": Kind(503, "Timeout", "The answer took longer than the service allows."),
}
"""Kinds of problems, by the end of the `type`."""


class ProblemError(RecsysError):
    """A request that has no answer: a kind of problem and one sentence."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind

    @property
    def status(self) -> int:
        """The HTTP status."""
        return KINDS[self.kind].status

    def document(self) -> dict[str, Any]:
        """Return the problem document."""
        known = KINDS[self.kind]
        found = {"type": f"/docs#{self.kind}", "title": known.title, "status": known.status}
        return found | {"detail": str(self)}


def problem_of(error: Exception) -> ProblemError:
    """Return the problem of an error that an answer ended in."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, UnknownIdError):
        return ProblemError("unknown-id", str(error))
    if isinstance(error, RecsysError | LowRankError) and not isinstance(error, ModelFileError):
        return ProblemError("invalid-request", str(error))
    if isinstance(error, TimeoutError):
        return ProblemError("timeout", "The answer took too long.")
    return ProblemError("internal", "The service has a defect; its log says more.")
