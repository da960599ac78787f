"""Hooks of MkDocs: run and show notebooks, list public names, insert results and formulas."""

from __future__ import annotations

import base64
import html
import importlib
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import notebooks  # noqa: E402

RESULTS = ROOT / "benchmarks" / "RESULTS.md"
REFERENCE = {
    "lowrank": ("lowrank", "lowrank.plotting", "lowrank.spark"),
    "recsys": ("recsys", "recsys.evaluation", "recsys.lsi", "recsys.spark"),
}
_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>',
    re.DOTALL,
)
# A line that is replaced by the section of RESULTS.md with this heading.
_SECTION = re.compile(
    r"^\[Results: (?P<heading>[^\]]+)\]\([./]*benchmarks/RESULTS\.md\)$", re.M
)


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each notebook, for each package, and for the results."""
    made: dict[str, bytes | str] = {"results.md": _results_page()}
    for picture in (ROOT / "benchmarks").glob("*.png"):
        made[picture.name] = picture.read_bytes()
    paths = notebooks.paths()
    for number, path in enumerate(paths, start=1):
        print(
            f"notebook {number}/{len(paths)}: {path.stem}", file=sys.stderr, flush=True
        )
        made |= {
            f"notebooks/{name}": content
            for name, content in _notebook_files(path).items()
        }
    for package, modules in REFERENCE.items():
        print(f"reference of {package}", file=sys.stderr, flush=True)
        made[f"reference/{package}.md"] = _reference_page(package, modules)
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Insert sections of the results in place of the lines that name them."""
    return _SECTION.sub(lambda match: section(match["heading"]), markdown)


def on_page_content(html_text: str, **_: Any) -> str:
    """Turn formulas into MathML, which browsers show without a script."""
    return _FORMULA.sub(_mathml, html_text)


def section(heading: str) -> str:
    """Return the text of RESULTS.md below a heading.

    Raises
    ------
    KeyError
        If there is no such heading.
    """
    parts = re.split(
        r"^## (.*)\n", RESULTS.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    return dict(zip(parts[1::2], parts[2::2], strict=True))[heading].strip()


def _results_page() -> str:
    """Return RESULTS.md, with links to other files of the repository as plain text."""
    text = RESULTS.read_text(encoding="utf-8")
    return re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)[^)]*\)", r"\1", text)


def _mathml(match: re.Match[str]) -> str:
    display = "block" if match["tag"] == "div" else "inline"
    return convert(html.unescape(match["latex"]).strip(), display=display)


def _reference_page(package: str, modules: tuple[str, ...]) -> str:
    """Return a page with all public names of some modules, which are in their `__all__`."""
    lines = [f"# {package}\n"]
    seen: set[int] = set()
    for name in modules:
        module = importlib.import_module(name)
        lines.append(f"## {name}\n\n{(module.__doc__ or '').splitlines()[0]}\n")
        for public in sorted(module.__all__, key=partial(_place, module)):
            value = getattr(module, public)
            if not callable(value):
                lines.append(f"### `{public}`\n\n{_constant(value)}\n")
            elif id(value) not in seen:
                lines.append(f"::: {value.__module__}.{value.__qualname__}\n")
            seen.add(id(value))
    return "\n".join(lines)


# Names that most programs use first; then come functions and classes, constants, and errors.
_FIRST = (
    *("Recommender", "read_ratings", "Ratings", "evaluate", "tune", "LSI"),
    *("truncated_svd", "SVD", "PCA", "complete"),
)


def _place(module: ModuleType, name: str) -> tuple[int, int, str]:
    """Return the sort key of a public name on the page of its module."""
    value = getattr(module, name)
    if name in _FIRST:
        return 0, _FIRST.index(name), name
    if not callable(value):
        return 2, 0, name.lower()
    is_error = isinstance(value, type) and issubclass(value, Exception)
    return 3 if is_error else 1, 0, name.lower()


def _constant(value: Any) -> str:
    """Describe a public value that is neither a class nor a function."""
    if not isinstance(value, dict):
        return f"`{value!r}`"
    rows = [
        f"| `{key}` | {getattr(each, '__name__', each)} |"
        for key, each in value.items()
    ]
    return "\n".join(["| key | value |", "| --- | --- |", *rows])


def _notebook_files(path: Path) -> dict[str, bytes | str]:
    """Return the page and the pictures of a notebook; run it again if it or a package changed."""
    notebooks.refresh(path)
    pictures: dict[str, bytes | str] = {}
    parts = [
        part for cell in notebooks.read(path)["cells"]
        for part in _cell_parts(cell, path.stem, pictures)
    ]  # fmt: skip
    return {f"{path.stem}.md": "\n\n".join(parts) + "\n", **pictures}


def _cell_parts(
    cell: dict[str, Any], stem: str, pictures: dict[str, bytes | str]
) -> Iterator[str]:
    """Yield the Markdown of a cell; its pictures go into `pictures`."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    shown = "\n".join(line for line in source.splitlines() if not line.startswith("%"))
    yield f"```python\n{shown.strip()}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/png" in data:
            name = f"{stem}-{len(pictures) + 1}.png"
            pictures[name] = base64.b64decode("".join(data["image/png"]))
            yield f"![what the code above draws]({name})"
        else:
            text = "".join(output.get("text") or data.get("text/plain", ""))
            block = f"```text\n{text.rstrip()}\n```"
            yield f'<div class="notebook-output" markdown>\n\n{block}\n\n</div>'
