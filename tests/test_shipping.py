"""Dockerfile, compose file, nightly script and workflows: they fit together and the project."""

from __future__ import annotations

import ast
import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np
import polars as pl
import pytest
import yaml

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
    "depends_on": dict,
    "entrypoint": list,
    "environment": dict,
    "healthcheck": dict,
    "image": str,
    "ports": list,
    "read_only": bool,
    "restart": str,
    "security_opt": list,
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
        (ROOT / "deploy" / "nightly.sh").read_text(encoding="utf-8"),
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
    assert set(COMPOSE) == {"name", "x-recsys", "services", "volumes"}
    assert set(COMPOSE["services"]) == {"db", "nightly", "service"}
    for name, service in COMPOSE["services"].items():
        for key, value in service.items():
            assert isinstance(value, SERVICE[key]), (name, key)
        for other, wanted in service.get("depends_on", {}).items():
            assert "healthcheck" in COMPOSE["services"][other]
            assert wanted == {"condition": "service_healthy"}
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


@pytest.mark.skipif(
    sys.platform != "linux", reason="it is for the image, whose date is GNU's"
)
def test_two_nights(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    wrapper = programs / "recsys"
    wrapper.write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m recsys "$@"\n'
    )
    wrapper.chmod(0o755)
    (tmp_path / "models").mkdir()
    events("now").write_csv(tmp_path / "ratings.csv")
    environment = {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith("RECSYS_")
        },
        **{"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        **{
            "RATINGS": "ratings.csv",
            "MODELS": "models",
            "FIT": "--model als --factors 4",
        },
    }

    def night(**changes: str) -> subprocess.CompletedProcess[str]:
        command = ["sh", str(ROOT / "deploy" / "nightly.sh")]
        options = {"cwd": tmp_path, "env": environment | changes, "text": True}
        return subprocess.run(
            command, capture_output=True, check=False, timeout=60, **options
        )

    def versions() -> list[str]:
        return sorted(
            each.name for each in (tmp_path / "models").iterdir() if each.is_dir()
        )

    # Of a model of the ratings until two days ago, nothing is known of yesterday's.
    early = events("then").filter(
        pl.col("time") < datetime.now(UTC).timestamp() - 3 * 86400
    )
    early.write_csv(tmp_path / "early.csv")
    first = night(RATINGS="early.csv")
    assert first.returncode == 0, first.stderr
    assert "latest is " in first.stderr
    before = (tmp_path / "models" / "latest").readlink()
    stopped = night(GATE="rmse < 99")
    assert stopped.returncode == 1, stopped.stderr
    assert 'Failed by "rmse < 99"' in stopped.stderr
    assert (tmp_path / "models" / "latest").readlink() == before
    assert versions() == [before.name, "latest"]
    second = night(KEEP="1")
    assert second.returncode == 0, second.stderr
    assert "folded in" in second.stderr or "fitted again" in second.stderr
    after = (tmp_path / "models" / "latest").readlink()
    assert after != before
    assert versions() == [after.name, "latest"]


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
