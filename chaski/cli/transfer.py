"""Terminal progress of pull, push and create: a line per step, with bars for counted bytes.

All output goes to stderr. Without a terminal, each step is one plain line.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from chaski.cli.layout import file_size, printable

if TYPE_CHECKING:
    from chaski.names import ModelName
    from chaski.store.http import Access
    from chaski.store.progress import StoreProgress

__all__ = ["access_to", "fields_of", "registry_options", "show_progress"]

_REDRAW_SECONDS = 0.1
_RATE_SECONDS = 10.0
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def registry_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for `access_to` to a command."""
    insecure = click.option("--insecure", is_flag=True, help="Allow http:// without encryption.")
    username = click.option("--username", metavar="NAME", help="User name at the registry.")
    password = click.option(
        "--password", metavar="TEXT", help="Password of that user; asked for if not given."
    )
    return insecure(username(password(command)))


def access_to(
    name: ModelName, insecure: bool = False, username: str | None = None, password: str | None = None
) -> Access:
    """Return the user's access to a registry. A name typed by the user may have a private address."""
    from chaski.env import Environment
    from chaski.store.http import Access

    if username is not None and password is None:
        password = click.prompt("Password", hide_input=True, err=True)
    hosts = {*Environment.read().private_registries, name.host.lower()}
    return Access(insecure, frozenset(hosts), username, password)


def fields_of(access: Access) -> dict[str, Any]:
    """Return the request fields for a server, which decides itself which private hosts it may contact."""
    given = {"insecure": access.insecure, "username": access.username, "password": access.password}
    return {name: value for name, value in given.items() if value}


def show_progress(events: Iterable[StoreProgress]) -> None:
    """Show `events` until they end."""
    if sys.stderr.isatty():
        _draw(events)
        return
    before = ""
    for event in events:
        if event.status != before:
            click.echo(printable(event.status), err=True)
        before = event.status


def _draw(events: Iterable[StoreProgress]) -> None:
    lines: dict[str, _Line] = {}
    drawn, next_time = 0, 0.0
    click.echo(_HIDE_CURSOR, nl=False, err=True)
    try:
        for event in events:
            now = time.monotonic()
            if event.status not in lines:
                for line in lines.values():
                    line.is_done = True
                lines[event.status] = _Line(printable(event.status), now)
            lines[event.status].update(event, now)
            if now >= next_time:
                drawn, next_time = _redraw(lines.values(), drawn, now), now + _REDRAW_SECONDS
        for line in lines.values():
            line.is_done = True
    finally:
        _redraw(lines.values(), drawn, time.monotonic())
        click.echo(_SHOW_CURSOR, nl=False, err=True)


def _redraw(lines: Iterable[_Line], drawn: int, now: float) -> int:
    """Redraw the lines over the drawn ones, at most a screenful; return their new number."""
    terminal = shutil.get_terminal_size()
    texts = [line.text(now, terminal.columns) for line in lines][-max(terminal.lines - 1, 1) :]
    up = f"\x1b[{drawn}A" if drawn else ""
    click.echo(up + "".join(f"\r\x1b[K{text}\n" for text in texts), nl=False, err=True)
    return len(texts)


class _Line:
    """One step and its progress."""

    def __init__(self, status: str, now: float) -> None:
        self.is_done = False
        self._status = status
        self._total = self._completed = 0
        self._first: int | None = None
        self._samples: deque[tuple[float, int]] = deque([(now, 0)])

    def update(self, event: StoreProgress, now: float) -> None:
        self._total = event.total or 0
        self._completed = event.completed or 0
        if self._first is None and event.completed is not None:
            # Bytes from an earlier pull do not count for the rate.
            self._first = self._completed
            self._samples = deque([(now, self._completed)])
        self._samples.append((now, self._completed))
        while now - self._samples[0][0] > _RATE_SECONDS and len(self._samples) > 2:
            self._samples.popleft()

    def text(self, now: float, width: int) -> str:
        if not self._total:
            return f"{self._status} {' ' if self.is_done else _frame(now)}".rstrip()[: width - 1]
        share = min(self._completed / self._total, 1.0)
        head = f"{self._status}: {int(100 * share):3d}% "
        tail = f" {self._figures(now)}"
        room = max(width - len(head) - len(tail) - 3, 0)
        bar = ("█" * int(room * share)).ljust(room)
        return f"{head}▕{bar}▏{tail}"[: width - 1]

    def _figures(self, now: float) -> str:
        if self._completed >= self._total:
            return f"{file_size(self._total):>7}{'':24}"
        sizes = f"{file_size(self._completed)}/{file_size(self._total)}"
        rate = self._rate()
        left = _eta((self._total - self._completed) / rate) if rate else ""
        speed = f"{file_size(int(rate))}/s" if rate else ""
        return f"{sizes:>15} {speed:>9} {left:>6}"

    def _rate(self) -> float:
        """Return the recent rate in bytes per second."""
        (begin, first), (end, last) = self._samples[0], self._samples[-1]
        return max(last - first, 0) / (end - begin) if end > begin else 0.0


def _frame(now: float) -> str:
    return _SPINNER[int(now / _REDRAW_SECONDS) % len(_SPINNER)]


def _eta(seconds: float) -> str:
    """Format a time in its two largest units, `1m17s`, or as a bound if it is long."""
    if seconds >= 360_000:
        return "99h+"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
