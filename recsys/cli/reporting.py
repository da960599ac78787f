"""`--report`: an evaluation as a page, with what repeats it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recsys.cli.group import State
from recsys.cli.output import atomic_file
from recsys.cli.progress import note

if TYPE_CHECKING:
    from recsys.evaluation import Evaluation
    from recsys.models.base import Model

__all__ = ["check_report", "lengths", "write_report"]

_LENGTHS = (1, 2, 5, 10, 20, 50, 100)


def check_report(path: str | None) -> None:
    """Refuse before the work what would be refused after it."""
    if path is None:
        return
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise click.UsageError(f"--report must end in .html; got {path}.")
    if not Path(path).parent.is_dir():
        raise click.UsageError(f"Cannot write {path}: there is no directory {Path(path).parent}.")


def lengths(asked: tuple[int, ...]) -> tuple[int, ...]:
    """Return the lengths asked for, and shorter ones for the curves of a report."""
    return tuple(sorted({*asked, *(n for n in _LENGTHS if n < max(asked))}))


def write_report(found: Evaluation, models: dict[str, Model | str], path: str) -> None:
    """Write the page beside its place, and rename it when it is complete."""
    from recsys.evaluation import html_report

    state = click.get_current_context().ensure_object(State)
    page = html_report(
        found,
        parameters={
            label: {} if isinstance(model, str) else model.params()
            for label, model in models.items()
        },
        command=shlex.join(["recsys", *state.words]),
        versions=_versions(),
    )
    with atomic_file(Path(path)) as stream:
        stream.write(page.encode(errors="backslashreplace"))  # a file name need not be text
    note(f"the report is in {path}")


def _versions() -> dict[str, str]:
    """Return the versions of everything that a figure may depend on."""
    import platform

    from lowrank.kernels import backend
    from recsys import __version__
    from recsys.cli.versions import library_versions

    libraries = {name: text for name, text in library_versions().items() if name != "rich"}
    own = {"recsys": __version__, "kernels": str(backend()), "Python": platform.python_version()}
    return {**own, **libraries, "system": f"{platform.system()} {platform.machine()}"}
