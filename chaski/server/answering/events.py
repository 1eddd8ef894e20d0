"""Events of an answer, the same for every dialect."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import TypeAlias

from msgspec import Struct

from chaski.chat.events import Done, Text, Thinking, ToolCall

__all__ = [
    "AnswerPiece",
    "Delta",
    "Finish",
    "Prompted",
    "Score",
    "ServiceEvent",
    "ServiceEvents",
    "TopScore",
    "Whole",
    "whole",
]


AnswerPiece: TypeAlias = Text | Thinking | ToolCall


class TopScore(Struct, frozen=True):
    """A token with its bytes and its natural log-probability."""

    token: str
    data: bytes
    logprob: float
    token_id: int = -1


class Score(Struct, frozen=True):
    """A token of the answer, and the most likely tokens at its position."""

    chosen: TopScore
    top: Sequence[TopScore] | None = None


class Prompted(Struct, frozen=True):
    """The prompt, for requests that ask for it.

    first   the first token, which has no log-probability
    scores  the other tokens, if the request asks for their log-probabilities
    """

    text: str
    first: TopScore | None = None
    scores: Sequence[Score] = ()


class Delta(Struct, frozen=True):
    """Pieces of the answer, with the scores of their tokens if the request asks for them.

    prompt_tokens: number of tokens of the prompt, including cached ones
    prompted: the prompt, which only the first delta contains, and only if the request asks for it
    """

    pieces: Sequence[AnswerPiece]
    scores: Sequence[Score] = ()
    prompt_tokens: int = 0
    prompted: Prompted | None = None


class Finish(Struct, frozen=True, kw_only=True):
    """The end of an answer.

    done         the last event of the engine
    called       whether the answer contains tool calls
    context      largest number of tokens in a sequence of the model
    thought      number of tokens of the answer up to the end of its thinking
    dropped      number of tokens left out of the prompt, including those of whole messages
    token_ids    tokens of prompt and answer, if the request asks for them
    load_seconds    seconds from the arrival of the request until its model was loaded
    total_seconds   seconds from the arrival of the request until the end
    """

    done: Done
    called: bool
    context: int
    dropped: int
    thought: int = 0
    token_ids: Sequence[int] | None = None
    load_seconds: float
    total_seconds: float

    @property
    def is_cut(self) -> bool:
        """True if the answer ended because of a limit."""
        return self.done.reason == "length"


ServiceEvent: TypeAlias = Delta | Finish
ServiceEvents: TypeAlias = AsyncGenerator[ServiceEvent, None]
"""Events of an answer: any number of deltas, then one `Finish`."""


class Whole(Struct, frozen=True):
    """A whole answer."""

    content: str
    thinking: str
    calls: Sequence[ToolCall]
    scores: Sequence[Score]
    finish: Finish
    prompted: Prompted | None = None


async def whole(events: AsyncIterator[ServiceEvent]) -> Whole:
    """Read an answer to its end."""
    every = [event async for event in events]
    finish = every[-1]
    assert isinstance(finish, Finish)
    deltas = [event for event in every if isinstance(event, Delta)]
    pieces = [piece for delta in deltas for piece in delta.pieces]
    return Whole(
        content="".join(piece.text for piece in pieces if isinstance(piece, Text)),
        thinking="".join(piece.text for piece in pieces if isinstance(piece, Thinking)),
        calls=[piece for piece in pieces if isinstance(piece, ToolCall)],
        scores=[score for delta in deltas for score in delta.scores],
        finish=finish,
        prompted=next((delta.prompted for delta in deltas if delta.prompted), None),
    )
