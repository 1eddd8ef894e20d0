"""Requests routed through a cluster: to a replica, and to another one if the first is lost."""

from __future__ import annotations

import logging
from time import monotonic, perf_counter
from typing import Generic, TypeVar

from msgspec.structs import replace

from chaski.chat.events import Attempt, Done, Event, Text, Thinking, ToolCall
from chaski.chat.requests import Chat
from chaski.cluster.replicas import Place, Replicas
from chaski.cluster.resuming import Delivered, continued, repeatable
from chaski.errors import ChaskiError, NoReplicaError, WorkerError, closed
from chaski.runner.channels.messages import (
    Answerable,
    CallHandle,
    ModelCall,
    ReplyCallback,
    ReplyOrError,
)
from chaski.runner.prefix.block_calls import Blocks, NameBlocks
from chaski.runner.prefix.naming import BLOCK

__all__ = ["RoutedAnswer", "RoutedCall"]

_log = logging.getLogger(__name__)

# A request may crash replicas. When a replica dies, the suspicion is shared equally among its requests. A
# request fails if its suspicion exceeds this value without a new token of its answer.
_MOST_SUSPICION = 3.0
# Maximum seconds that a request waits while no replica exists and none makes progress in loading. The second
# limit is for requests whose clients have a part of the answer.
_LONGEST_WAIT, _LONGEST_PAUSE = 120.0, 600.0
# A request waits for replicas until this many in a row have died while they loaded the model. If its client
# has a part of the answer, it waits at least for the longer time above.
_MOST_FAILED_LOADS = 5
# Only prompts with more computed tokens are used to measure a replica's speed.
_TELLING = 200

C = TypeVar("C", bound=ModelCall)


class _Routed(Generic[C]):
    """The common base: a call that waits for a replica, runs on one, or has ended."""

    def __init__(self, replicas: Replicas, call: C, put: ReplyCallback) -> None:
        self._replicas = replicas
        self._call = call
        self._put = put
        self._handle: CallHandle | None = None
        self._suspicion = 0.0
        self._begin_to_wait()
        self._is_over = False

    def begin(self) -> None:
        """Send the call to a replica, now or as soon as one is available."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Cancel the call. Later replies are ignored."""
        self._is_over = True
        if self._handle is not None:
            self._handle.cancel()

    def _end(self, reply: ReplyOrError) -> None:
        if not self._is_over:
            self._is_over = True
            self._put(reply)

    @property
    def _has_begun(self) -> bool:
        """True if the client has a part of the answer, which an error would take away."""
        return False

    def _wait(self) -> None:
        """Begin again later, or end the call if no replica can be expected.

        An answer that has begun is not ended by what may pass, such as full nodes.
        """
        now, problem = monotonic(), self._replicas.problem
        limit = _LONGEST_PAUSE if self._has_begun else _LONGEST_WAIT
        can_end = not self._has_begun or now - self._waits_since > limit
        if self._replicas.is_closed:
            self._end(closed())
        elif problem is not None and can_end:
            self._end(type(problem)(str(problem)))
        elif now - max(self._waits_since, self._replicas.moved_at) > limit:
            self._end(self._none(f"no machine has been able to answer for {limit:.0f} s"))
        elif self._replicas.failed_loads - self._failed_loads >= _MOST_FAILED_LOADS and can_end:
            self._end(self._none(f"loading the model has failed {_MOST_FAILED_LOADS} times in a row"))
        else:
            self._replicas.later(self._begin_again)

    def _none(self, what: str) -> NoReplicaError:
        trouble = self._replicas.trouble
        return NoReplicaError(f"{what}: {trouble}" if trouble else what)

    def _begin_to_wait(self) -> None:
        self._waits_since = monotonic()
        self._failed_loads = self._replicas.failed_loads

    def _begin_again(self) -> None:
        if not self._is_over:
            try:
                self.begin()
            except ChaskiError as error:
                self._end(error)

    def _lost(self, error: WorkerError, num_suspects: int = 1) -> None:
        """Continue on another replica, unless the limit of attempts is reached."""
        self._suspicion += 1 / num_suspects
        if self._suspicion > _MOST_SUSPICION:
            self._replicas.losses.count_suspected()
            self._end(error)
            return
        _log.info("a request goes on with another replica: %s", error)
        self._begin_to_wait()
        self._begin_again()


class RoutedCall(_Routed[ModelCall]):
    """A call with one reply, which is the same from any replica."""

    def begin(self) -> None:
        """Send the call to the least busy replica."""
        peer = self._replicas.any_peer()
        if peer is None:
            self._wait()
        else:
            self._handle = peer.start(self._call, self._take)

    def _take(self, reply: ReplyOrError) -> None:
        if isinstance(reply, WorkerError):
            self._lost(reply)
        else:
            self._end(reply)


