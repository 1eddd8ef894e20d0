"""`StateService`: save and restore the states of slots in one folder, which the server's owner sets.

Clients choose the names of the files, so a name must not contain a path. A state belongs to one API key: the
names of its blocks are derived from the key, so that no other key can restore the state.
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
    """Service that saves, restores and erases the states of slots. Use it in one event loop only.

    folder     folder of the files; None if states cannot be saved
    max_bytes  largest size of all files of the folder together
    """

    def __init__(self, jobs: Jobs, models: ModelPool, folder: Path | None, max_bytes: int) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        self._saving = asyncio.Lock()  # two saves at a time would both use the remaining bytes
        self._jobs = jobs
        self._models = models

    async def save(self, model: str, slot: int, name: str, client: str) -> SavedState:
        """Write the state of a slot to a file. Raises OptionError, and the errors of `save_slot`."""
        path = await asyncio.to_thread(self._made, name)
        label, number = self._place(model, slot)
        job = await self._jobs.begin(ModelRequest(model=label), client, "state")
        async with self._jobs.use(job, client) as loaded, self._saving:
            left = self._max_bytes - await asyncio.to_thread(bytes_beside, path)
            return await loaded.model.save_slot(number, path, job.cache_salt, max(left, 0))

    async def restore(self, model: str, slot: int, name: str, client: str) -> SavedState:
        """Load the state in a file into a model's memory. Raises OptionError, and errors of `load_state`."""
        path = self._path(name)
        label, _ = self._place(model, slot)
        job = await self._jobs.begin(ModelRequest(model=label), client, "state")
        async with self._jobs.use(job, client) as loaded:
            return await loaded.model.load_state(path, cache_salt=job.cache_salt)

    async def keep(self, request: ChatRequest, client: str) -> SavedState:
        """Save the state of a conversation next to the model that begins with it.

        Raises UnsupportedError if prompts may not be written to disk, OptionError if the model has no
        conversation, and the errors of `save_chat`.
        """
        if Environment.read().prefix_cache != "on":
            raise UnsupportedError(
                "this server writes no prompts to disk; set CHASKI_PREFIX_CACHE=on to allow it"
            )
        job = await self._jobs.begin(request, client, "state")
        if not job.found.model.messages:
            raise OptionError(f"{job.name} has no initial conversation whose state could be saved")
        call = await chat_call(job, request)
        path = await asyncio.to_thread(self._jobs.catalog.store.make_state_path, job.found.name)
        async with self._jobs.use(job, client) as loaded:
            return await loaded.model.save_chat(call, path)

    async def erase(self, model: str, slot: int, client: str) -> SavedState:
        """Erase the state of a slot. Raises OptionError, and the errors of `erase_slot`."""
        label, number = self._place(model, slot)
        job = await self._jobs.begin(ModelRequest(model=label), client, "state")
        async with self._jobs.use(job, client) as loaded:
            return await loaded.model.erase_slot(number, job.cache_salt)

    def _place(self, model: str, slot: int) -> tuple[str, int]:
        """Return a model and the number of its slot.

        Without a name, slots are numbered across all models in memory. Raises OptionError.
        """
        if model:
            return model, slot
        loaded = self._models.loaded
        if not loaded:
            raise OptionError("model is required, since no model is in memory")
        number = slot
        for each in loaded:
            if 0 <= number < each.parallel:
                return each.name, number
            number -= each.parallel
        raise OptionError(f"slot {slot} does not exist; /slots lists all slots")

    def _path(self, name: str) -> Path:
        assert self.folder is not None, "the handler refuses requests to a server without a folder"
        if not _NAME.fullmatch(name) or ".." in name or len(name.encode()) > _LONGEST_NAME:
            raise OptionError(
                f"filename is {name!r:.100}; it must consist of letters, digits, spaces and '._+@=-' without "
                f"a path, and of at most {_LONGEST_NAME} bytes"
            )
        return self.folder / name

    def _made(self, name: str) -> Path:
        """Return the path of a file in the folder, and create the folder if it does not exist."""
        path = self._path(name)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(f"the folder of states cannot be created: {error.strerror}") from None
        return path
