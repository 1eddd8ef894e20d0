"""The public API with a tiny random model, on both backends if results need not be exact to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.errors import ChaskiError, OptionError
from tests.runner.loading_tiny import GREEDY, PROMPTS, generation, load
from tests.tiny_llama import BOS, CONTEXT, END, EOT, write_tiny_llama


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
        ([0, 265], "token id 265 is not in the model's vocabulary of 265"),
        ([-1], "token id -1 is not in the model's vocabulary of 265"),
        ([1] * (CONTEXT + 1), f"the prompt has {CONTEXT + 1} tokens, but the context holds {CONTEXT}"),
    ],
)
def test_bad_token_ids(model: chaski.LLM, ids: list[int], message: str) -> None:
    for call in (model.logits, model.generate, model.stream):
        with pytest.raises(OptionError, match=message):
            call(ids)


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


@pytest.mark.long
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
