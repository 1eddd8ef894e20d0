"""The models of a store in the form of Ollama's `/api/tags`. This reads no model files."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

from chaski.errors import ChaskiError
from chaski.store.model import StoredConfig, read_stored_config
from chaski.store.store import Store

__all__ = ["details_of", "listed", "local_time"]

_log = logging.getLogger(__name__)


def listed(store: Store) -> list[dict[str, Any]]:
    """Return the models of the store, the newest first. A model that cannot be read is left out."""
    found = []
    for entry in store.entries():
        try:
            config = read_stored_config(store, entry)
        except ChaskiError as error:
            _log.warning("%s is left out: %s", entry.name.short, error)
            continue
        found.append(
            {
                "name": entry.name.short,
                "model": entry.name.short,
                "modified_at": local_time(entry.modified),
                "size": entry.size,
                "digest": entry.digest.hex,
                "details": details_of(config),
            }
        )
    return found


def details_of(config: StoredConfig) -> dict[str, Any]:
    """Return the `details` of a model."""
    return {
        "parent_model": "",
        "format": config.model_format,
        "family": config.model_family,
        "families": list(config.model_families) or None,
        "parameter_size": config.model_type,
        "quantization_level": config.file_type,
    }


def local_time(seconds: float) -> str:
    """Return a time with the offset of this machine's zone."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="microseconds")
