"""`LoadedStates`: the states of conversations that the process of a model has loaded into memory."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from chaski.errors import ChaskiError
from chaski.runner.channels.asynchronous import AsyncModel

__all__ = ["LoadedStates"]

_log = logging.getLogger(__name__)


class LoadedStates:
    """The states that one loaded model was asked to load. Use it in one event loop only."""

    def __init__(self, model: AsyncModel) -> None:
        self._model = model
        self._loads: dict[tuple[Path, int, str], asyncio.Task[None]] = {}

    async def require(self, path: Path, written: int, cache_salt: str) -> None:
        """Load the state in a file, once for each salt and each time at which the file was written.

        A state that cannot be used, such as that of another key or version, is only reported in the log.
        """
        key = path, written, cache_salt
        if key not in self._loads:
            self._loads[key] = asyncio.create_task(self._load(path, cache_salt))
        await asyncio.shield(self._loads[key])

    async def _load(self, path: Path, cache_salt: str) -> None:
        try:
            await self._model.load_state(path, cache_salt=cache_salt)
        except ChaskiError as error:
            _log.info("the conversation is computed again: %s", error)
