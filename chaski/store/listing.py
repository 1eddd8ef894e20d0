"""The models of a store in the form of Ollama's `/api/tags`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

from msgspec import Struct

from chaski.errors import ChaskiError
from chaski.store.model import StoredConfig, read_stored_config
from chaski.store.store import Entry, Store

__all__ = ["Summary", "details_of", "listed", "local_time"]

_log = logging.getLogger(__name__)


class Summary(Struct, frozen=True):
    """The properties of a model that only its files tell.

    capabilities       what it can do, in Ollama's words
    context_length     tokens that it was trained for; 0 if unknown
    embedding_length   numbers of a hidden state
    """

    capabilities: tuple[str, ...] = ()
    context_length: int = 0
    embedding_length: int = 0


def listed(store: Store, summary_of: Callable[[Entry], Summary] | None = None) -> list[dict[str, Any]]:
    """Return the models of the store, the newest first. A model that cannot be read is left out.

    Without `summary_of`, this reads no model files.
    """
    found = []
    entries = store.entries()
    freed = store.freed_bytes(entries)
    for entry in entries:
        try:
            config = read_stored_config(store, entry)
        except ChaskiError as error:
            _log.warning("%s is left out: %s", entry.name.short, error)
            continue
        summary = None if summary_of is None else summary_of(entry)
        deletion: dict[str, Any] = {"bundled": True}
        if entry.bundled is None:
            deletion = {"freed_bytes": freed[entry.name]}
        found.append(
            {
                "name": entry.name.short,
                "model": entry.name.short,
                "modified_at": local_time(entry.modified),
                "size": entry.size,
                "digest": entry.digest.hex,
                "details": details_of(config, summary),
                **({} if summary is None else {"capabilities": list(summary.capabilities)}),
                **deletion,
            }
        )
    return found


def details_of(config: StoredConfig, summary: Summary | None = None) -> dict[str, Any]:
    """Return the `details` of a model."""
    lengths = {}
    if summary is not None and summary.context_length:
        lengths = {"context_length": summary.context_length, "embedding_length": summary.embedding_length}
    return {
        "parent_model": "",
        "format": config.model_format,
        "family": config.model_family,
        "families": list(config.model_families) or None,
        "parameter_size": config.model_type,
        "quantization_level": config.file_type,
        **lengths,
    }


def local_time(seconds: float) -> str:
    """Return a time with the offset of this machine's zone."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="microseconds")
