"""Workers as real processes: the same answers, and every way in which either process can end."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.errors import OptionError
from chaski.runner.channels.worker.client import LoadOptions, Worker
from tests.runner.channels.worker.workers import QUESTION, same
from tests.tiny_llama import write_tiny_llama

LIVELY: dict[str, Any] = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "num_predict": 40}


@pytest.fixture(scope="module")
def here() -> Iterator[chaski.LLM]:
    with chaski.load("guide", threads=1, prompt_cache=False) as model:
        yield model


@pytest.mark.parametrize("seed", range(3))
def test_answers_are_the_same(worker: Worker, here: chaski.LLM, seed: int) -> None:
    options = LIVELY | {"seed": seed, "logprobs": True, "top_logprobs": 3}
    assert same(worker.chat(QUESTION, **options), here.chat(QUESTION, **options))
    ids = here.tokenize("How do I")
    for prompt in ("How do I", ids, tuple(ids)):
        assert same(worker.generate(prompt, **options), here.generate(prompt, **options))


def test_streams_are_the_same(worker: Worker, here: chaski.LLM) -> None:
    options = LIVELY | {"seed": 5, "stop": ["e", "zz"]}
    *texts, done = worker.stream("hello", **options)
    *expected, _ = here.stream("hello", **options)
    assert texts == expected
    assert isinstance(done, chaski.Done)
    assert done.stop_string == "e"


def test_text_and_ids(worker: Worker, here: chaski.LLM) -> None:
    text = "naïve \U0001f999 text\n"
    assert worker.tokenize(text) == here.tokenize(text)
    assert worker.tokenize(text, add_special=False) == here.tokenize(text, add_special=False)
    assert worker.detokenize(here.tokenize(text)) == here.detokenize(here.tokenize(text))


def test_info(worker: Worker, here: chaski.LLM) -> None:
    info = worker.info()
    assert (info.path, info.context, info.vocab_size) == (str(here.path), here.context, here.vocab_size)
    assert info.chat_template == here.chat_template
    assert info.memory.weights == here.memory().weights


def test_embeddings_are_the_same(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", llama__pooling_type=1)
    texts = ["the thin line", [1, 2, 3], "x"]
    with chaski.load(path, threads=1) as model, Worker(path, threads=1, parallel=2) as worker:
        for options in ({}, {"normalize": False}):
            expected = model.embed(texts, **options)
            assert worker.embed(texts, **options).tobytes() == expected.tobytes()
        assert worker.embed("x").shape == (1, expected.shape[1])
        wrongs: list[Any] = [[], [[]], ["x", [1 << 20]]]
        for wrong in wrongs:
            with pytest.raises(OptionError) as refused:
                model.embed(wrong)
            with pytest.raises(OptionError) as found:
                worker.embed(wrong)
            assert str(found.value) == str(refused.value)


def test_threads_get_their_own_answers(worker: Worker, here: chaski.LLM) -> None:
    found: dict[int, chaski.Answer] = {}

    def ask(seed: int) -> None:
        found[seed] = worker.generate("hello", seed=seed, **LIVELY)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same(found[seed], here.generate("hello", seed=seed, **LIVELY)) for seed in range(8))


def test_its_options_are_those_of_load() -> None:
    parameters = inspect.signature(chaski.load).parameters.keys() - {"model", "progress", "unknown"}
    assert set(LoadOptions.__annotations__) == parameters
    with pytest.raises(OptionError, match="option 'contxt' is unknown: did you mean context"):
        Worker("guide", contxt=5)  # type: ignore[call-arg]


def test_bad_requests_are_refused_as_in_this_process(worker: Worker, here: chaski.LLM) -> None:
    calls: list[Callable[[Any], object]] = [
        lambda model: model.generate([0, 1 << 30]),
        lambda model: model.generate([-1]),
        lambda model: model.generate([]),
        lambda model: model.generate([1] * 2000),
        lambda model: model.generate("x", stop=[""]),
        lambda model: model.generate("x", num_ctx=5),
        lambda model: model.generate("x", temperature="hot"),
        lambda model: model.generate("x", top_logprobs=5),
        lambda model: model.embed(["x"]),
    ]
    for call in calls:
        with pytest.raises(chaski.ChaskiError) as refused:
            call(here)
        with pytest.raises(type(refused.value)) as found:
            call(worker)
        assert str(found.value) == str(refused.value)


def test_what_cannot_be_sent(worker: Worker) -> None:
    with pytest.raises(OptionError, match="cannot be sent to a worker: a value of type object"):
        worker.chat([{"role": "user", "content": "hi", "note": object()}])
    assert worker.generate("hello", num_predict=1).done_reason == "length"


def test_values_of_another_type_end_no_process(worker: Worker) -> None:
    text: Any = 5
    pid = worker.pid
    with pytest.raises(OptionError, match="think is 5: expected `bool"):
        worker.chat(QUESTION, think=text)
    with pytest.raises(OptionError, match="the text is 5; it must be a text"):
        worker.tokenize(text)
    with pytest.raises(OptionError, match="truncate is 5: expected `bool`"):
        worker.embed("a", truncate=text)
    assert worker.pid == pid
    assert worker.detokenize(worker.tokenize("alive")) == "alive"


def test_a_huge_prompt(worker: Worker) -> None:
    """A prompt larger than a socket's buffer is refused or shortened, without a deadlock."""
    text = "hello " * 200_000
    with pytest.raises(OptionError, match="the context holds 1024"):
        worker.generate(text)
    answer = worker.generate(text, truncate=True, num_predict=1)
    assert answer.prompt_tokens == 1024
    assert answer.dropped_tokens > 100_000


@pytest.mark.long
def test_closing_a_stream_frees_its_slot(endless: dict[str, Any]) -> None:
    seconds = []
    with Worker("guide", threads=1, parallel=1) as worker:
        for _ in range(3):
            with closing(worker.stream(**endless)) as events:
                next(events)
            started = time.perf_counter()
            worker.generate("hello", num_predict=1)
            seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.5
