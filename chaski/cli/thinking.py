"""A model here that thinks: its conversations are written and its answers read as the server does it."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from chaski.chat.events import Done, Text
from chaski.chat.shortening import shortened
from chaski.text.parsers import Content, Piece, Thinking

if TYPE_CHECKING:
    from chaski.chat.events import Event
    from chaski.chat.formats import ChatFormat
    from chaski.cli.local import WorkerModel
    from chaski.runner.llm import LLM

__all__ = ["ThinkingModel"]

Messages = Sequence[Mapping[str, Any]]


class ThinkingModel:
    """Around a model that is loaded: what it thinks comes apart from what it says."""

    def __init__(self, model: LLM | WorkerModel, chat_format: ChatFormat) -> None:
        self._model = model
        self._chat_format = chat_format
        self._opening = model.tokenize("")[:1]
        self.path = model.path
        self.context = model.context
        self.vocab_size = model.vocab_size
        self.chat_template = model.chat_template
        self.defaults = model.defaults
        self.has_vision = model.has_vision

    def stream(
        self, prompt: str, images: Sequence[bytes] = (), **options: Any
    ) -> Generator[Event, None, None]:
        """Continue a prompt as it is; nothing is taken apart."""
        return self._model.stream(prompt, images, **options)

    def stream_chat(
        self, messages: Messages, think: bool | str | None = None, **options: Any
    ) -> Generator[Event | Thinking, None, None]:
        """Answer a conversation. think: whether, or how much; it does unless it is told otherwise."""
        think = self._chat_format.thinking(think)
        turns = kept = self.defaults.conversation(messages)
        ids = whole = self._ids(turns, think)
        if len(whole) > self.context and options.get("truncate"):
            kept = [*shortened(turns, lambda rest: len(self._ids(rest, think)) <= self.context)]
            ids = self._ids(kept, think)
        reader = self._chat_format.reader(self._chat_format.render(kept, None, think), (), bool(think))
        if "format" in options and reader.lead is not None:
            options["format_thought"] = asdict(reader.lead)
        with closing(self._model.stream(ids, _images(kept), special=True, **options)) as events:
            for event in events:
                if isinstance(event, Text):
                    yield from _said(reader.feed(event.text))
                elif isinstance(event, Done):
                    yield from _said(reader.flush())
                    yield replace(event, dropped_tokens=event.dropped_tokens + len(whole) - len(ids))

    def close(self) -> None:
        """Release the model."""
        self._model.close()

    def _ids(self, turns: Messages, think: bool | str | None) -> list[int]:
        """The tokens of a conversation, with the one that begins every text."""
        text = self._chat_format.render(turns, None, think)
        ids = self._model.tokenize(text, add_special=False, images=_images(turns))
        return ids if ids[:1] == self._opening else self._opening + ids


def _images(turns: Messages) -> list[bytes]:
    return [image for turn in turns for image in turn.get("images", ())]


def _said(pieces: Iterable[Piece]) -> Generator[Text | Thinking, None, None]:
    for piece in pieces:
        if isinstance(piece, Thinking):
            yield piece
        elif isinstance(piece, Content):
            yield Text(piece.text)
