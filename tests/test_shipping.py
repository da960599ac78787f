"""Dockerfile, compose file, nightly script and workflows: they fit together and the project."""

from __future__ import annotations

import ast
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import forked_commands
import numpy as np
import polars as pl
import postgres
import pytest
import yaml
from serving import Command

from recsys.cli.main import cli

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

# Keys of the Compose specification that are used, and what they must be.
SERVICE = {
    "build": (str, dict),
    "cap_drop": list,
    "command": list,
    "configs": list,
    "cpus": int,
    "depends_on": dict,
    "entrypoint": list,
    "environment": dict,
    "healthcheck": dict,
    "image": str,
    "init": bool,
    "logging": dict,
    "mem_limit": str,
    "pids_limit": int,
    "ports": list,
    "read_only": bool,
    "restart": str,
    "security_opt": list,
    "shm_size": str,
    "stop_grace_period": str,
    "tmpfs": list,
    "volumes": list,
}


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile with their arguments, continued lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [
        line for line in text.splitlines() if line.strip() and not line.startswith("#")
    ]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    pairs = (line.partition(" ")[::2] for line in joined.splitlines())
    return [(name, " ".join(rest.split())) for name, rest in pairs]


def parses(words: list[str]) -> None:
    """Check that words are a command line of `recsys`."""
    command: Any = cli
    parent = None
    while isinstance(command, click.Group):
        parent = click.Context(command, parent=parent, info_name=command.name)
        command, words = command.get_command(parent, words[0]), words[1:]
    command.make_context(command.name, words, parent=parent)


# Dockerfile


