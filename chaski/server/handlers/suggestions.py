"""Answers that precede a pull: the name in a pasted text, and a list of models to pull."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import to_builtins

from chaski.errors import ChaskiError
from chaski.names import ModelName
from chaski.pasted import pasted_name
from chaski.server.fields.reader import Fields
from chaski.server.http.endpoint import HTTPRequest, Reply
from chaski.store.suggested import SuggestedModel, suggested_models

__all__ = ["name", "suggestions"]


async def name(http: HTTPRequest) -> Reply:
    """Return the model that a pasted name, command or link means, and whether the store has it."""
    found = ModelName.parse(pasted_name(Fields(http.body).text("text")))
    stored = await asyncio.to_thread(http.services.catalog.store.locate, found)
    scheme = "" if found.scheme == "https" else f"{found.scheme}://"
    return {"model": scheme + found.short, "is_stored": stored is not None}


async def suggestions(http: HTTPRequest) -> Reply:
    """List well-known models to pull, with the memory that they take and whether this machine has it."""
    services = http.services
    store = services.catalog.store
    try:
        available = await services.estimates.available()
    except ChaskiError:
        available = {}
    # Loaded models can be unloaded.
    room = sum(available.values()) + sum(each.info.memory.total for each in services.models.loaded)

    def described(model: SuggestedModel) -> dict[str, Any]:
        fits = {"fits": model.memory <= room} if available else {}
        is_stored = store.locate(ModelName.parse(model.name)) is not None
        return {**to_builtins(model), "memory": model.memory, **fits, "is_stored": is_stored}

    listed = suggested_models()
    models = await asyncio.to_thread(lambda: [described(model) for model in listed.models])
    return {"date": listed.date, "available": available, "models": models}
