"""Patterns of JSON Schema: their translation matches the same texts, in Python's `re` and `llguidance`."""

from __future__ import annotations

import contextlib
import itertools
import re
import time

import pytest

from chaski.sample.schema.ecma import PatternError
from chaski.sample.schema.patterns import all_but, conjuncts, matches, one_pattern
from tests.sample.schema.answers import accepts_text
from tests.tiers import long_after

EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
"""The pattern as zod writes it."""


def found(pattern: str, text: str) -> bool:
    python = re.sub(r"\\x\{([0-9A-F]+)\}", lambda code: f"\\U{int(code[1], 16):08x}", pattern)
    return re.search(python, text) is not None


PATTERNS = [
    *(r"^(?!\.)(?!.*\.\.)[a.]*@b$", "^a|b$", "^$|^a$", "(^|,)a", "a(b$|c)", r"\bab\b", r"\Ba", "a(?!b)"),
    *("^(?:(?!ab).)*$", "^(?=.*a)(?=.*b).{3,4}$", "^(?=.{1,3}$)a*b", "^[^a]*(?=b)b", r"^\w+$", "(a|^b)+c"),
    *(r"^(?!(a|b)$)", "x*$a?", "^[^,a]+$", r"^(?:a\.)?b{2}$", "a{2,}b", "^(?!a$)", "(?i)^AB$", r"[\w.]@"),
]


@pytest.mark.parametrize("pattern", long_after(6, PATTERNS))
def test_the_same_texts_as_before(pattern: str) -> None:
    for length in range(5):
        for text in map("".join, itertools.product("ab.@,c", repeat=length)):
            expected = re.search(pattern, text) is not None
            assert all(found(each, text) for each in conjuncts(pattern)) is expected, text
            assert found(one_pattern(pattern), text) is expected, text
            assert matches(pattern, text) is expected, text


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ('^[^"]*$', [r'"ab"', r'"a\nb"', '"é"'], [r'"a\"b"', r'"a\u0022b"']),
        (r"^[^\\]*$", ['"ab"', r'"a\"b"'], [r'"a\\b"', r'"a\u005cb"']),
        (r"^[^\"\\]$", ['"a"', r'"\u001f"'], [r'"\""', r'"\\"']),
        ("^[^x]$", [r'"\n"', r'"\""', r'"\\"', '"/"', '"😀"'], ['"x"']),
        ("^.$", [r'"\t"', r'"\""', '"😀"'], [r'"\n"', r'"\r"', '"\u2028"', '"ab"']),
        (r"^\s$", ['"\u00a0"', r'"\t"', '"\ufeff"'], ['"a"']),
        (r"^[\s\S]$", [r'"\n"', r'"\u0000"'], ['""']),
        ("^[[]$", ['"["'], ['"]"']),
        ("^[a&&b]$", ['"&"', '"a"'], ['"c"']),
        ("^a{,2}$", ['"a{,2}"'], ['"aa"']),
        (r"^\ud83d\ude00[\ud83d\ude00]\u{1f600}$", ['"😀😀😀"'], ['"😀"']),
        (r"^\p{L}+$", ['"é"'], ['"1"']),
        (EMAIL, ['"a.b@x.com"'], ['".a@x.com"', '"a..b@x.com"', '"a@b"']),
    ],
)
def test_a_pattern_is_about_the_value(pattern: str, good: list[str], bad: list[str]) -> None:
    schema = {"type": "string", "pattern": pattern}
    assert [text for text in good if not accepts_text(schema, text)] == []
    assert [text for text in bad if accepts_text(schema, text)] == []


def test_all_names_but_some() -> None:
    pattern = all_but(["a", "ab", "b.c"])
    assert [text for text in ("", "a", "ab", "abc", "b", "b.c", "bxc") if not found(pattern, text)] == [
        *("a", "ab", "b.c")
    ]
    other = all_but(["q"], ["^x"], ["a$"])
    assert [text for text in ("a", "q", "qa", "xa", "ba", "x") if found(other, text)] == ["a", "qa", "ba"]


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"(a)\1", r"references to groups, \\1"),
        ("(?<=a)b", "look-behind"),
        ("(a", "not closed"),
        ("a)", "closing parenthesis"),
        ("*a", "nothing that \\* could repeat"),
        ("a{3,1}", "out of order"),
        ("[b-a]", "out of order"),
        ("(" * 200 + ")" * 200, "nested too deeply"),
        (r"^(?:(?!b.{50}c).)*$", "too complex"),
        ("^(?!" + "a?" * 4000 + ")", "too long"),
    ],
)
def test_patterns_that_cannot_be_followed(pattern: str, why: str) -> None:
    with pytest.raises(PatternError, match=why):
        conjuncts(pattern)


@pytest.mark.timed
@pytest.mark.parametrize(
    "pattern",
    [
        *("(?:^a|b$)" * 40, "(^|x)(y|$)" * 40, r"^(?!.*a.{9}b)", "^(?!(.*a){60})"),
        *("^(?!" + "(a?){60}" * 60 + "b)", "(?!a)" * 3000, "[a-z]{0,5000}(?!q)"),
    ],
)
def test_hostile_patterns_end_soon(pattern: str) -> None:
    start = time.process_time()
    with contextlib.suppress(PatternError):
        conjuncts(pattern)
    assert time.process_time() - start < 2
