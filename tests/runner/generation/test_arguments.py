"""Invalid prompts, conversations and numbers of threads give errors that name the expected value."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.runner.loading.sizes import thread_count
from tests.tiny_llama import write_tiny_llama


@pytest.fixture(scope="module")
def model(tiny_llama: Path) -> Iterator[chaski.LLM]:
    with chaski.load(tiny_llama) as loaded:
        yield loaded


CONVERSATIONS = [
    ("hello", "the conversation is 'hello'; it must be a list of messages such as"),
    (None, "the conversation is None; it must be"),
    ({"role": "user", "content": "x"}, "it must be a list of messages"),
    (["hello"], "message 0 is 'hello'; the conversation must be a list of messages"),
    ([{"role": "user", "content": "x"}, {"content": "y"}], "message 1 has no role"),
    ([{"role": "user", "content": 5}], "the content of message 0 is 5; it must be a text"),
    ([{"role": "robot", "content": "x"}], "message 0 has the unknown role 'robot'; known: system, user,"),
]
PROMPTS = [None, 5, [1, "a"], [1.5], b"abc", {"a": 1}]


@pytest.mark.parametrize(("messages", "wanted"), CONVERSATIONS)
def test_what_is_no_conversation(model: chaski.LLM, messages: Any, wanted: str) -> None:
    with pytest.raises(chaski.OptionError, match=wanted):
        model.chat(messages)
    with pytest.raises(chaski.OptionError, match=wanted):
        asyncio.run(model.asynchronous().chat(messages))


@pytest.mark.parametrize("prompt", PROMPTS)
def test_what_is_no_prompt(model: chaski.LLM, prompt: Any) -> None:
    for ask in (model.generate, model.logits):
        with pytest.raises(chaski.OptionError, match=r"it must be a text, or a list of token ids"):
            ask(prompt)
    with pytest.raises(chaski.OptionError, match=r"it must be a text, or a list of token ids"):
        asyncio.run(model.asynchronous().generate(prompt))


def test_what_is_no_text_to_embed(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "vectors.gguf", llama__pooling_type=1)
    with chaski.load(path) as embedder:
        wrong: tuple[Any, ...] = (None, 5, b"abc", [None], [[1.5]])
        for texts in wrong:
            with pytest.raises(chaski.OptionError, match="must be a text"):
                embedder.embed(texts)
            with pytest.raises(chaski.OptionError, match="must be a text"):
                asyncio.run(embedder.asynchronous().embed(texts))
        assert embedder.embed(iter(["a", [5, 6]])).shape[0] == 2


def test_ids_of_arrays_and_generators_are_prompts(model: chaski.LLM) -> None:
    ids = model.tokenize("hello")
    expected = model.generate(ids, num_predict=3, temperature=0).text
    for prompt in (np.array(ids, np.int32), (token for token in ids)):
        assert model.generate(prompt, num_predict=3, temperature=0).text == expected


def test_roles_that_a_template_names_are_known(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% if m['role'] == 'ipython' %}!{% endif %}{{ m['content'] }}{% endfor %}"
    )
    path = write_tiny_llama(tmp_path / "python.gguf", chat_template=template)
    with chaski.load(path) as model:
        model.chat([{"role": "ipython", "content": "x"}], num_predict=1)
        with pytest.raises(chaski.OptionError, match="unknown role 'robot'"):
            model.chat([{"role": "robot", "content": "x"}])


@pytest.mark.parametrize(("name", "value"), [("temperature", -1), ("top_p", 3), ("min_p", 1.5)])
def test_options_out_of_range(model: chaski.LLM, name: str, value: float) -> None:
    wanted = "a finite number of at least 0" if name == "temperature" else "a number from 0 to 1"
    with pytest.raises(chaski.SamplingError, match=f"option {name} is {value}; it must be {wanted}"):
        model.generate("hello", **{name: value})


def test_threads(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("chaski.runner.loading.sizes.usable_processors", lambda: 8)
    for threads in (999, 33, 0, -1, 1.5, "2"):
        with pytest.raises(chaski.OptionError, match=r"threads = .* must be"):
            chaski.load(tiny_llama, threads=threads)
    assert [thread_count(None, None), thread_count(None, 3), thread_count(8, 3)] == [None, 3, 8]
    assert not caplog.records
    assert thread_count(32, None) == 32
    assert "32 threads on 8 processors wait for each other" in caplog.text
