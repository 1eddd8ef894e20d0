"""What a model in memory holds at this moment."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

from chaski.errors import OptionError
from chaski.server.http.endpoint import HTTPRequest, Reply
from chaski.server.models.loaded import LoadedModel

__all__ = ["cache"]


async def cache(http: HTTPRequest) -> Reply:
    """The cells of a model's cache: where tokens are, never which ones; `?model=`, else the last used one."""
    loaded: list[LoadedModel] = http.services.models.loaded
    if named := http.request.query_params.get("model"):
        path = (await asyncio.to_thread(http.services.catalog.find, named)).model.path
        loaded = [each for each in loaded if each.path == path]
    if not loaded:
        raise OptionError("no such model is in memory; ask it something first")
    picture = await loaded[0].model.cache_picture()
    kinds = [
        {
            "kind": kind.kind,
            "is_state": kind.is_state,
            "cells": kind.cells,
            "runs": [[run.sequence, run.cell, run.position, run.count] for run in kind.runs],
        }
        for kind in picture.kinds
    ]
    return {"model": loaded[0].name, "slots": [asdict(slot) for slot in picture.slots], "kinds": kinds}
