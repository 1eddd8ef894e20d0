"""`chaski top`: shows the activity of a running server, live."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from chaski.remote import Remote

__all__ = ["command"]

_PIPE_COLUMNS, _LEAST_COLUMNS = 80, 60


@click.command("top", short_help="Watch a running server.")
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(1, 3600),
    default=1.0,
    show_default=True,
    help="Time between updates, at least a second.",
)
@click.option("--once", is_flag=True, help="Print the figures once and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as lines of JSON, one per update.")
@click.help_option("-h", "--help")
def command(interval: float, once: bool, as_json: bool) -> None:
    """Watch models, sequences, caches, rates, queues and memory of the running server.

    \b
    q               end                up, down, j, k  choose a model
    c               cells of a cache   PgUp, PgDn      other sequences
    s               sort sequences     p               pause
    ?               help

    On a terminal it runs until q or Ctrl-C. Elsewhere use --once or --json.
    """
    import os
    import sys

    from chaski.cli.top_watch import looked
    from chaski.errors import OptionError
    from chaski.remote import running_server

    server = running_server()
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown", "")
    in_color = is_terminal and not os.environ.get("NO_COLOR")
    if as_json:
        _print_json(server, interval, once)
    elif once:
        _print_picture(looked(server), server.url, in_color)
    elif not (is_terminal and sys.stdin.isatty()):
        raise OptionError("chaski top needs a terminal; elsewhere say --once or --json")
    else:
        from chaski.cli.top_screen import show_screen

        show_screen(server, looked(server), interval, in_color)


def _print_json(server: Remote, interval: float, once: bool) -> None:
    import json

    from chaski.cli.top_watch import followed, looked

    for figures in [looked(server)] if once else followed(server, interval):
        click.echo(json.dumps(figures))


def _print_picture(figures: object, url: str, in_color: bool) -> None:
    import shutil
    import sys

    from chaski.cli.top_lines import as_ansi, as_text
    from chaski.cli.top_picture import View, picture

    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_COLUMNS
    lines = picture(figures, url, View(is_interactive=False), max(columns, _LEAST_COLUMNS), None)
    click.echo(as_ansi(lines, in_color=True) if in_color else as_text(lines), color=True)
