"""A registry that takes connections and never answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hanging_registry() -> Iterator[str]:
    """Its host and port. Ending it ends all who wait for it."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
