"""The calls that a loaded model accepts from other threads or processes, and its replies: typed values.

A `Channel` leads to the model, in this process (`engine_channel.py`) or in a separate one (`worker`).
Nothing here computes or sends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from chaski.chat.events import Event
from chaski.chat.requests import Chat, Embed, Fill, Generate, Rank
from chaski.chat.sendable import Sendable
from chaski.ml.backend import Memory
from chaski.runner.adapters.adapter_calls import AdapterCall, Adapters
from chaski.runner.channels.cache_picture import CachePicture, DescribeCache
from chaski.runner.engine.live import LiveSequences
from chaski.runner.engine.outputs import Outputs
from chaski.runner.prefix.block_calls import Blocks, ListBlocks, NameBlocks
from chaski.runner.prefix.use import TierUse
from chaski.runner.states.state_calls import SavedState, StateCall

__all__ = [
    "Answerable",
    "CallHandle",
    "Channel",
    "Describe",
    "Detokenize",
    "Info",
    "LookLive",
    "ModelCall",
    "ModelReply",
    "RenderChat",
    "ReplyCallback",
    "ReplyOrError",
    "String",
    "Tokenize",
    "TokenizeChat",
    "Tokens",
]


class TokenizeChat(Sendable, frozen=True):
    """Ask for the prompt of a conversation. Answered by `Tokens`, with rows of images as in `Tokenize`."""

    chat: Chat


class RenderChat(Sendable, frozen=True):
    """Ask for a conversation rendered by the chat format. Answered by a `String`."""

    chat: Chat


class Tokenize(Sendable, frozen=True):
    """Ask for the tokens of a text. Answered by `Tokens`. A row of image k has the id -1 - k."""

    text: str
    add_special: bool = True
    parse_special: bool = True
    images: tuple[bytes, ...] = ()


class Detokenize(Sendable, frozen=True):
    """Ask for the text of tokens. Answered by a `String`."""

    token_ids: tuple[int, ...]


class Describe(Sendable, frozen=True):
    """Ask for the description of the model. Answered by `Info`. With `wait_loaded` the reply is sent once the
    whole model is in memory.
    """

    wait_loaded: bool = False


class LookLive(Sendable, frozen=True):
    """Ask for the current figures of the sequences. Answered by `LiveSequences`."""


class Tokens(Sendable, frozen=True):
    """The ids of a text."""

    token_ids: tuple[int, ...]


class String(Sendable, frozen=True):
    """A text."""

    text: str


class Info(Sendable, frozen=True, kw_only=True):
    """Description of a loaded model. `context` is in tokens per sequence, `memory` in bytes.

    context_reason  why the context has its length, in words
    max_context  the longest context that the model can be loaded with; 0 if unknown
    parallel  number of sequences that are computed together; 0 if unknown
    unused_bytes  bytes of the host that are reserved for keys and values and not taken yet
    engine  the engine that computes it: native or llama.cpp
    engine_reason  why llama.cpp computes it, in a sentence; empty for the native engine
    has_vision  whether prompts may have images
    capabilities  capabilities of its conversations in Ollama's terms: tools, thinking, insert
    prefixes  what the tiers of its prefix cache hold
    """

    path: str
    context: int
    vocab_size: int
    chat_template: str | None
    load_seconds: float
    memory: Memory
    context_reason: str = ""
    max_context: int = 0
    parallel: int = 0
    unused_bytes: int = 0
    engine: str = "native"
    engine_reason: str = ""
    has_vision: bool = False
    capabilities: tuple[str, ...] = ()
    prefixes: tuple[TierUse, ...] = ()


Answerable: TypeAlias = Generate | Chat | Fill
"""Answered by events; the last one is `Done`."""

ModelCall: TypeAlias = (
    Answerable
    | Embed
    | Rank
    | Tokenize
    | TokenizeChat
    | RenderChat
    | Detokenize
    | Describe
    | DescribeCache
    | LookLive
    | NameBlocks
    | ListBlocks
    | AdapterCall
    | StateCall
)

ModelReply: TypeAlias = (
    Event | Outputs | Tokens | String | Info | LiveSequences | Blocks | Adapters | SavedState | CachePicture
)
"""A reply. Each call gets one reply, except that several events may precede `Done`."""

ReplyOrError: TypeAlias = ModelReply | Exception
"""A reply, or the error that ends the replies."""

ReplyCallback: TypeAlias = Callable[[ReplyOrError], None]
"""A callback that receives the replies to a call in order, from any thread; an error is the last one."""


class CallHandle(Protocol):
    """A call in progress."""

    def cancel(self) -> None:
        """Cancel the call: no more replies are expected. After the last reply it has no effect."""


class Channel(Protocol):
    """The connection to a model. Callable from any thread; its methods never block."""

    def start(self, call: ModelCall, put: ReplyCallback) -> CallHandle:
        """Start answering a call. Raises the errors of `check_open`."""

    def check_open(self) -> None:
        """Raise ClosedError if the model is closed."""
