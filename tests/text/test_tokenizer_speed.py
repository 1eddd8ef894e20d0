"""Encoding takes linear time, whatever the text."""

from __future__ import annotations

import random
import time

import pytest

from chaski.text.tokenizer import load_tokenizer
from chaski.text.tokenizer.pretokenizers import PRETOKENIZERS
from tests.text.token_fixtures import special_metadata, tokenizer

RANDOM = random.Random(1)


def texts(size):
    """Return texts of `size` characters on which careless patterns or merges take quadratic time."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return {
        "one letter": "a" * size,
        "spaces": " " * size,
        "spaces before a letter": " " * (size - 1) + "ไ",
        "digits": "7" * size,
        "digits before a letter": "7" * (size - 1) + "x",
        "numerals": "12½" * (size // 3),
        "newlines": "\n" * size,
        "spaces and newlines": " \n" * (size // 2),
        "apostrophes": "'" * size,
        "marks": "\u0301" * size,
        "marks out of order": "\u0301\u0323" * (size // 2),
        "emoji": "👩‍👧" * (size // 3),
        "one long word": "".join(RANDOM.choices(letters, k=size)),
        "a mix": "".join(RANDOM.choices("ab 1\n'é漢👍\u0301.", k=size)),
    }


def seconds(tok, text):
    """Return the processor time, which does not depend on other load."""
    start = time.process_time()
    tok.encode(text)
    return time.process_time() - start


# One name for each rule.
RULES = {rules: name for name, rules in reversed(PRETOKENIZERS.items())}


@pytest.mark.long
@pytest.mark.parametrize(
    "pre", ["gpt-2", "llama-bpe", "qwen2", "deepseek-llm", "tiny_aya", "sentencepiece_prefix"]
)
def test_no_text_is_slow(pre):
    """50,000 characters take about 0.05 s each, and a second or more when every line of Python is traced.

    Quadratic time would take at least half a minute.
    """
    assert_fast(pre)


@pytest.mark.slow
@pytest.mark.parametrize("pre", sorted(RULES.values()))
def test_no_text_is_slow_for_any_rule(pre):
    assert_fast(pre)


def assert_fast(pre):
    tok = tokenizer(pre)
    tok.encode("x")
    slow = {name: taken for name, text in texts(50_000).items() if (taken := seconds(tok, text)) > 5}
    assert not slow


@pytest.mark.parametrize(
    "text", ["<|" * 50_000, "<|end" * 20_000, "<|end|>" * 15_000, "    " * 25_000 + "  x"]
)
def test_special_tokens_are_found_fast(text):
    tok = load_tokenizer(special_metadata())
    tok.encode("x")
    assert seconds(tok, text) < 2


def test_many_special_tokens_cost_nothing_more():
    metadata = special_metadata()
    many = [f"<|reserved_special_token_{i}|>" for i in range(6000)]
    metadata["tokenizer.ggml.tokens"] += many
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], *[3] * len(many)]
    tok = load_tokenizer(metadata)
    tok.encode("x")
    assert tok.encode(many[4321], add_special=False) == [tok.size - 6000 + 4321]
    assert seconds(tok, "<|reserved_special_token_" * 4000) < 1


@pytest.mark.slow
@pytest.mark.parametrize("pre", ["llama-bpe", "sentencepiece_plain"])
def test_a_megabyte_in_a_second(pre):
    tok = tokenizer(pre)
    tok.encode("x")
    for name, text in texts(1_000_000).items():
        if len(text.encode()) <= 1_000_000:
            assert min(seconds(tok, text) for _ in range(3)) < 1, name
