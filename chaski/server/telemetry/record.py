"""`RequestRecord`: when a request to a model came, waited, began and ended, and its counts of tokens.

It is filled once, by `Recorder`, and all that is told of requests is made of it.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from chaski.chat.events import Done

__all__ = ["Ending", "Operation", "RequestRecord"]

Ending = Literal["stop", "length", "abort", "error"]
Operation = Literal[
    "chat", "text_completion", "embeddings", "rerank", "load", "tokenize", "detokenize", "render", "state"
]
"""The operation of a request. OpenTelemetry defines the first three names and lacks the others."""


class RequestRecord(Struct, eq=False):
    """A request to a model. Times are seconds of `time.perf_counter`; None: it has not come so far.

    model     the name of the model, for people
    operation what it is asked for
    arrived   the request was read
    loaded    its model was in memory
    first     its first token came; `latest` is when the last one did until now
    ended     its last event came, or it failed, or its client left
    generated_tokens  tokens of the answer until now
    max_tokens        the limit on them that the request sets; None for none
    done      what the engine tells at the end of an answer
    ending    None while it runs, and for a request that asks for no answer
    error     the class of the error that ended it
    is_over   nothing more will be noted
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
    def load_seconds(self) -> float | None:
        """Time until its model was in memory."""
        return None if self.loaded is None else self.loaded - self.arrived

    @property
    def first_token_at(self) -> float | None:
        """The time of the first token, as `first`.

        A piece of text may be held back, and a slow client may delay the end, so the earlier one counts: when
        the first piece came, or the end less the engine's own time of decoding.
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
        """Time in which it waited, with its model in memory, until its prompt began to be computed."""
        at = self.first_token_at
        if self.done is None or self.loaded is None or at is None:
            return None
        return max(at - self.done.prefill_seconds - self.loaded, 0.0)
