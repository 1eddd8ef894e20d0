"""Chats with a model in this process; its answers have the same bits, however they are made."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.errors import UnsupportedError
from tests.runner.loading_tiny import GREEDY, PROMPTS, generation, load
from tests.tiny_llama import BOS, write_tiny_llama


def test_chat_writes_the_template_with_one_bos(model: chaski.LLM) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    answer = model.chat(messages, **GREEDY)
    ids = [BOS, *model.tokenize("[system]be brief[user]hi[assistant]", add_special=False)]
    assert answer.token_ids == model.generate(ids, **GREEDY).token_ids
    *_, done = model.stream_chat(messages, **GREEDY)
    assert done.prompt_tokens == len(ids)


def test_tools_have_a_template_of_their_own(tmp_path: Path) -> None:
    """It is stored as by llama.cpp's converter for models with several templates."""
    templates = {
        "tokenizer__chat_template__tool_use": "{{ tools[0].function.name }}: {{ messages[0].content }}",
        "tokenizer__chat_template__rag": "never",
    }
    chat, tools = [{"role": "user", "content": "Hi"}], [{"function": {"name": "weather"}}]
    both = write_tiny_llama(tmp_path / "a.gguf", "{{ messages[0].content }}", **templates)
    with chaski.load(both) as model:
        plain, with_tools = (model.chat(chat, tools=each, num_predict=1) for each in (None, tools))
        for answer, text in ((plain, "Hi"), (with_tools, "weather: Hi")):
            assert answer.done.prompt_tokens == len(model.tokenize(text))
    only = write_tiny_llama(tmp_path / "b.gguf", None, **templates)
    with chaski.load(only) as model:
        assert model.chat_template == templates["tokenizer__chat_template__tool_use"]


def test_tools_are_never_left_out_in_silence(tmp_path: Path) -> None:
    chat, tools = [{"role": "user", "content": "Hi"}], [{"name": "weather"}]
    path = write_tiny_llama(tmp_path / "a.gguf", "{{ messages[0].content }}")
    with chaski.load(path) as model, pytest.raises(UnsupportedError, match="does not support tools"):
        model.chat(chat, tools=tools)


def test_a_file_may_name_the_template_of_rwkv(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "a.gguf", "rwkv-world", tokenizer__ggml__add_bos_token=False)
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": " Hi "}]
    with chaski.load(path) as model:
        answer = model.chat(messages, num_predict=1)
        assert answer.done.prompt_tokens == len(model.tokenize("System: Be kind.\n\nUser: Hi\n\nAssistant:"))


def test_bos_is_added_where_the_template_forgets_it(tmp_path: Path) -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    with load(write_tiny_llama(tmp_path / "tiny.gguf", template)) as model:
        assert model.chat([{"role": "user", "content": "hi"}], num_predict=1).prompt_tokens == 3


def test_a_file_without_a_template_gets_plain_text_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with load(write_tiny_llama(tmp_path / "plain.gguf", chat_template=None)) as model:
        answer = model.chat([{"role": "user", "content": "hello there"}], **GREEDY)
        assert "plain.gguf has no chat template" in caplog.text
        assert answer.token_ids == model.generate("hello there", **GREEDY).token_ids


@pytest.fixture(scope="module")
def alone(tiny_llama: Path) -> list[chaski.Answer]:
    """Return answers of each prompt on its own model, in one thread, without a cache."""
    answers = []
    for prompt in PROMPTS:
        with chaski.load(tiny_llama, threads=1, prompt_cache=False) as model:
            answers.append(model.generate(prompt, **GREEDY, logprobs=True, top_logprobs=5))
    return answers


def same(answer: chaski.Answer, other: chaski.Answer) -> bool:
    return (answer.text, answer.token_ids, answer.logprobs) == (other.text, other.token_ids, other.logprobs)


