"""Write all pages of the site as plain Markdown: `python docs/pages.py` fills build/pages.

Any generator of Markdown sites can build them. Notebooks, the reference of each package and the
results become pages, lines that name a section of the results become that section, formulas become
MathML, which browsers show without a script, and links to files that are not on the site become
text.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import api  # noqa: E402
from latex2mathml.converter import convert  # noqa: E402

import notebooks  # noqa: E402

__all__ = ["PAGES", "markdown", "section", "write"]

DOCS = ROOT / "docs"
PAGES = ROOT / "build" / "pages"
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
_COPIED = (".png", ".svg", ".css")
_BLOCK = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(`[^`\n]+`)")
_DISPLAY = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)
_INLINE = re.compile(r"(?<![\\$])\$(?!\s)((?:\\.|[^\\$])+?)(?<!\s)\$")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#]*)(#[^)]*)?\)")
# A line that is replaced by the section of RESULTS.md with this heading.
_SECTION = re.compile(
    r"^\[Results: (?P<heading>[^\]]+)\]\([./]*benchmarks/RESULTS\.md\)$", re.M
)


def write(folder: Path = PAGES) -> None:
    """Write each page and picture of the site below a folder, which is emptied."""
    shutil.rmtree(folder, ignore_errors=True)
    texts = {
        path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8")
        for path in DOCS.rglob("*.md")
    }
    pictures = {
        path.relative_to(DOCS).as_posix(): path.read_bytes()
        for path in DOCS.iterdir()
        if path.suffix in _COPIED
    }
    texts["results.md"] = RESULTS.read_text(encoding="utf-8")
    for path in RESULTS.parent.glob("*.png"):
        pictures[path.name] = path.read_bytes()
    for path in notebooks.paths():
        print(f"notebook {path.stem}", file=sys.stderr, flush=True)
        notebooks.refresh(path)
        text, drawn = _notebook(path)
        texts[f"notebooks/{path.stem}.md"] = text
        pictures |= drawn
    for package in api.REFERENCE:
        print(f"reference of {package}", file=sys.stderr, flush=True)
        texts[f"reference/{package}.md"] = api.page(package)
    names = {*texts, *pictures}
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name in pictures:
            path.write_bytes(pictures[name])
        else:
            path.write_text(markdown(name, texts[name], names), encoding="utf-8")


def markdown(name: str, text: str, names: set[str]) -> str:
    """Return a page as plain Markdown, given the names of all files of the site."""
    text = _SECTION.sub(lambda match: section(match["heading"]), text)
    pieces = _BLOCK.split(text)  # every second piece is a block of code
    for number in range(0, len(pieces), 2):
        prose = _LINK.sub(lambda match: _link(match, name, names), pieces[number])
        pieces[number] = _with_formulas(prose)
    return "".join(pieces)


def _with_formulas(text: str) -> str:
    """Return Markdown with MathML in place of formulas, but for those in code."""
    pieces = _CODE.split(text)
    for number in range(0, len(pieces), 2):
        piece = _DISPLAY.sub(lambda match: _mathml(match[1], "block"), pieces[number])
        pieces[number] = _INLINE.sub(lambda match: _mathml(match[1], "inline"), piece)
    return "".join(pieces)


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


def _link(match: re.Match[str], page: str, names: set[str]) -> str:
    """Return a link on the site; the text alone where it leads to a file of the repository."""
    label, target, anchor = match[1], match[2], match[3] or ""
    folder = Path(page).parent
    if target.endswith("benchmarks/RESULTS.md"):
        return f"[{label}]({os.path.relpath('results.md', folder)}{anchor})"
    source = RESULTS.parent if page == "results.md" else DOCS / folder
    is_elsewhere = os.path.normpath(folder / target) not in names
    if is_elsewhere and (source / target).exists():
        return label
    return match[0]


def _mathml(latex: str, display: str) -> str:
    """Return a formula as HTML in which Markdown finds nothing to format."""
    formula = convert(" ".join(latex.split()), display=display)
    for character in r"*_|\`":
        formula = formula.replace(character, f"&#{ord(character)};")
    tag = "div" if display == "block" else "span"
    return f'<{tag} class="formula">{formula}</{tag}>'


def _notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return the page of a notebook, and its pictures by name."""
    pictures: dict[str, bytes] = {}
    parts: list[str] = []
    for cell in notebooks.read(path)["cells"]:
        parts.extend(_cell_parts(cell, path.stem, pictures))
    return "\n\n".join(parts) + "\n", pictures


def _cell_parts(
    cell: dict[str, Any], stem: str, pictures: dict[str, bytes]
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
            pictures[f"notebooks/{name}"] = base64.b64decode("".join(data["image/png"]))
            yield f"![drawn by the code above]({name})"
        else:
            text = "".join(output.get("text") or data.get("text/plain", ""))
            yield f"```text\n{text.rstrip()}\n```"


if __name__ == "__main__":
    write()
