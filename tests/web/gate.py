"""A way to a server that tests may close, so that connections break and new ones are refused, or block."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["Gate", "gate_to"]


class Gate:
    """Forwards connections from `port` to a server while it is open.

    flows   cleared: connections stay, but no byte passes, as with a server that hangs
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self.flows = threading.Event()
        self.flows.set()
        self._sockets: list[socket.socket] = []
        self._changing = threading.Lock()
        self.port = 0
        self.open()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open(self) -> None:
        """Accept connections, on the same port as before."""
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """Break all connections and refuse new ones."""
        with self._changing:
            broken = [self._listener, *self._sockets]
            self._sockets.clear()
            for each in broken:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                with self._changing:
                    if listener.fileno() == -1:  # closed since the connection was accepted
                        client.close()
                        server.close()
                        return
                    self._sockets += client, server
                for source, sink in (client, server), (server, client):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self.flows.wait()
                sink.sendall(data)
        for each in source, sink:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextmanager
def gate_to(port: int) -> Iterator[Gate]:
    """Open a gate to a port of this machine until the block ends."""
    gate = Gate(port)
    try:
        yield gate
    finally:
        gate.flows.set()
        gate.close()
