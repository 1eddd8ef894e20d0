"""`chaski list`: the models of the store."""

from __future__ import annotations

import time

import click

__all__ = ["command"]


@click.command("list", short_help="List the models of the store.")
@click.argument("prefix", default="")
@click.help_option("-h", "--help")
def command(prefix: str) -> None:
    """List the models of the store whose names begin with PREFIX, the newest first."""
    from chaski.cli.layout import age, file_size, table
    from chaski.store.store import Store

    rows = [
        (entry.name.short, entry.digest.short, file_size(entry.size), age(time.time() - entry.modified))
        for entry in Store.default().entries()
        if entry.name.short.lower().startswith(prefix.lower())
    ]
    click.echo(table([("NAME", "ID", "SIZE", "MODIFIED"), *rows], indent=""))
