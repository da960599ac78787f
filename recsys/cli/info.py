"""`recsys info`, `models` and `completion`: facts about the installation and models."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recsys.cli import group
from recsys.cli.options import PLACE, command, output_options, own_class
from recsys.cli.output import Output, write_facts
from recsys.models.registry import MODELS

if TYPE_CHECKING:
    from recsys.models.parameters import Parameter
    from recsys.saving.model_file import Manifest
    from recsys.spark.results import SparkModel

# Results may depend on their versions.
LIBRARIES = (
    "numpy",
    "scipy",
    "polars",
    "pandas",
    "scikit-learn",
    "implicit",
    "optuna",
    "click",
    "rich",
)
EXTRAS = ("matplotlib", "jinja2", "fastapi", "uvicorn", "pyspark", "pyarrow")
"""Optional libraries."""


@command("info", examples=["recsys info", "recsys info model --json"])
@click.argument("model", required=False, type=PLACE)
@output_options
@click.pass_context
def info(
    ctx: click.Context,
    model: str | None,
    output: Output,
) -> None:
    """Show versions and settings, or a saved model.

    Without MODEL, the output has versions, hardware, the kernels in use, and every option that is
    set outside the command line, with its source. Include all of it in bug reports.
    """
    if model is None:
        write_facts(_of_installation(ctx), output)
        return
    from recsys.saving.model_file import SPARK_FORMAT, format_of, read_manifest

    # Results of Spark have a manifest of their own.
    if format_of(Path(model)) == SPARK_FORMAT:
        from recsys.spark.results import read_result

        write_facts(manifest_facts(model, read_result(model)), output)
    else:
        write_facts(manifest_facts(model, read_manifest(model)), output)


def manifest_facts(
    path: str,
    manifest: Manifest | SparkModel,
    kind: str = "model",
) -> dict[str, dict[str, Any]]:
    """Return the contents of the manifest of a saved model or index, by section."""
    # Indexes and results of Spark lack some of these fields.
    columns: dict[str, Any] = dict(getattr(manifest, "columns", {}))
    period = getattr(manifest, "period", None)
    reading = dict(getattr(manifest, "reading", {}))
    origin = {
        "as of": reading.pop("as_of", None),
        "version": getattr(manifest, "version", None),
        "period": None if period is None else " to ".join(period),
        "parent": getattr(manifest, "parent", None),
        "tag": getattr(manifest, "tag", None),
        "remembered for updates": ", ".join(
            f"{name} = {value}" for name, value in reading.items()
        ),
    }
    return {
        kind: {
            "path": str(Path(path).resolve()),
            **({"model": manifest.model} if kind == "model" else {}),
            "megabytes": manifest.size / 1e6,
            "created": getattr(manifest, "created", None),
            "source": getattr(manifest, "source", None),
            **{name: value for name, value in origin.items() if value},
            "written by recsys": manifest.package_version,
        },
        "parameters": manifest.parameters,
        "training": as_interactions(manifest.training),
        **{  # kinds of the columns of stored tables
            name.replace("_", " "): {
                entry.name: entry.kind for entry in columns[name][1:]
            }
            for name in ("item_table", "user_table")
            if name in columns
        },
        **{
            f"{side} features": {entry.column: entry.contents for entry in entries}
            for side, entries in getattr(manifest, "features", {}).items()
        },
        "versions": manifest.versions,
    }


def as_interactions(training: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts of a fit, with the name of implicit data for their number of ratings."""
    name = "interactions" if training.get("implicit") else "ratings"
    return {name if key == "ratings" else key: training[key] for key in training}


def _of_installation(ctx: click.Context) -> dict[str, dict[str, Any]]:
    import scipy.linalg  # noqa: F401  (loads SciPy's own BLAS)
    from threadpoolctl import threadpool_info

    import recsys
    from lowrank import kernels
    from lowrank.kernels import backends

    # None where the system does not tell.
    memory = backends.physical_memory()
    backend = kernels.backend()
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    # NumPy and SciPy may have one each.
    blas = dict.fromkeys(f"{pool['internal_api']} {pool['version']}" for pool in pools)
    file = Path(group.FILE_NAME)
    return {
        "recsys": {
            "version": recsys.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "installed in": str(Path(recsys.__file__).parent),
            "memory, GB": None if memory is None else memory / 1e9,
        },
        "libraries": library_versions(),
        "extras": library_versions(EXTRAS),
        "kernels": {
            "backend": backend.name,
            "instruction set": backend.instruction_set,
            "cores": kernels.available_cores(),
            "blas": ", ".join(blas) or "unknown",
        },
        "settings": {
            "file": str(file.resolve()) if file.is_file() else None,
            **group.settings(ctx),
        },
    }


