"""A command on a separate terminal, used as a person would."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 30.0
_PATIENCE_SECONDS = 0.05
_READS_KEYS = b"\x1b[?2004h"  # switches bracketed paste on
_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")


class Terminal:
    """A running command. seen: all its output so far."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self.seen = b""

    @property
    def text(self) -> str:
        """Return the output without sequences that move the cursor or set colors."""
        return _SEQUENCE.sub("", self.seen.decode(errors="replace"))

    def type(self, text: str) -> None:
        self.type_bytes(text.encode())

    def type_bytes(self, data: bytes) -> None:
        os.write(self._descriptor, data)

    @property
    def echoes(self) -> bool:
        """Whether the terminal shows typed characters and collects lines, as shells expect it."""
        flags = termios.tcgetattr(self._descriptor)[3]
        return bool(flags & termios.ECHO) and bool(flags & termios.ICANON)

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until the text was written this often."""
        self.wait_until(lambda: self.text.count(text) >= times, text)

    def wait_for_prompt(self, number: int) -> None:
        """Wait until the chat reads keys for the message with this number, from 1 on."""
        self.wait_until(lambda: self.seen.count(_READS_KEYS) >= number, "a prompt")

    def wait_until(self, is_there: Callable[[], bool], what: str = "it") -> None:
        """Wait until the condition holds, for the output or for the terminal."""
        deadline = time.monotonic() + SECONDS
        while not is_there():
            assert self._read(deadline), f"it ended before {what!r}: {self.text[-2000:]!r}"

    def wait_for_end(self) -> int:
        """Wait until the command has ended; return its status."""
        deadline = time.monotonic() + SECONDS
        while self._read(deadline):
            pass
        return self.process.wait(SECONDS)

    def _read(self, deadline: float) -> bool:
        """Read more output, waiting for it shortly; return whether more may come."""
        assert time.monotonic() < deadline, f"waited for too long: {self.text[-2000:]!r}"
        if not select.select([self._descriptor], [], [], _PATIENCE_SECONDS)[0]:
            return True
        try:
            piece = os.read(self._descriptor, 4096)
        except OSError:  # the end of a terminal
            return False
        self.seen += piece
        return bool(piece)


def _take_terminal() -> None:
    """Make the terminal the process's own. Its signals arrive also if the tests run in the background."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def terminal(
    *arguments: str, columns: int = 80, command: str = sys.executable, **environment: str
) -> Iterator[Terminal]:
    """Run Python, or another command, with these arguments on a terminal of its own."""
    inherited = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [command, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=ROOT,
        env={**inherited, "TERM": "xterm", "OLLAMA_HOST": "127.0.0.1:1", **environment},
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
