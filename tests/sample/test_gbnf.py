"""Grammars in llama.cpp's language: accepted answers, and errors of invalid grammars."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from chaski.errors import OptionError
from chaski.sample.gbnf import is_gbnf, lark_rules
from chaski.sample.grammar import GrammarCompiler, GrammarVocabulary
from chaski.sample.lark import AnswerPrefix, Constraint

END = 256
TOKENS = [*(bytes([value]) for value in range(256)), b"<end>"]
SPELLING = GrammarVocabulary(TOKENS, [END], [END], lambda text: list(text.encode()))
# Similar to the example in llama.cpp's documentation.
JSON = r"""
# values
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (
    string ":" ws value
    ("," ws string ":" ws value)*   # pairs
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ("0" | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""
SUM = r"""root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*"""


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(SPELLING, len(TOKENS))


def takes(compiler: GrammarCompiler, text: str, answer: str, lead: AnswerPrefix | None = None) -> bool:
    grammar = compiler.compile(Constraint("grammar", text), lead)
    for token in [*answer.encode(), END]:
        if not grammar.allowed()[token]:
            return False
        grammar.accept(token)
    return True


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        ('root ::= "yes" | "no"', ["yes", "no"], ["", "maybe", "yesno"]),
        ('root ::= "a" | "ab" | ""', ["a", "ab", ""], ["b"]),
        ("root ::= [a-c]+ [^a-c] .", ["abcdé", "ax\n"], ["abc", "axyz"]),
        (r'root ::= "\x41\u00e9\U0001F600\n\"\\" [\]\[x-]', ['Aé😀\n"\\]', 'Aé😀\n"\\-'], ['Aé😀\n"\\y']),
        ("root ::= [a-]{2} [-b] [/.]", ["a--/", "-ab."], ["ab-/"]),
        ('root ::= "x"{2} "y"{1,} "z"{0,2} "w"? ("v" | "u")*', ["xxy", "xxyyzzwvuv"], ["xy", "xxyzzz"]),
        ('root ::= a-b\na-b ::= c_d # comment\n\n\nc_d ::= "q"\n', ["q"], ["r"]),
        ('root ::= "a" root "b" | "c"', ["c", "aacbb"], ["acbb", "aac"]),
        ('root ::= (\n  "a" # first\n  | "b"\n) |\n "c"', ["a", "b", "c"], ["ab"]),
        ('root ::= item+\nitem ::= "- " [^\\n]+ "\\n"', ["- a\n- b b\n"], ["- a", "a\n"]),
        ('root ::= ws "x"\nws ::= ([ \\t\\n] ws)?', ["x", "  \n x"], ["", " "]),
        ('root ::= "a"\nroot ::= "b"', ["b"], ["a"]),
        (
            JSON,
            ['{"a": [1, -2.5e3, true], "b": {"c": null}}', "{}", '{"\\u00e9": "é\\n"}'],
            ["[]", '{"a": 01}', '{"a"}'],
        ),
        (SUM, ["(a +2) *b= 3\n", "1=1\n2=2\n"], ["a+=3\n", "a=\n", "(a=1\n"]),
    ],
)
def test_what_a_grammar_takes(compiler: GrammarCompiler, text: str, good: list[str], bad: list[str]) -> None:
    assert is_gbnf(text)
    assert [answer for answer in good if not takes(compiler, text, answer)] == []
    assert [answer for answer in bad if takes(compiler, text, answer)] == []


@pytest.mark.parametrize("seed", range(10))
def test_whatever_is_written_is_json(compiler: GrammarCompiler, seed: int) -> None:
    rng = random.Random(seed)
    grammar = compiler.compile(Constraint("grammar", JSON))
    answer = bytearray()
    while True:
        allowed = np.flatnonzero(grammar.allowed()).tolist()
        # Closing characters come first, so that it ends.
        closing = [token for token in allowed if token == END or chr(token) in '}]"']
        token = rng.choice(closing if closing and rng.random() < 0.6 else allowed)
        if token == END:
            break
        answer.append(token)
        grammar.accept(token)
    assert isinstance(json.loads(answer.decode()), dict)


