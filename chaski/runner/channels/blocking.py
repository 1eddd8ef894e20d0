"""`ChannelMethods`: the methods of a model that a channel reaches, for threads that may wait."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterator
from collections.abc import Sequence as Items
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from chaski.chat.answer import Answer
from chaski.chat.events import Done, Event
from chaski.chat.images import ImageSource
from chaski.chat.requests import Embed, Rank, sendable
from chaski.chat.several import ProgressOption, Request, progress_of
from chaski.runner.adapters.adapter_calls import AdapterCall, Adapters
from chaski.runner.adapters.adapter_set import AdapterInfo
from chaski.runner.channels.messages import (
    Answerable,
    CallHandle,
    Detokenize,
    ModelCall,
    ModelReply,
    ReplyCallback,
    ReplyOrError,
    String,
    Tokenize,
    Tokens,
)
from chaski.runner.channels.replies import ManyReplies, checked, numbered, with_images
from chaski.runner.engine.outputs import Outputs
from chaski.runner.generation.output_sequences import vectors_or_scores
from chaski.runner.methods import BlockingMethods
from chaski.runner.states.state_calls import SavedState, StateCall
from chaski.runner.streams import EventStream

__all__ = ["ChannelMethods"]

R = TypeVar("R", bound=ModelReply)


class ChannelMethods(BlockingMethods):
    """The methods of a model that is called through `start`."""

    @abstractmethod
    def start(self, call: ModelCall, put: ReplyCallback) -> CallHandle:
        """Start answering a call, as a `Channel` does."""

    def _stream(self, request: Request) -> EventStream:
        return EventStream(self._events(sendable(request.call, request.images)), self.check_open)

    def _answers(self, requests: Items[Request], progress: ProgressOption) -> list[Answer]:
        replies = ManyReplies(requests)
        arrived: SimpleQueue[tuple[int, ReplyOrError]] = SimpleQueue()
        with progress_of(progress, replies.label) as tell, ExitStack() as running:
            for index, call in enumerate(replies.calls):
                ticket = self.start(call, numbered(arrived.put, index))
                running.callback(ticket.cancel)
            while replies.num_left:
                if replies.add(*arrived.get()):
                    tell(replies.done)
        return replies.answers()

    def _array(self, call: Embed | Rank) -> npt.NDArray[np.float32]:
        return vectors_or_scores(call, self._ask(call, Outputs).rows)

    def _adapters(self, call: AdapterCall) -> list[AdapterInfo]:
        return list(self._ask(call, Adapters).adapters)

    def _state(self, call: StateCall) -> SavedState:
        return self._ask(call, SavedState)

    def _tokens(self, call: Tokenize, images: Items[ImageSource]) -> list[int]:
        return list(self._ask(with_images(call, images), Tokens).token_ids)

    def _text(self, call: Detokenize) -> str:
        return self._ask(call, String).text

    def _events(self, call: Answerable) -> Generator[Event, None, None]:
        with self._replies(call) as replies:
            while True:
                event = checked(replies.get())
                assert isinstance(event, Event), "an answer is made of events"
                yield event
                if isinstance(event, Done):
                    return

    def _ask(self, call: ModelCall, kind: type[R]) -> R:
        with self._replies(call) as replies:
            reply = checked(replies.get())
        assert isinstance(reply, kind), "each call has its kind of reply"
        return reply

    @contextmanager
    def _replies(self, call: ModelCall) -> Iterator[SimpleQueue[ReplyOrError]]:
        replies: SimpleQueue[ReplyOrError] = SimpleQueue()
        ticket = self.start(call, replies.put)
        try:
            yield replies
        finally:
            ticket.cancel()
