"""The parser of most formats: thoughts at the start, then content with blocks of calls.

A call inside a thought counts if the answer ends with the thought open; otherwise it is part of the
thought.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from enum import Enum, auto
from typing import Protocol, TypeAlias

from chaski.text.parsers.blocks import BlockReader
from chaski.text.parsers.pieces import Content, FoundCall, Lead, Piece, Thought
from chaski.text.parsers.schema import Tools

Steps: TypeAlias = Generator[Piece, None, bool]
"""Yields pieces; returns whether it found a mark, so that parsing continues after it."""


class Block(Protocol):
    """A notation of calls: its opening, and a reader of one block.

    If `is_bare`, the opening is the beginning of the call itself and counts only at the start of the answer
    or after a silent tag.
    After the block there may be `orphan`, a closing tag without an opening.
    """

    @property
    def opening(self) -> str: ...

    @property
    def is_bare(self) -> bool: ...

    @property
    def orphan(self) -> str: ...

    @property
    def marks(self) -> tuple[str, ...]: ...

    def begin(self, tools: Tools) -> BlockReader:
        """Return a reader of one block."""


_BETWEEN_BARE_CALLS = " \t\r\n;,"


class _State(Enum):
    START = auto()
    THINKING = auto()
    HELD = auto()
    CONTENT = auto()
    BLOCK = auto()


class StreamParser:
    """Splits a stream into pieces. Blanks around tags belong to the tags, not to the text."""

    def __init__(
        self,
        thinking: tuple[str, str] | None = None,
        blocks: Sequence[Block] = (),
        silent: Sequence[str] = (),
        tools: Tools = (),
        is_thinking: bool = False,
        skips_blanks: bool = True,
        thinks_again: bool = False,
    ) -> None:
        """`silent`: tags to drop. `is_thinking`: the prompt has already opened a thought.

        `skips_blanks`: blanks at the start of a thought belong to its tag.
        `thinks_again`: another thought may begin in content.
        """
        self._thinking = thinking
        self._thinks_again = thinks_again
        self._may_repeat = is_thinking
        self._blocks = {block.opening: block for block in blocks if not block.is_bare}
        self._bare = {block.opening: block for block in blocks if block.is_bare}
        self._reopening = (thinking[0],) if thinking and thinks_again else ()
        self._silent = tuple(silent)
        self._marks = (*self._blocks, *silent, *self._reopening)
        self._beginnings = frozenset(mark[0] for mark in self._marks)
        self._tools = tools
        self._state = _State.THINKING if is_thinking and thinking else _State.START
        self._buffer = ""
        self._skips_blanks = is_thinking and skips_blanks
        self._gap = ""
        self._between: str | None = None
        self._block: Block | None = None
        self._reader: BlockReader | None = None
        self._scanned = 0
        self._orphan = ""

    @property
    def lead(self) -> Lead | None:
        """The tags of a thought that may precede the rest of the content; None if there may be no thought."""
        is_open = self._state in (_State.THINKING, _State.HELD)
        may_open = self._thinks_again or self._state is _State.START
        if self._thinking is None or not (is_open or may_open):
            return None
        opening, closing = self._thinking
        return Lead(opening, closing, is_open=is_open, repeats=self._thinks_again)

    def feed(self, text: str) -> list[Piece]:
        """Read text and return the pieces that are certain now."""
        if self._is_plain(text):
            return [Content(text)]
        self._buffer += text
        return list(self._pieces(final=False))

    def flush(self) -> list[Piece]:
        """Return the rest after the last text."""
        return list(self._pieces(final=True))

    def _pieces(self, final: bool) -> Iterator[Piece]:
        steps = {
            _State.START: self._at_start,
            _State.THINKING: self._in_thinking,
            _State.HELD: self._in_held,
            _State.CONTENT: self._in_content,
            _State.BLOCK: self._in_block,
        }
        moved = True
        while moved:
            moved = yield from steps[self._state](final)

    def _is_plain(self, text: str) -> bool:
        """Return whether `text` is content in which no mark can begin, as most of an answer is."""
        if self._state is not _State.CONTENT or self._buffer or self._skips_blanks or not text:
            return False
        return not self._marks or (self._beginnings.isdisjoint(text) and not text[-1].isspace())

    def _at_start(self, final: bool) -> Steps:
        """Begin a thought or a bare call, if the first text that is not blank opens one."""
        yield from ()
        text = self._buffer.lstrip(self._between)
        opening = self._thinking[0] if self._thinking else None
        if opening and text.startswith(opening):
            self._buffer = text.removeprefix(opening)
            self._skips_blanks = True
            self._state = _State.THINKING
            return True
        closing = self._thinking[1] if self._thinking else None
        if closing and text.startswith(closing):
            # Some models close an empty thought to show that they do not think.
            self._buffer = text.removeprefix(closing)
            self._end_thinking()
            return True
        if self._bare and (silent := next(filter(text.startswith, self._silent), "")):
            self._buffer = text.removeprefix(silent)
            return True
        if bare := next(filter(text.startswith, self._bare), ""):
            gap = self._buffer[: -len(text)]
            self._open(self._bare[bare], gap if gap.strip() or not self._skips_blanks else "", text)
            return True
        beginnings = (opening, closing, *self._bare, *(self._silent if self._bare else ()))
        if not final and any(tag and tag.startswith(text) for tag in beginnings):
            return False
        self._state = _State.CONTENT
        return True

    def _in_thinking(self, final: bool) -> Steps:
        assert self._thinking is not None
        opening, closing = self._thinking
        if self._may_repeat and not self._repeated(opening, final):
            return False
        before, gap, mark, after = self._cut((closing, *self._blocks), final)
        if before:
            yield Thought(before)
        self._buffer = after
        if mark == closing:
            self._end_thinking()
        elif mark:
            self._buffer = gap + mark + after
            self._state, self._scanned = _State.HELD, 0
        return bool(mark)

    def _repeated(self, opening: str, final: bool) -> bool:
        """Drop an opening tag that repeats the prompt's; return whether the question is decided."""
        text = self._buffer.lstrip()
        if opening.startswith(text) and not final and text != opening:
            return False
        if text.startswith(opening):
            self._buffer = text.removeprefix(opening)
            self._skips_blanks = True
        self._may_repeat = False
        return True

    def _in_held(self, final: bool) -> Steps:
        """Read a call in a thought, up to the end of the thought or of the answer."""
        assert self._thinking is not None
        closing = self._thinking[1]
        found = self._buffer.find(closing, max(self._scanned - len(closing), 0))
        self._scanned = len(self._buffer)
        if found >= 0:
            yield Thought(self._buffer[:found].rstrip())
            self._buffer = self._buffer[found + len(closing) :]
            self._end_thinking()
            return True
        if final:
            inner = StreamParser(blocks=tuple(self._blocks.values()), tools=self._tools)
            for piece in [*inner.feed(self._buffer), *inner.flush()]:
                yield piece if isinstance(piece, FoundCall) else Thought(piece.text)
            self._buffer = ""
        return False

    def _end_thinking(self) -> None:
        self._skips_blanks = True
        self._state = _State.START if self._bare else _State.CONTENT
        if not self._thinks_again:
            self._thinking = None

    def _in_content(self, final: bool) -> Steps:
        if self._orphan and not self._without_orphan(final):
            return False
        before, gap, mark, after = self._cut(self._marks, final)
        if before:
            yield Content(before)
        self._buffer = after
        if mark in self._blocks:
            self._open(self._blocks[mark], gap, mark + after)
        elif mark in self._reopening:
            self._state = _State.THINKING
        elif mark and self._bare:
            self._state = _State.START
        self._skips_blanks = self._skips_blanks or bool(mark)
        return bool(mark)

    def _without_orphan(self, final: bool) -> bool:
        """Drop a closing tag without an opening after a call; return whether the question is decided."""
        text = self._buffer.lstrip()
        if self._orphan.startswith(text) and not final and text != self._orphan:
            return False
        self._buffer = text.removeprefix(self._orphan)
        self._orphan = ""
        return True

    def _open(self, block: Block, gap: str, text: str) -> None:
        self._state, self._block, self._gap, self._buffer = _State.BLOCK, block, gap, text
        self._reader = block.begin(self._tools)

    def _in_block(self, final: bool) -> Steps:
        assert self._block is not None
        assert self._reader is not None
        block = self._block
        found = self._reader.find(self._buffer, final)
        if found is None:
            return False
        calls, end = found.calls, found.end
        if calls is None:
            yield Content(self._gap + self._buffer[:end])
        else:
            yield from calls
        self._buffer = self._buffer[end:]
        self._skips_blanks = calls is not None
        self._orphan = block.orphan if calls is not None else ""
        # Another bare call may follow the first.
        follows = block.is_bare and calls is not None
        self._state = _State.START if follows else _State.CONTENT
        self._between = _BETWEEN_BARE_CALLS if follows else None
        return bool(self._buffer) or final

    def _cut(self, marks: Sequence[str], final: bool) -> tuple[str, str, str, str]:
        """Return the certain text, the blanks and the mark after it (empty without one), and the rest."""
        text = self._buffer
        if self._skips_blanks:
            text = text.lstrip()
            self._skips_blanks = not text
        found = [(text.find(mark), mark) for mark in marks if mark in text]
        if found:
            start, mark = min(found)
            before = text[:start].rstrip()
            return before, text[len(before) : start], mark, text[start + len(mark) :]
        kept = 0 if final else held_back(text, marks)
        return text[: len(text) - kept], "", "", text[len(text) - kept :]


def held_back(text: str, marks: Sequence[str]) -> int:
    """Return how many characters at the end may begin a mark, including the blanks before them."""
    length = begun_mark(text, marks)
    return len(text) - len(text[: len(text) - length].rstrip()) if marks else 0


def begun_mark(text: str, marks: Sequence[str]) -> int:
    """Return how many characters at the end may begin a mark."""
    longest = max((len(mark) for mark in marks), default=0)
    for length in range(min(longest - 1, len(text)), 0, -1):
        if any(mark.startswith(text[-length:]) for mark in marks):
            return length
    return 0
