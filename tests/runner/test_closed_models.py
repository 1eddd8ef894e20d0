"""A closed model says so, whatever is asked of it, and shows itself in a line."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import chaski
from chaski import progress_bar
from chaski.errors import ClosedError, OptionError
from chaski.runner.channels.asynchronous import AsyncModel
from chaski.runner.methods import ModelMethods

MESSAGES: Any = [{"role": "user", "content": "hello"}]
CALLS: dict[str, tuple[Any, ...]] = {
    "generate": ("a",),
    "stream": ("a",),
    "chat": (MESSAGES,),
    "stream_chat": (MESSAGES,),
    "generate_many": (["a", "b"],),
    "chat_many": ([MESSAGES],),
    "embed": (["a"],),
    "score": ("a", ["b"]),
    "rerank": ("a", ["b"]),
    "tokenize": ("a",),
    "detokenize": ([1],),
    "load_adapter": ("name", "path.gguf"),
    "unload_adapter": ("name",),
    "adapters": (),
    "save_state": ("state", "a"),
    "load_state": ("state",),
    "keep_prefixes": ("file",),
    "take_prefixes": ("file",),
}
OF_LLM: dict[str, tuple[Any, ...]] = {
    "logits": ("a",),
    "asynchronous": (),
    "memory": (),
    "wait_loaded": (),
    "check_open": (),
    "__enter__": (),
}
OF_WORKER: dict[str, tuple[Any, ...]] = {"info": (), "asynchronous": (), "check_open": (), "__enter__": ()}
PROPERTIES = ("tokenizer", "chat_template", "capabilities")


def require_closed(model: Any, name: str, arguments: tuple[Any, ...]) -> None:
    async def call() -> None:
        found = getattr(model, name)(*arguments)
        if inspect.isawaitable(found):
            await found
        elif hasattr(found, "__anext__"):
            await anext(found)

    with pytest.raises(ClosedError, match="this model is closed; load it again"):
        asyncio.run(call()) if isinstance(model, AsyncModel) else getattr(model, name)(*arguments)


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


def test_the_lists_are_complete() -> None:
    assert public(ModelMethods) == CALLS.keys()
    assert public(chaski.LLM) | {"__enter__"} == CALLS.keys() | OF_LLM.keys() | {"close"}
    assert public(chaski.Worker) | {"__enter__"} == CALLS.keys() | OF_WORKER.keys() | {"close", "start"}


@pytest.mark.parametrize("is_used", [False, True])
def test_every_call_of_a_closed_model_says_so(tiny_llama: Path, is_used: bool) -> None:
    model = chaski.load(tiny_llama, threads=1)
    loop = model.asynchronous()
    if is_used:
        model.generate("a", num_predict=1)
        asyncio.run(loop.generate("a", num_predict=1))
    model.close()
    model.close()
    for name, arguments in (CALLS | OF_LLM).items():
        require_closed(model, name, arguments)
    for name, arguments in CALLS.items():
        require_closed(loop, name, arguments)
    for name in PROPERTIES:
        with pytest.raises(ClosedError):
            getattr(model, name)
    assert repr(model) == "<LLM tiny.gguf: closed>"
    assert repr(loop) == "<AsyncModel of <LLM tiny.gguf: closed>>"


@pytest.mark.parametrize("is_used", [False, True])
def test_every_call_of_a_closed_worker_says_so(tiny_llama: Path, is_used: bool) -> None:
    worker = chaski.Worker(tiny_llama, threads=1)
    loop = worker.asynchronous()
    if is_used:
        worker.info()
    worker.close()
    worker.close()
    for name, arguments in (CALLS | OF_WORKER).items():
        if "stream" in name:  # begins when it is read
            with pytest.raises(ClosedError):
                next(getattr(worker, name)(*arguments))
        else:
            require_closed(worker, name, arguments)
    for name, arguments in CALLS.items():
        require_closed(loop, name, arguments)
    assert repr(worker) == f"<Worker {tiny_llama}: closed>"


@pytest.mark.parametrize("kind", [chaski.load, chaski.Worker])
def test_a_stream_ends_with_its_model(tiny_llama: Path, kind: Any) -> None:
    """Also if all events have arrived but are not read yet."""
    model = kind(tiny_llama, threads=1)
    stream = model.stream("a", num_predict=3, ignore_eos=True)
    short = model.stream("a", num_predict=1)
    ended = list(short)
    next(stream)
    model.close()
    for _ in range(2):
        with pytest.raises(ClosedError, match="this model is closed"):
            next(stream)
    stream.close()
    assert isinstance(ended[-1], chaski.Done)
    assert list(short) == [], "it had ended before"


def test_an_answer_in_another_thread_ends_with_its_model(tiny_llama: Path, endless: dict[str, Any]) -> None:
    model = chaski.load(tiny_llama, threads=1)
    found: list[object] = []

    def read() -> None:
        try:
            for event in model.stream(**endless):
                found.append(event)
        except ClosedError as error:
            found.append(error)

    reader = Thread(target=read)
    reader.start()
    while not found:
        pass
    model.close()
    reader.join(30)
    assert isinstance(found[-1], ClosedError)


def test_how_streams_and_answers_show_themselves(model: chaski.LLM) -> None:
    stream = model.stream("a", num_predict=2, ignore_eos=True)
    assert repr(stream) == "<EventStream: 0 events read>"
    *_, done = stream
    assert repr(stream).endswith("events read, done>")
    assert repr(done).startswith("Done(reason='length', prompt_tokens=")
    assert "disk_tokens" not in repr(done), "only what differs from its default"
    answer = model.generate("a", num_predict=3, ignore_eos=True, seed=1)
    shown = repr(answer)
    assert shown.startswith(f"<Answer {answer.text!r}: 3 tokens, ")
    assert shown.endswith(" tok/s, length>")
    assert len(repr(model.generate("a", num_predict=200, ignore_eos=True, seed=1))) < 500
    with closing(model.stream("a")) as read:
        assert next(read) is not None


def test_how_a_worker_shows_itself(tiny_llama: Path) -> None:
    with chaski.Worker(tiny_llama, threads=1, context=64) as worker:
        assert repr(worker) == f"<Worker {tiny_llama}: not running; the next call loads the model>"
        worker.info()
        assert repr(worker) == f"<Worker {tiny_llama}: context 64, 0.00 GB, process {worker.pid}>"
        assert repr(worker.asynchronous()) == f"<AsyncModel of {worker!r}>"


@pytest.mark.parametrize("kind", [chaski.load, chaski.Worker])
@pytest.mark.parametrize("progress", [True, False, None])
def test_the_progress_of_loading(
    tiny_llama: Path, kind: Any, progress: bool | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with kind(tiny_llama, threads=1, progress=progress) as model:
        assert model.generate("a", num_predict=1)
    assert capsys.readouterr().err == "", "a bar is for terminals, and for what takes long"


@pytest.mark.parametrize("kind", [chaski.load, chaski.Worker])
def test_the_progress_of_loading_as_a_function(tiny_llama: Path, kind: Any) -> None:
    shares: list[float] = []
    with kind(tiny_llama, threads=1, progress=shares.append) as model:
        model.generate("a", num_predict=1)
    assert shares[-1] == 1
    assert shares == sorted(shares)
    with pytest.raises(OptionError, match="progress is 'yes'; it must be True for a bar, False, or a"):
        kind(tiny_llama, progress="yes")


@pytest.mark.parametrize("kind", [chaski.load, chaski.Worker])
def test_the_bar_of_loading(
    tiny_llama: Path, kind: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress_bar, "_PATIENCE_SECONDS", 0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with kind(tiny_llama, threads=1, progress=True) as model:
        model.generate("a", num_predict=1)
        drawn = capsys.readouterr().err
    assert "\rloading " in drawn
    assert drawn.endswith("\r\x1b[K"), "the bar is removed"
