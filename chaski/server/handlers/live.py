"""The routes that report what the server is doing, and what the cache of a model contains."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import to_builtins

from chaski.errors import OptionError
from chaski.server.answering.live import LiveService
from chaski.server.http.api import ndjson
from chaski.server.http.endpoint import HTTPRequest, Reply, Stream
from chaski.server.http.guard import may_change_models
from chaski.server.models.loaded import LoadedModel

__all__ = ["cache", "live"]

_PERIOD = 1.0
_SWITCH = {"": False, "0": False, "false": False, "1": True, "true": True}


async def cache(http: HTTPRequest) -> Reply:
    """Return which cells of a model's cache are in use: of `?model=`, or else of the last used model."""
    loaded: list[LoadedModel] = http.services.models.loaded
    if named := http.request.query_params.get("model"):
        path = (await asyncio.to_thread(http.services.catalog.find, named)).model.path
        loaded = [each for each in loaded if each.path == path]
    if not loaded:
        raise OptionError("no such model is in memory; send it a request first")
    picture = await loaded[0].model.cache_picture()
    kinds = [
        {
            "kind": kind.kind,
            "is_state": kind.is_state,
            "cells": kind.cells,
            "runs": kind.runs.tolist(),
        }
        for kind in picture.kinds
    ]
    return {"model": loaded[0].name, "slots": [to_builtins(slot) for slot in picture.slots], "kinds": kinds}


async def live(http: HTTPRequest) -> Reply:
    """Return the current figures of the server and its models; with `?stream=1`, as one line per second.

    Only administrators see the individual sequences, since these may belong to any key.
    """
    service: LiveService = http.services.live
    wanted = http.request.query_params.get("stream", "")
    if wanted not in _SWITCH:
        raise OptionError(f"stream is {wanted[:40]!r}; it must be 0 or 1")
    sees_all = may_change_models(http.request.headers, http.services.settings)
    return _lines(service, sees_all) if _SWITCH[wanted] else await _figures(service, sees_all)


async def _figures(service: LiveService, sees_all: bool) -> dict[str, Any]:
    figures = await service.figures()
    if sees_all:
        return figures
    models = [{**model, "sequences": []} if "sequences" in model else model for model in figures["models"]]
    return {**figures, "models": models}


async def _lines(service: LiveService, sees_all: bool) -> Stream:
    while True:
        yield ndjson(await _figures(service, sees_all))
        await asyncio.sleep(_PERIOD)
