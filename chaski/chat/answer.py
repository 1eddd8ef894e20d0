"""A whole answer, collected from the events of a stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from chaski.chat.events import Done, DoneReason, Event, PromptScores, Text, Thinking, ToolCall
from chaski.receipts.receipt import Receipt
from chaski.sample import Sampled

__all__ = ["Answer", "collect"]

# Characters of the text that `repr` shows.
_SHOWN = 80


class Answer(Struct, frozen=True):
    """A whole answer. `done` has all counts and times.

    text        text for the user
    thinking    thoughts of the model before it
    tool_calls  calls of tools that the model asks for
    token_ids   all tokens of the answer, without end tokens and text that a stop string removed
    logprobs    one entry for each of `token_ids`, if they were asked for
    prompt_logprobs  one entry for each token of the prompt but the first, if they were asked for
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[Sampled, ...]
    done: Done
    prompt_logprobs: tuple[Sampled, ...] = ()
    thinking: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def done_reason(self) -> DoneReason:
        """The reason for which the answer ended: "stop" or "length"."""
        return self.done.reason

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, cached ones included."""
        return self.done.prompt_tokens

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were not computed again."""
        return self.done.cached_tokens

    @property
    def evaluated_tokens(self) -> int:
        """Tokens of the prompt that were computed for this answer."""
        return self.done.evaluated_tokens

    @property
    def shifted_tokens(self) -> int:
        """Tokens of prompt and answer that `shift` forgot when the context was full."""
        return self.done.shifted_tokens

    @property
    def dropped_tokens(self) -> int:
        """Tokens that `truncate` took out of the prompt."""
        return self.done.dropped_tokens

    @property
    def receipt(self) -> Receipt | None:
        """The receipt of the answer; None unless option `receipt` asked for one."""
        return self.done.receipt

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, to append to the conversation before the next question."""
        found: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.thinking:
            found["thinking"] = self.thinking
        if self.tool_calls:
            calls = ({"name": call.name, "arguments": call.arguments} for call in self.tool_calls)
            found["tool_calls"] = [{"function": call} for call in calls]
        return found

    def __repr__(self) -> str:
        """Return the text, shortened, and how the answer ended."""
        done = self.done
        calls = "".join(f"{call.name}(), " for call in self.tool_calls)
        speed = f", {done.generated_tokens / done.decode_seconds:.0f} tok/s" if done.decode_seconds else ""
        text = self.text if len(self.text) <= _SHOWN else f"{self.text[: _SHOWN - 1]}…"
        return f"<Answer {text!r}: {calls}{done.generated_tokens} tokens{speed}, {done.reason}>"


def collect(events: Iterable[Event]) -> Answer:
    """Read a stream to its end."""
    *parts, done = events
    assert isinstance(done, Done)
    pieces = [part for part in parts if isinstance(part, Text | Thinking | ToolCall)]
    return Answer(
        text="".join(piece.text for piece in pieces if isinstance(piece, Text)),
        thinking="".join(piece.text for piece in pieces if isinstance(piece, Thinking)),
        tool_calls=tuple(piece for piece in pieces if isinstance(piece, ToolCall)),
        token_ids=tuple(token for piece in pieces for token in piece.token_ids),
        logprobs=tuple(entry for piece in pieces for entry in piece.logprobs),
        done=done,
        prompt_logprobs=tuple(
            entry for each in parts if isinstance(each, PromptScores) for entry in each.logprobs
        ),
    )
