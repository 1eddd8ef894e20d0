"""Texts that may precede an answer: a grammar accepts or refuses them token by token."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import asdict

from chaski.errors import OptionError
from chaski.sample.grammar import GrammarCompiler, GrammarVocabulary
from chaski.sample.lark import AnswerPrefix, Constraint, ConstraintKind
from chaski.text.parsers.formats import parser_for

CONTROLS = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<T>", "</T>", "<eos>"]
TOKENS = [
    *(bytes([value]) for value in range(256)),
    *(name.encode() for name in CONTROLS),
    b"</th",
    b"k>{",
    b'{"',
]
EOS = 256 + CONTROLS.index("<eos>")
SPELLING = GrammarVocabulary(TOKENS, range(256, 256 + len(CONTROLS)), [EOS], lambda text: list(text.encode()))
YES = Constraint("choice", ["yes"])
THINK = AnswerPrefix(opening="<think>", closing="</think>")
SPECIAL = AnswerPrefix(opening="<T>", closing="</T>")


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(SPELLING, len(TOKENS))


def ids_of(text: str, with_controls: bool = True) -> list[int]:
    """Return the tokens of a text: control tokens by spelling, and bytes."""
    pattern = "|".join(map(re.escape, CONTROLS)) if with_controls else "(?!)"
    ids: list[int] = []
    for part in re.split(f"({pattern})", text):
        ids += [256 + CONTROLS.index(part)] if with_controls and part in CONTROLS else part.encode()
    return ids


def takes(
    compiler: GrammarCompiler, lead: AnswerPrefix | None, ids: list[int], constraint: Constraint = YES
) -> bool:
    """Return whether an answer may be these tokens and end."""
    grammar = compiler.compile(constraint, lead)
    for token in [*ids, EOS]:
        if not grammar.allowed()[token]:
            return False
        grammar.accept(token)
    return True


@pytest.mark.parametrize(
    ("lead", "text", "expected"),
    [
        (None, "yes", True),
        (None, "<think>a</think>yes", False),
        (THINK, "yes", True),
        (THINK, "<think>", False),
        (THINK, "<think>a < b\n</thin é</think>yes", True),
        (THINK, "<think></think>\n\nyes", True),
        (THINK, "<think></think>" + "\n" * 9 + "yes", False),
        (THINK, "<think>a</think>no", False),
        (THINK, "<think>a</think>yes</think>", False),
        (THINK, "<think>a</think><think>b</think>yes", False),
        (THINK, "<think>a<eos>", False),
        (AnswerPrefix(opening="<think>", closing="</think>", is_open=True), "yes", False),
        (AnswerPrefix(opening="<think>", closing="</think>", is_open=True), "hm</think>yes", True),
        (AnswerPrefix(opening="<think>", closing="</think>", is_open=True), "<think>hm</think>yes", True),
        (
            AnswerPrefix(opening="<think>", closing="</think>", repeats=True),
            "<think>a</think><think>b</think>yes",
            True,
        ),
        (SPECIAL, "<T>a</T>yes", True),
        (SPECIAL, "<T></T> yes", True),
        (SPECIAL, "yes", True),
        (SPECIAL, "<T>a<|end|></T>yes", False),
    ],
)
def test_thoughts(compiler: GrammarCompiler, lead: AnswerPrefix | None, text: str, expected: bool) -> None:
    assert takes(compiler, lead, ids_of(text)) == expected


def test_the_spelling_of_a_control_token_does_not_end_a_thought(compiler: GrammarCompiler) -> None:
    """A parser would treat it as the end, so it is ruled out."""
    begun = ids_of("<T>")
    assert not takes(compiler, SPECIAL, begun + ids_of("a</T>yes", with_controls=False))
    assert not takes(compiler, SPECIAL, begun + ids_of("a</T>", with_controls=False) + ids_of("</T>yes"))


def test_tokens_may_reach_over_the_end_of_a_thought(compiler: GrammarCompiler) -> None:
    tokens = {name: index for index, name in enumerate(TOKENS)}
    ids = [*ids_of("<think>a"), tokens[b"</th"], *ids_of("in"), tokens[b"k>{"], *ids_of("}")]
    assert takes(compiler, THINK, ids, Constraint("format", "json"))
    assert not takes(compiler, THINK, ids, YES)


FIRST = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>yes"


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ("<|start|>assistant", FINAL, True),
        ("<|start|>assistant", FIRST + FINAL, True),
        ("<|start|>assistant", FIRST + FIRST + FINAL, True),
        ("<|start|>assistant", "yes", False),
        ("<|start|>assistant", FIRST + "yes", False),
        ("<|start|>assistant", FIRST, False),
        ("<|start|>assistant<|channel|>analysis<|message|>I", " do<|end|><|start|>assistant" + FINAL, True),
        ("<|start|>assistant<|channel|>analysis<|message|>I", FINAL, False),
        ("<|start|>assistant<|channel|>final<|message|>", "yes", True),
        ("<|start|>assistant<|channel|>", "yes", True),
    ],
)
def test_messages_with_headers(compiler: GrammarCompiler, prompt: str, text: str, expected: bool) -> None:
    found = parser_for("harmony", (), prompt).lead
    lead = None if found is None else AnswerPrefix(**asdict(found))
    assert takes(compiler, lead, ids_of(text)) == expected


LEAD = ("opening", "closing", "header", "is_open", "repeats")


@pytest.mark.parametrize(
    ("format", "prompt", "thinking", "expected"),
    [
        ("hermes", "Hi", True, ("<think>", "</think>", "", False, False)),
        ("hermes", "Hi<think>\n", False, ("<think>", "</think>", "", True, False)),
        ("hermes", "Hi", False, None),
        ("gemma4", "Hi", False, ("<|channel>thought\n", "<channel|>", "", False, True)),
        ("passthrough", "Hi", True, None),
        (
            "glimmer",
            "<|start|>assistant",
            True,
            (" to=self<|message|>", "<|eom|><|start|>assistant", " to=user<|message|>", False, True),
        ),
    ],
)
def test_what_parsers_say(format: str, prompt: str, thinking: bool, expected: object) -> None:
    found = parser_for(format, (), prompt, thinking).lead
    assert (found and tuple(getattr(found, name) for name in LEAD)) == expected


@pytest.mark.parametrize("kind", ["regex", "grammar"])
def test_half_of_a_surrogate_pair_is_refused(compiler: GrammarCompiler, kind: ConstraintKind) -> None:
    with pytest.raises(OptionError, match=f"option {kind} .* half of a surrogate pair"):
        compiler.compile(Constraint(kind, "a\ud83d"))
