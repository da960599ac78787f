"""`recsys versions`: saved models side by side, what was measured of them, and the latest link."""

from __future__ import annotations

import click

from recsys.cli import options as cli
from recsys.cli.group import Group
from recsys.cli.output import Output
from recsys.cli.progress import note

_SHOWN = ("version", "model", "created", "ratings")
_METRICS = ("rmse", "ndcg")  # in a table of a terminal
_MARK = "*"


@click.group(
    "versions",
    cls=Group,
    examples=["recsys versions list models", "recsys versions promote models/2025-06-09"],
)
@cli.common_options
def versions() -> None:
    """List saved models, and choose the one that is served."""


@cli.command("list", examples=["recsys versions list models", "recsys versions list models --json"])
@click.argument("directory")
@cli.output_options
def list_(directory: str, output: Output) -> None:
    """List the saved models in a directory, the oldest first.

    For each, its name, whether `latest` points to it, when it was made and from how many ratings,
    its --tag, and what `recsys evaluate MODEL --test FILE` has measured last. JSON and CSV also
    have the id, the parent that it is an update of, the fingerprint of its ratings, and all
    metrics.
    """
    import polars as pl

    from recsys.versions import list_versions

    found = list_versions(directory)
    rows = found.to_dicts()
    kinds = {name: name.partition("@")[0] for name in found.columns}
    shown = [*_SHOWN, *(name for name in found.columns if kinds[name] in _METRICS)]
    shown += [name for name in ("tag",) if found[name].count()]
    table = found.select(shown).with_columns(
        pl.Series("version", [row["version"] + f" {_MARK}" * row["latest"] for row in rows]),
        pl.Series("created", [str(row["created"])[:16].replace("T", " ") for row in rows]),
    )
    legend = f"{_MARK} latest" if found["latest"].any() else ""
    output.write_document({"versions": rows}, found, table, legend)


@cli.command(
    "promote",
    examples=["recsys versions promote models/2025-06-09", "recsys serve models/latest"],
)
@click.argument("version")
def promote(version: str) -> None:
    """Let the link `latest` next to a saved model point to it.

    The model is verified first, and the link moves from one moment to the next, so that who reads
    or serves DIR/latest sees one model or the other. To go back, promote the version before. Where
    symbolic links are not allowed, as for most users of Windows, `latest` is a file with the name
    of the version, which every command follows.
    """
    from recsys.cli.inputs import require_path
    from recsys.versions import promote

    require_path(version, "model")
    before, now = promote(version)
    was = f" (it was {before})" if before not in (None, now) else ""
    note(f"latest is {now}{was}")


versions.add_command(list_)
versions.add_command(promote)
