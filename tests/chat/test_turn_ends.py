"""The token that ends a turn by the chat template ends an answer, whatever end the file names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.chat.choice import choose_chat_format
from chaski.chat.sources import TemplateSources
from chaski.chat.turn_ends import turn_ends
from chaski.text.tokenizer import load_tokenizer
from tests.text.token_fixtures import byte_level_metadata
from tests.tiny_llama import BOS, write_tiny_llama

# Special tokens of families whose turns end with other tokens than their texts.
NAMES = (
    *("<s>", "</s>", "<|role_end|>", "[|endofturn|]", "<|user|>", "<|assistant|>", "<|eot|>"),
    *("<|END_RESPONSE|>", "<|end|>"),
)
TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}END{% endfor %}<|assistant|>"


def ends_of(template: str, **variables: Any) -> set[str]:
    metadata = byte_level_metadata()
    tokens, key = metadata["tokenizer.ggml.tokens"], "tokenizer.ggml.token_type"
    metadata["tokenizer.ggml.tokens"] = [*tokens, *NAMES]
    metadata[key] = [1] * len(tokens) + [3] * len(NAMES)
    tokenizer = load_tokenizer(metadata)
    found = choose_chat_format(TemplateSources("a model", "llama", template, "<s>", "</s>", **variables))
    return {tokenizer.token(token_id) for token_id in turn_ends(found, tokenizer)}


@pytest.mark.parametrize("end", ["<|role_end|>", "[|endofturn|]", "<|eot|>", "</s>"])
def test_the_token_after_an_answer(end: str) -> None:
    assert ends_of(TURNS.replace("END", end)) == {end}
    assert ends_of(TURNS.replace("END", f"\n{end}\n")) == {end}


def test_the_token_that_begins_the_next_turn() -> None:
    """GLM writes nothing after an answer."""
    assert ends_of(TURNS.replace("END", "")) == {"<|user|>"}


@pytest.mark.parametrize(
    "template",
    [
        TURNS.replace("END", " Then, "),
        "{% for m in messages %}{{ m.content }}\n{% endfor %}",
        "{{ messages[0].content }}",
        "{{ raise_exception('no') }}",
    ],
)
def test_text_ends_no_turn(template: str) -> None:
    assert ends_of(template) == set()


def test_marks_of_the_format_end_no_turn() -> None:
    cohere = TURNS.replace("END", "<|END_RESPONSE|>") + "<|START_RESPONSE|>"
    assert ends_of(cohere) == set()
    assert ends_of(TURNS.replace("END", "<|end|>"), parser="harmony") == set()
    assert ends_of(TURNS.replace("END", "<|end|>"), parser="hermes") == {"<|end|>"}


def test_without_a_template() -> None:
    metadata = byte_level_metadata()
    found = choose_chat_format(TemplateSources("a model", "llama"))
    assert turn_ends(found, load_tokenizer(metadata)) == frozenset()


def test_a_template_in_go() -> None:
    source = "{{ range .Messages }}<|{{ .Role }}|>{{ .Content }}<|eot|>{{ end }}<|assistant|>"
    assert ends_of(TURNS, go=source) == {"<|eot|>"}


def test_an_answer_ends(tmp_path: Path) -> None:
    jinja = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|begin_of_text|>{% endfor %}"
    path = write_tiny_llama(tmp_path / "a.gguf", jinja)
    options: dict[str, Any] = {"logit_bias": {BOS: 100.0}, "num_predict": 5, "temperature": 0}
    messages = [{"role": "user", "content": "Hi"}]
    with chaski.load(path) as model:
        answer = model.chat(messages, **options)
        assert (answer.text, answer.done_reason, answer.done.generated_tokens) == ("", "stop", 1)
        assert model.chat(messages, ignore_eos=True, **options).done_reason == "length"
        chosen = model.chat(messages, choice=["a"], **options)
        assert (chosen.text, chosen.done_reason) == ("a", "stop")
        assert model.generate("Hi", **options).done_reason == "length"
