"""`StateService`: states of slots in files of one folder, which the server's owner names.

Names of files come from strangers: they are names alone, and lead nowhere else. A state is of one key, since
the names of its blocks are made of it, and so no other key can take it back.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from chaski.env import Environment
from chaski.errors import OptionError, StateError, UnsupportedError
from chaski.runner.states.files import bytes_beside
from chaski.runner.states.state_calls import SavedState
from chaski.server.answering.jobs import Jobs, chat_call
from chaski.server.answering.requests import ChatRequest, ModelRequest
from chaski.server.models.pool import ModelPool

__all__ = ["StateService"]

_NAME = re.compile(r"\w(?:[\w .+@=-]*[\w+@=-])?")
_LONGEST_NAME = 200


class StateService:
    """Saves, restores and erases what slots hold. For one event loop.

    folder     where files are; None where none are kept
    max_bytes  the bytes that all files of the folder may have together
    """

    def __init__(self, jobs: Jobs, models: ModelPool, folder: Path | None, max_bytes: int) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        self._saving = asyncio.Lock()  # of two at a time, each would take what is left
        self._jobs = jobs
        self._models = models

    async def save(self, model: str, slot: int, name: str, client: str) -> SavedState:
        """Write the state of a slot to a file. Raises OptionError, StateError, and what `save_slot` does."""
        path = await asyncio.to_thread(self._made, name)
        label, number = self._place(model, slot)
        job = await self._jobs.begin(ModelRequest(model=label), client, "state")
        async with self._jobs.use(job, client) as loaded, self._saving:
            left = self._max_bytes - await asyncio.to_thread(bytes_beside, path)
            return await loaded.model.save_slot(number, path, job.cache_salt, max(left, 0))

    async def restore(self, model: str, slot: int, name: str, client: str) -> SavedState:
        """Take the state of a file into the memory of a model. Raises OptionError, and as `load_state`."""
        path = self._path(name)
        label, _ = self._place(model, slot)
        job = await self._jobs.begin(ModelRequest(model=label), client, "state")
        async with self._jobs.use(job, client) as loaded:
            return await loaded.model.load_state(path, cache_salt=job.cache_salt)

    async def keep(self, request: ChatRequest, client: str) -> SavedState:
        """Keep the state of a conversation beside the model that begins with it.

        Raises UnsupportedError where nothing may be kept on disk, OptionError for a model without a
        conversation, and what `save_state` does.
        """
        if Environment.read().prefix_cache != "on":
            raise UnsupportedError("this server keeps no prompts on disk; CHASKI_PREFIX_CACHE says so")
        job = await self._jobs.begin(request, client, "state")
        if not job.found.model.messages:
            raise OptionError(f"{job.name} begins with no conversation whose state could be kept")
        call = await chat_call(job, request)
        path = await asyncio.to_thread(self._jobs.catalog.store.make_state_path, job.found.name)
        async with self._jobs.use(job, client) as loaded:
            return await loaded.model.save_chat(call, path)

    async def erase(self, model: str, slot: int, client: str) -> SavedState:
        """Forget what a slot holds. Raises OptionError, and what `erase_slot` does."""
        label, number = self._place(model, slot)
        job = await self._jobs.begin(ModelRequest(model=label), client, "state")
        async with self._jobs.use(job, client) as loaded:
            return await loaded.model.erase_slot(number, job.cache_salt)

    def _place(self, model: str, slot: int) -> tuple[str, int]:
        """Return a model and its slot; without a name slots are counted over all models in memory."""
        if model:
            return model, slot
        loaded = self._models.loaded
        if not loaded:
            raise OptionError("model is required: none is in memory that could be meant")
        number = slot
        for each in loaded:
            if 0 <= number < each.parallel:
                return each.name, number
            number -= each.parallel
        raise OptionError(
            f"there is no slot {slot}; /slots lists them"
            if loaded
            else "model is required: none is in memory"
        )

    def _path(self, name: str) -> Path:
        assert self.folder is not None, "the handler refuses requests to a server without a folder"
        if not _NAME.fullmatch(name) or ".." in name or len(name.encode()) > _LONGEST_NAME:
            raise OptionError(
                f"filename must be letters, digits, blanks and any of '._+@=-', and no path: {name!r:.100}"
            )
        return self.folder / name

    def _made(self, name: str) -> Path:
        """Return the path of a file in the folder, which is made if it is not there."""
        path = self._path(name)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(f"the folder of states cannot be made: {error.strerror}") from None
        return path
