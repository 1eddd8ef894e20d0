"""The caller's end of a connection to a replica. It sends calls and detects lost or stalled replicas."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import monotonic

from chaski.cluster.links import Address, connect
from chaski.errors import UnsupportedError, WorkerError
from chaski.runner.channels.messages import LookLive, ModelCall, ReplyCallback, ReplyOrError
from chaski.runner.channels.worker.codec import decode, encode_call
from chaski.runner.channels.worker.link import Link
from chaski.runner.channels.worker.open_calls import InFlight, OpenCalls
from chaski.runner.engine.live import LiveSequences, TokenTotals

__all__ = ["LostReplicaError", "Patience", "Peer"]

_log = logging.getLogger(__name__)


class LostReplicaError(WorkerError):
    """A replica was lost, or stalled, before it answered."""


class Patience:
    """Time limits of a replica: `silence` seconds without a message, `standstill` seconds without a token."""

    def __init__(self, silence: float = 10.0, standstill: float = 120.0) -> None:
        self.silence = silence
        self.standstill = standstill


class Peer:
    """A connected replica. Raises WorkerError if it cannot be reached.

    `lost` is called once, from another thread, when the replica is gone. It returns the number of its running
    answers, `num_lost`. Open calls then fail with LostReplicaError.
    """

    def __init__(self, name: str, address: Address, key: bytes, lost: Callable[[], int]) -> None:
        self.name = name
        end, self._messages = connect(address, key)
        self._link = Link(end)
        self._calls = OpenCalls(self._link)
        self._lost = lost
        self._why = "the connection ended"
        self._is_lost = False
        self.num_lost = 0
        self._asked_at: float | None = None
        self._seen: TokenTotals | None = None
        self._moved_at = monotonic()
        threading.Thread(target=self._receive, name="chaski-replica", daemon=True).start()

    @property
    def is_lost(self) -> bool:
        """True if the replica is gone."""
        return self._is_lost

    def start(self, call: ModelCall, put: ReplyCallback) -> InFlight:
        """Send a call. Raises OptionError for what cannot be sent, and UnsupportedError for a call that the
        version of the replica does not know.
        """
        if type(call).__name__ not in self._messages.calls:
            raise UnsupportedError(
                f"replica {self.name} runs chaski {self._messages.version}, which does not know "
                f"{type(call).__name__}: upgrade the replica first"
            )
        return self._calls.start(encode_call(call), put)

    def check(self, patience: Patience) -> None:
        """End the connection if the replica is stalled, else request a sign of life.

        Call this about once a second.
        """
        now = monotonic()
        if self._asked_at is not None and now - self._asked_at > patience.silence:
            self._end(f"it has said nothing for {patience.silence:.0f} s")
        elif now - self._moved_at > patience.standstill:
            self._end(f"it has computed nothing for {patience.standstill:.0f} s")
        elif self._asked_at is None and self._calls.error is None:
            self._asked_at = now
            self._calls.start(encode_call(LookLive()), self._take_sign)

    def close(self) -> None:
        """End the connection; open calls fail."""
        self._end("it was closed")

    def _take_sign(self, reply: ReplyOrError) -> None:
        self._asked_at = None
        if isinstance(reply, LiveSequences) and (reply.totals != self._seen or not reply.num_sequences):
            self._seen, self._moved_at = reply.totals, monotonic()

    def _end(self, why: str) -> None:
        self._why = why
        self._link.shutdown()

    def _receive(self) -> None:
        try:
            while messages := self._link.receive():
                for number, message in map(decode, messages):
                    self._calls.take(number, message)
        except Exception:
            _log.exception("a message of replica %s cannot be read", self.name)
        self._is_lost = True
        self.num_lost = self._lost()
        if self.num_lost:
            _log.warning("replica %s is gone (%s) with %d answers", self.name, self._why, self.num_lost)
        self._calls.end(LostReplicaError(f"replica {self.name} is gone: {self._why}"), None)
        self._link.close()
