"""The head's connections to the members: requests, replies, and the loss of a member."""

from __future__ import annotations

import logging
import queue
import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from itertools import count
from typing import Any

import numpy.typing as npt
from msgspec import Struct

from chaski import __version__
from chaski.errors import ClusterError, error_class
from chaski.ml.plan import FailedRowsError
from chaski.ml.sharded.frames import Message
from chaski.ml.sharded.nodes import Node
from chaski.ml.sharded.session import ALIVE, SILENCE

__all__ = ["Member", "Members", "Request"]

_log = logging.getLogger(__name__)

Share = Callable[[float], None]


class Request(Struct, frozen=True):
    """A message that will be sent to a member, and its reply."""

    member: Member
    fields: Mapping[str, Any]
    arrays: Sequence[npt.NDArray[Any]]
    reply: Future[Message]


Outgoing = queue.SimpleQueue["Sequence[Request] | None"]
"""Requests that are sent together. They are queued as one item, so an interruption queues all or none."""


class Member:
    """The head's view of a member. Raises ClusterError if it cannot be reached."""

    def __init__(
        self, node: Node, session: str, outgoing: Outgoing, lost: Callable[[ClusterError], None]
    ) -> None:
        self.node = node
        self.name = node.name
        self._outgoing = outgoing
        self._lost = lost
        # Reentrant: dropping an object's last reference sends a request, even while this thread sends one.
        self._lock = threading.RLock()
        self._numbers = count()
        self._open: dict[int, tuple[Future[Message], Share | None]] = {}
        self._failure: ClusterError | None = None
        with ExitStack() as undo:
            self._requests = node.connect()
            undo.callback(self._requests.close)
            self._replies = node.connect()
            undo.callback(self._replies.close)
            self._replies.expect_within(SILENCE)
            try:
                self._requests.send({"kind": "requests", "session": session})
                self._replies.send({"kind": "replies", "session": session})
            except OSError as error:
                raise ClusterError(f"{self.name} ended the connection: {error}") from None
            undo.pop_all()
        threading.Thread(target=self._receive, name="chaski-replies", daemon=True).start()

    def request(
        self,
        kind: str,
        fields: Mapping[str, Any] | None = None,
        arrays: Sequence[npt.NDArray[Any]] = (),
        share: Share | None = None,
    ) -> Request:
        """Return a request without sending it. Raises ClusterError if the member is gone."""
        reply: Future[Message] = Future()
        number = next(self._numbers)
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self._open[number] = reply, share
        return Request(self, {"kind": kind, "id": number, **(fields or {})}, arrays, reply)

    def send(self, fields: Mapping[str, Any], arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Send a message now. If that fails, the member is lost."""
        try:
            self._requests.send(fields, arrays)
        except OSError as error:
            self._lost(ClusterError(f"{self.name} is lost: {error}"))

    def start(
        self, kind: str, fields: Mapping[str, Any] | None = None, arrays: Sequence[npt.NDArray[Any]] = ()
    ) -> Future[Message]:
        """Queue a request -> a future of the reply. The arrays must not change until then."""
        request = self.request(kind, fields, arrays)
        self._outgoing.put([request])
        return request.reply

    def ask(
        self, kind: str, fields: Mapping[str, Any] | None = None, arrays: Sequence[npt.NDArray[Any]] = ()
    ) -> Message:
        """Send a request and wait for the reply. Raises the member's error with the member's name."""
        return self.start(kind, fields, arrays).result()

    def tell_alive(self) -> None:
        """Send a sign of life to the member."""
        with suppress(OSError):
            self._requests.send({})

    def fail(self, error: ClusterError) -> None:
        """Close the connections. Open and later requests fail."""
        with self._lock:
            self._failure = self._failure or error
            waiting, self._open = list(self._open.values()), {}
        for reply, _ in waiting:
            reply.set_exception(error)
        self._requests.close()
        self._replies.close()

    def _receive(self) -> None:
        try:
            while True:
                fields, arrays = self._replies.receive()
                if "id" in fields:
                    self._take(fields, arrays)
        except TimeoutError:
            reason = f"it has sent nothing for {SILENCE:.0f} s"
        except (OSError, EOFError):
            reason = "it ended the connection; see its log for the reason"
        except ClusterError as error:
            reason = str(error)
        self._lost(ClusterError(f"{self.name} is lost: {reason}"))

    def _take(self, fields: Mapping[str, Any], arrays: list[npt.NDArray[Any]]) -> None:
        number = fields["id"]
        with self._lock:
            reply, share = self._open.get(number, (None, None))
            if "share" not in fields:
                self._open.pop(number, None)
        if reply is None:
            return
        if "share" in fields:
            if share is not None:
                share(float(fields["share"]))
        elif "error" in fields:
            reply.set_exception(self._error(fields))
        else:
            reply.set_result((fields, arrays))

    def _error(self, fields: Mapping[str, Any]) -> Exception:
        """Return the error in a member's reply, with the member's name."""
        kind, text = fields["error"], f"{self.name}: {fields['message']}"
        if kind == "ValueError":
            return ValueError(text)
        if "rows" in fields:
            return FailedRowsError(text, fields["rows"])
        return error_class(kind, ClusterError)(text)


class Members:
    """All members of a model. The loss of one ends all, because no member can compute without the others.

    Raises ClusterError for a member that cannot be reached, lacks the key, or computes different bits.
    """

    def __init__(self, nodes: Sequence[Node], flash_attention: bool) -> None:
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._failure: ClusterError | None = None
        self._all: list[Member] = []
        self._outgoing: Outgoing = queue.SimpleQueue()
        threading.Thread(target=self._send_all, name="chaski-requests", daemon=True).start()
        self._runs = count()
        self._backends = count()
        self._open_backends: set[int] = set()
        self._released: deque[int] = deque()
        session = secrets.token_hex(16)
        with ExitStack() as undo:
            undo.callback(self.close)
            for node in nodes:
                self._all.append(Member(node, session, self._outgoing, self._lose))
            opened = self.ask_all(
                "open",
                [
                    {"version": __version__, "member": number, "flash_attention": flash_attention}
                    for number in range(len(nodes))
                ],
            )
            about = [fields for fields, _ in opened]
            self._check_alike(about)
            self.about = about[0]
            self.rule = ", ".join(dict.fromkeys(fields["rule"] for fields in about))
            addresses = [node.address for node in nodes]
            self.ask_all("join", [{"session": session, "addresses": addresses}] * len(self))
            undo.pop_all()
        threading.Thread(target=self._tell_alive, name="chaski-alive", daemon=True).start()

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, number: int) -> Member:
        return self._all[number]

    @property
    def are_far(self) -> bool:
        """True if values are sent over a network, where fewer bytes are faster."""
        return any(member.node.is_far for member in self._all)

    @property
    def failure(self) -> ClusterError | None:
        """The loss of a member. Other members notice it only by values that do not arrive."""
        return self._failure

    def loss(self, seconds: float) -> ClusterError | None:
        """Wait up to `seconds` for `failure`; others may notice a loss before that connection ends."""
        self._is_closed.wait(seconds)
        return self._failure

    def add_backend(self) -> int:
        """Add a backend to these members -> its number, the same on each member."""
        number = next(self._backends)
        self._open_backends.add(number)
        return number

    def remove_backend(self, number: int) -> None:
        """Remove a backend. Removing the last one closes the connections."""
        self._open_backends.discard(number)
        if not self._open_backends:
            self.close()

    def next_run(self) -> int:
        """Return the number of a new run of a plan."""
        return next(self._runs)

    def release(self, run: int) -> None:
        """Record a run whose results are no longer referenced."""
        self._released.append(run)

    def send_together(self, requests: Sequence[Request]) -> None:
        """Queue requests. An interruption of the caller queues all of them or none."""
        self._outgoing.put(requests)

    def ask_all(
        self,
        kind: str,
        fields: Sequence[Mapping[str, Any]],
        arrays: Sequence[Sequence[npt.NDArray[Any]]] | None = None,
        share: Share | None = None,
    ) -> list[Message]:
        """Ask all members at once -> their replies. Raises the first error of any member.

        `share` is called with the loaded share of the whole whenever a member reports its share.
        """
        shares = [0.0] * len(self)

        def tell(member: int, done: float) -> None:
            shares[member] = done
            if share is not None:
                share(sum(shares) / len(shares))

        requests = [
            member.request(
                kind,
                fields[number],
                () if arrays is None else arrays[number],
                lambda done, n=number: tell(n, done),  # type: ignore[misc]
            )
            for number, member in enumerate(self._all)
        ]
        self.send_together(requests)
        return [request.reply.result() for request in requests]

    def close(self) -> None:
        """Close all connections. The members then release everything."""
        self._is_closed.set()
        for member in self._all:
            member.fail(ClusterError("the model was closed"))
        self._outgoing.put(None)

    def _lose(self, error: ClusterError) -> None:
        with self._lock:
            is_first = self._failure is None and not self._is_closed.is_set()
            self._failure = self._failure or error
        if is_first:
            _log.warning("%s", error)
        self._is_closed.set()
        for member in list(self._all):
            member.fail(self._failure)

    def _send_all(self) -> None:
        """Send queued requests until the members are closed. A launch also lists results to release."""
        while (requests := self._outgoing.get()) is not None:
            released: list[int] | None = None
            for request in requests:
                fields = request.fields
                if fields["kind"] == "launch":
                    if released is None:
                        released = [self._released.popleft() for _ in range(len(self._released))]
                    fields = {**fields, "released": released}
                request.member.send(fields, request.arrays)

    def _tell_alive(self) -> None:
        while not self._is_closed.wait(ALIVE):
            for member in self._all:
                member.tell_alive()

    def _check_alike(self, about: Sequence[Mapping[str, Any]]) -> None:
        """Check that all members follow one rule, which makes results bit-identical on any device."""
        first = about[0]
        for member, other in zip(self._all, about, strict=True):
            if other["rule"].split()[:2] != first["rule"].split()[:2]:
                raise ClusterError(
                    f"{member.name} computes by the rule {other['rule']}, and {self._all[0].name} "
                    f"by {first['rule']}: use backends of one rule"
                )
            if any(other[name] != first[name] for name in ("kv_dtype", "cache_config")):
                raise ClusterError(f"{member.name} stores keys and values in a different way than others")
