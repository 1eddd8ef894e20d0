"""Images in the engine: prefix cache, encoder, other sequences, full contexts, cancelled requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.chat.answer import collect
from chaski.chat.image_rows import ImageRun, entries, moved_down, rows_in, whole
from chaski.chat.layout import Prompt, lay_out, shown_placeholders, typed_placeholders, with_placeholders
from chaski.chat.requests import Generate
from chaski.errors import ComputationError, OptionError, UnsupportedError
from chaski.model.multimodal import Image
from chaski.runner.generation.generation import Generation
from tests.tiny_vision import DATA, image
from tests.vision_oracle import answers_at_once, said

GEMMA = DATA / "gemma3.gguf"
GREEDY: dict[str, Any] = {"temperature": 0, "logprobs": True, "num_predict": 6}
ROWS = 9


@pytest.fixture(scope="module")
def model() -> Iterator[chaski.LLM]:
    with chaski.load(GEMMA, context=128, parallel=3, num_batch=32) as loaded:
        yield loaded


def fresh(prompt: str, *numbers: int, **options: Any) -> chaski.Answer:
    with chaski.load(GEMMA, context=128, parallel=1, num_batch=32) as alone:
        return alone.generate(prompt, images(*numbers), **GREEDY, **options)


def images(*numbers: int) -> list[Any]:
    return [image("gemma3", number) for number in numbers]


def num_encoded(model: chaski.LLM) -> int:
    assert model.engine._in_flight._images is not None
    return model.engine._in_flight._images.num_encoded


def same(a: chaski.Answer, b: chaski.Answer) -> bool:
    return (a.token_ids, a.logprobs) == (b.token_ids, b.logprobs)


def test_a_repeated_image_is_neither_encoded_nor_computed_again() -> None:
    prompt = "see [img-0] and [img-1]: the"
    with chaski.load(GEMMA, context=128) as model:
        first = model.generate(prompt, images(0, 1), **GREEDY)
        again = model.generate(prompt, images(0, 1), **GREEDY)
        assert again.evaluated_tokens == 1
        other = model.generate(prompt, images(0, 2), **GREEDY)
        assert num_encoded(model) == 3
        moved = model.generate("the mountains, " + prompt, images(0, 1), **GREEDY)
        assert num_encoded(model) == 3
        behind = model.tokenize("<end_of_image>\n\n: the", add_special=False)
    assert same(first, again)
    assert same(other, fresh(prompt, 0, 2))
    assert same(moved, fresh("the mountains, " + prompt, 0, 1))
    # Tokens after a different image are not reused, nor parts of an image.
    assert other.cached_tokens == first.prompt_tokens - ROWS - len(behind)
    assert not same(first, other)


def test_sequences_with_images_in_one_batch_are_as_alone(model: chaski.LLM) -> None:
    prompts = [("a [img-0] b", (0,)), ("[img-1][img-0]the load", (3, 4)), ("only text here", ())]
    together = answers_at_once(model, [(prompt, images(*numbers)) for prompt, numbers in prompts], **GREEDY)
    assert together == [said(fresh(prompt, *numbers)) for prompt, numbers in prompts]


def test_what_is_not_placed_comes_in_front(model: chaski.LLM) -> None:
    placed = model.generate("[img-0][img-1]the load", images(0, 1), **GREEDY)
    assert same(placed, model.generate("the load", images(0, 1), **GREEDY))
    ids, bos = model.tokenize("the load", add_special=False), model.tokenizer.bos_id
    assert bos is not None
    assert same(
        model.generate([bos, *ids], images(0), **GREEDY),
        model.generate(ids, images(0), **GREEDY),
    )


def parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def test_a_conversation_with_images(model: chaski.LLM) -> None:
    messages = [
        {"role": "user", "content": "look:", "images": images(0)},
        {"role": "assistant", "content": "yes"},
        {
            "role": "user",
            "content": [*parts("and "), {"type": "image"}, *parts(" here")],
            "images": images(1),
        },
    ]
    text = "<user>[img-0]look:\n<assistant>yes\n<user>and [img-1] here\n"
    assert same(model.chat(messages, **GREEDY), model.generate(text, images(0, 1), **GREEDY))


def test_a_conversation_that_is_too_long_loses_turns_with_their_images(model: chaski.LLM) -> None:
    turns = [
        {"role": "user", "content": f"{number} the load", "images": images(number)} for number in range(9)
    ]
    answer = model.chat(turns, truncate=True, **GREEDY)
    assert answer.dropped_tokens > 0
    kept = next(
        number
        for number in range(9)
        if same(answer, model.chat(turns[number:], **GREEDY | {"num_predict": 6}, truncate=True))
        and not model.chat(turns[number:], truncate=True, **GREEDY).dropped_tokens
    )
    assert 0 < kept < 8


def generation(model: chaski.LLM, prompt: str, images: list[Image], **options: Any) -> Generation:
    """Return the sequence that continues a prompt."""
    sequence = model.prompts.generation(model.prompts.prepare(Generate(prompt, options), images))
    assert isinstance(sequence, Generation)
    return sequence


def test_a_raw_prompt_that_is_too_long_loses_whole_images() -> None:
    with chaski.load(GEMMA, context=48) as model:
        prompt = "the load [img-0] x [img-1] y [img-2] and the mountains"
        with pytest.raises(OptionError, match="but the context holds 48"):
            model.generate(prompt, images(0, 1, 2))
        sequence = generation(model, prompt, images(0, 1, 2), truncate=True, num_keep=6)
        assert len(sequence.tokens) <= 48
        assert [len(run.positions) for run in sequence.images] in ([ROWS], [ROWS] * 2)
        assert [entries(run) for run in sequence.images] == [
            sequence.tokens[run.positions.start : run.positions.stop] for run in sequence.images
        ]


def test_what_is_left_of_a_prompt_is_never_nothing() -> None:
    (one,) = images(0)
    prompt = Prompt([1, *entries(ImageRun(range(ROWS), one))], (ImageRun(range(1, 1 + ROWS), one),))
    with pytest.raises(OptionError, match="ends with an image"):
        prompt.shortened(excess=3, keep=1)
    longer = prompt.followed_by([2])
    assert longer.shortened(excess=3, keep=1) == Prompt([1, 2])


def test_a_full_context_forgets_whole_images() -> None:
    prompt = "[img-0]the[img-1]load"
    with chaski.load(GEMMA, context=40) as model:
        answer = model.generate(prompt, images(0, 1), num_predict=40, temperature=0, num_keep=1)
        assert answer.shifted_tokens > ROWS
        sequence = generation(model, prompt, images(0, 1), num_keep=1)
        dropped = range(1, sequence.images[0].positions.stop)
        sequence.drop(dropped)
        (left,) = sequence.images
        assert entries(left) == sequence.tokens[left.positions.start : left.positions.stop]
        assert sequence.groups == (left.positions,)


def test_full_contexts_with_images_beside_each_other() -> None:
    """Dropped tokens and moved keys do not depend on other sequences."""
    long = {**GREEDY, "num_predict": 40, "num_keep": 1}
    prompts = [("[img-0]the[img-1]load", images(0, 1)), ("a [img-0] b", images(2)), ("only text", [])]
    with chaski.load(GEMMA, context=40, prompt_cache=False) as model:
        answers = [model.generate(*prompt, **long) for prompt in prompts]
    assert all(answer.shifted_tokens for answer in answers)
    with chaski.load(GEMMA, context=40, parallel=3, num_batch=24) as model:
        assert answers_at_once(model, prompts, **long) == [said(answer) for answer in answers]


def test_a_sequence_that_is_left_holds_no_slot(model: chaski.LLM) -> None:
    for number in range(5, 10):
        stream = model.stream("[img-0] the", images(number), temperature=0)
        next(stream)
        stream.close()
    assert same(model.generate("x [img-0]", images(0), **GREEDY), fresh("x [img-0]", 0))


def test_an_image_is_encoded_once_although_prepared_batches_are_taken_back() -> None:
    """While one sequence decodes, the next batch is prepared; then a new sequence changes it."""
    with chaski.load(GEMMA, context=128, parallel=2, num_batch=16) as model:
        long = model.stream("the load", **GREEDY | {"num_predict": 60})
        next(long)
        for number in range(4):
            model.generate(f"{number} [img-0] and [img-1]", images(number, number + 1), **GREEDY)
            next(long)
        assert num_encoded(model) == 5


def test_a_failed_encoding_ends_its_own_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with chaski.load(GEMMA, context=128, num_batch=16, parallel=2) as model:
        encoded: Any = model.engine._in_flight._images
        other = model.stream("x the load", **GREEDY)
        first = next(other)
        with monkeypatch.context() as patch:
            patch.setattr(encoded._encoder, "encode", lambda image: 1 / 0)
            with pytest.raises(ComputationError, match="ZeroDivisionError"):
                model.generate("a [img-0]", images(0), **GREEDY)
        assert same(collect([first, *other]), fresh("x the load"))
        assert same(model.generate("a [img-0]", images(0), **GREEDY), fresh("a [img-0]", 0))


def test_encoded_images_are_bounded_in_bytes() -> None:
    with chaski.load(GEMMA, context=128) as model:
        encoded: Any = model.engine._in_flight._images
        size = encoded.rows(image("gemma3", 0)).nbytes
        encoded.max_bytes = 2 * size
        for number in (1, 0, 2, 0, 2):
            encoded.rows(image("gemma3", number))
        assert encoded.num_encoded == 3
        encoded.rows(image("gemma3", 1))
        assert encoded.num_encoded == 4


def test_the_reservation_has_the_encoder() -> None:
    with chaski.load(GEMMA, context=128) as with_vision, chaski.load("guide", context=64) as text_only:
        assert with_vision.has_vision
        assert not text_only.has_vision


def test_an_image_needs_a_batch_that_holds_it_whole() -> None:
    with (
        chaski.load(GEMMA, context=128, num_batch=8) as model,
        pytest.raises(OptionError, match="9 tokens must be computed at once, but num_batch is 8"),
    ):
        model.generate("[img-0]", images(0))


def test_a_model_without_vision_refuses_images() -> None:
    with chaski.load("guide", context=64) as model:
        with pytest.raises(UnsupportedError, match=r"guide.gguf: this model does not see images"):
            model.generate("what is this?", [b"\x89PNG"])
        with pytest.raises(UnsupportedError, match="does not see images"):
            model.chat([{"role": "user", "content": "?", "images": [b"\x89PNG"]}])
        plain = model.generate("what is [img-0]?", num_predict=1)
        assert plain.prompt_tokens == len(model.tokenize("what is [img-0]?"))


def test_files_that_are_not_there(model: chaski.LLM) -> None:
    with pytest.raises(OptionError, match=r"the image 'no\.png' cannot be read: No such file"):
        model.generate("x", ["no.png"])
    with pytest.raises(OptionError, match="cannot be read"):
        model.generate("x", [Path("/")])


def test_text_beside_an_image_is_read_together_with_what_stands_around_it() -> None:
    read: list[str] = []

    def encode(text: str) -> list[int]:
        read.append(text)
        return [len(read)]

    prompt = lay_out(typed_placeholders("a\n[img-0][img-7]\nb[img-0]"), images(0), encode, encode)
    assert read == [
        "a\n\n\n<start_of_image>",
        "<end_of_image>\n\n[img-7]\nb\n\n<start_of_image>",
        "<end_of_image>\n\n",
    ]
    assert [run.positions for run in prompt.images] == [range(1, 10), range(11, 20)]
    assert prompt.groups == ()
    placed = with_placeholders(typed_placeholders("x [img-1]"), 3)
    assert shown_placeholders(placed) == "[img-0][img-2]x [img-1]"


def test_runs_of_rows() -> None:
    """An image has two runs with text between them, and another image follows."""
    first, second = images(0, 1)
    runs = (
        ImageRun(range(2, 5), first),
        ImageRun(range(6, 8), first, 3),
        ImageRun(range(8, 10), second),
    )
    assert whole(runs) == (range(2, 8), range(8, 10))
    assert [(run.positions, run.first_row) for run in rows_in(runs, range(3, 7))] == [
        (range(3, 5), 1),
        (range(6, 7), 3),
    ]
    assert [run.positions for run in moved_down(runs, range(1, 8))] == [range(1, 3)]
    every = entries(runs[0]) + entries(runs[1])
    assert entries(ImageRun(range(5), first)) == every
    assert len({*every, *entries(runs[2])}) == 7
