"""Run the console examples of the pages: `python docs/console.py` writes what they print now.

A page shows `$ command` and its output in ```console blocks, which run from top to bottom: a file
shown by `cat` exists for the commands below. Commands are `recsys`, `cat`, `ls`, `psql`, `curl` and
`sh`; data are shown as on a terminal. On a page with `psql`, a private server has the address
`postgresql://shop@localhost/shop`. `recsys serve MODEL &` runs to the end of the page, on another
port than shown. `tests/test_docs.py` compares the outputs; `python docs/console.py PAGE` refreshes
one page.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

import forked_commands
import postgres

__all__ = ["Example", "end_services", "examples", "needs_postgres", "pages", "printed"]

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"(```console\n)(.*?)(```)", re.DOTALL)
_EXAMPLE = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
_OF_CURL = "content-type: application/x-www-form-urlencoded"  # what -d sends without -H
_NOT_TABLES = ("--output", "-o", "--json", "--format")


class Example(NamedTuple):
    """A command and the output that a page shows below it."""

    command: str
    shown: str


def pages() -> list[Path]:
    """Return the pages with console examples."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if "```console" in page.read_text(encoding="utf-8")]


def examples(page: Path) -> list[Example]:
    """Return the examples of a page, in order."""
    blocks = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [
        Example(*found) for _, block, _ in blocks for found in _EXAMPLE.findall(block)
    ]


def needs_postgres(page: Path) -> bool:
    """Return True if a page has examples with a PostgreSQL server."""
    return any(example.command.startswith("psql ") for example in examples(page))


def printed(example: Example) -> str:
    """Run an example in the current directory; return its output."""
    from recsys.cli.main import cli

    program, *arguments = shlex.split(example.command)
    if program == "cat":
        Path(arguments[0]).parent.mkdir(parents=True, exist_ok=True)
        Path(arguments[0]).write_text(example.shown, encoding="utf-8")
        return example.shown
    if program in ("psql", "sh"):
        first = [
            str(Path(name).parent)
            for name in (forked_commands.program(), sys.executable)
        ]
        path = os.pathsep.join([*first, os.environ["PATH"]])
        done = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": path},
        )
        return done.stdout + done.stderr
    if program == "curl":
        return _answer(arguments)
    if arguments[-1] == "&":
        return _start_service(arguments[:-1])
    if program == "ls":
        return "".join(
            f"{path.name}\n" for path in sorted(Path(arguments[0]).iterdir())
        )
    if program != "recsys":
        raise ValueError(
            f"An example must be recsys, cat, ls, psql, curl or sh; got {example.command!r}."
        )
    settings = {"COLUMNS": "100"}
    if not set(_NOT_TABLES).intersection(arguments):
        settings["RECSYS_FORMAT"] = "table"
    return CliRunner().invoke(cli, arguments, env=settings).output


# By the port on the page.
_services: dict[str, tuple[forked_commands.Forked | subprocess.Popen[str], str]] = {}


def _start_service(arguments: list[str]) -> str:
    """Start `recsys serve` on a free port; return its output until it is ready."""
    shown = (
        arguments[arguments.index("--port") + 1] if "--port" in arguments else "8000"
    )
    service = forked_commands.started([*arguments, "--port", "0"])
    assert service.stderr is not None
    said = service.stderr.readline()
    found = re.search(r"http://127\.0\.0\.1:(\d+)/", said)
    if found is None:
        raise ValueError(said + service.stderr.read())
    _services[shown] = service, found[1]
    while _fetch(f"localhost:{shown}/health/ready")[0] != 200:
        time.sleep(0.05)
    return said.replace(found[1], shown)


def _answer(arguments: list[str]) -> str:
    """Do the request of `curl [-s] [-H NAME:VALUE] [-d BODY] URL [| jq]`; return the output."""
    given = {each: arguments[place] for place, each in enumerate(arguments[:-1], 1)}
    address = next(each for each in arguments if each.startswith("localhost:"))
    _, text = _fetch(address, given.get("-d"), given.get("-H", _OF_CURL))
    if "jq" in arguments:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"
    return text if text.endswith("\n") else f"{text}\n"


def _fetch(
    address: str, body: str | None = None, header: str = _OF_CURL
) -> tuple[int, str]:
    port, _, path = address.removeprefix("localhost:").partition("/")
    connection = http.client.HTTPConnection("127.0.0.1", int(_services[port][1]))
    try:
        name, _, value = header.partition(":")
        method = "GET" if body is None else "POST"
        content = None if body is None else body.encode()
        connection.request(method, f"/{path}", content, {name: value.strip()})
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


def end_services() -> None:
    """Stop the services that the examples of a page have started."""
    for service, _ in _services.values():
        with service:
            service.send_signal(signal.SIGTERM)
            service.stderr.read()
    _services.clear()


def refresh(page: Path) -> None:
    """Replace the outputs of the examples of a page by the present ones."""
    outputs = iter([printed(example) for example in examples(page)])

    def block(match: re.Match[str]) -> str:
        opening, body, closing = match.groups()
        fresh = _EXAMPLE.sub(lambda example: f"$ {example[1]}\n{next(outputs)}", body)
        return opening + fresh + closing

    text = page.read_text(encoding="utf-8")
    page.write_text(_BLOCK.sub(block, text), encoding="utf-8")


def main() -> None:
    """Refresh the named pages, by default all except the README."""
    for name in [name for name in os.environ if name.startswith("RECSYS_")]:
        del os.environ[name]
    named = [Path(name).resolve() for name in sys.argv[1:]]
    for page in named or [page for page in pages() if page.name != "README.md"]:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as held:
            if needs_postgres(page):
                os.environ |= held.enter_context(postgres.server()).environment
            held.callback(end_services)
            os.chdir(folder)
            refresh(page)
            os.chdir(ROOT)


if __name__ == "__main__":
    main()
