"""recsys info: versions, settings and saved models."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recsys.cli.options import command, output_options
from recsys.cli.output import Output

if TYPE_CHECKING:
    from recsys.spark.results import SparkModel
    from recsys.storage import Manifest

__all__ = ["EXTRAS", "LIBRARIES", "info", "library_versions"]


@command(
    "info",
    examples=[
        "recsys info",
        "recsys info model --json",
    ],
)
@click.argument("model", required=False, type=click.Path())
@output_options
@click.pass_context
def info(ctx: click.Context, model: str | None, output: Output) -> None:
    """Show versions and settings, or a saved model.

    Without MODEL: versions, hardware, which kernels run, and every option that is set outside the
    command line, with the place where it is set. A bug report should have all of it.
    """
    from recsys.cli.output import write_facts

    write_facts(_of_model(model) if model else _of_installation(ctx), output)


def _of_model(path: str) -> dict[str, dict[str, Any]]:
    from recsys.cli.inputs import require_model
    from recsys.storage import SPARK_FORMAT, format_of, read_manifest

    require_model(path)
    if format_of(Path(path)) == SPARK_FORMAT:
        from recsys.spark.session import read_result

        found = read_result(path)
        return _facts(path, found, sum(found.files.values()))
    manifest = read_manifest(path)
    return _facts(path, manifest, sum(entry.bytes for entry in manifest.files.values()))


def _facts(path: str, manifest: Manifest | SparkModel, size: int) -> dict[str, dict[str, Any]]:
    return {
        "model": {
            "path": str(Path(path).resolve()),
            "model": manifest.model,
            "megabytes": size / 1e6,
            "written by recsys": manifest.package_version,
        },
        "parameters": manifest.parameters,
        "training": manifest.training,
        "versions": manifest.versions,
    }


def _of_installation(ctx: click.Context) -> dict[str, dict[str, Any]]:
    import recsys

    return {
        "recsys": {
            "version": recsys.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "installed in": str(Path(recsys.__file__).parent),
            "memory, GB": _memory(),
        },
        "libraries": library_versions(),
        "extras": library_versions(EXTRAS),
        "kernels": _kernels(),
        "settings": _settings(ctx),
    }


def _memory() -> float | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    except (AttributeError, OSError, ValueError):  # a system that does not tell
        return None


def _kernels() -> dict[str, Any]:
    from lowrank import kernels

    backend = kernels.backend()
    return {
        "backend": backend.name,
        "instruction set": backend.instruction_set,
        "cores": kernels.available_cores(),
        **_blas(),
    }


def _blas() -> dict[str, str]:
    """Name the BLAS libraries that NumPy and SciPy have loaded."""
    import scipy.linalg  # noqa: F401  (loads SciPy's own BLAS)
    from threadpoolctl import threadpool_info

    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    names = [f"{pool['internal_api']} {pool['version']}" for pool in pools]
    return {"blas": ", ".join(dict.fromkeys(names)) or "unknown"}


def _settings(ctx: click.Context) -> dict[str, Any]:
    from recsys.cli import config

    path = Path(config.FILE_NAME)
    found: dict[str, Any] = {"file": str(path.resolve()) if path.is_file() else None}
    for verb, name, setting in config.everything(ctx):
        found[f"{verb} --{name}"] = f"{setting.value} ({setting.source})"
    for variable in config.unknown_variables(ctx):
        found[variable] = f"{os.environ[variable]} (sets no option)"
    return found


LIBRARIES = ("numpy", "scipy", "polars", "pandas", "scikit-learn", "implicit", "click", "rich")


EXTRAS = ("matplotlib", "optuna", "pyspark", "pyarrow")
"""Libraries that are not needed, but used where they are installed."""


def library_versions(names: Sequence[str] = LIBRARIES) -> dict[str, str]:
    """Return the installed version of each library, in the order of `names`."""
    return {name: _version(name) for name in names}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
