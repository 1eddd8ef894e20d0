"""`RequestRecord`: the times of a request to a model, and its counts of tokens.

`Recorder` fills the record, from which the logs, metrics and traces of requests are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from chaski.chat.events import Attempt, Done

__all__ = ["Ending", "Operation", "RequestRecord"]

Ending = Literal["stop", "length", "abort", "error"]
Operation = Literal[
    "chat", "text_completion", "embeddings", "rerank", "load", "tokenize", "detokenize", "render", "state"
]
"""The operation of a request. OpenTelemetry defines the first three names and lacks the others."""


class RequestRecord(Struct, eq=False):
    """A request to a model. Times are seconds of `time.perf_counter`; None before the event.

    model     name of the model, for display
    operation kind of the request
    arrived   time at which the request was read
    loaded    time at which its model was in memory
    first     time of its first token
    latest    time of its latest token so far
    ended     time at which its last event came, it failed, or its client disconnected
    generated_tokens  number of tokens of the answer so far
    max_tokens        limit of the request on these tokens; None for none
    done      event of the engine at the end of an answer
    ending    how the answer ended; None while it runs, and for a request without an answer
    error     class of the error that ended it
    is_over   whether the record is complete
    """

    model: str
    operation: Operation
    arrived: float
    loaded: float | None = None
    first: float | None = None
    latest: float | None = None
    ended: float | None = None
    prompt_tokens: int = 0
    generated_tokens: int = 0
    max_tokens: int | None = None
    done: Done | None = None
    ending: Ending | None = None
    error: str | None = None
    is_over: bool = False

    @property
    def total_seconds(self) -> float | None:
        """Time from its arrival to its end."""
        return None if self.ended is None else self.ended - self.arrived

    @property
    def attempts(self) -> Sequence[Attempt]:
        """The replicas that the request was sent to."""
        return () if self.done is None else self.done.attempts

    @property
    def load_seconds(self) -> float | None:
        """Time until its model was in memory."""
        return None if self.loaded is None else self.loaded - self.arrived

    @property
    def first_token_at(self) -> float | None:
        """The time of the first token, on the clock of `first`.

        A piece of text may be held back, and a slow client may delay the end. Therefore the earlier of two
        times counts: that of the first piece, and that of the end minus the engine's own decoding time.
        """
        if self.done is None or self.ended is None:
            return self.first
        decoding = self.ended - self.done.decode_seconds
        return decoding if self.first is None else min(self.first, decoding)

    @property
    def first_token_seconds(self) -> float | None:
        """Time from its arrival to its first token."""
        at = self.first_token_at
        return None if at is None else at - self.arrived

    @property
    def queue_seconds(self) -> float | None:
        """Time from when its model was in memory until the computation of its prompt began."""
        at = self.first_token_at
        if self.done is None or self.loaded is None or at is None:
            return None
        return max(at - self.done.prefill_seconds - self.loaded, 0.0)