class RoutedAnswer(_Routed[Answerable]):
    """A request for an answer. It goes to the best replica for its prompt, and moves on if that is lost."""

    def __init__(self, replicas: Replicas, call: Answerable, put: ReplyCallback) -> None:
        super().__init__(replicas, repeatable(call), put)
        self._delivered = Delivered()
        self._blocks = Blocks((), 0)
        self._is_named = _num_characters(call) < BLOCK
        self._place: Place | None = None
        self._tried: list[int] = []
        self._is_computing_prompt = False
        self._first_at = 0.0
        # Lost replicas that this request was sent to, and when it was sent to the current one.
        self._attempts: list[Attempt] = []
        self._began = 0.0

    @property
    def _has_begun(self) -> bool:
        return self._delivered.has_begun

    def begin(self) -> None:
        """Ask a replica for the prompt's block names if needed, then send the request to the best replica."""
        peer = self._replicas.any_peer()
        if peer is None:
            self._wait()
        elif not self._is_named and self._replicas.num_open > 1:
            self._handle = peer.start(NameBlocks(replace(self._call, written=())), self._take_names)
        else:
            self._send()

    def cancel(self) -> None:
        super().cancel()
        self._leave()

    def _take_names(self, reply: ReplyOrError) -> None:
        if self._is_over:
            return
        if isinstance(reply, WorkerError):
            self._lost(reply)
            return
        if isinstance(reply, Blocks):
            self._blocks = reply
        # An error in the request is reported again with its answer.
        self._is_named = True
        self._begin_again()

    def _send(self) -> None:
        tokens = self._blocks.num_tokens or max(1, _num_characters(self._call) // 4)
        place = self._replicas.take(self._blocks.numbers, tokens, self._tried)
        if place is None:
            self._wait()
            return
        self._place, self._is_computing_prompt = place, True
        self._began = perf_counter()
        if self._attempts:
            self._replicas.losses.count_resumed()
        self._delivered.restart()
        call = continued(self._call, self._delivered)
        try:
            self._handle = place.peer.start(call, lambda reply: self._take(place, reply))
        except ChaskiError:
            self._leave()
            raise
        if self._is_over:  # meanwhile
            self.cancel()

    def _take(self, place: Place, reply: ReplyOrError) -> None:
        """Handle a reply of the current replica. Replies of earlier replicas are ignored."""
        if self._is_over or place is not self._place:
            return
        if isinstance(reply, WorkerError):
            num_suspects = place.peer.num_lost or self._replicas.num_answers(place)
            self._leave()
            self._attempts.append(self._attempt(place, type(reply).__name__))
            self._tried.append(place.replica)
            self._lost(reply, max(1, num_suspects))
        elif isinstance(reply, Exception):
            self._leave()
            self._end(reply)
        else:
            assert isinstance(reply, Event), "an answer is made of events"
            self._take_event(place, reply)

    def _take_event(self, place: Place, event: Event) -> None:
        if isinstance(event, Text | Thinking | ToolCall) and self._is_computing_prompt:
            self._prompt_is_computed(place)
        if isinstance(event, Done):
            self._measure(place, event)
            self._leave()
        try:
            for new in self._delivered.new(event):
                if isinstance(new, Done):
                    self._end(replace(new, attempts=(*self._attempts, self._attempt(place))))
                else:
                    self._suspicion = 0.0
                    self._put(new)
        except ChaskiError as error:
            if self._handle is not None:
                self._handle.cancel()
            self._leave()
            self._end(error)

    def _prompt_is_computed(self, place: Place) -> None:
        self._is_computing_prompt = False
        self._first_at = monotonic()
        self._replicas.computed(place)

    def _measure(self, place: Place, done: Done) -> None:
        if self._is_computing_prompt:
            self._prompt_is_computed(place)
        tells = done.evaluated_tokens >= _TELLING and done.prefill_seconds > 0
        prefill = done.evaluated_tokens / done.prefill_seconds if tells else None
        self._replicas.measured(place, prefill, monotonic() - self._first_at)

    def _attempt(self, place: Place, error: str | None = None) -> Attempt:
        return Attempt(place.name, place.node, self._began, perf_counter(), error)

    def _leave(self) -> None:
        """Detach the request from its replica."""
        place, self._place = self._place, None
        if place is not None:
            if self._is_computing_prompt:
                self._is_computing_prompt = False
                self._replicas.computed(place)
            self._replicas.ended(place)


def _num_characters(call: Answerable) -> int:
    """Return the approximate number of characters, or tokens, in a request's prompt."""
    if isinstance(call, Chat):
        return sum(len(str(message.get("content") or "")) for message in call.messages) + len(str(call.tools))
    return len(call.prompt)
