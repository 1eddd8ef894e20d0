"""From a conversation to the tokens of a prompt that fits: what does not is left out, and counted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chaski.errors import OptionError, TemplateError
from chaski.server.models import Loaded
from chaski.server.templates import Writer
from chaski.server.wishes import Wish

__all__ = ["Prompt", "Turns", "conversation_prompt", "encode", "text_prompt"]

TOO_LONG = "the input length exceeds the context length"
_NO_SHIFT = (
    "the prompt is longer than the context length currently available to the model; shorten the prompt, adjust "
    "the context length in settings, or use a model with a longer context length"
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """text: what the tokens say. dropped: tokens that were left out already."""

    text: str
    token_ids: list[int]
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Turns:
    """A conversation, and how it is written."""

    writer: Writer
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    think: bool | str | None = None

    def render(self) -> str:
        """Its text. Raises TemplateError."""
        return self.writer.render(self.messages, self.tools, self.think)

    @property
    def droppable(self) -> list[int]:
        """Which messages can be left out, the oldest first: all but the system's and the last one."""
        turns = enumerate(self.messages[:-1])
        return [index for index, message in turns if message["role"] != "system"]

    def without(self, count: int) -> Turns:
        """The same without the oldest messages."""
        dropped = set(self.droppable[:count])
        kept = [message for index, message in enumerate(self.messages) if index not in dropped]
        return replace(self, messages=kept)


async def conversation_prompt(loaded: Loaded, turns: Turns, wish: Wish) -> Prompt:
    """The prompt of a conversation. Where it is too long, its oldest messages are left out."""
    prompt = await _written(loaded, turns)
    length = len(prompt.token_ids)
    if length > loaded.info.context and wish.truncate:
        prompt = await _shortened(loaded, turns)
    check_length(prompt.token_ids, loaded, wish)
    return replace(prompt, dropped=length - len(prompt.token_ids))


async def text_prompt(loaded: Loaded, text: str, wish: Wish) -> Prompt:
    """The prompt of a text that a template wrote."""
    prompt = Prompt(text, await encode(loaded, text))
    check_length(prompt.token_ids, loaded, wish)
    return prompt


async def encode(loaded: Loaded, text: str) -> list[int]:
    """The tokens of a text that a template wrote: with one token that begins it, whether written or not."""
    if loaded.opening is None:
        loaded.opening = (await loaded.model.tokenize(""))[:1]
    ids = await loaded.model.tokenize(text, add_special=False)
    return ids if ids[:1] == loaded.opening else loaded.opening + ids


def check_length(token_ids: Sequence[int], loaded: Loaded, wish: Wish) -> None:
    """Refuse what is too long, unless the engine may cut it."""
    if len(token_ids) > loaded.info.context:
        if not wish.truncate:
            raise OptionError(TOO_LONG)
        if not wish.shift:
            raise OptionError(_NO_SHIFT)


async def _written(loaded: Loaded, turns: Turns) -> Prompt:
    # Templates come from files and may take their time, up to their limits.
    text = await asyncio.to_thread(turns.render)
    return Prompt(text, await encode(loaded, text))


async def _shortened(loaded: Loaded, turns: Turns) -> Prompt:
    """With as many messages as fit; at least the last one stays. Found by halving."""
    low, high = 1, len(turns.droppable)
    best = await _written(loaded, turns.without(high))
    while low < high:
        middle = (low + high) // 2
        try:
            prompt = await _written(loaded, turns.without(middle))
        except TemplateError:
            low = middle + 1  # what is left makes no conversation, a result without its call for instance
            continue
        if len(prompt.token_ids) <= loaded.info.context:
            best, high = prompt, middle
        else:
            low = middle + 1
    return best
