"""The OpenAPI document, made from the routes, their handlers' docstrings, and the tables of fields."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.routing import Route

from chaski.server.fields.body import Body
from chaski.server.fields.description import Field
from chaski.server.http.api import api_of
from chaski.server.http.endpoint import Endpoint

__all__ = ["document"]

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_TITLE = "chaski"
_ABOUT = "The APIs of Ollama, OpenAI and Anthropic, for the models of this machine."
_KEY = {"key": {"type": "http", "scheme": "bearer", "description": "Required only if the server has keys."}}


def document(routes: Iterable[Any], version: str) -> dict[str, Any]:
    """Describe all endpoints as OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        assert isinstance(route, Route)
        does = route.endpoint.handler if isinstance(route.endpoint, Endpoint) else route.endpoint
        body = route.endpoint.body if isinstance(route.endpoint, Endpoint) else None
        for method in sorted(route.methods or ()):
            if method != "HEAD" or len(route.methods or ()) == 1:
                shown = _PARAMETER.sub(r"{\1}", route.path)
                operation = _operation(route.path, (does.__doc__ or "").strip(), body)
                paths.setdefault(shown, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": _TITLE, "version": version, "description": _ABOUT},
        "paths": paths,
        "components": {"securitySchemes": _KEY},
        "security": [{}, {"key": []}],
    }


def _operation(path: str, summary: str, body: Body | None) -> dict[str, Any]:
    found: dict[str, Any] = {"summary": summary, "tags": [_tag(path)]}
    if names := _PARAMETER.findall(path):
        where = {"in": "path", "required": True, "schema": {"type": "string"}}
        found["parameters"] = [{"name": name, **where} for name in names]
    if body is not None:
        found["requestBody"] = {
            "required": not body.may_be_empty,
            "content": {"application/json": {"schema": _schema(body.fields)}},
        }
    replies: dict[str, Any] = {"application/json": {}}
    if body is not None and "stream" in body.fields:
        replies[api_of(path).media_type] = {}
    found["responses"] = {
        "200": {"description": "The answer.", "content": replies},
        "default": {"description": "An error, in the form of the endpoint's API."},
    }
    return found


def _schema(fields: Mapping[str, Field]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            name: {**field.schema, "description": field.meaning} for name, field in fields.items()
        },
        "required": [name for name, field in fields.items() if field.is_required],
    }


def _tag(path: str) -> str:
    if not path.startswith(("/api/", "/v1/")):
        return "General"
    return {"/v1/messages": "Anthropic"}.get(path[:12], "OpenAI" if path.startswith("/v1/") else "Ollama")