def stages() -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Return the image that each stage begins with, and its instructions."""
    found: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    for name, rest in instructions():
        if name == "FROM":
            image, _, stage = rest.split()
            found[stage] = image, []
        elif found:
            found[stage][1].append((name, rest))
    return found


@pytest.mark.parametrize(
    ("kind", "slim", "copied"),
    [
        ("full", "full", "/opt/recsys /opt/recsys"),
        ("service", "service /service", "/service /"),
    ],
)
def test_images_have_no_compiler_and_no_rights(kind, slim, copied):
    image, own = stages()[kind]
    while image in stages():
        image, below = stages()[image]
        own = below + own
    assert not any("g++" in rest or "pip install" in rest for _, rest in own)
    assert ("COPY", f"--from=build-{kind} {copied}") in own
    assert ("RUN", f"sh slim.sh /opt/recsys {slim}") in stages()[f"build-{kind}"][1]
    assert [rest for name, rest in own if name == "USER"] == ["10001:10001"]
    known = "RUN COPY WORKDIR ARG ENV USER VOLUME EXPOSE HEALTHCHECK ENTRYPOINT CMD"
    assert {name for name, _ in own} <= set(known.split())


def test_the_images_have_the_same_python_which_the_project_supports():
    images = {image for image, _ in stages().values()} - set(stages())
    assert images == {"debian:12-slim", "scratch"}
    classifier = "Programming Language :: Python :: 3.11"  # of Debian 12
    assert classifier in PROJECT["project"]["classifiers"]


def test_copied_files_exist_and_reach_the_builder():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    allowed = [line[1:] for line in ignored if line.startswith("!")]
    for name, rest in instructions():
        if name != "COPY" or rest.startswith("--from"):
            continue
        for source in [word for word in rest.split()[:-1] if not word.startswith("--")]:
            assert (ROOT / source).exists(), source
            assert any(fnmatch.fnmatch(source, each) for each in allowed), source
    built = {
        "pyproject.toml",
        "CMakeLists.txt",
        "README.md",
        "LICENSE",
        "lowrank",
        "recsys",
    }
    assert built <= set(allowed)


def test_extras_of_the_image_exist():
    extras = next(rest for name, rest in instructions() if name == "ARG").partition(
        "="
    )[2]
    assert set(extras.split(",")) <= set(PROJECT["project"]["optional-dependencies"])


@pytest.mark.skipif(shutil.which("sh") is None, reason="there is no sh")
def test_what_the_image_runs_is_valid_shell(tmp_path):
    scripts = [rest for name, rest in instructions() if name == "RUN"]
    assert len(scripts) >= 3
    for script in [
        *scripts,
        *(path.read_text(encoding="utf-8") for path in (ROOT / "deploy").glob("*.sh")),
        COMPOSE["services"]["nightly"]["command"][0].replace("$$", "$"),
    ]:
        subprocess.run(["sh", "-n"], input=script, text=True, check=True)


def test_the_image_serves_and_is_healthy_where_the_service_is_alive():
    found = dict(stages()["service"][1])
    assert json.loads(found["ENTRYPOINT"]) == ["recsys"]
    words = json.loads(found["CMD"])
    parses(words)
    assert "0.0.0.0" in words
    port = words[words.index("--port") + 1]
    assert found["EXPOSE"] == port
    check = found["HEALTHCHECK"]
    program = json.loads(check[check.index("[") :])
    assert program[:2] == ["python", "-c"]
    code = program[2]
    ast.parse(code)
    assert f"127.0.0.1:{port}/health/live" in code
    pytest.importorskip("fastapi")
    from recsys.serve.routes import health

    assert "/health/live" in {getattr(route, "path", "") for route in health.routes}


# compose.yaml


def test_the_compose_file_has_what_the_specification_wants():
    extensions = {"x-logging", "x-recsys"}
    assert set(COMPOSE) - extensions == {"name", "services", "volumes", "configs"}
    assert set(COMPOSE["services"]) == {"db", "nightly", "service"}
    for name, service in COMPOSE["services"].items():
        for key, value in service.items():
            assert isinstance(value, SERVICE[key]), (name, key)
        for other, wanted in service.get("depends_on", {}).items():
            assert "healthcheck" in COMPOSE["services"][other]
            assert wanted == {"condition": "service_healthy"}
        assert service["logging"]["options"]["max-size"]
        assert service["mem_limit"]
        for config in service.get("configs", []):
            file = ROOT / COMPOSE["configs"][config["source"]]["file"]
            assert os.access(file, os.X_OK)  # the image runs it, and does not source it
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in COMPOSE["volumes"]
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")  # who opens it to others decides so
    text = (ROOT / "compose.yaml").read_text(encoding="utf-8")
    variables = re.findall(r"\$\{(\w+)(:\?[^}]+)?\}", text)
    assert variables
    assert all(message for _, message in variables)  # no empty password


def test_the_commands_of_the_compose_file_are_ours():
    parses(COMPOSE["services"]["service"]["command"])
    nightly = COMPOSE["services"]["nightly"]
    assert "recsys-nightly" in nightly["command"][0]
    copied = [rest for name, rest in instructions() if name == "COPY"]
    assert "--chmod=755 deploy/nightly.sh /opt/recsys/bin/recsys-nightly" in copied
    for kind in ("nightly", "service"):
        assert COMPOSE["services"][kind]["build"]["target"] in stages()
    script = (ROOT / "deploy" / "nightly.sh").read_text(encoding="utf-8")
    assert set(nightly["environment"]) - {"PGPASSWORD"} <= set(
        re.findall(r"\b[A-Z]+\b", script)
    )


# deploy/nightly.sh


def events(last: str, n_users: int = 60, days: int = 30) -> pl.DataFrame:
    """Return ratings of some days until now; users like items of their own kind."""
    rng = np.random.default_rng(0)
    now = datetime.now(UTC).timestamp()
    rows = []
    for user in range(n_users):
        for item in rng.permutation(40)[:20]:
            likes = (user + item) % 2 == 0
            time = now - rng.random() * days * 86400 + 1
            rows.append((user, int(item), 4.0 + likes if likes else 1.0, int(time)))
    return pl.DataFrame(
        rows, schema=["user_id", "item_id", "rating", "time"], orient="row"
    )


class Nights:
    """Runs of deploy/nightly.sh in a folder, and what they leave there."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        programs = Path(forked_commands.program()).parent
        outer = {k: v for k, v in os.environ.items() if not k.startswith("RECSYS_")}
        own = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "MODELS": "models",
            "FIT": "--model als --factors 4",
        }
        self.environment = {**outer, **own, **settings}

    def start(self, **changes: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["sh", str(ROOT / "deploy" / "nightly.sh")],
            cwd=self.folder,
            env=self.environment | changes,
            text=True,
            stderr=subprocess.PIPE,
        )

    def run(self, **changes: str) -> tuple[int, str]:
        """Return the exit code, and what is said."""
        with self.start(**changes) as process:
            _, messages = process.communicate(timeout=120)
        return process.returncode, messages

    @property
    def latest(self) -> str:
        return (self.folder / "models" / "latest").readlink().name

    @property
    def versions(self) -> list[str]:
        return sorted(
            path.name for path in (self.folder / "models").iterdir() if path.is_dir()
        )


