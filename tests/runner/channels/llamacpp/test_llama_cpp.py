"""The real llama.cpp; needs the package xllamacpp, so run it by hand."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.errors import ModelError, OptionError
from chaski.runner.channels.worker.client import Worker
from tests.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.oracle
pytest.importorskip("xllamacpp")

QUESTION = [{"role": "user", "content": "how do I use fewer cores?"}]
GREEDY = {"temperature": 0, "num_predict": 40}


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("guide", engine="llama.cpp", parallel=2, threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def native() -> Iterator[chaski.LLM]:
    with chaski.load("guide", threads=1) as opened:
        yield opened


def test_both_engines_say_the_same(worker: Worker, native: chaski.LLM) -> None:
    """Their numbers differ, but too little to change the likeliest tokens of this model."""
    for options in (GREEDY, {**GREEDY, "special": True}, {**GREEDY, "stop": ["thread"]}):
        ours, theirs = native.chat(QUESTION, **options), worker.chat(QUESTION, **options)
        assert (theirs.text, theirs.token_ids) == (ours.text, ours.token_ids)
        assert theirs.done_reason == ours.done_reason
        assert theirs.done.stop_string == ours.done.stop_string
        assert theirs.done.prompt_tokens == ours.done.prompt_tokens


def test_tokens_are_the_same(worker: Worker, native: chaski.LLM) -> None:
    for text in ("Hello world", "Héllo 漢🙂 <|end|> x", "", " a\n\nb"):
        for add, parse in ((True, True), (False, False)):
            assert worker.tokenize(text, add, parse) == native.tokenize(text, add, parse)
        ids = native.tokenize(text)
        assert worker.detokenize(ids) == native.detokenize(ids)


def test_scores_are_near(worker: Worker, native: chaski.LLM) -> None:
    options = {**GREEDY, "num_predict": 8, "logprobs": True, "top_logprobs": 3}
    ours, theirs = native.generate("Hello", **options), worker.generate("Hello", **options)
    for one, other in zip(ours.logprobs, theirs.logprobs, strict=True):
        assert one.token_id == other.token_id
        assert one.logprob == pytest.approx(other.logprob, abs=0.1)
        assert other.top_logprobs is not None
        assert len(other.top_logprobs) == 3


def test_formats_and_characters_of_several_tokens(worker: Worker, native: chaski.LLM) -> None:
    schema = {"type": "object", "properties": {"b": {"enum": ["é漢🙂"]}}, "required": ["b"]}
    answer = worker.generate("Hello", format=schema, num_predict=80, temperature=0)
    assert '"é漢🙂"' in answer.text
    assert native.detokenize(answer.token_ids) == answer.text
    assert len(answer.token_ids) in (answer.done.generated_tokens, answer.done.generated_tokens - 1)
    with pytest.raises(OptionError, match="schema that cannot be used"):
        worker.generate("Hello", format={"type": "nothing"})


def test_options_of_its_own(worker: Worker) -> None:
    options: Any = {"num_predict": 20, "ignore_eos": True, "dry_multiplier": 0.8, "xtc_probability": 0.5}
    answer = worker.generate("Hello", top_n_sigma=1.0, repetition_penalty=1.1, **options)
    assert (answer.done.generated_tokens, answer.done_reason) == (20, "length")
    assert worker.generate("Hello", repeat_last_n=None, repeat_penalty=1.2, num_predict=5).done_reason


def test_other_constraints_and_a_thought_before_them(worker: Worker) -> None:
    options: Any = {"num_predict": 200, "seed": 3, "temperature": 1.0}
    assert worker.generate("Hello", choice=["yes", "no"], **options).text in {"yes", "no"}
    assert re.fullmatch("[ab]{3}", worker.generate("Hello", regex="[ab]{3}", **options).text)
    assert worker.generate("Hello", grammar='start: "a" "b"', **options).text == "ab"
    begun = {"opening": "<t>", "closing": ".", "is_open": True}
    answer = worker.generate("Hello", choice=["yes", "no"], format_thought=begun, **options)
    assert re.fullmatch(r"[^.]*\.\s*(yes|no)", answer.text)
    at_once = worker.generate(
        "Hello", choice=["yes", "no"], format_thought={**begun, "is_open": False}, **options
    )
    assert re.fullmatch(r"(<t>[^.]*\.\s*)?(yes|no)", at_once.text)


def test_long_answers_forget(worker: Worker) -> None:
    full = worker.generate([5] * 2000, num_predict=1, truncate=True).done
    assert (full.prompt_tokens, full.dropped_tokens, full.generated_tokens) == (1022, 978, 1)
    done = worker.generate(
        "Hello", num_predict=1500, temperature=2.0, top_k=0, seed=1, logit_bias={3068: -100.0}
    ).done
    assert done.generated_tokens == 1500
    assert 1500 - 1280 <= done.shifted_tokens < 1500
    done = worker.generate("Hello", num_predict=1500, shift=False, seed=1, logit_bias={3068: -100.0}).done
    assert (done.reason, done.shifted_tokens) == ("length", 0)
    assert done.prompt_tokens + done.generated_tokens == 1023


def test_cancelled_answers_make_room(worker: Worker) -> None:
    streams = [worker.stream("Hello", num_predict=100_000, temperature=2.0, top_k=0) for _ in range(2)]
    for stream in streams:
        next(stream)
        stream.close()
    started = time.monotonic()
    worker.generate("Hello", num_predict=2)
    assert time.monotonic() - started < 5


def test_answers_beside_each_other(worker: Worker) -> None:
    expected = worker.chat(QUESTION, **GREEDY).text
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(worker.chat(QUESTION, **GREEDY).text)) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 6


def write_foreign(path: Path, **more: object) -> Path:
    """Write an architecture that is not native, with Llama's tensors."""
    sizes = {"context_length": 256, "embedding_length": 64, "feed_forward_length": 96, "block_count": 2}
    sizes |= {"attention__head_count": 4, "attention__head_count_kv": 2}
    keys: dict[str, object] = {f"xverse__{name}": value for name, value in sizes.items()}
    keys |= {"xverse__attention__layer_norm_rms_epsilon": 1e-5, **more}
    return write_tiny_llama(path, general__architecture="xverse", **keys)


def test_an_architecture_that_only_llama_cpp_has(tmp_path: Path) -> None:
    with Worker(write_foreign(tmp_path / "i.gguf"), threads=1) as worker:
        info = worker.info()
        assert (info.engine, info.context, info.vocab_size) == ("llama.cpp", 256, 265)
        assert info.memory.weights > 0
        assert worker.chat([{"role": "user", "content": "in"}], **GREEDY).done.generated_tokens > 0


@pytest.mark.parametrize("pooling", [1, 2, 3])
def test_vectors(tmp_path: Path, pooling: int) -> None:
    path = write_foreign(tmp_path / "i.gguf", xverse__pooling_type=pooling)
    with Worker(path, threads=1) as worker:
        one, other = vectors = worker.embed(["a", "the other"])
        assert vectors.shape == (2, 64)
        assert (vectors**2).sum(axis=1) == pytest.approx([1, 1], abs=1e-5)
        assert one @ other < 0.999999 or pooling == 2, "the first token is BOS"
        assert worker.embed("x" * 600, truncate=True).shape == (1, 64)


def test_a_damaged_model_is_an_error(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "x.gguf", general__architecture="there-is-none")
    with Worker(path, threads=1) as worker, pytest.raises(ModelError, match=r"llama\.cpp cannot load"):
        worker.info()
