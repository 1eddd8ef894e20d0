"""States of slots and conversations: each has the salt of its key, and its own file."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaski.errors import OptionError, StateError, UnsupportedError
from chaski.runner.states.state_calls import SavedState
from chaski.server.answering import states
from chaski.server.answering.requests import ChatRequest, ModelRequest
from chaski.server.answering.states import StateService
from chaski.server.models.loaded_states import LoadedStates

DONE = SavedState(3, 100, 0.5)


@dataclass
class Model:
    """Notes what it is asked for, and whether two calls overlap."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    error: Exception | None = None
    running: int = 0
    most_running: int = 0

    async def _note(self, *call: Any) -> SavedState:
        self.calls.append(call)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0.01)
        self.running -= 1
        if self.error is not None:
            raise self.error
        return DONE

    async def save_slot(self, slot: int, path: Path, cache_salt: str, max_bytes: int) -> SavedState:
        return await self._note("save", slot, path, cache_salt, max_bytes)

    async def load_state(self, path: Path, *, cache_salt: str) -> SavedState:
        return await self._note("load", path, cache_salt)

    async def erase_slot(self, slot: int, cache_salt: str) -> SavedState:
        return await self._note("erase", slot, cache_salt)

    async def save_chat(self, call: object, path: Path) -> SavedState:
        return await self._note("chat", call, path)


@dataclass
class Jobs:
    """Begins jobs with a salt for each client, and notes them."""

    model: Model
    folder: Path
    messages: tuple[object, ...] = ({"role": "user", "content": "x"},)
    begun: list[tuple[str, str, str]] = field(default_factory=list)
    used: list[tuple[str, str]] = field(default_factory=list)

    async def begin(self, request: ModelRequest, client: str, operation: str) -> Any:
        self.begun.append((request.model, client, operation))
        found = SimpleNamespace(name=request.model, model=SimpleNamespace(messages=self.messages))
        return SimpleNamespace(name=request.model, found=found, cache_salt=f"salt of {client}")

    @asynccontextmanager
    async def use(self, job: Any, client: str) -> AsyncIterator[Any]:
        self.used.append((job.name, client))
        yield SimpleNamespace(model=self.model)

    @property
    def catalog(self) -> Any:
        store = SimpleNamespace(make_state_path=lambda name: self.folder / f"state of {name}")
        return SimpleNamespace(store=store)


def service(tmp_path: Path, max_bytes: int = 1000, **more: Any) -> tuple[StateService, Jobs, Model]:
    """Make a service of two models in memory, with two and three slots."""
    model = Model()
    jobs = Jobs(model, tmp_path, **more)
    pool = SimpleNamespace(
        loaded=[SimpleNamespace(name="a", parallel=2), SimpleNamespace(name="b", parallel=3)]
    )
    made: Any = StateService(jobs, pool, tmp_path / "states", max_bytes)
    return made, jobs, model


def test_each_call_has_the_salt_of_its_client(tmp_path: Path) -> None:
    async def run() -> None:
        made, jobs, model = service(tmp_path)
        path = tmp_path / "states" / "one"
        for client in ("hers", "his"):
            assert await made.save("m", 7, "one", client) is DONE
            assert await made.restore("m", 7, "one", client) is DONE
            assert await made.erase("m", 7, client) is DONE
            salt = f"salt of {client}"
            assert model.calls == [("save", 7, path, salt, 1000), ("load", path, salt), ("erase", 7, salt)]
            assert jobs.begun == [("m", client, "state")] * 3
            assert jobs.used == [("m", client)] * 3
            for notes in (model.calls, jobs.begun, jobs.used):
                notes.clear()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("slot", "place"), [(0, ("a", 0)), (1, ("a", 1)), (2, ("b", 0)), (4, ("b", 2)), (5, None), (-1, None)]
)
def test_slots_are_counted_across_models(tmp_path: Path, slot: int, place: tuple[str, int] | None) -> None:
    async def run() -> None:
        made, jobs, model = service(tmp_path)
        for call in (
            made.save("", slot, "one", "me"),
            made.restore("", slot, "one", "me"),
            made.erase("", slot, "me"),
        ):
            if place is None:
                with pytest.raises(
                    OptionError, match=rf"^slot {slot} does not exist; /slots lists all slots$"
                ):
                    await call
            else:
                await call
        if place is not None:
            assert jobs.begun == [(place[0], "me", "state")] * 3
            assert [call[1] for call in model.calls if call[0] != "load"] == [place[1]] * 2

    asyncio.run(run())


def test_a_model_must_be_named_if_none_is_in_memory(tmp_path: Path) -> None:
    made: Any = StateService(Jobs(Model(), tmp_path), SimpleNamespace(loaded=[]), tmp_path, 9)
    with pytest.raises(OptionError, match=r"^model is required, since no model is in memory$"):
        asyncio.run(made.erase("", 0, "me"))


