"""Descriptions of the server's models in Ollama's API: models in memory, and one model in full."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from typing import Any

from msgspec import to_builtins

from chaski.cluster.routed_model import RoutedModel
from chaski.errors import ChaskiError
from chaski.runner.loading import descriptions
from chaski.runner.loading.descriptions import speculation_of
from chaski.server.models.catalog import Catalog
from chaski.server.models.loaded import LoadedModel
from chaski.store.listing import details_of, local_time
from chaski.store.model import StoredConfig

__all__ = ["describe", "running"]

_FOREVER = datetime(9999, 12, 31, tzinfo=UTC)


def describe(catalog: Catalog, label: str, is_verbose: bool) -> dict[str, Any]:
    """Describe a model in full. Raises ModelNotFoundError, or the error of a damaged model."""
    found = catalog.find(label)
    # The name of a stored adapter is its digest.
    adapters = {chosen.name: chosen.path for chosen in found.adapters}
    return descriptions.describe(found.model, catalog.info(found), adapters, found.entry.modified, is_verbose)


def running(catalog: Catalog, models: list[LoadedModel]) -> list[dict[str, Any]]:
    """Return the descriptions of the models in memory."""
    return [_running(catalog, model) for model in models]


def _running(catalog: Catalog, loaded: LoadedModel) -> dict[str, Any]:
    memory = loaded.info.memory
    shown: dict[str, Any] = {
        "name": loaded.name,
        "model": loaded.name,
        "size": memory.total,
        "digest": "",
        "details": details_of(StoredConfig()),
        "expires_at": _expiry(loaded),
        "size_vram": memory.on_gpus,
        "devices": {held.device: held.total for held in memory.devices},
        "context_length": loaded.info.context,
        **({"context_reason": loaded.info.context_reason} if loaded.info.context_reason else {}),
        "engine": loaded.info.engine,
        **({"engine_reason": loaded.info.engine_reason} if loaded.info.engine_reason else {}),
        "parallel": loaded.parallel,
        **({"adapters": _names(catalog, loaded)} if loaded.adapters.keys else {}),
        **_tiers(loaded),
        **({"experts": to_builtins(memory.experts)} if memory.experts else {}),
        **_replicas(loaded),
        "users": loaded.users,
        "waiting": loaded.queue.waiting,
    }
    try:
        found = catalog.find(loaded.name)
        shown["details"] = details_of(found.model.config)
        shown |= speculation_of(catalog.info(found), loaded.info.engine, loaded.draft)
        shown["digest"] = found.entry.digest.hex
    except ChaskiError:
        pass  # the model's name was deleted while the model is in memory
    return shown


def _replicas(loaded: LoadedModel) -> dict[str, Any]:
    """Return the replicas of a model that several machines compute."""
    if not isinstance(loaded.worker, RoutedModel):
        return {}
    return {"replicas": [to_builtins(replica) for replica in loaded.worker.replicas()]}


def _tiers(loaded: LoadedModel) -> dict[str, Any]:
    """Return the tiers of a model's prefix cache, if it has any."""
    tiers = {
        use.tier: {
            "blocks": use.num_blocks,
            "tokens": use.num_tokens,
            "bytes": use.num_bytes,
            "max_bytes": use.max_bytes,
        }
        for use in loaded.info.prefixes
    }
    return {"prefix_cache": tiers} if tiers else {}


def _names(catalog: Catalog, loaded: LoadedModel) -> list[str]:
    """Return the names of the adapters in memory. The name of a stored adapter is its digest."""
    names = {each.chosen().key: each.name for each in catalog.adapters.all}
    return [names.get(key, key) for key in loaded.adapters.keys]


def _expiry(loaded: LoadedModel) -> str:
    """Return the time when a model will be unloaded, if no further request uses it."""
    begin = time.time() if loaded.users else loaded.used_at
    if loaded.keep_alive == math.inf or begin + loaded.keep_alive >= _FOREVER.timestamp():
        return _FOREVER.isoformat()
    return local_time(begin + loaded.keep_alive)
