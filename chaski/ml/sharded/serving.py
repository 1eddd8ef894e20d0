"""A member, which listens for heads that know the key and computes parts of their models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from chaski.errors import OptionError
from chaski.ml.sharded.frames import Frames
from chaski.ml.sharded.links import Listener, connect
from chaski.ml.sharded.session import MeasureSpeed, OpenBackend
from chaski.ml.sharded.sessions import Sessions

__all__ = ["MemberServer", "listening_address"]

_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:\[\]]*):(?P<port>\d{1,5})")


def listening_address(text: str) -> tuple[str, int]:
    """Read host:port; an empty host means all addresses of this machine. Raises OptionError."""
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) >= 1 << 16:
        raise OptionError(f"{text!r:.200} is not an address to listen at; use host:port, as in 0.0.0.0:11500")
    return found["host"].strip("[]") or "0.0.0.0", int(found["port"])


class MemberServer:
    """A server that listens until `close`. Each head has a session with its own memory.

    folders  folders that are searched for files by name, in addition to the paths that a head names
    speed    measures the speed of this machine; None to leave it unknown

    Raises ClusterError if it cannot listen at the address.
    """

    def __init__(
        self,
        host: str,
        port: int,
        key: bytes,
        opening: OpenBackend,
        folders: Sequence[Path] = (),
        speed: MeasureSpeed | None = None,
    ) -> None:
        def connect_to(address: tuple[str, int]) -> Frames:
            return Frames(connect(*address, key))

        self._sessions = Sessions(connect_to, opening, folders, speed)
        self._listener = Listener(host, port, key, lambda socket: self._sessions.take(Frames(socket)))
        self.address = f"{host}:{self._listener.port}"
        self.port = self._listener.port
        self.speed = speed

    @property
    def num_sessions(self) -> int:
        """The number of heads that the server computes for."""
        return len(self._sessions)

    @property
    def num_bytes(self) -> int:
        """Bytes of values that its sessions have sent to other members, without protocol overhead."""
        return self._sessions.num_bytes

    def wait_idle(self, seconds: float) -> bool:
        """Wait until all sessions have ended -> whether they have."""
        return self._sessions.wait_idle(seconds)

    def close(self) -> None:
        """End all sessions and wait until their memory is released."""
        self._listener.close()
        self._sessions.close()