@pytest.mark.parametrize("name", ["a", "chat 1.bin", "ü-_+@=1", "a" * 200, "ü" * 100])
def test_names_of_files(tmp_path: Path, name: str) -> None:
    made, _, model = service(tmp_path)
    asyncio.run(made.save("m", 0, name, "me"))
    asyncio.run(made.restore("m", 0, name, "me"))
    assert [call[-3] if call[0] == "save" else call[1] for call in model.calls] == [
        tmp_path / "states" / name
    ] * 2


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../a", "/a", ".a", "a.", "a..b", "a\n", "a" * 201, "ü" * 101]
)
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    made, jobs, _ = service(tmp_path)
    for call in (made.save("m", 0, name, "me"), made.restore("m", 0, name, "me")):
        with pytest.raises(OptionError) as error:
            asyncio.run(call)
        assert str(error.value) == (
            f"filename is {name!r:.100}; it must consist of letters, digits, spaces and '._+@=-' without "
            "a path, and of at most 200 bytes"
        )
    assert not jobs.begun
    assert not (tmp_path / "states").exists()


def test_the_folder_is_made_by_the_first_save_and_is_private(tmp_path: Path) -> None:
    made, jobs, _ = service(tmp_path)
    made.folder = tmp_path / "deep" / "states"
    asyncio.run(made.restore("m", 0, "one", "me"))
    assert not made.folder.exists()
    for _ in range(2):
        asyncio.run(made.save("m", 0, "one", "me"))
    assert made.folder.stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").write_text("")
    made.folder = tmp_path / "file" / "states"
    jobs.begun.clear()
    with pytest.raises(StateError, match=r"^the folder of states cannot be created: Not a directory$"):
        asyncio.run(made.save("m", 0, "one", "me"))
    assert not jobs.begun


def test_other_files_leave_less_room_for_a_state(tmp_path: Path) -> None:
    made, _, model = service(tmp_path)
    (tmp_path / "states").mkdir()
    for name, size, left in (("other", 300, 700), ("one", 400, 700), ("third", 900, 0)):
        (tmp_path / "states" / name).write_bytes(bytes(size))
        asyncio.run(made.save("m", 0, "one", "me"))
        assert model.calls[-1][-1] == left
    assert len(os.listdir(tmp_path / "states")) == 3


def test_states_are_saved_one_after_the_other(tmp_path: Path) -> None:
    """Two at a time would both take the room that is left."""

    async def run() -> None:
        made, _, model = service(tmp_path)
        await asyncio.gather(*(made.save("m", 0, name, "me") for name in "abc"))
        assert (len(model.calls), model.most_running) == (3, 1)

    asyncio.run(run())


def test_the_state_of_a_conversation_lies_next_to_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def call_of(job: Any, request: ChatRequest) -> tuple[str, ChatRequest, str]:
        return job.name, request, job.cache_salt

    monkeypatch.setattr(states, "chat_call", call_of)
    request = ChatRequest(model="m", messages=[])
    made, jobs, model = service(tmp_path)
    monkeypatch.setenv("CHASKI_PREFIX_CACHE", "on")
    assert asyncio.run(made.keep(request, "me")) is DONE
    assert model.calls == [("chat", ("m", request, "salt of me"), tmp_path / "state of m")]
    assert (jobs.begun, jobs.used) == ([("m", "me", "state")], [("m", "me")])
    made, jobs, model = service(tmp_path, messages=())
    with pytest.raises(OptionError, match=r"^m has no initial conversation whose state could be saved$"):
        asyncio.run(made.keep(request, "me"))
    assert not model.calls
    for value in ("off", "memory"):
        monkeypatch.setenv("CHASKI_PREFIX_CACHE", value)
        made, jobs, model = service(tmp_path)
        with pytest.raises(UnsupportedError) as error:
            asyncio.run(made.keep(request, "me"))
        assert str(error.value) == (
            "this server writes no prompts to disk; set CHASKI_PREFIX_CACHE=on to allow it"
        )
        assert not jobs.begun


# ---- states that a loaded model has taken over ----

FILE = Path("/states/m")


def test_a_state_is_loaded_once_for_each_key_and_file() -> None:
    async def run() -> None:
        model = Model()
        made = LoadedStates(model)
        wanted = [(FILE, 1, "a"), (FILE, 1, "b"), (FILE, 2, "a"), (Path("/states/n"), 1, "a")]
        for _ in range(2):
            await asyncio.gather(*(made.require(*each) for each in wanted * 2))
        assert model.calls == [("load", path, salt) for path, _, salt in wanted]

    asyncio.run(run())


def test_all_who_need_a_state_wait_for_it() -> None:
    async def run() -> None:
        model = Model()
        made = LoadedStates(model)
        first = asyncio.create_task(made.require(FILE, 1, "a"))
        await asyncio.sleep(0)
        second = asyncio.create_task(made.require(FILE, 1, "a"))
        await asyncio.sleep(0)
        first.cancel()  # its client leaves
        await asyncio.wait([first])
        assert (first.cancelled(), model.running) == (True, 1)
        await second
        assert (model.running, len(model.calls)) == (0, 1)

    asyncio.run(run())


def test_a_state_that_cannot_be_used_is_a_note(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        made = LoadedStates(Model(error=StateError("the state is another key's")))
        for _ in range(2):
            await made.require(FILE, 1, "a")

    with caplog.at_level(logging.INFO, "chaski"):
        asyncio.run(run())
    assert caplog.messages == ["the conversation is computed again: the state is another key's"]
