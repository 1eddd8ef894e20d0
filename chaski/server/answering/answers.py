"""`Answers`: answers that continue while their client is disconnected, and can be read again from the start.

A browser loses its connection when its page is reloaded. A separate task therefore reads the answer and
records it, and each client follows the record. The answer is stopped when it has had no follower for a while.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from chaski.chat.events import Text, Thinking, ToolCall
from chaski.errors import BusyError, OptionError, ResponseNotFoundError
from chaski.server.answering.events import AnswerPiece, Delta, Finish, Score, ServiceEvents

__all__ = ["Answer", "AnswerExistsError", "Answers"]

_PATIENCE = 60.0
_KEPT_SECONDS = 600.0
_MAX_COUNT = 256
_MAX_BYTES = 64 << 20
_SCORE_BYTES = 300
_ID = re.compile(r"[A-Za-z0-9_-]{22,64}")


class AnswerExistsError(OptionError):
    """The client has already begun an answer under this id."""


@dataclass(eq=False)
class Answer:
    """The recorded part of an answer, with its text as UTF-8. `model` is the name in the request."""

    model: str
    task: asyncio.Task[None] | None = None
    thinking: bytearray = field(default_factory=bytearray)
    content: bytearray = field(default_factory=bytearray)
    calls: list[ToolCall] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    finish: Finish | None = None
    error: Exception | None = None
    followers: int = 0
    timer: asyncio.TimerHandle | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_over(self) -> bool:
        """True if the answer has ended."""
        return self.task is not None and self.task.done()

    @property
    def size(self) -> int:
        """Size in bytes: exact for the text, estimated for the log-probabilities."""
        tops = sum(len(score.top or ()) for score in self.scores[:1])
        return len(self.thinking) + len(self.content) + len(self.scores) * (1 + tops) * _SCORE_BYTES

    def add(self, delta: Delta) -> None:
        """Record a delta and wake all followers."""
        for piece in delta.pieces:
            if isinstance(piece, ToolCall):
                self.calls.append(piece)
            else:
                text = self.thinking if isinstance(piece, Thinking) else self.content
                text += piece.text.encode(errors="replace")
        self.scores += delta.scores
        self.tell()

    def tell(self) -> None:
        """Wake all followers."""
        self.changed.set()
        self.changed = asyncio.Event()


class Answers:
    """Running and ended answers by owner and id. Use it in one event loop only.

    patience      seconds for which an answer without followers continues
    kept_seconds  seconds for which an ended answer is kept
    max_count     largest number of answers
    max_bytes     largest size of all answers together; the oldest ended ones are dropped first
    """

    def __init__(
        self,
        patience: float = _PATIENCE,
        kept_seconds: float = _KEPT_SECONDS,
        max_count: int = _MAX_COUNT,
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        self._patience = patience
        self._kept_seconds = kept_seconds
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._found: OrderedDict[tuple[str, str], Answer] = OrderedDict()

    def begin(self, owner: str, answer_id: str, model: str, events: ServiceEvents) -> Answer:
        """Start to record an answer under an id that its client has drawn.

        Raises OptionError, AnswerExistsError, BusyError."""
        if not _ID.fullmatch(answer_id):
            raise OptionError("answer_id must consist of 22 to 64 random letters, digits, - or _")
        key = (owner, answer_id)
        if key in self._found:
            raise AnswerExistsError(f"answer_id '{answer_id}' is already in use; draw another one")
        self._make_room()
        answer = self._found[key] = Answer(model)
        answer.task = asyncio.create_task(self._read(key, answer, events))
        self._wait_for_followers(key, answer)
        return answer

    def get(self, owner: str, answer_id: str) -> Answer:
        """Return an answer. Raises ResponseNotFoundError if it is gone or has another owner."""
        if (owner, answer_id) not in self._found:
            raise ResponseNotFoundError(f"answer '{answer_id:.64}' not found: it has expired or was stopped")
        return self._found[owner, answer_id]

    async def follow(self, owner: str, answer_id: str) -> ServiceEvents:
        """Yield an answer from its start: the recorded part at once, then the rest as it arrives.

        Raises the error that ended the answer, and ResponseNotFoundError.
        """
        key, answer = (owner, answer_id), self.get(owner, answer_id)
        answer.followers += 1
        if answer.timer is not None and not answer.is_over:
            answer.timer.cancel()
        thought = said = called = scored = 0
        try:
            while True:
                changed = answer.changed
                pieces: list[AnswerPiece] = []
                if len(answer.thinking) > thought:
                    pieces.append(Thinking(answer.thinking[thought:].decode()))
                if len(answer.content) > said:
                    pieces.append(Text(answer.content[said:].decode()))
                pieces += answer.calls[called:]
                scores = answer.scores[scored:]
                thought, said, called = len(answer.thinking), len(answer.content), len(answer.calls)
                scored += len(scores)
                if pieces or scores:
                    yield Delta(pieces, scores)
                elif answer.error is not None:
                    raise answer.error
                elif answer.finish is not None:
                    yield answer.finish
                    return
                elif answer.is_over:
                    return
                else:
                    await changed.wait()
        finally:
            answer.followers -= 1
            if not answer.followers and not answer.is_over:
                self._wait_for_followers(key, answer)

    async def stop(self, owner: str, answer_id: str) -> None:
        """Stop an answer and drop it. Raises ResponseNotFoundError."""
        answer = self.get(owner, answer_id)
        await self._cancel((owner, answer_id), answer)

    async def close(self) -> None:
        """Stop all answers."""
        for key, answer in list(self._found.items()):
            await self._cancel(key, answer)

    async def _read(self, key: tuple[str, str], answer: Answer, events: ServiceEvents) -> None:
        try:
            async with aclosing(events):
                async for event in events:
                    if isinstance(event, Finish):
                        answer.finish = event
                    else:
                        answer.add(event)
        except Exception as error:
            answer.error = error
        finally:
            answer.tell()
            self._end_after(self._kept_seconds, key, answer)

    def _wait_for_followers(self, key: tuple[str, str], answer: Answer) -> None:
        self._end_after(self._patience, key, answer)

    def _end_after(self, seconds: float, key: tuple[str, str], answer: Answer) -> None:
        if answer.timer is not None:
            answer.timer.cancel()
        if self._found.get(key) is answer:
            answer.timer = asyncio.get_running_loop().call_later(seconds, self._forget, key, answer)

    def _forget(self, key: tuple[str, str], answer: Answer) -> None:
        self._found.pop(key, None)
        if answer.timer is not None:
            answer.timer.cancel()
        if answer.task is not None:
            answer.task.cancel()

    async def _cancel(self, key: tuple[str, str], answer: Answer) -> None:
        self._forget(key, answer)
        if answer.task is not None:
            with suppress(asyncio.CancelledError):
                await answer.task

    def _make_room(self) -> None:
        """Drop the oldest ended answers. Raises BusyError if too many others remain."""
        for key, answer in list(self._found.items()):
            if not self._is_full:
                return
            if answer.is_over and not answer.followers:
                self._forget(key, answer)
        if self._is_full:
            raise BusyError(
                "server busy: it keeps too many answers for clients that may reconnect; try later"
            )

    @property
    def _is_full(self) -> bool:
        size = sum(answer.size for answer in self._found.values())
        return len(self._found) >= self._max_count or size > self._max_bytes
