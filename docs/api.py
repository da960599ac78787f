"""The reference of a package as plain Markdown, from its docstrings."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import griffe

__all__ = ["REFERENCE", "page"]

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = {
    "lowrank": ("lowrank", "lowrank.plotting", "lowrank.spark"),
    "recsys": ("recsys", "recsys.evaluation", "recsys.lsi", "recsys.spark"),
}
WIDTH = 88  # of a signature on one line
# Names that most programs use first; then come functions and classes, constants, and errors.
_FIRST = (
    *("Recommender", "read_ratings", "Ratings", "evaluate", "tune", "LSI"),
    *("truncated_svd", "SVD", "PCA", "complete"),
)
_TITLES = {"other parameters": "Other parameters", "see-also": "See also"}


def page(package: str) -> str:
    """Return a page with all public names of some modules, which are in their `__all__`."""
    loader = griffe.GriffeLoader(search_paths=[ROOT], docstring_parser="numpy")
    loader.load(package)
    loader.resolve_aliases()
    lines = [f"# {package}\n"]
    seen: set[int] = set()
    for name in REFERENCE[package]:
        module = importlib.import_module(name)
        summary = (module.__doc__ or "").splitlines()[0]
        lines.append(f"## {name}\n\n{summary}\n")
        for public in sorted(module.__all__, key=partial(_place, module)):
            value = getattr(module, public)
            if not callable(value):
                lines.append(f"### `{public}`\n\n{_constant(value)}\n")
            elif id(value) not in seen:
                path = f"{value.__module__}.{value.__qualname__}"
                lines.extend(_entry(loader.modules_collection[path], 3))
            seen.add(id(value))
    return "\n".join(lines) + "\n"


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
    lines = ["| key | value |", "| --- | --- |"]
    for key, entry in value.items():
        lines.append(f"| `{key}` | {getattr(entry, '__name__', entry)} |")
    return "\n".join(lines)


def _entry(entry: griffe.Object | griffe.Alias, level: int) -> Iterator[str]:
    """Yield the paragraphs of a function, a property, or a class with its members."""
    yield f"{'#' * level} `{entry.name}`\n"
    if entry.is_function or entry.is_class:
        yield f"```python\n{_signature(entry)}\n```\n"
    if entry.docstring is not None:
        for part in entry.docstring.parsed:
            yield from _section(part)
    if not entry.is_class:
        return
    described = entry.docstring.value if entry.docstring is not None else ""
    for name, member in _members(entry):
        if member.docstring is None:
            continue
        is_method = member.is_function or "property" in member.labels
        is_listed = re.search(rf"^\s*{name}\b.* :", described, re.M)
        if is_method or not is_listed:
            yield from _entry(member, level + 1)


def _members(entry: Any) -> Iterable[tuple[str, Any]]:
    """Return public members in the order of the source, inherited ones last."""
    for name, member in entry.members.items():
        if not name.startswith("_"):
            yield name, member
    for name, member in entry.inherited_members.items():
        if not name.startswith("_"):
            yield name, member


def _signature(entry: Any) -> str:
    """Return the name with its parameters, one on a line where they are many."""
    kind = griffe.ParameterKind
    parameters = []
    has_star = False
    for parameter in entry.parameters:
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is kind.keyword_only and not has_star:
            parameters.append("*")
            has_star = True
        if parameter.kind is kind.var_positional:
            parameters.append(f"*{parameter.name}")
            has_star = True
        elif parameter.kind is kind.var_keyword:
            parameters.append(f"**{parameter.name}")
        elif parameter.default is None:
            parameters.append(parameter.name)
        else:
            parameters.append(f"{parameter.name}={parameter.default}")
    line = f"{entry.name}({', '.join(parameters)})"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{entry.name}(", *(f"    {text}," for text in parameters), ")"])


def _section(part: Any) -> Iterator[str]:
    """Yield a section of a docstring."""
    kind = part.kind.value
    if kind == "text":
        yield f"{part.value}\n"
    elif kind == "examples":
        yield "**Examples**\n"
        for form, text in part.value:
            is_code = form is griffe.DocstringSectionKind.examples
            yield f"```pycon\n{text}\n```\n" if is_code else f"{text}\n"
    elif kind == "admonition":
        yield f"**{_title(part.value.kind)}**\n\n{part.value.contents}\n"
    else:
        items = "\n".join(_item(item) for item in part.value)
        yield f"**{_title(kind)}**\n\n{items}\n"


def _title(kind: str) -> str:
    return _TITLES.get(kind, kind.capitalize())


def _item(item: Any) -> str:
    """Return a parameter, attribute, result or error as an item of a list."""
    names = []
    if getattr(item, "name", ""):
        names.append(f"**`{item.name}`**")
    if item.annotation is not None:
        names.append(f"*{_escaped(str(item.annotation))}*")
    default = getattr(item, "value", None)
    if default is not None:
        names.append(f"default `{default}`")
    description = item.description.strip().replace("\n", "\n    ")
    return f"- {', '.join(names)}: {description}"


def _escaped(text: str) -> str:
    """Return text in which Markdown finds nothing to format."""
    return re.sub(r"([*_|\\`<\[\]])", r"\\\1", text)