def library_versions(names: Sequence[str] = LIBRARIES) -> dict[str, str]:
    """Return the installed version of each library, in the order of `names`."""
    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


@command(
    "completion",
    examples=[
        'eval "$(recsys completion bash)"',
        "recsys completion bash > ~/.local/share/bash-completion/completions/recsys",
        "recsys completion zsh > ~/.zfunc/_recsys",
        "recsys completion fish > ~/.config/fish/completions/recsys.fish",
    ],
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a shell completion script.

    It completes verbs, options, and the names of models and parameters (-p). The first example
    enables it in the current shell. zsh needs `fpath+=~/.zfunc; autoload -Uz compinit && compinit`
    in ~/.zshrc.
    """
    from click.shell_completion import get_completion_class

    from recsys.cli.main import COMPLETION_VARIABLE, cli

    kind = get_completion_class(shell)
    assert kind is not None  # Click supports these shells
    script = kind(cli, {}, "recsys", COMPLETION_VARIABLE)
    # Click's own `source()` starts a bash to check its version; the script needs bash 4.4.
    click.echo((script.source_template % script.source_vars()).strip())


@command(
    "models",
    examples=["recsys models", "recsys models als", "recsys models als --json"],
)
@click.argument(
    "name",
    required=False,
    type=PLACE,
    shell_complete=lambda ctx, param, text: [
        entry for entry in MODELS if entry.startswith(text)
    ],
)
@output_options
def models(name: str | None, output: Output) -> None:
    """List models, or the parameters of a model.

    Without NAME, list every model and its use. With NAME, list its parameters with their defaults,
    valid values, and the range that `recsys tune` searches. `--factors`, `--regularization` and
    `--iterations` are options of `recsys fit`; other parameters are set by -p NAME=VALUE.
    """
    import polars as pl

    from recsys.models.registry import model_class, parameters

    # A model's class is imported for its summary.
    if name is None:
        rows = [{"model": entry, "use": model_class(entry).summary} for entry in MODELS]
        frame = pl.DataFrame(rows)
        output.write_document({"command": "models", "models": rows}, frame)
        return
    if "::" in name:
        name = own_class(name).name
    # The fields of the dataclass of a model are its parameters.
    declared, summary = parameters(name), model_class(name).summary
    described = [
        {field: getattr(entry, field) for field in entry.__dataclass_fields__}
        | {"type": entry.type.__name__, "choices": list(entry.choices)}
        for entry in declared
    ]
    rows = [
        {
            "parameter": entry.name,
            "default": word(entry.default),
            "values": _values(entry),
            "tuned": ""
            if entry.low is None or entry.high is None
            else f"{entry.low:g}:{entry.high:g}{':log' if entry.log else ''}",
            "description": entry.description,
        }
        for entry in declared
    ]
    columns = ("parameter", "default", "values", "tuned", "description")
    frame = pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String))
    document = {
        "command": "models",
        "model": name,
        "use": summary,
        "parameters": described,
    }
    output.write_document(document, frame, remark=f"{name}: {summary}")


def word(value: Any) -> str:
    """Return the value of a parameter in the syntax of `-p`."""
    if value is None:
        return "auto"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _values(parameter: Parameter) -> str:
    """Return a short description of the valid values of a parameter."""
    if parameter.choices:
        return "|".join(parameter.choices)
    if parameter.type is bool:
        return "true|false"
    # A parameter without a minimum must be positive.
    bound = "> 0" if parameter.minimum is None else f">= {parameter.minimum:g}"
    if parameter.below < math.inf:
        bound += f", < {parameter.below:g}"
    return (
        f"{parameter.type.__name__} {bound}"
        if parameter.type in (int, float)
        else "text"
    )
