"""Markup in texts: tags and entities of HTML, which are not words.

A text keeps whatever is not HTML: "a < b", "AT&T" and "x<y>" stay as they are, because a tag begins
with the name of an element, and an entity has a known name and a semicolon.
"""

from __future__ import annotations

import re
from html import unescape
from html.entities import html5

# Elements within a word or a line; at the others, words end.
_INLINE = "b bdi bdo big em font i ins mark nobr q s small span strike strong sub sup tt u var wbr"
_BLOCKS = (
    "a abbr acronym address area article aside audio base blockquote body br button canvas caption "
    "center cite code col colgroup data dd del details dfn dialog div dl dt embed fieldset "
    "figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hr html iframe img "
    "input kbd label legend li link main map menu meta nav noscript object ol optgroup option "
    "output p param picture pre progress samp section select source summary svg table tbody td "
    "template textarea tfoot th thead time title tr track ul video"
)
_NAMES = "|".join(f"{_INLINE} {_BLOCKS}".split())
# Without an end, a comment or script goes to the end of the text, as in a browser.
_SILENT = re.compile(
    r"<!--.*?(?:-->|\Z)|<!doctype[^<>]*>|<(script|style)\b[^<>]*>.*?(?:</\1\s*>|\Z)",
    re.IGNORECASE | re.DOTALL,
)
_VALUE = r"""\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'<>=]+)"""
_ATTRIBUTES = rf"(?:\s+[a-z_:@*#][\w:.-]*(?:{_VALUE})?)*"
_TAG = re.compile(rf"</?({_NAMES}|script|style){_ATTRIBUTES}\s*/?>", re.IGNORECASE)
_ENTITY = re.compile(
    r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|([A-Za-z][A-Za-z0-9]{1,31}));"
)
_SPACES = str.maketrans({"\xa0": " ", "\xad": None})  # &nbsp; and &shy;
_INLINE_NAMES = frozenset(_INLINE.split())


def plain_text(text: str) -> str:
    """Return a text without the tags and entities of HTML, or unchanged if it has none.

    Examples
    --------
    >>> plain_text("<p>Kessel<br/>Gr&ouml;&szlig;e: 2&nbsp;l</p>").split()
    ['Kessel', 'Größe:', '2', 'l']
    >>> plain_text("AT&T: a < b > c, x<y>")
    'AT&T: a < b > c, x<y>'
    """
    if "<" not in text and "&" not in text:
        return text
    plain = _without_tags(text)
    decoded = _ENTITY.sub(_character, plain)
    if decoded == text:
        return text
    if plain == text:  # escaped as a whole: &lt;p&gt;
        decoded = _without_tags(decoded)
    return decoded.translate(_SPACES)


def _without_tags(text: str) -> str:
    """Return a text without tags, comments, scripts and styles."""
    return _TAG.sub(_gap, _SILENT.sub(" ", text)) if "<" in text else text


def _gap(tag: re.Match[str]) -> str:
    """Return what a tag leaves between two letters."""
    return "" if tag[1].lower() in _INLINE_NAMES else " "


def _character(entity: re.Match[str]) -> str:
    """Return the character of an entity; unknown names stay."""
    is_known = entity[1] is None or f"{entity[1]};" in html5
    return unescape(entity[0]) if is_known else entity[0]
