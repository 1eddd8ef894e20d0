"""`/save` keeps the state of a conversation next to its model, and opening the model restores it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

import chaski
from chaski.address import Address
from chaski.chat.events import Done
from chaski.cli.local import load_for_chat
from chaski.cli.rm import command as rm
from chaski.cli.session import Session
from chaski.names import ModelName
from chaski.runner.llm import LLM
from chaski.runner.prefix import naming, tiers
from chaski.store.create import create
from chaski.store.model import find_model
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.cli.chatting import talk

OPTIONS = {"temperature": 0, "num_predict": 6}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CHASKI_PREFIX_CACHE", "on")
    with patch.object(naming, "BLOCK", 16), patch.object(tiers, "_FEWEST", 1):
        yield


@pytest.fixture
def store(own_store: None, tiny_llama: Path) -> Store:
    found = Store.default()
    for _ in create(found, ModelName.parse("base"), Recipe(sources=[tiny_llama])):
        pass
    return found


def opened(name: str, **options: object) -> Session:
    def load(name: str, num_ctx: int | None = None, num_thread: int | None = None) -> LLM:
        threads = num_thread or 1
        found = load_for_chat(
            find_model(name), name, threads=threads, context=num_ctx, backend="cpu", engine=None
        )
        assert isinstance(found, LLM)
        return found

    return Session(load(name), {**OPTIONS, **options}, name=name, open=load)


def state(store: Store, name: str = "mine") -> Path:
    return store.state_path(ModelName.parse(name))


def asked(session: Session, prompt: str) -> tuple[str, Done]:
    """Answer a message as the session would, without its output."""
    events = list(session._events([{"role": "user", "content": prompt}]))
    done = events[-1]
    assert isinstance(done, Done)
    return "".join(event.text for event in events if isinstance(event, chaski.Text)), done


def save(monkeypatch: pytest.MonkeyPatch, **options: object) -> None:
    session = opened("base", **options)
    talk(session, monkeypatch, "hello there, how are you today", "and then", "/save mine")
    session.model.close()


def test_a_conversation_comes_back_without_being_computed(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save(monkeypatch)
    assert "Kept the state of" in capsys.readouterr().err
    assert state(store).stat().st_mode & 0o777 == 0o600
    assert state(store).parent.stat().st_mode & 0o777 == 0o700
    shutil.rmtree(store.root / "chaski" / "prefix-cache", ignore_errors=True)
    session = opened("mine")
    text, done = asked(session, "more")
    assert done.memory_tokens > 0.8 * done.prompt_tokens
    session.model.close()
    state(store).unlink()
    shutil.rmtree(store.root / "chaski" / "prefix-cache", ignore_errors=True)
    session = opened("mine")
    again, done = asked(session, "more")
    assert (again, done.cached_tokens) == (text, 0)
    session.model.close()


def test_load_in_a_chat_brings_the_state_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    save(monkeypatch)
    shutil.rmtree(store.root / "chaski" / "prefix-cache", ignore_errors=True)
    session = opened("base")
    talk(session, monkeypatch, "/load mine")
    _, done = asked(session, "more")
    assert done.memory_tokens > 0.8 * done.prompt_tokens
    session.model.close()


def test_a_conversation_that_goes_on_is_saved_as_a_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(monkeypatch)
    session = opened("mine")
    talk(session, monkeypatch, "once more", "/save mine")
    session.model.close()
    turns = [turn["content"] for turn in find_model("mine").messages if turn["role"] == "user"]
    assert turns == ["hello there, how are you today", "and then", "once more"]
    shutil.rmtree(store.root / "chaski" / "prefix-cache", ignore_errors=True)
    session = opened("mine")
    _, done = asked(session, "more")
    assert done.memory_tokens > 0.8 * done.prompt_tokens
    session.model.close()


@pytest.mark.parametrize("cache", ["on", "memory", "off"])
def test_who_keeps_nothing_on_disk_keeps_no_state(
    store: Store, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    monkeypatch.setenv("CHASKI_PREFIX_CACHE", cache)
    save(monkeypatch, **({"no_store": True} if cache == "on" else {}))
    assert find_model("mine").messages
    assert not state(store).exists()


def test_the_state_goes_with_its_model(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    save(monkeypatch)
    store.copy(ModelName.parse("mine"), ModelName.parse("other"))
    assert not state(store, "other").exists()
    rm.main(["mine"], standalone_mode=False)
    assert not state(store).exists()
    save(monkeypatch)
    store.copy(ModelName.parse("base"), ModelName.parse("mine"))
    assert not state(store).exists()
    save(monkeypatch)
    (store.root / "manifests").joinpath(*ModelName.parse("mine").parts).unlink()
    store.prune()
    assert not state(store).exists()


def test_a_state_that_cannot_be_used_costs_a_note(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save(monkeypatch)
    data = bytearray(state(store).read_bytes())
    data[len(data) // 2] ^= 1
    state(store).write_bytes(data)
    capsys.readouterr()
    session = opened("mine")
    assert "Note: the conversation is computed again" in capsys.readouterr().err
    assert asked(session, "more")[0]
    session.model.close()


def test_models_of_a_path_have_no_states(
    store: Store, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = opened(str(tiny_llama))
    talk(session, monkeypatch, "hello", "/save mine")
    session.model.close()
    assert "Note: the state was not saved: the new model has a separate file" in capsys.readouterr().err
    assert not state(store).exists()


@pytest.mark.long
def test_a_server_keeps_and_brings_states_too(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from chaski.cli.remote_model import RemoteModel
    from chaski.remote import Remote
    from chaski.server.settings import Settings
    from tests.server.conftest import SOMEWHERE
    from tests.server.running import running

    monkeypatch.setenv("CHASKI_THREADS", "1")

    def session_of(port: int, name: str) -> Session:
        model = RemoteModel(Remote(Address("127.0.0.1", port), "admin"), name)
        return Session(model, dict(OPTIONS), name=name, keeps_history=True)

    keys = {"api_keys": ("user",), "admin_keys": ("admin",)}
    with running(Settings(address=SOMEWHERE, **keys), store.root) as server:
        talk(session_of(server.port, "base"), monkeypatch, "how are you today, all of you " * 4, "/save mine")
        assert "Kept the state of" in capsys.readouterr().err
        asked = {"model": "base"}
        assert server.post("/api/states", asked, Authorization="Bearer user").status == 403
        refused = server.post("/api/states", asked, Authorization="Bearer admin")
        assert (refused.status, "has no initial conversation" in refused.error) == (400, True)
    assert state(store).stat().st_mode & 0o777 == 0o600
    shutil.rmtree(store.root / "chaski" / "prefix-cache", ignore_errors=True)
    body = {"model": "mine", "messages": [{"role": "user", "content": "more"}], "stream": False}
    with running(Settings(address=SOMEWHERE, **keys), store.root) as server:
        found = server.post("/api/chat", body, Authorization="Bearer admin").json
        assert found["prompt_cached_count"] > 0.8 * found["prompt_eval_count"]
        others = server.post("/api/chat", body, Authorization="Bearer user").json
        assert "prompt_cached_count" not in others
        assert others["message"] == found["message"]
        server.ask("DELETE", "/api/delete", {"model": "mine"}, {"Authorization": "Bearer admin"})
        assert not state(store).exists()
    monkeypatch.setenv("CHASKI_PREFIX_CACHE", "memory")
    with running(Settings(address=SOMEWHERE, **keys), store.root) as server:
        talk(session_of(server.port, "base"), monkeypatch, "hello", "/save mine")
        assert "writes no prompts to disk" in capsys.readouterr().err
        assert not state(store).exists()
