"""LoRA adapters of a running server: vLLM's routes that load them, and llama.cpp's list of them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from starlette.responses import PlainTextResponse

from chaski.errors import ModelNotFoundError, OptionError
from chaski.server.dialects.llamacpp.lora import read_scales
from chaski.server.fields.reader import Fields
from chaski.server.http.endpoint import HTTPRequest, Reply
from chaski.server.models.catalog import Found

__all__ = ["listed", "load", "set_scales", "unload"]


async def load(http: HTTPRequest) -> Reply:
    """Load a LoRA adapter from the server's folder of adapters, under a name that requests use."""
    fields = Fields(http.body)
    name, path = fields.text("lora_name"), fields.text("lora_path")
    if not name or not path:
        raise OptionError("Both 'lora_name' and 'lora_path' must be provided.")
    base = await asyncio.to_thread(_base, http, fields.text("base_model_name", "model"))
    if await asyncio.to_thread(_is_stored, http, name):
        raise OptionError(f"lora_name {name:.100} is the name of a model in the store; choose another one")
    replaces = fields.flag("load_inplace", False)
    add = partial(http.services.adapters.add, name, path, base.name, base.model.path, replaces)
    await asyncio.get_running_loop().run_in_executor(http.services.makers, add)
    return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")


async def unload(http: HTTPRequest) -> Reply:
    """Remove an adapter. Running requests still use it."""
    name = Fields(http.body).text("lora_name")
    if not name:
        raise OptionError("'lora_name' needs to be provided to unload a LoRA adapter.")
    removed = http.services.adapters.remove(name)
    for loaded in http.services.models.loaded:
        await loaded.adapters.forget(removed.chosen().key)
    return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")


async def listed(http: HTTPRequest) -> Reply:
    """List the loaded adapters, with their scales for requests that choose no adapters."""
    adapters: list[dict[str, Any]] = [
        {
            "id": adapter.number,
            "path": adapter.path.name,
            "scale": adapter.scale,
            "name": adapter.name,
            "model": adapter.base.short,
        }
        for adapter in http.services.adapters.all
    ]
    return adapters


async def set_scales(http: HTTPRequest) -> Reply:
    """Set the scales of adapters for requests that choose no adapters. Unlisted adapters get 0."""
    http.services.adapters.set_scales(dict(read_scales(Fields(http.body), "adapters")))
    return {"success": True}


def _is_stored(http: HTTPRequest, name: str) -> bool:
    try:
        return http.services.catalog.find(name).adapter is None
    except (ModelNotFoundError, OptionError):
        return False


def _base(http: HTTPRequest, label: str) -> Found:
    """Return the model of an adapter: the named one, or else the only one in memory."""
    loaded = http.services.models.loaded
    if not label and len(loaded) != 1:
        count = f"{len(loaded)} models are" if loaded else "no model is"
        raise OptionError(f"base_model_name is required, since {count} in memory")
    found: Found = http.services.catalog.find(label or loaded[0].name)
    if found.adapter is not None:
        raise OptionError(f"base_model_name {label:.100} is an adapter; name a model")
    return found
