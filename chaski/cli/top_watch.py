"""`Watch`: follows the live figures of a server in a thread, and reconnects to a server after an outage."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from chaski.cli.top_cells import cell_lines
from chaski.cli.top_picture import View, picture
from chaski.errors import ChaskiError, ModelNotFoundError
from chaski.remote import Remote

__all__ = ["Watch", "followed", "looked"]

_FIGURES = "/api/live"
# In seconds: silence before the server counts as lost, pause between attempts, tolerated early arrival.
_PATIENCE, _BETWEEN, _EARLY = 10.0, 1.0, 0.5
_RATES = 240
_UNREADABLE = (LookupError, TypeError, ValueError, AttributeError)


def looked(server: Remote) -> Any:
    """Return the current figures. Raises ChaskiError."""
    try:
        return _checked(server.get(_FIGURES, _PATIENCE))
    except ChaskiError as error:
        raise _explained(server, error) from None


def followed(server: Remote, interval: float) -> Iterator[Any]:
    """Yield the figures about every `interval` seconds until the server ends. Raises ChaskiError."""
    shown = float("-inf")
    try:
        for figures in server.follow(f"{_FIGURES}?stream=1", _PATIENCE):
            if time.monotonic() - shown >= interval - _EARLY:
                shown = time.monotonic()
                yield _checked(figures)
    except ChaskiError as error:
        raise _explained(server, error) from None
    raise ChaskiError(f"the server at {server.url} has ended")


class Watch:
    """Follows the live figures of a server.

    figures: the latest figures.
    cells: the cells of the model `wanted`, or an error text.
    problem: the current problem, or "".

    changed: called after each change, by another thread.
    """

    def __init__(self, server: Remote, figures: Any, interval: float, changed: Callable[[], None]) -> None:
        self.server = server
        self.figures = figures
        self.cells: Any = None
        self.wanted: str | None = None
        self.problem = ""
        self.rates: deque[float] = deque(maxlen=_RATES)
        self._interval = interval
        self._changed = changed

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def want(self, model: str | None) -> None:
        """Request the cells of a model with each update, or of no model."""
        if model != self.wanted:
            self.wanted = model
            self.cells = None if model is None else "The cells arrive with the next update."

    def _run(self) -> None:
        while True:
            try:
                for figures in followed(self.server, self._interval):
                    self._take(figures)
            except ChaskiError as error:
                self.problem = f"Trying again each second: {error}"
                self._changed()
            time.sleep(_BETWEEN)

    def _take(self, figures: Any) -> None:
        self.figures = figures
        self.rates.append(sum(model.get("generated_tokens_per_second", 0) for model in figures["models"]))
        self.problem = ""
        if (name := self.wanted) is not None:
            cells = self._cells_of(name)
            if name == self.wanted:
                self.cells = cells
        self._changed()

    def _cells_of(self, name: str) -> Any:
        from urllib.parse import quote

        try:
            cells = self.server.get(f"{_FIGURES}/cache?model={quote(name, safe='')}", _PATIENCE)
            cell_lines(cells, 80, 24)
            return cells
        except ChaskiError as error:
            return f"No cells: {error}"
        except _UNREADABLE as error:
            return f"The server's cells cannot be read ({error!r})."


def _checked(figures: Any) -> Any:
    """Validate the figures. Raises ChaskiError."""
    try:
        picture(figures, "", View(), 120, None)
    except _UNREADABLE as error:
        raise ChaskiError(f"the server's figures cannot be read ({error!r})") from None
    return figures


def _explained(server: Remote, error: ChaskiError) -> ChaskiError:
    """Return an error that names the fix, if the server's message does not."""
    if isinstance(error, ModelNotFoundError):
        return ChaskiError(
            f"the server at {server.url} has no live figures: they come with chaski 0.2.0 ({error})"
        )
    if "unauthorized" in str(error):
        what = "refuses the key in OLLAMA_API_KEY" if server.key else "wants a key: set OLLAMA_API_KEY"
        return ChaskiError(f"the server at {server.url} {what} ({error})")
    return error