@pytest.mark.parametrize("num_batch", [4, 7, 512])
@pytest.mark.parametrize("threads", [1, 2])
def test_together_is_as_alone(
    tiny_llama: Path, alone: list[chaski.Answer], threads: int, num_batch: int
) -> None:
    with chaski.load(tiny_llama, parallel=4, threads=threads, num_batch=num_batch) as model:
        streams = [model.stream(prompt, **GREEDY, logprobs=True, top_logprobs=5) for prompt in PROMPTS]
        events: list[list[Any]] = [[] for _ in streams]
        waiting = list(zip(streams, events, strict=True))
        while waiting:
            waiting = [(stream, seen) for stream, seen in waiting if not _advance(stream, seen)]
        for seen, expected in zip(events, alone, strict=True):
            texts = [event for event in seen if isinstance(event, chaski.Text)]
            assert "".join(text.text for text in texts) == expected.text
            assert tuple(entry for text in texts for entry in text.logprobs) == expected.logprobs


def _advance(stream: Iterator[Any], seen: list[Any]) -> bool:
    """Read one event; return whether it was the last."""
    seen.append(next(stream))
    return isinstance(seen[-1], chaski.Done)


def test_from_the_prefix_cache_is_as_computed(tiny_llama: Path, alone: list[chaski.Answer]) -> None:
    with load(tiny_llama, parallel=2) as model:
        for prompt, expected in zip(PROMPTS * 2, alone * 2, strict=True):
            model.generate(prompt[: len(prompt) // 2], **GREEDY)
            answer = model.generate(prompt, **GREEDY, logprobs=True, top_logprobs=5)
            assert answer.cached_tokens > 0
            assert same(answer, expected)


@pytest.mark.parametrize("options", [{"num_batch": 1}, {"num_batch": 5}, {"parallel": 20}, {"threads": 1}])
def test_logits_do_not_depend_on_how_they_are_computed(tiny_llama: Path, options: dict[str, Any]) -> None:
    with (
        chaski.load(tiny_llama, threads=2) as model,
        chaski.load(tiny_llama, **{"threads": 2} | options) as other,
    ):
        ids = model.tokenize(PROMPTS[3])
        np.testing.assert_array_equal(model.logits(ids), other.logits(ids))


def test_threads_get_their_own_answers(tiny_llama: Path, alone: list[chaski.Answer]) -> None:
    with load(tiny_llama, parallel=3) as model:
        answers: dict[int, chaski.Answer] = {}

        def ask(index: int) -> None:
            answers[index] = model.generate(PROMPTS[index % 4], **GREEDY, logprobs=True, top_logprobs=5)

        threads = [threading.Thread(target=ask, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        assert all(same(answers[index], alone[index % 4]) for index in range(8))


def test_control_tokens_are_text_for_those_who_ask(tiny_llama: Path) -> None:
    with load(tiny_llama) as model:
        decoder = generation(model, [1], special=True)._decoder
        plain = generation(model, [1])._decoder
        assert decoder is not None
        assert plain is not None
        assert decoder.feed(BOS) == "<|begin_of_text|>"
        assert plain.feed(BOS) == ""


def test_a_caller_that_can_reload_hears_the_length_that_it_needs(tiny_llama: Path) -> None:
    """Nothing is cut then, and the answer has room."""
    turns = [{"role": "user", "content": "y" * 20}] * 2
    with chaski.load(tiny_llama, context=30) as model:
        asked: dict[str, Any] = {"truncate": True, "num_predict": 5}
        for ask in (model.generate, model.stream):
            with pytest.raises(chaski.ContextLengthError) as caught:
                list(ask("x" * 28, can_reload=True, **asked))
            assert caught.value.length == 34  # with BOS
            assert ask("x" * 28, **asked) is not None
        for talk in (model.chat, model.stream_chat):
            with pytest.raises(chaski.ContextLengthError) as caught:
                list(talk(turns, can_reload=True, **asked))
            assert caught.value.length > 45
        assert model.generate("x" * 24, can_reload=True, **asked).prompt_tokens == 25