of_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="it is for the image, whose date is GNU's"
)


@of_linux
def test_nights_that_are_worse_better_and_without_news(tmp_path):
    nights = Nights(tmp_path, RATINGS="ratings.csv", EVENTS="events.jsonl")
    now = datetime.now(UTC).timestamp()
    everything = events("now")
    everything.write_csv(tmp_path / "ratings.csv")
    # Of a model of the ratings until three days ago, nothing is known of yesterday's.
    early = everything.filter(pl.col("time") < now - 3 * 86400)
    early.write_csv(tmp_path / "early.csv")
    code, messages = nights.run(RATINGS="early.csv")
    assert code == 0, messages
    assert "latest is " in messages
    first = nights.latest
    code, messages = nights.run(GATE="rmse < 99")
    assert code == 1, messages
    assert 'Failed by "rmse < 99"' in messages
    assert "the new model is worse; the model in use stays" in messages
    assert nights.versions == [first, "latest"]
    # A gate of a group without test users says nothing about the model.
    code, messages = nights.run(GATE="rmse[activity=over 900] < 99")
    assert code == 75, messages
    assert "cannot be checked" in messages
    assert "worse" not in messages
    code, messages = nights.run(KEEP="1")
    assert code == 0, messages
    assert "folded in" in messages or "fitted again" in messages
    second = nights.latest
    assert second != first
    assert nights.versions == [second, "latest"]
    # The same day again: nothing is new, and nothing is lost.
    code, messages = nights.run(LISTS="lists.csv", RECOMMEND="-n 3")
    assert code == 0, messages
    assert "no new ratings; the model in use stays" in messages
    assert nights.versions == [second, "latest"]
    assert (tmp_path / "lists.csv").read_text().startswith("user,item,rank,score")
    # Events of the service alone are no data to test a new model on.
    moment = datetime.fromtimestamp(now + 60, UTC).isoformat()
    line = {"user": 1, "item": 77, "value": 5, "timestamp": moment}
    (tmp_path / "events.jsonl").write_text(f"{json.dumps(line)}\n")
    code, messages = nights.run()
    assert code == 0, messages
    assert "no data to test a new model on" in messages
    assert "1 new event" in messages
    assert nights.versions == [second, nights.latest, "latest"]
    code, messages = nights.run(RATINGS="postgresql://localhost:1/x::ratings")
    assert code == 75, messages
    assert "failed; try again later" in messages


@of_linux
def test_two_runs_at_once_and_one_that_was_killed(tmp_path):
    nights = Nights(tmp_path, RATINGS="ratings.csv")
    events("now").write_csv(tmp_path / "ratings.csv")
    with nights.start() as killed:
        while not (tmp_path / "models" / ".nightly.lock").exists():
            time.sleep(0.01)
        # The fit has hardly begun: a Python takes longer to start.
        time.sleep(0.1)
        killed.kill()
    with nights.start() as one, nights.start() as other:
        messages = [process.communicate(timeout=120)[1] for process in (one, other)]
    assert [one.returncode, other.returncode] == [0, 0], messages
    assert sum("no new ratings" in text for text in messages) == 1
    assert {nights.latest, "latest"} <= {*nights.versions}
    hidden = [path.name for path in (tmp_path / "models").glob(".*")]
    assert hidden == [".nightly.lock"]


