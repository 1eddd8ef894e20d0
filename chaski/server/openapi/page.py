"""The OpenAPI document as a page of plain HTML, without scripts or external resources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

__all__ = ["page"]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.2; } summary { cursor: pointer; padding: .3rem 0; }
code { font-size: .95em; } table { border-collapse: collapse; margin: .3rem 0 1rem 1.2rem; }
td { border-bottom: 1px solid #8884; padding: .2rem .8rem .2rem 0; vertical-align: top; }
@media (prefers-color-scheme: dark) { body { background: #1a1a1a; color: #ddd; } a { color: #8cf; } }
"""


def page(document: Mapping[str, Any]) -> str:
    """Return the document as an HTML page."""
    info = document["info"]
    return "".join(
        (
            '<!doctype html><html lang="en"><meta charset="utf-8">',
            f"<title>{escape(info['title'])} API</title><style>{_STYLE}</style>",
            f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['description'])}",
            ' This page is also available as an <a href="openapi.json">OpenAPI document</a>.</p>',
            *_sections(document["paths"]),
            "</html>",
        )
    )


def _sections(paths: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    every = [(path, method, found) for path, item in paths.items() for method, found in item.items()]
    for tag in dict.fromkeys(found["tags"][0] for _, _, found in every):
        yield f"<h2>{escape(tag)}</h2>"
        for path, method, found in every:
            if found["tags"][0] == tag:
                yield from _operation(path, method, found)


def _operation(path: str, method: str, found: Mapping[str, Any]) -> Iterator[str]:
    yield f"<details><summary><code>{method.upper()} {escape(path)}</code> "
    yield f"{escape(found['summary'])}</summary>"
    body = found.get("requestBody")
    if body is not None:
        schema = body["content"]["application/json"]["schema"]
        rows = (_row(name, field, name in schema["required"]) for name, field in schema["properties"].items())
        yield f"<table>{''.join(rows)}</table>"
    yield "</details>"


def _row(name: str, field: Mapping[str, Any], is_required: bool) -> str:
    mark = " *" if is_required else ""
    cells = (f"<code>{escape(name)}</code>{mark}", escape(_kind(field)), escape(field["description"]))
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _kind(schema: Mapping[str, Any]) -> str:
    """Return a type in words."""
    if "oneOf" in schema:
        return " or ".join(_kind(each) for each in schema["oneOf"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    return str(schema.get("type", "any"))
