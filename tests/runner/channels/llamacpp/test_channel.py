"""The service and the worker around llama.cpp, with a fake package."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chaski.chat.events import Done
from chaski.chat.requests import Chat, Generate
from chaski.errors import ChaskiError, ModelError, OptionError, OutOfMemoryError, UnsupportedError
from chaski.runner.channels.llamacpp import LlamaCppChannel
from chaski.runner.channels.llamacpp import settings as settings_module
from chaski.runner.channels.messages import Describe, Info
from chaski.runner.channels.worker.client import Worker
from tests.runner.loading.test_engine_choice import write_misfit
from tests.tiny_llama import write_tiny_llama

FAKE = Path(__file__).parent / "fake"


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the fake package importable, here and in workers."""
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.delitem(sys.modules, "xllamacpp", raising=False)
    yield
    sys.modules.pop("xllamacpp", None)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model of an architecture that is not native."""
    path = tmp_path_factory.mktemp("foreign") / "foreign.gguf"
    return write_tiny_llama(path, general__architecture="foreign", foreign__context_length=256)


@pytest.fixture
def worker(foreign: Path) -> Iterator[Worker]:
    with Worker(foreign, threads=1) as opened:
        yield opened


def test_an_architecture_without_a_file_is_computed_by_llama_cpp(worker: Worker, foreign: Path) -> None:
    info = worker.info()
    assert (info.engine, info.path, info.context, info.vocab_size) == ("llama.cpp", str(foreign), 256, 265)


def test_tensors_that_no_architecture_of_ours_has_are_computed_by_llama_cpp(tmp_path: Path) -> None:
    tensor = "blk.1.attn_q_gate.weight"
    with Worker(write_misfit(tmp_path / "variant.gguf", tensor, (2, 64)), threads=1) as worker:
        assert worker.info().engine == "llama.cpp"
        assert worker.generate("abc").text == "cba"
    both = rf"llama\.cpp cannot load this model.*The native engine reports: .*has no use for tensors {tensor}"
    broken = write_misfit(tmp_path / "broken.gguf", tensor, (2, 64))
    with Worker(broken, threads=1) as worker, pytest.raises(ModelError, match=both):
        worker.info()


def test_answers(worker: Worker) -> None:
    answer = worker.generate("abc")
    assert (answer.text, answer.token_ids) == ("cba", (99, 98, 97))
    done = answer.done
    assert (done.reason, done.prompt_tokens, done.cached_tokens, done.generated_tokens) == ("stop", 4, 1, 4)
    assert (done.prefill_seconds, done.decode_seconds) == (0.01, 0.02)
    cut = worker.generate("abc", num_predict=2)
    assert (cut.text, cut.done_reason, cut.done.generated_tokens) == ("cb", "length", 2)
    none = worker.generate("abc", num_predict=0)
    assert (none.text, none.done_reason, none.done.generated_tokens) == ("", "length", 0)


def test_conversations_are_written_with_the_template(worker: Worker) -> None:
    answer = worker.chat([{"role": "user", "content": "ab"}])
    written = "<|begin_of_text|>[user]ab[assistant]"
    assert answer.text == written[::-1]
    assert answer.done.prompt_tokens == len(written) + 1, (
        "with BOS, since the stand-in knows no control tokens"
    )


THINKING = (
    "{% for m in messages %}{% if m.thinking %}<think>{{ m.thinking }}</think>{% endif %}{{ m.content }}"
    "{% endfor %}{% if add_generation_prompt %}<think>{% endif %}"
)


def test_thoughts_end_with_their_budget(tmp_path: Path) -> None:
    """The answer to a prompt is the prompt backwards; a second prompt contains the end of the thought."""
    names = {"general__architecture": "foreign", "foreign__context_length": 256}
    path = write_tiny_llama(tmp_path / "thinker.gguf", chat_template=THINKING, **names)
    question = [{"role": "user", "content": "abc"}]
    with Worker(path, threads=1) as worker:
        whole = worker.chat(question)
        assert (whole.thinking, whole.text) == ("abc<think>"[::-1], "")
        for budget, thought in ((0, ""), (1, ">"), (4, ">kni")):
            answer = worker.chat(question, reasoning_budget=budget)
            assert (answer.thinking, answer.text) == (thought, f"abc<think>{thought}</think>"[::-1])
            assert answer.done.thinking_tokens == budget
            assert answer.done.generated_tokens == 2 * budget + 10 + 2 * 8 + 1
            assert (answer.done.prompt_tokens, answer.done_reason) == (11, "stop")
        cut = worker.chat(question, reasoning_budget=4, num_predict=9)
        assert (cut.thinking, cut.text, cut.done_reason) == (">kni", "", "length")
        assert cut.done.generated_tokens == 9
        assert worker.chat(question, reasoning_budget=40).token_ids == whole.token_ids
        with pytest.raises(
            UnsupportedError, match="log-probabilities of an answer whose thoughts are limited"
        ):
            worker.chat(question, reasoning_budget=4, logprobs=True)
        # Where the context has no room to continue, the answer goes on.
        long = [{"role": "user", "content": "x" * 230}]
        assert worker.chat(long, reasoning_budget=10, num_predict=20).thinking.startswith(">kniht<xxx")


def test_tokens_and_vectors(worker: Worker) -> None:
    assert worker.tokenize("hi") == [262, 104, 105]
    assert worker.tokenize("hi", add_special=False) == [104, 105]
    assert worker.detokenize([262, 104, 105, 263]) == "hi"
    with pytest.raises(OptionError, match="token id 265 is not in the model's vocabulary of 265"):
        worker.detokenize([265])
    with pytest.raises(UnsupportedError, match="does not support embeddings"):
        worker.embed("hi")


def test_embedding_models(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "e.gguf", general__architecture="foreign", foreign__pooling_type=1)
    with Worker(path, threads=1) as worker:
        np.testing.assert_allclose(worker.embed(["a", "b"]), [[0.6, 0.8]] * 2)
        np.testing.assert_array_equal(worker.embed("a", normalize=False), [[3, 4]])
        with pytest.raises(UnsupportedError, match="makes embeddings, not text"):
            worker.generate("a")


def test_refusals_are_errors_of_the_request(worker: Worker) -> None:
    with pytest.raises(ChaskiError, match=r"llama\.cpp: no luck"):
        worker.generate("abc", num_predict=13)
    with pytest.raises(OptionError, match="the prompt has 301 tokens, but the context holds 254"):
        worker.generate("x" * 300)
    with pytest.raises(OptionError, match="schema that cannot be used"):
        worker.generate("abc", format={"type": "nothing"})
    with pytest.raises(OptionError, match="behind the model's thinking"):
        worker.generate("abc", grammar='start: "a"', format_thought={"opening": "<t>", "closing": "</t>"})
    with pytest.raises(UnsupportedError, match="does not see images"):
        worker.generate("abc", [b"GIF"])
    assert worker.generate("abc").text == "cba", "it lives on"


def test_conversations_without_an_answer(worker: Worker) -> None:
    """A request for a conversation returns its text and tokens."""
    messages = ({"role": "user", "content": "abc"},)
    pictured = ({"role": "user", "content": "abc", "images": [0]},)

    async def ask() -> None:
        model = worker.asynchronous()
        chat = Chat(messages, (), {})
        text = await model.render_chat(chat)
        assert "abc" in text
        assert (await model.tokenize_chat(chat))[-1] == (await model.tokenize(text))[-1]
        with pytest.raises(UnsupportedError, match="does not see images"):
            await model.tokenize_chat(Chat(pictured, (), {}, (b"GIF",)))

    asyncio.run(ask())


def test_who_leaves_ends_the_answer(foreign: Path) -> None:
    with_socket = LlamaCppChannel(foreign, {"threads": 1}, lambda: None)
    import xllamacpp

    replies: list[object] = []
    task = with_socket.start(Generate("~", {}), replies.append)
    deadline = time.monotonic() + 10
    while len(replies) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    task.cancel()
    while not xllamacpp.LEFT:
        assert time.monotonic() < deadline, "llama.cpp was not told"
        time.sleep(0.005)
    count = len(replies)
    time.sleep(0.05)
    assert len(replies) == count
    with_socket.close()


def test_users_do_not_share_prompts(foreign: Path) -> None:
    """llama.cpp has no salts: as soon as there are two, prompts are not reused."""
    channel = LlamaCppChannel(foreign, {"threads": 1}, lambda: None)
    import xllamacpp

    for salt in ("a", "a", "b", "a", ""):
        replies: list[object] = []
        channel._handle(Generate("abc", {"cache_salt": salt}), channel._new_task(replies.append))
        assert isinstance(replies[-1], Done)
    assert xllamacpp.CACHED == [True, True, False, False, False]
    channel.close()


def test_what_llama_cpp_is_told(foreign: Path) -> None:
    options = {"threads": 3, "context": 200, "parallel": 2, "kv_type": "q8_0:f16", "prompt_cache": False}
    options |= {"num_gpu": 7, "main_gpu": 1}
    service = LlamaCppChannel(foreign, options, lambda: None)
    import xllamacpp

    told = xllamacpp.Server.parameters
    assert (told.n_ctx, told.n_parallel, told.cpuparams.n_threads) == (512, 2, 3)
    assert (told.cache_type_k.name, told.cache_type_v.name) == ("GGML_TYPE_Q8_0", "GGML_TYPE_F16")
    assert (told.cache_prompt, hasattr(told, "embedding")) == (False, False)
    assert (told.n_gpu_layers, told.main_gpu) == (7, 1)
    folder = Path(told.hostnames[0]).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    replies: list[object] = []
    service.start(Describe(), replies.append)
    while not replies:
        time.sleep(0.001)
    assert isinstance(replies[0], Info)
    assert replies[0].context == 200
    service.close()
    assert not folder.exists()


def test_what_does_not_fit_is_refused_before_it_is_loaded(
    foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_module, "available_memory", lambda: 100_000)
    with pytest.raises(OutOfMemoryError, match=r"but 0\.000 GB of memory are available"):
        LlamaCppChannel(foreign, {}, lambda: None)


def test_what_it_cannot_load_is_an_error(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "broken.gguf", general__architecture="foreign")
    with Worker(path, threads=1) as worker, pytest.raises(ModelError, match=r"llama\.cpp cannot load"):
        worker.info()


def test_other_backends_are_refused(foreign: Path) -> None:
    with pytest.raises(OptionError, match="backend = 'reference'"):
        LlamaCppChannel(foreign, {"backend": "reference"}, lambda: None)


def test_integers_are_no_type_of_llama_cpp(foreign: Path) -> None:
    with pytest.raises(OptionError, match="cannot store keys and values as i16; it supports f32, f16"):
        LlamaCppChannel(foreign, {"kv_type": "f16:i16"}, lambda: None)
