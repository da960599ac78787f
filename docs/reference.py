"""Write the command's reference from its help: `python docs/reference.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from recsys.cli.main import cli

__all__ = ["PAGE", "commands", "reference"]

PAGE = Path(__file__).resolve().parent / "reference" / "command.md"
WIDTH = 80
HEAD = """# The command

The output of `recsys --help` and of the help of each verb, written by `python docs/reference.py`. A
test compares. The exit code is 0 for success, 1 for bad data, unknown ids and bad model files, 2
for bad usage, and 130 after an interrupt.
"""


def commands(
    command: click.Command, parent: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the path and the help of a command and of all commands below it."""
    name = "recsys" if parent is None else command.name
    settings = {"terminal_width": WIDTH, "max_content_width": WIDTH}
    with click.Context(command, info_name=name, parent=parent, **settings) as context:
        yield context.command_path, command.get_help(context)
        if isinstance(command, click.Group):
            for verb in command.list_commands(context):
                found = command.get_command(context, verb)
                if found is not None:
                    yield from commands(found, context)


def reference() -> str:
    """Return the text of the page."""
    sections = [
        f"\n## {path}\n\n```text\n{text.rstrip()}\n```\n"
        for path, text in commands(cli)
    ]
    return HEAD + "".join(sections)


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
