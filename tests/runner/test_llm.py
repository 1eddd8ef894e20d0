"""The public API on a tiny random model, on both backends where results need not be exact to the bit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.chat.requests import Generate
from chaski.errors import ChaskiError, OptionError, UnsupportedError
from chaski.runner.generation.generation import Generation
from tests.tiny_llama import BOS, CONTEXT, END, EOT, write_tiny_llama

GREEDY: dict[str, Any] = {"temperature": 0, "num_predict": 24}
PROMPTS = ["hello there", "in the other end", "x", "an answer, and another one: 1234567890 " * 3]


@pytest.fixture(params=["reference", "cpu"])
def model(request: pytest.FixtureRequest, tiny_llama: Path) -> Iterator[chaski.LLM]:
    with chaski.load(tiny_llama, backend=request.param, threads=1) as loaded:
        yield loaded


def load(path: Path, **options: Any) -> chaski.LLM:
    return chaski.load(path, threads=2, **options)


# ---- logits ----


def test_logits_have_a_row_for_every_token(model: chaski.LLM) -> None:
    ids = model.tokenize(PROMPTS[3])
    logits = model.logits(ids)
    assert logits.shape == (len(ids), model.vocab_size)
    assert logits.dtype == np.float32
    assert np.isfinite(logits).all()


def test_logits_are_a_copy_and_of_a_fresh_sequence(model: chaski.LLM) -> None:
    ids = model.tokenize(PROMPTS[0])
    first = model.logits(ids)
    kept = first.copy()
    model.logits(ids[::-1])
    model.generate(PROMPTS[1], **GREEDY)
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(model.logits(ids), kept)


def test_logits_are_those_that_generation_sees(model: chaski.LLM) -> None:
    answer = model.generate(PROMPTS[1], **GREEDY)
    logits = model.logits([*model.tokenize(PROMPTS[1]), *answer.token_ids])
    assert tuple(logits[-len(answer.token_ids) - 1 : -1].argmax(1)) == answer.token_ids


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "the prompt is empty"),
        ([0, 265], "token id 265 is not among the 265"),
        ([-1], "token id -1 is not among the 265"),
        ([1] * (CONTEXT + 1), f"the prompt has {CONTEXT + 1} tokens, but the context holds {CONTEXT}"),
    ],
)
def test_bad_token_ids(model: chaski.LLM, ids: list[int], message: str) -> None:
    for call in (model.logits, model.generate, model.stream):
        with pytest.raises(OptionError, match=message):
            call(ids)


# ---- text ----


def test_text_to_ids_and_back(model: chaski.LLM) -> None:
    ids = model.tokenize("the thin line")
    assert ids[0] == BOS
    assert model.tokenize("the thin line", add_special=False) == ids[1:]
    assert model.detokenize(ids) == "the thin line"


def test_logits_need_no_tokenizer(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", tokenizer__ggml__model="no_vocab")
    model = load(path)
    assert model.logits([1, 2]).shape == (2, 265)
    with pytest.raises(ChaskiError, match="no_vocab: this file has no tokenizer"):
        model.tokenize("text")


def test_a_text_prompt_gets_bos_and_ids_do_not(model: chaski.LLM) -> None:
    ids = model.tokenize(PROMPTS[0])
    assert model.generate(PROMPTS[0], **GREEDY).token_ids == model.generate(ids, **GREEDY).token_ids
    assert model.generate(ids[1:], **GREEDY).prompt_tokens == len(ids) - 1


# ---- generating ----


@pytest.mark.parametrize(
    "options", [GREEDY, {"seed": 3, "num_predict": 40}, {"seed": 3, "stop": ["e", "in"]}]
)
def test_stream_is_generate_in_pieces(model: chaski.LLM, options: dict[str, Any]) -> None:
    answer = model.generate(PROMPTS[0], **options)
    *pieces, done = model.stream(PROMPTS[0], **options)
    assert "".join(piece.text for piece in pieces) == answer.text
    assert tuple(token for piece in pieces for token in piece.token_ids) == answer.token_ids
    assert done.reason == answer.done_reason
    assert done.cached_tokens == done.prompt_tokens - 1


def test_tokens_come_out_as_they_are_made(model: chaski.LLM) -> None:
    pieces = [event for event in model.stream(PROMPTS[0], **GREEDY) if isinstance(event, chaski.Text)]
    assert len(pieces) > GREEDY["num_predict"] // 2


def test_one_seed_gives_one_answer(model: chaski.LLM) -> None:
    def answer(seed: int) -> tuple[int, ...]:
        return model.generate(PROMPTS[0], seed=seed, temperature=2.0, top_k=0, num_predict=12).token_ids

    assert answer(1) == answer(1)
    assert len({answer(seed) for seed in range(5)}) == 5


def test_without_a_seed_answers_differ(model: chaski.LLM) -> None:
    answers = {model.generate(PROMPTS[0], temperature=2.0, top_k=0, num_predict=12).text for _ in range(4)}
    assert len(answers) > 1


def test_num_predict(model: chaski.LLM) -> None:
    answer = model.generate(PROMPTS[0], temperature=0, num_predict=5)
    assert len(answer.token_ids) == answer.done.generated_tokens == 5
    assert answer.done_reason == "length"
    nothing = model.generate(PROMPTS[0], num_predict=0)
    assert (nothing.text, nothing.token_ids, nothing.done_reason) == ("", (), "length")


def test_generation_ends_with_the_context(model: chaski.LLM) -> None:
    ids = model.tokenize(PROMPTS[3])
    answer = model.generate(ids, seed=4, shift=False)
    # The last token needs no room: nothing is computed after it.
    assert answer.prompt_tokens + answer.done.generated_tokens <= CONTEXT + 1
    full = model.generate([1] * CONTEXT, temperature=0, shift=False)
    assert full.done.generated_tokens == 1
    assert full.done_reason == "length"


def test_an_answer_goes_on_when_the_context_is_full(model: chaski.LLM) -> None:
    answer = model.generate([1] * (CONTEXT - 10), **GREEDY, num_keep=6)
    assert answer.done.generated_tokens == 24
    assert answer.shifted_tokens == (CONTEXT - 6) // 2 // 16 * 16
    short = model.generate([1] * (CONTEXT - 10), **GREEDY, shift=False)
    assert short.token_ids == answer.token_ids[:11]
    assert (short.done_reason, short.shifted_tokens) == ("length", 0)


def test_what_was_shifted_does_not_change_later_answers(model: chaski.LLM) -> None:
    prompt = list(range(100, 100 + CONTEXT // 4)) * 4
    model.generate(prompt, **GREEDY)
    left = prompt[:4] + prompt[4 + (CONTEXT - 4) // 2 :]
    later = model.generate(left, **GREEDY)
    assert later.cached_tokens <= 4
    other = model.generate([5, *left], **GREEDY)
    assert model.generate(left, **GREEDY).token_ids == later.token_ids
    assert other.prompt_tokens == len(left) + 1


def test_every_end_token_of_the_file_stops(model: chaski.LLM) -> None:
    assert model.tokenizer.eos_ids == {END, EOT}
    wild: dict[str, Any] = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "shift": False}
    answers = [model.generate("ab", seed=seed, **wild) for seed in range(10)]
    stopped = [answer for answer in answers if answer.done_reason == "stop"]
    assert len(stopped) > 2
    for answer in stopped:
        assert not {END, EOT} & {*answer.token_ids}
        assert answer.done.generated_tokens == len(answer.token_ids) + 1


def test_stop_texts_end_the_answer_and_are_not_in_it(model: chaski.LLM) -> None:
    whole = model.generate(PROMPTS[0], **GREEDY)
    stop = whole.text[9:12]
    answer = model.generate(PROMPTS[0], **GREEDY, stop=["never seen", stop])
    assert answer.text == whole.text[: whole.text.index(stop)]
    assert answer.done_reason == "stop"
    assert answer.done.stop_string == stop
    assert whole.token_ids[: len(answer.token_ids)] == answer.token_ids


def test_logprobs(model: chaski.LLM) -> None:
    answer = model.generate(PROMPTS[0], **GREEDY, logprobs=True, top_logprobs=3)
    assert [entry.token_id for entry in answer.logprobs] == list(answer.token_ids)
    logits = model.logits([*model.tokenize(PROMPTS[0]), *answer.token_ids])
    row = logits[-len(answer.token_ids) - 1].astype(np.float64)
    expected = row - np.log(np.exp(row).sum())
    first = answer.logprobs[0]
    assert first.logprob == pytest.approx(expected.max(), abs=1e-5)
    assert first.top_logprobs is not None
    assert [entry.logprob for entry in first.top_logprobs] == pytest.approx(
        sorted(expected)[:-4:-1], abs=1e-5
    )
    assert model.generate(PROMPTS[0], **GREEDY).logprobs == ()


def test_counts_and_times(model: chaski.LLM) -> None:
    answer = model.generate(PROMPTS[2], **GREEDY)
    assert answer.prompt_tokens == 2
    assert answer.cached_tokens == 0
    assert answer.dropped_tokens == 0
    done = answer.done
    assert min(done.load_seconds, done.prefill_seconds, done.decode_seconds) > 0
    assert model.generate(PROMPTS[2] + "yz", **GREEDY).cached_tokens == 2


# ---- prompts that are too long ----


def generation(model: chaski.LLM, ids: list[int], **options: Any) -> Generation:
    """The sequence that continues a prompt of ids."""
    return model.prompts.generation(model.prompts.prepare(Generate(tuple(ids), options)))


@pytest.mark.parametrize(("num_keep", "kept"), [(0, 1), (1, 1), (3, 3), (1000, CONTEXT - 1)])
def test_truncation_keeps_the_beginning_and_the_end(model: chaski.LLM, num_keep: int, kept: int) -> None:
    """BOS is kept in any case, and the last token too."""
    ids = [BOS, *range(200), *range(200)]
    sequence = generation(model, ids, truncate=True, num_keep=num_keep)
    assert sequence.tokens == [*ids[:kept], *ids[kept - CONTEXT :]]
    answer = model.generate(ids, truncate=True, num_keep=num_keep, num_predict=1)
    assert (answer.dropped_tokens, answer.prompt_tokens) == (len(ids) - CONTEXT, CONTEXT)


def test_a_prompt_that_fits_is_not_touched(model: chaski.LLM) -> None:
    assert model.generate([7] * CONTEXT, truncate=True, num_predict=1).dropped_tokens == 0


# ---- leaving early ----


def test_closing_a_stream_ends_its_sequence(model: chaski.LLM) -> None:
    stream = model.stream(PROMPTS[0], temperature=0)
    next(stream)
    (sequence,) = model.engine._sequences.running
    stream.close()
    length = len(sequence.tokens)
    assert model.generate(PROMPTS[1], **GREEDY).done.generated_tokens > 0
    assert len(sequence.tokens) == length


def test_a_stream_nobody_reads_does_not_block_others(model: chaski.LLM) -> None:
    stream = model.stream(PROMPTS[0], **GREEDY)
    first = next(stream)
    answer = model.generate(PROMPTS[1], **GREEDY)
    assert answer.done.generated_tokens > 0
    rest = list(stream)
    whole = model.generate(PROMPTS[0], **GREEDY)
    assert "".join(event.text for event in [first, *rest[:-1]]) == whole.text


# ---- chat ----


def test_chat_writes_the_template_with_one_bos(model: chaski.LLM) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    answer = model.chat(messages, **GREEDY)
    ids = [BOS, *model.tokenize("[system]be brief[user]hi[assistant]", add_special=False)]
    assert answer.token_ids == model.generate(ids, **GREEDY).token_ids
    *_, done = model.stream_chat(messages, **GREEDY)
    assert done.prompt_tokens == len(ids)


def test_tools_have_a_template_of_their_own(tmp_path: Path) -> None:
    """As files of llama.cpp's converter have them for models with several templates."""
    templates = {
        "tokenizer__chat_template__tool_use": "{{ tools[0].name }}: {{ messages[0].content }}",
        "tokenizer__chat_template__rag": "never",
    }
    chat, tools = [{"role": "user", "content": "Hi"}], [{"name": "weather"}]
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


# ---- the same answer, to the bit ----


@pytest.fixture(scope="module")
def alone(tiny_llama: Path) -> list[chaski.Answer]:
    """Each prompt on a model of its own, in one thread, without anything cached."""
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
    """Read one event; whether it was the last."""
    seen.append(next(stream))
    return isinstance(seen[-1], chaski.Done)


def test_from_the_prompt_cache_is_as_computed(tiny_llama: Path, alone: list[chaski.Answer]) -> None:
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
