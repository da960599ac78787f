"""Find the broken links of a site: `python docs/links.py build/site`.

Each link, picture, script and style sheet of a page must lead to a file of the site, and each
anchor to an element with this id. Addresses of other sites are not opened.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from selectolax.lexbor import LexborHTMLParser

__all__ = ["broken"]


def broken(site: Path) -> Iterator[str]:
    """Yield a line for each broken link of the pages below a folder."""
    for page in sorted(site.rglob("*.html")):
        if page.name == "404.html":  # its links are those of the root of a server
            continue
        for link in _targets(page)[0]:
            if not _leads_somewhere(page, link):
                yield f"{page.relative_to(site)}: {link}"


def _leads_somewhere(page: Path, link: str) -> bool:
    address = urlsplit(link)
    if address.scheme or address.netloc:
        return True
    place = page
    if address.path:
        place = Path(os.path.normpath(page.parent / unquote(address.path)))
    if place.is_dir():
        place /= "index.html"
    if not place.is_file():
        return False
    if not address.fragment or place.suffix != ".html":
        return True
    return unquote(address.fragment) in _targets(place)[1]


@functools.cache
def _targets(page: Path) -> tuple[list[str], set[str]]:
    """Return where the links of a page lead, and its anchors."""
    tree = LexborHTMLParser(page.read_text(encoding="utf-8"))
    links = []
    for name in ("href", "src"):
        links += [node.attributes[name] or "" for node in tree.css(f"[{name}]")]
    anchors = {node.attributes["id"] or "" for node in tree.css("[id]")}
    return links, anchors


if __name__ == "__main__":
    lines = list(broken(Path(sys.argv[1])))
    print(*lines, sep="\n", file=sys.stderr)
    sys.exit(1 if lines else 0)
