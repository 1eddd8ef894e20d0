"""`BaseChannel`: the handling of a call from its arrival to its last reply, for all engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from functools import partial
from typing import Generic, TypeVar

from msgspec import Struct

from chaski.chat.answer_parser import AnswerParser
from chaski.chat.events import Event
from chaski.chat.prompts import Prepared
from chaski.chat.requests import Chat, Embed, Fill, Generate, Rank
from chaski.errors import OptionError
from chaski.runner.adapters.adapter_calls import (
    AdapterCall,
    Adapters,
    ListAdapters,
    LoadAdapter,
    UnloadAdapter,
)
from chaski.runner.adapters.adapter_set import AdapterInfo
from chaski.runner.channels.cache_picture import CachePicture, DescribeCache
from chaski.runner.channels.messages import (
    Answerable,
    Describe,
    Detokenize,
    Info,
    LookLive,
    ModelCall,
    RenderChat,
    ReplyCallback,
    ReplyOrError,
    String,
    Tokenize,
    TokenizeChat,
    Tokens,
)
from chaski.runner.engine.live import LiveSequences
from chaski.runner.prefix.block_calls import Blocks, ListBlocks, NameBlocks
from chaski.runner.states.state_calls import (
    EraseSlot,
    KeepPrefixes,
    LoadState,
    SavedState,
    SaveSlot,
    SaveState,
    StateCall,
    TakePrefixes,
)
from chaski.runner.use_guard import UseGuard

__all__ = ["ActiveCall", "BaseChannel"]


_MAX_TOKENS = 1 << 19


class ActiveCall(Struct, eq=False, weakref=True):
    """A call in progress: the callback for its replies, and whether it is cancelled."""

    put: ReplyCallback
    is_cancelled: bool = False

    def reply(self, reply: ReplyOrError) -> None:
        """Pass a reply on, unless the call is cancelled."""
        if not self.is_cancelled:
            self.put(reply)

    def cancel(self) -> None:
        """Cancel the call: later replies are dropped, and its computation ends soon."""
        self.is_cancelled = True

    def parsed(self, prepared: Prepared) -> ReplyCallback:
        """Return a callback that parses the events of an answer; send the first events immediately.

        If the answer cannot be parsed, only this call ends with an error.
        """
        if prepared.told is not None:
            self.reply(prepared.told)
        for event in prepared.begun:
            self.reply(event)
        return self.put if prepared.parser is None else partial(self._hand_on, prepared.parser)

    def _hand_on(self, parser: AnswerParser, reply: ReplyOrError) -> None:
        if self.is_cancelled:
            return
        if not isinstance(reply, Event):
            self.put(reply)
            return
        try:
            for event in parser.read(reply):
                self.put(event)
        except Exception as error:
            self.cancel()
            self.put(error)


T = TypeVar("T", bound=ActiveCall)


class BaseChannel(ABC, Generic[T]):
    """A `Channel`: any thread may call it, and its own threads send the replies.

    flush     called when replies were passed on, once for replies that came together
    new_task  makes the `ActiveCall` of a call
    """

    def __init__(self, flush: Callable[[], None], new_task: Callable[[ReplyCallback], T]) -> None:
        self._flush = flush
        self._new_task = new_task
        self._guard = UseGuard("the model")

    def start(self, call: ModelCall, put: ReplyCallback) -> T:
        """Start answering a call. Raises ClosedError after `close`, and ForkError in a forked process, which
        lacks the threads.
        """
        self._guard.check()
        task = self._new_task(put)
        try:
            self._threads(call).submit(self._handle, call, task)
        except RuntimeError:  # `close` has just ended the threads
            self._guard.check()
            raise
        return task

    def check_open(self) -> None:
        """Raise the errors of `start`."""
        self._guard.check()

    def close(self) -> None:
        """Refuse all calls from now on."""
        self._guard.close()

    def _handle(self, call: ModelCall, task: T) -> None:
        try:
            if not task.is_cancelled:
                self._answer(call, task)
        except Exception as error:
            task.reply(error)
        self._flush()

    def _answer(self, call: ModelCall, task: T) -> None:
        match call:
            case Generate() | Chat() | Fill():
                self._write(call, task)
            case Embed() | Rank():
                self._embed(call, task)
            case Tokenize():
                task.reply(_tokens(self._encode(call)))
            case TokenizeChat():
                task.reply(_tokens(self._encode_chat(call.chat)))
            case RenderChat():
                task.reply(String(self._render_chat(call.chat)))
            case Detokenize():
                task.reply(String(self._decode(call.token_ids)))
            case LoadAdapter() | UnloadAdapter() | ListAdapters():
                task.reply(Adapters(tuple(self._adapters(call))))
            case SaveState() | LoadState() | SaveSlot() | EraseSlot() | KeepPrefixes() | TakePrefixes():
                task.reply(self._state(call))
            case Describe():
                task.reply(self._describe(call))
            case DescribeCache():
                task.reply(self._picture())
            case LookLive():
                task.reply(self._live())
            case NameBlocks():
                task.reply(self._blocks_of(call.request))
            case ListBlocks():
                task.reply(self._blocks())

    @abstractmethod
    def _threads(self, call: ModelCall) -> Executor:
        """Return the executor that runs a call."""

    @abstractmethod
    def _write(self, call: Answerable, task: T) -> None:
        """Start an answer, whose events are the replies."""

    @abstractmethod
    def _embed(self, call: Embed | Rank, task: T) -> None:
        """Compute vectors and return all of them in one reply."""

    @abstractmethod
    def _encode(self, call: Tokenize) -> Iterable[int]:
        """Return the ids of a text."""

    @abstractmethod
    def _encode_chat(self, chat: Chat) -> Iterable[int]:
        """Return the ids of a conversation's prompt."""

    @abstractmethod
    def _render_chat(self, chat: Chat) -> str:
        """Return a conversation's prompt as text."""

    @abstractmethod
    def _decode(self, token_ids: Iterable[int]) -> str:
        """Return the text of ids."""

    @abstractmethod
    def _adapters(self, call: AdapterCall) -> Iterable[AdapterInfo]:
        """Load, unload or list adapters; return all adapters afterwards."""

    @abstractmethod
    def _state(self, call: StateCall) -> SavedState:
        """Save, load or erase a state."""

    @abstractmethod
    def _picture(self) -> CachePicture:
        """Return the contents of the cache's cells."""

    @abstractmethod
    def _describe(self, call: Describe) -> Info:
        """Return the description of the model."""

    @abstractmethod
    def _live(self) -> LiveSequences:
        """Return the current figures of the sequences."""

    @abstractmethod
    def _blocks_of(self, request: Answerable) -> Blocks:
        """Return the complete blocks of the prompt of a request."""

    @abstractmethod
    def _blocks(self) -> Blocks:
        """Return the blocks in the prefix cache."""


def _tokens(token_ids: Iterable[int]) -> Tokens:
    """Return the reply with the token ids of a text. Raises OptionError if they exceed a reply."""
    found = tuple(token_ids)
    if len(found) > _MAX_TOKENS:
        raise OptionError(f"the text has {len(found)} tokens; at most {_MAX_TOKENS} are returned")
    return Tokens(found)
