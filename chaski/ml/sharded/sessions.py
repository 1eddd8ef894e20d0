"""The sessions of a member. The first message on a connection assigns it to a session."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from chaski.errors import ClusterError
from chaski.ml.sharded.encoding import Fields
from chaski.ml.sharded.frames import Channel
from chaski.ml.sharded.session import SILENCE, Connect, MeasureSpeed, OpenBackend, Session
from chaski.strangers import PATIENCE

__all__ = ["Sessions"]


class Sessions:
    """The work of a member for each head that has connected.

    connect  connects to another member by the address that heads use
    opening  opens the backend of a session
    folders  folders that are searched for files by name, in addition to the paths that a head names
    speed    measures the speed of the member; None to leave it unknown
    """

    def __init__(
        self,
        connect: Connect,
        opening: OpenBackend,
        folders: Sequence[Path] = (),
        speed: MeasureSpeed | None = None,
    ) -> None:
        self._speed = speed
        self._connect = connect
        self._opening = opening
        self._folders = folders
        self._changed = threading.Condition()
        self._sessions: dict[str, Session] = {}
        self._running: set[threading.Thread] = set()

    def __len__(self) -> int:
        with self._changed:
            return len(self._sessions)

    @property
    def num_bytes(self) -> int:
        """Bytes of values that were sent to other members, without protocol overhead."""
        with self._changed:
            return sum(session.exchange.num_bytes for session in self._sessions.values())

    def wait_idle(self, seconds: float) -> bool:
        """Wait until all sessions have ended -> whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._sessions, seconds)

    def close(self) -> None:
        """End all sessions and wait until their memory is released."""
        with self._changed:
            sessions, running = list(self._sessions.values()), list(self._running)
        for session in sessions:
            session.end()
        for thread in running:
            thread.join()

    def take(self, channel: Channel) -> None:
        """Assign a connection by its first message: requests, replies, or values of another member.

        For a connection for replies, this runs the session until its end.
        """
        try:
            channel.finish_within(PATIENCE)
            fields, _ = channel.receive()
            channel.expect_within(SILENCE if fields["kind"] == "requests" else None)
            self._take_as(fields["kind"], fields, channel)
        except (OSError, EOFError, ClusterError, KeyError):
            channel.close()

    def _take_as(self, kind: str, fields: Fields, channel: Channel) -> None:
        name = str(fields["session"])
        if kind == "requests":
            with self._changed:
                if name in self._sessions:
                    raise ClusterError("a session of that name exists already")
                self._sessions[name] = Session(
                    self._connect, self._opening, self._folders, channel, self._speed
                )
                self._changed.notify_all()
            return
        with self._changed:  # a session's connections arrive concurrently, in any order
            self._changed.wait_for(lambda: name in self._sessions, PATIENCE)
            session = self._sessions[name]
        if kind == "replies":
            self._run(name, session, channel)
        elif fields["receives"]:
            session.exchange.receive_from(int(fields["member"]), channel.values())
        else:
            session.exchange.send_to(int(fields["member"]), channel.values())

    def _run(self, name: str, session: Session, replies: Channel) -> None:
        """Run a session in this thread, which belongs to one of its connections."""
        with self._changed:
            self._running.add(threading.current_thread())
        try:
            with suppress(OSError):
                session.run(replies)
        finally:
            with self._changed:
                self._running.discard(threading.current_thread())
                self._sessions.pop(name, None)
                self._changed.notify_all()
