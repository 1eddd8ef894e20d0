"""Answers continued by another replica: delivered text is computed again, but not sent again.

The same request gives the same answer on every machine. A replica that takes over therefore computes the
whole answer again, quickly for the known tokens (`written`), and `Delivered` passes on only the new part.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from chaski.chat.events import Done, Event, Text, Thinking, ToolCall
from chaski.errors import ComputationError
from chaski.runner.channels.messages import Answerable

__all__ = ["Delivered", "continued", "repeatable"]


def repeatable(call: Answerable) -> Answerable:
    """Return a repeatable version of a request: one with a fixed seed."""
    return replace(call, usual_seed=secrets.randbits(64)) if call.usual_seed is None else call


def continued(call: Answerable, delivered: Delivered) -> Answerable:
    """Return the request that computes an answer again, given its known tokens."""
    return replace(call, written=tuple(delivered.token_ids))


class _Run(Struct):
    """Consecutive events of one kind: their joined text and number of tokens.

    Events other than text and thoughts form separate runs and are kept unchanged.
    """

    kind: type
    text: str = ""
    tokens: int = 0
    event: Event | None = None


class Delivered:
    """The delivered part of an answer, independent of its division into events."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self._runs: list[_Run] = []
        self._skipping: deque[_Run] = deque()

    @property
    def has_begun(self) -> bool:
        """True if any token was delivered."""
        return bool(self.token_ids)

    def restart(self) -> None:
        """Restart the answer at its first event."""
        self._skipping = deque(replace(run) for run in self._runs)

    def new(self, event: Event) -> Iterator[Event]:
        """Yield the part of an event that was not delivered yet, and record it as delivered.

        Raises ComputationError if the answer differs from the delivered part.
        """
        rest = self._rest(event)
        if rest is not None:
            self._note(rest)
            yield rest

    def _rest(self, event: Event) -> Event | None:
        if not self._skipping:
            return event
        run = self._skipping[0]
        if type(event) is not run.kind:
            raise _another()
        if not isinstance(event, Text | Thinking):
            if event != run.event:
                raise _another()
            self._skipping.popleft()
            return None
        length, tokens = min(len(event.text), len(run.text)), min(len(event.token_ids), run.tokens)
        if event.text[:length] != run.text[:length]:
            raise _another()
        run.text, run.tokens = run.text[length:], run.tokens - tokens
        if not run.text and not run.tokens:
            self._skipping.popleft()
        if length == len(event.text) and tokens == len(event.token_ids):
            return None
        if self._skipping:
            # The reader got more of the text but fewer tokens, or the reverse.
            raise _another()
        return replace(
            event,
            text=event.text[length:],
            token_ids=event.token_ids[tokens:],
            logprobs=event.logprobs[tokens:],
        )

    def _note(self, event: Event) -> None:
        match event:
            case Done():
                return
            case Text() | Thinking():
                self._note_text(event)
            case _:
                self._runs.append(_Run(type(event), event=event))
        if isinstance(event, Text | Thinking | ToolCall):
            self.token_ids += event.token_ids

    def _note_text(self, event: Text | Thinking) -> None:
        last = self._runs[-1] if self._runs else None
        if last is not None and last.kind is type(event):
            last.text, last.tokens = last.text + event.text, last.tokens + len(event.token_ids)
        else:
            self._runs.append(_Run(type(event), event.text, len(event.token_ids)))


def _another() -> ComputationError:
    return ComputationError(
        "the answer was continued by another machine, which computes it otherwise; the machines of a cluster "
        "must run the same version of chaski on the same file"
    )
