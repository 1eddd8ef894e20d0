"""Requests for text as typed values, plain enough to be sent to another process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import field
from msgspec.structs import replace

from chaski.chat.arguments import string_list, text_list, token_ids
from chaski.chat.images import ImageSource, image_bytes, image_list, placed_content
from chaski.chat.marks import Mark
from chaski.chat.messages import message_list, require_content, tool_list
from chaski.chat.options import parse_options
from chaski.chat.sendable import Sendable
from chaski.chat.sources import StoredFormat
from chaski.errors import OptionError
from chaski.options import is_integer

__all__ = [
    "Chat",
    "Embed",
    "Fill",
    "Generate",
    "Rank",
    "chat_request",
    "detached",
    "embed_request",
    "generate_request",
    "rank_request",
    "sendable",
]


class Generate(Sendable, frozen=True):
    """Continue a prompt, a text or ids, with image files at its placeholders.

    tells_prompt  an event with the tokens of the prompt comes first
    draw          number of answers to the same prompt before this one, which is added to the seed; of a beam
                search, number of better answers
    usual_seed    the seed where neither options nor the model name one; None takes a fresh one
    written       ids that the answer begins with, as it was computed before: they are computed again in few
                batches, and change nothing
    can_reload    the caller can load the model with a longer context: it gets ContextLengthError with the
                number of tokens that are needed, where prompt and answer would be cut
    """

    prompt: str | tuple[int, ...]
    options: dict[str, Any]
    images: tuple[bytes, ...] = ()
    tells_prompt: bool = False
    draw: int = 0
    usual_seed: int | None = None
    written: tuple[int, ...] = ()
    can_reload: bool = False


class Chat(Sendable, frozen=True):
    """Answer a conversation. The `images` of a message are indices of those of the request.

    think       whether the model thinks, or how much; None for its default
    tool_choice "auto", "none", "required", or the name of the only tool to call
    parallel_calls  whether there may be several calls
    variables   additional variables of the template
    stored      stored part of the chat format, for a model loaded by its file; None for the one it was
                loaded with
    template    template in Go's language that replaces the model's
    context     tokens that go before the prompt
    shortens    whether the oldest turns of a conversation that is too long are left out; None for the
                value of option `truncate`
    tells_prompt  an event with the tokens of the prompt comes first
    draw        as in `Generate`
    marks       places up to which the prompt is kept for a time
    begun       text that the answer begins with, after the prompt; its events come first
    usual_seed  as in `Generate`
    written     as in `Generate`
    can_reload  as in `Generate`
    """

    messages: tuple[Any, ...]
    tools: tuple[Any, ...]
    options: dict[str, Any]
    images: tuple[bytes, ...] = ()
    think: bool | str | None = None
    tool_choice: str = "auto"
    parallel_calls: bool = True
    variables: dict[str, Any] = field(default_factory=dict)
    stored: StoredFormat | None = None
    template: str | None = None
    context: tuple[int, ...] = ()
    shortens: bool | None = None
    tells_prompt: bool = False
    draw: int = 0
    marks: tuple[Mark, ...] = ()
    begun: str = ""
    usual_seed: int | None = None
    written: tuple[int, ...] = ()
    can_reload: bool = False


class Fill(Sendable, frozen=True):
    """Write the text between a prompt and a suffix; it begins with `begun`.

    The other fields are as in `Chat`.
    """

    prompt: str
    suffix: str
    options: dict[str, Any]
    begun: str = ""
    images: tuple[bytes, ...] = ()
    stored: StoredFormat | None = None
    template: str | None = None
    tells_prompt: bool = False
    draw: int = 0
    usual_seed: int | None = None
    written: tuple[int, ...] = ()
    can_reload: bool = False


class Embed(Sendable, frozen=True):
    """Make a vector of each text, or list of ids; the answer has a row for each.

    dimensions  number of first elements to keep; None and 0 keep all
    can_reload  as in `Generate`
    """

    texts: tuple[str | tuple[int, ...], ...]
    truncate: bool = False
    normalize: bool = True
    dimensions: int | None = None
    can_reload: bool = False


class Rank(Sendable, frozen=True):
    """Score the relevance of each document to a query; the answer has a row for each.

    `truncate` cuts off the end of documents that are too long. `can_reload` is as in `Generate`.
    """

    query: str
    documents: tuple[str, ...]
    truncate: bool = False
    can_reload: bool = False


def generate_request(
    prompt: str | Iterable[int], suffix: str, options: Mapping[str, Any], can_reload: bool = False
) -> Generate | Fill:
    """Return the request to continue a prompt, or to fill in between it and a suffix. Raises OptionError."""
    if not isinstance(suffix, str):
        raise OptionError(f"the suffix is {suffix!r:.80}; it must be a text")
    if not suffix:
        given = prompt if isinstance(prompt, str) else tuple(token_ids(prompt))
        return Generate(given, dict(options), can_reload=can_reload)
    if not isinstance(prompt, str):
        raise OptionError(f"the prompt is {prompt!r:.80}; before a suffix it must be a text")
    return Fill(prompt, suffix, dict(options), can_reload=can_reload)


def chat_request(
    messages: Iterable[object],
    tools: Iterable[Any] | None,
    options: Mapping[str, Any],
    think: bool | str | None = None,
    images: Iterable[ImageSource] = (),
    can_reload: bool = False,
) -> tuple[Chat, list[ImageSource]]:
    """Return the request, and the images that it counts; `images` belong to the last message.

    Raises OptionError for an invalid conversation.
    """
    more = image_list(images)
    turns = message_list(messages)
    require_content(turns, bool(more))
    turns, sources = detached(turns, more)
    found = tool_list(tools)
    return Chat(tuple(turns), found, dict(options), think=think, can_reload=can_reload), sources


def sendable(call: Generate | Chat | Fill, images: Sequence[ImageSource]) -> Generate | Chat | Fill:
    """Return a request with its images as bytes, and its options checked by name and value.

    Raises OptionError or SamplingError.
    """
    parse_options(call.options)
    return replace(call, images=tuple(map(image_bytes, images))) if images else call


def detached(
    messages: Iterable[Mapping[str, Any]], images: ImageSource | Iterable[ImageSource] | None = ()
) -> tuple[list[Mapping[str, Any]], list[ImageSource]]:
    """Return the messages with numbers as `images`, and the images themselves in the order of the messages.

    `images` belong to the last message, after its own.

    Raises OptionError for an invalid conversation.
    """
    turns = message_list(messages)
    more = image_list(images)
    if more and not turns:
        raise OptionError("images need a message that they belong to; the conversation is empty")
    found: list[Mapping[str, Any]] = []
    sources: list[ImageSource] = []
    for number, message in enumerate(turns):
        own = [*image_list(message.get("images")), *(more if number == len(turns) - 1 else ())]
        try:
            placed = placed_content(message, len(own))
        except OptionError as error:
            raise OptionError(f"message {number}: {error}") from None
        indices = list(range(len(sources), len(sources) + len(own)))
        found.append({**message, **placed, **({"images": indices} if own else {})})
        sources += own
    return found, sources


def embed_request(
    texts: str | Iterable[str | Iterable[int]],
    truncate: bool,
    normalize: bool,
    dimensions: int | None = None,
) -> Embed:
    """Return the request, for one text or for several. Raises OptionError."""
    if dimensions is not None and (not is_integer(dimensions) or dimensions < 0):
        raise OptionError(f"dimensions is {dimensions!r:.40}; it must be a whole number from 0 on, or None")
    every = text_list(texts)
    prompts = (text if isinstance(text, str) else tuple(token_ids(text, "a text")) for text in every)
    return Embed(tuple(prompts), truncate, normalize, dimensions)


def rank_request(query: str, documents: Iterable[str], truncate: bool) -> Rank:
    """Return the request. Raises OptionError if the query or a document is not a text."""
    if not isinstance(query, str):
        raise OptionError(f"the query is {query!r:.80}; it must be a text")
    return Rank(query, tuple(string_list(documents, "documents")), truncate)
