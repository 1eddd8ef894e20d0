"""The models of the store and the loaded adapters, in OpenAI's form, or in Anthropic's for its clients."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from chaski.server.dialects.ollama import timestamp
from chaski.server.http.endpoint import HTTPRequest, Reply
from chaski.server.models.adapter_table import ServedAdapter

__all__ = ["described", "listed"]


async def listed(http: HTTPRequest) -> Reply:
    """List the models of the store and the loaded adapters. An adapter has its model as `parent`."""
    entries = await asyncio.to_thread(http.services.catalog.store.entries)
    data = [_model(entry.name.short, entry.modified, entry.name.namespace) for entry in entries]
    data += map(_adapter, http.services.adapters.all)
    if not _is_anthropic(http):
        return {"object": "list", "data": data}
    ids = [each["id"] for each in data]
    ends = {"first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
    return {"data": list(map(_anthropic, data)), "has_more": False, **ends}


async def described(http: HTTPRequest) -> Reply:
    """Describe a model or an adapter."""
    label = http.request.path_params["model"]
    found = await asyncio.to_thread(http.services.catalog.find, label)
    if found.adapter is not None:
        shown = {**_adapter(found.adapter), "id": label}
    else:
        shown = _model(label, found.entry.modified, found.name.namespace)
    return _anthropic(shown) if _is_anthropic(http) else shown


def _is_anthropic(http: HTTPRequest) -> bool:
    """Return whether a request comes from a client of Anthropic, which always sends its version."""
    return "anthropic-version" in http.request.headers


def _model(name: str, created: float, owner: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": int(created), "owned_by": owner}


def _adapter(adapter: ServedAdapter) -> dict[str, Any]:
    shown = _model(adapter.name, adapter.created, adapter.base.namespace)
    return {**shown, "parent": adapter.base.short, "root": adapter.path.name}


def _anthropic(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a model in Anthropic's form."""
    name = shown["id"]
    created = timestamp(shown["created"])
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": created,
        "lifecycle": "active",
    }
