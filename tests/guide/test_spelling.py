"""Typing errors become the intended words, and other words do not change."""

from __future__ import annotations

import pytest

from chaski.guide.spelling import known_words, spelled

WORDS = frozenset(
    ["port", "change", "calling", "ollama", "server", "what", "stop", "the", "street", "python"]
)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("chagne the prot", "change the port"),  # swapped neighbours
        ("olama caling", "ollama calling"),  # a missing letter
        ("servver sttop", "server stop"),  # an extra letter
        ("waht stpo", "what stop"),
        ("pyhton's serer.", "python's server."),
    ],
)
def test_one_slip(text: str, meant: str) -> None:
    assert spelled(text, WORDS) == meant


@pytest.mark.parametrize(
    "text",
    [
        "the street",  # known
        "pork sort",  # a different letter does not count as an error
        "por ort",  # too short for a missing letter
        "erver",  # the first letter is rarely missing
        "serrverr",  # two errors
        "server2 çerver SERVR",  # not words of lower-case letters
        "",
    ],
)
def test_what_stays(text: str) -> None:
    assert spelled(text, WORDS) == text


def test_long_texts_take_no_long_time() -> None:
    assert spelled("sttop" * 1_000_000, WORDS) == "sttop" * 1_000_000
    assert spelled("sttop " * 1_000_000, WORDS) == "stop " * 100 + "sttop " * 999_900


def test_what_is_known() -> None:
    tokens = ["[CLS]", "Ġmodel", "els", "Ġ", "Ġ4", "Ġ.", "Ġnaïve", "Ġkv"]
    assert known_words(tokens) == {"model", "kv"}
