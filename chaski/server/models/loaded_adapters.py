"""`LoadedAdapters`: the adapters that were added to the process of a model, each at its first use.

The process limits their memory itself: it drops unused adapters, and reads them again when needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from chaski.errors import AdapterNotFoundError
from chaski.runner.channels.asynchronous import AsyncModel
from chaski.server.models.adapter_table import ChosenAdapter

__all__ = ["LoadedAdapters"]


class LoadedAdapters:
    """The adapters of one loaded model. Use it in one event loop only."""

    def __init__(self, model: AsyncModel) -> None:
        self._model = model
        self._loads: dict[str, asyncio.Task[None]] = {}

    @property
    def keys(self) -> list[str]:
        """The keys of the loaded adapters."""
        return [key for key, load in self._loads.items() if load.done()]

    async def require(self, adapters: Sequence[ChosenAdapter]) -> None:
        """Load those of the adapters that are not loaded yet. Raises the errors of loading."""
        for adapter in adapters:
            if adapter.key not in self._loads:
                load = self._loads[adapter.key] = asyncio.create_task(self._load(adapter))
                # All waiting requests get the error. If none waits, reading it keeps asyncio from logging it.
                load.add_done_callback(lambda task: task.cancelled() or task.exception())
            await asyncio.shield(self._loads[adapter.key])

    async def forget(self, key: str) -> None:
        """Unload an adapter if it is loaded. Running requests still use it."""
        if self._loads.pop(key, None) is not None:
            with suppress(AdapterNotFoundError):
                await self._model.unload_adapter(key)

    async def _load(self, adapter: ChosenAdapter) -> None:
        try:
            await self._model.load_adapter(adapter.key, str(adapter.path))
        except BaseException:
            self._loads.pop(adapter.key, None)
            raise
