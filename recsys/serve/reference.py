"""The page /docs: the OpenAPI document as HTML, without scripts from anywhere else."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from recsys.serve.problems import KINDS

Json = dict[str, Any]

_PLAIN: Json = {"integer": 1, "number": 0.5, "boolean": False, "string": "text", "object": {}}


def reference_page(document: Json) -> str:
    """Return the page of an OpenAPI document."""
    routes = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    by_tag: dict[str, list[tuple[str, str, Json]]] = {}
    for route in routes:
        by_tag.setdefault(route[2].get("tags", ["other"])[0], []).append(route)
    schemas = document["components"]["schemas"]
    sections = "".join(
        f"<h2>{escape(tag.capitalize())}</h2>{''.join(_route(*each, schemas) for each in found)}"
        for tag, found in by_tag.items()
    )
    links = "".join(
        f'<li><a href="#{_anchor(method, path)}"><code>{method} {escape(path)}</code></a></li>'
        for method, path, _ in routes
    )
    problems = "".join(
        f'<tr id="{name}"><td><code>/docs#{name}</code><td>{kind.status}<td>{escape(kind.meaning)}'
        for name, kind in KINDS.items()
    )
    title = f"{escape(document['info']['title'])} {escape(document['info']['version'])}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title}: HTTP API</title><link rel="icon" href="data:,">'
        '<link rel="stylesheet" href="page/reference.css">'
        '<script defer src="page/reference.js"></script></head><body>'
        f"<h1>{title}: HTTP API</h1><p>{escape(document['info']['description'])} "
        'For programs: <a href="openapi.json">openapi.json</a>. '
        f'<a href="./">Explore the model</a>.</p><nav><ul>{links}</ul></nav>{sections}'
        "<h2>Problems</h2><p>An error is a document of the type <code>application/problem+json"
        "</code> (RFC 9457). Its <code>detail</code> is a sentence to show, its <code>type</code> "
        "is for programs:</p>"
        f"<table><tr><th>type<th>status<th>meaning{problems}</table></body></html>"
    )


def _anchor(method: str, path: str) -> str:
    return escape(f"{method}{path}".replace("/", "-").replace("{", "").replace("}", "").lower())


def _route(method: str, path: str, operation: Json, schemas: Json) -> str:
    """Return the description of one route, with its example as a form to send."""
    target = path.removeprefix("/")
    parameters = operation.get("parameters", [])
    for each in parameters:
        shown = example(each["schema"] | {k: each[k] for k in ("examples",) if k in each}, schemas)
        target = target.replace(f"{{{each['name']}}}", str(shown))
        if each["in"] == "query" and each.get("required"):
            target += f"?{each['name']}={shown}"
    rows = "".join(
        f"<tr><td><code>{escape(each['name'])}</code><td>{escape(_kind(each['schema']))}"
        f"<td>{escape(each.get('description', ''))}"
        for each in parameters
    )
    table = f"<table><tr><th>parameter<th>type<th>meaning{rows}</table>" if rows else ""
    body = ""
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        text = json.dumps(example(schema, schemas), indent=1)
        body = f'<textarea name="body" rows="8" aria-label="Body">{escape(text)}</textarea>'
    paragraphs = escape(operation.get("description", "")).replace("\n\n", "</p><p>")
    return (
        f'<section><h3 id="{_anchor(method, path)}"><b>{method}</b>{escape(path)}</h3>'
        f"<p>{paragraphs}</p>{table}<form><input type='hidden' name='method' value='{method}'>"
        f'<p><input name="target" aria-label="Address" value="{escape(target)}"> '
        f"<button>Send</button></p>{body}<pre hidden></pre></form>"
        f"{_answer(operation, schemas)}</section>"
    )


def _answer(operation: Json, schemas: Json) -> str:
    """Return the example of an answer, folded."""
    for status in ("200", "201"):
        content = operation["responses"].get(status, {}).get("content", {})
        schema = content.get("application/json", {}).get("schema")
        if schema:
            text = json.dumps(example(schema, schemas), indent=1, ensure_ascii=False)
            return f"<details><summary>Answer</summary><pre>{escape(text)}</pre></details>"
    return ""


def _kind(schema: Json) -> str:
    """Return the type of a parameter in words."""
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"] if each.get("type") != "null")
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"{_kind(schema['items'])}, repeatable"
    default = schema.get("default")
    usual = "" if default in (None, "") else f", by default {default}"
    return f"{schema.get('type', 'any')}{usual}"


def example(schema: Json, schemas: Json) -> Any:
    """Return an example of what a schema describes.

    Examples
    --------
    >>> pair = {"properties": {"a": {"type": "integer"}, "b": {"examples": [[1]]}}}
    >>> example({"type": "array", "items": {"$ref": "#/components/schemas/Pair"}}, {"Pair": pair})
    [{'a': 1, 'b': [1]}]
    """
    if "$ref" in schema:
        return example(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    for name in ("examples", "enum"):
        if schema.get(name):
            return schema[name][0]
    if "default" in schema:
        return schema["default"]
    if "anyOf" in schema:
        return example(schema["anyOf"][0], schemas)
    if "properties" in schema:
        return {name: example(each, schemas) for name, each in schema["properties"].items()}
    if schema.get("type") == "array":
        return [example(schema["items"], schemas)]
    return _PLAIN.get(schema.get("type", ""))
