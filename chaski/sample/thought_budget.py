"""The budget of an answer's thoughts: it counts their tokens, and names the tokens that end them in time.

`docs/sampling.md` states the rule. A budget reads only the tokens of its own answer. So it decides the same,
however the tokens are computed.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from chaski.sample.lark import AnswerPrefix, end_mark

__all__ = ["ThoughtBudget", "ends_of_thought", "without_answer"]


def ends_of_thought(prefix: AnswerPrefix, is_constrained: bool) -> Iterator[str]:
    """Yield texts that end a thought early, up to where the answer begins, the best one first.

    A constraint takes only blanks or the header after the closing text. A longer end is left out then.
    """
    _, closing, after = prefix.end.partition(prefix.closing)
    fits = closing and (after == prefix.header or not (prefix.header or after.strip()))
    if prefix.end and (fits or not is_constrained):
        yield prefix.end
    yield prefix.closing + prefix.header


def without_answer(end: str, prefix: AnswerPrefix) -> str:
    """Return the end of a thought without the text that begins an answer, where a call may follow too."""
    before, closing, after = end.partition(prefix.closing)
    return before + closing + after[: len(after) - len(after.lstrip())]


class ThoughtBudget:
    """The state of one answer."""

    def __init__(
        self,
        prefix: AnswerPrefix,
        num_tokens: int,
        end_ids: Sequence[Sequence[int]],
        controls: Mapping[str, int],
        spell: Callable[[int], bytes],
    ) -> None:
        """num_tokens: the most tokens of thoughts.

        end_ids: those that end the first thought, the second one, and so on; the last ones end all others.
        controls: tokens that no text is made of, by spelling. spell: returns the bytes of a token.
        """
        self._opening = prefix.opening.strip().encode(errors="replace")
        self._closing = end_mark(prefix.closing, controls).encode(errors="replace")
        self._repeats = prefix.repeats and bool(self._opening)
        self._left = num_tokens
        self._end_ids = deque(end_ids)
        self._spell = spell
        self._is_open = prefix.is_open
        self._may_open = not prefix.is_open and bool(self._opening)
        self._is_first = True  # only blanks came so far
        self._tail = b""  # the end of the text, in which a mark may have begun
        self._characters = getincrementaldecoder("utf-8")("replace")
        self._forced: deque[int] = deque()
        self._force()

    @property
    def forced(self) -> int | None:
        """The next token, if the budget decides it; None if the sampler does."""
        return self._forced[0] if self._forced else None

    def accept(self, token_id: int) -> None:
        """Continue after a token."""
        if self._forced:
            self._forced.popleft()
            if not self._forced:
                self._close()
            return
        if not (self._is_open or self._may_open):
            return
        self._left -= self._is_open or self._is_first
        data = self._spell(token_id)
        self._characters.decode(data)
        self._tail += data
        while self._is_open or self._may_open:
            found = self._find_closing() if self._is_open else self._find_opening()
            if not found:
                break
        self._force()

    def _force(self) -> None:
        """End an open thought if the budget is spent, but not inside a character."""
        if self._is_open and self._left <= 0 and not self._characters.getstate()[0]:
            self._forced.extend(self._end_ids[0])
            if len(self._end_ids) > 1:
                self._end_ids.popleft()

    def _find_closing(self) -> bool:
        _, mark, after = self._tail.partition(self._closing)
        if not mark:
            self._tail = _end(self._tail, len(self._closing))
            return False
        self._close()
        self._tail = after
        return True

    def _find_opening(self) -> bool:
        if self._is_first:
            self._tail = self._tail.lstrip()
            self._is_first = self._opening.startswith(self._tail)
        before, mark, after = self._tail.partition(self._opening)
        if mark and (self._repeats or not before):
            self._is_open, self._is_first, self._tail = True, False, after
            return True
        self._may_open = self._is_first or self._repeats
        self._tail = self._tail if self._is_first else _end(self._tail, len(self._opening))
        return False

    def _close(self) -> None:
        self._is_open, self._is_first, self._tail = False, False, b""
        self._may_open = self._repeats


def _end(text: bytes, length: int) -> bytes:
    """Return the part of a text in which a mark of `length` bytes may have begun."""
    return text[max(0, len(text) - length + 1) :]
