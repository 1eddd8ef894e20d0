"""`InlineMarkdown`: emphasis, code and links in a line of Markdown that arrives bit by bit."""

from __future__ import annotations

import re
from collections.abc import Iterator

from chaski.cli.styled_lines import Span

__all__ = ["BOLD", "CODE", "DIM", "ITALIC", "UNDERLINE", "InlineMarkdown", "joined"]

BOLD, DIM, ITALIC, UNDERLINE, STRUCK, CODE = "1", "2", "3", "4", "9", "36"

# Marked text is held until its mark is closed, up to this many characters.
_HELD = 2000
_PLAIN = re.compile(r"[^\\`*_~\[!]+")
_ESCAPED = re.compile(r"\\([*_`~#|])")
_CODE = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_LINK = re.compile(r"!?\[([^\[\]]*)\]\(([^()]*(?:\([^()]*\)[^()]*)*)\)")
_NO_LINK = re.compile(r"!(?!\[)|!?\[[^\[\]]*(?:\[|\](?=[^(]))")
_INSIDE = r"((?:`[^`]*`|[^`])+?)"  # marks in code are not marks
_MARKS = {
    "***": (re.compile(rf"\*\*\*(?![\s*]){_INSIDE}(?<![\s*])\*\*\*(?!\*)"), f"{BOLD};{ITALIC}"),
    "**": (re.compile(rf"\*\*(?![\s*]){_INSIDE}(?<!\s)\*\*(?!\*)"), BOLD),
    "*": (re.compile(rf"\*(?![\s*]){_INSIDE}(?<![\s*])\*(?!\*)"), ITALIC),
    "_": (re.compile(rf"_(?![\s_]){_INSIDE}(?<![\s_])_(?!\w)"), ITALIC),
    "~~": (re.compile(rf"~~(?![\s~]){_INSIDE}(?<![\s~])~~(?!~)"), STRUCK),
}
_RUN = re.compile(r"\*+|_+|~+|`+|.", re.DOTALL)
# After these characters a mark does not open emphasis: it may be a multiplication or part of a name.
_ENDS_WORD = re.compile(r"[A-Za-z0-9)\]}]")


class InlineMarkdown:
    """Splits a line, fed bit by bit, into styled spans, without changing words or their order.

    Marks that are not closed in the line are text. Double underscores are text too, because names contain
    them.
    has_colors: whether code is colored; otherwise it keeps its marks.
    """

    def __init__(self, style: str, has_colors: bool) -> None:
        self._style = style
        self._has_colors = has_colors
        self._rest = ""
        self._before = ""

    def feed(self, text: str, is_whole: bool) -> Iterator[Span]:
        """Yield the spans that later text cannot change. `is_whole`: the line ends after `text`."""
        self._rest += text
        while self._rest:
            found = self._next(is_whole)
            if found is None:
                return
            end, spans = found
            self._before = self._rest[end - 1]
            self._rest = self._rest[end:]
            yield from spans

    def _next(self, is_whole: bool) -> tuple[int, list[Span]] | None:
        """Return the length and spans of the next piece, or None if it depends on later text."""
        rest = self._rest[:_HELD]
        if plain := _PLAIN.match(rest):
            return plain.end(), [(plain[0], self._style)]
        waits = not is_whole and len(rest) < _HELD
        found = self._marked()
        if found is not None:
            return None if waits and found[0] == len(rest) else found
        run = _RUN.match(rest)
        assert run is not None, "there is some text"
        if waits and (run.end() == len(rest) or self._may_open(run[0])):
            return None
        return run.end(), [(run[0], self._style)]

    def _may_open(self, run: str) -> bool:
        """Return whether this mark can open: a closing mark may still follow."""
        if run in "![":
            return not _NO_LINK.match(self._rest)
        if run[0] == "`":
            return True
        return run in _MARKS and not _ENDS_WORD.match(self._before) and not self._rest[len(run)].isspace()

    def _marked(self) -> tuple[int, list[Span]] | None:
        """Return the end and spans of the escaped or marked text that starts here, or None."""
        rest, style = self._rest[:_HELD], self._style
        if escaped := _ESCAPED.match(rest):
            return escaped.end(), [(escaped[1], style)]
        if code := _CODE.match(rest):
            text = code[2] if self._has_colors else code[0]
            return code.end(), [(text, joined(style, CODE) if self._has_colors else style)]
        if link := _LINK.match(rest):
            shown = list(self._inside(link[1], joined(style, UNDERLINE)))
            where = (
                [] if link[1] == link[2] else [(f" ({link[2]})" if link[1] else link[2], joined(style, DIM))]
            )
            return link.end(), [*shown, *where]
        run = _RUN.match(rest)
        assert run is not None, "there is some text"
        pattern, added = _MARKS.get(run[0], (None, ""))
        if pattern is None or _ENDS_WORD.match(self._before):
            return None
        found = pattern.match(rest)
        return found and (found.end(), list(self._inside(found[1], joined(style, added))))

    def _inside(self, text: str, style: str) -> Iterator[Span]:
        return InlineMarkdown(style, self._has_colors).feed(text, True)


def joined(*styles: str) -> str:
    """Combine several styles into one."""
    return ";".join(filter(None, styles))
