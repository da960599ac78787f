"""Run the notebooks and keep their outputs in them: `python docs/notebooks.py [NAME...]`.

Outputs are texts, tables and small pictures, without execution counts, times and paths of this
machine, so that they are the same on every run. An output that differs only by a few pixels is
kept, so that a notebook changes in git only if its results do.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["paths", "read", "refresh", "run"]

ROOT = Path(__file__).resolve().parents[1]
STAMPS = ROOT / "build" / "notebooks"
COLOURS = (
    64  # number of colours of a picture: enough for a plot, at a third of the size
)
NEAR = 0.1  # maximum mean difference of pictures (of 255) that is invisible
_KINDS = ("image/png", "text/html", "text/plain")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def paths() -> list[Path]:
    """Return the paths of the notebooks, in their order."""
    return sorted((ROOT / "notebooks").glob("*.ipynb"))


def refresh(path: Path) -> bool:
    """Run a notebook if it, or the packages, changed since its last run; return whether it did."""
    digest = hashlib.sha256("".join(sources(read(path))).encode())
    for source in sorted([*ROOT.glob("lowrank/**/*.py"), *ROOT.glob("recsys/**/*.py")]):
        digest.update(source.read_bytes())
    stamp = STAMPS / f"{path.stem}-{digest.hexdigest()[:16]}"
    if stamp.exists():
        return False
    run(path)
    STAMPS.mkdir(parents=True, exist_ok=True)
    stamp.touch()
    return True


def run(path: Path) -> None:
    """Run a notebook from the top, and write its outputs into it."""
    import nbformat
    from nbclient import NotebookClient
    from traitlets.config import Config

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        # Use socket files, because a kernel on TCP ports warns of unencrypted messages.
        settings = Config(KernelManager={"transport": "ipc", "ip": f"{folder}/kernel"})
        place = {"metadata": {"path": folder}}
        NotebookClient(
            notebook, config=settings, timeout=300, resources=place
        ).execute()
    new = json.loads(nbformat.writes(notebook))
    for cell, before in zip(new["cells"], read(path)["cells"], strict=True):
        cell["metadata"] = {}
        if cell["cell_type"] == "code":
            cell["execution_count"] = None
            cell["outputs"] = without_noise(cell["outputs"])
            if alike(cell["outputs"], before["outputs"]):
                cell["outputs"] = before["outputs"]
    new["metadata"] = read(path)["metadata"]
    path.write_text(
        json.dumps(new, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )


def read(path: Path) -> dict[str, Any]:
    """Return the document of a notebook."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def sources(notebook: dict[str, Any]) -> list[str]:
    """Return the sources of the cells."""
    return ["".join(cell["source"]) for cell in notebook["cells"]]


def without_noise(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return outputs reduced to the kinds of data that are shown."""
    kept: list[dict[str, Any]] = []
    for output in outputs:
        if output["output_type"] == "stream":
            if kept and kept[-1].get("name") == output["name"]:
                kept[-1]["text"] += output["text"]
            else:
                kept.append({k: output[k] for k in ("name", "output_type", "text")})
            continue
        data = {kind: output["data"][kind] for kind in _KINDS if kind in output["data"]}
        if "image/png" in data:
            data = {"image/png": smaller("".join(data["image/png"]))}
        elif "text/plain" in data:
            data["text/plain"] = _ADDRESS.sub(
                "", "".join(data["text/plain"])
            ).splitlines(True)
        kind = output["output_type"]
        counted = {"execution_count": None} if kind == "execute_result" else {}
        kept.append({"data": data, **counted, "metadata": {}, "output_type": kind})
    return kept


def smaller(picture: str) -> str:
    """Return a PNG in base64 with fewer colours, and without the version of its program."""
    from PIL import Image

    with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
        few = {"method": Image.Quantize.MAXCOVERAGE, "dither": Image.Dither.NONE}
        flat = image.convert("RGB").quantize(COLOURS, **few)
    target = io.BytesIO()
    flat.save(target, format="png", optimize=True)
    return base64.b64encode(target.getvalue()).decode()


def alike(new: list[dict[str, Any]], old: list[dict[str, Any]]) -> bool:
    """Return whether outputs look the same to a reader."""

    def texts(outputs: list[dict[str, Any]]) -> list[Any]:
        return [
            {
                k: None if k == "image/png" else "".join(v)
                for k, v in output["data"].items()
            }
            if "data" in output
            else "".join(output["text"])
            for output in outputs
        ]

    def pictures(outputs: list[dict[str, Any]]) -> list[str]:
        found = (output.get("data", {}).get("image/png") for output in outputs)
        return ["".join(each) for each in found if each]

    return texts(new) == texts(old) and all(map(_near, pictures(new), pictures(old)))


def _near(new: str, old: str) -> bool:
    from PIL import Image, ImageChops, ImageStat

    first, second = (
        Image.open(io.BytesIO(base64.b64decode(each))) for each in (new, old)
    )
    if first.size != second.size:
        return False
    difference = ImageChops.difference(first.convert("RGB"), second.convert("RGB"))
    return bool(max(ImageStat.Stat(difference).mean) < NEAR)


if __name__ == "__main__":
    chosen = [path for path in paths() if not sys.argv[1:] or path.stem in sys.argv[1:]]
    for path in chosen:
        run(path)
        print(f"{path.stem}: {path.stat().st_size / 1000:.0f} kB")
