"""A model for event loops: calls never block, and many tasks are answered together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from collections.abc import Sequence as Items
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from chaski.chat.answer import Answer, collect
from chaski.chat.events import Done, Event
from chaski.chat.images import ImageSource
from chaski.chat.ranking import Ranked, ranked
from chaski.chat.requests import Chat, Embed, Rank, sendable
from chaski.chat.several import ProgressOption, Request, progress_of
from chaski.runner.adapters.adapter_calls import AdapterCall, Adapters
from chaski.runner.adapters.adapter_set import AdapterInfo
from chaski.runner.channels.cache_picture import CachePicture, DescribeCache
from chaski.runner.channels.messages import (
    Answerable,
    Channel,
    Describe,
    Detokenize,
    Info,
    LookLive,
    ModelCall,
    ModelReply,
    RenderChat,
    ReplyOrError,
    String,
    Tokenize,
    TokenizeChat,
    Tokens,
)
from chaski.runner.channels.replies import ManyReplies, checked, numbered, with_images
from chaski.runner.engine.live import LiveSequences
from chaski.runner.engine.outputs import Outputs
from chaski.runner.generation.output_sequences import vectors_or_scores
from chaski.runner.methods import ModelMethods
from chaski.runner.states.state_calls import (
    EraseSlot,
    SavedState,
    SaveSlot,
    SaveState,
    StateCall,
)
from chaski.runner.streams import AsyncEventStream

__all__ = ["AsyncModel"]

R = TypeVar("R", bound=ModelReply)
T = TypeVar("T")
A = Coroutine[Any, Any, T]


class AsyncModel(
    ModelMethods[
        A[Answer],
        AsyncEventStream,
        A[list[Answer]],
        A[npt.NDArray[np.float32]],
        A[list[int]],
        A[str],
        A[list[Ranked]],
        A[list[AdapterInfo]],
        A[SavedState],
    ]
):
    """The methods of `LLM`, for event loops. Created by a model's `asynchronous()`, and closed with the
    model.

    Arguments are checked when a method is called; the result is awaited, or iterated with `async for`.

    Cancelling a task or closing a stream frees its slot within one batch. Every call of a closed model raises
    ClosedError.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._mail: _Mail | None = None

    def __repr__(self) -> str:
        return f"<AsyncModel of {self._channel!r}>"

    async def info(self, wait_loaded: bool = False) -> Info:
        """Return the description of the model. A worker that has not loaded the model yet loads it first.

        wait_loaded   wait until all of it is in memory, see `LLM.wait_loaded`
        """
        return await self._ask(Describe(wait_loaded), Info)

    async def cache_picture(self) -> CachePicture:
        """Return which tokens the cells of the cache contain. Raises UnsupportedError for models that
        llama.cpp computes.
        """
        return await self._ask(DescribeCache(), CachePicture)

    async def live(self) -> LiveSequences:
        """Return the current figures of the sequences."""
        return await self._ask(LookLive(), LiveSequences)

    async def vectors(self, request: Embed | Rank) -> Outputs:
        """Return a vector of each text, or of the query with each document."""
        return await self._ask(request, Outputs)

    async def tokenize_chat(self, chat: Chat) -> list[int]:
        """Return the token ids of a conversation's whole prompt."""
        return list((await self._ask(TokenizeChat(chat), Tokens)).token_ids)

    async def render_chat(self, chat: Chat) -> str:
        """Return a conversation rendered as text by the chat format."""
        return (await self._ask(RenderChat(chat), String)).text

    async def save_slot(
        self, slot: int, path: Path, cache_salt: str = "", max_bytes: int | None = None
    ) -> SavedState:
        """Write the state of the sequence in a slot to a file. A sequence with another salt counts as empty.

        Raises OptionError for a slot that does not exist or is empty, StateError for a file of more than
        `max_bytes`, and the file errors of `save_state`.
        """
        return await self._state(SaveSlot(slot, str(path), cache_salt, max_bytes))

    async def save_chat(self, chat: Chat, path: Path) -> SavedState:
        """Save the state of a conversation, as `save_state` does."""
        return await self._state(SaveState(chat, str(path)))

    async def erase_slot(self, slot: int, cache_salt: str = "") -> SavedState:
        """Remove the sequence in a slot from all tiers. Prefixes shared with other sequences stay.

        Raises OptionError as `save_slot` does, and BusyError for a slot in use.
        """
        return await self._state(EraseSlot(slot, cache_salt))

    async def events(self, call: Answerable) -> AsyncGenerator[Event, None]:
        """Yield all events of the answer to a request, not only its text."""
        with self._replies(call) as replies:
            while True:
                event = checked(await replies.get())
                assert isinstance(event, Event), "an answer is made of events"
                yield event
                if isinstance(event, Done):
                    return

    async def _answer(self, request: Request) -> Answer:
        return collect([event async for event in self._stream(request)])

    def _stream(self, request: Request) -> AsyncEventStream:
        return AsyncEventStream(self.events(sendable(request.call, request.images)), self._channel.check_open)

    async def _answers(self, requests: Items[Request], progress: ProgressOption) -> list[Answer]:
        replies = ManyReplies(requests)
        arrived: _Arrived[tuple[int, ReplyOrError]] = _Arrived()
        with progress_of(progress, replies.label) as tell, ExitStack() as running:
            put = self._post(arrived)
            for index, call in enumerate(replies.calls):
                ticket = self._channel.start(call, numbered(put, index))
                running.callback(ticket.cancel)
            while replies.num_left:
                if replies.add(*await arrived.get()):
                    tell(replies.done)
        return replies.answers()

    async def _array(self, call: Embed | Rank) -> npt.NDArray[np.float32]:
        return vectors_or_scores(call, (await self.vectors(call)).rows)

    async def _ranking(self, call: Rank, top_n: int | None) -> list[Ranked]:
        return ranked(call.documents, (await self._array(call)).tolist())[:top_n]

    async def _adapters(self, call: AdapterCall) -> list[AdapterInfo]:
        return list((await self._ask(call, Adapters)).adapters)

    async def _state(self, call: StateCall) -> SavedState:
        return await self._ask(call, SavedState)

    async def _tokens(self, call: Tokenize, images: Items[ImageSource]) -> list[int]:
        return list((await self._ask(with_images(call, images), Tokens)).token_ids)

    async def _text(self, call: Detokenize) -> str:
        return (await self._ask(call, String)).text

    async def _ask(self, call: ModelCall, kind: type[R]) -> R:
        with self._replies(call) as replies:
            reply = checked(await replies.get())
        assert isinstance(reply, kind), "each call has its kind of reply"
        return reply

    @contextmanager
    def _replies(self, call: ModelCall) -> Iterator[_Arrived[ReplyOrError]]:
        replies: _Arrived[ReplyOrError] = _Arrived()
        ticket = self._channel.start(call, self._post(replies))
        try:
            yield replies
        finally:
            ticket.cancel()

    def _post(self, arrived: _Arrived[T]) -> Callable[[T], None]:
        """Return a function that puts an item into `arrived` from any thread."""
        loop = asyncio.get_running_loop()
        if self._mail is None or self._mail.loop is not loop:
            self._mail = _Mail(loop)
        mail = self._mail
        return lambda item: mail.put(arrived, item)


class _Arrived(Generic[T]):
    """The events for one task, delivered in the event loop that created this object."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def add(self, item: T) -> None:
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> T:
        if not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._items.popleft()


class _Mail:
    """A bridge that delivers replies from other threads to an event loop, and wakes the loop once for replies
    that arrive together.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._arrived: deque[tuple[_Arrived[Any], Any]] = deque()
        self._is_called = False

    def put(self, arrived: _Arrived[T], item: T) -> None:
        """Deliver a reply to its task. Callable from any thread."""
        self._arrived.append((arrived, item))
        if not self._is_called:
            self._is_called = True
            # In a closed loop no task waits for the reply.
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._sort)

    def _sort(self) -> None:
        self._is_called = False
        while self._arrived:
            arrived, item = self._arrived.popleft()
            arrived.add(item)
