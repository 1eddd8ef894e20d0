"""Markdown on a terminal, whatever the pieces of the stream."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chaski.chat.events import Text
from chaski.cli.markdown import MarkdownStream
from chaski.cli.session import Session
from chaski.cli.styled_lines import width_of
from tests.cli.echo_chat import Echo
from tests.cli.terminals import ROOT, terminal

ECHO = ("-m", "tests.cli.echo_chat")
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
EVERYTHING = """\
# Title of *it*
Some **bold text**, *italic*, `code` and a [link](https://example.org/a_(b)).
> quoted *text* that is longer than the line is wide, so that it must be broken
> - item in it

- one item that is long enough to be broken over more than one line
  1. [x] not a box, ***both***
- [x] done\t(tab)
---
```python
def f(x): # it's a comment
    return "text" + 'it * 3
````
| name | value |
|:-----|------:|
| a `x|y` | **1** |
| many words in a cell that is too wide for it | 22,000 |
`unclosed and **this too
"""


def rendered(pieces: Iterable[str], columns: int = 50, has_colors: bool = True) -> str:
    stream = MarkdownStream(columns, has_colors)
    return "".join([*map(stream.feed, pieces), stream.close()])


def plain(text: str, columns: int = 50) -> str:
    return _STYLE.sub("", rendered([text], columns))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("**bold** x", "\x1b[1mbold\x1b[0m x"),
        ("*it **both** it*", "\x1b[3mit \x1b[0m\x1b[3;1mboth\x1b[0m\x1b[3m it"),
        ("`a*b*` c", "\x1b[36ma*b*\x1b[0m c"),
        ("``a`b`` c", "\x1b[36ma`b\x1b[0m c"),
        ("~~gone~~", "\x1b[9mgone\x1b[0m"),
        ("[here](http://a.b)", "\x1b[4mhere\x1b[0m\x1b[2m (http://a.b)\x1b[0m"),
        ("## Head", "\x1b[1mHead\x1b[0m"),
        ("```py\nif x:\n```", "\x1b[2m```py\x1b[0m\n\x1b[35mif\x1b[0m x:\n\x1b[2m```\x1b[0m"),
    ],
)
def test_styles(text: str, expected: str) -> None:
    assert rendered([text]).startswith(expected)


@pytest.mark.parametrize(
    "text",
    [
        "2*3*4 and *args, **kwargs",
        "a_name_of __init__ x_",
        "a * b * c",
        "an `open mark",
        "array[0] [note] (x)",
        "f(x)*g(y)*h",
        "wow! [not a link] (here)",
        "a \\(x\\) \\[y\\]",
        "#hashtag",
        "-5 degrees",
        "3.5 litres",
        "1234",
        "| a bar alone",
        "~~ x ~",
    ],
)
def test_what_is_no_markdown_stays_as_it_is(text: str) -> None:
    for pieces in ([text], text):
        assert _STYLE.sub("", rendered(pieces)) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- a\n  * b\n+ [ ] c\n- [x] d", "• a\n  • b\n☐ c\n☑ d"),
        ("1. a\n12) b", "1. a\n12) b"),
        ("> a\n> > b\nc", "│ a\n│ │ b\nc"),
        ("- - -", "─" * 40),
        ("\\*a\\* \\`b", "*a* `b"),
        ("a\n\n\nb", "a\n\n\nb"),
        ("中文**粗体**。", "中文粗体。"),
    ],
)
def test_marks(text: str, expected: str) -> None:
    assert plain(text) == expected


def test_lines_break_between_words_and_lists_stay_indented() -> None:
    text = "- one item that is longer than its line\n> and a quote that is, too, so it has bars"
    assert plain(text, 24).splitlines() == [
        "• one item that is",
        "  longer than its line",
        "│ and a quote that is,",
        "│ too, so it has bars",
    ]
    assert plain("x" * 30, 12) == f"{'x' * 12}\n{'x' * 12}\n{'x' * 6}"
    assert plain("x " * 30, 0) == ("x " * 30).strip()


def test_tables() -> None:
    text = "| a | b |\n|---|--:|\n| one `x|y` | 1 |\n| two | 22 |\nend"
    assert plain(text).splitlines() == [
        "a       │  b",
        "────────┼───",
        "one x|y │  1",
        "two     │ 22",
        "end",
    ]
    assert plain("| no | table |\n| at | all |\n") == "| no | table |\n| at | all |\n"


def test_wide_tables_fit() -> None:
    text = f"| a | b |\n|---|---|\n| {'word ' * 12} | short |\n"
    lines = plain(text, 30).splitlines()
    assert max(map(len, lines)) <= 30
    assert " ".join(lines).count("word") == 12


def test_text_comes_as_soon_as_it_is_decided() -> None:
    stream = MarkdownStream(50, True)
    assert stream.feed("a word") == "a"
    assert stream.feed(" then **bo") == " word then"
    assert stream.feed("ld** x ") == " \x1b[1mbold\x1b[0m x"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1), st.sampled_from([0, 20, 50]))
def test_pieces_do_not_matter(lengths: list[int], columns: int) -> None:
    whole = rendered([EVERYTHING], columns)
    pieces, rest = [], EVERYTHING
    while rest:
        for length in lengths:
            pieces.append(rest[:length])
            rest = rest[length:]
    assert rendered(pieces, columns) == whole
    assert rendered(EVERYTHING, columns) == whole


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab1 *_`~[]()!\\#->|\n", max_size=60))
@example(">>\n")
def test_no_word_is_lost(text: str) -> None:
    """Letters and digits keep their order, whatever the marks between them and the pieces."""
    whole = rendered([text], 0)
    assert re.findall("[ab1]", _STYLE.sub("", whole)) == re.findall("[ab1]", text)
    assert rendered(text, 0) == whole


@pytest.mark.long
@pytest.mark.timed
def test_long_lines_take_no_time() -> None:
    for begin in ("*", "**", "`", "[", "[a](", "|", "#", "```", "- ", "> ", '```py\n"', "***`"):
        text = begin + "*a `b [c" * 8000
        found = rendered((text[at : at + 4] for at in range(0, len(text), 4)), 80)
        assert re.findall("[abc]", _STYLE.sub("", found))[-24000:] == ["a", "b", "c"] * 8000


def test_lines_fit_the_terminal() -> None:
    for line in plain(EVERYTHING, 40).splitlines():
        if "def f" not in line:
            assert width_of(line) <= 40


def test_without_colors() -> None:
    assert "\x1b[3" not in rendered(["`code`\n```py\nif x: 'a'\n```"], has_colors=False)
    assert "`code`" in rendered(["`code`"], has_colors=False)


def test_on_a_terminal() -> None:
    with terminal(*ECHO, NO_COLOR="") as chat:
        chat.wait_for_prompt(1)
        chat.type("say **this**\r")
        chat.wait_for("<'say this'>")
        chat.type("/set nomarkdown\r")
        chat.wait_for_prompt(3)
        chat.type("say **that**\r")
        chat.wait_for("<'say **that**'>")
        chat.type("/set markdown\r/bye\r")
        assert chat.wait_for_end() == 0
        assert b"\x1b[1mthis" in chat.seen


class Interrupted(Echo):
    """A stream that Ctrl-C stops within a bold text."""

    def stream_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Iterator[Text]:
        yield Text("some *it* and **bo")
        raise KeyboardInterrupt


def test_what_was_held_is_printed_when_an_answer_is_stopped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert not Session(Interrupted(), {}).answer("hello")
    assert capsys.readouterr().out == "some \x1b[3mit\x1b[0m and **bo\n"


def test_a_pipe_gets_what_the_model_wrote() -> None:
    ended = subprocess.run([sys.executable, *ECHO], input=b"**this**\n", capture_output=True, cwd=ROOT)
    assert b"<'**this**'>\n" in ended.stdout
