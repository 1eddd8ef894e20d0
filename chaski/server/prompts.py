"""From a conversation to the tokens of a prompt that fits: what does not is left out, and counted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chaski.chat.formats import ChatFormat
from chaski.chat.shortening import shortened
from chaski.errors import ContextLengthError
from chaski.server.models.loaded import Loaded
from chaski.server.requests import ModelRequest

__all__ = [
    "Prompt",
    "Turns",
    "check_length",
    "conversation_prompt",
    "encode",
    "pair_ids",
    "text_prompt",
]

_TOO_LONG = "the input length exceeds the context length"
_NO_SHIFT = (
    "the prompt is longer than the context length currently available to the model; shorten the prompt, "
    "adjust the context length in settings, or use a model with a longer context length"
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """text: what the tokens say. dropped: tokens that were left out already.

    images: files; ids below 0 are their rows, see `LLM.tokenize`.
    """

    text: str
    token_ids: list[int]
    dropped: int = 0
    images: Sequence[bytes] = ()

    @property
    def text_ids(self) -> list[int]:
        """Without images, which do not outlive a request."""
        return [token for token in self.token_ids if token >= 0]


@dataclass(frozen=True, slots=True)
class Turns:
    """A conversation, and how it is written. variables: for the template, besides."""

    chat_format: ChatFormat
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    think: bool | str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def images(self) -> list[bytes]:
        """All of them, in the order of their placeholders' numbers."""
        return [image for message in self.messages for image in message.get("images", ())]

    def render(self) -> str:
        """Its text, with placeholders for images. Raises TemplateError, or OptionError for its variables."""
        return self.chat_format.render(self.messages, self.tools, self.think, self.variables)


async def conversation_prompt(loaded: Loaded, turns: Turns, request: ModelRequest) -> Prompt:
    """The prompt of a conversation. Where it is too long, its oldest messages are left out."""
    prompt = await _written(loaded, turns)
    length = len(prompt.token_ids)
    if length > loaded.info.context and request.truncate:
        prompt = await _shortened(loaded, turns)
    return replace(prompt, dropped=length - len(prompt.token_ids))


async def text_prompt(loaded: Loaded, text: str, images: Sequence[bytes] = ()) -> Prompt:
    """The prompt of a text that a template wrote."""
    return Prompt(text, await encode(loaded, text, images), images=images)


async def pair_ids(
    loaded: Loaded, template: str, query: str, document: str, request: ModelRequest
) -> list[int]:
    """The tokens of a query and a document; where they do not fit, those at the document's end are left out.

    `template` has {query} and {document} where they belong.
    """
    head, _, tail = (part.replace("{query}", query) for part in template.partition("{document}"))
    ids = await encode(loaded, head + document + tail)
    context = loaded.info.context
    if len(ids) <= context:
        return ids
    begin, end = await encode(loaded, head), await loaded.model.tokenize(tail, add_special=False)
    room = context - len(begin) - len(end)
    if not request.truncate or room < 1:
        raise ContextLengthError(_TOO_LONG, len(ids), context)
    return begin + (await loaded.model.tokenize(document, add_special=False))[:room] + end


async def encode(loaded: Loaded, text: str, images: Sequence[bytes] = ()) -> list[int]:
    """The tokens of a text that a template wrote: with one token that begins it, whether written or not."""
    if loaded.opening is None:
        loaded.opening = (await loaded.model.tokenize(""))[:1]
    ids = await loaded.model.tokenize(text, add_special=False, images=images)
    return ids if ids[:1] == loaded.opening else loaded.opening + ids


def check_length(token_ids: Sequence[int], loaded: Loaded, request: ModelRequest) -> None:
    """Refuse a prompt that is too long with a ContextLengthError, unless the engine may cut it."""
    length, limit = len(token_ids), loaded.info.context
    if length > limit and not (request.truncate and request.shift):
        raise ContextLengthError(_NO_SHIFT if request.truncate else _TOO_LONG, length, limit)


async def _written(loaded: Loaded, turns: Turns) -> Prompt:
    # Templates come from files and may take their time, up to their limits.
    text = await asyncio.to_thread(turns.render)
    return Prompt(text, await encode(loaded, text, turns.images), images=turns.images)


async def _shortened(loaded: Loaded, turns: Turns) -> Prompt:
    """Without as many of the oldest turns as it takes; at least the last one stays."""
    loop = asyncio.get_running_loop()

    def fits(messages: Sequence[Mapping[str, Any]]) -> bool:
        rest = replace(turns, messages=messages)
        counting = encode(loaded, rest.render(), rest.images)
        return len(asyncio.run_coroutine_threadsafe(counting, loop).result()) <= loaded.info.context

    messages = await asyncio.to_thread(shortened, turns.messages, fits)
    return await _written(loaded, replace(turns, messages=messages))
