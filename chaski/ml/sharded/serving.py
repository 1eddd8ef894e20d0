"""A member: waits at an address for heads that know the key, and computes parts of their models."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from chaski.errors import ClusterError, OptionError
from chaski.ml.sharded.encoding import Fields
from chaski.ml.sharded.frames import Frames
from chaski.ml.sharded.links import PATIENCE, Listener
from chaski.ml.sharded.session import SILENCE, OpenBackend, Session

__all__ = ["MemberServer", "listening_address"]

_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:\[\]]*):(?P<port>\d{1,5})")


def listening_address(text: str) -> tuple[str, int]:
    """Read host:port, where no host means all addresses of this machine. Raises OptionError."""
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) >= 1 << 16:
        raise OptionError(f"{text!r:.200} is no address to listen at; write host:port, such as 0.0.0.0:11500")
    return found["host"].strip("[]") or "0.0.0.0", int(found["port"])


class MemberServer:
    """Listens until `close`. Each head has a session with memory of its own.

    folders  where files are looked for by their names, besides the paths that a head has them at

    Raises ClusterError where nobody can listen at the address.
    """

    def __init__(
        self, host: str, port: int, key: bytes, opening: OpenBackend, folders: Sequence[Path] = ()
    ) -> None:
        self._key = key
        self._opening = opening
        self._folders = folders
        self._changed = threading.Condition()
        self._sessions: dict[str, Session] = {}
        self._running: set[threading.Thread] = set()
        self._listener = Listener(host, port, key, self._take)
        self.address = f"{host}:{self._listener.port}"
        self.port = self._listener.port

    @property
    def num_sessions(self) -> int:
        """How many heads it computes for."""
        with self._changed:
            return len(self._sessions)

    @property
    def num_bytes(self) -> int:
        """Bytes of values that it has sent to other members for its sessions, but for what carries them."""
        with self._changed:
            return sum(session.exchange.num_bytes for session in self._sessions.values())

    def wait_idle(self, seconds: float) -> bool:
        """Wait until there is no session any more -> whether that came."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._sessions, seconds)

    def close(self) -> None:
        """End all sessions, and wait until their memory is released."""
        self._listener.close()
        with self._changed:
            sessions, running = list(self._sessions.values()), list(self._running)
        for session in sessions:
            session.end()
        for thread in running:
            thread.join()

    def _take(self, connection: socket.socket) -> None:
        """Take a connection by what it says first: requests, replies, or values of another member."""
        frames = Frames(connection)
        try:
            connection.settimeout(PATIENCE)
            fields, _ = frames.receive()
            connection.settimeout(SILENCE if fields["kind"] == "requests" else None)
            self._take_as(fields["kind"], fields, frames)
        except (OSError, EOFError, ClusterError, KeyError):
            frames.close()

    def _take_as(self, kind: str, fields: Fields, frames: Frames) -> None:
        name = str(fields["session"])
        if kind == "requests":
            with self._changed:
                if name in self._sessions:
                    raise ClusterError("there is a session of that name")
                self._sessions[name] = Session(self._key, self._opening, self._folders, frames)
                self._changed.notify_all()
            return
        with self._changed:  # connections are taken at the same time, in any order
            self._changed.wait_for(lambda: name in self._sessions, PATIENCE)
            session = self._sessions[name]
        if kind == "replies":
            self._run(name, session, frames)
        elif fields["receives"]:
            session.exchange.receive_from(int(fields["member"]), frames.values())
        else:
            session.exchange.send_to(int(fields["member"]), frames.values())

    def _run(self, name: str, session: Session, replies: Frames) -> None:
        """Run a session in this thread, which is that of one of its connections."""
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
