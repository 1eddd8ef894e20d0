"""Terminal output of an answer: its text as it is generated, and a report of its counts and times."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

import click

from chaski.cli.layout import duration
from chaski.cli.terminal import visible
from chaski.cli.wrap import WordWrap

if TYPE_CHECKING:
    from chaski.chat.events import Done, Event, ToolCall
    from chaski.cli.markdown import MarkdownStream

__all__ = ["AnswerOutput", "report"]


class AnswerOutput:
    """Prints an answer as it is generated. Thoughts are printed between two marker lines.

    said the pieces of text so far calls  the tool calls so far

    wraps_words      lines on a terminal break between words
    renders_markdown the answer is laid out on a terminal; thoughts are not
    """

    def __init__(self, hides_thinking: bool, wraps_words: bool, renders_markdown: bool) -> None:
        self.said: list[str] = []
        self.calls: list[ToolCall] = []
        self._is_terminal = sys.stdout.isatty()
        columns = shutil.get_terminal_size().columns if wraps_words else 0
        self._wrap = WordWrap(columns)
        has_colors = not os.environ.get("NO_COLOR")
        self._markdown: MarkdownStream | None = None
        if renders_markdown and self._is_terminal:
            from chaski.cli.markdown import MarkdownStream

            self._markdown = MarkdownStream(max(columns - 1, 0), has_colors)
        self._hides_thinking = hides_thinking
        self._is_thinking = False

    def show(self, event: Event) -> Done | None:
        """Print an event. Return it if it is `Done`, the last event, else None."""
        from chaski.chat.events import Done, Text, Thinking, ToolCall

        if isinstance(event, Thinking):
            if not self._hides_thinking:
                self._print(("" if self._is_thinking else "Thinking...\n") + event.text)
                self._is_thinking = True
            return None
        if self._is_thinking:
            self._print("\n...done thinking.\n\n")
            self._is_thinking = False
        if isinstance(event, Text):
            self.text(event.text)
            return None
        if isinstance(event, ToolCall):
            self.calls.append(event)
            return None
        assert isinstance(event, Done), "no prompt log probabilities are requested"
        return event

    def text(self, text: str) -> None:
        """Print a piece of the answer."""
        self.said.append(text)
        if self._markdown is None:
            self._print(text)
        else:
            _echo(self._markdown.feed(visible(text)))

    def end(self) -> None:
        """Print the text that was held back, and end the line."""
        _echo((self._markdown.close() if self._markdown is not None else "") + "\n")

    def _print(self, text: str) -> None:
        """Print a piece of text, with control characters escaped on a terminal."""
        _echo(self._wrap.feed(visible(text)) if self._is_terminal else text)


def _echo(text: str) -> None:
    if text:
        click.echo(text, nl=False, color=True)


def report(done: Done) -> str:
    """Return the counts, times and rates of an answer in Ollama's layout, without zeros."""
    computed = done.prompt_tokens - done.cached_tokens
    total = done.load_seconds + done.prefill_seconds + done.decode_seconds
    # The batch that computes the prompt also yields the first token, so decoding made one fewer.
    decoded = max(done.generated_tokens - 1, 0)
    rows = [
        ("total duration", duration(total), total),
        ("load duration", duration(done.load_seconds), done.load_seconds),
        ("prompt eval count", f"{done.prompt_tokens} token(s)", done.prompt_tokens),
        ("prompt cached count", f"{done.cached_tokens} token(s)", done.cached_tokens),
        ("cached in memory", f"{done.memory_tokens} token(s)", done.memory_tokens),
        ("cached on disk", f"{done.disk_tokens} token(s)", done.disk_tokens),
        ("prompt dropped count", f"{done.dropped_tokens} token(s)", done.dropped_tokens),
        ("prompt eval duration", duration(done.prefill_seconds), done.prefill_seconds),
        ("prompt eval rate", _rate(computed, done.prefill_seconds), computed),
        ("eval count", f"{done.generated_tokens} token(s)", done.generated_tokens),
        ("thinking count", f"{done.thinking_tokens} token(s)", done.thinking_tokens),
        ("eval duration", duration(done.decode_seconds), done.decode_seconds),
        ("eval rate", _rate(decoded, done.decode_seconds), decoded),
    ]
    return "\n".join(f"{label + ':':<22}{text}" for label, text, value in rows if value)


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / max(seconds, 1e-9):.2f} tokens/s"
