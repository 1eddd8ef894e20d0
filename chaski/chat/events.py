"""Events of an answer: typed, frozen, and the same for Python, commands and every API."""

from __future__ import annotations

from typing import Any, Literal

from chaski.chat.marks import Holds
from chaski.chat.sendable import Sendable
from chaski.receipts.receipt import Receipt
from chaski.sample import Sampled

__all__ = [
    "Attempt",
    "Done",
    "DoneReason",
    "Event",
    "Partial",
    "PromptScores",
    "PromptTokens",
    "Text",
    "Thinking",
    "ToolCall",
]

DoneReason = Literal["stop", "length", "cancelled"]


class Text(Sendable, frozen=True):
    """A piece of the answer.

    `token_ids` are the tokens whose text begins in this piece, so each token of the answer is in exactly one;
    the rest of the last one may follow in the next piece. `logprobs` has one entry for each of them if
    log-probabilities were asked for, and is empty otherwise.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[Sampled, ...] = ()


class Thinking(Sendable, frozen=True):
    """A piece of the thoughts before the answer; its tokens are as in `Text`."""

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[Sampled, ...] = ()


class ToolCall(Sendable, frozen=True):
    """A complete call of a tool. `arguments` is a JSON object in the order in which the model wrote it.

    Its tokens are as in `Text`.
    """

    name: str
    arguments: dict[str, Any]
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[Sampled, ...] = ()


class PromptTokens(Sendable, frozen=True):
    """The tokens of the prompt, given before it is computed if the request asks for them.

    count      number of tokens, rows of images included
    token_ids  tokens of text
    """

    count: int
    token_ids: tuple[int, ...]


class PromptScores(Sendable, frozen=True):
    """Log-probability of each token of the prompt, given the tokens before it; the first token has none.

    The event comes before all text, if option `prompt_logprobs` is set.
    """

    logprobs: tuple[Sampled, ...]


class Attempt(Sendable, frozen=True):
    """A stay of an answer at a replica of its model.

    node   the machine of the replica
    began, ended  times on `time.perf_counter` of the process that sent the request to the replica
    error  class of the error by which the replica was lost; None if the answer ended there
    """

    replica: str
    node: str
    began: float
    ended: float
    error: str | None = None


class Done(Sendable, frozen=True, kw_only=True):
    """The end of the answer, always the last event.

    reason            "stop": an end token or a stop string; "length": a limit on tokens; "cancelled": its
                      reader left
    stop_string       the stop string that ended it, if one did
    prompt_tokens     tokens of the prompt, cached ones included
    cached_tokens     tokens of the prompt that were not computed again; `evaluated_tokens` are the others
    memory_tokens     those of the cached tokens that came back from host memory
    disk_tokens       those of the cached tokens that came back from files
    saved_seconds     the time saved by this, if known
    held_tokens       for each mark of the request, how many tokens of the prompt the prefix cache holds
                      for it, and for how many seconds from their last use
    generated_tokens  tokens sampled, an end token and those that a stop string removed included
    dropped_tokens    tokens that truncation took out of the prompt, not counted in `prompt_tokens`
    proposed_tokens   tokens that speculation proposed, computed ahead; `accepted_tokens` of them were right
    shifted_tokens    tokens of prompt and answer that were forgotten on the way, when the context was full
    thinking_tokens   tokens of the answer up to the last one of its thinking
    attempts          the replicas that computed the answer, one after the other; empty without replicas
    receipt           its receipt, if option `receipt` asks for one
    """

    reason: DoneReason
    stop_string: str | None = None
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    dropped_tokens: int
    memory_tokens: int = 0
    disk_tokens: int = 0
    saved_seconds: float = 0.0
    held_tokens: Holds = ()
    shifted_tokens: int = 0
    proposed_tokens: int = 0
    accepted_tokens: int = 0
    thinking_tokens: int = 0
    load_seconds: float
    prefill_seconds: float
    decode_seconds: float
    attempts: tuple[Attempt, ...] = ()
    receipt: Receipt | None = None

    @property
    def evaluated_tokens(self) -> int:
        """Tokens of the prompt that were computed for this request."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def cached_by_tier(self) -> dict[str, int]:
        """The cached tokens by where they were: in cells of the engine, in host memory, on disk."""
        cells = self.cached_tokens - self.memory_tokens - self.disk_tokens
        return {"cells": cells, "memory": self.memory_tokens, "disk": self.disk_tokens}

    @property
    def guessed_tokens(self) -> int:
        """Former name of `proposed_tokens`."""
        return self.proposed_tokens

    @property
    def guessed_right_tokens(self) -> int:
        """Former name of `accepted_tokens`."""
        return self.accepted_tokens


Partial = Text | Thinking | ToolCall | PromptTokens | PromptScores
"""An event that is never the last one of an answer."""

Event = Partial | Done
