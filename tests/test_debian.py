"""The steps of compose.yaml in a Debian folder, as services of an ordinary user.

It runs where `make debian` has laid the folder, as root, who alone may enter it.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import psutil
import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
FOLDER = Path(os.environ.get("RECSYS_DEBIAN", ROOT / "build" / "debian")).absolute()
SERVICES = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))[
    "services"
]
HOME = "/home/recsys"
PASSWORD = "open-sesame"  # of both roles
SECONDS = 300  # in which each step ends on a slow machine
# The program that the job calls for a pause notes it, and waits until the test lets it go on.
SLEEP = f"""#!/bin/sh
echo "$1" >> {HOME}/pauses
while [ ! -e {HOME}/go ]; do /bin/sleep 0.2; done
rm {HOME}/go
"""


def why_not() -> str | None:
    """Return why there is no Debian folder to enter, or None."""
    if not (FOLDER / "opt" / "recsys" / "bin" / "recsys-nightly").exists():
        return f"there is no Debian folder {FOLDER} (make debian)"
    if os.geteuid():
        return "only root may enter a Debian folder"
    return None


pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


class Container:
    """The folder with its programs, which an ordinary user runs."""

    def __init__(self) -> None:
        self.running: list[subprocess.Popen[bytes]] = []
        self.port = free_port()
        programs = next((FOLDER / "usr" / "lib" / "postgresql").glob("*/bin"))
        path = [f"{HOME}/bin", "/opt/recsys/bin", f"/{programs.relative_to(FOLDER)}"]
        self.environment = {
            "PATH": ":".join([*path, "/usr/bin", "/bin"]),
            "HOME": HOME,
            "PGPORT": str(self.port),
        }

    def words(self, command: list[str], environment: Mapping[str, str]) -> list[str]:
        """Return the words of a command in the folder, which ends all that it has started."""
        settings = self.environment | dict(environment)
        enter = 'mount -t proc proc "$0/proc" && exec chroot --userspec=10001:10001 "$0" "$@"'
        return [
            *("unshare", "--mount", "--pid", "--fork"),
            *("sh", "-c", enter, str(FOLDER), "/usr/bin/env", "-i", f"--chdir={HOME}"),
            *(f"{name}={value}" for name, value in settings.items()),
            *command,
        ]

    def run(self, *command: str, **environment: str) -> str:
        """Return the output of a command that ends."""
        words = self.words([*command], environment)
        result = subprocess.run(words, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def start(self, name: str, *command: str, **environment: str) -> Path:
        """Start a service; return its log."""
        log = FOLDER / HOME.lstrip("/") / f"{name}.log"
        with log.open("wb") as stream:
            words = self.words([*command], environment)
            service = subprocess.Popen(words, stdout=stream, stderr=stream)
        self.running.append(service)
        return log

    def stop(self) -> None:
        for service in reversed(self.running):
            # The first process of a namespace, with which all others end.
            for process in psutil.Process(service.pid).children():
                process.kill()
            service.wait(timeout=60)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def until(is_done: Callable[[], Any], what: str) -> Any:
    """Wait for a true value."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if value := is_done():
            return value
        time.sleep(0.2)
    raise AssertionError(f"{what} took more than {SECONDS} s")


@pytest.fixture
def container() -> Iterator[Container]:
    home = FOLDER / HOME.lstrip("/")
    models = FOLDER / "models"
    for folder in (home, models):  # nothing is left of another run
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        os.chown(folder, 10001, 10001)
    (home / "bin").mkdir()
    (home / "bin" / "sleep").write_text(SLEEP)
    (home / "bin" / "sleep").chmod(0o755)
    container = Container()
    try:
        yield container
    finally:
        container.stop()