def test_a_thought_may_go_before(compiler: GrammarCompiler) -> None:
    lead = AnswerPrefix(opening="<think>", closing="</think>")
    assert takes(compiler, SUM, "<think>root ::= ?</think>\n1=1\n", lead)
    assert takes(compiler, SUM, "1=1\n", lead)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('start ::= "a"', "it has no rule root"),
        ("root ::= other", "rule root names other, which there is not"),
        ('root ::= "a', "line 1: a text or a class of characters is not closed"),
        ("root ::= [a", "is not closed"),
        ('root ::=\n  "a"\n  "b"', "line 3: a rule, NAME ::= …, is expected"),
        ("root ::= []", "a class of characters is empty"),
        ("root ::= [z-a]", "ends before it begins"),
        ('root ::= ("a"', "a group is not closed"),
        ('root ::= "a" )', "a rule, NAME ::= …, is expected"),
        ('root ::= "a"\n\nx = 3', "line 3: a rule"),
        (r'root ::= "\q"', "an escape is unknown"),
        (r'root ::= "\uD800"', "an escape is no character"),
        (r'root ::= "\U00110000"', "an escape is no character"),
        ('root ::= "a"{}', "a repetition is {m}, {m,} or {m,n}"),
        ('root ::= "a"{x}', "a repetition is"),
        ('root ::= "a"{3,2}', "a repetition is of at most 2000 times"),
        ('root ::= "a"{99999}', "a repetition is of at most 2000 times"),
        ("root ::= <think>", "tokens are not taken"),
        ("root ::= " + "(" * 100 + '"a"' + ")" * 100, "more than 64 groups"),
    ],
)
def test_faults_are_named(compiler: GrammarCompiler, text: str, message: str) -> None:
    with pytest.raises(OptionError) as error:
        compiler.compile(Constraint("grammar", text))
    assert str(error.value).startswith("option grammar holds one that cannot be used: ")
    assert message in str(error.value)


DEEP = "\n".join(f"r{n} ::= r{n + 1} r{n + 1}" for n in range(2000)) + '\nr2000 ::= "a"\nroot ::= r0'


@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        "start: A0\n" + "".join(f"A{n}: A{n + 1} A{n + 1}\n" for n in range(2000)) + 'A2000: "a"',
        "start: a0\n" + "".join(f"a{n}: ((a{n + 1}))\n" for n in range(300)) + 'a300: "a"',
        'start: "' + ":" * 800 + '"',
    ],
)
def test_grammars_that_could_be_too_deep_are_refused(compiler: GrammarCompiler, text: str) -> None:
    """The library would abort the process."""
    with pytest.raises(OptionError, match="rules and groups; at most 700 are taken"):
        compiler.compile(Constraint("grammar", text))


@pytest.mark.long
def test_schemas_that_are_too_deep_are_refused(compiler: GrammarCompiler) -> None:
    steps: dict[str, Any] = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}]} for n in range(2000)}
    for properties in ({"a": "d0"}, {f"p{n}": f"d{n}" for n in range(2000, -1, -1)}):
        refs = {name: {"$ref": f"#/$defs/{target}"} for name, target in properties.items()}
        schema = {"properties": refs, "$defs": {**steps, "d2000": {"type": "string"}}}
        with pytest.raises(OptionError, match="it is too deep"):
            compiler.compile(Constraint("format", schema))


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    [
        "root ::= " + '("a"{2000}){2000}',
        "root ::= " + " | ".join('"abcdefgh"' for _ in range(5000)),
        "root ::= " + '"a"*' + "*" * 300,
        "root ::= " + '"a"*' + "*" * 30000,
        "root ::= (" + "[a-z]* " * 3000 + ")*",
        'root ::= root root | root | ""',
        'root ::= a{1000}\na ::= b{1000}\nb ::= "x" b? "y"',
    ],
)
def test_hostile_grammars_end(compiler: GrammarCompiler, text: str) -> None:
    """They are refused, at once or at a token, or followed; no case takes unlimited time."""
    with suppress(OptionError):
        grammar = compiler.compile(Constraint("grammar", text))
        for _ in range(5):
            allowed = np.flatnonzero(grammar.allowed())
            if not allowed.size or allowed[0] == END:
                break
            grammar.accept(int(allowed[0]))


def test_pieces_are_as_large_as_can_be() -> None:
    rules = lark_rules('root ::= "[" num ("," num)* "]"\nnum ::= [0-9]+')
    assert rules.splitlines()[0] == "answer: PIECE_0"
