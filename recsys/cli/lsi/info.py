"""`recsys lsi info`: what is known of a saved index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from recsys.cli.options import command, output_options
from recsys.cli.output import Output

__all__ = ["info"]


@command("info", examples=["recsys lsi info index", "recsys lsi info index --json"])
@click.argument("index", type=click.Path())
@output_options
def info(index: str, output: Output) -> None:
    """Show what an index holds.

    Its size, its parameters, how many documents, words and dimensions it has, and how far its
    documents have moved from orthogonality by folding in.
    """
    from recsys.cli.facts import write_facts

    write_facts(_facts(index), output)


def _facts(path: str) -> dict[str, dict[str, Any]]:
    from recsys.cli.inputs import require_path
    from recsys.lsi.storing import INDEX
    from recsys.manifest import read_manifest

    require_path(path)
    manifest = read_manifest(path, INDEX)
    size = sum(entry.bytes for entry in manifest.files.values())
    return {
        "index": {
            "path": str(Path(path).resolve()),
            "megabytes": size / 1e6,
            "written by recsys": manifest.package_version,
        },
        "parameters": manifest.parameters,
        "training": manifest.training,
        "versions": manifest.versions,
    }