@of_linux
def test_the_steps_of_the_compose_file(tmp_path):
    """Without Docker: the database, the nights and the service, with the settings of the file."""
    pytest.importorskip("fastapi")
    pytest.importorskip("adbc_driver_postgresql")
    if reason := postgres.why_no_postgres():
        pytest.skip(reason)
    services = COMPOSE["services"]
    with postgres.server() as server:
        local = server.environment | {"PGHOST": "localhost"}
        database = services["db"]["environment"]
        subprocess.run(
            [str(ROOT / "deploy" / "init.sh")],
            env={
                **os.environ,
                **local,
                "POSTGRES_USER": database["POSTGRES_USER"],
                "POSTGRES_DB": database["POSTGRES_DB"],
                "RECOMMENDER_PASSWORD": postgres.PASSWORD,
            },
            check=True,
        )
        settings = {}
        for name, value in services["nightly"]["environment"].items():
            text = value.replace("@db/", f"@localhost:{server.port}/")
            settings[name] = text.replace("/models", "models")
        settings |= {"PGPASSWORD": postgres.PASSWORD, "FIT": "--model als --factors 4"}
        nights = Nights(tmp_path, **local, **settings)
        code, messages = nights.run()
        assert code == 0, messages
        assert "Wrote 4,000 rows" in messages
        words = services["service"]["command"]
        model, log = (
            str(tmp_path / word.lstrip("/")) for word in (words[1], words[-1])
        )
        with Command(model, *words[6:-1], log) as service:
            assert len(service.get("/v1/recommend/42").json["items"]) == 10
            event = {"user": 42, "item": 1001, "value": 5}
            stored = service.post("/v1/events", {"events": [event]})
            assert stored.status == 201
        code, messages = nights.run()
        assert code == 0, messages
        assert "1 new event" in messages
        address = f"postgresql://recommender@localhost:{server.port}/shop"

        def ask(sql: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                ["psql", "-XtA", "-c", sql, address],
                env={**os.environ, **local},
                capture_output=True,
                text=True,
                check=False,
            )

        distinct = "SELECT count(DISTINCT customer_id), count(DISTINCT version)"
        assert ask(f"{distinct} FROM recommendations").stdout == "200|1\n"
        for forbidden in (
            "DELETE FROM ratings",
            "CREATE TABLE mine (a int)",
            "DROP TABLE recommendations",
        ):
            assert "ERROR:" in ask(forbidden).stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
def test_the_units_of_systemd_are_valid(tmp_path):
    units = [
        *(ROOT / "deploy").glob("*.service"),
        *(ROOT / "deploy").glob("*.timer"),
    ]
    assert len(units) == 3
    for name in ("recsys", "recsys-nightly"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    copies = []
    for unit in units:
        text = unit.read_text(encoding="utf-8").replace(
            "/opt/recsys/bin/", f"{tmp_path}/"
        )
        copies.append(tmp_path / unit.name)
        copies[-1].write_text(text)
        for line in re.findall(r"^ExecStart=\S+/recsys (.*)$", text, re.MULTILINE):
            parses(line.split())
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, copies)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


# .github/workflows


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_are_whole(path):
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", True, "permissions", "jobs"} <= set(
        document
    )  # True: `on`, in YAML 1.1
    for name, job in document["jobs"].items():
        assert "runs-on" in job, name
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), (name, step)
            if "uses" in step:
                assert re.fullmatch(r"[\w.-]+/[\w.-]+@[\w./-]+", step["uses"])
            for script in re.findall(
                r"\b(?:tests|benchmarks|docs)/\w+\.py", step.get("run", "")
            ):
                assert (ROOT / script).exists()
        for needed in job.get("needs", []):
            assert needed in document["jobs"]


def test_the_tests_run_on_all_systems_and_versions():
    document = yaml.safe_load(
        (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8")
    )
    matrix = document["jobs"]["tests"]["strategy"]["matrix"]
    assert {system.partition("-")[0] for system in matrix["os"]} == {
        "ubuntu",
        "macos",
        "windows",
    }
    supported = re.findall(
        r"Python :: (3\.\d+)", " ".join(PROJECT["project"]["classifiers"])
    )
    assert matrix["python"] == supported


def test_nothing_needs_a_system_without_an_alternative():
    """Modules of POSIX are imported where their absence is handled, and /proc is not read."""
    for package in ("lowrank", "recsys"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert "/proc/" not in text, path
            for node in ast.parse(text).body:
                if isinstance(node, ast.Import | ast.ImportFrom):
                    names = [each.name for each in node.names]
                    assert not {"fcntl", "resource", "pwd", "termios"} & {*names}, path
            if "os.sysconf" in text or "os.sched_getaffinity" in text:
                assert "win32" in text or "hasattr(os" in text, path
