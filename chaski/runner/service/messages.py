"""The calls that a loaded model takes from another thread or process, and its replies: typed values.

A `Channel` leads to the model, in this process (`engine_channel.py`) or in one of its own (`worker`).
Nothing here computes or sends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from chaski.chat.arguments import text_list, token_ids
from chaski.chat.events import Done, PromptScores, Text
from chaski.chat.images import ImageFile, image_bytes, take_images
from chaski.chat.options import parse_options
from chaski.ml.backend import Memory
from chaski.runner.engine.outputs import Outputs

__all__ = [
    "CallHandle",
    "Channel",
    "Chat",
    "Describe",
    "Detokenize",
    "Embed",
    "Generate",
    "Info",
    "ModelCall",
    "ModelReply",
    "ReplyCallback",
    "String",
    "Tokenize",
    "Tokens",
    "chat",
    "embed",
    "generate",
]


@dataclass(frozen=True, slots=True)
class Generate:
    """Continue a prompt, with image files at its placeholders. Answered by `Text`s and a `Done`."""

    prompt: str | tuple[int, ...]
    options: dict[str, Any]
    images: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Chat:
    """Answer a conversation, with image files at the placeholders of its texts.

    Answered by `Text`s and a `Done`.
    """

    messages: tuple[Any, ...]
    tools: tuple[Any, ...] | None
    options: dict[str, Any]
    images: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Embed:
    """Make a vector of each text, or list of ids. Answered by `Outputs` with a row for each."""

    texts: tuple[str | tuple[int, ...], ...]
    truncate: bool = False
    normalize: bool = True


@dataclass(frozen=True, slots=True)
class Tokenize:
    """Answered by `Tokens`. With images, rows of image k are the id -1 - k."""

    text: str
    add_special: bool = True
    parse_special: bool = True
    images: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Detokenize:
    """Answered by a `String`."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Describe:
    """Answered by `Info`. With `wait_loaded` the answer waits until all of the model is in memory."""

    wait_loaded: bool = False


@dataclass(frozen=True, slots=True)
class Tokens:
    """The ids of a text."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class String:
    """A text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """What a loaded model is. `context` is in tokens for each sequence, `memory` in bytes.

    engine  who computes it: native or llama.cpp
    has_vision  whether prompts may have images
    """

    path: str
    context: int
    vocab_size: int
    chat_template: str | None
    load_seconds: float
    memory: Memory
    engine: str = "native"
    has_vision: bool = False


ModelCall: TypeAlias = Generate | Chat | Embed | Tokenize | Detokenize | Describe

ModelReply: TypeAlias = Text | PromptScores | Done | Outputs | Tokens | String | Info
"""All but `Text` and `PromptScores` are the last reply to their call."""

ReplyCallback: TypeAlias = Callable[[ModelReply | Exception], None]
"""Takes the replies to a call in their order, from any thread; an exception ends them."""


class CallHandle(Protocol):
    """A call on its way."""

    def cancel(self) -> None:
        """Nobody waits for replies any more. After the last reply it does nothing."""


class Channel(Protocol):
    """The way to a model. From any thread; nothing waits."""

    def start(self, call: ModelCall, put: ReplyCallback) -> CallHandle:
        """Begin to answer a call."""


def generate(
    prompt: str | Iterable[int], options: Mapping[str, Any], images: Iterable[ImageFile] = ()
) -> Generate:
    """The call, with options checked by name and value, and images read from where they are.

    Raises OptionError or SamplingError.
    """
    parse_options(options)
    ids = prompt if isinstance(prompt, str) else tuple(token_ids(prompt))
    return Generate(ids, dict(options), tuple(map(image_bytes, images)))


def chat(
    messages: Iterable[Mapping[str, Any]], tools: Iterable[Any] | None, options: Mapping[str, Any]
) -> Chat:
    """The call, with options checked by name and value, and images read from where they are.

    Raises OptionError or SamplingError.
    """
    parse_options(options)
    turns, images = take_images(messages)
    files = tuple(map(image_bytes, images))
    return Chat(tuple(turns), None if tools is None else tuple(tools), dict(options), files)


def embed(texts: str | Iterable[str | Iterable[int]], truncate: bool, normalize: bool) -> Embed:
    """The call, for one text or for several."""
    every = text_list(texts)
    prompts = (text if isinstance(text, str) else tuple(token_ids(text, "a text")) for text in every)
    return Embed(tuple(prompts), truncate, normalize)
