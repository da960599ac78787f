"""A private PostgreSQL server from the system's packages, for tests, benchmarks and pages.

Its files are in a temporary directory, it listens on a free port of this machine only, and it runs
as an unprivileged user: PostgreSQL does not start as root. Nothing is synced to disk.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

USER, PASSWORD, DATABASE = "shop", "open-sesame", "shop"

# Where packages put the server's programs, which are not on the PATH on Debian.
_FOLDERS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/local/opt/postgresql*/bin",
    "/opt/homebrew/opt/postgresql*/bin",
)


@dataclass(frozen=True)
class Server:
    """A running server: its port, its files, and the environment in which programs find it."""

    port: int
    folder: Path

    @property
    def uri(self) -> str:
        """Return the address of the database, with user and password."""
        return f"postgresql://{USER}:{PASSWORD}@localhost:{self.port}/{DATABASE}"

    @property
    def environment(self) -> dict[str, str]:
        """Return the settings with which `postgresql://shop@localhost/shop` is this database.

        Other roles are let in if they have the same password.
        """
        passwords = self.folder / "pgpass"
        passwords.write_text(f"*:*:*:*:{PASSWORD}\n", encoding="utf-8")
        passwords.chmod(0o600)  # libpq ignores a file that others can read
        return {"PGPORT": str(self.port), "PGPASSFILE": str(passwords)}


def programs() -> Path | None:
    """Return the folder of `initdb` and `pg_ctl` of the newest server that is installed."""
    if (found := shutil.which("initdb")) and shutil.which("pg_ctl"):
        return Path(os.path.realpath(found)).parent
    folders = [path for each in _FOLDERS for path in Path("/").glob(each.lstrip("/"))]
    complete = [path for path in folders if (path / "initdb").exists()]
    digits = {path: "".join(filter(str.isdigit, path.parent.name)) for path in complete}
    return max(complete, key=lambda path: int(digits[path] or 0), default=None)


def why_no_postgres() -> str | None:
    """Return why no server can be started, or None."""
    if os.name != "posix":
        return "a private PostgreSQL server is only started on Linux and macOS"
    if programs() is None:
        return "PostgreSQL's server is not installed (apt-get install postgresql)"
    return None


def _unprivileged() -> dict[str, Any]:
    """Return the keywords of `subprocess.run` that drop root's rights, and {} for other users."""
    if os.geteuid() != 0:
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = known.get("postgres") or known["nobody"]
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


@contextmanager
def server(*settings: str) -> Iterator[Server]:
    """Start a server, and stop and remove it at the end.

    Parameters
    ----------
    *settings
        Settings of the server such as "shared_buffers=1GB".
    """
    folder, account = Path(tempfile.mkdtemp(prefix="recsys-postgres-")), _unprivileged()
    data = folder / "data"

    def run(program: str, *arguments: str, **keywords: Any) -> None:
        command = [str(programs() / program), *arguments]
        environment = {**os.environ, "PGPASSWORD": PASSWORD, "LC_ALL": "C"}
        # Not pipes: the server inherits them, and they would stay open as long as it runs.
        with (folder / "output").open("wb") as output:
            streams = {"stdout": output, "stderr": output}
            code = subprocess.call(
                command, cwd=folder, env=environment, **streams, **keywords
            )
        if code:
            said = [
                folder / name for name in ("output", "log") if (folder / name).exists()
            ]
            texts = [
                path.read_text(encoding="utf-8", errors="replace") for path in said
            ]
            raise RuntimeError("\n".join([f"{program} failed:", *texts]))

    try:
        secret = folder / "secret"
        secret.write_text(PASSWORD, encoding="utf-8")
        if account:
            for path in (folder, secret):
                os.chown(path, account["user"], account["group"])
        created = ("--no-sync", "--encoding=UTF8", "--locale=C", "--auth=scram-sha-256")
        run("initdb", *created, f"--username={USER}", f"--pwfile={secret}", f"--pgdata={data}",
            **account)  # fmt: skip
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        chosen = [
            "shared_buffers=16MB",
            "max_wal_size=4GB",
            "full_page_writes=off",
            *settings,
        ]
        given = "".join(f" -c {setting}" for setting in chosen)
        options = f"-F -p {port} -h localhost -k ''{given}"
        log = str(folder / "log")
        run(
            "pg_ctl",
            "-D",
            str(data),
            "-w",
            "-s",
            "-l",
            log,
            "-o",
            options,
            "start",
            **account,
        )
        try:
            run("createdb", "-h", "localhost", "-p", str(port), "-U", USER, DATABASE)
            yield Server(port, folder)
        finally:  # its data are thrown away
            run("pg_ctl", "-D", str(data), "-m", "immediate", "-s", "stop", **account)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