def make_database(container: Container) -> None:
    """Make the database as the image of PostgreSQL does at its first start."""
    settings = SERVICES["db"]["environment"]
    user = settings["POSTGRES_USER"]
    password = FOLDER / HOME.lstrip("/") / "password"
    password.write_text(PASSWORD)
    password.chmod(0o644)
    made = ("--auth-local=trust", "--auth-host=scram-sha-256", f"--username={user}")
    container.run("initdb", *made, f"--pwfile={HOME}/password", "-D", f"{HOME}/db")
    server = ("postgres", "-D", f"{HOME}/db", "-k", HOME)
    # A folder has no shared memory of its own.
    container.start("db", *server, "-c", "dynamic_shared_memory_type=mmap")
    check = SERVICES["db"]["healthcheck"]["test"][1:]
    until(lambda: succeeds(container, check), "the database")
    container.run("createdb", "-h", HOME, "-U", user, settings["POSTGRES_DB"])
    container.run(
        "/bin/sh",
        "/source/deploy/init.sh",
        PGHOST=HOME,
        POSTGRES_USER=user,
        POSTGRES_DB=settings["POSTGRES_DB"],
        RECOMMENDER_PASSWORD=PASSWORD,
    )


def succeeds(container: Container, command: list[str]) -> bool:
    words = container.words(command, {})
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def test_the_steps_of_the_compose_file_in_a_debian_folder(
    container: Container, record_property: Callable[[str, object], None]
) -> None:
    started = time.monotonic()
    seconds: dict[str, float] = {}

    def done(step: str) -> None:
        seconds[step] = round(time.monotonic() - started, 1)

    make_database(container)
    done("database")

    def ask(sql: str) -> str:
        words = ("psql", "-XtA", "-h", HOME, "-U", "shop", "-d", "shop", "-c", sql)
        return container.run(*words).strip()

    assert int(ask("SELECT count(*) FROM ratings")) > 4000
    # The first night fails, because the role may not read yet.
    ask("REVOKE SELECT ON ratings FROM recommender")
    nightly = SERVICES["nightly"]
    settings = {
        name: value.replace("@db/", f"@127.0.0.1:{container.port}/")
        for name, value in nightly["environment"].items()
    }
    settings |= {"PGPASSWORD": PASSWORD, "FIT": "--model als --factors 4"}
    loop = nightly["command"][0].replace("$$", "$")
    log = container.start("nightly", *nightly["entrypoint"], loop, **settings)
    pauses = FOLDER / HOME.lstrip("/") / "pauses"

    def nights() -> list[int]:
        text = pauses.read_text() if pauses.exists() else ""
        return [int(line) for line in text.split()]

    def next_night() -> str:
        """Let the job go on; return what it says until its next pause."""
        said = log.read_text()
        n_nights = len(nights())
        (pauses.parent / "go").touch()
        until(lambda: len(nights()) > n_nights, "a night")
        return log.read_text().removeprefix(said)

    until(nights, "the first night")
    assert nights() == [300]  # seconds until another try
    assert "the first fit failed; try again later" in log.read_text()
    is_healthy = nightly["healthcheck"]["test"][1:]
    assert not succeeds(container, is_healthy)  # the service would not start yet
    ask("GRANT SELECT ON ratings TO recommender")
    said = next_night()
    assert "Wrote 4,000 rows" in said, said
    assert 0 < nights()[-1] <= 2 * 86400  # until tomorrow night
    assert succeeds(container, is_healthy)
    done("first model, after a failed night")
    words = ["recsys", *SERVICES["service"]["command"]]
    port = free_port()
    words[words.index("--port") + 1] = str(port)
    container.start("service", *words)
    address = f"http://127.0.0.1:{port}"

    def reply(path: str, body: bytes | None = None) -> str | None:
        headers = {"content-type": "application/json"}
        try:
            with urlopen(Request(address + path, body, headers)) as answer:
                text: str = answer.read().decode()
                return text
        except URLError:
            return None

    until(lambda: reply("/health/ready"), "the service")
    assert str(reply("/v1/recommend/42")).count('"item"') == 10
    done("service")
    event = b'{"events": [{"user": 42, "item": 1001, "value": 5}]}'
    assert reply("/v1/events", event) == '{"stored":1}'
    said = next_night()
    assert "1 new event" in said, said
    counts = ask("SELECT count(DISTINCT customer_id), count(*) FROM recommendations")
    assert counts == "200|4000"
    done("a night with an event")
    assert "no new ratings" in next_night()
    done("a night without news")
    # An ordinary user did all of it.
    owners = {path.stat().st_uid for path in (FOLDER / "models").iterdir()}
    assert owners == {10001}
    assert re.fullmatch(r"[\w.-]+", (FOLDER / "models" / "latest").readlink().name)
    for step, time_of_step in seconds.items():
        record_property(step, time_of_step)
        print(f"{time_of_step:6.1f} s  {step}")
