"""A model for event loops: no call blocks, and many tasks are answered together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from collections.abc import Sequence as Items
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias, TypeVar, Unpack

import numpy as np
import numpy.typing as npt

from chaski.chat.answer import Answer, collect
from chaski.chat.events import Done, Event
from chaski.chat.images import ImageFile, image_bytes
from chaski.chat.options import GenerateOptions
from chaski.chat.requests import Chat, Embed, Rank, chat_request, embed_request, generate_request
from chaski.runner.engine.outputs import Outputs
from chaski.runner.service.messages import (
    Answerable,
    Channel,
    Describe,
    Detokenize,
    Info,
    ModelCall,
    ModelReply,
    RenderChat,
    ReplyCallback,
    String,
    Tokenize,
    TokenizeChat,
    Tokens,
)

__all__ = ["AsyncEventStream", "AsyncModel"]

AsyncEventStream: TypeAlias = AsyncGenerator[Event, None]
"""`Text` as it is made, at last one `Done`. Closing it, or cancelling its task, ends the answer."""

R = TypeVar("R", bound=ModelReply)


class AsyncModel:
    """The methods of `LLM`, for event loops. Made by `asynchronous()` of a model, and closed with it.

    A task that is cancelled, or a stream that is closed, frees its slot within one batch.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._mail: _Mail | None = None

    async def generate(
        self,
        prompt: str | Items[int],
        images: Items[ImageFile] = (),
        **options: Unpack[GenerateOptions],
    ) -> Answer:
        """Continue `prompt`, as `LLM.generate` does."""
        return collect([event async for event in self.stream(prompt, images, **options)])

    def stream(
        self,
        prompt: str | Items[int],
        images: Items[ImageFile] = (),
        **options: Unpack[GenerateOptions],
    ) -> AsyncEventStream:
        """`generate` in pieces, as they are made."""
        return self.events(generate_request(prompt, options, images))

    async def chat(
        self,
        messages: Items[Mapping[str, Any]],
        tools: Items[Mapping[str, Any]] | None = None,
        *,
        think: bool | str | None = None,
        images: Items[ImageFile] = (),
        **options: Unpack[GenerateOptions],
    ) -> Answer:
        """Answer a conversation, as `LLM.chat` does."""
        events = self.stream_chat(messages, tools, think=think, images=images, **options)
        return collect([event async for event in events])

    def stream_chat(
        self,
        messages: Items[Mapping[str, Any]],
        tools: Items[Mapping[str, Any]] | None = None,
        *,
        think: bool | str | None = None,
        images: Items[ImageFile] = (),
        **options: Unpack[GenerateOptions],
    ) -> AsyncEventStream:
        """`chat` in pieces, as they are made."""
        return self.events(chat_request(messages, tools, options, think, images))

    async def embed(
        self, texts: str | Items[str | Items[int]], *, truncate: bool = False, normalize: bool = True
    ) -> npt.NDArray[np.float32]:
        """One vector a text -> (len(texts), size), as `LLM.embed` makes them."""
        return (await self.vectors(embed_request(texts, truncate, normalize))).rows

    async def tokenize(
        self,
        text: str,
        add_special: bool = True,
        parse_special: bool = True,
        images: Items[ImageFile] = (),
    ) -> list[int]:
        """The ids of a text, as `LLM.tokenize` gives them."""
        call = Tokenize(text, add_special, parse_special, tuple(map(image_bytes, images)))
        return list((await self._ask(call, Tokens)).token_ids)

    async def detokenize(self, token_ids: Iterable[int]) -> str:
        """The text of ids; control tokens are left out."""
        return (await self._ask(Detokenize(tuple(map(int, token_ids))), String)).text

    async def info(self, wait_loaded: bool = False) -> Info:
        """Return the description of the model. A worker that has not loaded the model yet loads it.

        wait_loaded   wait until all of it is in memory, see `LLM.wait_loaded`
        """
        return await self._ask(Describe(wait_loaded), Info)

    async def vectors(self, request: Embed | Rank) -> Outputs:
        """Make a vector of each text, or of the query with each document."""
        return await self._ask(request, Outputs)

    async def tokenize_chat(self, chat: Chat) -> list[int]:
        """Return the ids of a conversation's whole prompt."""
        return list((await self._ask(TokenizeChat(chat), Tokens)).token_ids)

    async def render_chat(self, chat: Chat) -> str:
        """Return the text that the chat format makes of a conversation."""
        return (await self._ask(RenderChat(chat), String)).text

    async def events(self, call: Answerable) -> AsyncEventStream:
        """Yield all events that answer a request, not only those of its text."""
        with self._replies(call) as replies:
            while True:
                event = await replies.get()
                assert isinstance(event, Event)
                yield event
                if isinstance(event, Done):
                    return

    async def _ask(self, call: ModelCall, kind: type[R]) -> R:
        with self._replies(call) as replies:
            reply = await replies.get()
        assert isinstance(reply, kind)
        return reply

    @contextmanager
    def _replies(self, call: ModelCall) -> Iterator[_Replies]:
        replies = _Replies()
        ticket = self._channel.start(call, self._post(replies))
        try:
            yield replies
        finally:
            ticket.cancel()

    def _post(self, replies: _Replies) -> ReplyCallback:
        loop = asyncio.get_running_loop()
        if self._mail is None or self._mail.loop is not loop:
            self._mail = _Mail(loop)
        mail = self._mail
        return lambda reply: mail.put(replies, reply)


class _Replies:
    """The replies to one call, for one task of the loop that it was made in."""

    def __init__(self) -> None:
        self._arrived: deque[ModelReply | Exception] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def add(self, reply: ModelReply | Exception) -> None:
        self._arrived.append(reply)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> ModelReply:
        if not self._arrived:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        reply = self._arrived.popleft()
        if isinstance(reply, Exception):
            raise reply
        return reply


class _Mail:
    """Brings replies from other threads into a loop, which wakes up once for replies that come together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._arrived: deque[tuple[_Replies, ModelReply | Exception]] = deque()
        self._is_called = False

    def put(self, replies: _Replies, reply: ModelReply | Exception) -> None:
        """Deliver a reply. Callable from any thread."""
        self._arrived.append((replies, reply))
        if not self._is_called:
            self._is_called = True
            # A closed loop has no tasks that wait for the reply.
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._sort)

    def _sort(self) -> None:
        self._is_called = False
        while self._arrived:
            replies, reply = self._arrived.popleft()
            replies.add(reply)
