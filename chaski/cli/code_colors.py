"""`CodeColors`: colors the keywords, strings, numbers and comments of source code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from chaski.cli.styled_lines import Span

__all__ = ["CodeColors"]

_KEYWORD, _STRING, _NUMBER, _COMMENT = "35", "32", "36", "90"
_HASH = "bash console dockerfile fish julia make makefile perl php py python python3 r rb ruby sh shell toml"
_SLASHES = "c c++ cc cpp cs csharp css cuda dart go h hpp java javascript js json5 jsx kotlin php rs rust"
_COMMENTS = {
    **dict.fromkeys((*_HASH.split(), "yaml", "yml", "zsh"), r"#.*"),
    **dict.fromkeys(
        (*_SLASHES.split(), "scala", "swift", "ts", "tsx", "typescript", "zig"), r"//.*|/\*.*?\*/"
    ),
    **dict.fromkeys(("haskell", "lua", "sql"), r"--.*"),
}
_NO_COLORS = frozenset(("", "diff", "markdown", "md", "plain", "plaintext", "text", "txt"))
_KEYWORDS = (
    "and as assert async await begin bool break case catch char class const constexpr continue def "
    "default defer del delete do done double elif else elseif end enum esac except export extends extern "
    "false False fi final finally float fn for from func function global go if impl implements import in "
    "include instanceof int interface is lambda let local long loop match mod module mut namespace new "
    "nil None nonlocal not null of operator or package pass private protected pub public raise range "
    "return select self short signed sizeof static struct super switch template then this throw throws "
    "trait true True try type typedef typename typeof undefined union unless unsigned until use using var "
    "virtual void volatile when where while with yield CREATE DELETE DROP FROM GROUP HAVING INSERT INTO "
    "JOIN LIMIT NOT NULL ON ORDER SELECT SET TABLE UPDATE VALUES WHERE AND AS BY OR"
)
_WORDS = frozenset(_KEYWORDS.split())
_HELD = 2000  # maximum characters of a piece
# `open` matches a quote whose meaning is known only at the end of the line.
_PIECES = r"""(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`)|(?P<number>\b\d[\w.]*)|(?P<word>\w+)"""
_REST = r"""|(?P<open>["'`].*)|(?P<other>[^\w"'`#/-]+|.)"""


class CodeColors:
    """Splits a line, fed bit by bit, into colored spans. The spans together make up the line.

    language: the language named by the code fence. Lines without a language stay whole.
    """

    def __init__(self, language: str, has_colors: bool) -> None:
        language = language.lower()
        comment = _COMMENTS.get(language, r"(?!)")
        self._pattern = re.compile(rf"(?P<comment>{comment})|{_PIECES}{_REST}")
        self._is_plain = not has_colors or language in _NO_COLORS
        self._rest = ""

    def feed(self, text: str, is_whole: bool) -> Iterator[Span]:
        """Yield the spans that later text cannot change. `is_whole`: the line ends after `text`."""
        if self._is_plain:
            yield text, ""
            return
        self._rest += text
        while found := self._pattern.match(self._rest[:_HELD]):
            if not is_whole and found.end() == len(self._rest) < _HELD:
                return
            kind = found.lastgroup
            piece = found[0]
            if kind == "open":  # an apostrophe, or a string of several lines
                kind, piece = "other", piece[0]
            self._rest = self._rest[len(piece) :]
            yield piece, self._style(str(kind), piece)

    @staticmethod
    def _style(kind: str, piece: str) -> str:
        if kind == "word":
            return _KEYWORD if piece in _WORDS else ""
        return {"string": _STRING, "number": _NUMBER, "comment": _COMMENT}.get(kind, "")
