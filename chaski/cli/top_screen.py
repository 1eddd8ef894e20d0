"""The interactive screen of `chaski top`: key bindings, and a redraw with each update."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from chaski.cli.top_lines import as_ansi
from chaski.cli.top_picture import ORDERS, View, chosen_index, picture
from chaski.cli.top_watch import Watch
from chaski.remote import Remote

if TYPE_CHECKING:
    from prompt_toolkit.formatted_text import AnyFormattedText
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

__all__ = ["show_screen"]


def show_screen(server: Remote, figures: Any, interval: float, in_color: bool) -> None:
    """Show the figures until the user presses q, then restore the terminal.

    figures: the figures of the first update.
    """
    from prompt_toolkit.application import Application
    from prompt_toolkit.layout import FormattedTextControl, Layout, Window
    from prompt_toolkit.output.vt100 import Vt100_Output

    output = Vt100_Output.from_pty(sys.stdout, os.environ.get("TERM"))
    output.enable_cpr = False  # not every terminal reports its cursor position
    screen = _Screen(server, figures, interval, in_color)
    application: Application[None] = Application(
        layout=Layout(Window(FormattedTextControl(screen.drawn, show_cursor=False), wrap_lines=False)),
        key_bindings=screen.keys(),
        full_screen=True,
        output=output,
    )
    screen.watch = Watch(server, figures, interval, application.invalidate)
    screen.watch.start()
    application.run()


class _Screen:
    def __init__(self, server: Remote, figures: Any, interval: float, in_color: bool) -> None:
        self.watch = Watch(server, figures, interval, lambda: None)
        self._view = View()
        self._figures = figures
        self._url = server.url
        self._in_color = in_color

    def drawn(self) -> AnyFormattedText:
        """Return the screen in the terminal's current size."""
        from prompt_toolkit.application import get_app
        from prompt_toolkit.formatted_text import ANSI

        size = get_app().output.get_size()
        view, watch = self._view, self.watch
        view.problem = watch.problem
        if not view.is_paused:
            self._figures, view.cells, view.rates = watch.figures, watch.cells, tuple(watch.rates)
        lines = picture(self._figures, self._url, view, size.columns, size.rows)
        return ANSI(as_ansi(lines, self._in_color))

    def keys(self) -> KeyBindings:
        from prompt_toolkit.key_binding import KeyBindings

        keys = KeyBindings()
        view = self._view

        @keys.add("q")
        @keys.add("c-c")
        def _(event: KeyPressEvent) -> None:
            event.app.exit()

        @keys.add("c-z")
        def _(event: KeyPressEvent) -> None:
            event.app.suspend_to_background()

        @keys.add("c-l")
        def _(event: KeyPressEvent) -> None:
            event.app.renderer.clear()

        @keys.add("up")
        @keys.add("k")
        def _(event: KeyPressEvent) -> None:
            self._choose(-1)

        @keys.add("down")
        @keys.add("j")
        def _(event: KeyPressEvent) -> None:
            self._choose(1)

        @keys.add("pageup")
        @keys.add("pagedown")
        def _(event: KeyPressEvent) -> None:
            page = max(event.app.output.get_size().rows // 2, 1)
            view.first += page if event.key_sequence[0].key == "pagedown" else -page

        @keys.add("c")
        def _(event: KeyPressEvent) -> None:
            if self.watch.wanted is None:
                self._want_cells()
            else:
                self.watch.want(None)
            view.cells = self.watch.cells

        @keys.add("s")
        def _(event: KeyPressEvent) -> None:
            orders = list(ORDERS)
            view.order = orders[(orders.index(view.order) + 1) % len(orders)]

        @keys.add("p")
        def _(event: KeyPressEvent) -> None:
            view.is_paused = not view.is_paused

        @keys.add("?")
        def _(event: KeyPressEvent) -> None:
            view.has_help = not view.has_help

        return keys

    def _choose(self, step: int) -> None:
        """Move the choice by `step` models."""
        view, models = self._view, self._figures["models"]
        if models:
            place = min(max(chosen_index(models, view) + step, 0), len(models) - 1)
            view.chosen, view.first = models[place]["name"], 0
            if self.watch.wanted is not None:
                self._want_cells()

    def _want_cells(self) -> None:
        models = self._figures["models"]
        if models:
            self.watch.want(models[chosen_index(models, self._view)]["name"])
