"""The project speaks the field's language: words that DESIGN replaced do not come back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACES = (
    "lowrank/**/*",
    "recsys/**/*",
    "docs/**/*",
    "notebooks/*",
    "benchmarks/*",
    "data/*",
    "*",
)
KINDS = {".py", ".pyi", ".cpp", ".hpp", ".md", ".ipynb", ".toml", ".j2", ".html"}
FILES = sorted(
    {path for place in PLACES for path in ROOT.glob(place) if path.suffix in KINDS}
    - {ROOT / "CHANGELOG.md"}
)

# What is not said, and what is said instead.
WORDS = {
    r"contacts?": "interaction",
    r"likeness(es)?": "similarity",
    r"(take|takes|taken|took|taking) \w* ?apart": "explain",
    r"parted|(to|that|which|must|can) part (it|the|a|them)": "split",
    r"(give|gives|given|giving|gave) up": "pruned",
    r"refus(e|es|ed|ing|al)": "raise, reject",
    r"mend(s|ed|ing)?": "fix",
    r"beside": "next to",
    r"lies in": "is in",
    r"asked": "requested",
    r"(?<!there )(is|are|was|were) no (?!\w+er\b|more|less|worse|need)": "is not a",
    r"that there (is|are) not": "missing",
    r"belongs? into": "belongs in",
    r"it is said|and said|and says so|and is said": "reported",
    r"numbers? that (is|are) none": "not finite",
}
_GROUPS = "|".join(rf"(?P<w{place}>{word})" for place, word in enumerate(WORDS))
PATTERN = re.compile(rf"\b(?:{_GROUPS})\b", re.IGNORECASE)
OPENING = re.compile(r'"""(What|Whether|That|Who|Whose|How much|How many) ')


def prose(path: Path) -> str:
    """Return the text of a file; of a notebook, the sources of its cells."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])


def findings(text: str) -> Iterator[str]:
    """Yield the place of each word of the list, and what to say instead."""
    for number, line in enumerate(text.splitlines(), start=1):
        for match in PATTERN.finditer(line):
            instead = list(WORDS.values())[int(match.lastgroup[1:])]
            yield f"{number}: {match[0]!r}; better: {instead}: {line.strip()}"
        if OPENING.search(line):
            yield f"{number}: begin with a noun or an imperative: {line.strip()}"


def test_uses_the_words_of_the_field():
    found = [
        f"{path.relative_to(ROOT)}:{each}"
        for path in FILES
        for each in findings(prose(path))
    ]
    assert not found, f"{len(found)} places:\n" + "\n".join(found)


def test_a_word_of_the_list_is_found():
    assert list(findings("One contact")) == [
        "1: 'contact'; better: interaction: One contact"
    ]
    assert not list(findings("There is no such file, and no longer a model."))
